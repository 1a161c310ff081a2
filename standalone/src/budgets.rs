//! How many pods may a disruption budget let go of now?
//!
//! As Kubernetes computes it, with one difference that comes from having no controllers: pods whose owner is not stored
//! count themselves, so a budget over bare pods works instead of failing.

use std::sync::Arc;

use drydock_apiserver::error::{ApiError, Reason};
use drydock_apiserver::registry::resource::Part;
use drydock_machinery::selector::label::Selector;
use drydock_storage::Store;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value, json};

use crate::objects::{Kind, Objects, Place};
use crate::pod::{Condition, integer, is_ready, items, labels, member_mut, set, set_condition, text};
use crate::reconcile::Reconcile;

/// How long a pod may take to show that its eviction was carried out before it counts again.
const EVICTION_SHOWS_WITHIN: SignedDuration = SignedDuration::from_mins(2);

/// A number of pods, or a share of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    Pods(i64),
    Percent(i64),
}

impl Amount {
    /// Reads `3` or `"30%"`; nothing else, and nothing negative.
    pub(crate) fn parse(value: &Value) -> Option<Self> {
        let amount = match value {
            Value::Number(number) => Self::Pods(number.as_i64()?),
            Value::String(text) => Self::Percent(text.strip_suffix('%')?.parse().ok()?),
            _ => return None,
        };
        let (Self::Pods(number) | Self::Percent(number)) = amount;
        (number >= 0).then_some(amount)
    }

    /// So many of `all`; shares are rounded up.
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

/// Whether a budget speaks of a pod of its namespace.
///
/// A pod without labels is spoken of by none, as evictions have it.
pub(crate) fn covers(budget: &Value, pod: &Value) -> bool {
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

/// How many pods there should be: the replicas of owners that are known, and every other pod by itself.
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

/// Computes the status of a budget from the pods it covers. `replicas` looks an owner up.
fn settle(budget: &mut Value, pods: &[&Value], replicas: impl Fn(&Value) -> Option<i64>, now: Timestamp) {
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
    let is_here = |pod: &Value| text(pod, "/metadata/deletionTimestamp").is_empty();
    let disrupted: Map<String, Value> = budget
        .pointer("/status/disruptedPods")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(name, since)| {
            let since: Option<Timestamp> = since.as_str().and_then(|since| since.parse().ok());
            let is_recent = since.is_some_and(|since| now.duration_since(since) < EVICTION_SHOWS_WITHIN);
            is_recent
                && pods
                    .iter()
                    .any(|pod| text(pod, "/metadata/name") == *name && is_here(pod))
        })
        .map(|(name, since)| (name.clone(), since.clone()))
        .collect();
    let is_healthy =
        |pod: &Value| is_ready(pod) && is_here(pod) && !disrupted.contains_key(text(pod, "/metadata/name"));
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
    say_allowed(budget, allowed > 0, now);
}

/// Sets the condition that says whether pods may go.
pub(crate) fn say_allowed(budget: &mut Value, allowed: bool, now: Timestamp) {
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

/// Keeps the status of every budget.
pub(crate) struct Budgets<S: Store> {
    pub(crate) objects: Arc<Objects<S>>,
}

impl<S: Store> Reconcile for Budgets<S> {
    const NAME: &'static str = "disruption budgets";

    fn follows(&self) -> &[Kind] {
        &[
            Kind::PODS,
            Kind::BUDGETS,
            Kind::DEPLOYMENTS,
            Kind::REPLICA_SETS,
            Kind::STATEFUL_SETS,
        ]
    }

    async fn look(&self) -> Result<Option<Timestamp>, ApiError> {
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
            let namespace = text(budget, "/metadata/namespace");
            let is_covered =
                |pod: &&Value| text(pod, "/metadata/namespace") == namespace && covers(budget, pod);
            let covered: Vec<&Value> = pods.iter().filter(is_covered).collect();
            let place = Place {
                kind: Kind::BUDGETS,
                namespace,
                name: text(budget, "/metadata/name"),
            };
            let edit = |budget: &mut Value| {
                settle(budget, &covered, replicas, now);
                Ok(())
            };
            match self.objects.edit(place, Part::Status, edit).await {
                Err(error) if error.is(Reason::NotFound) => {}
                other => drop(other?),
            }
            let has_disrupted = budget.pointer("/status/disruptedPods").is_some();
            if has_disrupted {
                again = now.saturating_add(EVICTION_SHOWS_WITHIN).ok();
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
        settle(&mut budget, &pods, replicas, Timestamp::UNIX_EPOCH);
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
    fn allowed_is_what_is_healthy_beyond_what_is_desired() {
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
    fn pods_of_a_known_owner_count_as_many_as_it_wants() {
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
    fn only_pods_that_are_ready_and_stay_are_healthy() {
        let mut ending = pod("b", None, true);
        ending["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:30Z");
        check(
            &json!({"minAvailable": 1}),
            &[pod("a", None, true), ending, pod("c", None, false)],
            [0, 1, 1, 3],
        );
    }

    #[test]
    fn an_evicted_pod_does_not_count_until_it_shows_or_time_is_over() {
        let pods = [pod("a", None, true), pod("b", None, true)];
        let pods: Vec<&Value> = pods.iter().collect();
        for (seconds, healthy, is_kept) in [(119, 1, true), (120, 2, false)] {
            let mut budget = json!({"metadata": {}, "spec": {"minAvailable": 1},
                "status": {"disruptedPods": {"a": "1970-01-01T00:00:00Z", "gone": "1970-01-01T00:00:00Z"}}});
            settle(
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
    fn a_budget_covers_what_its_selector_selects() {
        let selecting = |selector: Value| json!({"spec": {"selector": selector}});
        let labelled = pod("a", None, true);
        assert!(covers(
            &selecting(json!({"matchLabels": {"app": "a"}})),
            &labelled
        ));
        assert!(covers(&selecting(json!({})), &labelled));
        assert!(!covers(
            &selecting(json!({"matchLabels": {"app": "b"}})),
            &labelled
        ));
        assert!(!covers(&selecting(Value::Null), &labelled));
        assert!(!covers(
            &selecting(json!({})),
            &json!({"metadata": {"name": "bare"}})
        ));
    }

    #[test]
    fn amounts_are_numbers_or_shares() {
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
