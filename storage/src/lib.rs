//! The storage: keys, opaque values, revisions, history and watches. It knows nothing about Kubernetes kinds.
//!
//! Start at [`Store`], the contract every backend keeps, then [`rocks`] (the embedded engine), [`etcd`] (for several servers
//! over one store) and [`memory`] (the reference implementation for tests).

pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
pub mod etcd;
pub mod export;
mod key;
pub mod memory;
pub mod metrics;
mod options;
mod record;
mod revision;
pub mod rocks;
pub mod seal;
mod store;
mod sync;

pub use error::StoreError;
pub use key::{Key, KeyError, KeyRange, MAX_KEY_BYTES};
pub use options::{Durability, FreeSpace, MeasureDisk, Options};
pub use revision::Revision;
pub use store::{
    At, Damaged, Entry, Event, EventKind, Events, Floors, Found, Growth, Health, Outcome, Page, Removable,
    Scan, Signal, Store, Transaction, Unread, Value, Write,
};
