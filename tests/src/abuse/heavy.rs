//! Requests of a few kilobytes or megabytes that once cost a server hundreds of megabytes, or seconds of a processor.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::load::Call;
use crate::objects::{ROOT, eviction_request};

/// A UID that no pod has.
const UID: &str = "00000000-0000-4000-ab05-00000000dead";
const JSON_PATCH: &str = "application/json-patch+json";

fn owner(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "name": format!("n{number}"), "uid": format!("{number:08x}"),
        "controller": true,
    })
}

/// A request for a pod, with another member of its metadata.
fn request(namespace: &str, member: &str, value: Value) -> Bytes {
    let mut object = eviction_request(namespace, "missing", UID);
    if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.insert(member.to_owned(), value);
    }
    Bytes::from(object.to_string())
}

fn filled(count: usize, one: impl Fn(usize) -> Value) -> Value {
    Value::Array((0..count).map(one).collect())
}

/// Everything once, for requests in a namespace of which one, named `existing`, is there. All are refused, but the last ones,
/// which change nothing or are dry runs.
#[must_use]
pub fn calls(namespace: &str, existing: &str) -> Vec<Call> {
    let collection = format!("{ROOT}/namespaces/{namespace}/evictionrequests");
    let post = |body| Call::post(collection.clone(), body);
    let maintenances = format!("{ROOT}/nodemaintenances");
    let terms = filled(
        30_000,
        |number| json!({ "matchExpressions": [{ "key": format!("-{number}"), "operator": "In", "values": [] }] }),
    );
    let labels: serde_json::Map<String, Value> = (0..100_000)
        .map(|number| (format!("-bad/{number}/-"), json!("x")))
        .collect();
    let moves = filled(
        40_000,
        |_| json!({ "op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/a" }),
    );
    let with_owners = |count| request(namespace, "ownerReferences", filled(count, owner));
    let finalizers = filled(60_000, |number| json!(format!("bad finalizer {number}")));
    let maintenance = |terms: Value| {
        json!({
            "apiVersion": "coordination.k8s.io/v1alpha3", "kind": "NodeMaintenance", "metadata": { "name": "abuse" },
            "spec": { "nodeSelector": { "nodeSelectorTerms": terms } },
        })
        .to_string()
    };
    let any_node =
        json!([{ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "Exists" }] }]);
    vec![
        // Errors that repeat their input.
        post(with_owners(1_500)),
        Call {
            path: format!("{collection}?dryRun=All"),
            ..post(with_owners(1_500))
        },
        post(request(namespace, "labels", labels.into())),
        post(request(namespace, "finalizers", finalizers)),
        Call::post(maintenances.clone(), Bytes::from(maintenance(terms))),
        // Checks that are not linear in their input.
        post(with_owners(10_000)),
        Call {
            method: Method::PATCH,
            path: format!("{collection}/{existing}"),
            content_type: Some(JSON_PATCH),
            body: Bytes::from(moves.to_string()),
        },
        // Another pod's name, and a foreign finalizer.
        post(request(namespace, "name", json!("11111111-0000-4000-ab05-00000000dead"))),
        post(request(namespace, "finalizers", json!(["foreign.example.com/never"]))),
        // A status that declares what nobody may, and one that grows.
        Call {
            method: Method::PATCH,
            path: format!("{collection}/{existing}/status"),
            content_type: Some(crate::calls::MERGE_PATCH),
            body: Bytes::from(
                json!({ "status": { "conditions": [{
                    "type": "example.com/Grows", "status": "True", "reason": "R", "message": "x".repeat(30_000),
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }] } })
                .to_string(),
            ),
        },
        // What a dry run tells about nodes, and backups that remove those of others.
        Call::post(format!("{maintenances}?dryRun=All"), Bytes::from(maintenance(any_node))),
        Call::post("/storage/backups?keep=-1", Bytes::new()),
        Call::get(format!("{collection}?labelSelector={}", "k%2C".repeat(3_000))),
    ]
}
