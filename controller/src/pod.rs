//! A partial Pod type: only the fields that controllers read, among them fields that the typed client does not know.

use std::collections::BTreeMap;

use drydock_machinery::interceptors::declares_interceptors;
use drydock_proto::kinds::nodemaintenance::{DRAIN_TAINT, DRAIN_TAINT_EFFECT};
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The annotation of a mirror pod, which represents a static pod in the API.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// The annotation of pods whose eviction takes time, for the descheduler.
pub const REQUEST_EVICT_ONLY: &str = "descheduler.alpha.kubernetes.io/request-evict-only";
/// The annotation of pods whose eviction is in progress, for the descheduler.
pub const EVICTION_IN_PROGRESS: &str = "descheduler.alpha.kubernetes.io/eviction-in-progress";

/// The taint of nodes with `spec.unschedulable`.
const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// A pod, reduced to the fields that controllers read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "SentPod")]
pub struct Pod {
    /// Standard object metadata: what controllers read.
    pub metadata: ObjectMeta,
    /// The spec.
    pub spec: PodSpec,
    /// The status.
    pub status: PodStatus,
    /// Whether whoever created it named its node, so that no scheduler placed it.
    pub is_placed_by_creator: bool,
}

/// A pod as sent: what is read of it. Everything else is skipped without being decoded.
#[derive(Deserialize)]
struct SentPod {
    #[serde(default)]
    metadata: SentMetadata,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SentMetadata {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    managed_fields: Option<Vec<SentFields>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    uid: Option<String>,
}

/// An entry of the managed fields, of which only the name of the node matters.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SentFields {
    #[serde(default)]
    fields_v1: OwnedFields,
}

/// A field set.
#[derive(Default, Deserialize)]
pub(crate) struct OwnedFields {
    #[serde(rename = "f:spec", default)]
    spec: OwnedSpecFields,
}

#[derive(Default, Deserialize)]
struct OwnedSpecFields {
    #[serde(rename = "f:nodeName")]
    node_name: Option<IgnoredAny>,
}

impl OwnedFields {
    /// Whether the name of the node is among the fields. Whoever writes it owns it. A scheduler binds the pod instead, and
    /// owns no field.
    pub(crate) const fn has_node_name(&self) -> bool {
        self.spec.node_name.is_some()
    }
}

impl From<SentPod> for Pod {
    fn from(sent: SentPod) -> Self {
        let SentPod {
            metadata,
            mut spec,
            mut status,
        } = sent;
        let is_placed_by_creator = metadata
            .managed_fields
            .iter()
            .flatten()
            .any(|entry| entry.fields_v1.has_node_name());
        spec.tolerations
            .retain(|toleration| tolerates_drain_taint(toleration) || tolerates_unschedulable(toleration));
        spec.tolerations.shrink_to_fit();
        status.conditions.retain(PodCondition::is_ready);
        status.conditions.shrink_to_fit();
        Self {
            metadata: metadata.trimmed(),
            spec,
            status,
            is_placed_by_creator,
        }
    }
}

impl SentMetadata {
    /// What controllers read. All pods of a large cluster fit into memory.
    fn trimmed(self) -> ObjectMeta {
        let annotations: BTreeMap<_, _> = self
            .annotations
            .into_iter()
            .flatten()
            .filter(|(key, _)| is_read(key))
            .collect();
        let owners = self.owner_references.into_iter().flatten();
        let owners: Vec<_> = owners.filter(|owner| owner.controller == Some(true)).collect();
        ObjectMeta {
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            creation_timestamp: self.creation_timestamp,
            deletion_timestamp: self.deletion_timestamp,
            finalizers: self.finalizers,
            labels: self.labels,
            name: self.name,
            namespace: self.namespace,
            owner_references: Some(owners).filter(|owners| !owners.is_empty()),
            resource_version: self.resource_version,
            uid: self.uid,
            ..ObjectMeta::default()
        }
    }
}

/// The fields of `spec` that controllers read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// The node it is bound to.
    #[serde(default)]
    pub node_name: Option<String>,
    /// The resolved priority; absent is zero.
    #[serde(default)]
    pub priority: Option<i32>,
    /// The tolerations: those of the drain taint and of unschedulable nodes.
    #[serde(default)]
    pub tolerations: Vec<Toleration>,
    /// The termination grace period.
    #[serde(default)]
    pub termination_grace_period_seconds: Option<i64>,
    /// Interceptors in order, under the name of the design's second revision.
    #[serde(default)]
    pub eviction_interceptors: Vec<InterceptorReference>,
    /// Interceptors in order, under the name of Kubernetes 1.37.
    #[serde(default)]
    pub eviction_responders: Vec<InterceptorReference>,
    /// Set for pods of a Workload.
    #[serde(default)]
    pub workload_ref: Option<serde_json::Value>,
    /// Set for pods of a `PodGroup`.
    #[serde(default)]
    pub scheduling_group: Option<serde_json::Value>,
}

