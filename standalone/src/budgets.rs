//! The status of disruption budgets: how many pods may be disrupted now.
//!
//! Computed as in Kubernetes, with one difference, since there are no workload controllers: a pod whose owner is not stored
//! counts as one expected pod, so that a budget over bare pods works.

use std::sync::Arc;

use drydock_apiserver::error::{ApiError, Reason};
use drydock_apiserver::registry::part::Part;
use drydock_machinery::selector::label::Selector;
use drydock_storage::Store;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value, json};

use crate::object::{
    Condition, integer, is_ready, is_terminating, items, labels, member_mut, set, set_condition, text,
};
use crate::objects::{Kind, ObjectRef, Objects};
use crate::reconcile::{Reconcile, tolerate};

/// How long an evicted pod counts as disrupted without being deleted: `DeletionTimeout` of the disruption controller.
const EVICTION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// A number of pods, or a percentage of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    Pods(i64),
    Percent(i64),
}

impl Amount {
    /// Parses `3` or `"30%"`; not negative.
    pub(crate) fn parse(value: &Value) -> Option<Self> {
        let amount = match value {
            Value::Number(number) => Self::Pods(number.as_i64()?),
            Value::String(text) => Self::Percent(text.strip_suffix('%')?.parse().ok()?),
            _ => return None,
        };
        let (Self::Pods(number) | Self::Percent(number)) = amount;
        (number >= 0).then_some(amount)
    }

    /// The number of pods, out of `all`; percentages are rounded up.
    fn of(self, all: i64) -> i64 {
        match self {
            Self::Pods(number) => number,
            Self::Percent(percent) => {
                let share = percent.saturating_mul(all);
                share / 100 + i64::from(share % 100 > 0)
            }
        }
    }
}

/// Whether a budget selects a pod of its namespace. As in the eviction API, no budget selects a pod without labels.
pub(crate) fn selects(budget: &Value, pod: &Value) -> bool {
    let labels = labels(pod);
    let selector = budget
        .pointer("/spec/selector")
        .filter(|selector| !selector.is_null());
    let selector =
        selector.and_then(|selector| serde_json::from_value::<LabelSelector>(selector.clone()).ok());
    let selector = selector.and_then(|selector| Selector::try_from(&selector).ok());
    !labels.is_empty()
        && selector.is_some_and(|selector| selector.matches(|key| labels.get(key).map(String::as_str)))
}

/// The expected number of pods: the replicas of stored owners, and one for each other pod.
fn expected(pods: &[&Value], replicas: impl Fn(&Value) -> Option<i64>) -> i64 {
    let mut owners: Vec<&str> = Vec::new();
    let mut expected = 0;
    for pod in pods {
        let owner = items(pod, "/metadata/ownerReferences")
            .iter()
            .find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true));
        match owner.and_then(|owner| Some((text(owner, "/uid"), replicas(owner)?))) {
            Some((uid, _)) if owners.contains(&uid) => {}
            Some((uid, count)) => {
                owners.push(uid);
                expected += count;
            }
            None => expected += 1,
        }
    }
    expected
}

/// Computes the status of a budget from the pods it selects. `replicas` looks up the replicas of an owner.
fn update_status(
    budget: &mut Value,
    pods: &[&Value],
    replicas: impl Fn(&Value) -> Option<i64>,
    now: Timestamp,
) {
    let amount = |pointer: &str| budget.pointer(pointer).and_then(Amount::parse);
    let present = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    let (expected, desired) = match (amount("/spec/maxUnavailable"), amount("/spec/minAvailable")) {
        (Some(most), _) => {
            let expected = expected(pods, replicas);
            (expected, (expected - most.of(expected)).max(0))
        }
        (None, Some(Amount::Pods(least))) => (present, least),
        (None, Some(least @ Amount::Percent(_))) => {
            let expected = expected(pods, replicas);
            (expected, least.of(expected))
        }
        (None, None) => (present, 0),
    };
    let disrupted: Map<String, Value> = budget
        .pointer("/status/disruptedPods")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(name, since)| {
            let since: Option<Timestamp> = since.as_str().and_then(|since| since.parse().ok());
            let is_recent = since.is_some_and(|since| now.duration_since(since) < EVICTION_TIMEOUT);
            is_recent
                && pods
                    .iter()
                    .any(|pod| text(pod, "/metadata/name") == *name && !is_terminating(pod))
        })
        .map(|(name, since)| (name.clone(), since.clone()))
        .collect();
    let is_healthy = |pod: &Value| {
        is_ready(pod) && !is_terminating(pod) && !disrupted.contains_key(text(pod, "/metadata/name"))
    };
    let healthy = i64::try_from(pods.iter().filter(|pod| is_healthy(pod)).count()).unwrap_or(i64::MAX);
    let allowed = if expected > 0 {
        (healthy - desired).max(0)
    } else {
        0
    };

    let generation = integer(budget, "/metadata/generation").unwrap_or(0);
    let status = member_mut(budget, "status");
    for (member, value) in [
        ("currentHealthy", json!(healthy)),
        ("desiredHealthy", json!(desired)),
        ("expectedPods", json!(expected)),
        ("disruptionsAllowed", json!(allowed)),
        ("observedGeneration", json!(generation)),
    ] {
        set(status, member, value);
    }
    match status.as_object_mut() {
        Some(members) if disrupted.is_empty() => {
            members.remove("disruptedPods");
        }
        _ => set(status, "disruptedPods", Value::Object(disrupted)),
    }
    set_disruption_allowed(budget, allowed > 0, now);
}

