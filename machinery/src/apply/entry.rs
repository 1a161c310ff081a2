//! Entries of `metadata.managedFields`: the fields that one manager owns, and their JSON form.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::field_set::{FieldSet, FieldsError};

/// The only format of field sets.
const FIELDS_V1: &str = "FieldsV1";

/// The kind of write that created an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Server-side apply: the set contains the fields of the last applied configuration.
    Apply,
    /// Any other write: the set contains the fields that the manager changed.
    Update,
}

impl Operation {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The fields that one manager owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The name of the manager.
    pub(super) manager: String,
    /// The kind of write.
    pub(super) operation: Operation,
    /// The group and version of the schema that the field names refer to.
    pub(super) api_version: String,
    /// The subresource, or the empty string.
    pub(super) subresource: String,
    /// The time of the last change, RFC 3339. `None` if the manager applied only values that were already set.
    pub(super) time: Option<String>,
    /// The fields.
    pub(super) fields: FieldSet,
}

/// Why a list of entries cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntriesError {
    /// The value is not a list of objects.
    #[error("managedFields must be a list of objects")]
    Shape,
    /// The operation is neither Apply nor Update.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// The version is empty.
    #[error("apiVersion must not be empty")]
    ApiVersion,
    /// The format is empty.
    #[error("missing fieldsType in managed fields entry {0}")]
    MissingFieldsType(usize),
    /// The format is unknown.
    #[error("invalid fieldsType {fields_type:?} in managed fields entry {index}")]
    FieldsType {
        /// The format.
        fields_type: String,
        /// The position of the entry.
        index: usize,
    },
    /// The fields do not parse.
    #[error("error decoding manager from managed fields entry {index}: {source}")]
    Fields {
        /// The position of the entry.
        index: usize,
        /// The cause.
        source: FieldsError,
    },
}

impl Entry {
    /// Whether two entries have the same identity: for Apply entries manager and subresource, for Update entries also the
    /// version.
    pub(super) fn has_identity_of(&self, other: &Self) -> bool {
        self.operation == other.operation
            && self.manager == other.manager
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// The JSON text of the identity, by which the reference server sorts managers.
    pub(super) fn identity(&self) -> String {
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

    /// The time for sorting: entries without a time sort as of 1970.
    pub(super) fn order_time(&self) -> &str {
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

/// Decodes `managedFields`. Of two entries with the same identity the later one is used.
///
/// # Errors
///
/// [`EntriesError`] for the first entry that does not decode; the whole list is then unusable.
pub(super) fn decode_entries(list: &Value) -> Result<Vec<Entry>, EntriesError> {
    let list = match list {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        _ => return Err(EntriesError::Shape),
    };
    let mut entries: Vec<Option<Entry>> = Vec::with_capacity(list.len() + 1);
    let mut identities: HashMap<_, usize> = HashMap::with_capacity(list.len());
    for (index, value) in list.iter().enumerate() {
        entries.push(Some(Entry::decode(index, value)?));
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        let version = if text("operation") == "Apply" {
            ""
        } else {
            text("apiVersion")
        };
        let identity = (text("operation"), version, text("manager"), text("subresource"));
        if let Some(earlier) = identities
            .insert(identity, index)
            .and_then(|earlier| entries.get_mut(earlier))
        {
            *earlier = None;
        }
    }
    Ok(entries.into_iter().flatten().collect())
}

/// Encodes `managedFields`: Apply entries first, then sorted by time, manager, version and subresource. `None` if no entry
/// has fields.
pub(super) fn encode_entries(mut entries: Vec<Entry>) -> Option<Value> {
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

/// Restores the order of encoded entries after their versions have been renamed.
pub fn sort_entries(entries: &mut [Value]) {
    fn text<'a>(entry: &'a Value, member: &str) -> &'a str {
        entry.get(member).and_then(Value::as_str).unwrap_or_default()
    }
    let members = ["operation", "time", "manager", "apiVersion", "subresource"];
    entries.sort_by(|left, right| {
        let texts = members.map(|member| text(left, member));
        texts.cmp(&members.map(|member| text(right, member)))
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixtures::{V1, time};
    use super::*;

    #[test]
    fn entries_are_sorted_by_operation_time_and_name() {
        let set = FieldSet::from_value(&json!({"f:a": {}})).unwrap();
        let entry = |operation, second: Option<u32>, manager: &str, subresource: &str| Entry {
            manager: manager.to_owned(),
            operation,
            api_version: V1.to_owned(),
            subresource: subresource.to_owned(),
            time: second.map(time),
            fields: set.clone(),
        };
        let sorted = vec![
            entry(Operation::Apply, None, "z", ""),
            entry(Operation::Apply, Some(2), "a", ""),
            entry(Operation::Apply, Some(2), "a", "status"),
            entry(Operation::Apply, Some(2), "b", ""),
            entry(Operation::Update, None, "a", ""),
            entry(Operation::Update, Some(1), "c", ""),
        ];
        let list = encode_entries(sorted.iter().rev().cloned().collect()).unwrap();
        assert_eq!(decode_entries(&list).unwrap(), sorted);
        assert_eq!(encode_entries(Vec::new()), None);
    }
}
