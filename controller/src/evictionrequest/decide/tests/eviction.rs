//! Imperative eviction: when an attempt is made, and what holds the pod meanwhile.

use super::*;

/// Imperative eviction is active and has not tried.
fn active() -> Request {
    with(request(Some(2)), 2, |one| one.activated_at = Some(ago(5000)))
}

/// The last attempt was refused so many times for this reason; the next is due in so many seconds.
fn refused(failures: u32, reason: Reason, next: i64) -> Request {
    Request {
        failed_evictions: failures,
        last_attempt_at: Some(ago(2)),
        next_attempt_at: in_seconds(next),
        blocked: Some(StoredBlock {
            reason: reason.as_str().to_owned(),
            message: "m".to_owned(),
            since: ago(100),
        }),
        ..active()
    }
}

fn evict(budget: Option<&str>) -> Step {
    Step::Evict {
        budget: budget.map(str::to_owned),
    }
}

fn budget(allowed: i32) -> Budget {
    Budget {
        name: "db".to_owned(),
        version: allowed.to_string(),
        disruptions_allowed: allowed,
        is_observed: true,
        ..Budget::default()
    }
}

fn under(budgets: Vec<Budget>) -> Target {
    Target::Present(TargetPod { budgets, ..pod() })
}

#[test]
fn first_attempt_is_made_at_once() {
    check(&active(), &present(), &evict(None), None);
    check(&active(), &under(vec![budget(0)]), &evict(None), None);
}

#[test]
fn pods_whose_budgets_are_not_watched_are_tried_at_their_own_pace() {
    let unwatched = Target::Present(TargetPod {
        unwatched_budgets: Some("forbidden (403)".to_owned()),
        ..pod()
    });
    check(&active(), &unwatched, &evict(None), None);
    let mut refused = active();
    refused.last_attempt_at = Some(ago(10));
    refused.next_attempt_at = in_seconds(5);
    refused.blocked = Some(StoredBlock {
        reason: "Budget".to_owned(),
        ..StoredBlock::default()
    });
    // Without the watch no change of the budget wakes it, and what was known of it says nothing.
    check(&refused, &unwatched, &Step::Wait, in_seconds(5));
    refused.next_attempt_at = Some(ago(0));
    check(&refused, &unwatched, &evict(None), None);
}

#[test]
fn deleted_and_exempt_pods_are_never_evicted() {
    check(&active(), &Target::Present(deleted(&[])), &Step::Wait, None);
    for exemption in [
        EvictionExemption::DaemonSetPod,
        EvictionExemption::TolerantDaemonSetPod,
        EvictionExemption::StaticPod,
    ] {
        let target = Target::Present(exempt(exemption));
        let Step::RecordHold(Hold::By(blocked)) = decided(&active(), &target, None).step else {
            panic!("not blocked")
        };
        assert_eq!(blocked.message, exemption.message());
        let recorded = Request {
            blocked: Some(stored(&blocked)),
            ..active()
        };
        check(&recorded, &target, &Step::Wait, None);
    }
}

#[test]
fn deleted_pod_is_held_by_its_finalizers_or_its_node() {
    let held = |pod: TargetPod| match decided(&active(), &Target::Present(pod), None).step {
        Step::RecordHold(Hold::By(blocked)) => Some((blocked.reason, blocked.message, blocked.since)),
        step => {
            assert_eq!(step, Step::Wait);
            None
        }
    };
    assert_eq!(held(deleted(&[])), None);
    assert_eq!(
        held(deleted(&["a/b", "c"])),
        Some((
            Reason::Finalizers,
            "The pod is deleted and held by its finalizers: a/b, c.".to_owned(),
            ago(60)
        ))
    );
    let mut grace = deleted(&["a/b"]);
    grace.deletion.as_mut().unwrap().ends_at = ago(-20);
    check(
        &active(),
        &Target::Present(grace.clone()),
        &Step::Wait,
        in_seconds(30),
    );
    grace.deletion.as_mut().unwrap().unready_node = Some("one".to_owned());
    let (reason, message, since) = held(grace).unwrap();
    assert_eq!((reason, since), (Reason::NodeUnreachable, ago(0)));
    assert!(message.contains("node one"), "{message}");
}

#[test]
fn refused_attempt_is_repeated_when_it_is_due() {
    for reason in [Reason::Webhook, Reason::Throttled, Reason::EvictionFailed] {
        for budgets in [vec![], vec![budget(1)], vec![budget(0)]] {
            let target = under(budgets);
            check(&refused(3, reason, 8), &target, &Step::Wait, in_seconds(8));
            check(&refused(3, reason, 0), &target, &evict(None), None);
        }
    }
}

