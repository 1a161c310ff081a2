//! Removal of the fields that a manager applied before and does not apply any more.
//!
//! A field is removed if the manager owned it, does not list it now, and no other manager owns it; an item of a list map
//! or a set likewise, with everything inside. Equivalent to `Updater.prune` of `sigs.k8s.io/structured-merge-diff`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::changes::ChangesError;
use super::entry::Entry;
use super::field_set::FieldSet;
use super::items::TypedError;
use super::managed_fields::{Endpoint, Writer};
use super::remove::remove;
use super::value_paths::applied_paths;
use crate::schema::Structural;

/// Removes from `merged` the fields of `previous`, the manager's last entry, that are neither in `own`, its new entry, nor
/// in the entries of `others`. All entries are in versions that are served.
pub(super) fn prune(
    endpoint: &Endpoint<'_>,
    writer: &Writer<'_>,
    merged: Value,
    previous: &Entry,
    own: &Entry,
    others: &[Entry],
) -> Result<Value, ChangesError> {
    let is_kept =
        previous.api_version == own.api_version && previous.fields.clone().difference(&own.fields).is_empty();
    if is_kept {
        return Ok(merged);
    }
    let versions = VersionConverter { endpoint, writer };
    // The paths of the last entry are those of its version.
    let version = previous.api_version.as_str();
    let schema = versions.schema(version)?;
    let mut merged = versions.convert(merged, writer.api_version, version)?;
    let last = previous.fields.clone().with_named_fields(schema);
    let mut pruned = merged.clone();
    remove(schema, &mut pruned, &last)?;
    let pruned = add_back_owned(&versions, &merged, pruned, version, own, others)?;
    // Fields that the manager did not own are not removed, even if nobody owns them.
    let mut removed = all_paths(schema, &merged)?;
    removed.subtract(&all_paths(schema, &pruned)?);
    remove(schema, &mut merged, &removed.intersection(&last))?;
    versions.convert(merged, version, writer.api_version)
}

/// The paths of a value, with the struct fields on the way to them.
fn all_paths(schema: &Structural, value: &Value) -> Result<FieldSet, TypedError> {
    Ok(applied_paths(schema, value)?.with_named_fields(schema))
}

/// Adds back to `pruned` what `merged` has and any manager owns, version by version. Both values are in version `origin`.
fn add_back_owned(
    versions: &VersionConverter<'_>,
    merged: &Value,
    mut pruned: Value,
    origin: &str,
    own: &Entry,
    others: &[Entry],
) -> Result<Value, ChangesError> {
    let mut owned: BTreeMap<&str, Vec<FieldSet>> = BTreeMap::new();
    for entry in others.iter().chain([own]) {
        owned
            .entry(&entry.api_version)
            .or_default()
            .push(entry.fields.clone());
    }
    // The version of the values comes first, so that conversions get values that are as complete as possible.
    let first = owned.remove_entry(origin);
    let mut current = origin;
    for (version, sets) in first.into_iter().chain(owned) {
        let schema = versions.schema(version)?;
        let mut kept = versions.convert(merged.clone(), origin, version)?;
        pruned = versions.convert(pruned, current, version)?;
        let mut removed = all_paths(schema, &kept)?;
        removed.subtract(&all_paths(schema, &pruned)?);
        removed.subtract(&FieldSet::union_of(sets).with_named_fields(schema));
        remove(schema, &mut kept, &removed)?;
        pruned = kept;
        current = version;
    }
    versions.convert(pruned, current, origin)
}

/// Conversion between all served versions, through the version of the request.
struct VersionConverter<'a> {
    endpoint: &'a Endpoint<'a>,
    writer: &'a Writer<'a>,
}

impl<'a> VersionConverter<'a> {
    fn schema(&self, api_version: &str) -> Result<&'a Structural, ChangesError> {
        let schema = self.endpoint.schema_of(api_version, self.writer);
        schema.ok_or_else(|| ChangesError::Conversion(api_version.to_owned()))
    }

    fn convert(&self, object: Value, from: &str, to: &str) -> Result<Value, ChangesError> {
        if from == to {
            return Ok(object);
        }
        let own = self.writer.api_version;
        let mut object = Some(object);
        if from != own {
            object = object.and_then(|object| self.endpoint.versions.revert(&object, from));
        }
        if to != own {
            object = object.and_then(|object| self.endpoint.versions.convert(&object, to));
        }
        object.ok_or_else(|| ChangesError::Conversion(to.to_owned()))
    }
}
