//! Conversions of every kind lose nothing: random objects of every version, to the hub, to every version, and back.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::fixtures::noon;
use crate::registry::endpoint::Endpoint;
use crate::registry::kinds::REGISTRATIONS;
use crate::registry::part::Part;
use crate::registry::registration::Registration;
use crate::registry::resource::Resource;

/// How many objects of each version are converted.
const OBJECTS: usize = 500;

const TEXTS: &[&str] = &[
    "a.example.com",
    "b.example.com",
    "deployment.apps.k8s.io",
    "acme.io/foo",
    "acme.io/foo_bar",
    "True",
    "False",
    "Allow",
    "Forbid",
    "Evicted",
    "Canceled",
    "Complete",
];

/// A random value that fits a schema. Optional members are there half of the time.
fn value(schema: &Value, random: &mut fastrand::Rng) -> Value {
    // An optional field has the types of its value and null.
    let type_ = schema["type"].get(0).unwrap_or(&schema["type"]);
    match type_.as_str() {
        Some("object") => {
            let required: Vec<&str> = strings(&schema["required"]);
            let mut object = Map::new();
            for (name, member) in schema["properties"].as_object().into_iter().flatten() {
                if required.contains(&name.as_str()) || random.bool() {
                    object.insert(name.clone(), value(member, random));
                }
            }
            Value::Object(object)
        }
        Some("array") => list(schema, random),
        Some("integer") => json!(random.i32(0..3)),
        Some("boolean") => json!(random.bool()),
        _ if schema["format"] == "date-time" => {
            json!(format!("2026-06-01T{:02}:00:00Z", random.u8(0..24)))
        }
        _ => json!(random.choice(TEXTS).unwrap()),
    }
}

/// A random list; the items of a set or a list map are unique.
fn list(schema: &Value, random: &mut fastrand::Rng) -> Value {
    let keys = strings(&schema["x-kubernetes-list-map-keys"]);
    let is_set = schema["x-kubernetes-list-type"] == "set";
    let mut items: Vec<Value> = Vec::new();
    for _ in 0..random.usize(1..4) {
        let mut item = value(&schema["items"], random);
        for key in &keys {
            if item[*key].is_null() {
                item[*key] = value(&schema["items"]["properties"][*key], random);
            }
        }
        let is_same = |other: &Value| {
            if keys.is_empty() {
                is_set && *other == item
            } else {
                keys.iter().all(|key| other[*key] == item[*key])
            }
        };
        if !items.iter().any(is_same) {
            items.push(item);
        }
    }
    Value::Array(items)
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn object(endpoint: &Endpoint, registration: &Registration, n: usize, random: &mut fastrand::Rng) -> Value {
    let kind = registration.kind();
    let face = kind.faces.iter().find(|face| {
        face.version == endpoint.face().version
            && face.alias.map_or(kind.plural, |alias| alias.names.plural) == endpoint.face().names.plural
    });
    let face = face.unwrap();
    let mut object = json!({
        "apiVersion": &*endpoint.face().api_version,
        "kind": endpoint.kind(),
        "metadata": {
            "name": (registration.sample().name)(n),
            "uid": format!("7c9e6679-7425-40de-944b-e07fc1f90a{n:02}"),
            "finalizers": ["example.com/finalizer", "foregroundDeletion"],
            "annotations": {"example.com/a": "b"},
        },
        "spec": value(&(face.spec)(), random),
        "status": value(&(face.status)(), random),
    });
    endpoint.conform(&mut object).unwrap();
    object
}

fn resource(registration: &Registration) -> Arc<Resource> {
    Arc::new(registration.resource(&Arc::default()).unwrap())
}

/// Every hub is the same after a visit to any version.
#[test]
fn every_hub_survives_every_version() {
    for registration in REGISTRATIONS {
        let resource = resource(registration);
        let stored = Endpoint::stored(&resource);
        let mut random = fastrand::Rng::with_seed(7);
        for n in 0..OBJECTS {
            let mut hub = object(&stored, registration, n % 100, &mut random);
            hub["spec"] = merged((registration.sample().spec)(n % 100), &hub["spec"]);
            stored.conform(&mut hub).unwrap();
            for endpoint in Endpoint::all(&resource) {
                let shown = endpoint.from_hub(hub.clone()).unwrap();
                let unchanged = shown.clone();
                let back = endpoint.into_hub(shown, Some(&hub), noon()).unwrap();
                assert_eq!(back, hub, "{} shows it as {unchanged}", endpoint.kind());
                let mut conforming = unchanged.clone();
                let unknown = endpoint.conform(&mut conforming).unwrap();
                assert_eq!(
                    (unknown, &conforming),
                    (vec![], &unchanged),
                    "{}",
                    endpoint.kind()
                );
            }
        }
    }
}

fn merged(mut base: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().into_iter().flatten() {
        if base[name].is_null() {
            base[name] = value.clone();
        }
    }
    base
}

/// Whether nothing of `part` is missing in `whole`, which may have more members and items: what the server derives. False and absent
/// are the same.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(name, part)| contains(whole.get(name).unwrap_or(&json!(false)), part)),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() >= part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

/// Every object of a version that its rules accept is the same after a visit to the hub and to every version.
#[test]
fn every_accepted_object_survives_the_hub_and_every_version() {
    for registration in REGISTRATIONS {
        let resource = resource(registration);
        for endpoint in Endpoint::all(&resource) {
            let mut random = fastrand::Rng::with_seed(8);
            let mut accepted = 0;
            for n in 0..OBJECTS {
                let base = (registration.sample().spec)(n % 100);
                let mut hub = json!({"apiVersion": "", "kind": "", "metadata": {"name": (registration.sample().name)(n % 100)},
                    "spec": base});
                resource.storage_face().schema.default(&mut hub);
                let valid = endpoint.from_hub(hub).unwrap();
                let mut object = object(&endpoint, registration, n % 100, &mut random);
                object["metadata"]["name"] = valid["metadata"]["name"].clone();
                object["spec"] = merged(valid["spec"].clone(), &object["spec"]);
                endpoint.conform(&mut object).unwrap();
                let strategy = &resource.strategy;
                // What a new object may not have is not converted.
                for error in &strategy.validate_face(endpoint.face(), Part::Main, &object, None) {
                    if let Some(member) = error.field().strip_prefix("spec.") {
                        object["spec"].as_object_mut().unwrap().remove(member);
                    }
                }
                let errors = strategy.validate_face(endpoint.face(), Part::Status, &object, None);
                if !errors.is_empty() {
                    continue;
                }
                accepted += 1;
                let hub = endpoint.into_hub(object.clone(), None, noon()).unwrap();
                for other in Endpoint::all(&resource) {
                    let shown = other.from_hub(hub.clone()).unwrap();
                    let again = other.into_hub(shown, Some(&hub), noon()).unwrap();
                    let back = endpoint.from_hub(again).unwrap();
                    assert!(
                        contains(&back, &object),
                        "{} by way of {}:\n{object}\n{hub}\n{back}",
                        endpoint.kind(),
                        other.kind()
                    );
                }
            }
            assert!(accepted > OBJECTS / 20, "{} {accepted}", endpoint.kind());
        }
    }
}