#[test]
fn attempt_that_a_budget_refused_is_repeated_when_the_budget_opens() {
    let by_budget = |next| refused(20, Reason::Budget, next);
    let seen = |budgets: Vec<Budget>| Attempt {
        budgets,
        unwritten: None,
    };
    let closed_then = seen(vec![budget(0)]);
    for (budgets, attempt, step, next) in [
        // Closed as before, or not known to have been open.
        (vec![budget(0)], Some(&closed_then), Step::Wait, Some(800)),
        (vec![budget(0)], None, Step::Wait, Some(800)),
        // Open now: the broker admits as many as there are places.
        (vec![budget(1)], Some(&closed_then), evict(Some("db")), None),
        (vec![budget(1)], None, evict(Some("db")), None),
        // Gone.
        (vec![], Some(&closed_then), evict(None), None),
        // Several budgets are never allowed.
        (
            vec![budget(1), budget(1)],
            Some(&closed_then),
            Step::Wait,
            Some(800),
        ),
    ] {
        let decision = decided(&by_budget(800), &under(budgets.clone()), attempt);
        assert_eq!(decision.step, step, "{budgets:?}");
        assert_eq!(decision.next, next.and_then(in_seconds), "{budgets:?}");
        let waits = decision.step == Step::Wait && budgets.len() == 1;
        assert_eq!(decision.budget.is_some(), waits, "{budgets:?}");
    }
    // Open at the last attempt, which was refused: nothing has changed.
    let open_then = seen(vec![budget(1)]);
    let unchanged = decided(&by_budget(800), &under(vec![budget(1)]), Some(&open_then));
    assert_eq!((unchanged.step, unchanged.next), (Step::Wait, in_seconds(800)));
    let without = decided(&by_budget(800), &present(), Some(&seen(vec![])));
    assert_eq!((without.step, without.next), (Step::Wait, in_seconds(800)));
    // The back-off is over: one of those that wait may try.
    check(&by_budget(0), &under(vec![budget(0)]), &evict(Some("db")), None);
}

#[test]
fn budget_that_lets_unhealthy_pods_go_does_not_hold_them() {
    let unhealthy = Budget {
        lets_pod_go: true,
        ..budget(0)
    };
    let attempt = Attempt {
        budgets: vec![budget(0)],
        unwritten: None,
    };
    let request = refused(5, Reason::Budget, 100);
    let decision = decided(&request, &under(vec![unhealthy]), Some(&attempt));
    assert_eq!(decision.step, evict(None));
}

#[test]
fn unwritten_refusal_is_written_before_anything_else() {
    let refusal = Refusal {
        reason: Reason::Webhook,
        message: "no.".to_owned(),
        cause: "no".to_owned(),
        result: "refused",
        retry_after: None,
    };
    for (failures, retry_after, delay) in [
        (0, None, 1),
        (1, None, 2),
        (4, None, 16),
        (40, None, 900),
        (1, Some(30), 30),
        (8, Some(30), 256),
    ] {
        let refusal = Refusal {
            retry_after: retry_after.map(Duration::from_secs),
            ..refusal.clone()
        };
        let attempt = Attempt {
            budgets: vec![],
            unwritten: Some(refusal.clone()),
        };
        let mut request = active();
        request.failed_evictions = failures;
        request.last_attempt_at = Some(ago(0));
        let step = Step::RecordRefusal {
            refusal,
            delay: Duration::from_secs(delay),
        };
        assert_eq!(decided(&request, &present(), Some(&attempt)).step, step);
    }
}

#[test]
fn accepted_eviction_without_a_deletion_is_reported_and_repeated_with_growing_delays() {
    let mut request = active();
    let mut now = 0;
    let mut attempts = Vec::new();
    let target = present();
    while now < 3_000 {
        let snapshot = Snapshot {
            now: ago(-now),
            ..snapshot(&request, &target)
        };
        let decision = decide(&snapshot, DAY);
        match decision.step {
            Step::Evict { .. } => {
                attempts.push(now);
                request.last_attempt_at = Some(ago(-now));
            }
            Step::RecordHold(Hold::By(blocked)) => {
                assert_eq!((blocked.reason, now), (Reason::NotDeleting, 30));
                assert_eq!(blocked.since, ago(0), "since the first attempt");
                request.blocked = Some(stored(&blocked));
            }
            step => {
                assert_eq!(step, Step::Wait);
                now = decision.next.unwrap().duration_since(ago(0)).as_secs();
            }
        }
    }
    assert_eq!(attempts, [0, 30, 60, 120, 240, 480, 960, 1860, 2760]);
}

#[test]
fn heartbeat_of_a_passed_over_interceptor_suspends_evictions() {
    let due = refused(3, Reason::Webhook, 0);
    let request = with(due.clone(), 1, |one| one.heartbeat_at = Some(ago(200)));
    check(&request, &present(), &Step::Wait, in_seconds(1000));
    let request = with(due, 1, |one| one.heartbeat_at = Some(ago(6000)));
    check(&request, &present(), &evict(None), None);
}
