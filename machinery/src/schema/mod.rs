//! What does an object of a kind look like, and how is a decoded body made to look like that?
//!
//! ```text
//! JSON schema ── Structural::from_json_schema / for_kind ──► Structural ──► openapi::v2, openapi::v3
//!                                                               │
//! decoded body ── conform ── default ──► object                 └──► apply::typed (list kinds, atoms)
//! ```
//!
//! One schema feeds decoding, defaulting, field ownership and the published documents, so they cannot disagree. Start
//! at [`Structural`].

mod conform;
mod default;
mod object_meta;
pub mod openapi;
mod structural;
mod time;

pub use object_meta::object_meta;
pub use structural::{Field, List, ListKind, ObjectShape, SchemaError, Shape, Structural, Width};
