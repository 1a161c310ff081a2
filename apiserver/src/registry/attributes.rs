//! By what can an object be selected? Its labels, and the fields its kind declares.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::resource::Resource;
use crate::cache::{Attributes, Extract};

/// What of a payload every kind has.
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

/// Reads the attributes of a resource's objects off their stored form. Payloads that cannot be read have none.
#[must_use]
pub fn extract(resource: &Resource) -> Arc<Extract> {
    let declared = resource.capabilities.selectable_fields;
    Arc::new(move |_, payload| {
        let head: Head = serde_json::from_slice(payload).unwrap_or_default();
        let fields = if declared.is_empty() {
            Vec::new()
        } else {
            fields(payload, declared)
        };
        Attributes {
            uid: head.metadata.uid,
            labels: head.metadata.labels.into_iter().collect(),
            fields,
        }
    })
}

fn fields(payload: &[u8], declared: &[&str]) -> Vec<(String, String)> {
    let object: Value = serde_json::from_slice(payload).unwrap_or_default();
    declared
        .iter()
        .filter_map(|path| Some(((*path).to_owned(), scalar(&object, path)?)))
        .collect()
}

/// The scalar at a path as selectors spell it.
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
    use super::*;

    #[test]
    fn declared_fields_are_read_as_text() {
        let payload = br#"{"spec":{"nodeName":"a","unschedulable":true,"list":[]},"reason":"R"}"#;
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
            fields(payload, &declared),
            pairs(&[
                ("spec.nodeName", "a"),
                ("spec.unschedulable", "true"),
                ("reason", "R")
            ])
        );
        assert_eq!(fields(b"?", &declared), []);
    }
}
