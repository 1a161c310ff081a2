//! The entries of drain plans, which pods they match, and their order across all plans.

use std::collections::{BTreeMap, HashMap};

use drydock_machinery::selector::Selector;
use drydock_proto::kinds::nodemaintenance::DrainPlanEntry;
use serde::{Deserialize, Serialize};

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
}

impl Entry {
    /// Whether the entry matches pods of this type, priority, and these labels.
    pub(super) fn matches(&self, pod_type: usize, priority: i32, labels: &BTreeMap<String, String>) -> bool {
        let label = |key: &str| labels.get(key).map(String::as_str);
        self.position.pod_type == pod_type
            && priority <= self.position.priority
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
            selector: match &wire.pod_selector {
                None => Some(Selector::everything()),
                Some(selector) => Selector::try_from(selector).ok(),
            },
        });
    }
    entries.sort_by(|a, b| a.position.cmp(&b.position));
    entries
}
