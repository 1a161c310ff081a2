//! Wire and disk contracts: types only. No I/O, no clock, no policy.
//!
//! - [`kinds`]: the API kinds, their faces, and [`kinds::KINDS`], the one table that discovery, OpenAPI, the
//!   registry, RBAC manifests and tests iterate.
//! - [`storage`]: the records of the storage engine.
//! - [`string_enum`]: how an enumeration of the wire is typed without losing values it does not know.
//!
//! What Kubernetes already types is reused from `k8s-openapi`: `ObjectMeta`, `Status`, `Condition`, `Time`,
//! `LabelSelector`. They drop fields they do not know, so a server never writes back an object it decoded
//! through them: handlers work on JSON values, and these types are views for rules and clients.

pub mod kinds;
mod schema;
pub mod storage;
mod string_enum;
