//! The entries of drain plans, which pods they match, and their order across all plans.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use drydock_machinery::selector::Selector;
use drydock_proto::kinds::nodemaintenance::DrainPlanEntry;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

/// The label by which Cluster API leaves a pod alone when it drains a machine. An entry that leaves this value out
/// keeps the other entries from the pods that it would select without the label, except for entries that select them by it.
pub(super) const DRAIN_LABEL: &str = "cluster.x-k8s.io/drain";
/// The value.
pub(super) const SKIP: &str = "skip";

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

/// From when a pod is a drain target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum TargetedFrom {
    /// It matches recorded targets of its node, and stays a target.
    Always,
    /// From when the node's level reaches this position.
    Level(PlanPosition),
}

impl TargetedFrom {
    /// Whether a node that has reached this level has targeted the pod.
    #[must_use]
    pub fn is_reached(&self, level: Option<&PlanPosition>) -> bool {
        match self {
            Self::Always => true,
            Self::Level(position) => level.is_some_and(|level| position <= level),
        }
    }
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
    /// Which pods are left alone that Cluster API would leave alone; those of all entries of the plan.
    exclusions: Arc<[Exclusion]>,
}

/// An entry that leaves out what Cluster API leaves alone.
#[derive(Debug, Clone)]
struct Exclusion {
    pod_type: usize,
    priority: i32,
    /// What the entry requires besides. `None` when that is invalid. It then leaves out no pod.
    selector: Option<Selector>,
}

impl Entry {
    /// Whether pods of this type, priority, and these labels are left alone by the entry, as Cluster API would.
    pub(super) fn spares(&self, pod_type: usize, priority: i32, labels: &BTreeMap<String, String>) -> bool {
        let label = |key: &str| labels.get(key).map(String::as_str);
        label(DRAIN_LABEL) == Some(SKIP)
            && self.exclusions.iter().any(|exclusion| {
                exclusion.pod_type == pod_type
                    && priority <= exclusion.priority
                    && exclusion
                        .selector
                        .as_ref()
                        .is_some_and(|selector| selector.matches(label))
            })
    }

    /// Whether the entry matches pods of this type, priority, and these labels.
    pub(super) fn matches(&self, pod_type: usize, priority: i32, labels: &BTreeMap<String, String>) -> bool {
        let label = |key: &str| labels.get(key).map(String::as_str);
        self.position.pod_type == pod_type
            && priority <= self.position.priority
            && !self.spares(pod_type, priority, labels)
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
    let exclusions: Arc<[Exclusion]> = plan.iter().filter_map(exclusion).collect();
    let none: Arc<[Exclusion]> = Arc::default();
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
            exclusions: Arc::clone(if wire.pod_selector.as_ref().is_some_and(selects_skipped) {
                &none
            } else {
                &exclusions
            }),
            selector: match &wire.pod_selector {
                None => Some(Selector::everything()),
                Some(selector) => Selector::try_from(selector).ok(),
            },
        });
    }
    entries.sort_by(|a, b| a.position.cmp(&b.position));
    entries
}

/// Which pods an entry leaves out because of [`DRAIN_LABEL`]; `None` if it leaves out none.
fn exclusion(wire: &DrainPlanEntry) -> Option<Exclusion> {
    let selector = wire.pod_selector.as_ref()?;
    let (named, others): (Vec<_>, Vec<_>) = selector
        .match_expressions
        .iter()
        .flatten()
        .cloned()
        .partition(|requirement| requirement.key == DRAIN_LABEL);
    let leaves_out = named
        .iter()
        .any(|requirement| match requirement.operator.as_str() {
            "NotIn" => requirement.values.iter().flatten().any(|value| value == SKIP),
            "DoesNotExist" => true,
            _ => false,
        });
    if !leaves_out {
        return None;
    }
    let besides = LabelSelector {
        match_expressions: Some(others),
        match_labels: selector.match_labels.clone(),
    };
    Some(Exclusion {
        pod_type: wire.pod_type.rank()?,
        priority: wire.pod_priority,
        selector: Selector::try_from(&besides).ok(),
    })
}

