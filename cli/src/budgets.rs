//! What `PodDisruptionBudget`s say about a pod. Pure functions over objects.

use drydock_machinery::selector::Selector;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

/// What a budget means for an eviction now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It allows some disruptions.
    Allows(i32),
    /// It allows none now, and may allow one later.
    Exhausted {
        /// Healthy pods.
        healthy: i32,
        /// How many must stay healthy.
        wanted: i32,
    },
    /// It can never allow one: all of its pods must be healthy, or it counts none of those that it selects.
    Never {
        /// How many pods it counts, all of which must stay healthy. Pods without a controller may not count.
        expected: i32,
    },
    /// The disruption controller has not looked at its current version.
    NotObserved,
    /// The disruption controller cannot compute it.
    NotComputable(String),
}

/// The name of a budget.
#[must_use]
pub fn name(budget: &PodDisruptionBudget) -> &str {
    budget.metadata.name.as_deref().unwrap_or_default()
}

/// The budgets that select the pod.
#[must_use]
pub fn of_pod<'a>(pod: &Pod, budgets: &'a [PodDisruptionBudget]) -> Vec<&'a PodDisruptionBudget> {
    let labels = pod.metadata.labels.as_ref();
    budgets
        .iter()
        .filter(|budget| {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            budget.metadata.namespace == pod.metadata.namespace
                && selector
                    // A budget with an invalid selector selects nothing.
                    .and_then(|selector| Selector::try_from(selector).ok())
                    .is_some_and(|selector| selector.matches(|key| labels?.get(key).map(String::as_str)))
        })
        .collect()
}

/// What the budget means for an eviction now.
#[must_use]
pub fn verdict(budget: &PodDisruptionBudget) -> Verdict {
    let Some(status) = &budget.status else {
        return Verdict::NotObserved;
    };
    let failed = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.reason == "SyncFailed" && condition.status == "False");
    if let Some(condition) = failed {
        return Verdict::NotComputable(condition.message.clone());
    }
    if status.observed_generation.unwrap_or_default() < budget.metadata.generation.unwrap_or_default() {
        return Verdict::NotObserved;
    }
    let allowed = status.disruptions_allowed.unwrap_or_default();
    let expected = status.expected_pods.unwrap_or_default();
    let wanted = status.desired_healthy.unwrap_or_default();
    if allowed > 0 {
        return Verdict::Allows(allowed);
    }
    let healthy = status.current_healthy.unwrap_or_default();
    let counts_none = expected == 0 && healthy > 0;
    if counts_none || (expected > 0 && wanted >= expected) {
        return Verdict::Never { expected };
    }
    Verdict::Exhausted { healthy, wanted }
}

/// How many replicas would let one pod leave; `None` when more replicas do not help, since the budget counts from the top.
#[must_use]
pub fn replicas_for_one_disruption(budget: &PodDisruptionBudget) -> Option<i32> {
    let is_relative = budget
        .spec
        .as_ref()
        .is_none_or(|spec| spec.max_unavailable.is_some());
    match verdict(budget) {
        Verdict::Never { expected } if !is_relative && expected > 0 => Some(expected.saturating_add(1)),
        Verdict::Exhausted { wanted, .. } if !is_relative => Some(wanted.saturating_add(1)),
        _ => None,
    }
}

/// The verdict as a sentence.
#[must_use]
pub fn describe(budget: &PodDisruptionBudget) -> String {
    let name = name(budget);
    match verdict(budget) {
        Verdict::Allows(1) => format!("The budget {name} allows 1 disruption."),
        Verdict::Allows(count) => format!("The budget {name} allows {count} disruptions."),
        Verdict::Exhausted { healthy, wanted } => {
            format!(
                "The budget {name} allows no disruption now: {healthy} pods are healthy, {wanted} must be."
            )
        }
        Verdict::Never { expected: 0 } => {
            format!(
                "The budget {name} can never allow a disruption: it counts pods of controllers, and those that it selects have none."
            )
        }
        Verdict::Never { expected: 1 } => {
            format!("The budget {name} can never allow a disruption: its only pod must be healthy.")
        }
        Verdict::Never { expected } => {
            format!(
                "The budget {name} can never allow a disruption: all of its {expected} pods must be healthy."
            )
        }
        Verdict::NotObserved => {
            format!(
                "The budget {name} is not computed yet: the disruption controller has not seen its current version."
            )
        }
        Verdict::NotComputable(why) => format!("The budget {name} cannot be computed: {why}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(crate) fn budget(name: &str, selector: &Value, status: &Value) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop", "generation": 1},
            "spec": {"selector": selector},
            "status": status,
        }))
        .unwrap()
    }

    pub(crate) fn counts(healthy: i32, wanted: i32, expected: i32, allowed: i32) -> Value {
        json!({
            "observedGeneration": 1, "currentHealthy": healthy, "desiredHealthy": wanted,
            "expectedPods": expected, "disruptionsAllowed": allowed,
        })
    }

    #[test]
    fn verdict_tells_now_from_never() {
        let everything = json!({});
        for (status, expected) in [
            (counts(3, 2, 3, 1), Verdict::Allows(1)),
            (
                counts(2, 2, 3, 0),
                Verdict::Exhausted {
                    healthy: 2,
                    wanted: 2,
                },
            ),
            (counts(3, 3, 3, 0), Verdict::Never { expected: 3 }),
            // Pods without a controller, under maxUnavailable.
            (counts(1, 0, 0, 0), Verdict::Never { expected: 0 }),
            (
                counts(0, 1, 0, 0),
                Verdict::Exhausted {
                    healthy: 0,
                    wanted: 1,
                },
            ),
        ] {
            assert_eq!(verdict(&budget("b", &everything, &status)), expected);
        }
        let mut stale = counts(3, 2, 3, 1);
        stale["observedGeneration"] = json!(0);
        assert_eq!(verdict(&budget("b", &everything, &stale)), Verdict::NotObserved);
        let mut failed = counts(0, 0, 0, 0);
        failed["conditions"] = json!([{
            "type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no scale",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        let failed = budget("b", &everything, &failed);
        assert_eq!(verdict(&failed), Verdict::NotComputable("no scale".to_owned()));
        assert_eq!(describe(&failed), "The budget b cannot be computed: no scale");
    }

    #[test]
    fn budgets_select_pods_of_their_namespace_by_label() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "db-0", "namespace": "shop", "labels": {"app": "db"}},
        }))
        .unwrap();
        let status = counts(1, 1, 1, 0);
        let mut elsewhere = budget("elsewhere", &json!({}), &status);
        elsewhere.metadata.namespace = Some("other".to_owned());
        let budgets = [
            budget("all", &json!({}), &status),
            budget("db", &json!({"matchLabels": {"app": "db"}}), &status),
            budget("web", &json!({"matchLabels": {"app": "web"}}), &status),
            budget("none", &Value::Null, &status),
            elsewhere,
        ];
        let found: Vec<&str> = of_pod(&pod, &budgets).into_iter().map(name).collect();
        assert_eq!(found, ["all", "db"]);
    }
}
