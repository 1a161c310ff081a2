//! Validation of `metadata`: the rules shared by all kinds, over objects as JSON.
//!
//! [`validate_create`] and [`validate_update`] return the errors; [`generate_name`] and [`drop_duplicate_owners`] run
//! before them. `resourceVersion` is not validated here: it is a precondition, checked where it is compared.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use crate::excerpt;
use crate::field_error::{ErrorList, FieldError, FieldPath, MAX_ERRORS, is_printable, quoted};
use crate::names::{as_prefix, dns_label_errors, dns_subdomain_errors, label_key_errors, label_value_errors};

/// The maximum total size of all annotations of an object, keys and values, in bytes.
pub(crate) const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;
/// The maximum length of a field manager, in bytes.
pub(crate) const MAX_FIELD_MANAGER_BYTES: usize = 128;
/// The maximum number of owners of an object.
pub const MAX_OWNERS: usize = 64;
/// How many owners an error about all of them prints.
const OWNERS_SHOWN: usize = 2;
/// How much of an owner's kind and name errors print, in bytes.
const MAX_OWNER_TEXT_BYTES: usize = 256;
/// How much of a finalizer an error about several prints, in bytes; valid ones are shorter.
const MAX_FINALIZER_TEXT_BYTES: usize = 320;
/// The length of a uid in bytes.
const MAX_UID_BYTES: usize = 36;
/// The finalizer of a delete that orphans dependents.
const ORPHAN_FINALIZER: &str = "orphan";
/// The finalizer of a foreground delete, which waits for dependents.
const FOREGROUND_FINALIZER: &str = "foregroundDeletion";

const MAX_SUBRESOURCE_BYTES: usize = 256;
/// Generated names have at most 63 bytes, so that they are valid label values.
const MAX_GENERATED_BASE_BYTES: usize = 58;
const SUFFIX_LENGTH: usize = 5;
/// No vowels and no digits that resemble them, so that no suffix is a word.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Generates a name: the base, truncated if necessary, and five random characters.
#[must_use]
pub fn generate_name(base: &str, rng: &mut fastrand::Rng) -> String {
    let cut = (0..=base.len().min(MAX_GENERATED_BASE_BYTES))
        .rev()
        .find(|&end| base.is_char_boundary(end));
    let mut name = base.get(..cut.unwrap_or_default()).unwrap_or_default().to_owned();
    name.extend(
        (0..SUFFIX_LENGTH)
            .filter_map(|_| rng.choice(SUFFIX_ALPHABET))
            .map(|&byte| char::from(byte)),
    );
    name
}

/// Removes repeated owner references. Returns the warning about them, if there were any.
pub fn drop_duplicate_owners(object: &mut Value) -> Option<String> {
    drop_owners(object, "")
}

/// Removes the owner references that the policy of the cluster has repeated. Returns the warning about them, if there were
/// any.
pub fn drop_duplicate_owners_after_admission(object: &mut Value) -> Option<String> {
    drop_owners(object, " after mutating admission happens")
}

fn drop_owners(object: &mut Value, when: &str) -> Option<String> {
    let owners = object.pointer_mut("/metadata/ownerReferences")?.as_array_mut()?;
    let mut seen = HashSet::with_capacity(owners.len());
    let mut duplicates = Vec::new();
    owners.retain(|owner| {
        let is_new = seen.insert(owner.clone());
        if !is_new && duplicates.len() < MAX_ERRORS {
            duplicates.push(excerpt::cut(text(owner.get("uid")), MAX_UID_BYTES).into_owned());
        }
        is_new
    });
    (!duplicates.is_empty()).then(|| {
        format!(
            ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, \
             and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            duplicates.join(", ")
        )
    })
}

/// Validates the metadata of a new object, after name generation.
#[must_use]
pub fn validate_create(object: &Value, namespaced: bool) -> ErrorList {
    let metadata = Metadata::of(object);
    let path = FieldPath::new("metadata");
    let mut errors = ErrorList::new();
    errors.extend(name_errors(metadata, &path));
    errors.extend(namespace_errors(metadata, &path, namespaced));
    errors.extend(shared_errors(metadata, &path));
    errors
}

/// Validates the metadata of an update, after fields that clients cannot change were restored.
#[must_use]
pub fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let (new, old) = (Metadata::of(new), Metadata::of(old));
    let path = FieldPath::new("metadata");
    let mut errors = ErrorList::new();
    if old.get("deletionTimestamp").is_some() {
        errors.extend(new_finalizer_error(new, old, &path.child("finalizers")));
    }
    let (generation, before) = (new.number("generation"), old.number("generation"));
    if generation < before {
        errors.push(FieldError::invalid(
            &path.child("generation"),
            generation,
            "must not be decremented",
        ));
    }
    for field in ["name", "namespace", "uid"] {
        if new.text(field) != old.text(field) {
            errors.push(immutable(&path.child(field), new.text(field).into()));
        }
    }
    for field in [
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        if !is_same(new.get(field), old.get(field)) {
            errors.push(immutable(
                &path.child(field),
                new.get(field).cloned().unwrap_or_default(),
            ));
        }
    }
    errors.extend(shared_errors(new, &path));
    errors
}

