//! A record of all writes, which says what each list and watch must deliver.
//!
//! ```text
//! writers ── acknowledge ──►  Ledger  ◄── observe ── one watch of everything
//!                               │ events and state of each selection
//!                               ▼
//! any watch ──── take ────►  Checker ── settle ──► Ok, or the broken rule
//! ```
//!
//! The response of a write names its revision, so the ledger knows every write and its place in the order. Deletions
//! are the exception: their response has no revision. It comes from one watch of everything, which must deliver every
//! acknowledged write once, in order, and nothing else. From the writes follow the events of any selection: additions,
//! changes and removals as objects begin and cease to match. Memory is bounded: the ledger drops events older than it
//! is asked to keep, and a checker holds only frames that the ledger cannot judge yet.
//!
//! Start at [`Ledger`], then [`Checker`]; `run` is what the tasks of a run share, [`wire`] is the JSON form of objects and events.

mod checker;
mod event;
#[expect(clippy::module_inception, reason = "the type that the module is named after")]
mod ledger;
pub(crate) mod run;
pub mod wire;

pub use drydock_storage::conformance::watch_checker::{Digest, Kind, Rule, Violation};

pub use self::checker::Checker;
pub use self::event::{Event, Frame, Group, Selection, Version};
pub use self::ledger::{ClassId, Ledger};
