//! Pure logic over values: names, selectors, faults, tables, expressions. No tokio, no network, no files, and no
//! clock but [`clock::Clock`].
//!
//! - [`field_error`]: paths, faults and lists of faults: what every validation returns.
//! - [`clock`]: the time as an argument.
//! - [`names`]: which names are well formed, and which may be used.
//! - [`object_meta`]: the rules of metadata that every kind shares.
//! - [`selector`]: labels, fields and nodes that a request speaks of.
//! - [`table`], [`duration`]: what `kubectl get` shows.

pub mod clock;
pub mod duration;
pub mod field_error;
pub mod names;
pub mod object_meta;
pub mod selector;
pub mod table;
