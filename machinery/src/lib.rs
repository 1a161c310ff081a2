//! API machinery as pure functions over JSON values. No tokio, no network, no files; time is an argument ([`clock`]).
//!
//! - [`codec`]: decoding and encoding of objects.
//! - [`schema`]: structural schemas: conformance, defaults, published OpenAPI schemas.
//! - [`apply`]: field ownership and server-side apply.
//! - [`patch`]: JSON patch, JSON merge patch and strategic merge patch.
//! - [`excerpt`]: texts of clients in messages, cut to a limit.
//! - [`field_error`]: field paths and validation errors.
//! - [`object_meta`]: validation of `metadata`.
//! - [`names`]: name syntax, and the names allowed for requesters and interceptors.
//! - [`interceptors`]: the sources of a pod's interceptors, merged into one order.
//! - [`selector`]: label, field and node selectors.
//! - [`expression`]: CEL conditions, compiled and evaluated under limits.
//! - [`policy_expression`]: CEL of admission policies, as Kubernetes evaluates it.
//! - [`table`]: columns and cells for `kubectl get`.
//! - [`websocket`]: the frames of watches over WebSocket.
//! - [`clock`]: the current time as an argument.

pub mod apply;
pub mod clock;
pub mod codec;
mod duration;
pub mod excerpt;
pub mod expression;
pub mod field_error;
pub mod interceptors;
pub mod names;
pub mod object_meta;
pub mod patch;
pub mod policy_expression;
pub mod schema;
pub mod selector;
pub mod table;
pub mod websocket;