fn immutable(path: &FieldPath, value: Value) -> FieldError {
    FieldError::invalid(path, value, "field is immutable")
}

/// Equality in which two spellings of one time are equal.
fn is_same(new: Option<&Value>, old: Option<&Value>) -> bool {
    let time = |value: Option<&Value>| value.and_then(Value::as_str)?.parse::<jiff::Timestamp>().ok();
    new == old || matches!((time(new), time(old)), (Some(new), Some(old)) if new == old)
}

/// The metadata of an object. Absent fields, null and values of a wrong type (which decoding rejects) read as empty.
#[derive(Debug, Clone, Copy)]
struct Metadata<'a>(Option<&'a Map<String, Value>>);

impl<'a> Metadata<'a> {
    fn of(object: &'a Value) -> Self {
        Self(object.get("metadata").and_then(Value::as_object))
    }

    fn get(self, field: &str) -> Option<&'a Value> {
        self.0?.get(field).filter(|value| !value.is_null())
    }

    fn text(self, field: &str) -> &'a str {
        text(self.get(field))
    }

    fn number(self, field: &str) -> i64 {
        self.get(field).and_then(Value::as_i64).unwrap_or_default()
    }

    fn items(self, field: &str) -> &'a [Value] {
        self.get(field)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    fn finalizers(self) -> impl Iterator<Item = &'a str> {
        self.items("finalizers").iter().filter_map(Value::as_str)
    }

    fn pairs(self, field: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let pairs = self.get(field).and_then(Value::as_object);
        pairs
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), text(Some(value))))
    }
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

fn name_errors(metadata: Metadata<'_>, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    let prefix = metadata.text("generateName");
    if !prefix.is_empty() {
        errors.extend(FieldError::invalid_each(
            &path.child("generateName"),
            prefix,
            dns_subdomain_errors(&as_prefix(prefix)),
        ));
    }
    let (name, path) = (metadata.text("name"), path.child("name"));
    if name.is_empty() {
        errors.push(FieldError::required(&path, "name or generateName is required"));
    } else {
        errors.extend(FieldError::invalid_each(&path, name, dns_subdomain_errors(name)));
    }
    errors
}

fn namespace_errors(metadata: Metadata<'_>, path: &FieldPath, namespaced: bool) -> ErrorList {
    let (namespace, path) = (metadata.text("namespace"), path.child("namespace"));
    match (namespaced, namespace.is_empty()) {
        (true, true) => FieldError::required(&path, "").into(),
        (true, false) => FieldError::invalid_each(&path, namespace, dns_label_errors(namespace)).collect(),
        (false, true) => ErrorList::new(),
        (false, false) => FieldError::forbidden(&path, "not allowed on this type").into(),
    }
}

fn shared_errors(metadata: Metadata<'_>, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    let generation = metadata.number("generation");
    if generation < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&path.child("generation"), generation, detail));
    }
    errors.extend(label_errors(metadata, &path.child("labels")));
    errors.extend(annotation_errors(metadata, &path.child("annotations")));
    errors.extend(owner_errors(
        metadata.items("ownerReferences"),
        &path.child("ownerReferences"),
    ));
    errors.extend(finalizer_errors(metadata, &path.child("finalizers")));
    errors.extend(managed_fields_errors(
        metadata.items("managedFields"),
        &path.child("managedFields"),
    ));
    errors
}

fn label_errors(metadata: Metadata<'_>, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    for (key, value) in metadata.pairs("labels") {
        if errors.is_full() {
            break;
        }
        errors.extend(FieldError::invalid_each(path, key, label_key_errors(key)));
        errors.extend(FieldError::invalid_each(path, value, label_value_errors(value)));
    }
    errors
}

fn annotation_errors(metadata: Metadata<'_>, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut bytes = 0;
    for (key, value) in metadata.pairs("annotations") {
        bytes += key.len() + value.len();
        if !errors.is_full() {
            errors.extend(FieldError::invalid_each(
                path,
                key,
                label_key_errors(&key.to_lowercase()),
            ));
        }
    }
    if bytes > MAX_ANNOTATIONS_BYTES {
        errors.push(FieldError::too_long(path, MAX_ANNOTATIONS_BYTES));
    }
    errors
}

