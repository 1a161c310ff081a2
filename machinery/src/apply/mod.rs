//! Field ownership: which manager owns which field of an object, and how writes change that.
//!
//! ```text
//! live, new ── compare (by schema) ──► added, modified, removed paths
//!                                            │
//! managedFields ── decode ──► entries ───────┴──► entries ── encode ──► managedFields
//! ```
//!
//! Start at [`managed_fields::record_update`].

mod changes;
mod entry;
pub mod field_set;
#[cfg(test)]
mod fixtures;
mod items;
mod join;
pub mod managed_fields;
mod manager_name;
mod path;
mod typed;
mod updater_cap;

pub use field_set::FieldSet;
pub use path::Path;
