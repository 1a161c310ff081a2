//! Structural schemas of kinds, and what is derived from them: conformance, defaults, OpenAPI.
//!
//! ```text
//! JSON schema ── Structural::for_kind ──► Structural ──► openapi::schema
//!                                                │
//! decoded body ── conform ── default ──► object  └──► apply (field ownership)
//! ```
//!
//! Decoding, defaulting, field ownership and the published documents use the same schema, so they cannot disagree.
//! Start at [`Structural`].

mod conform;
mod default;
mod json_schema;
mod object_meta;
pub mod openapi;
mod structural;
pub(crate) mod time;

pub use json_schema::SchemaError;
pub(crate) use object_meta::object_meta;
pub use structural::{Field, List, ListKind, ObjectShape, Shape, Structural, Width};
