//! What wakes requests that are held: budgets, nodes and rules.

use super::*;
use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use k8s_openapi::api::core::v1::Node;

fn blocked(reason: &str) -> Value {
    let mut status = evicting();
    status["conditions"] = json!([{
        "type": "Blocked", "status": "True", "reason": reason, "message": "m",
        "lastTransitionTime": "1970-01-12T13:46:40Z",
    }]);
    status["podEvictionStatus"] = json!({
        "failedAPIEvictionCounter": 9,
        "lastAttemptTime": "1970-01-12T13:46:30Z", "nextAttemptTime": "1970-01-12T13:50:00Z",
    });
    status
}

fn queue(scenario: &Scenario) -> Arc<WorkQueue<ObjectKey>> {
    Arc::clone(&scenario.controller.queue)
}

fn change<K: serde::de::DeserializeOwned>(old: Option<Value>, new: Option<Value>) -> Change<K> {
    Change {
        old: old.map(|value| Arc::new(typed(value))),
        new: new.map(|value| Arc::new(typed(value))),
    }
}

/// Whether the change queues the request, which waits for its budget.
fn wakes(scenario: &Scenario, change: &Change<PodDisruptionBudget>) -> bool {
    let (queue, context) = (queue(scenario), &scenario.controller.context);
    on_budget_change(&queue, &context.stores, &scenario.controller.broker, change);
    let is_woken = queue.try_next().is_some();
    if is_woken {
        queue.done(&key(), Outcome::Wait(None));
    }
    is_woken
}

#[tokio::test]
async fn budget_changes_that_may_unblock_queue_blocked_requests() {
    for (old, new, expected) in [
        (Some(budget("db", 0)), None, true),
        (Some(budget("db", 0)), Some(budget("db", 1)), true),
        (Some(budget("db", 1)), Some(budget("db", 0)), false),
        (None, Some(budget("db", 1)), true),
    ] {
        let status = blocked("Budget");
        let scenario = Scenario::new(&status, vec![pod()], vec![budget("db", 0)], accepted());
        assert!(matches!(scenario.reconcile().await, Outcome::Wait(Some(_))));
        assert_eq!(evictions(&scenario), 0);
        assert_eq!(
            wakes(&scenario, &change(old.clone(), new.clone())),
            expected,
            "{old:?} {new:?}"
        );
    }
    let status = blocked("Webhook");
    let scenario = Scenario::new(&status, vec![pod()], vec![budget("db", 0)], accepted());
    scenario.reconcile().await;
    assert!(!wakes(
        &scenario,
        &change(Some(budget("db", 0)), Some(budget("db", 1)))
    ));
}

#[tokio::test]
async fn open_budget_lets_a_request_try_at_once() {
    let scenario = Scenario::new(
        &blocked("Budget"),
        vec![pod()],
        vec![budget("db", 1)],
        blocked_by_budget(),
    );
    scenario.reconcile().await;
    assert_eq!(evictions(&scenario), 1);
    // The refused attempt is not repeated while the budget is as it was.
    scenario.reconcile().await;
    assert_eq!(evictions(&scenario), 1);
    let status = &scenario.stored()["status"];
    assert_eq!(status["podEvictionStatus"]["failedAPIEvictionCounter"], 10);
    assert_eq!(
        status["conditions"][0]["message"],
        "PodDisruptionBudget db has 1 healthy pods now and wants 1."
    );
    assert_eq!(
        status["conditions"][0]["lastTransitionTime"],
        "1970-01-12T13:46:40Z"
    );
}

#[tokio::test]
async fn refusal_without_a_budget_backs_off() {
    let scenario = Scenario::new(&evicting(), vec![pod()], Vec::new(), blocked_by_budget());
    for _ in 0..60 {
        scenario.reconcile().await;
        scenario.clock.advance(Duration::from_secs(1));
    }
    assert!(
        (3..=8).contains(&evictions(&scenario)),
        "{}",
        evictions(&scenario)
    );
}

#[tokio::test]
async fn node_that_is_lost_queues_the_requests_of_its_deleted_pods() {
    let deleted = fixtures::pod(&json!({"metadata": {"deletionTimestamp": "1970-01-12T13:46:40Z"}}));
    let node = |ready: &str| {
        json!({"metadata": {"name": "one"}, "status": {"conditions": [
            {"type": "Ready", "status": ready, "lastHeartbeatTime": null, "lastTransitionTime": null},
        ]}})
    };
    for (pod, expected) in [(deleted, true), (pod(), false)] {
        let scenario = Scenario::new(&evicting(), vec![pod], Vec::new(), accepted());
        let queue = queue(&scenario);
        let change = change::<Node>(Some(node("True")), Some(node("Unknown")));
        queue_deleted_pods_of(&queue, &scenario.controller.context.stores, &change);
        assert_eq!(queue.try_next().is_some(), expected);
    }
}

#[test]
fn rules_concern_requests_whose_interceptors_are_not_ordered_or_whose_deadline_they_set() {
    let rule = |name: &str, pods: i32| {
        json!({
            "metadata": {"name": "r"}, "spec": {"interceptorName": name, "heartbeatDeadlineSeconds": 600},
            "status": {"matchedPods": pods},
        })
    };
    let new: Change<EvictionInterceptor> = change(None, Some(rule("a.example.com", 0)));
    let counted = change(Some(rule("a.example.com", 0)), Some(rule("a.example.com", 1)));
    let fresh: EvictionRequest = typed(request(&json!({})));
    assert!(concerns(&new, &fresh) && !concerns(&counted, &fresh));
    let ordered: EvictionRequest = typed(request(&evicting()));
    assert!(!concerns(&new, &ordered));
    let ours = change(None, Some(rule(IMPERATIVE_EVICTION, 0)));
    assert!(concerns(&ours, &ordered));
}
