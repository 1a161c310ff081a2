//! Maintenance of `metadata.managedFields` for writes other than server-side apply.
//!
//! Such a write takes ownership of the fields that it adds or changes: other managers lose them. Removed fields are
//! owned by nobody. Start at [`record_update`]. The rules are those of `FieldManager.Update` in
//! `k8s.io/apimachinery/pkg/util/managedfields`.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::changes::{ChangesByVersion, ChangesError};
pub use super::entry::{EntriesError, sort_entries};
use super::entry::{Entry, Operation, decode_entries, encode_entries};
use super::field_set::FieldSet;
use super::manager_name::UNKNOWN;
pub use super::manager_name::default_manager;
use super::path::Path;
use super::updater_cap::cap_updaters;
use crate::schema::Structural;

/// The field manager of a write, the version and subresource it used, and its time.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// The name of the field manager; empty means `unknown`.
    pub manager: &'a str,
    /// The group and version of the request: `coordination.k8s.io/v1alpha3`.
    pub api_version: &'a str,
    /// The subresource of the request; `None` for the object itself.
    pub subresource: Option<&'a str>,
    /// The time of the request: RFC 3339, whole seconds, `Z`.
    pub time: &'a str,
}

/// The resource that is written, in the version of the request.
#[derive(Clone, Copy)]
pub struct Endpoint<'a> {
    /// The schema of the kind in the version of the request.
    pub schema: &'a Structural,
    /// The fields that the endpoint resets to their stored values in every write, with everything below them. They are
    /// never owned through this endpoint. Usually [`reset_by_object`] or [`reset_by_status`].
    pub reset_fields: &'a FieldSet,
    /// The other versions of the kind, which entries may refer to.
    pub versions: &'a dyn Versions,
}

/// The reset fields of an object with a status subresource: `status`.
#[must_use]
pub fn reset_by_object() -> &'static FieldSet {
    static STATUS: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::from_iter([Path::fields(&["status"])]));
    &STATUS
}

/// The reset fields of a status subresource: `spec` and all of `metadata`.
#[must_use]
pub fn reset_by_status() -> &'static FieldSet {
    static ALL_BUT_STATUS: LazyLock<FieldSet> = LazyLock::new(|| {
        ["metadata", "spec"]
            .map(|field| Path::fields(&[field]))
            .into_iter()
            .collect()
    });
    &ALL_BUT_STATUS
}

/// The other versions of a kind, relative to the version of a request.
pub trait Versions: Sync {
    /// The schema of another version, or `None` if it is not served. Entries in versions that are not served are dropped.
    fn schema(&self, api_version: &str) -> Option<&Structural>;

    /// Converts an object of the request's version to another version. `None` if it cannot be converted: the ownership of
    /// an update then does not change, and an apply fails.
    ///
    /// An apply also converts objects that are not complete: without defaults, without `metadata` or `spec`, and with
    /// null members.
    fn convert(&self, object: &Value, api_version: &str) -> Option<Value>;

    /// Converts an object of another version to the request's version, as [`convert`](Self::convert) does in the other
    /// direction. Only an apply does so, if the manager applied in the other version before.
    fn revert(&self, object: &Value, api_version: &str) -> Option<Value>;
}

/// The versions of a kind that has only one.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneVersion;

impl Versions for OneVersion {
    fn schema(&self, _: &str) -> Option<&Structural> {
        None
    }

    fn convert(&self, _: &Value, _: &str) -> Option<Value> {
        None
    }

    fn revert(&self, _: &Value, _: &str) -> Option<Value> {
        None
    }
}

