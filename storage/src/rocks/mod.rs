//! The embedded engine: RocksDB with one commit thread.
//!
//! Start at [`RocksStore::open`]. The modules:
//!
//! | | |
//! | --- | --- |
//! | handle | `store` (the [`Store`](crate::Store) trait), `parts` (what threads and handles share), `threads` (start and close) |
//! | write | `prepare` → `submit` → `queue` → `commit` (with `batch`, `message`) → `column_families` (bytes on disk) → `mark` |
//! | published state | `published` (with `index`, `tail`), `retention` (with `timeline`), `lifecycle`, `capacity` |
//! | read | `read` (scans, with `past_reads`), `watch` (with `history`) |
//! | start | `open` (with `lock`, `format`, `disk_probe`), `recover` |
//! | background | `housekeeping`, `check` |
//! | backups and repair | `checkpoint`, `incremental`, `transfer` (restore, export, import), `verify`, `accept_loss` |

mod accept_loss;
mod batch;
mod capacity;
mod check;
mod checkpoint;
mod column_families;
mod commit;
mod disk_probe;
mod error;
mod folder;
mod format;
mod handle;
mod history;
mod housekeeping;
mod incremental;
mod index;
mod lifecycle;
mod lock;
mod mark;
mod message;
mod open;
mod parts;
mod past_reads;
mod prepare;
mod progress;
mod published;
mod queue;
mod read;
mod recover;
mod reopen;
mod replays;
mod retention;
mod source;
mod store;
mod submit;
mod tail;
mod threads;
mod timeline;
mod transfer;
mod verify;
mod watch;

pub use accept_loss::{RecoverReport, recover};
pub use check::CheckReport;
pub use checkpoint::{BackupFile, BackupReport, Manifest, verify_backup};
pub use error::OpenError;
pub use handle::RocksStore;
pub use incremental::IncrementalReport;
pub use open::Opened;
pub use progress::{MaintenanceError, Progress};
pub use transfer::{ImportReport, import, restore};
pub use verify::{VerifyReport, verify};
pub use watch::RocksEvents;

#[cfg(test)]
mod tests;
