//! The changes of a write, computed in the version of each entry of `managedFields`.

use std::collections::btree_map::{BTreeMap, Entry};

use serde_json::Value;

use super::field_set::FieldSet;
use super::items::TypedError;
use super::managed_fields::Endpoint;
use super::typed::{Comparison, compare};
use super::value_paths::everything;
use crate::schema::Structural;

/// The changes of a write in one version, without the reset fields of the endpoint.
pub(super) struct Changes {
    /// Paths that were added or modified.
    pub(super) set: FieldSet,
    /// Paths that were removed.
    pub(super) removed: FieldSet,
}

/// Why the changes of a write cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangesError {
    /// A list cannot be split into items.
    #[error("failed to compare objects: {0}")]
    Typed(#[from] TypedError),
    /// An object cannot be converted to the version of an entry.
    #[error("failed to convert object to {0}")]
    Conversion(String),
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
                    set: added.union(modified),
                    removed,
                }
            }
            None => Self {
                set: everything(schema, new)?,
                removed: FieldSet::new(),
            },
        };
        changes.set.subtract_recursively(reset_fields);
        changes.removed.subtract_recursively(reset_fields);
        Ok(changes)
    }
}

/// The changes of a write, in the version of the request and, computed on demand, in other versions.
pub(super) struct ChangesByVersion<'a> {
    endpoint: &'a Endpoint<'a>,
    api_version: &'a str,
    live: Option<&'a Value>,
    new: &'a Value,
    own: Changes,
    others: BTreeMap<String, Changes>,
}

impl<'a> ChangesByVersion<'a> {
    /// Compares two objects of version `api_version`, which is that of the endpoint.
    pub(super) fn between(
        endpoint: &'a Endpoint<'a>,
        api_version: &'a str,
        live: Option<&'a Value>,
        new: &'a Value,
    ) -> Result<Self, ChangesError> {
        Ok(Self {
            own: Changes::between(endpoint.schema, live, new, endpoint.reset_fields)?,
            endpoint,
            api_version,
            live,
            new,
            others: BTreeMap::new(),
        })
    }

    /// The changes in a version with the given schema.
    pub(super) fn in_version(
        &mut self,
        api_version: &str,
        schema: &Structural,
    ) -> Result<&Changes, ChangesError> {
        if api_version == self.api_version {
            return Ok(&self.own);
        }
        match self.others.entry(api_version.to_owned()) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => {
                let convert = |object| {
                    let converted = self.endpoint.versions.convert(object, api_version);
                    converted.ok_or_else(|| ChangesError::Conversion(api_version.to_owned()))
                };
                let live = self.live.map(convert).transpose()?;
                let new = convert(self.new)?;
                let reset_fields = self.endpoint.reset_fields;
                Ok(unknown.insert(Changes::between(schema, live.as_ref(), &new, reset_fields)?))
            }
        }
    }

    /// The changes in the version of the request.
    pub(super) fn into_own(self) -> Changes {
        self.own
    }
}