/// Sets the condition `DisruptionAllowed`.
pub(crate) fn set_disruption_allowed(budget: &mut Value, allowed: bool, now: Timestamp) {
    let (status, reason) = if allowed {
        ("True", "SufficientPods")
    } else {
        ("False", "InsufficientPods")
    };
    set_condition(
        budget,
        Condition {
            type_: "DisruptionAllowed",
            status,
            reason,
            message: "",
        },
        now,
    );
}

/// Keeps the status of every budget up to date.
pub(crate) struct Budgets<S: Store> {
    pub(crate) objects: Arc<Objects<S>>,
}

impl<S: Store> Reconcile for Budgets<S> {
    const NAME: &'static str = "disruption budgets";

    fn watched(&self) -> &[Kind] {
        &[
            Kind::PODS,
            Kind::BUDGETS,
            Kind::DEPLOYMENTS,
            Kind::REPLICA_SETS,
            Kind::STATEFUL_SETS,
        ]
    }

    async fn reconcile(&self) -> Result<Option<Timestamp>, ApiError> {
        let budgets = self.objects.list(Kind::BUDGETS, None).await?;
        if budgets.is_empty() {
            return Ok(None);
        }
        let pods = self.objects.list(Kind::PODS, None).await?;
        let mut workloads = Vec::new();
        for kind in [Kind::DEPLOYMENTS, Kind::REPLICA_SETS, Kind::STATEFUL_SETS] {
            workloads.extend(self.objects.list(kind, None).await?);
        }
        let replicas = |owner: &Value| {
            let uid = text(owner, "/uid");
            let found = workloads
                .iter()
                .find(|workload| text(workload, "/metadata/uid") == uid)?;
            Some(integer(found, "/spec/replicas").unwrap_or(1))
        };
        let now = self.objects.now();
        let mut again = None;
        for budget in &budgets {
            let at = ObjectRef::to(Kind::BUDGETS, budget);
            let is_selected =
                |pod: &&Value| text(pod, "/metadata/namespace") == at.namespace && selects(budget, pod);
            let selected: Vec<&Value> = pods.iter().filter(is_selected).collect();
            let edit = |budget: &mut Value| {
                update_status(budget, &selected, replicas, now);
                Ok(())
            };
            let written = self.objects.edit(at, Part::Status, edit).await;
            tolerate(written, &[Reason::NotFound])?;
            let has_disrupted = budget.pointer("/status/disruptedPods").is_some();
            if has_disrupted {
                again = now.saturating_add(EVICTION_TIMEOUT).ok();
            }
        }
        Ok(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, owner: Option<&str>, ready: bool) -> Value {
        let owners: Vec<Value> = owner
            .iter()
            .map(|uid| json!({"uid": uid, "controller": true}))
            .collect();
        json!({
            "metadata": {"name": name, "labels": {"app": "a"}, "ownerReferences": owners},
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}
        })
    }

