//! Who owns which field of an object, and what does a write do to that?
//!
//! ```text
//! live, new ── typed::compare (through the schema) ──► Added, Modified, Removed
//!                                                          │
//! managedFields ── decode ──► entries: writer → FieldSet ──┴─► entries ── encode ──► managedFields
//! ```
//!
//! Start at [`managed_fields::record_update`].

pub mod field_set;
pub mod managed_fields;
mod manager_name;
pub mod path;
pub mod typed;

pub use field_set::FieldSet;
pub use path::{Path, PathElement};
