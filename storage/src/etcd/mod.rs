//! etcd as a backend: for servers that must outlive one machine. Any number of servers share one etcd.
//!
//! Start at [`EtcdStore::open`]. An object is a key below a prefix, its value is a record as RocksDB has it, and its
//! revisions are those of etcd. Nothing but etcd holds state. The modules:
//!
//! | | |
//! | --- | --- |
//! | handle | `store` (the [`Store`](crate::Store) trait), `parts` (what handles and tasks share) |
//! | requests | `members` (connections, failover, deadlines), `probe` (which members answer), `failure` (what an error says), `notice` (what people are told) |
//! | keys and values | `keyspace`, `marker` (whose prefix it is) |
//! | read and write | `transact`, `scan`, `revision` (with `waiting`), `watch` |
//! | start | `options`, `open`, `clocks` (of members), `error` |
//! | background | `compactor`, `floors` |
//! | moving | `transfer` (export and import) |

mod clocks;
mod compactor;
mod error;
mod failure;
mod floors;
mod keyspace;
mod marker;
mod members;
mod metrics;
mod notice;
mod open;
mod options;
mod parts;
mod probe;
mod revision;
mod scan;
mod store;
mod transact;
mod transfer;
mod waiting;
mod watch;

pub use error::EtcdOpenError;
pub use metrics::EtcdMetrics;
pub use notice::{EtcdMemberChange, EtcdNotice};
pub use open::EtcdOpened;
pub use options::{EtcdOptions, EtcdTls};
pub use store::EtcdStore;
pub use transfer::{EtcdImportReport, EtcdProgress, EtcdTransferError, import};
pub use watch::EtcdEvents;
