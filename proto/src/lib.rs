//! API kinds and on-disk records: types and schemas only. No I/O, no clock, no policy.
//!
//! - [`kinds`]: the API kinds and their served versions. [`kinds::KINDS`] is the table that discovery, OpenAPI, the
//!   registry, RBAC manifests and tests iterate over.
//! - [`protobuf`]: the protobuf messages of the kinds, as tables of field numbers.
//! - [`storage`]: the records of the storage engine.
//! - `string_enum!`: string enumerations that keep values this release does not know.
//!
//! `ObjectMeta`, `Status`, `Condition`, `Time` and `LabelSelector` come from `k8s-openapi`. These types drop fields they
//! do not know, so the server never writes back an object decoded into them: handlers work on JSON values, and the
//! types here are read-only views for validation, controllers and clients. Their metadata has no managed fields.

pub mod kinds;
mod metadata;
pub mod protobuf;
mod schema;
pub mod storage;
mod string_enum;