    /// Allowed, healthy, desired, expected.
    #[track_caller]
    fn check(spec: &Value, pods: &[Value], expected: [i64; 4]) {
        let mut budget = json!({"metadata": {"generation": 4}, "spec": spec});
        let pods: Vec<&Value> = pods.iter().collect();
        let replicas = |owner: &Value| (text(owner, "/uid") == "rs").then_some(4);
        update_status(&mut budget, &pods, replicas, Timestamp::UNIX_EPOCH);
        let count = |member: &str| budget["status"][member].as_i64().unwrap();
        let found = [
            "disruptionsAllowed",
            "currentHealthy",
            "desiredHealthy",
            "expectedPods",
        ]
        .map(count);
        assert_eq!(found, expected, "{spec}");
        assert_eq!(count("observedGeneration"), 4);
        let condition = &budget["status"]["conditions"][0];
        assert_eq!(
            condition["status"],
            if expected[0] > 0 { "True" } else { "False" }
        );
    }

    #[test]
    fn allowed_disruptions_are_healthy_pods_minus_desired_pods() {
        let bare: Vec<Value> = (0..3).map(|index| pod(&index.to_string(), None, true)).collect();
        check(&json!({"maxUnavailable": 0}), &bare, [0, 3, 3, 3]);
        check(&json!({"maxUnavailable": 1}), &bare, [1, 3, 2, 3]);
        check(&json!({"maxUnavailable": 9}), &bare, [3, 3, 0, 3]);
        check(&json!({"minAvailable": 2}), &bare, [1, 3, 2, 3]);
        check(&json!({"minAvailable": 5}), &bare, [0, 3, 5, 3]);
        check(&json!({"minAvailable": "50%"}), &bare, [1, 3, 2, 3]);
        check(&json!({"maxUnavailable": "34%"}), &bare, [2, 3, 1, 3]);
        check(&json!({"minAvailable": 0}), &[], [0, 0, 0, 0]);
    }

    #[test]
    fn the_replicas_of_a_stored_owner_are_expected() {
        let owned: Vec<Value> = (0..3)
            .map(|index| pod(&index.to_string(), Some("rs"), true))
            .collect();
        check(&json!({"maxUnavailable": 1}), &owned, [0, 3, 3, 4]);
        let unknown: Vec<Value> = (0..3)
            .map(|index| pod(&index.to_string(), Some("x"), true))
            .collect();
        check(&json!({"maxUnavailable": 1}), &unknown, [1, 3, 2, 3]);
    }

    #[test]
    fn healthy_pods_are_ready_and_not_terminating() {
        let mut ending = pod("b", None, true);
        ending["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:30Z");
        check(
            &json!({"minAvailable": 1}),
            &[pod("a", None, true), ending, pod("c", None, false)],
            [0, 1, 1, 3],
        );
    }

    #[test]
    fn an_evicted_pod_is_unhealthy_until_the_timeout() {
        let pods = [pod("a", None, true), pod("b", None, true)];
        let pods: Vec<&Value> = pods.iter().collect();
        for (seconds, healthy, is_kept) in [(119, 1, true), (120, 2, false)] {
            let mut budget = json!({"metadata": {}, "spec": {"minAvailable": 1},
                "status": {"disruptedPods": {"a": "1970-01-01T00:00:00Z", "gone": "1970-01-01T00:00:00Z"}}});
            update_status(
                &mut budget,
                &pods,
                |_| None,
                Timestamp::from_second(seconds).unwrap(),
            );
            assert_eq!(budget["status"]["currentHealthy"], healthy, "after {seconds} s");
            let kept = budget["status"].get("disruptedPods").cloned();
            assert_eq!(kept, is_kept.then(|| json!({"a": "1970-01-01T00:00:00Z"})));
        }
    }

    #[test]
    fn a_budget_selects_labelled_pods_by_its_selector() {
        let selecting = |selector: Value| json!({"spec": {"selector": selector}});
        let labelled = pod("a", None, true);
        assert!(selects(
            &selecting(json!({"matchLabels": {"app": "a"}})),
            &labelled
        ));
        assert!(selects(&selecting(json!({})), &labelled));
        assert!(!selects(
            &selecting(json!({"matchLabels": {"app": "b"}})),
            &labelled
        ));
        assert!(!selects(&selecting(Value::Null), &labelled));
        assert!(!selects(
            &selecting(json!({})),
            &json!({"metadata": {"name": "bare"}})
        ));
    }

    #[test]
    fn amounts_are_numbers_or_percentages() {
        for (value, expected) in [
            (json!(2), Some(Amount::Pods(2))),
            (json!("20%"), Some(Amount::Percent(20))),
            (json!("2"), None),
            (json!(-1), None),
            (json!("-1%"), None),
            (json!(1.5), None),
        ] {
            assert_eq!(Amount::parse(&value), expected, "{value}");
        }
    }
}