/// An interceptor that the pod's spec names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct InterceptorReference {
    /// The name.
    #[serde(default)]
    pub name: String,
}

/// The fields of `status` that controllers read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct PodStatus {
    /// Pending, Running, Succeeded, Failed or Unknown.
    #[serde(default)]
    pub phase: Option<String>,
    /// The condition Ready, while it is True.
    #[serde(default)]
    pub conditions: Vec<PodCondition>,
}

/// A condition of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct PodCondition {
    /// The type.
    #[serde(rename = "type", default)]
    pub type_: String,
    /// True, False or Unknown.
    #[serde(default)]
    pub status: String,
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

    /// Whether all containers ended without a restart: phase Succeeded or Failed.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// Whether its phase is Pending. Budgets do not protect such pods.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.status.phase.as_deref() == Some("Pending")
    }

    /// Whether its condition Ready is True.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(PodCondition::is_ready)
    }

    /// Whether it is being deleted.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it is a mirror pod. Only the node's kubelet can end the static pod behind it.
    ///
    /// Its owner does not matter: whoever creates a pod chooses its owners. The annotation can be set only together with a node
    /// and never changed, and a kubelet deletes mirror pods that mirror nothing.
    #[must_use]
    pub fn is_mirror(&self) -> bool {
        self.annotations().contains_key(MIRROR_ANNOTATION)
    }

    /// Whether a DaemonSet controls it.
    #[must_use]
    pub fn is_daemon_set_pod(&self) -> bool {
        self.controller_owner()
            .is_some_and(|(kind, _)| kind == "DaemonSet")
    }

    /// Whether a DaemonSet controls it and creates it again although the node has the drain taint. Such pods are left
    /// alone by maintenances.
    #[must_use]
    pub fn is_tolerant_daemon_set_pod(&self) -> bool {
        self.is_daemon_set_pod()
            && !self.is_mirror()
            && self.spec.tolerations.iter().any(tolerates_drain_taint)
    }

    /// Whether its controller may create it again on its node, although that is unschedulable: the pod names its node,
    /// or tolerates that it is unschedulable. Pods of DaemonSets are kept away by the drain taint.
    #[must_use]
    pub fn may_come_back(&self) -> bool {
        self.controller_owner().is_some()
            && !self.is_mirror()
            && !self.is_daemon_set_pod()
            && (self.is_placed_by_creator || self.spec.tolerations.iter().any(tolerates_unschedulable))
    }

    /// Kind and name of the owner that controls it.
    #[must_use]
    pub fn controller_owner(&self) -> Option<(&str, &str)> {
        self.controller_reference()
            .map(|owner| (owner.kind.as_str(), owner.name.as_str()))
    }

    /// The reference to the owner that controls it.
    #[must_use]
    pub fn controller_reference(&self) -> Option<&OwnerReference> {
        self.metadata
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true))
    }

    /// Whether it belongs to a Workload or `PodGroup`, whose pods must not be evicted one by one.
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

impl PodCondition {
    fn is_ready(&self) -> bool {
        self.type_ == "Ready" && self.status == "True"
    }
}

/// Whether controllers read the annotation with this key.
fn is_read(key: &str) -> bool {
    [MIRROR_ANNOTATION, REQUEST_EVICT_ONLY, EVICTION_IN_PROGRESS].contains(&key) || declares_interceptors(key)
}

/// Whether the toleration tolerates the drain taint.
fn tolerates_drain_taint(toleration: &Toleration) -> bool {
    tolerates(toleration, DRAIN_TAINT, DRAIN_TAINT_EFFECT)
}

/// Whether the toleration tolerates the taint of unschedulable nodes.
fn tolerates_unschedulable(toleration: &Toleration) -> bool {
    tolerates(toleration, UNSCHEDULABLE_TAINT, "NoSchedule")
}

/// Whether the toleration tolerates a taint without a value, by the rules of the scheduler.
fn tolerates(toleration: &Toleration, key: &str, effect: &str) -> bool {
    let is_set = |member: &Option<String>| member.as_deref().is_some_and(|text| !text.is_empty());
    let is_effect = !is_set(&toleration.effect) || toleration.effect.as_deref() == Some(effect);
    let is_key = !is_set(&toleration.key) || toleration.key.as_deref() == Some(key);
    let is_value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        // Without a key, only `Exists` is valid.
        None | Some("" | "Equal") => is_set(&toleration.key) && !is_set(&toleration.value),
        // `Lt` and `Gt` compare numbers.
        Some(_) => false,
    };
    is_effect && is_key && is_value
}