fn owner_errors(owners: &[Value], path: &FieldPath) -> ErrorList {
    if owners.len() > MAX_OWNERS {
        return FieldError::too_many(path, owners.len(), MAX_OWNERS).into();
    }
    let mut errors = ErrorList::new();
    let mut controller: Option<String> = None;
    for (index, owner) in owners.iter().enumerate() {
        errors.extend(one_owner_errors(owner, &path.index(index)));
        if owner.get("controller").and_then(Value::as_bool) != Some(true) {
            continue;
        }
        let short = |field| excerpt::cut(text(owner.get(field)), MAX_OWNER_TEXT_BYTES);
        let this = format!("{}/{}", short("kind"), short("name"));
        if let Some(first) = &controller {
            let detail = format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
            );
            let shown: Vec<Value> = owners.iter().take(OWNERS_SHOWN).cloned().collect();
            errors.push(FieldError::invalid(path, shown, &detail));
        } else {
            controller = Some(this);
        }
    }
    errors
}

fn one_owner_errors(owner: &Value, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    let (version, kind) = (text(owner.get("apiVersion")), text(owner.get("kind")));
    let (group, bare_version) = version.split_once('/').unwrap_or(("", version));
    if !version.is_empty() && (bare_version.is_empty() || bare_version.contains('/')) {
        let detail = "must be <group>/<version> or <version>";
        errors.push(FieldError::invalid(&path.child("apiVersion"), version, detail));
    }
    for field in ["apiVersion", "kind", "name", "uid"] {
        if text(owner.get(field)).is_empty() {
            errors.push(FieldError::required(&path.child(field), "must not be empty"));
        }
    }
    if (group, bare_version, kind) == ("", "v1", "Event") {
        let detail = "/v1, Kind=Event is disallowed from being an owner";
        errors.push(FieldError::invalid(path, owner.clone(), detail));
    }
    errors
}

fn finalizer_errors(metadata: Metadata<'_>, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    for (index, finalizer) in metadata.finalizers().enumerate() {
        if errors.is_full() {
            break;
        }
        errors.extend(FieldError::invalid_each(
            path,
            finalizer,
            label_key_errors(finalizer),
        ));
        if !finalizer.contains('/') && ![ORPHAN_FINALIZER, FOREGROUND_FINALIZER].contains(&finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(&path.index(index), finalizer, detail));
        }
    }
    let has = |wanted: &str| metadata.finalizers().any(|finalizer| finalizer == wanted);
    if has(ORPHAN_FINALIZER) && has(FOREGROUND_FINALIZER) {
        let both = vec![ORPHAN_FINALIZER, FOREGROUND_FINALIZER];
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, both, detail));
    }
    errors
}

fn new_finalizer_error(new: Metadata<'_>, old: Metadata<'_>, path: &FieldPath) -> Option<FieldError> {
    let old: BTreeSet<&str> = old.finalizers().collect();
    let added: BTreeSet<&str> = new
        .finalizers()
        .filter(|finalizer| !old.contains(finalizer))
        .collect();
    if added.is_empty() {
        return None;
    }
    let more = if added.len() > MAX_ERRORS { ", ..." } else { "" };
    let added: Vec<String> = added
        .into_iter()
        .take(MAX_ERRORS)
        .map(|finalizer| quoted(&excerpt::cut(finalizer, MAX_FINALIZER_TEXT_BYTES)))
        .collect();
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}{more}}}",
        added.join(", ")
    );
    Some(FieldError::forbidden(path, &detail))
}

fn managed_fields_errors(entries: &[Value], path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    for (index, entry) in entries.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(index);
        match text(entry.get("operation")) {
            "Apply" | "Update" => {}
            "" => errors.push(FieldError::required(
                &path.child("operation"),
                "must not be empty",
            )),
            other => {
                errors.push(FieldError::not_supported(
                    &path.child("operation"),
                    other,
                    &["Apply", "Update"],
                ));
            }
        }
        let fields_type = text(entry.get("fieldsType"));
        if !matches!(fields_type, "" | "FieldsV1") {
            errors.push(FieldError::invalid(
                &path.child("fieldsType"),
                fields_type,
                "must be `FieldsV1`",
            ));
        }
        errors.extend(validate_field_manager(
            text(entry.get("manager")),
            &path.child("manager"),
        ));
        if text(entry.get("subresource")).len() > MAX_SUBRESOURCE_BYTES {
            errors.push(FieldError::too_long(
                &path.child("subresource"),
                MAX_SUBRESOURCE_BYTES,
            ));
        }
    }
    errors
}

/// Validates a field manager: the `fieldManager` option of a write, or the manager of an entry of `managedFields`.
#[must_use]
pub fn validate_field_manager(manager: &str, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    if manager.len() > MAX_FIELD_MANAGER_BYTES {
        errors.push(FieldError::too_long(path, MAX_FIELD_MANAGER_BYTES));
    }
    for (position, character) in manager
        .char_indices()
        .filter(|&(_, character)| !is_printable(character))
        .take(MAX_ERRORS)
    {
        let detail = format!(
            "invalid character U+{:04X} (at position {position})",
            u32::from(character)
        );
        errors.push(FieldError::invalid(path, manager, &detail));
    }
    errors
}

#[cfg(test)]
mod tests;
