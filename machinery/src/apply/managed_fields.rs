//! What does a write do to `metadata.managedFields`?
//!
//! A write that is no apply owns what it changes: the fields it adds or gives another value. Whoever owned them before
//! loses them, and nobody owns what is gone. Start at [`record_update`].

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::field_set::{FieldSet, FieldsError};
use super::manager_name::UNKNOWN;
pub use super::manager_name::default_manager;
use super::path::Path;
use super::typed::{Comparison, TypedError, compare, everything};
use crate::schema::Structural;

/// How many entries of updaters an object keeps; older ones are merged.
const MOST_UPDATERS: usize = 10;

/// The manager of merged entries.
const ANCIENT_CHANGES: &str = "ancient-changes";

/// The only format of field sets.
const FIELDS_V1: &str = "FieldsV1";

/// Who writes, through what, when.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// The name of the field manager; empty means `unknown`.
    pub manager: &'a str,
    /// The group and version of the request: `coordination.k8s.io/v1alpha3`.
    pub api_version: &'a str,
    /// The subresource written through; `None` for the object itself.
    pub subresource: Option<&'a str>,
    /// The time of the request: RFC 3339, whole seconds, `Z`.
    pub time: &'a str,
}

/// The resource that is written, in the version of the request.
#[derive(Clone, Copy)]
pub struct Endpoint<'a> {
    /// The schema of the kind in the version of the request.
    pub schema: &'a Structural,
    /// What the endpoint resets whatever a request says, with everything below; nobody comes to own it here. Mostly
    /// [`reset_by_object`] or [`reset_by_status`].
    pub reset_fields: &'a FieldSet,
    /// The other versions in which entries may be written.
    pub versions: &'a dyn Versions,
}

/// What the endpoint of an object with a status subresource resets: `status`.
#[must_use]
pub fn reset_by_object() -> &'static FieldSet {
    static STATUS: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::from_iter([Path::fields(&["status"])]));
    &STATUS
}

/// What the endpoint of a status resets: `spec` and all of `metadata`.
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

/// The versions of a kind, seen from the version of a request.
pub trait Versions {
    /// The schema of another version, or `None` when it is not served: its entries vanish.
    fn schema(&self, api_version: &str) -> Option<&Structural>;

    /// An object of the request's version in another version, or `None` when it cannot be converted: then the owners stay
    /// as they were.
    fn convert(&self, object: &Value, api_version: &str) -> Option<Value>;
}

/// A kind that has a single version.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneVersion;

impl Versions for OneVersion {
    fn schema(&self, _: &str) -> Option<&Structural> {
        None
    }

    fn convert(&self, _: &Value, _: &str) -> Option<Value> {
        None
    }
}

/// How an entry came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By apply: the set is what the writer listed last.
    Apply,
    /// By any other write: the set is what the writer changed.
    Update,
}

impl Operation {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The fields of one writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name of the writer.
    pub manager: String,
    /// How it wrote.
    pub operation: Operation,
    /// The group and version in which the fields are named.
    pub api_version: String,
    /// The subresource, or the empty text.
    pub subresource: String,
    /// When: RFC 3339. Entries of applies that changed nothing have none.
    pub time: Option<String>,
    /// The fields.
    pub fields: FieldSet,
}

/// Why a list of entries cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntriesError {
    /// No list, or an entry that is no object.
    #[error("managedFields must be a list of objects")]
    Shape,
    /// Neither Apply nor Update.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// No version.
    #[error("apiVersion must not be empty")]
    ApiVersion,
    /// No format.
    #[error("missing fieldsType in managed fields entry {0}")]
    MissingFieldsType(usize),
    /// A format that does not exist.
    #[error("invalid fieldsType {fields_type:?} in managed fields entry {index}")]
    FieldsType {
        /// The format.
        fields_type: String,
        /// The position of the entry.
        index: usize,
    },
    /// Fields that do not parse.
    #[error("error decoding manager from managed fields entry {index}: {source}")]
    Fields {
        /// The position of the entry.
        index: usize,
        /// What is wrong with them.
        source: FieldsError,
    },
}