#[cfg(test)]
mod tests {
    use super::Pod;
    use crate::fixtures::pod;
    use serde_json::json;

    #[test]
    fn decoding_keeps_the_fields_that_controllers_read() {
        let trimmed = pod(&json!({
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
        assert!(trimmed.metadata.managed_fields.is_none());
        assert_eq!(trimmed.annotations().len(), 2);
        assert!(trimmed.is_mirror() && trimmed.is_daemon_set_pod() && trimmed.is_grouped());
        assert_eq!(trimmed.spec.eviction_responders[0].name, "a.example.com");
        assert_eq!(trimmed.labels()["app"], "web");
    }

    #[test]
    fn a_pod_is_static_by_its_annotation_whatever_its_owner_is() {
        let node = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "3", "controller": true}]);
        let annotated = json!({"kubernetes.io/config.mirror": ""});
        for (owners, annotations, expected) in [
            (node.clone(), json!({}), false),
            (node, annotated.clone(), true),
            (json!([]), annotated, true),
        ] {
            let pod = pod(&json!({"metadata": {"ownerReferences": owners, "annotations": annotations}}));
            assert_eq!(pod.is_mirror(), expected, "{pod:?}");
        }
    }

    #[test]
    fn pods_come_back_when_no_scheduler_places_them_or_they_tolerate_cordons() {
        let owner = |kind: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "w", "uid": "2", "controller": true}]);
        let named =
            json!([{"manager": "m", "operation": "Update", "fieldsV1": {"f:spec": {"f:nodeName": {}}}}]);
        let bound =
            json!([{"manager": "m", "operation": "Update", "fieldsV1": {"f:spec": {"f:containers": {}}}}]);
        let cordon = json!([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]);
        for (kind, managed, tolerations, expected) in [
            ("ReplicaSet", &named, json!([]), true),
            ("ReplicaSet", &bound, json!([]), false),
            ("ReplicaSet", &bound, json!([{"operator": "Exists"}]), true),
            ("ReplicaSet", &bound, cordon, true),
            ("DaemonSet", &named, json!([{"operator": "Exists"}]), false),
        ] {
            let pod = pod(&json!({
                "metadata": {"managedFields": managed, "ownerReferences": owner(kind)},
                "spec": {"tolerations": tolerations},
            }));
            assert_eq!(pod.may_come_back(), expected, "{kind} {managed} {tolerations}");
        }
        let alone = pod(&json!({"metadata": {"managedFields": named}}));
        assert!(!alone.may_come_back(), "nobody creates it again");
    }

    fn tolerant(toleration: &serde_json::Value) -> Pod {
        let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "2", "controller": true});
        pod(&json!({"metadata": {"ownerReferences": [owner]}, "spec": {"tolerations": [toleration]}}))
    }

    #[test]
    fn drain_taint_is_tolerated_by_the_rules_of_the_scheduler() {
        let key = "nodemaintenance.coordination.k8s.io/drain";
        for (toleration, expected) in [
            (json!({"operator": "Exists"}), true),
            (json!({"operator": "Exists", "effect": "NoSchedule"}), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"operator": "Exists", "key": key}), true),
            (json!({"operator": "Exists", "key": key, "effect": ""}), true),
            (
                json!({"operator": "Exists", "key": "node.kubernetes.io/unschedulable"}),
                false,
            ),
            (json!({"key": key}), true),
            (
                json!({"key": key, "operator": "Equal", "value": "", "effect": "NoSchedule"}),
                true,
            ),
            (json!({"key": key, "operator": "Equal", "value": "yes"}), false),
            (json!({"key": key, "operator": "Gt", "value": "1"}), false),
            (json!({"operator": "Equal"}), false),
            (json!({}), false),
        ] {
            let pod = tolerant(&toleration);
            assert_eq!(pod.is_tolerant_daemon_set_pod(), expected, "{toleration}");
            let is_kept = expected || toleration["key"] == "node.kubernetes.io/unschedulable";
            assert_eq!(pod.spec.tolerations.len(), usize::from(is_kept));
        }
        let mut other = tolerant(&json!({"operator": "Exists"}));
        other.metadata.owner_references = None;
        assert!(!other.is_tolerant_daemon_set_pod());
    }
}
