use super::*;
use proptest::prelude::*;

const NOW: i64 = 1_000_000;
const DAY: Duration = Duration::from_hours(24);

fn ago(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW - seconds).unwrap()
}

#[expect(clippy::unnecessary_wraps, reason = "compared with optional times")]
fn in_seconds(seconds: i64) -> Option<Timestamp> {
    Some(ago(-seconds))
}

fn pod() -> TargetPod {
    TargetPod {
        name: "web".to_owned(),
        ..TargetPod::default()
    }
}

fn present() -> Target {
    Target::Present(pod())
}

/// A request with interceptors `a`, `b` and imperative eviction, of which `active` is active.
fn request(active: Option<usize>) -> Request {
    let names = ["a.example.com", "b.example.com", IMPERATIVE_EVICTION];
    Request {
        generation: 1,
        observed_generation: 1,
        has_requesters: true,
        heartbeat_deadline: Duration::from_mins(20),
        interceptors: names
            .iter()
            .map(|name| InterceptorState {
                name: (*name).to_owned(),
                ..InterceptorState::default()
            })
            .collect(),
        active,
        processed: active.unwrap_or(0),
        ..Request::default()
    }
}

fn with(mut request: Request, index: usize, change: impl FnOnce(&mut InterceptorState)) -> Request {
    change(&mut request.interceptors[index]);
    request
}

/// A request whose interceptors are not initialized.
fn fresh() -> Request {
    Request {
        interceptors: Vec::new(),
        ..request(None)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "passed where an order may have failed")]
fn order() -> Result<InterceptorOrder, TooManyInterceptors> {
    Ok(InterceptorOrder {
        names: vec!["a.example.com".to_owned(), IMPERATIVE_EVICTION.to_owned()],
        skipped: Vec::new(),
    })
}

fn snapshot<'a>(request: &'a Request, target: &'a Target) -> Snapshot<'a> {
    Snapshot {
        request,
        target,
        order: None,
        attempt: None,
        now: ago(0),
        jitter: 0.0,
    }
}

fn decided(request: &Request, target: &Target, attempt: Option<Attempt>) -> Decision {
    let order = order();
    let snapshot = Snapshot {
        order: Some(&order),
        attempt,
        ..snapshot(request, target)
    };
    decide(&snapshot, DAY)
}

#[track_caller]
fn check(request: &Request, target: &Target, step: &Step, next: Option<Timestamp>) {
    let decision = decided(request, target, None);
    assert_eq!((&decision.step, decision.next), (step, next));
}

fn finishes(step: &Step, expected: FinishReason) -> bool {
    matches!(step, Step::Finish { reason, .. } if *reason == expected)
}

fn absent() -> Target {
    Target::Absent {
        name: "web".to_owned(),
    }
}

fn replaced() -> Target {
    Target::Replaced {
        name: "web".to_owned(),
    }
}

#[test]
fn missing_pod_fails_validation_before_initialization_and_finishes_the_request_after_it() {
    let grouped = Target::Present(TargetPod {
        is_grouped: true,
        ..pod()
    });
    let ended = Target::Present(TargetPod {
        is_terminal: true,
        ..pod()
    });
    let cases = [
        (fresh(), absent(), FinishReason::ValidationFailed),
        (fresh(), replaced(), FinishReason::ValidationFailed),
        (fresh(), grouped, FinishReason::ValidationFailed),
        (fresh(), ended.clone(), FinishReason::PodTerminal),
        (request(Some(0)), absent(), FinishReason::PodDeleted),
        (request(Some(2)), replaced(), FinishReason::PodDeleted),
        (request(Some(1)), ended, FinishReason::PodTerminal),
    ];
    for (request, target, reason) in cases {
        let step = decided(&request, &target, None).step;
        assert!(
            finishes(&step, reason),
            "{target:?} should finish with {reason:?}, not {step:?}"
        );
    }
}

#[test]
fn validation_failures_name_the_pod_and_the_cause() {
    let Step::Finish { message, .. } = decided(&fresh(), &absent(), None).step else {
        panic!("not finished")
    };
    assert_eq!(message, "Target Pod web was not found.");
}

#[test]
fn request_without_requesters_is_canceled_unless_forbidden() {
    let mut withdrawn = with(request(Some(0)), 0, |one| one.activated_at = Some(ago(10)));
    withdrawn.has_requesters = false;
    assert!(finishes(
        &decided(&withdrawn, &present(), None).step,
        FinishReason::NoRequesters
    ));
    withdrawn.is_cancellation_forbidden = true;
    check(&withdrawn, &present(), &Step::Wait, in_seconds(110));
}