impl Entry {
    /// Whether two entries are of one writer: appliers whatever the version, updaters in one version.
    fn is_same_writer(&self, other: &Self) -> bool {
        self.operation == other.operation
            && self.manager == other.manager
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// The text by which the reference orders writers of one time.
    fn identity(&self) -> String {
        let api_version = if self.operation == Operation::Update {
            self.api_version.as_str()
        } else {
            ""
        };
        let members: Vec<String> = [
            ("manager", self.manager.as_str()),
            ("operation", self.operation.as_str()),
            ("apiVersion", api_version),
            ("subresource", self.subresource.as_str()),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("\"{name}\":{}", Value::from(value)))
        .collect();
        format!("{{{}}}", members.join(","))
    }

    /// The time for ordering: entries without one count as of 1970.
    fn order_time(&self) -> &str {
        self.time.as_deref().unwrap_or("1970-01-01T00:00:00Z")
    }

    fn decode(index: usize, entry: &Value) -> Result<Self, EntriesError> {
        let entry = entry.as_object().ok_or(EntriesError::Shape)?;
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err(EntriesError::Operation),
        };
        if text("apiVersion").is_empty() {
            return Err(EntriesError::ApiVersion);
        }
        match text("fieldsType") {
            FIELDS_V1 => {}
            "" => return Err(EntriesError::MissingFieldsType(index)),
            other => {
                return Err(EntriesError::FieldsType {
                    fields_type: other.to_owned(),
                    index,
                });
            }
        }
        let fields = match entry.get("fieldsV1") {
            Some(fields) => {
                FieldSet::from_value(fields).map_err(|source| EntriesError::Fields { index, source })?
            }
            None => FieldSet::new(),
        };
        Ok(Self {
            manager: text("manager").to_owned(),
            operation,
            api_version: text("apiVersion").to_owned(),
            subresource: text("subresource").to_owned(),
            time: entry.get("time").and_then(Value::as_str).map(str::to_owned),
            fields,
        })
    }

    fn into_value(self) -> Value {
        let mut entry = Map::new();
        let mut put = |name: &str, value: Value| entry.insert(name.to_owned(), value);
        put("apiVersion", self.api_version.into());
        put("fieldsType", FIELDS_V1.into());
        put("fieldsV1", self.fields.to_value());
        if !self.manager.is_empty() {
            put("manager", self.manager.into());
        }
        put("operation", self.operation.as_str().into());
        if !self.subresource.is_empty() {
            put("subresource", self.subresource.into());
        }
        if let Some(time) = self.time {
            put("time", time.into());
        }
        Value::Object(entry)
    }
}

/// Reads the list of an object. Of two entries of one writer the later one counts.
///
/// # Errors
///
/// [`EntriesError`] for the first entry that cannot be read; the list is then unusable as a whole.
pub fn decode_entries(list: &Value) -> Result<Vec<Entry>, EntriesError> {
    let list = match list {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        _ => return Err(EntriesError::Shape),
    };
    let mut entries: Vec<Option<Entry>> = Vec::with_capacity(list.len() + 1);
    let mut writers: HashMap<_, usize> = HashMap::with_capacity(list.len());
    for (index, value) in list.iter().enumerate() {
        entries.push(Some(Entry::decode(index, value)?));
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        let version = if text("operation") == "Apply" {
            ""
        } else {
            text("apiVersion")
        };
        let writer = (text("operation"), version, text("manager"), text("subresource"));
        if let Some(earlier) = writers
            .insert(writer, index)
            .and_then(|earlier| entries.get_mut(earlier))
        {
            *earlier = None;
        }
    }
    Ok(entries.into_iter().flatten().collect())
}

/// The list of an object in its order: appliers first, then by time, manager, version and subresource. `None` when there
/// are no entries with fields.
#[must_use]
pub fn encode_entries(mut entries: Vec<Entry>) -> Option<Value> {
    entries.retain(|entry| !entry.fields.is_empty());
    if entries.is_empty() {
        return None;
    }
    entries.sort_by(|left, right| {
        (left.operation.cmp(&right.operation))
            .then_with(|| left.order_time().cmp(right.order_time()))
            .then_with(|| left.manager.cmp(&right.manager))
            .then_with(|| left.api_version.cmp(&right.api_version))
            .then_with(|| left.subresource.cmp(&right.subresource))
    });
    Some(Value::Array(entries.into_iter().map(Entry::into_value).collect()))
}

