//! What does a drain plan say, and in which order?

use std::collections::HashMap;

use drydock_machinery::selector::Selector;
use drydock_proto::kinds::nodemaintenance::DrainPlanEntry;
use serde::{Deserialize, Serialize};

use super::Pod;

/// The place of an entry in the order of all plans: by type, then priority; entries with a selector before the one
/// without; those in the order of their plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// The rank of the pod type.
    #[serde(default)]
    pub pod_type: usize,
    /// The priority.
    #[serde(default)]
    pub priority: i32,
    /// Whether it has no selector.
    #[serde(default)]
    pub is_bare: bool,
    /// Its place among the selector entries of the same type and priority in its plan.
    #[serde(default)]
    pub ordinal: usize,
    /// The selector, as JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
}

/// An entry of a drain plan.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its place.
    pub key: Key,
    /// As it is written.
    pub wire: DrainPlanEntry,
    /// `None` matches no pod: the selector cannot be understood.
    selector: Option<Selector>,
}

impl Entry {
    /// Whether the pod is among those the entry speaks of.
    pub(super) fn matches(&self, pod: &Pod) -> bool {
        let label = |key: &str| pod.labels.get(key).map(String::as_str);
        self.key.pod_type == pod.pod_type
            && pod.priority <= self.key.priority
            && self
                .selector
                .as_ref()
                .is_some_and(|selector| selector.matches(label))
    }
}

/// The entries of a plan in order. Entries of types this release does not know are left out.
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
        let is_bare = wire.pod_selector.is_none();
        let next = ordinals.entry((pod_type, wire.pod_priority)).or_insert(0);
        let ordinal = if is_bare { 0 } else { *next };
        *next += usize::from(!is_bare);
        entries.push(Entry {
            key: Key {
                pod_type,
                priority: wire.pod_priority,
                is_bare,
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
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries
}

/// Whether the pod is among those the targets ask to leave.
#[must_use]
pub fn is_targeted(targets: &[DrainPlanEntry], pod: &Pod) -> bool {
    entries(targets).iter().any(|entry| entry.matches(pod))
}