/// Sets `metadata.managedFields` of an object before it is written, by any write except an apply.
///
/// `live` is the stored object (`None` on create) and `new` its replacement, both in the version of the request and
/// before mutating admission. On the main resource, the list that the client sent in `new` replaces the stored one if it
/// decodes and is not empty; `[]` and `[{}]` in an update stop the tracking of the object; any other list is ignored.
/// Through a subresource, the stored list is used. An object without a list stays untracked until the first apply. A
/// write never fails because of its ownership: if the values cannot be compared, the entries do not change.
///
/// ```
/// use drydock_machinery::apply::managed_fields::{Endpoint, OneVersion, Writer, record_update, reset_by_object};
/// use drydock_machinery::schema::Structural;
/// use serde_json::json;
///
/// let spec = json!({"type": "object", "properties": {"size": {"type": "integer"}}});
/// let schema = Structural::for_kind("Thing", "v1", "", &[("spec", &spec)])?;
/// let endpoint = Endpoint { schema: &schema, reset_fields: reset_by_object(), versions: &OneVersion };
/// let writer =
///     Writer { manager: "kubectl", api_version: "example.com/v1", subresource: None, time: "2026-01-01T00:00:00Z" };
/// let mut object = json!({"metadata": {"name": "n"}, "spec": {"size": 1}});
/// record_update(&endpoint, None, &mut object, &writer);
/// let entry = &object["metadata"]["managedFields"][0];
/// assert_eq!(entry["manager"], "kubectl");
/// assert_eq!(entry["fieldsV1"], json!({"f:spec": {".": {}, "f:size": {}}}));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub fn record_update(endpoint: &Endpoint<'_>, live: Option<&Value>, new: &mut Value, writer: &Writer<'_>) {
    let sent = take_list(new);
    let live = live.filter(|live| live.pointer("/metadata/uid").is_some());
    let Some(entries) = input_entries(live, sent.as_ref(), writer) else {
        return;
    };
    let entries = updated(endpoint, live, new, writer, &entries).unwrap_or(entries);
    put_list(new, encode_entries(entries));
}

/// Checks that a `managedFields` list can be decoded.
///
/// # Errors
/// The first entry that cannot.
pub fn check_list(list: &Value) -> Result<(), EntriesError> {
    decode_entries(list).map(|_| ())
}

/// The entries before the write, or `None` if the object is not tracked.
fn input_entries(live: Option<&Value>, sent: Option<&Value>, writer: &Writer<'_>) -> Option<Vec<Entry>> {
    let stored = || {
        let list = live.and_then(|live| live.pointer("/metadata/managedFields"));
        list.and_then(|list| decode_entries(list).ok())
            .unwrap_or_default()
    };
    let entries = match sent {
        Some(list) if writer.subresource.is_none() => {
            if is_reset(list) {
                Vec::new()
            } else {
                decode_entries(list)
                    .ok()
                    .filter(|entries| !entries.is_empty())
                    .unwrap_or_else(stored)
            }
        }
        _ => stored(),
    };
    (live.is_none() || !entries.is_empty()).then_some(entries)
}

/// Whether a list resets ownership: `[]` or `[{}]`.
fn is_reset(list: &Value) -> bool {
    match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([entry]) => entry.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// The entries after the write.
fn updated(
    endpoint: &Endpoint<'_>,
    live: Option<&Value>,
    new: &Value,
    writer: &Writer<'_>,
    entries: &[Entry],
) -> Result<Vec<Entry>, ChangesError> {
    let mut changes = ChangesByVersion::between(endpoint, writer.api_version, live, new)?;
    let mut kept = Vec::with_capacity(entries.len() + 1);
    for entry in entries {
        let Some(schema) = endpoint.schema_of(&entry.api_version, writer) else {
            continue;
        };
        let mut entry = entry.clone();
        entry.fields.reconcile(schema);
        let changes = changes.in_version(&entry.api_version, schema)?;
        entry.fields.subtract(&changes.set);
        entry.fields.subtract(&changes.removed);
        if !entry.fields.is_empty() {
            kept.push(entry);
        }
    }
    let mut set = changes.into_own().set;
    set.subtract(&SYSTEM_FIELDS);
    if !set.is_empty() {
        let mut entry = writer.entry(Operation::Update, set);
        match kept.iter_mut().find(|other| other.has_identity_of(&entry)) {
            Some(other) => {
                entry.fields = entry.fields.union(std::mem::take(&mut other.fields));
                *other = entry;
            }
            None => kept.push(entry),
        }
    }
    cap_updaters(&mut kept);
    Ok(kept)
}

impl Writer<'_> {
    /// An entry of this writer, with the time of the request.
    pub(super) fn entry(&self, operation: Operation, fields: FieldSet) -> Entry {
        let manager = if self.manager.is_empty() {
            UNKNOWN
        } else {
            self.manager
        };
        Entry {
            manager: manager.to_owned(),
            operation,
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.unwrap_or_default().to_owned(),
            time: Some(self.time.to_owned()),
            fields,
        }
    }
}

