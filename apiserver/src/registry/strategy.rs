//! The rules of one kind, as pure functions over the hub. [`super::store`] calls them; everything that holds for every
//! kind (system metadata, generation, managed fields, the split between spec and status, checks of metadata,
//! conflicts, storage) is done there.
//!
//! The hooks in the order in which a write runs them. Only the two `prepare_` hooks may change the object:
//!
//! | | create | update of the object | update of `status` | delete |
//! | --- | --- | --- | --- | --- |
//! | 1 | `prepare_for_create` | `prepare_for_update` | | |
//! | 2 | `validate` | `validate_update` | `validate_status_update` | `refuse_delete` |
//! | 3 | `warnings_on_create` | `warnings_on_update` | | |
//!
//! Managed fields are recorded between 1 and 2. The mutating phase of admission comes before 1, with managed fields recorded
//! before it if it has something to do; the validating phase comes after 3, and before `refuse_delete`.

use drydock_machinery::field_error::ErrorList;
use jiff::Timestamp;
use serde_json::Value;

use super::face::Face;
use super::part::Part;

/// What a strategy may depend on besides the objects.
#[derive(Debug, Clone, Copy)]
pub struct WriteContext {
    /// The server's clock when the request arrived.
    pub now: Timestamp,
    /// Whether the object's namespace is being deleted or missing. Looked up only if a delete would be refused otherwise.
    pub namespace_terminating: bool,
}

/// The rules of one kind. Every object passed in is a hub that fits the schema, with defaults applied.
pub trait Strategy: Send + Sync + 'static {
    /// Whether the hooks may take many milliseconds for a small object: writes are processed beside the workers then, as those
    /// of large objects are.
    fn is_heavy(&self) -> bool {
        false
    }

    /// Normalizes a new object. Runs before managed fields are recorded and before validation; status has been dropped
    /// and the system metadata set. May change everything but system metadata.
    fn prepare_for_create(&self, _object: &mut Value, _context: &WriteContext) {}

    /// All errors of a new object except those of its metadata, which the store checks. Runs after
    /// `prepare_for_create`; may not change the object.
    fn validate(&self, object: &Value, context: &WriteContext) -> ErrorList;

    /// Warnings for a new object that is valid. Runs after `validate`.
    fn warnings_on_create(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Normalizes an update of the main resource. Runs before managed fields are recorded, the generation is advanced
    /// and the object is validated; status has been restored from `old`. May change `new` except for system metadata and
    /// status.
    fn prepare_for_update(&self, _new: &mut Value, _old: &Value, _context: &WriteContext) {}

    /// All errors of an update of the main resource except those of its metadata. Runs after `prepare_for_update`; may
    /// not change the object.
    fn validate_update(&self, new: &Value, old: &Value, context: &WriteContext) -> ErrorList;

    /// Warnings for a valid update of the main resource. Runs after `validate_update`.
    fn warnings_on_update(&self, _new: &Value, _old: &Value) -> Vec<String> {
        Vec::new()
    }

    /// All errors of an update through `status`. Everything except status has been restored from `old`; may not change
    /// the object.
    fn validate_status_update(&self, new: &Value, old: &Value, context: &WriteContext) -> ErrorList;

    /// All errors of an object in a version that does not have the shape of the hub, by the rules that only this version
    /// has: `new` and `old` are in that version, and `old` is `None` for a new object. Runs before `new` is converted to
    /// the hub.
    fn validate_face(&self, _face: &Face, _part: Part, _new: &Value, _old: Option<&Value>) -> ErrorList {
        ErrorList::new()
    }

    /// Whether a finalizer of the object has served its purpose, so that it does not hold a deleted object any more.
    fn is_released(&self, _object: &Value, _finalizer: &str) -> bool {
        false
    }

    /// The reason why the object may not be deleted now, as the message of a 403. Runs after admission.
    fn refuse_delete(&self, _object: &Value, _context: &WriteContext) -> Option<String> {
        None
    }
}
