use super::super::blocked::Blocked;
use super::super::budget::Budget;
use super::super::interceptors::{InterceptorOrder, TooManyInterceptors};
use super::super::snapshot::{Attempt, PodDeletion, StoredBlock};
use super::*;
use crate::evictioninterceptor::rules::UnusableRule;

mod eviction;
mod steps;

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
fn order() -> Result<InterceptorOrder, NoOrder> {
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

fn decided(request: &Request, target: &Target, attempt: Option<&Attempt>) -> Decision {
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
fn changed_labels_and_missing_annotations_are_written_together() {
    let labels = || {
        LabelChanges::from([
            ("app".to_owned(), Some("web".to_owned())),
            ("old".to_owned(), None),
        ])
    };
    let annotations = || BTreeMap::from([("tool".to_owned(), "leave".to_owned())]);
    for (label_changes, missing_annotations) in [
        (labels(), BTreeMap::new()),
        (LabelChanges::new(), annotations()),
        (labels(), annotations()),
    ] {
        let mut request = with(request(Some(0)), 0, |one| one.activated_at = Some(ago(1)));
        let step = Step::CopyLabels {
            labels: label_changes.clone(),
            annotations: missing_annotations.clone(),
        };
        request.label_changes = label_changes;
        request.missing_annotations = missing_annotations;
        check(&request, &present(), &step, None);
    }
}

#[test]
fn interceptors_are_initialized_and_the_first_is_activated() {
    let step = |names: &[&str], evict| Step::Initialize {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        evict,
    };
    let names = ["a.example.com", IMPERATIVE_EVICTION];
    check(&fresh(), &present(), &step(&names, false), None);
    let first = Step::Activate {
        index: 0,
        reason: None,
        evict: false,
    };
    check(&request(None), &present(), &first, None);

    let alone = Ok(InterceptorOrder {
        names: vec![IMPERATIVE_EVICTION.to_owned()],
        skipped: Vec::new(),
    });
    for (pod, evict) in [
        (pod(), true),
        (deleted(&[]), false),
        (exempt(EvictionExemption::StaticPod), false),
    ] {
        let (request, target) = (fresh(), Target::Present(pod));
        let snapshot = Snapshot {
            order: Some(&alone),
            ..snapshot(&request, &target)
        };
        assert_eq!(decide(&snapshot, DAY).step, step(&[IMPERATIVE_EVICTION], evict));
    }
}

#[test]
fn unusable_rule_lets_the_request_wait_with_a_reason() {
    let unknown = Err(NoOrder::Unknown(UnusableRule {
        name: "guard".to_owned(),
        why: "matchConditions[c]: no such key".to_owned(),
    }));
    let target = present();
    let decide_with = |request: &Request| {
        let snapshot = Snapshot {
            order: Some(&unknown),
            ..snapshot(request, &target)
        };
        decide(&snapshot, DAY)
    };
    let Step::RecordHold(Hold::By(blocked)) = decide_with(&fresh()).step else {
        panic!("not blocked")
    };
    assert_eq!((blocked.reason, blocked.since), (Reason::InterceptorRule, ago(0)));
    assert!(
        blocked.message.contains("guard") && blocked.message.contains("no such key"),
        "{}",
        blocked.message
    );
    let waiting = Request {
        blocked: Some(stored(&blocked)),
        ..fresh()
    };
    let decision = decide_with(&waiting);
    assert_eq!((decision.step, decision.next), (Step::Wait, in_seconds(60)));
}

#[test]
fn too_many_interceptors_fail_validation() {
    let order = Err(NoOrder::TooMany(TooManyInterceptors {
        count: 16,
        beyond: "z.example.com".to_owned(),
    }));
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
        reason: Some(ActivationReason::PreviousCompleted),
        evict: false,
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
        assert_eq!(decision.next, in_seconds(next), "{activated} {heartbeat:?}");
        assert!(matches!(decision.step, Step::Wait | Step::RecordHold(_)));
    }
}

/// The message and whether the completion time is set of the interceptor that is passed over; checks the next one.
#[track_caller]
fn passed_over(request: &Request, next: usize, evict: bool) -> (String, bool) {
    let decision = decided(request, &present(), None);
    let Step::Activate {
        index,
        reason: Some(ActivationReason::PreviousPassedOver { message, complete }),
        evict: evicts,
    } = decision.step
    else {
        panic!("{:?}", decision.step)
    };
    assert_eq!((index, evicts), (next, evict));
    (message, complete)
}

#[test]
fn interceptor_that_missed_its_deadline_is_passed_over_in_one_step() {
    let request = with(request(Some(1)), 1, |one| one.activated_at = Some(ago(1201)));
    let (message, complete) = passed_over(&request, 2, true);
    assert!(!complete && message.contains("1200 s"), "{message}");
}

#[test]
fn shorter_deadline_of_a_rule_is_told_as_a_timeout_and_sets_the_completion_time() {
    let mut request = with(request(Some(0)), 0, |interceptor| {
        interceptor.activated_at = Some(ago(61));
        interceptor.rule_deadline = Some(Duration::from_mins(1));
    });
    let (message, complete) = passed_over(&request, 1, false);
    assert!(complete && message.contains("60 s"), "{message}");
    request.interceptors[0].rule_deadline = Some(Duration::from_mins(150));
    check(&request, &present(), &Step::Wait, in_seconds(59));
}

#[test]
fn daemon_set_interceptor_is_passed_over_for_other_pods() {
    let mut request = with(request(Some(1)), 1, |one| one.activated_at = Some(ago(1)));
    request.interceptors[1].name = DAEMON_SET_INTERCEPTOR.to_owned();
    let (message, complete) = passed_over(&request, 2, true);
    assert_eq!(
        (message.as_str(), complete),
        ("Passed over: no DaemonSet controls the pod.", true)
    );
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
        let decision = decided(&request, &present(), None);
        assert_eq!(
            decision
                .warnings
                .contains(&RequestWarning::Unresponsive("a.example.com".to_owned())),
            is_reported,
            "{activated}"
        );
        let Step::RecordHold(Hold::By(blocked)) = decision.step else {
            assert!(!is_reported);
            continue;
        };
        assert!(is_reported);
        assert_eq!(
            (blocked.reason, blocked.since),
            (Reason::InterceptorSilent, ago(activated))
        );
        let recorded = Request {
            blocked: Some(stored(&blocked)),
            ..request
        };
        check(&recorded, &present(), &Step::Wait, in_seconds(1201 - activated));
    }
}

