//! The attributes by which an object can be selected: its uid, its labels, and the fields its kind declares.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::resource::Resource;
use crate::cache::{Attributes, Extract};

/// The members that every kind has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Head {
    metadata: HeadMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HeadMetadata {
    uid: String,
    labels: BTreeMap<String, String>,
}

/// A function that reads the attributes of an object from its stored value. A value that cannot be decoded has none.
#[must_use]
pub fn extract(resource: &Arc<Resource>) -> Arc<Extract> {
    let resource = Arc::clone(resource);
    Arc::new(move |_, value| {
        let declared = resource.capabilities.selectable_fields;
        // Most kinds have no selectable fields: then only the metadata of the stored bytes is decoded.
        let is_hub = value.form == resource.storage_face().api_version;
        let (head, fields) = if declared.is_empty() && is_hub {
            let head = serde_json::from_slice(&value.bytes).unwrap_or_default();
            (head, Vec::new())
        } else {
            let hub = resource.decode(value).unwrap_or_default();
            (
                Head::deserialize(&hub).unwrap_or_default(),
                fields(&hub, declared),
            )
        };
        Attributes {
            uid: head.metadata.uid,
            labels: head.metadata.labels.into_iter().collect(),
            fields,
        }
    })
}

fn fields(object: &Value, declared: &[&str]) -> Vec<(String, String)> {
    declared
        .iter()
        .filter_map(|path| Some(((*path).to_owned(), scalar(object, path)?)))
        .collect()
}

/// The scalar at a path, as a string.
fn scalar(object: &Value, path: &str) -> Option<String> {
    match path
        .split('.')
        .try_fold(object, |value, member| value.get(member))?
    {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn declared_fields_are_read_as_strings() {
        let object = json!({"spec": {"nodeName": "a", "unschedulable": true, "list": []}, "reason": "R"});
        let declared = [
            "spec.nodeName",
            "spec.unschedulable",
            "spec.list",
            "reason",
            "status.phase",
        ];
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs
                .iter()
                .map(|(field, value)| ((*field).to_owned(), (*value).to_owned()))
                .collect()
        };
        assert_eq!(
            fields(&object, &declared),
            pairs(&[
                ("spec.nodeName", "a"),
                ("spec.unschedulable", "true"),
                ("reason", "R")
            ])
        );
    }
}
