//! JSON merge patch (RFC 7386): objects are merged, `null` deletes, any other value replaces.

use serde_json::{Map, Value};

use super::{PatchError, Patched};
use crate::codec::{DecodeError, FieldValidation, json};

/// Applies a merge patch to a document.
///
/// Null members of added objects are dropped; null items of lists are kept. With [`FieldValidation::Ignore`] an array
/// replaces the document, as in the reference server; otherwise a patch must be an object.
///
/// ```
/// use drydock_machinery::codec::FieldValidation;
///
/// let document = serde_json::json!({"a": 1, "b": {"c": 2}});
/// let patched = drydock_machinery::patch::merge::apply(&document, br#"{"a":null,"b":{"d":3}}"#, FieldValidation::Warn)?;
/// assert_eq!(patched.value, serde_json::json!({"b": {"c": 2, "d": 3}}));
/// # Ok::<_, drydock_machinery::patch::PatchError>(())
/// ```
///
/// # Errors
///
/// [`PatchError::NotJson`]; [`PatchError::NotAnObject`] for `null` and, with [`FieldValidation::Ignore`], for scalars;
/// [`PatchError::Decode`] for any other patch that is not an object.
pub fn apply(document: &Value, patch: &[u8], validation: FieldValidation) -> Result<Patched, PatchError> {
    let decoded = json::decode(patch).map_err(|_| PatchError::NotJson)?;
    match &decoded.value {
        Value::Object(_) => {
            let mut value = document.clone();
            merge(&mut value, decoded.value);
            Ok(Patched {
                value,
                strict: decoded.duplicates,
            })
        }
        Value::Array(_) if validation == FieldValidation::Ignore => Ok(Patched {
            value: decoded.value,
            strict: Vec::new(),
        }),
        Value::Null => Err(PatchError::NotAnObject),
        _ if validation == FieldValidation::Ignore => Err(PatchError::NotAnObject),
        other => Err(PatchError::Decode(DecodeError::wrong_type(
            other,
            "value",
            "map[string]interface {}",
        ))),
    }
}

/// Merges a patch into a value.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        prune(target);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(members) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            members.remove(&key);
        } else {
            merge(members.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Drops null members of objects at any depth.
fn prune(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(prune);
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

/// Fuzz target: patching an object must not panic and must yield an object.
///
/// # Panics
///
/// If the result is not an object, which is a bug.
pub fn fuzz_apply(patch: &[u8]) {
    if let Ok(patched) = apply(&super::fuzz_document(), patch, FieldValidation::Warn) {
        assert!(patched.value.is_object());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(document: &Value, patch: &Value, expected: &Value) {
        let patched = apply(document, patch.to_string().as_bytes(), FieldValidation::Warn).unwrap();
        assert_eq!(&patched.value, expected, "{document} patched with {patch}");
    }

    #[test]
    fn examples_of_the_rfc() {
        for (document, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
            (
                json!({"a": "x"}),
                json!({"a": {"b": null, "c": 1}}),
                json!({"a": {"c": 1}}),
            ),
        ] {
            check(&document, &patch, &expected);
        }
    }

    #[test]
    fn null_items_of_lists_are_kept() {
        check(
            &json!({}),
            &json!({"a": [null, {"b": null, "c": 1}]}),
            &json!({"a": [null, {"c": 1}]}),
        );
    }

    #[test]
    fn only_objects_are_patches() {
        let error_of = |patch: &str, validation| {
            apply(&json!({}), patch.as_bytes(), validation)
                .unwrap_err()
                .to_string()
        };
        for validation in [
            FieldValidation::Warn,
            FieldValidation::Strict,
            FieldValidation::Ignore,
        ] {
            assert_eq!(error_of("a: 1", validation), "invalid JSON patch");
            assert_eq!(error_of("", validation), "invalid JSON patch");
            assert_eq!(error_of("null", validation), "Invalid JSON Patch");
        }
        assert_eq!(
            error_of("[]", FieldValidation::Warn),
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        );
        assert_eq!(
            error_of("\"x\"", FieldValidation::Strict),
            "error decoding patch: json: cannot unmarshal string into Go value of type map[string]interface {}"
        );
        assert_eq!(error_of("1", FieldValidation::Ignore), "Invalid JSON Patch");
        assert_eq!(
            apply(&json!({}), b"[1]", FieldValidation::Ignore).unwrap().value,
            json!([1])
        );
    }

    #[test]
    fn duplicate_keys_are_reported() {
        let patched = apply(&json!({}), br#"{"spec":{"a":1,"a":2}}"#, FieldValidation::Warn).unwrap();
        assert_eq!(patched.value, json!({"spec": {"a": 2}}));
        assert_eq!(patched.strict[0].to_string(), r#"duplicate field "spec.a""#);
    }
}
