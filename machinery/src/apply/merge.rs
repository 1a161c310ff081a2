//! Server-side apply: merges an applied configuration into the live object and updates field ownership.
//!
//! ```text
//! live, config ── merge ──► merged ── prune ──► new object ── conform, default ──► Applied
//!                                       ▲            │
//! managedFields ── decode ──► entries ──┴── compare with live: conflicts, or new entries
//! ```
//!
//! The manager owns exactly the fields of its configuration. Fields that it applied before and does not list any more are
//! removed, unless another manager owns them. A field of another manager may be set to the value that it has already;
//! another value is a conflict, unless the apply is forced, which takes the field from its owner.
//!
//! The rules are those of Kubernetes: `Updater.Apply` of `sigs.k8s.io/structured-merge-diff`, and the managers around it
//! in `k8s.io/apimachinery/pkg/util/managedfields`. Start at [`apply`].

use std::fmt::{self, Display, Formatter};

use serde_json::{Map, Value};

use super::changes::{ChangesByVersion, ChangesError};
use super::conflict::{Conflict, Conflicts};
use super::entry::{EntriesError, Entry, Operation, decode_entries, encode_entries};
use super::items::TypedError;
use super::last_applied;
use super::managed_fields::{
    Endpoint, SYSTEM_FIELDS, Writer, is_unchanged, keep_times_of_unchanged, put_list, take_list,
};
use super::merge_values::merge;
use super::prune::prune;
use super::typed::equal;
use super::validate::{ConfigError, validate};
use super::value_paths::{applied_paths, everything};
use crate::codec::DecodeError;

/// The manager of the fields that an object had before the first apply, if they were not tracked.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The result of an apply.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The object to write, in the version of the request: conformed to the schema, with defaults and `managedFields`.
    pub object: Value,
    /// Whether the object differs from the live one, ownership included; `metadata.resourceVersion` is ignored. If not,
    /// nothing has to be written.
    pub is_changed: bool,
}

/// Why a configuration cannot be applied. The documentation of each variant names the HTTP status of the reference.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApplyError {
    /// The configuration contains `metadata.managedFields`: 400.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// The configuration does not conform to the schema: 500 without a reason.
    #[error("failed to create typed patch object ({object}): {errors}")]
    Config {
        /// The object and its kind: `namespace/name; group/version, Kind=kind`.
        object: String,
        /// The errors.
        errors: ConfigErrors,
    },
    /// The `managedFields` of the live object do not decode: 500.
    #[error("failed to decode managed fields: {0}")]
    Entries(#[from] EntriesError),
    /// The objects cannot be compared: 500.
    #[error(transparent)]
    Changes(#[from] ChangesError),
    /// Other managers own fields that would change: 409.
    #[error("{0}")]
    Conflicts(Conflicts),
    /// The merged object contains a value that does not decode: 422.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl From<TypedError> for ApplyError {
    fn from(error: TypedError) -> Self {
        Self::Changes(error.into())
    }
}

/// The errors in a configuration; never empty. `Display` prints one error as it is, and several on a line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl Display for ConfigErrors {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [only] => only.fmt(f),
            several => {
                f.write_str("errors:")?;
                several.iter().try_for_each(|error| write!(f, "\n  {error}"))
            }
        }
    }
}

