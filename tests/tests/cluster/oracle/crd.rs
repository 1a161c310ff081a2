//! A `CustomResourceDefinition` with the schema that the server publishes for one of its kinds.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::eventually;
use serde_json::{Map, Value, json};

use super::subject::Subject;
use super::{GROUP, VERSION};

/// Members of a published schema that a `CustomResourceDefinition` does not take.
const FOREIGN: [&str; 3] = [
    "x-kubernetes-group-version-kind",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-patch-strategy",
];

/// The deadline until kube-apiserver serves a new kind.
const ESTABLISHED: Duration = Duration::from_mins(1);

/// Creates the definition of a kind at the host, unless it exists, and waits until the host serves it.
///
/// # Errors
/// The server publishes no schema of the kind, or the host does not accept the definition.
pub(crate) async fn install(server: &Caller, host: &Caller, subject: Subject) -> Result<()> {
    let (kind, plural) = (subject.kind(), subject.plural());
    let document = server
        .get("/openapi/v3/apis/coordination.k8s.io/v1alpha3")
        .await?
        .expect(200)?;
    let definitions = &document["components"]["schemas"];
    let schema = definitions
        .as_object()
        .and_then(|all| all.values().find(|schema| is_kind(schema, kind)))
        .with_context(|| format!("no schema of {kind}"))?;
    let mut schema = structural(schema, definitions)?;
    for (member, form) in [
        ("apiVersion", "string"),
        ("kind", "string"),
        ("metadata", "object"),
    ] {
        schema["properties"][member] = json!({ "type": form });
    }
    restrict(&mut schema, subject)?;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{GROUP}"),
        },
        "spec": {
            "group": GROUP,
            "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase() },
            "scope": if subject.is_namespaced() { "Namespaced" } else { "Cluster" },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": schema },
                "subresources": { "status": {} },
            }],
        },
    });
    let response = host
        .post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &definition,
        )
        .await?;
    ensure!([201, 409].contains(&response.status), "{}", response.text());
    let path = format!("/apis/{GROUP}/{VERSION}/{plural}");
    eventually(&format!("{path} is served"), ESTABLISHED, async || {
        Ok((host.get(&path).await?.status == 200).then_some(()))
    })
    .await
}

/// Adds the rules about changes, and the limits of lists without which kube-apiserver estimates that they cost too much.
fn restrict(schema: &mut Value, subject: Subject) -> Result<()> {
    for (pointer, limit) in subject.limits() {
        let list = schema
            .pointer_mut(pointer)
            .with_context(|| format!("no {pointer}"))?;
        list["maxItems"] = json!(limit);
    }
    for (pointer, rule) in subject.transitions() {
        let part = schema
            .pointer_mut(pointer)
            .with_context(|| format!("no {pointer}"))?;
        let rules = part
            .as_object_mut()
            .context("a schema is an object")?
            .entry("x-kubernetes-validations")
            .or_insert_with(|| json!([]));
        let rules = rules.as_array_mut().context("rules are a list")?;
        rules.push(json!({ "rule": rule, "message": "the change is not allowed" }));
    }
    Ok(())
}

fn is_kind(schema: &Value, kind: &str) -> bool {
    let names = schema["x-kubernetes-group-version-kind"].as_array();
    names.into_iter().flatten().any(|name| name["kind"] == kind)
}

/// The schema without references.
fn structural(schema: &Value, definitions: &Value) -> Result<Value> {
    let Some(members) = schema.as_object() else {
        return Ok(schema.clone());
    };
    if let Some(reference) = reference(members) {
        let name = reference.rsplit('/').next().unwrap_or_default();
        let target = definitions.get(name).with_context(|| format!("no {reference}"))?;
        let mut resolved = structural(target, definitions)?;
        for name in ["description", "default"] {
            if let Some(value) = members.get(name) {
                resolved[name] = value.clone();
            }
        }
        return Ok(resolved);
    }
    let mut written = Map::new();
    for (name, value) in members {
        let value = match name.as_str() {
            "properties" => {
                let parts = value.as_object().context("properties")?;
                let parts = parts.iter().map(|(name, part)| {
                    let mut part = structural(part, definitions)?;
                    // Our validation rejects this text when it is empty. With the default the custom resource would accept it.
                    if part["default"] == "" && name != "message" {
                        part.as_object_mut().map(|part| part.remove("default"));
                    }
                    Ok((name.clone(), part))
                });
                Value::Object(parts.collect::<Result<_>>()?)
            }
            "items" | "additionalProperties" => structural(value, definitions)?,
            name if FOREIGN.contains(&name) => continue,
            _ => value.clone(),
        };
        written.insert(name.clone(), value);
    }
    Ok(Value::Object(written))
}

fn reference(schema: &Map<String, Value>) -> Option<&str> {
    let direct = schema.get("$ref");
    let combined = || schema.get("allOf")?.get(0)?.get("$ref");
    direct.or_else(combined)?.as_str()
}
