//! Durable, ordered bytes: keys, values, revisions, history and watches. Knows no kinds.
//!
//! Start at [`Store`], the contract every backend keeps, then [`memory`] (the model: one `BTreeMap` a
//! revision, the oracle of tests) and `rocks` (the embedded engine).

mod error;
mod key;
mod revision;
mod store;

pub use error::StoreError;
pub use key::{Key, KeyError, KeyRange};
pub use revision::Revision;
pub use store::{
    At, Condition, Entry, Event, EventKind, Events, Expect, Floors, Found, Health, Outcome, Page, Scan,
    Signal, Store, Transaction, Value, Write,
};
