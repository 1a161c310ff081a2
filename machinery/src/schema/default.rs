//! Defaulting: fills in the defaults of the schema.

use serde_json::Value;

use super::{Shape, Structural};

impl Structural {
    /// Fills in the defaults of absent fields of every object that is present.
    ///
    /// Defaults are also applied inside filled-in values. Values that do not have the expected shape are not changed.
    pub fn default(&self, value: &mut Value) {
        if !self.has_defaults {
            return;
        }
        match (&self.shape, value) {
            (Shape::Object(object), Value::Object(members)) => {
                for field in object.fields.iter().filter(|field| field.schema.has_defaults) {
                    if let Some(present) = members.get_mut(&field.name) {
                        field.schema.default(present);
                    } else if let Some(default) = &field.schema.default {
                        let mut filled = default.clone();
                        field.schema.default(&mut filled);
                        members.insert(field.name.clone(), filled);
                    }
                }
                if let Some(values) = object.additional.as_ref().filter(|values| values.has_defaults) {
                    for (_, member) in members.iter_mut().filter(|(key, _)| object.field(key).is_none()) {
                        values.default(member);
                    }
                }
            }
            (Shape::List(list), Value::Array(items)) => {
                for item in items {
                    list.items.default(item);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(mut value: Value, expected: &Value) {
        let schema = Structural::from_json_schema(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "default": {}, "properties": {
                "type": {"type": "string", "default": "Soft"},
                "empty": {"type": "array", "default": [], "items": {"type": "string"}},
                "ports": {"type": "array", "items": {"type": "object", "properties": {
                    "protocol": {"type": "string", "default": "TCP"}, "port": {"type": "integer"}}}},
                "byName": {"type": "object", "additionalProperties": {"type": "object", "properties": {
                    "weight": {"type": "integer", "default": 0}}}},
                "nested": {"type": "object", "default": {"a": 1}, "properties": {
                    "a": {"type": "integer"}, "b": {"type": "boolean", "default": false}}}
            }},
            "plain": {"type": "object", "properties": {"x": {"type": "string"}}}
        }}))
        .unwrap();
        schema.default(&mut value);
        assert_eq!(&value, expected);
    }

    #[test]
    fn absent_fields_of_present_objects_are_defaulted() {
        check(json!({}), &json!({}));
        check(json!({"plain": {}}), &json!({"plain": {}}));
        check(
            json!({"spec": {}}),
            &json!({"spec": {"type": "Soft", "nested": {"a": 1, "b": false}}}),
        );
        check(
            json!({"spec": {"type": "Hard", "nested": {"b": true}, "ports": [{"port": 1}, {"protocol": "UDP"}],
                "byName": {"n": {}, "m": {"weight": 2}}}}),
            &json!({"spec": {"type": "Hard", "nested": {"b": true},
                "ports": [{"port": 1, "protocol": "TCP"}, {"protocol": "UDP"}],
                "byName": {"n": {"weight": 0}, "m": {"weight": 2}}}}),
        );
    }

    #[test]
    fn values_of_another_shape_are_not_changed() {
        check(json!({"spec": "text"}), &json!({"spec": "text"}));
        check(json!([]), &json!([]));
    }
}
