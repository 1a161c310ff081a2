//! What is written on a node? An annotation that says what is done to it and remembers how it was before, the
//! taint that keeps pods of DaemonSets away, and `spec.unschedulable`.

use drydock_proto::kinds::nodemaintenance::{DRAIN_TAINT, DrainPlanEntry, STATUS_ANNOTATION, Stage};
use k8s_openapi::api::core::v1::{Node, Taint};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::plan::{Key, NodeTarget};

/// The effect of the taint.
const EFFECT: &str = "NoSchedule";

/// What the annotation holds, as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// The maintenances that hold the node, the oldest first.
    #[serde(default)]
    pub maintenances: Vec<Participant>,
    /// Which pods are asked to leave. Never fewer than before.
    #[serde(default)]
    pub targets: Vec<DrainPlanEntry>,
    /// What the drain does or waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Whether the node took no new pods before the first maintenance came.
    #[serde(default)]
    pub was_unschedulable: bool,
    /// How far the drain has come. Never goes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Key>,
}

/// A maintenance that holds a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participant {
    /// Its name.
    pub name: String,
    /// Its stage.
    pub stage: Stage,
}

/// What we wrote on the node. An annotation that cannot be read counts as one that was not there.
#[must_use]
pub fn record(node: &Node) -> Option<NodeRecord> {
    let text = node.metadata.annotations.as_ref()?.get(STATUS_ANNOTATION)?;
    serde_json::from_str(text).ok()
}

/// Whether something of ours is written on the node. Cheaper than reading it.
#[must_use]
pub fn is_held(node: &Node) -> bool {
    node.metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(STATUS_ANNOTATION))
}

/// Whether our taint is on the node.
#[must_use]
pub fn is_tainted(node: &Node) -> bool {
    taints(node).iter().any(is_ours)
}

/// The merge patch that makes the node as it is to be, under the condition that nobody changed it meanwhile.
#[must_use]
pub fn patch(node: &Node, target: &NodeTarget) -> Value {
    let (annotation, is_tainted, unschedulable) = match target {
        NodeTarget::Held { record, is_tainted } => {
            // A record is plain data: it always has a JSON form.
            let text = serde_json::to_string(record).unwrap_or_default();
            (Value::String(text), *is_tainted, Value::Bool(true))
        }
        NodeTarget::Released {
            was_unschedulable: true,
        } => (Value::Null, false, Value::Bool(true)),
        NodeTarget::Released { .. } => (Value::Null, false, Value::Null),
    };
    let mut spec = Map::from_iter([("unschedulable".to_owned(), unschedulable)]);
    if is_tainted != self::is_tainted(node) {
        let others = taints(node).iter().filter(|taint| !is_ours(taint)).cloned();
        let ours = is_tainted.then(|| Taint {
            key: DRAIN_TAINT.to_owned(),
            effect: EFFECT.to_owned(),
            ..Taint::default()
        });
        let taints: Vec<Taint> = others.chain(ours).collect();
        let taints = if taints.is_empty() {
            Value::Null
        } else {
            json!(taints)
        };
        spec.insert("taints".to_owned(), taints);
    }
    json!({
        "metadata": {
            "resourceVersion": node.metadata.resource_version,
            "annotations": { STATUS_ANNOTATION: annotation },
        },
        "spec": spec,
    })
}

fn taints(node: &Node) -> &[Taint] {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

fn is_ours(taint: &Taint) -> bool {
    taint.key == DRAIN_TAINT && taint.effect == EFFECT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(taints: &Value, annotation: Option<&str>) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "one", "resourceVersion": "7", "annotations": {STATUS_ANNOTATION: annotation.unwrap_or("")}},
            "spec": {"taints": taints},
        }))
        .unwrap()
    }

    #[test]
    fn holding_keeps_foreign_taints_and_is_conditional() {
        let record = NodeRecord {
            was_unschedulable: true,
            ..NodeRecord::default()
        };
        let held = |is_tainted| NodeTarget::Held {
            record: record.clone(),
            is_tainted,
        };
        let foreign = json!([{"key": "other", "effect": "NoExecute"}]);
        let ours = json!({"key": DRAIN_TAINT, "effect": EFFECT});
        let patch_of = |taints: &Value, target| patch(&node(taints, None), &target);
        let patched = patch_of(&foreign, held(true));
        assert_eq!(patched["metadata"]["resourceVersion"], "7");
        assert_eq!(patched["spec"]["unschedulable"], true);
        assert_eq!(patched["spec"]["taints"], json!([foreign[0], ours]));
        assert_eq!(
            patch_of(&json!([foreign[0], ours]), held(true))["spec"].get("taints"),
            None
        );
        let written = patched["metadata"]["annotations"][STATUS_ANNOTATION]
            .as_str()
            .unwrap();
        assert_eq!(
            super::record(&node(&foreign, Some(written))),
            Some(record.clone())
        );

        let released = |was_unschedulable| NodeTarget::Released { was_unschedulable };
        let patched = patch_of(&json!([foreign[0], ours]), released(false));
        assert_eq!(patched["spec"]["taints"], foreign);
        assert_eq!(patched["spec"]["unschedulable"], Value::Null);
        assert_eq!(patched["metadata"]["annotations"][STATUS_ANNOTATION], Value::Null);
        assert_eq!(
            patch_of(&json!([ours]), released(true))["spec"]["taints"],
            Value::Null
        );
        assert_eq!(
            patch_of(&json!([ours]), released(true))["spec"]["unschedulable"],
            true
        );
    }

    #[test]
    fn an_annotation_that_cannot_be_read_is_none() {
        assert_eq!(super::record(&node(&json!([]), Some("{"))), None);
    }
}