/// Sets `metadata.managedFields` of an object about to be written by anything but apply.
///
/// `live` is the stored object (`None` on create) and `new` the one that will take its place, both in the version of the
/// request and before admission changes it. The list a client sent in `new` is honoured on the main resource: it replaces
/// the stored one if it decodes and is not empty; `[]` and `[{}]` on an update stop the tracking; anything else is
/// ignored. Through a subresource the stored list counts. An object without a list stays without one until somebody
/// applies. A write never fails for its bookkeeping: if the values cannot be compared, the owners stay as they were.
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
    let recorded = recorded(endpoint, live, new, writer, &entries).unwrap_or(entries);
    put_list(new, encode_entries(recorded));
}

/// The entries a write starts from, or `None` when the object is not tracked.
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

/// Whether a list asks to forget all owners: `[]` or `[{}]`.
fn is_reset(list: &Value) -> bool {
    match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([entry]) => entry.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// The entries after the write, or `None` when the values cannot be compared.
fn recorded(
    endpoint: &Endpoint<'_>,
    live: Option<&Value>,
    new: &Value,
    writer: &Writer<'_>,
    entries: &[Entry],
) -> Option<Vec<Entry>> {
    let changes = Changes::between(endpoint.schema, live, new, endpoint.reset_fields).ok()?;
    let mut elsewhere: BTreeMap<String, Changes> = BTreeMap::new();
    let mut kept = Vec::with_capacity(entries.len() + 1);
    for entry in entries {
        let mut entry = entry.clone();
        if entry.api_version == writer.api_version {
            entry.fields.reconcile(endpoint.schema);
            changes.dispossess(&mut entry);
        } else {
            let Some(schema) = endpoint.versions.schema(&entry.api_version) else {
                continue;
            };
            entry.fields.reconcile(schema);
            if let Some(changes) = elsewhere.get(&entry.api_version) {
                changes.dispossess(&mut entry);
            } else {
                let convert = |object| endpoint.versions.convert(object, &entry.api_version);
                let live = match live {
                    Some(live) => Some(convert(live)?),
                    None => None,
                };
                let new = convert(new)?;
                let changes = Changes::between(schema, live.as_ref(), &new, endpoint.reset_fields).ok()?;
                changes.dispossess(&mut entry);
                elsewhere.insert(entry.api_version.clone(), changes);
            }
        }
        if !entry.fields.is_empty() {
            kept.push(entry);
        }
    }
    let mut mine = changes.claimed;
    mine.subtract(&SYSTEM_FIELDS);
    if !mine.is_empty() {
        let manager = if writer.manager.is_empty() {
            UNKNOWN
        } else {
            writer.manager
        };
        let mut entry = Entry {
            manager: manager.to_owned(),
            operation: Operation::Update,
            api_version: writer.api_version.to_owned(),
            subresource: writer.subresource.unwrap_or_default().to_owned(),
            time: Some(writer.time.to_owned()),
            fields: mine,
        };
        match kept.iter_mut().find(|other| other.is_same_writer(&entry)) {
            Some(other) => {
                entry.fields = entry.fields.union(std::mem::take(&mut other.fields));
                *other = entry;
            }
            None => kept.push(entry),
        }
    }
    cap_updaters(&mut kept);
    Some(kept)
}

/// What a write does to owners, in one version.
struct Changes {
    /// What was added or got another value.
    claimed: FieldSet,
    /// What is gone.
    removed: FieldSet,
}

impl Changes {
    fn between(
        schema: &Structural,
        live: Option<&Value>,
        new: &Value,
        reset_fields: &FieldSet,
    ) -> Result<Self, TypedError> {
        let mut changes = match live {
            Some(live) => {
                let Comparison {
                    added,
                    modified,
                    removed,
                } = compare(schema, live, new)?;
                Self {
                    claimed: added.union(modified),
                    removed,
                }
            }
            None => Self {
                claimed: everything(schema, new)?,
                removed: FieldSet::new(),
            },
        };
        changes.claimed.subtract_recursively(reset_fields);
        changes.removed.subtract_recursively(reset_fields);
        Ok(changes)
    }

    fn dispossess(&self, entry: &mut Entry) {
        entry.fields.subtract(&self.claimed);
        entry.fields.subtract(&self.removed);
    }
}

/// What no writer owns: the server fills it in. Taken away each alone, so that `metadata.labels` stays.
static SYSTEM_FIELDS: LazyLock<FieldSet> = LazyLock::new(|| {
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

/// Merges the oldest entries of updaters, version by version, until ten are left.
fn cap_updaters(entries: &mut Vec<Entry>) {
    let is_updater = |entry: &Entry| entry.operation == Operation::Update;
    let mut count = entries.iter().filter(|entry| is_updater(entry)).count();
    if count <= MOST_UPDATERS {
        return;
    }
    let (mut updaters, appliers): (Vec<_>, Vec<_>) = entries.drain(..).partition(is_updater);
    updaters.sort_by_cached_key(|entry| (entry.order_time().to_owned(), entry.identity()));
    // By version: where the bucket stands, if there is one, and the oldest entry, which becomes the bucket if not.
    let mut buckets: HashMap<String, usize> = HashMap::new();
    for (at, entry) in updaters.iter().enumerate() {
        if entry.manager == ANCIENT_CHANGES && entry.subresource.is_empty() {
            buckets.insert(entry.api_version.clone(), at);
        }
    }
    let mut oldest: HashMap<String, usize> = HashMap::new();
    let mut merged: BTreeMap<usize, Vec<FieldSet>> = BTreeMap::new();
    let mut updaters: Vec<Option<Entry>> = updaters.into_iter().map(Some).collect();
    for at in 0..updaters.len() {
        if count <= MOST_UPDATERS {
            break;
        }
        let Some(version) = updaters
            .get(at)
            .and_then(Option::as_ref)
            .map(|entry| entry.api_version.clone())
        else {
            continue;
        };
        let Some(&first) = oldest.get(&version) else {
            oldest.insert(version, at);
            continue;
        };
        let bucket = *buckets.entry(version).or_insert(first);
        if bucket == at {
            continue;
        }
        let Some(entry) = updaters.get_mut(at).and_then(Option::take) else {
            continue;
        };
        count -= 1;
        merged.entry(bucket).or_default().push(entry.fields);
        if let Some(bucket) = updaters.get_mut(bucket).and_then(Option::as_mut) {
            ANCIENT_CHANGES.clone_into(&mut bucket.manager);
            bucket.subresource.clear();
            bucket.time = entry.time;
        }
    }
    for (at, mut sets) in merged {
        if let Some(bucket) = updaters.get_mut(at).and_then(Option::as_mut) {
            sets.push(std::mem::take(&mut bucket.fields));
            bucket.fields = FieldSet::union_of(sets);
        }
    }
    *entries = appliers;
    entries.extend(updaters.into_iter().flatten());
}

/// Takes `metadata.managedFields` out of an object.
fn take_list(object: &mut Value) -> Option<Value> {
    object
        .get_mut("metadata")?
        .as_object_mut()?
        .remove("managedFields")
        .filter(|list| !list.is_null())
}

fn put_list(object: &mut Value, list: Option<Value>) {
    if let (Some(list), Some(Value::Object(metadata))) = (list, object.get_mut("metadata")) {
        metadata.insert("managedFields".to_owned(), list);
    }
}

/// Gives entries their old times back when a write changes nothing but times, so that it is seen to change nothing.
///
/// `metadata.resourceVersion` is not looked at: stored objects do not carry it.
pub fn keep_times_of_unchanged(live: &Value, new: &mut Value) {
    fn list(object: &Value) -> Option<&Vec<Value>> {
        object.pointer("/metadata/managedFields")?.as_array()
    }
    let (Some(old), Some(current)) = (list(live), list(new)) else {
        return;
    };
    let is_unchanged = old.len() == current.len()
        && old != current
        && old
            .iter()
            .zip(current)
            .all(|(old, current)| is_equal_but_for(old, current, &["time"]))
        && is_same_object(live, new);
    if is_unchanged {
        put_list(new, Some(Value::Array(old.clone())));
    }
}

fn is_same_object(left: &Value, right: &Value) -> bool {
    is_equal_but_for(left, right, &["metadata"])
        && match (left.get("metadata"), right.get("metadata")) {
            (Some(left), Some(right)) => is_equal_but_for(left, right, &["managedFields", "resourceVersion"]),
            _ => false,
        }
}

/// Whether two objects are equal but for some members.
fn is_equal_but_for(left: &Value, right: &Value, ignored: &[&str]) -> bool {
    let (Value::Object(left), Value::Object(right)) = (left, right) else {
        return false;
    };
    let counted = |(key, _): &(&String, &Value)| !ignored.contains(&key.as_str());
    left.iter().filter(counted).eq(right.iter().filter(counted))
}

#[cfg(test)]
mod tests;