/// Whether a selector selects pods because they have the label with the value that Cluster API leaves alone.
fn selects_skipped(selector: &LabelSelector) -> bool {
    let by_label = selector.match_labels.iter().flatten();
    let mut by_expression = selector.match_expressions.iter().flatten();
    by_label
        .into_iter()
        .any(|(key, value)| key == DRAIN_LABEL && value == SKIP)
        || by_expression.any(|requirement| {
            requirement.key == DRAIN_LABEL
                && match requirement.operator.as_str() {
                    "In" => requirement.values.iter().flatten().any(|value| value == SKIP),
                    "Exists" => true,
                    _ => false,
                }
        })
}

#[cfg(test)]
mod tests {
    use drydock_proto::kinds::nodemaintenance::PodType;
    use serde_json::{Value, json};

    use super::*;

    fn plan(selectors: &[Value]) -> Vec<Entry> {
        entries(
            &selectors
                .iter()
                .map(|selector| entry(i32::MAX, selector))
                .collect::<Vec<_>>(),
        )
    }

    fn entry(priority: i32, selector: &Value) -> DrainPlanEntry {
        DrainPlanEntry {
            pod_type: PodType::Default,
            pod_priority: priority,
            pod_selector: serde_json::from_value(selector.clone()).unwrap(),
        }
    }

    fn labels(value: Option<&str>) -> BTreeMap<String, String> {
        let labels = value.map(|value| (DRAIN_LABEL.to_owned(), value.to_owned()));
        labels.into_iter().collect()
    }

    /// Whether any entry of the plan matches a pod with this value of the label.
    fn is_matched(plan: &[Entry], value: Option<&str>) -> bool {
        plan.iter().any(|entry| entry.matches(0, 0, &labels(value)))
    }

    fn expression(operator: &str, values: &Value) -> Value {
        json!({"matchExpressions": [{"key": DRAIN_LABEL, "operator": operator, "values": values}]})
    }

    #[test]
    fn pods_that_cluster_api_skips_are_left_alone_by_plans_that_name_its_label() {
        let labels = json!({"matchLabels": {DRAIN_LABEL: SKIP}});
        let other = json!({"matchLabels": {"app": "web"}});
        let not_skip = expression("NotIn", &json!([SKIP]));
        for (selectors, expected) in [
            (vec![json!(null)], true),
            (vec![json!(null), other], true),
            (vec![json!(null), not_skip.clone()], false),
            (vec![json!(null), expression("DoesNotExist", &json!(null))], false),
            (vec![json!(null), expression("In", &json!([SKIP]))], true),
            (vec![json!(null), expression("Exists", &json!(null))], true),
            (vec![json!(null), labels, not_skip], true),
            // These name the label, and not what Cluster API leaves alone.
            (vec![json!(null), expression("NotIn", &json!(["last"]))], true),
            (vec![json!(null), expression("In", &json!(["wait"]))], true),
            (
                vec![json!(null), json!({"matchLabels": {DRAIN_LABEL: "first"}})],
                true,
            ),
        ] {
            let plan = plan(&selectors);
            assert_eq!(is_matched(&plan, Some(SKIP)), expected, "{selectors:?}");
            assert!(
                is_matched(&plan, Some("wait")) && is_matched(&plan, None),
                "{selectors:?}"
            );
        }
    }

    #[test]
    fn an_entry_spares_only_pods_that_it_would_select_otherwise() {
        let mut of_web = expression("NotIn", &json!([SKIP]));
        of_web["matchLabels"] = json!({"app": "web"});
        let plan = entries(&[
            DrainPlanEntry {
                pod_type: PodType::DaemonSet,
                ..entry(i32::MAX, &json!(null))
            },
            entry(i32::MAX, &json!(null)),
            entry(1000, &of_web),
        ]);
        let is_matched = |pod_type, priority, app: &str| {
            let mut labels = labels(Some(SKIP));
            labels.insert("app".to_owned(), app.to_owned());
            plan.iter()
                .any(|entry| entry.matches(pod_type, priority, &labels))
        };
        assert!(!is_matched(0, 1000, "web"));
        assert!(is_matched(0, 1000, "database"), "another application");
        assert!(is_matched(0, 1001, "web"), "another priority");
        assert!(is_matched(1, 1000, "web"), "another type");
    }
}
