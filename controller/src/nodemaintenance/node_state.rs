//! What maintenances write on a node: an annotation with the state of its drain and its original schedulability, the
//! taint that keeps pods of DaemonSets away, and `spec.unschedulable`.

use drydock_proto::kinds::nodemaintenance::{
    DRAIN_TAINT, DRAIN_TAINT_EFFECT, DrainPlanEntry, STATUS_ANNOTATION, Stage,
};
use k8s_openapi::api::core::v1::{Node, Taint};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::drain_plan::PlanPosition;

/// The message of a drained node, and of a maintenance whose nodes are all drained.
pub(super) const DRAINED_MESSAGE: &str = "Drained";

/// The content of the annotation, stored as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    /// The active maintenances that select the node, the oldest first.
    #[serde(default)]
    pub maintenances: Vec<HoldingMaintenance>,
    /// The drain targets: which pods are requested to leave. They only grow.
    #[serde(default)]
    pub targets: Vec<DrainPlanEntry>,
    /// The state of the drain, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Whether the node was unschedulable before its first maintenance. A copy: what decides is
    /// `status.cordonedBefore` of its maintenances.
    #[serde(default)]
    pub was_unschedulable: bool,
    /// The names of those `maintenances` that vanished without having been completed. The node stays as it is until
    /// its annotation is removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vanished: Vec<String>,
    /// The last plan entry that the drain has reached. It never moves back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<PlanPosition>,
}

impl NodeRecord {
    /// The names of its maintenances, for people.
    #[must_use]
    pub fn names(&self) -> String {
        let names: Vec<_> = self.maintenances.iter().map(|one| one.name.as_str()).collect();
        names.join(", ")
    }

    /// The maintenances that drain the node and have not vanished, the oldest first.
    pub fn drainers(&self) -> impl Iterator<Item = &HoldingMaintenance> {
        let named = self.maintenances.iter();
        named.filter(|one| one.stage == Stage::Drain && !self.vanished.contains(&one.name))
    }

    /// The first of these.
    #[must_use]
    pub fn draining(&self) -> Option<&HoldingMaintenance> {
        self.drainers().next()
    }

    /// Whether the node is drained.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.message == DRAINED_MESSAGE
    }
}

/// An active maintenance of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldingMaintenance {
    /// Its name.
    pub name: String,
    /// Its UID; empty in records of earlier releases.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Its stage.
    pub stage: Stage,
}

impl HoldingMaintenance {
    /// Whether this is the maintenance with that name and UID.
    #[must_use]
    pub fn is(&self, name: &str, uid: &str) -> bool {
        self.name == name && (self.uid.is_empty() || self.uid == uid)
    }
}

/// What to do with a node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeAction {
    /// Keep it unschedulable, with this record.
    Hold {
        /// The record.
        record: NodeRecord,
        /// Whether it has the drain taint.
        is_tainted: bool,
        /// Whether the record was lost and is restored.
        is_restored: bool,
    },
    /// Write this record and change nothing else.
    Note {
        /// The record.
        record: NodeRecord,
    },
    /// Remove record and taint, and restore its schedulability.
    Release {
        /// Whether it was unschedulable before its first maintenance.
        was_unschedulable: bool,
    },
}

/// The message of a node whose maintenances vanished.
pub(super) fn vanished_message(names: &[String]) -> String {
    format!(
        "Maintenance {} vanished without having been completed. The node stays as it is until the annotation {STATUS_ANNOTATION} is removed from it.",
        names.join(", ")
    )
}

/// The record of the node. An annotation that cannot be parsed counts as absent.
#[must_use]
pub fn record(node: &Node) -> Option<NodeRecord> {
    let text = node.metadata.annotations.as_ref()?.get(STATUS_ANNOTATION)?;
    serde_json::from_str(text).ok()
}

/// Whether the node has a record, without parsing it.
#[must_use]
pub fn is_under_maintenance(node: &Node) -> bool {
    node.metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(STATUS_ANNOTATION))
}

/// Whether the node has the drain taint.
#[must_use]
pub fn is_tainted(node: &Node) -> bool {
    taints(node).iter().any(is_drain_taint)
}

/// The record that the action writes, if it restores what somebody undid: the annotation, the cordon or the taint.
#[must_use]
pub fn repaired_record<'a>(node: &Node, action: &'a NodeAction) -> Option<&'a NodeRecord> {
    let NodeAction::Hold {
        record: after,
        is_restored,
        ..
    } = action
    else {
        return None;
    };
    let is_unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    let is_undone = match record(node) {
        None => *is_restored,
        Some(before) => is_unschedulable != Some(true) || before == *after,
    };
    is_undone.then_some(after)
}

