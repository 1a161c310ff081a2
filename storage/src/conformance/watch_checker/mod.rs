//! Checks that one watch delivered exactly the events that its selection calls for.
//!
//! ```text
//! all writes, in order ──►  SelectedEvents   the events of one selection, and its state after each
//!                                │
//! frames of one watch  ──►    Checker        Ok, or the Violation and its Rule
//! ```
//!
//! Keys and values are the caller's types; revisions are plain numbers, because some adapters read them off the wire.
//! Adapters: [`recorded_watch`](super::recorded_watch) for a store's signals, the tests of the server's cache for its
//! frames, and the ledger of the whole-system suites for JSON events over HTTP.

mod checker;
mod event;
mod selected;

pub use self::checker::Checker;
pub use self::event::{Event, Frame, Kind, Rule, Violation};
pub use self::selected::{Digest, Forgotten, SelectedEvents, Stored};

#[cfg(test)]
mod tests;