/// Applies `config` to an object.
///
/// `live` is the stored object, or `None` to create it. Both are in the version of the request. `config` is the decoded
/// body: it must be of the kind of the endpoint, and is otherwise neither validated nor defaulted; null members count.
/// With `force`, fields are taken from other managers instead of reporting conflicts.
///
/// The caller must reset what the endpoint does not write (`reset_fields`) to the live values: their new values are part
/// of the object, only their ownership is not recorded.
///
/// ```
/// use drydock_machinery::apply::managed_fields::{Endpoint, OneVersion, Writer, reset_by_object};
/// use drydock_machinery::apply::merge::{ApplyError, apply};
/// use drydock_machinery::schema::Structural;
/// use serde_json::json;
///
/// let spec = json!({"type": "object", "properties": {"size": {"type": "integer"}}});
/// let schema = Structural::for_kind("Thing", "v1", "", &[("spec", &spec)])?;
/// let endpoint = Endpoint { schema: &schema, reset_fields: reset_by_object(), versions: &OneVersion };
/// let a = Writer { manager: "a", api_version: "example.com/v1", subresource: None, time: "2026-01-01T00:00:00Z" };
/// let b = Writer { manager: "b", ..a };
///
/// let config = |size: i32| json!({"metadata": {"name": "n"}, "spec": {"size": size}});
/// let created = apply(&endpoint, None, &config(1), &a, false)?;
/// assert_eq!(created.object["metadata"]["managedFields"][0]["fieldsV1"], json!({"f:spec": {"f:size": {}}}));
///
/// let Err(ApplyError::Conflicts(conflicts)) = apply(&endpoint, Some(&created.object), &config(2), &b, false) else {
///     panic!("no conflict")
/// };
/// assert_eq!(conflicts.to_string(), r#"Apply failed with 1 conflict: conflict with "a": .spec.size"#);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// See [`ApplyError`].
pub fn apply(
    endpoint: &Endpoint<'_>,
    live: Option<&Value>,
    config: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Applied, ApplyError> {
    let mut config = config.clone();
    if take_list(&mut config).is_some() {
        return Err(ApplyError::ManagedFields);
    }
    let errors = validate(endpoint.schema, &config);
    if !errors.is_empty() {
        return Err(ApplyError::Config {
            object: described(&config),
            errors: ConfigErrors(errors),
        });
    }
    let mut base = live.cloned().unwrap_or_else(|| Value::Object(Map::new()));
    let entries = current_entries(
        endpoint,
        take_list(&mut base),
        live.is_some().then_some(&base),
        writer,
    )?;

    let mut merged = base.clone();
    merge(endpoint.schema, &mut merged, &config)?;
    let mut fields = applied_paths(endpoint.schema, &config)?;
    fields.subtract_recursively(endpoint.reset_fields);
    let mut own = writer.entry(Operation::Apply, fields);
    let (previous, mut others): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| entry.has_identity_of(&own));
    let previous = previous.into_iter().next();
    let is_served = |entry: &Entry| endpoint.schema_of(&entry.api_version, writer).is_some();
    others.retain(is_served);
    if let Some(previous) = previous.as_ref().filter(|previous| is_served(previous)) {
        merged = prune(endpoint, writer, merged, previous, &own, &others)?;
    }

    let conflicts = dispossess(endpoint, writer, &base, &merged, &mut others)?;
    if let Some(conflicts) = conflicts.filter(|_| !force) {
        let conflicts = match last_applied::allowed_fields(endpoint, &base, writer) {
            Some(allowed) => conflicts.outside(&allowed),
            None => Some(conflicts),
        };
        if let Some(conflicts) = conflicts {
            return Err(ApplyError::Conflicts(conflicts));
        }
    }
    // An apply that changes no value keeps the time of the entry, and gives a new entry none.
    if equal(&base, &merged) {
        own.time = previous.and_then(|previous| previous.time);
    }
    own.fields.subtract(&SYSTEM_FIELDS);
    others.push(own);

    last_applied::update_annotation(&mut merged, &config, writer);
    endpoint.schema.conform(&mut merged)?;
    endpoint.schema.default(&mut merged);
    put_list(&mut merged, encode_entries(others));
    let mut is_changed = true;
    if let Some(live) = live {
        keep_times_of_unchanged(live, &mut merged);
        is_changed = !is_unchanged(live, &merged);
    }
    Ok(Applied {
        object: merged,
        is_changed,
    })
}