#[test]
fn labels_of_the_pod_overwrite_those_of_the_request() {
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    let target = Target::Present(TargetPod {
        labels: labels.clone(),
        ..pod()
    });
    for own in [None, Some("other")] {
        let mut request = with(request(Some(0)), 0, |one| one.activated_at = Some(ago(1)));
        request
            .labels
            .extend(own.map(|value| ("app".to_owned(), value.to_owned())));
        check(&request, &target, &Step::CopyLabels(labels.clone()), None);
        request.labels.clone_from(&labels);
        request.labels.insert("own".to_owned(), "kept".to_owned());
        check(&request, &target, &Step::Wait, in_seconds(119));
    }
}

#[test]
fn interceptors_are_initialized_then_the_first_is_activated() {
    let names = order().unwrap().names;
    check(&fresh(), &present(), &Step::InitializeInterceptors(names), None);
    let first = Step::Activate {
        index: 0,
        reason: ActivationReason::First,
    };
    check(&request(None), &present(), &first, None);
}

#[test]
fn too_many_interceptors_fail_validation() {
    let order = Err(TooManyInterceptors {
        count: 16,
        beyond: "z.example.com".to_owned(),
    });
    let (request, target) = (fresh(), present());
    let snapshot = Snapshot {
        order: Some(&order),
        ..snapshot(&request, &target)
    };
    let Step::Finish { reason, message } = decide(&snapshot, DAY).step else {
        panic!("not finished")
    };
    assert_eq!(reason, FinishReason::ValidationFailed);
    assert!(message.contains("z.example.com"), "{message}");
}

#[test]
fn completion_activates_the_next_interceptor_at_once() {
    let request = with(request(Some(0)), 0, |one| one.completed_at = Some(ago(0)));
    let step = Step::Activate {
        index: 1,
        reason: ActivationReason::PreviousCompleted,
    };
    check(&request, &present(), &step, None);
}

#[test]
fn deadline_counts_from_the_later_of_activation_and_heartbeat() {
    for (activated, heartbeat, next) in [
        (100, None, 20),
        (130, None, 1071),
        (1150, None, 51),
        (1500, Some(600), 601),
        (1500, Some(1150), 51),
        (300, Some(900), 901),
    ] {
        let request = with(request(Some(0)), 0, |interceptor| {
            interceptor.activated_at = Some(ago(activated));
            interceptor.heartbeat_at = heartbeat.map(ago);
        });
        let decision = decided(&request, &present(), None);
        assert_eq!(
            (decision.step, decision.next),
            (Step::Wait, in_seconds(next)),
            "{activated} {heartbeat:?}"
        );
    }
}

#[test]
fn timeout_is_recorded_before_the_next_interceptor_is_activated() {
    let mut request = with(request(Some(1)), 1, |one| one.activated_at = Some(ago(1201)));
    let decision = decided(&request, &present(), None);
    let Step::RecordTimeout { message, complete } = decision.step else {
        panic!("{:?}", decision.step)
    };
    assert!(!complete && message.contains("1200 s"), "{message}");
    request.interceptors[1].message = message;
    let step = Step::Activate {
        index: 2,
        reason: ActivationReason::PreviousTimedOut,
    };
    check(&request, &present(), &step, None);
}

#[test]
fn shorter_deadline_of_a_rule_sets_the_completion_time() {
    let mut request = with(request(Some(0)), 0, |interceptor| {
        interceptor.activated_at = Some(ago(61));
        interceptor.rule_deadline = Some(Duration::from_mins(1));
    });
    let Step::RecordTimeout { complete, .. } = decided(&request, &present(), None).step else {
        panic!("not timed out")
    };
    assert!(complete);
    request.interceptors[0].rule_deadline = Some(Duration::from_mins(150));
    check(&request, &present(), &Step::Wait, in_seconds(59));
}

#[test]
fn deadline_of_a_later_interceptor_counts_from_its_own_activation() {
    let request = with(request(Some(1)), 1, |one| one.activated_at = Some(ago(5)));
    check(&request, &present(), &Step::Wait, in_seconds(115));
}

