//! Merging a configuration into an object without recording who owns what: `ApplyConfiguration` of a
//! `MutatingAdmissionPolicy`.

use serde_json::Value;

use super::items::TypedError;
use super::merge::ConfigErrors;
use super::merge_values::merge;
use super::validate::validate;
use crate::schema::{ListKind, Shape, Structural};

/// Why a configuration cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// The configuration does not fit the schema.
    #[error("failed to convert patch object to typed object: {0}")]
    Config(ConfigErrors),
    /// It has values of containers that can only be replaced as a whole, which would remove what it does not list.
    #[error("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {0}")]
    Atomic(String),
    /// An item has no identity.
    #[error("failed to merge patch: {0}")]
    Item(#[from] TypedError),
}

/// Merges `config` into `object`, both in the version of `schema`.
///
/// # Errors
/// See [`ConfigurationError`].
pub fn merge_configuration(
    schema: &Structural,
    object: &mut Value,
    config: &Value,
) -> Result<(), ConfigurationError> {
    let errors = validate(schema, config);
    if !errors.is_empty() {
        return Err(ConfigurationError::Config(ConfigErrors(errors)));
    }
    let mut atomics = Vec::new();
    find_atomics(schema, config, &mut String::new(), &mut atomics);
    if !atomics.is_empty() {
        return Err(ConfigurationError::Atomic(atomics.join(", ")));
    }
    Ok(merge(schema, object, config)?)
}

fn find_atomics(schema: &Structural, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    match (&schema.shape, value) {
        (Shape::Object(object), Value::Object(members)) => {
            if object.is_atomic {
                found.push(path.clone());
            }
            for (name, member) in members {
                if let Some(field) = object.field(name) {
                    path.push('.');
                    path.push_str(name);
                    find_atomics(&field.schema, member, path, found);
                    path.truncate(length);
                }
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            if list.kind == ListKind::Atomic {
                found.push(path.clone());
            }
            for (index, item) in items.iter().enumerate() {
                path.push('[');
                path.push_str(&index.to_string());
                path.push(']');
                find_atomics(&list.items, item, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn configurations_are_merged_and_atomic_containers_are_not_touched() {
        let spec = json!({"type": "object", "properties": {
            "size": {"type": "integer"},
            "list": {"type": "array", "items": {"type": "string"}},
            "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
                "type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "value": {"type": "integer"}},
            }},
        }});
        let schema = Structural::for_kind("Thing", "v1", "", &[("spec", &spec)]).unwrap();
        let mut object = json!({"metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {"size": 1, "keyed": [{"name": "x", "value": 1}]}});
        let config = json!({"metadata": {"labels": {"c": "d"}}, "spec": {"keyed": [{"name": "y"}, {"name": "x", "value": 2}]}});
        merge_configuration(&schema, &mut object, &config).unwrap();
        assert_eq!(
            object,
            json!({"metadata": {"name": "n", "labels": {"a": "b", "c": "d"}}, "spec": {
                "size": 1, "keyed": [{"name": "y"}, {"name": "x", "value": 2}]}})
        );
        let error = |config: Value| {
            merge_configuration(&schema, &mut object.clone(), &config)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(json!({"spec": {"list": ["a"]}})),
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.list"
        );
        assert_eq!(
            error(json!({"spec": {"absent": 1}})),
            "failed to convert patch object to typed object: .spec.absent: field not declared in schema"
        );
    }
}
