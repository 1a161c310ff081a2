//! Facts about pods that decide how a drain treats them. Pure functions over objects.

use drydock_proto::kinds::nodemaintenance::{DRAIN_TAINT, DRAIN_TAINT_EFFECT};
use k8s_openapi::api::core::v1::{Pod, Toleration};

/// The annotation of a mirror pod, which represents a static pod in the API.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// Annotations by which other programs are told to leave a pod alone, with the value that says so.
const HABITS: [(&str, &str); 3] = [
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ("karpenter.sh/do-not-disrupt", "true"),
    ("karpenter.sh/do-not-evict", "true"),
];

/// The name of a pod.
#[must_use]
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The namespace of a pod.
#[must_use]
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// The UID of a pod.
#[must_use]
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// `NAMESPACE/NAME`.
#[must_use]
pub fn full_name(pod: &Pod) -> String {
    format!("{}/{}", namespace(pod), name(pod))
}

/// The node that a pod runs on; empty before it is scheduled.
#[must_use]
pub fn node(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

/// The phase of a pod.
#[must_use]
pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Unknown")
}

/// The value of an annotation.
#[must_use]
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Kind, name and UID of the owner that controls a pod.
#[must_use]
pub fn controller(pod: &Pod) -> Option<(&str, &str, &str)> {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some((&owner.kind, &owner.name, &owner.uid))
}

/// What a person would scale, as `kubectl` names it: `deployment/web`. A `ReplicaSet` with the hash of a Deployment in its
/// name stands for the Deployment.
#[must_use]
pub fn workload(pod: &Pod) -> Option<String> {
    let (kind, name, _) = controller(pod)?;
    if kind == "Node" {
        return None;
    }
    let labels = pod.metadata.labels.as_ref();
    let hash = labels.and_then(|labels| labels.get("pod-template-hash"));
    if kind == "ReplicaSet"
        && let Some(hash) = hash
        && let Some(deployment) = name.strip_suffix(hash.as_str())
        && let Some(deployment) = deployment.strip_suffix('-')
    {
        return Some(format!("deployment/{deployment}"));
    }
    Some(format!("{}/{name}", kind.to_lowercase()))
}

/// Whether `kubectl scale` works for the kind of a workload.
#[must_use]
pub fn is_scalable(workload: &str) -> bool {
    ["deployment/", "replicaset/", "statefulset/"]
        .iter()
        .any(|kind| workload.starts_with(kind))
}

/// Whether it represents a static pod, which only the kubelet of its node can end.
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, MIRROR_ANNOTATION).is_some() || controller(pod).is_some_and(|(kind, ..)| kind == "Node")
}

/// Whether a DaemonSet controls it.
#[must_use]
pub fn is_daemon_set_pod(pod: &Pod) -> bool {
    controller(pod).is_some_and(|(kind, ..)| kind == "DaemonSet")
}

/// Whether a DaemonSet controls it and would create it again on a drained node. Drains leave such pods alone.
#[must_use]
pub fn is_tolerant_daemon_set_pod(pod: &Pod) -> bool {
    is_daemon_set_pod(pod) && !is_static(pod) && tolerations(pod).iter().any(tolerates_drain_taint)
}

/// Whether it tolerates every taint, so that the scheduler places its successor also on a cordoned node.
#[must_use]
pub fn tolerates_everything(pod: &Pod) -> bool {
    tolerations(pod).iter().any(|toleration| {
        toleration.operator.as_deref() == Some("Exists")
            && toleration.key.as_deref().unwrap_or_default().is_empty()
            && toleration.effect.as_deref().unwrap_or_default().is_empty()
    })
}

/// Whether it has ended: phase Succeeded or Failed.
#[must_use]
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether it has to leave before its node counts as drained.
#[must_use]
pub fn has_to_leave(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_static(pod) && !is_tolerant_daemon_set_pod(pod)
}

/// The annotations that tell other programs to leave the pod alone, as `KEY=VALUE`. Drydock shows them, and does not act
/// on them.
#[must_use]
pub fn habits(pod: &Pod) -> Vec<String> {
    HABITS
        .iter()
        .filter(|(key, value)| annotation(pod, key) == Some(value))
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}

fn tolerations(pod: &Pod) -> &[Toleration] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default()
}

/// Whether the toleration tolerates the drain taint, by the rules of the scheduler. The taint has no value.
fn tolerates_drain_taint(toleration: &Toleration) -> bool {
    let is_empty = |member: &Option<String>| member.as_deref().is_none_or(str::is_empty);
    let is = |member: &Option<String>, text: &str| member.as_deref() == Some(text);
    let is_effect = is_empty(&toleration.effect) || is(&toleration.effect, DRAIN_TAINT_EFFECT);
    let is_key = is_empty(&toleration.key) || is(&toleration.key, DRAIN_TAINT);
    let is_value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => !is_empty(&toleration.key) && is_empty(&toleration.value),
        Some(_) => false,
    };
    is_effect && is_key && is_value
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(overlay: &Value) -> Pod {
        serde_json::from_value(overlay.clone()).unwrap()
    }

    fn owned(kind: &str, name: &str) -> Value {
        json!([{"apiVersion": "v1", "kind": kind, "name": name, "uid": "1", "controller": true}])
    }

    #[test]
    fn workload_of_a_replica_set_is_its_deployment() {
        let labels = json!({"pod-template-hash": "5d4f"});
        for (kind, name, labels, expected) in [
            ("ReplicaSet", "web-5d4f", &labels, Some("deployment/web")),
            ("ReplicaSet", "web", &labels, Some("replicaset/web")),
            ("ReplicaSet", "web-5d4f", &json!({}), Some("replicaset/web-5d4f")),
            ("StatefulSet", "db", &json!({}), Some("statefulset/db")),
            ("Node", "node-a", &json!({}), None),
        ] {
            let pod = pod(&json!({"metadata": {"labels": labels, "ownerReferences": owned(kind, name)}}));
            assert_eq!(workload(&pod).as_deref(), expected);
        }
        assert!(is_scalable("deployment/web") && !is_scalable("job/once"));
    }

    #[test]
    fn only_pods_that_can_go_for_good_have_to_leave() {
        let daemon = owned("DaemonSet", "agent");
        let tolerant = json!([{"operator": "Exists"}]);
        for (overlay, expected) in [
            (json!({}), true),
            (json!({"status": {"phase": "Succeeded"}}), false),
            (
                json!({"metadata": {"annotations": {MIRROR_ANNOTATION: "x"}}}),
                false,
            ),
            (
                json!({"metadata": {"ownerReferences": owned("Node", "a")}}),
                false,
            ),
            (json!({"metadata": {"ownerReferences": daemon}}), true),
            (
                json!({"metadata": {"ownerReferences": daemon}, "spec": {"tolerations": tolerant, "containers": []}}),
                false,
            ),
            (
                json!({"metadata": {"ownerReferences": daemon}, "spec": {"containers": [], "tolerations": [
                    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]}}),
                true,
            ),
        ] {
            assert_eq!(has_to_leave(&pod(&overlay)), expected, "{overlay}");
        }
    }

    #[test]
    fn habits_are_shown_only_with_the_value_that_protects() {
        let key = HABITS[0].0;
        let with = |value: &str| pod(&json!({"metadata": {"annotations": {key: value}}}));
        assert_eq!(habits(&with("false")), [format!("{key}=false")]);
        assert!(habits(&with("true")).is_empty());
    }
}