fn stored(blocked: &Blocked) -> StoredBlock {
    StoredBlock {
        reason: blocked.reason.as_str().to_owned(),
        message: blocked.message.clone(),
        since: blocked.since,
    }
}

/// A pod whose grace period has ended a minute ago, held by these finalizers.
fn deleted(finalizers: &[&str]) -> TargetPod {
    TargetPod {
        deletion: Some(PodDeletion {
            ends_at: ago(60),
            finalizers: finalizers.iter().map(|name| (*name).to_owned()).collect(),
            unready_node: None,
        }),
        ..pod()
    }
}

fn exempt(exemption: EvictionExemption) -> TargetPod {
    TargetPod {
        exemption: Some(exemption),
        ..pod()
    }
}

#[test]
fn daemon_set_interceptor_does_not_time_out() {
    let mut request = with(request(Some(1)), 1, |one| one.activated_at = Some(ago(9000)));
    request.interceptors[1].name = DAEMON_SET_INTERCEPTOR.to_owned();
    for exemption in [
        EvictionExemption::DaemonSetPod,
        EvictionExemption::TolerantDaemonSetPod,
    ] {
        let target = Target::Present(exempt(exemption));
        let Step::RecordHold(Hold::By(blocked)) = decided(&request, &target, None).step else {
            panic!("not blocked")
        };
        assert_eq!(blocked.reason, Reason::DaemonSetPod);
        assert_eq!(blocked.message, exemption.message());
        let mut recorded = request.clone();
        recorded.blocked = Some(stored(&blocked));
        check(&recorded, &target, &Step::Wait, None);
        if exemption == EvictionExemption::DaemonSetPod {
            // A maintenance of the node acts on it.
            recorded.interceptors[1].heartbeat_at = Some(ago(1));
            check(&recorded, &target, &Step::RecordHold(Hold::Nothing), None);
            // It may act soon.
            let new = with(request.clone(), 1, |one| one.activated_at = Some(ago(10)));
            check(&new, &target, &Step::Wait, in_seconds(20));
        }
    }
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
    check(&request, &present(), &Step::Wait, None);
    let without_requesters = Request {
        has_requesters: false,
        ..request
    };
    check(&without_requesters, &present(), &Step::Wait, None);
}

#[test]
fn request_being_deleted_ends_with_its_pod() {
    let request = Request {
        is_deleting: true,
        ..request(Some(0))
    };
    let gone = Step::Finish {
        reason: FinishReason::PodDeleted,
        message: "Pod web was deleted.".to_owned(),
    };
    check(&request, &absent(), &gone, None);
    let ended = Target::Present(TargetPod {
        is_terminal: true,
        ..pod()
    });
    let ended_step = Step::Finish {
        reason: FinishReason::PodTerminal,
        message: "Pod web has ended.".to_owned(),
    };
    check(&request, &ended, &ended_step, None);
    let finished = Request {
        finished_at: Some(ago(1000)),
        ttl: Some(Duration::ZERO),
        ..request
    };
    check(&finished, &absent(), &Step::Wait, None);
}

#[test]
fn new_generation_is_observed_when_there_is_nothing_else_to_do() {
    let mut request = with(request(Some(0)), 0, |one| one.activated_at = Some(ago(0)));
    request.generation = 2;
    check(&request, &present(), &Step::ObserveGeneration, in_seconds(120));
}
