//! Objects of our kinds for tests.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The served group-version.
pub const GROUP_VERSION: &str = "coordination.k8s.io/v1alpha3";
/// Its path.
pub const ROOT: &str = "/apis/coordination.k8s.io/v1alpha3";

/// A request for the pod `name` with that UID.
#[must_use]
pub fn eviction_request(namespace: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": GROUP_VERSION,
        "kind": "EvictionRequest",
        "metadata": { "name": uid, "namespace": namespace },
        "spec": {
            "target": { "pod": { "name": name, "uid": uid } },
            "requesters": [{ "name": "suite.example.com" }],
        },
    })
}

/// The path of a namespace's requests.
#[must_use]
pub fn requests_of(namespace: &str) -> String {
    format!("{ROOT}/namespaces/{namespace}/evictionrequests")
}

/// An idle maintenance of the nodes with this host name.
#[must_use]
pub fn idle_maintenance(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": GROUP_VERSION,
        "kind": "NodeMaintenance",
        "metadata": { "name": name },
        "spec": { "nodeSelector": { "nodeSelectorTerms": [{
            "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }],
        }] } },
    })
}

/// An interceptor for pods with this label.
#[must_use]
pub fn interceptor(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": GROUP_VERSION,
        "kind": "EvictionInterceptor",
        "metadata": { "name": name },
        "spec": {
            "interceptorName": name,
            "podSelector": { "matchLabels": { "app": app } },
        },
    })
}

/// A condition of an object's status.
///
/// # Errors
/// There is none of that type.
pub fn condition<'a>(object: &'a Value, type_: &str) -> Result<&'a Value> {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.get("type").is_some_and(|it| it == type_))
        .with_context(|| format!("no condition {type_}: {object}"))
}

/// Whether a condition is True.
#[must_use]
pub fn is_true(object: &Value, type_: &str) -> bool {
    let status = condition(object, type_).ok().and_then(|it| it.get("status"));
    status.is_some_and(|status| status == "True")
}

/// Text that compresses like prose with numbers, different for each object.
#[must_use]
pub fn filling(object: u64, bytes: usize) -> String {
    let words = (1..).flat_map(|word: u64| {
        let salt = (object + 1)
            .wrapping_mul(word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 40;
        format!("node {salt:06x} is drained for maintenance; ").into_bytes()
    });
    words.take(bytes).map(char::from).collect()
}