impl<'a> Endpoint<'a> {
    /// The schema of a version, or `None` if it is not served.
    pub(super) fn schema_of(&self, api_version: &str, writer: &Writer<'_>) -> Option<&'a Structural> {
        if api_version == writer.api_version {
            Some(self.schema)
        } else {
            self.versions.schema(api_version)
        }
    }
}

/// Fields that are never owned, since the server sets them. Removed from sets without the paths below them, so that
/// `metadata.labels` stays.
pub(super) static SYSTEM_FIELDS: LazyLock<FieldSet> = LazyLock::new(|| {
    let metadata = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let top = [&["apiVersion"][..], &["kind"], &["metadata"]];
    top.into_iter()
        .map(Path::fields)
        .chain(
            metadata
                .into_iter()
                .map(|field| Path::fields(&["metadata", field])),
        )
        .collect()
});

/// Removes `metadata.managedFields` from an object and returns it, unless it is null.
pub(super) fn take_list(object: &mut Value) -> Option<Value> {
    object
        .get_mut("metadata")?
        .as_object_mut()?
        .remove("managedFields")
        .filter(|list| !list.is_null())
}

/// Sets `metadata.managedFields` of an object, if there is a list.
pub(super) fn put_list(object: &mut Value, list: Option<Value>) {
    if let (Some(list), Value::Object(members)) = (list, object) {
        let metadata = members
            .entry("metadata")
            .or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(metadata) = metadata {
            metadata.insert("managedFields".to_owned(), list);
        }
    }
}

/// Restores the old times of entries if a write changes nothing else, so that it is recognized as a no-op.
///
/// Ignores `metadata.resourceVersion`, which stored objects do not contain.
pub fn keep_times_of_unchanged(live: &Value, new: &mut Value) {
    let (Some(old), Some(current)) = (entry_list(live), entry_list(new)) else {
        return;
    };
    // A new time also moves an entry: they are sorted by it.
    let is_unchanged = old.len() == current.len()
        && old != current
        && by_identity(old)
            .into_iter()
            .zip(by_identity(current))
            .all(|(old, current)| is_equal_except(old, current, &["time"]))
        && is_same_object(live, new);
    if is_unchanged {
        put_list(new, Some(Value::Array(old.clone())));
    }
}

/// Whether two objects are equal, ownership included. Ignores `metadata.resourceVersion`.
pub(super) fn is_unchanged(live: &Value, new: &Value) -> bool {
    entry_list(live) == entry_list(new) && is_same_object(live, new)
}

/// The entries by what tells them apart.
fn by_identity(entries: &[Value]) -> Vec<&Value> {
    let mut sorted: Vec<&Value> = entries.iter().collect();
    sorted.sort_by_key(|entry| {
        ["manager", "operation", "apiVersion", "subresource"]
            .map(|member| entry.get(member).and_then(Value::as_str))
    });
    sorted
}

fn entry_list(object: &Value) -> Option<&Vec<Value>> {
    object.pointer("/metadata/managedFields")?.as_array()
}

fn is_same_object(left: &Value, right: &Value) -> bool {
    is_equal_except(left, right, &["metadata"])
        && match (left.get("metadata"), right.get("metadata")) {
            (Some(left), Some(right)) => is_equal_except(left, right, &["managedFields", "resourceVersion"]),
            _ => false,
        }
}

/// Whether two objects are equal except for some members.
fn is_equal_except(left: &Value, right: &Value, ignored: &[&str]) -> bool {
    let (Value::Object(left), Value::Object(right)) = (left, right) else {
        return false;
    };
    let counted = |(key, _): &(&String, &Value)| !ignored.contains(&key.as_str());
    left.iter().filter(counted).eq(right.iter().filter(counted))
}

#[cfg(test)]
mod tests;
