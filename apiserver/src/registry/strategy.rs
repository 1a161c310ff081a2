//! What does a kind supply, and what does the generic registry do by itself?
//!
//! The registry sets system metadata, generation, managed fields and the split between spec and status, checks
//! metadata, resolves races, and stores. A strategy is the rest: pure functions over the hub as JSON.

use drydock_machinery::field_error::ErrorList;
use drydock_machinery::patch::{PatchError, Patched};
use drydock_machinery::table::{Cell, Column};
use jiff::Timestamp;
use serde_json::Value;

/// What a strategy may know beside the object.
#[derive(Debug, Clone, Copy)]
pub struct WriteContext {
    /// The server's clock when the request arrived.
    pub now: Timestamp,
    /// Whether the object's namespace is being deleted or gone. Known only where a delete would be refused otherwise.
    pub namespace_terminating: bool,
}

/// Applies a strategic merge patch to an object of a kind.
pub type StrategicMerge = fn(document: &Value, patch: &[u8]) -> Result<Patched, PatchError>;

/// The rules of one kind. Objects are hubs that already fit the kind's schema, defaults applied.
pub trait Strategy: Send + Sync + 'static {
    /// Brings a new object into shape, before validation and after status was dropped and generation set to 1.
    fn prepare_for_create(&self, _object: &mut Value, _context: &WriteContext) {}

    /// All faults of a new object but those of its metadata, which the registry checks.
    fn validate(&self, object: &Value, context: &WriteContext) -> ErrorList;

    /// What a person should know though the object is accepted.
    fn warnings_on_create(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Brings an update through the main resource into shape; status was already restored from `old`.
    fn prepare_for_update(&self, _new: &mut Value, _old: &Value, _context: &WriteContext) {}

    /// All faults of an update through the main resource.
    fn validate_update(&self, new: &Value, old: &Value, context: &WriteContext) -> ErrorList;

    /// What a person should know though the update is accepted.
    fn warnings_on_update(&self, _new: &Value, _old: &Value) -> Vec<String> {
        Vec::new()
    }

    /// All faults of an update through `status`; everything but status was already restored from `old`.
    fn validate_status_update(&self, new: &Value, old: &Value, context: &WriteContext) -> ErrorList;

    /// Whether an update may come without a resourceVersion.
    fn allows_unconditional_update(&self) -> bool {
        true
    }

    /// Why the object may not be deleted now, if so: the text of a 403.
    fn refuse_delete(&self, _object: &Value, _context: &WriteContext) -> Option<String> {
        None
    }

    /// How long the object may take to end, in seconds, when a delete asks for `requested`. None = the kind ends at
    /// once, whatever is asked. Whoever ends such objects deletes them with a period of 0.
    fn grace_period(&self, _object: &Value, _requested: Option<i64>) -> Option<i64> {
        None
    }

    /// How strategic merge patches are applied; kinds without it refuse them, as custom resources do.
    fn strategic_merge(&self) -> Option<StrategicMerge> {
        None
    }

    /// The fields that field selectors may name beside `metadata.name` and `metadata.namespace`: paths of scalars.
    fn selectable_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// The columns of `kubectl get`.
    fn columns(&self) -> &'static [Column];

    /// The cells of an object, one a column.
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Cell>;
}