#[test]
fn missing_first_heartbeat_is_reported_after_two_minutes() {
    for (activated, heartbeat, is_reported) in
        [(119, None, false), (120, None, true), (500, Some(400), false)]
    {
        let request = with(request(Some(0)), 0, |interceptor| {
            interceptor.activated_at = Some(ago(activated));
            interceptor.heartbeat_at = heartbeat.map(ago);
        });
        let warnings = decided(&request, &present(), None).warnings;
        assert_eq!(
            warnings.contains(&RequestWarning::Unresponsive("a.example.com".to_owned())),
            is_reported,
            "{activated}"
        );
    }
}

fn evicting(failures: u32) -> Request {
    let mut request = with(request(Some(2)), 2, |one| one.activated_at = Some(ago(5000)));
    request.failed_evictions = failures;
    request
}

#[test]
fn active_imperative_eviction_evicts_at_once() {
    check(&evicting(0), &present(), &Step::Evict, None);
}

#[test]
fn terminating_daemon_set_and_static_pods_are_never_evicted() {
    let terminating = Target::Present(TargetPod {
        is_terminating: true,
        ..pod()
    });
    check(&evicting(0), &terminating, &Step::Wait, None);
    for exemption in [
        EvictionExemption::DaemonSetPod,
        EvictionExemption::TolerantDaemonSetPod,
        EvictionExemption::StaticPod,
    ] {
        let target = Target::Present(TargetPod {
            exemption: Some(exemption),
            ..pod()
        });
        check(&evicting(0), &target, &Step::RecordExemption(exemption), None);
        let recorded = with(evicting(0), 2, |one| one.message = exemption.message().to_owned());
        check(&recorded, &target, &Step::Wait, None);
    }
}

#[test]
fn daemon_set_interceptor_does_not_time_out() {
    let mut request = with(request(Some(1)), 1, |one| one.activated_at = Some(ago(9000)));
    request.interceptors[1].name = DAEMON_SET_INTERCEPTOR.to_owned();
    let target = Target::Present(TargetPod {
        exemption: Some(EvictionExemption::DaemonSetPod),
        ..pod()
    });
    check(&request, &target, &Step::Wait, None);
}

#[test]
fn request_for_a_tolerant_daemon_set_pod_says_why_it_waits() {
    let exemption = EvictionExemption::TolerantDaemonSetPod;
    let mut request = with(request(Some(1)), 1, |one| one.activated_at = Some(ago(9000)));
    request.interceptors[1].name = DAEMON_SET_INTERCEPTOR.to_owned();
    let target = Target::Present(TargetPod {
        exemption: Some(exemption),
        ..pod()
    });
    check(&request, &target, &Step::RecordExemption(exemption), None);
    let recorded = with(request, 1, |one| one.message = exemption.message().to_owned());
    check(&recorded, &target, &Step::Wait, None);
}

/// A pod that budgets with these numbers of allowed disruptions select.
fn pod_with_budgets(allowed: &[i32]) -> Target {
    let budgets = allowed.iter().enumerate().map(|(index, allowed)| Budget {
        name: format!("budget-{index}"),
        disruptions_allowed: *allowed,
    });
    Target::Present(TargetPod {
        budgets: budgets.collect(),
        ..pod()
    })
}

#[test]
fn attempts_back_off_until_no_budget_blocks() {
    let attempt = |retry_after: Option<u64>, is_blocked_by_budget| {
        Some(Attempt {
            at: ago(2),
            is_accepted: false,
            retry_after: retry_after.map(Duration::from_secs),
            is_blocked_by_budget,
            unrecorded: 0,
        })
    };
    for (failures, budgets, attempt, next) in [
        (1, &[0][..], attempt(None, true), None),
        (3, &[0], attempt(None, true), in_seconds(2)),
        (3, &[0], attempt(Some(30), true), in_seconds(28)),
        (20, &[0], attempt(None, true), in_seconds(898)),
        (20, &[1], attempt(None, true), in_seconds(1)),
        (20, &[], attempt(Some(30), true), in_seconds(1)),
        (20, &[1, 1], attempt(None, true), in_seconds(898)),
        (20, &[], attempt(None, false), in_seconds(898)),
        (20, &[0], None, None),
    ] {
        let decision = decided(&evicting(failures), &pod_with_budgets(budgets), attempt);
        assert_eq!(decision.next, next, "{failures} {budgets:?} {attempt:?}");
        assert_eq!(decision.step == Step::Evict, next.is_none());
    }
}

