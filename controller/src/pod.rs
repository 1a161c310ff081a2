//! What do the controllers need to know of a pod? Less than a pod holds, and fields that older type definitions
//! drop, so they read this view of it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// The annotation that marks the API's image of a static pod.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// A pod of the host, seen through the fields that matter here.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Pod {
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Where it runs, and who speaks for it.
    #[serde(default)]
    pub spec: PodSpec,
    /// How it is.
    #[serde(default)]
    pub status: PodStatus,
}

/// The part of a pod's spec that matters here.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// The node it is bound to.
    #[serde(default)]
    pub node_name: Option<String>,
    /// The resolved priority; none is zero.
    #[serde(default)]
    pub priority: Option<i32>,
    /// How long it may take to end.
    #[serde(default)]
    pub termination_grace_period_seconds: Option<i64>,
    /// Interceptors in order, as the second revision of the design names them.
    #[serde(default)]
    pub eviction_interceptors: Vec<Named>,
    /// Interceptors in order, as Kubernetes 1.37 names them.
    #[serde(default)]
    pub eviction_responders: Vec<Named>,
    /// Set for pods of a workload.
    #[serde(default)]
    pub workload_ref: Option<serde_json::Value>,
    /// Set for pods that are scheduled as a group.
    #[serde(default)]
    pub scheduling_group: Option<serde_json::Value>,
}

/// Something with a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Named {
    /// The name.
    #[serde(default)]
    pub name: String,
}

/// The part of a pod's status that matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct PodStatus {
    /// Pending, Running, Succeeded, Failed or Unknown.
    #[serde(default)]
    pub phase: Option<String>,
}

impl k8s_openapi::Resource for Pod {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Pod";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "pods";
    type Scope = k8s_openapi::NamespaceResourceScope;
}

impl k8s_openapi::Metadata for Pod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

static NO_MAP: BTreeMap<String, String> = BTreeMap::new();

impl Pod {
    /// Drops what the controllers do not read, so that a cluster's pods fit into memory.
    pub fn trim(&mut self) {
        let metadata = std::mem::take(&mut self.metadata);
        self.metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            labels: metadata.labels,
            deletion_timestamp: metadata.deletion_timestamp,
            owner_references: metadata.owner_references.map(|owners| {
                owners
                    .into_iter()
                    .filter(|owner| owner.controller == Some(true))
                    .collect()
            }),
            annotations: metadata.annotations.map(|annotations| {
                annotations
                    .into_iter()
                    .filter(|(key, _)| {
                        key == MIRROR_ANNOTATION || crate::evictionrequest::interceptors::is_declaration(key)
                    })
                    .collect()
            }),
            ..ObjectMeta::default()
        };
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// The UID.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The labels.
    #[must_use]
    pub fn labels(&self) -> &BTreeMap<String, String> {
        self.metadata.labels.as_ref().unwrap_or(&NO_MAP)
    }

    /// The annotations.
    #[must_use]
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        self.metadata.annotations.as_ref().unwrap_or(&NO_MAP)
    }

    /// Whether it ended by itself: its containers are gone, the object stays.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// Whether it is being deleted.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it is the image of a static pod, which only its node can end.
    #[must_use]
    pub fn is_mirror(&self) -> bool {
        self.annotations().contains_key(MIRROR_ANNOTATION)
            || self.controller().is_some_and(|(kind, _)| kind == "Node")
    }

    /// Whether a DaemonSet owns it.
    #[must_use]
    pub fn is_daemon(&self) -> bool {
        self.controller().is_some_and(|(kind, _)| kind == "DaemonSet")
    }

    /// Kind and name of the controller that owns it.
    #[must_use]
    pub fn controller(&self) -> Option<(&str, &str)> {
        self.metadata
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true))
            .map(|owner| (owner.kind.as_str(), owner.name.as_str()))
    }

    /// Whether it belongs to a group of pods that may not be evicted one by one.
    #[must_use]
    pub fn is_grouped(&self) -> bool {
        self.spec
            .workload_ref
            .as_ref()
            .is_some_and(|value| !value.is_null())
            || self
                .spec
                .scheduling_group
                .as_ref()
                .is_some_and(|value| !value.is_null())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A pod from the JSON of its interesting fields, merged over a running pod `web` with UID `uid-1`.
    pub(crate) fn pod(overlay: &serde_json::Value) -> Pod {
        let mut value = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "uid-1"},
            "spec": {"nodeName": "one"},
            "status": {"phase": "Running"},
        });
        merge(&mut value, overlay);
        serde_json::from_value(value).unwrap()
    }

    fn merge(into: &mut serde_json::Value, from: &serde_json::Value) {
        match (into, from) {
            (serde_json::Value::Object(into), serde_json::Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key.clone()).or_insert(serde_json::Value::Null), value);
                }
            }
            (into, from) => *into = from.clone(),
        }
    }

    #[test]
    fn trimming_keeps_what_decisions_read() {
        let mut trimmed = pod(&json!({
            "metadata": {
                "labels": {"app": "web"},
                "managedFields": [{"manager": "kubelet"}],
                "annotations": {
                    "kubernetes.io/config.mirror": "x",
                    "big.example.com/blob": "y",
                    "interceptor.evictionrequest.coordination.k8s.io/priority_a.example.com": "5",
                },
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Thing", "name": "t", "uid": "1"},
                    {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "2", "controller": true},
                ],
            },
            "spec": {"evictionResponders": [{"name": "a.example.com"}], "workloadRef": {"name": "w"}},
        }));
        trimmed.trim();
        assert!(trimmed.metadata.managed_fields.is_none());
        assert_eq!(trimmed.annotations().len(), 2);
        assert!(trimmed.is_mirror() && trimmed.is_daemon() && trimmed.is_grouped());
        assert_eq!(trimmed.spec.eviction_responders[0].name, "a.example.com");
        assert_eq!(trimmed.labels()["app"], "web");
    }
}
