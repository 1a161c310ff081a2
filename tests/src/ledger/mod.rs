//! What was written, and is every watch told just that?
//!
//! ```text
//! writers ── acknowledge ──►  Ledger  ◄── tell ── one watch of everything
//!                               │ what each selection is owed, in order; its state at any revision
//!                               ▼
//! any watch ──── take ────►  Checker ── settle ──► Ok, or the rule that is broken
//! ```
//!
//! The answer of a write names its revision, so the ledger knows what happened and when, except for removals, whose
//! answer has no revision: it is learned from the one watch, which must tell every acknowledged write once, in order,
//! and nothing else. From that follows what a watch of any selection is owed: additions, changes and removals as
//! objects come to match and cease to. Memory is bounded: the ledger forgets what is older than it is asked to keep,
//! a checker holds only what the ledger cannot judge yet.
//!
//! Start at [`Ledger`], then [`Checker`]; [`wire`] says how objects and events look over HTTP.

mod checker;
mod class;
mod event;
#[expect(clippy::module_inception, reason = "the type that the module is named after")]
mod ledger;
pub mod wire;

pub use self::checker::Checker;
pub use self::class::Digest;
pub use self::event::{Event, Fault, Frame, Group, Kind, Rule, Selection, Version};
pub use self::ledger::{ClassId, Ledger};