#[test]
fn attempts_whose_result_could_not_be_written_back_off() {
    let attempt = |is_accepted, unrecorded| {
        Some(Attempt {
            at: ago(2),
            is_accepted,
            retry_after: None,
            is_blocked_by_budget: false,
            unrecorded,
        })
    };
    for (failures, attempt, next) in [
        (0, attempt(false, 1), None),
        (0, attempt(false, 3), in_seconds(2)),
        (2, attempt(false, 1), in_seconds(2)),
        (0, attempt(false, u32::MAX), in_seconds(898)),
        (0, attempt(true, 1), in_seconds(8)),
        (0, attempt(true, 0), in_seconds(8)),
    ] {
        let decision = decided(&evicting(failures), &present(), attempt);
        assert_eq!(decision.next, next, "{failures} {attempt:?}");
        assert_eq!(decision.step == Step::Evict, next.is_none());
    }
}

#[test]
fn backoff_continues_after_a_restart() {
    let request = with(evicting(20), 2, |one| one.heartbeat_at = Some(ago(100)));
    check(&request, &pod_with_budgets(&[0]), &Step::Wait, in_seconds(800));
}

#[test]
fn heartbeat_of_a_passed_over_interceptor_suspends_evictions() {
    let request = with(evicting(3), 1, |one| one.heartbeat_at = Some(ago(200)));
    check(&request, &present(), &Step::Wait, in_seconds(1000));
    let request = with(evicting(3), 1, |one| one.heartbeat_at = Some(ago(6000)));
    check(&request, &present(), &Step::Evict, None);
}

#[test]
fn finished_requests_are_deleted_after_their_ttl() {
    let day = 86_400;
    for (finished, ttl, default_ttl, step, next) in [
        (day - 10, None, DAY, Step::Wait, in_seconds(10)),
        (day, None, DAY, Step::DeleteRequest, None),
        (day, None, Duration::ZERO, Step::Wait, None),
        (0, Some(0), DAY, Step::DeleteRequest, None),
        (50, Some(60), Duration::ZERO, Step::Wait, in_seconds(10)),
    ] {
        let request = Request {
            finished_at: Some(ago(finished)),
            ttl: ttl.map(Duration::from_secs),
            ..request(Some(0))
        };
        let target = absent();
        let decision = decide(&snapshot(&request, &target), default_ttl);
        assert_eq!((decision.step, decision.next), (step, next), "{finished} {ttl:?}");
    }
}

#[test]
fn request_being_deleted_is_not_changed() {
    let request = Request {
        is_deleting: true,
        ..request(Some(0))
    };
    check(&request, &absent(), &Step::Wait, None);
}

#[test]
fn new_generation_is_observed_when_there_is_nothing_else_to_do() {
    let mut request = with(request(Some(0)), 0, |one| one.activated_at = Some(ago(0)));
    request.generation = 2;
    check(&request, &present(), &Step::ObserveGeneration, in_seconds(120));
}

proptest! {
    /// Every stored state has a decision, and a decision to wait names a time in the future.
    #[test]
    fn every_state_has_a_decision(
        active in proptest::option::of(0_usize..4),
        times in proptest::collection::vec(proptest::option::of(0_i64..4000), 9),
        failures in 0_u32..100,
        wanted: bool, forbidden: bool, terminating: bool, daemon: bool,
        allowed in proptest::collection::vec(0_i32..2, 0..3),
    ) {
        let mut request = request(active);
        for (index, interceptor) in request.interceptors.iter_mut().enumerate() {
            interceptor.activated_at = times[index * 3].map(ago);
            interceptor.heartbeat_at = times[index * 3 + 1].map(ago);
            interceptor.completed_at = times[index * 3 + 2].map(ago);
        }
        request.failed_evictions = failures;
        request.has_requesters = wanted;
        request.is_cancellation_forbidden = forbidden;
        let Target::Present(pod) = pod_with_budgets(&allowed) else { unreachable!() };
        let target = Target::Present(TargetPod {
            is_terminating: terminating,
            exemption: daemon.then_some(EvictionExemption::DaemonSetPod),
            ..pod
        });
        let decision = decided(&request, &target, None);
        if decision.step == Step::Wait && let Some(next) = decision.next {
            prop_assert!(next > ago(0));
        }
        prop_assert!(!(terminating && decision.step == Step::Evict));
        prop_assert!(!(daemon && decision.step == Step::Evict));
        if let Step::Activate { index, .. } = decision.step {
            prop_assert!(active.is_none_or(|active| index == active + 1));
        }
    }
}
