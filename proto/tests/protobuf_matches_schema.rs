//! The protobuf definitions and the JSON schemas describe the same fields: each schema property of a kind is a field
//! of its message, with a type that fits, and no message has a field number twice.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::similar_names,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;

use drydock_proto::kinds::KINDS;
use serde_json::Value;

const DEFINITIONS: &str = include_str!("../proto/coordination/v1alpha3/generated.proto");

/// Message → field → (repeated, type).
type Messages = BTreeMap<String, BTreeMap<String, (bool, String)>>;

fn messages() -> Messages {
    let mut found = Messages::new();
    let mut current = String::new();
    let mut numbers = Vec::new();
    for line in DEFINITIONS.lines() {
        let words: Vec<&str> = line.trim().trim_end_matches(';').split_whitespace().collect();
        match words.as_slice() {
            ["message", name, "{"] => {
                (*name).clone_into(&mut current);
                numbers.clear();
                assert!(
                    found.insert(current.clone(), BTreeMap::new()).is_none(),
                    "{name} stands twice"
                );
            }
            [label @ ("optional" | "repeated"), type_, field, "=", number] => {
                assert!(
                    !numbers.contains(number),
                    "{current}.{field} reuses number {number}"
                );
                numbers.push(number);
                let fields = found.get_mut(&current).expect("a field stands in a message");
                fields.insert((*field).to_owned(), (*label == "repeated", (*type_).to_owned()));
            }
            _ => {}
        }
    }
    found
}

fn check(messages: &Messages, message: &str, schema: &Value) {
    let fields = &messages[message];
    let properties = schema["properties"]
        .as_object()
        .unwrap_or_else(|| panic!("{message} has no properties"));
    let names: Vec<&String> = properties.keys().collect();
    assert_eq!(names, fields.keys().collect::<Vec<_>>(), "{message}");
    for (name, property) in properties {
        let (repeated, type_) = &fields[name];
        let (is_list, item) = match property.get("items") {
            Some(items) => (true, items),
            None => (false, property),
        };
        assert_eq!(*repeated, is_list, "{message}.{name}");
        let types = item["type"].to_string();
        let format = item["format"].as_str().unwrap_or_default();
        match type_.as_str() {
            "string" => assert!(
                types.contains("string") || item.get("anyOf").is_some(),
                "{message}.{name}: {item}"
            ),
            "int32" | "int64" => assert_eq!(format, type_, "{message}.{name}"),
            foreign if foreign.starts_with('.') => {}
            own => {
                let item = item.get("anyOf").and_then(|any| any.get(0)).unwrap_or(item);
                check(messages, own, item);
            }
        }
    }
}

#[test]
fn every_field_of_a_kind_has_a_protobuf_field() {
    let messages = messages();
    for kind in KINDS {
        let face = kind.face("v1alpha3").expect("every kind has this face");
        check(&messages, &format!("{}Spec", kind.kind), &(face.spec)());
        check(&messages, &format!("{}Status", kind.kind), &(face.status)());
        assert!(messages.contains_key(kind.kind) && messages.contains_key(&format!("{}List", kind.kind)));
    }
}
