//! Pure logic over values: names, selectors, faults, tables, expressions. No tokio, no network, no files, and no
//! clock but [`clock::Clock`].
//!
//! - [`codec`]: bytes to objects and back.
//! - [`schema`]: what an object of a kind looks like; defaults; published schemas.
//! - [`apply`]: which writer owns which field.
//! - [`patch`]: JSON patch and merge patch.
//! - [`field_error`]: paths, faults and lists of faults: what every validation returns.
//! - [`clock`]: the time as an argument.
//! - [`expression`]: CEL conditions, compiled and evaluated under limits.
//! - [`names`]: which names are well formed, and which may be used.
//! - [`object_meta`]: the rules of metadata that every kind shares.
//! - [`selector`]: labels, fields and nodes that a request speaks of.
//! - [`table`], [`duration`]: what `kubectl get` shows.

pub mod apply;
pub mod clock;
pub mod codec;
pub mod duration;
pub mod expression;
pub mod field_error;
pub mod names;
pub mod object_meta;
pub mod patch;
pub mod schema;
pub mod selector;
pub mod table;
