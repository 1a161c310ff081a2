//! Conformance of a decoded body to a schema: unknown fields are dropped, known fields must have the right type.

use serde_json::{Map, Value};

use super::structural::{Field, List, ObjectShape, Omit, Shape, Structural, Width};
use super::time;
use crate::codec::{DecodeError, Location, Segment, StrictError, json_type};
use crate::field_error::MAX_ERRORS;

impl Structural {
    /// Converts a decoded value to the canonical form of an object of this schema. Returns the unknown fields.
    ///
    /// `null` reads as absent (in lists and maps as the empty value), unknown fields are dropped, times are truncated to
    /// whole seconds in UTC, and values that Go's `omitempty` omits (empty optional lists and maps, in metadata also empty
    /// text and zero) are dropped. A `null` body is an empty object. `metadata.managedFields` keeps `[]` and `[{}]`, which
    /// reset field ownership ([`managed_fields`](crate::apply::managed_fields)).
    ///
    /// ```
    /// use drydock_machinery::schema::Structural;
    ///
    /// let spec = serde_json::json!({"type": "object", "properties": {"ttl": {"type": "integer", "format": "int32"}}});
    /// let schema = Structural::for_kind("Thing", "v1", "", &[("spec", &spec)])?;
    /// let mut object = serde_json::json!({"metadata": {"labels": {}}, "spec": {"ttl": null, "x": 1}});
    /// let unknown = schema.conform(&mut object)?;
    /// assert_eq!(object, serde_json::json!({"metadata": {}, "spec": {}}));
    /// assert_eq!(unknown[0].to_string(), r#"unknown field "spec.x""#);
    ///
    /// let error = schema.conform(&mut serde_json::json!({"spec": {"ttl": "1"}})).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "json: cannot unmarshal string into Go struct field ThingSpec.spec.ttl of type int32"
    /// );
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DecodeError::Type`] for the first value with a wrong JSON type or out of range, the `DecodeError::Time…` kinds for
    /// a time that does not parse. `value` is then partly converted.
    pub fn conform(&self, value: &mut Value) -> Result<Vec<StrictError>, DecodeError> {
        if value.is_null() {
            *value = self.empty();
        }
        let mut walk = Walk { unknown: Vec::new() };
        walk.node(self, value, None)?;
        Ok(walk.unknown)
    }

    /// The value of `null` in a list or a map.
    fn empty(&self) -> Value {
        match &self.shape {
            Shape::Any => Value::Null,
            Shape::Boolean => Value::Bool(false),
            Shape::Integer(_) | Shape::Number | Shape::IntOrString => Value::Number(0.into()),
            Shape::String => Value::String(String::new()),
            Shape::Time => Value::String(time::ZERO.to_owned()),
            Shape::List(_) => Value::Array(Vec::new()),
            Shape::Object(_) => Value::Object(Map::new()),
        }
    }

    /// The name of the Go type in error texts.
    fn type_name(&self) -> String {
        match &self.shape {
            Shape::Any => "interface {}".to_owned(),
            Shape::Boolean => "bool".to_owned(),
            Shape::Integer(Width::Int32) | Shape::IntOrString => "int32".to_owned(),
            Shape::Integer(Width::Int64) => "int64".to_owned(),
            Shape::Number => "float64".to_owned(),
            Shape::String | Shape::Time => "string".to_owned(),
            Shape::List(list) => format!("[]{}", list.items.type_name()),
            Shape::Object(object) => match &object.additional {
                Some(values) if object.fields.is_empty() => format!("map[string]{}", values.type_name()),
                _ => object.type_name.clone(),
            },
        }
    }
}

impl Field {
    /// Whether a value of the field counts as absent.
    fn omits(&self, value: &Value) -> bool {
        match (self.omit, value) {
            (_, Value::Null) => true,
            (_, Value::String(text)) if matches!(self.schema.shape, Shape::Time) => text == time::ZERO,
            (Omit::EmptyContainer | Omit::Zero, Value::Array(items)) => items.is_empty(),
            (Omit::EmptyContainer | Omit::Zero, Value::Object(members)) => members.is_empty(),
            (Omit::Zero, Value::String(text)) => text.is_empty(),
            (Omit::Zero, Value::Number(number)) => number.as_i64() == Some(0),
            _ => false,
        }
    }
}

struct Walk {
    unknown: Vec<StrictError>,
}

impl Walk {
    fn node(
        &mut self,
        schema: &Structural,
        value: &mut Value,
        location: Option<&Location<'_>>,
    ) -> Result<(), DecodeError> {
        match (&schema.shape, &mut *value) {
            (Shape::String | Shape::IntOrString, Value::String(_)) | (Shape::Boolean, Value::Bool(_)) => {
                Ok(())
            }
            (Shape::Object(object), Value::Object(members)) => self.object(object, members, location),
            (Shape::List(list), Value::Array(items)) => self.list(list, items, location),
            (Shape::Time, Value::String(text)) => {
                if let Some(normalized) = time::normalized(text)? {
                    *text = normalized;
                }
                Ok(())
            }
            (Shape::Integer(Width::Int64), Value::Number(number)) if number.is_i64() => Ok(()),
            (Shape::Integer(Width::Int32) | Shape::IntOrString, Value::Number(number))
                if number
                    .as_i64()
                    .is_some_and(|number| i32::try_from(number).is_ok()) =>
            {
                Ok(())
            }
            (Shape::Number, Value::Number(_)) | (Shape::Any, _) => {
                normalize_numbers(value, MAX_FREE_FORM_DEPTH)
            }
            _ => Err(wrong_type(schema, value, location)),
        }
    }

    fn object(
        &mut self,
        object: &ObjectShape,
        members: &mut Map<String, Value>,
        location: Option<&Location<'_>>,
    ) -> Result<(), DecodeError> {
        let mut failure = None;
        let struct_name = object.struct_name();
        // Members and fields are both sorted by name, so one pass over both finds every field.
        let mut fields = object.fields.iter().peekable();
        members.retain(|key, value| {
            if failure.is_some() {
                return true;
            }
            while fields.next_if(|field| field.name < *key).is_some() {}
            if let Some(field) = fields.next_if(|field| field.name == *key) {
                if value.is_null() {
                    return false;
                }
                let below = Location::below(location, Segment::Field(key, struct_name));
                return match self.node(&field.schema, value, Some(&below)) {
                    Ok(()) => !field.omits(value),
                    Err(error) => {
                        failure = Some(error);
                        true
                    }
                };
            }
            let below = Location::below(location, Segment::Key(key));
            if let Some(schema) = &object.additional {
                if value.is_null() {
                    *value = schema.empty();
                }
                failure = self.node(schema, value, Some(&below)).err();
                true
            } else if object.preserves_unknown {
                failure = normalize_numbers(value, MAX_FREE_FORM_DEPTH).err();
                true
            } else {
                if self.unknown.len() < MAX_ERRORS {
                    self.unknown.push(StrictError::UnknownField {
                        path: below.excerpt(),
                    });
                }
                false
            }
        });
        failure.map_or(Ok(()), Err)
    }

    fn list(
        &mut self,
        list: &List,
        items: &mut [Value],
        location: Option<&Location<'_>>,
    ) -> Result<(), DecodeError> {
        for (index, item) in items.iter_mut().enumerate() {
            if item.is_null() {
                *item = list.items.empty();
            }
            self.node(
                &list.items,
                item,
                Some(&Location::below(location, Segment::Index(index))),
            )?;
        }
        Ok(())
    }
}

/// The maximum nesting of content without a schema. Its field set in `managedFields` is nested a few levels deeper, and
/// must also stay within the limit of the decoder.
const MAX_FREE_FORM_DEPTH: usize = 64;

/// Converts whole floats to integers, as the reference server prints them.
fn normalize_numbers(value: &mut Value, levels: usize) -> Result<(), DecodeError> {
    let below = || levels.checked_sub(1).ok_or(DecodeError::TooDeep);
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(whole) = number.as_f64().and_then(whole) {
                *value = whole.into();
            }
        }
        Value::Array(items) => {
            let levels = below()?;
            items
                .iter_mut()
                .try_for_each(|item| normalize_numbers(item, levels))?;
        }
        Value::Object(members) => {
            let levels = below()?;
            members
                .values_mut()
                .try_for_each(|member| normalize_numbers(member, levels))?;
        }
        _ => {}
    }
    Ok(())
}

/// The integer equal to a float, if the float is in the range where it represents integers exactly.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn whole(float: f64) -> Option<i64> {
    /// Above 2^53, floats no longer distinguish neighbouring integers.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (float.fract() == 0.0 && float.abs() <= EXACT).then_some(float as i64)
}

fn wrong_type(schema: &Structural, value: &Value, location: Option<&Location<'_>>) -> DecodeError {
    let found = match value {
        Value::Number(number) if matches!(schema.shape, Shape::Integer(_) | Shape::IntOrString) => {
            format!("number {number}")
        }
        other => json_type(other).to_owned(),
    };
    // Go's decoder calls the unmarshaler of times, so its error does not name the field.
    let place = location
        .filter(|_| !matches!(schema.shape, Shape::Time))
        .and_then(Location::struct_field);
    DecodeError::Type {
        found,
        place: place.map_or_else(
            || "value".to_owned(),
            |(owner, path)| format!("struct field {owner}.{path}"),
        ),
        expected: schema.type_name(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Structural {
        let spec = json!({"type": "object", "required": ["must"], "properties": {
            "type": {"type": "string"},
            "heartbeatDeadlineSeconds": {"type": "integer", "format": "int32"},
            "large": {"type": "integer", "format": "int64"},
            "ratio": {"type": "number"},
            "enabled": {"type": "boolean"},
            "at": {"type": "string", "format": "date-time"},
            "port": {"x-kubernetes-int-or-string": true},
            "must": {"type": "array", "items": {"type": "string"}},
            "requesters": {"type": "array", "items": {"type": "object", "properties": {
                "name": {"type": "string"}, "weight": {"type": "integer", "format": "int32"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "target": {"type": "object", "properties": {"pod": {"type": "object", "properties": {"uid": {"type": "string"}}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "half": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                "known": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
        }});
        Structural::for_kind("EvictionRequest", "v1alpha3", "", &[("spec", &spec)]).unwrap()
    }

    fn check(mut value: Value, expected: &Value, unknown: &[&str]) {
        let errors = schema().conform(&mut value).expect("conforms");
        assert_eq!(&value, expected);
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            unknown
                .iter()
                .map(|path| format!("unknown field \"{path}\""))
                .collect::<Vec<_>>()
        );
    }

    #[expect(clippy::needless_pass_by_value, reason = "tables of literals read better")]
    fn rejects(spec: Value, expected: &str) {
        let mut value = json!({ "spec": spec });
        let error = schema().conform(&mut value).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn unknown_fields_are_dropped_and_reported_with_their_path() {
        check(
            json!({"kind": "K", "extra": 1, "metadata": {"clusterName": "c", "name": "n"},
                "spec": {"Type": "x", "requesters": [{"name": "a"}, {"name": "b", "x": {"y": 1}}], "target": {"pod": {"id": 1}},
                    "labels": {"anything": "goes"}}}),
            &json!({"kind": "K", "metadata": {"name": "n"},
                "spec": {"requesters": [{"name": "a"}, {"name": "b"}], "target": {"pod": {}}, "labels": {"anything": "goes"}}}),
            &[
                "extra",
                "metadata.clusterName",
                "spec.Type",
                "spec.requesters[1].x",
                "spec.target.pod.id",
            ],
        );
    }

    #[test]
    fn free_form_content_is_kept() {
        check(
            json!({"spec": {"free": {"a": [1.0, null, {"b": 1.5}], "c": 1e30}, "half": {"other": {"x": 2.0}, "known": {"n": 1, "m": 3.0}}}}),
            &json!({"spec": {"free": {"a": [1, null, {"b": 1.5}], "c": 1e30}, "half": {"other": {"x": 2}, "known": {"n": 1, "m": 3}}}}),
            &[],
        );
    }

    #[test]
    fn nesting_of_free_form_content_is_limited() {
        let nested = |levels: usize| {
            let text = "{\"a\":".repeat(levels) + "1" + &"}".repeat(levels);
            json!({"spec": {"free": serde_json::from_str::<Value>(&text).unwrap()}})
        };
        let object = nested(64);
        check(object.clone(), &object, &[]);
        assert_eq!(schema().conform(&mut nested(70)), Err(DecodeError::TooDeep));
    }

    #[test]
    fn reported_errors_are_limited() {
        let mut spec = json!({});
        for index in 0..200 {
            spec[format!("x{index}")] = 1.into();
        }
        assert_eq!(schema().conform(&mut json!({ "spec": spec })).unwrap().len(), 100);
    }

    #[test]
    fn null_is_absent_and_empty_inside_lists_and_maps() {
        check(Value::Null, &json!({}), &[]);
        check(
            json!({"metadata": null, "spec": {"type": null, "heartbeatDeadlineSeconds": null, "requesters": null, "target": null,
                "free": null, "must": ["a", null], "labels": {"a": null}}}),
            &json!({"spec": {"must": ["a", ""], "labels": {"a": ""}}}),
            &[],
        );
        check(
            json!({"spec": {"requesters": [null]}}),
            &json!({"spec": {"requesters": [{}]}}),
            &[],
        );
    }

    #[test]
    fn empty_optional_containers_are_omitted() {
        check(
            json!({"metadata": {"labels": {}, "annotations": {}, "finalizers": [], "ownerReferences": [], "namespace": "",
                    "generateName": "", "generation": 0, "creationTimestamp": null, "deletionGracePeriodSeconds": 0,
                    "uid": "", "resourceVersion": ""},
                "spec": {"type": "", "requesters": [], "labels": {}, "must": [], "target": {}, "free": {}, "large": 0}}),
            &json!({"metadata": {"deletionGracePeriodSeconds": 0},
                "spec": {"type": "", "must": [], "target": {}, "large": 0}}),
            &[],
        );
        check(
            json!({"metadata": {"creationTimestamp": "0001-01-01T00:00:00Z"}}),
            &json!({"metadata": {}}),
            &[],
        );
    }

    #[test]
    fn resets_of_managed_fields_survive() {
        for list in [json!([]), json!([{}])] {
            let object = json!({"metadata": {"managedFields": list}});
            check(object.clone(), &object, &[]);
        }
        check(
            json!({"metadata": {"managedFields": [null]}}),
            &json!({"metadata": {"managedFields": [{}]}}),
            &[],
        );
        check(
            json!({"metadata": {"managedFields": null}}),
            &json!({"metadata": {}}),
            &[],
        );
    }

    #[test]
    fn times_are_normalized() {
        check(
            json!({"metadata": {"creationTimestamp": "2026-01-02T03:04:05.6+01:00",
                    "managedFields": [{"time": "2026-01-02T03:04:05.9Z", "manager": ""}]}, "spec": {"at": "2026-01-02T03:04:05.678Z"}}),
            &json!({"metadata": {"creationTimestamp": "2026-01-02T02:04:05Z", "managedFields": [{"time": "2026-01-02T03:04:05Z"}]},
                "spec": {"at": "2026-01-02T03:04:05Z"}}),
            &[],
        );
        rejects(
            json!({"at": "soon"}),
            "parsing time \"soon\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"soon\" as \"2006\"",
        );
        rejects(
            json!({"at": 5}),
            "json: cannot unmarshal number into Go value of type string",
        );
    }

    #[test]
    fn numbers_fit_their_width() {
        check(
            json!({"spec": {"heartbeatDeadlineSeconds": 2_147_483_647, "large": i64::MIN, "ratio": 2.0, "port": 80}}),
            &json!({"spec": {"heartbeatDeadlineSeconds": 2_147_483_647, "large": i64::MIN, "ratio": 2, "port": 80}}),
            &[],
        );
        for (number, text) in [
            (json!(2_147_483_648_u64), "2147483648"),
            (json!(1.5), "1.5"),
            (json!(1e3), "1000.0"),
        ] {
            rejects(
                json!({ "heartbeatDeadlineSeconds": number }),
                &format!(
                    "json: cannot unmarshal number {text} into Go struct field EvictionRequestSpec.spec.heartbeatDeadlineSeconds of type int32"
                ),
            );
        }
        rejects(
            json!({"large": 9_223_372_036_854_775_808_u64}),
            "json: cannot unmarshal number 9223372036854775808 into Go struct field EvictionRequestSpec.spec.large of type int64",
        );
    }

    #[test]
    fn errors_about_types_name_the_field_and_both_types() {
        rejects(
            json!({"heartbeatDeadlineSeconds": "1"}),
            "json: cannot unmarshal string into Go struct field EvictionRequestSpec.spec.heartbeatDeadlineSeconds of type int32",
        );
        rejects(
            json!({"type": 1}),
            "json: cannot unmarshal number into Go struct field EvictionRequestSpec.spec.type of type string",
        );
        rejects(
            json!({"enabled": {}}),
            "json: cannot unmarshal object into Go struct field EvictionRequestSpec.spec.enabled of type bool",
        );
        rejects(
            json!({"must": {}}),
            "json: cannot unmarshal object into Go struct field EvictionRequestSpec.spec.must of type []string",
        );
        rejects(
            json!({"labels": []}),
            "json: cannot unmarshal array into Go struct field EvictionRequestSpec.spec.labels of type map[string]string",
        );
        rejects(
            json!({"labels": {"a": true}}),
            "json: cannot unmarshal bool into Go struct field EvictionRequestSpec.spec.labels of type string",
        );
        rejects(
            json!({"target": "x"}),
            "json: cannot unmarshal string into Go struct field EvictionRequestSpec.spec.target of type v1alpha3.Target",
        );
        rejects(
            json!({"requesters": [{"name": "a"}, {"weight": "1"}]}),
            "json: cannot unmarshal string into Go struct field Requester.spec.requesters.weight of type int32",
        );
        rejects(
            json!([]),
            "json: cannot unmarshal array into Go struct field EvictionRequest.spec of type v1alpha3.EvictionRequestSpec",
        );
        let mut list = json!([]);
        assert_eq!(
            schema().conform(&mut list).unwrap_err().to_string(),
            "json: cannot unmarshal array into Go value of type v1alpha3.EvictionRequest"
        );
        let mut object = json!({"metadata": {"labels": {"a": 1}}});
        assert_eq!(
            schema().conform(&mut object).unwrap_err().to_string(),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string"
        );
    }
}