/// The merge patch for the action, with the resource version of the node as a precondition.
#[must_use]
pub fn patch(node: &Node, action: &NodeAction) -> Value {
    // Serializing a record does not fail.
    let text = |record| Value::String(serde_json::to_string(record).unwrap_or_default());
    let (annotation, is_tainted, unschedulable) = match action {
        NodeAction::Note { record } => {
            return json!({
                "metadata": {
                    "resourceVersion": node.metadata.resource_version,
                    "annotations": { STATUS_ANNOTATION: text(record) },
                },
            });
        }
        NodeAction::Hold {
            record, is_tainted, ..
        } => (text(record), *is_tainted, Value::Bool(true)),
        NodeAction::Release {
            was_unschedulable: true,
        } => (Value::Null, false, Value::Bool(true)),
        NodeAction::Release { .. } => (Value::Null, false, Value::Null),
    };
    let mut spec = Map::from_iter([("unschedulable".to_owned(), unschedulable)]);
    if is_tainted != self::is_tainted(node) {
        let others = taints(node)
            .iter()
            .filter(|taint| !is_drain_taint(taint))
            .cloned();
        let drain_taint = is_tainted.then(|| Taint {
            key: DRAIN_TAINT.to_owned(),
            effect: DRAIN_TAINT_EFFECT.to_owned(),
            ..Taint::default()
        });
        let taints: Vec<Taint> = others.chain(drain_taint).collect();
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

fn is_drain_taint(taint: &Taint) -> bool {
    taint.key == DRAIN_TAINT && taint.effect == DRAIN_TAINT_EFFECT
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
    fn patches_keep_foreign_taints_and_have_a_precondition() {
        let record = NodeRecord {
            was_unschedulable: true,
            ..NodeRecord::default()
        };
        let hold = |is_tainted| NodeAction::Hold {
            record: record.clone(),
            is_tainted,
            is_restored: false,
        };
        let foreign = json!([{"key": "other", "effect": "NoExecute"}]);
        let ours = json!({"key": DRAIN_TAINT, "effect": DRAIN_TAINT_EFFECT});
        let patch_of = |taints: &Value, action| patch(&node(taints, None), &action);
        let patched = patch_of(&foreign, hold(true));
        assert_eq!(patched["metadata"]["resourceVersion"], "7");
        assert_eq!(patched["spec"]["unschedulable"], true);
        assert_eq!(patched["spec"]["taints"], json!([foreign[0], ours]));
        assert_eq!(
            patch_of(&json!([foreign[0], ours]), hold(true))["spec"].get("taints"),
            None
        );
        let written = patched["metadata"]["annotations"][STATUS_ANNOTATION]
            .as_str()
            .unwrap();
        assert_eq!(
            super::record(&node(&foreign, Some(written))),
            Some(record.clone())
        );

        let release = |was_unschedulable| NodeAction::Release { was_unschedulable };
        let patched = patch_of(&json!([foreign[0], ours]), release(false));
        assert_eq!(patched["spec"]["taints"], foreign);
        assert_eq!(patched["spec"]["unschedulable"], Value::Null);
        assert_eq!(patched["metadata"]["annotations"][STATUS_ANNOTATION], Value::Null);
        assert_eq!(
            patch_of(&json!([ours]), release(true))["spec"]["taints"],
            Value::Null
        );
        assert_eq!(
            patch_of(&json!([ours]), release(true))["spec"]["unschedulable"],
            true
        );
    }

    #[test]
    fn maintenance_that_vanished_drains_nothing() {
        let holding = |name: &str, stage| HoldingMaintenance {
            name: name.to_owned(),
            uid: String::new(),
            stage,
        };
        let mut record = NodeRecord {
            maintenances: vec![holding("a", Stage::Cordon), holding("b", Stage::Drain)],
            ..NodeRecord::default()
        };
        assert_eq!(record.draining().map(|one| one.name.as_str()), Some("b"));
        record.vanished = vec!["b".to_owned()];
        assert_eq!(record.draining(), None);
    }

    #[test]
    fn note_changes_only_the_annotation() {
        let record = NodeRecord::default();
        let patched = patch(&node(&json!([]), None), &NodeAction::Note { record });
        assert_eq!(patched["metadata"]["resourceVersion"], "7");
        assert!(patched["metadata"]["annotations"][STATUS_ANNOTATION].is_string());
        assert!(patched.get("spec").is_none());
    }

    #[test]
    fn annotation_that_cannot_be_parsed_counts_as_absent() {
        assert_eq!(super::record(&node(&json!([]), Some("{"))), None);
    }
}
