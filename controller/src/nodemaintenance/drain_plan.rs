//! The entries of drain plans, which pods they match, and their order across all plans.

use std::collections::{BTreeMap, HashMap};

use drydock_machinery::selector::Selector;
use drydock_proto::kinds::nodemaintenance::DrainPlanEntry;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

/// The label by which Cluster API leaves a pod alone when it drains a machine, and its value. A plan with a selector that
/// names the label does so too, except for entries that select the pod by it.
const DRAIN_LABEL: &str = "cluster.x-k8s.io/drain";
const SKIP: &str = "skip";

/// The position of an entry in the common order of all plans: by pod type, then priority, then entries with a selector
/// in the order of their plan, then the entry without one.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanPosition {
    /// The rank of the pod type.
    #[serde(default)]
    pub pod_type: usize,
    /// The priority.
    #[serde(default)]
    pub priority: i32,
    /// Whether the entry has no selector.
    #[serde(default, rename = "isBare")]
    pub is_unselective: bool,
    /// The index among the entries of its plan that have a selector and the same type and priority.
    #[serde(default)]
    pub ordinal: usize,
    /// The selector, as JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
}

/// An entry of a drain plan.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its position.
    pub position: PlanPosition,
    /// Its form in the API.
    pub wire: DrainPlanEntry,
    /// `None` when the selector is invalid. It then matches no pod.
    selector: Option<Selector>,
    /// Whether pods are left alone that Cluster API would leave alone.
    spares_skipped: bool,
}

impl Entry {
    /// Whether pods with these labels are left alone by the entry, as Cluster API would.
    pub(super) fn spares(&self, labels: &BTreeMap<String, String>) -> bool {
        self.spares_skipped && labels.get(DRAIN_LABEL).is_some_and(|value| value == SKIP)
    }

    /// Whether the entry matches pods of this type, priority, and these labels.
    pub(super) fn matches(&self, pod_type: usize, priority: i32, labels: &BTreeMap<String, String>) -> bool {
        let label = |key: &str| labels.get(key).map(String::as_str);
        self.position.pod_type == pod_type
            && priority <= self.position.priority
            && !self.spares(labels)
            && self
                .selector
                .as_ref()
                .is_some_and(|selector| selector.matches(label))
    }
}

/// The entries of a plan in order. Entries of unknown pod types are ignored.
#[must_use]
pub fn entries(plan: &[DrainPlanEntry]) -> Vec<Entry> {
    let mut ordinals: HashMap<(usize, i32), usize> = HashMap::new();
    let mut entries = Vec::with_capacity(plan.len());
    let uses = |wire: &DrainPlanEntry| wire.pod_selector.as_ref().map(use_of_drain_label);
    let is_named = plan
        .iter()
        .any(|wire| matches!(uses(wire), Some(Use::Excludes | Use::Selects)));
    for wire in plan {
        let Some(pod_type) = wire.pod_type.rank() else {
            continue;
        };
        let text = wire
            .pod_selector
            .as_ref()
            .and_then(|selector| serde_json::to_string(selector).ok());
        let is_unselective = wire.pod_selector.is_none();
        let next = ordinals.entry((pod_type, wire.pod_priority)).or_insert(0);
        let ordinal = if is_unselective { 0 } else { *next };
        *next += usize::from(!is_unselective);
        entries.push(Entry {
            position: PlanPosition {
                pod_type,
                priority: wire.pod_priority,
                is_unselective,
                ordinal,
                selector: text.unwrap_or_default(),
            },
            wire: wire.clone(),
            spares_skipped: is_named && uses(wire) != Some(Use::Selects),
            selector: match &wire.pod_selector {
                None => Some(Selector::everything()),
                Some(selector) => Selector::try_from(selector).ok(),
            },
        });
    }
    entries.sort_by(|a, b| a.position.cmp(&b.position));
    entries
}

/// What a selector does with [`DRAIN_LABEL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It does not name it.
    None,
    /// It names it, to leave pods out.
    Excludes,
    /// It selects pods that have it.
    Selects,
}

fn use_of_drain_label(selector: &LabelSelector) -> Use {
    let mut operators = selector
        .match_expressions
        .iter()
        .flatten()
        .filter(|requirement| requirement.key == DRAIN_LABEL)
        .map(|requirement| requirement.operator.as_str())
        .peekable();
    let is_matched = selector
        .match_labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(DRAIN_LABEL));
    if is_matched {
        Use::Selects
    } else if operators.peek().is_none() {
        Use::None
    } else if operators.any(|operator| ["In", "Exists"].contains(&operator)) {
        Use::Selects
    } else {
        Use::Excludes
    }
}

#[cfg(test)]
mod tests {
    use drydock_proto::kinds::nodemaintenance::PodType;
    use serde_json::{Value, json};

    use super::*;

    fn plan(selectors: &[Value]) -> Vec<Entry> {
        let entries_of = |selector: &Value| DrainPlanEntry {
            pod_type: PodType::Default,
            pod_priority: i32::MAX,
            pod_selector: serde_json::from_value(selector.clone()).unwrap(),
        };
        entries(&selectors.iter().map(entries_of).collect::<Vec<_>>())
    }

    /// Whether any entry of the plan matches a pod with this value of the label.
    fn is_matched(plan: &[Entry], value: Option<&str>) -> bool {
        let labels = value.map(|value| (DRAIN_LABEL.to_owned(), value.to_owned()));
        let labels: BTreeMap<String, String> = labels.into_iter().collect();
        plan.iter().any(|entry| entry.matches(0, 0, &labels))
    }

    #[test]
    fn pods_that_cluster_api_skips_are_left_alone_by_plans_that_name_its_label() {
        let expression = |operator: &str| {
            let values = if operator == "Exists" {
                json!(null)
            } else {
                json!([SKIP])
            };
            json!({"matchExpressions": [{"key": DRAIN_LABEL, "operator": operator, "values": values}]})
        };
        let labels = json!({"matchLabels": {DRAIN_LABEL: SKIP}});
        let other = json!({"matchLabels": {"app": "web"}});
        for (selectors, expected) in [
            (vec![json!(null)], true),
            (vec![json!(null), other], true),
            (vec![json!(null), expression("NotIn")], false),
            (vec![json!(null), expression("In")], true),
            (vec![json!(null), expression("Exists")], true),
            (vec![json!(null), labels, expression("NotIn")], true),
        ] {
            let plan = plan(&selectors);
            assert_eq!(is_matched(&plan, Some(SKIP)), expected, "{selectors:?}");
            assert!(
                is_matched(&plan, Some("wait")) && is_matched(&plan, None),
                "{selectors:?}"
            );
        }
    }
}