/// The object of a configuration, as errors name it.
fn described(config: &Value) -> String {
    let text = |pointer: &str| {
        config
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let api_version = text("/apiVersion");
    // The core group is printed as an empty group.
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!(
        "{}/{}; {slash}{api_version}, Kind={}",
        text("/metadata/namespace"),
        text("/metadata/name"),
        text("/kind")
    )
}

/// The entries of the live object, adapted to the current schemas. The fields of an object that is not tracked belong to
/// `before-first-apply`.
fn current_entries(
    endpoint: &Endpoint<'_>,
    list: Option<Value>,
    live: Option<&Value>,
    writer: &Writer<'_>,
) -> Result<Vec<Entry>, ApplyError> {
    let mut entries = decode_entries(&list.unwrap_or_default())?;
    if entries.is_empty()
        && let Some(live) = live
    {
        let mut fields = everything(endpoint.schema, live)?;
        fields.subtract_recursively(endpoint.reset_fields);
        fields.subtract(&SYSTEM_FIELDS);
        let untracked = Writer {
            manager: BEFORE_FIRST_APPLY,
            ..*writer
        };
        entries.push(untracked.entry(Operation::Update, fields));
    }
    for entry in &mut entries {
        if let Some(schema) = endpoint.schema_of(&entry.api_version, writer) {
            entry.fields.reconcile(schema);
        }
    }
    Ok(entries)
}

/// Takes fields that the apply changes or removes from the entries of other managers. Returns the changed ones as
/// conflicts.
fn dispossess(
    endpoint: &Endpoint<'_>,
    writer: &Writer<'_>,
    live: &Value,
    merged: &Value,
    others: &mut [Entry],
) -> Result<Option<Conflicts>, ChangesError> {
    let mut changes = ChangesByVersion::between(endpoint, writer.api_version, Some(live), merged)?;
    let mut conflicts = Vec::new();
    for entry in others {
        let Some(schema) = endpoint.schema_of(&entry.api_version, writer) else {
            continue;
        };
        let changes = changes.in_version(&entry.api_version, schema)?;
        let conflicting = entry.fields.intersection(&changes.set);
        if !conflicting.is_empty() {
            conflicts.push(Conflict::new(entry, &conflicting));
            entry.fields.subtract(&conflicting);
        }
        entry.fields.subtract(&changes.removed);
    }
    Ok(Conflicts::new(conflicts))
}

/// Fuzz target: applying any configuration must not panic, and doing it twice must change nothing the second time.
///
/// # Panics
/// If a second apply changes the object, which is a bug.
pub fn fuzz_apply(bytes: &[u8]) {
    use super::managed_fields::{OneVersion, reset_by_object};
    use crate::schema::Structural;
    use drydock_proto::kinds::evictionrequest::KIND;

    let (Some(face), Ok(config)) = (KIND.faces.first(), crate::codec::json::decode(bytes)) else {
        return;
    };
    let members = [("spec", &(face.spec)()), ("status", &(face.status)())];
    let Ok(schema) = Structural::for_kind(KIND.kind, face.version, "", &members) else {
        return;
    };
    let endpoint = Endpoint {
        schema: &schema,
        reset_fields: reset_by_object(),
        versions: &OneVersion,
    };
    let writer = |manager| Writer {
        manager,
        api_version: "coordination.k8s.io/v1alpha3",
        subresource: None,
        time: "2026-01-01T00:00:00Z",
    };
    let stored = serde_json::json!({
        "metadata": {"name": "n", "labels": {"a": "1"}, "finalizers": ["example.com/f"]},
        "spec": {"requesters": [{"name": "a.example.com"}], "target": {"pod": {"name": "p", "uid": "u"}}},
    });
    let Ok(live) = apply(&endpoint, None, &stored, &writer("first"), false) else {
        return;
    };
    for force in [false, true] {
        let config = &config.value;
        let Ok(applied) = apply(&endpoint, Some(&live.object), config, &writer("second"), force) else {
            continue;
        };
        let again = apply(&endpoint, Some(&applied.object), config, &writer("second"), force);
        assert!(again.is_ok_and(|again| !again.is_changed));
    }
}

#[cfg(test)]
mod tests;
