//! Which labels an eviction request has from its pod, and which annotations keep deployment tools away from it.
//! Pure functions.
//!
//! A tool finds its objects by tracking labels. A request that has those of its pod looks like an object of the tool
//! that is in no repository, and would be pruned in the middle of a drain.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

/// Prefixes of labels by which deployment tools track their objects.
const TRACKING_LABELS: [&str; 4] = [
    "argocd.argoproj.io/",
    "kapp.k14s.io/",
    "kustomize.toolkit.fluxcd.io/",
    "helm.toolkit.fluxcd.io/",
];
/// Annotations that keep Argo CD from pruning or reporting a request.
const ANNOTATIONS: [(&str, &str); 2] = [
    ("argocd.argoproj.io/sync-options", "Prune=false"),
    ("argocd.argoproj.io/compare-options", "IgnoreExtraneous"),
];
/// The field manager of this program, from its user agent.
pub const MANAGER: &str = "drydock-controller";
/// That of the requests of the eviction bridge.
pub const BRIDGE_MANAGER: &str = "drydock-eviction-bridge";
/// That of the requests of nominated pods.
pub const NOMINATIONS_MANAGER: &str = "drydock-descheduling-requester";
/// All that write labels of pods into requests.
const MANAGERS: [&str; 3] = [MANAGER, BRIDGE_MANAGER, NOMINATIONS_MANAGER];

/// Labels by key.
type Labels = BTreeMap<String, String>;
/// Labels by key; `None` removes one.
pub type LabelChanges = BTreeMap<String, Option<String>>;

/// The rules for labels of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestLabels {
    excluded: Vec<String>,
}

impl RequestLabels {
    /// Rules that leave out labels with these prefixes as well.
    #[must_use]
    pub const fn excluding(excluded: Vec<String>) -> Self {
        Self { excluded }
    }

    /// The labels of the pod that its request has.
    #[must_use]
    pub fn of_pod(&self, labels: &Labels) -> Labels {
        labels
            .iter()
            .filter(|(key, _)| !self.is_excluded(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// The labels of a request that differ from those of its pod.
    #[must_use]
    pub fn changes(&self, pod: &Labels, request: Option<&Labels>) -> LabelChanges {
        pod.iter()
            .filter(|(key, value)| request.and_then(|request| request.get(*key)) != Some(*value))
            .filter(|(key, _)| !self.is_excluded(key))
            .map(|(key, value)| (key.clone(), Some(value.clone())))
            .collect()
    }

    /// The labels of a request that it does not have from its pod as that is now.
    #[must_use]
    pub fn extra(&self, pod: &Labels, request: Option<&Labels>) -> BTreeSet<String> {
        let keys = request.into_iter().flat_map(BTreeMap::keys);
        keys.filter(|key| !pod.contains_key(*key) || self.is_excluded(key))
            .cloned()
            .collect()
    }

    fn is_excluded(&self, key: &str) -> bool {
        let excluded = self.excluded.iter().map(String::as_str);
        excluded
            .chain(TRACKING_LABELS)
            .any(|prefix| key.starts_with(prefix))
    }
}

/// The annotations that a request has.
#[must_use]
pub fn annotations() -> BTreeMap<String, String> {
    missing_annotations(None)
}

/// The annotations that are missing. A value that somebody else set is kept.
#[must_use]
pub fn missing_annotations(present: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let is_missing = |key: &str| present.is_none_or(|present| !present.contains_key(key));
    ANNOTATIONS
        .into_iter()
        .filter(|(key, _)| is_missing(key))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// The keys of labels that this program has set and nobody else.
#[must_use]
pub fn set_by_us_alone(managers: &[ManagedFieldsEntry]) -> BTreeSet<String> {
    let keys = |is_ours: bool| -> BTreeSet<String> {
        managers
            .iter()
            .filter(|entry| {
                let manager = entry.manager.as_deref().unwrap_or_default();
                MANAGERS.contains(&manager) == is_ours
            })
            .filter_map(|entry| {
                entry
                    .fields_v1
                    .as_ref()?
                    .0
                    .pointer("/f:metadata/f:labels")?
                    .as_object()
            })
            .flat_map(|labels| labels.keys())
            .filter_map(|key| key.strip_prefix("f:").map(str::to_owned))
            .collect()
    };
    &keys(true) - &keys(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::typed;
    use serde_json::json;

    fn labels(keys: &[&str]) -> BTreeMap<String, String> {
        keys.iter()
            .map(|key| ((*key).to_owned(), "x".to_owned()))
            .collect()
    }

    #[test]
    fn tracking_labels_are_left_out() {
        let rules = RequestLabels::excluding(vec!["example.com/".to_owned()]);
        let pod = labels(&[
            "app",
            "argocd.argoproj.io/instance",
            "example.com/tool",
            "helm.toolkit.fluxcd.io/name",
            "kapp.k14s.io/app",
            "kustomize.toolkit.fluxcd.io/name",
        ]);
        assert_eq!(rules.of_pod(&pod), labels(&["app"]));
        let changes = rules.changes(&pod, None);
        assert_eq!(
            changes,
            BTreeMap::from([("app".to_owned(), Some("x".to_owned()))])
        );
    }

    #[test]
    fn labels_of_the_pod_overwrite_those_of_the_request() {
        let rules = RequestLabels::default();
        let pod = labels(&["app", "tier", "kapp.k14s.io/app"]);
        let mut request = labels(&["app", "kapp.k14s.io/app", "own"]);
        request.insert("tier".to_owned(), "other".to_owned());
        let changes = rules.changes(&pod, Some(&request));
        assert_eq!(
            changes,
            BTreeMap::from([("tier".to_owned(), Some("x".to_owned()))])
        );
        let extra = BTreeSet::from(["kapp.k14s.io/app".to_owned(), "own".to_owned()]);
        assert_eq!(rules.extra(&pod, Some(&request)), extra);
        assert!(rules.extra(&pod, None).is_empty());
        request.insert("tier".to_owned(), "x".to_owned());
        assert!(rules.changes(&pod, Some(&request)).is_empty());
    }

    #[test]
    fn annotations_of_others_are_kept() {
        let present = BTreeMap::from([(
            "argocd.argoproj.io/sync-options".to_owned(),
            "Prune=false,Delete=false".to_owned(),
        )]);
        let missing = missing_annotations(Some(&present));
        assert_eq!(
            missing.into_keys().collect::<Vec<_>>(),
            ["argocd.argoproj.io/compare-options"]
        );
        assert_eq!(missing_annotations(None).len(), 2);
    }

    #[test]
    fn labels_that_somebody_else_set_are_not_ours() {
        let entry = |manager: &str, keys: &[&str]| -> ManagedFieldsEntry {
            let labels: serde_json::Map<_, _> =
                keys.iter().map(|key| (format!("f:{key}"), json!({}))).collect();
            typed(json!({"manager": manager, "fieldsV1": {"f:metadata": {"f:labels": labels}}}))
        };
        let managers = [
            entry(MANAGER, &["app", "shared"]),
            entry(BRIDGE_MANAGER, &["app", "tier"]),
            entry("kubectl", &["shared", "own"]),
            typed(json!({"manager": MANAGER, "subresource": "status", "fieldsV1": {"f:status": {}}})),
        ];
        assert_eq!(
            set_by_us_alone(&managers),
            BTreeSet::from(["app".to_owned(), "tier".to_owned()])
        );
    }
}
