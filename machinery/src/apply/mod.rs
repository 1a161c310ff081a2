//! Field ownership and server-side apply.
//!
//! An object lists in `metadata.managedFields` which manager owns which of its fields.
//!
//! - [`managed_fields`] maintains the list for all writes except applies: a writer owns what it changes.
//! - [`configuration`] merges a configuration for a policy, without ownership.
//! - [`merge`] applies a configuration: the manager owns what it lists, and must not change what others own.
//!
//! ```text
//! live, new ── compare (by schema) ──► added, modified, removed paths
//!                                            │
//! managedFields ── decode ──► entries ───────┴──► entries ── encode ──► managedFields
//! ```
//!
//! Start at [`merge::apply`] and [`managed_fields::record_update`].

mod changes;
pub mod configuration;
mod conflict;
mod entry;
pub mod field_set;
#[cfg(test)]
mod fixtures;
mod items;
mod join;
mod last_applied;
pub mod managed_fields;
mod manager_name;
pub mod merge;
mod merge_values;
mod path;
mod prune;
mod remove;
mod typed;
mod updater_cap;
mod validate;
mod value_paths;

pub use changes::ChangesError;
pub use conflict::{Conflict, Conflicts};
pub use entry::{EntriesError, Operation};
pub use field_set::FieldSet;
pub use items::{ItemError, TypedError};
pub use path::Path;
pub use validate::ConfigError;
