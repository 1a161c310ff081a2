use super::*;
use proptest::prelude::*;

const NOW: i64 = 1_000_000;
const DAY: Duration = Duration::from_hours(24);
const SETTINGS: Settings = Settings { default_ttl: DAY };

fn ago(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW - seconds).unwrap()
}

#[expect(clippy::unnecessary_wraps, reason = "compared with what may be absent")]
fn after(seconds: i64) -> Option<Timestamp> {
    Some(ago(-seconds))
}

fn pod() -> Present {
    Present {
        name: "web".to_owned(),
        ..Present::default()
    }
}

/// A request with interceptors `a`, `b` and the last resort, in the middle of `active`.
fn request(active: Option<usize>) -> Request {
    let turns = ["a.example.com", "b.example.com", IMPERATIVE_EVICTION];
    Request {
        generation: 1,
        observed_generation: 1,
        is_wanted: true,
        deadline: Duration::from_mins(20),
        turns: turns
            .iter()
            .map(|name| Turn {
                name: (*name).to_owned(),
                ..Turn::default()
            })
            .collect(),
        active,
        processed: active.unwrap_or(0),
        ..Request::default()
    }
}

fn with(mut request: Request, index: usize, change: impl FnOnce(&mut Turn)) -> Request {
    change(&mut request.turns[index]);
    request
}

fn fresh() -> Request {
    Request {
        turns: Vec::new(),
        ..request(None)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "handed in as what may have failed")]
fn order() -> Result<Order, TooMany> {
    Ok(Order {
        names: vec!["a.example.com".to_owned(), IMPERATIVE_EVICTION.to_owned()],
        faults: Vec::new(),
    })
}

fn decided(request: &Request, target: &Target, attempt: Option<Attempt>) -> Decision {
    let order = order();
    let snapshot = Snapshot {
        request,
        target,
        order: Some(&order),
        attempt,
        now: ago(0),
        chance: 0.0,
    };
    decide(&snapshot, &SETTINGS)
}

#[track_caller]
fn check(request: &Request, target: &Target, step: &Step, next: Option<Timestamp>) {
    let decision = decided(request, target, None);
    assert_eq!((&decision.step, decision.next), (step, next));
}

fn finish(end: End) -> impl Fn(&Step) -> bool {
    move |step| matches!(step, Step::Finish { end: found, .. } if *found == end)
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
fn a_target_that_never_was_fails_validation_and_one_that_left_is_evicted() {
    let grouped = Target::Present(Present {
        is_grouped: true,
        ..pod()
    });
    let ended = Target::Present(Present {
        is_terminal: true,
        ..pod()
    });
    let cases = [
        (fresh(), absent(), End::ValidationFailed),
        (fresh(), replaced(), End::ValidationFailed),
        (fresh(), grouped, End::ValidationFailed),
        (fresh(), ended.clone(), End::PodTerminal),
        (request(Some(0)), absent(), End::PodDeleted),
        (request(Some(2)), replaced(), End::PodDeleted),
        (request(Some(1)), ended, End::PodTerminal),
    ];
    for (request, target, end) in cases {
        let step = decided(&request, &target, None).step;
        assert!(
            finish(end)(&step),
            "{target:?} should end as {end:?}, not {step:?}"
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
fn nobody_asking_cancels_unless_it_is_forbidden() {
    let mut unwanted = with(request(Some(0)), 0, |turn| turn.activated = Some(ago(10)));
    unwanted.is_wanted = false;
    assert!(finish(End::NoRequesters)(
        &decided(&unwanted, &Target::Present(pod()), None).step
    ));
    unwanted.is_cancellation_forbidden = true;
    check(&unwanted, &Target::Present(pod()), &Step::Wait, after(110));
}

#[test]
fn labels_of_the_pod_win_and_are_kept_in_sync() {
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    let target = Target::Present(Present {
        labels: labels.clone(),
        ..pod()
    });
    for mine in [None, Some("other")] {
        let mut request = with(request(Some(0)), 0, |turn| turn.activated = Some(ago(1)));
        request
            .labels
            .extend(mine.map(|value| ("app".to_owned(), value.to_owned())));
        check(&request, &target, &Step::CopyLabels(labels.clone()), None);
        request.labels.clone_from(&labels);
        request.labels.insert("own".to_owned(), "kept".to_owned());
        check(&request, &target, &Step::Wait, after(119));
    }
}

#[test]
fn interceptors_are_declared_then_the_first_is_activated() {
    let names = order().unwrap().names;
    check(&fresh(), &Target::Present(pod()), &Step::Declare(names), None);
    let first = Step::Activate {
        index: 0,
        because: None,
    };
    check(&request(None), &Target::Present(pod()), &first, None);
}

#[test]
fn too_many_interceptors_fail_validation() {
    let order = Err(TooMany {
        count: 16,
        beyond: "z.example.com".to_owned(),
    });
    let snapshot = Snapshot {
        request: &fresh(),
        target: &Target::Present(pod()),
        order: Some(&order),
        attempt: None,
        now: ago(0),
        chance: 0.0,
    };
    let Step::Finish { end, message } = decide(&snapshot, &SETTINGS).step else {
        panic!("not finished")
    };
    assert_eq!(end, End::ValidationFailed);
    assert!(message.contains("z.example.com"), "{message}");
}

#[test]
fn completion_moves_on_at_once() {
    let request = with(request(Some(0)), 0, |turn| turn.completed = Some(ago(0)));
    let step = Step::Activate {
        index: 1,
        because: Some(Passing::Completed),
    };
    check(&request, &Target::Present(pod()), &step, None);
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
        let request = with(request(Some(0)), 0, |turn| {
            turn.activated = Some(ago(activated));
            turn.heartbeat = heartbeat.map(ago);
        });
        let decision = decided(&request, &Target::Present(pod()), None);
        assert_eq!(
            (decision.step, decision.next),
            (Step::Wait, after(next)),
            "{activated} {heartbeat:?}"
        );
    }
}

#[test]
fn silence_is_written_down_before_the_turn_ends() {
    let mut request = with(request(Some(1)), 1, |turn| turn.activated = Some(ago(1201)));
    let decision = decided(&request, &Target::Present(pod()), None);
    let Step::NoteSilence { message, complete } = decision.step else {
        panic!("{:?}", decision.step)
    };
    assert!(!complete && message.contains("1200 s"), "{message}");
    request.turns[1].message = message;
    let step = Step::Activate {
        index: 2,
        because: Some(Passing::Silent),
    };
    check(&request, &Target::Present(pod()), &step, None);
}

#[test]
fn a_shorter_bound_completes_the_turn_on_the_interceptors_behalf() {
    let mut request = with(request(Some(0)), 0, |turn| {
        turn.activated = Some(ago(61));
        turn.bound = Some(Duration::from_mins(1));
    });
    let Step::NoteSilence { complete, .. } = decided(&request, &Target::Present(pod()), None).step else {
        panic!("not passed over")
    };
    assert!(complete);
    request.turns[0].bound = Some(Duration::from_mins(150));
    check(&request, &Target::Present(pod()), &Step::Wait, after(59));
}

#[test]
fn every_interceptor_has_a_window_of_its_own() {
    let request = with(request(Some(1)), 1, |turn| turn.activated = Some(ago(5)));
    check(&request, &Target::Present(pod()), &Step::Wait, after(115));
}

#[test]
fn silence_after_activation_shows_after_two_minutes() {
    for (activated, heartbeat, told) in [(119, None, false), (120, None, true), (500, Some(400), false)] {
        let request = with(request(Some(0)), 0, |turn| {
            turn.activated = Some(ago(activated));
            turn.heartbeat = heartbeat.map(ago);
        });
        let notices = decided(&request, &Target::Present(pod()), None).notices;
        assert_eq!(
            notices.contains(&Notice::Unresponsive("a.example.com".to_owned())),
            told,
            "{activated}"
        );
    }
}

fn evicting(failures: u32) -> Request {
    let mut request = with(request(Some(2)), 2, |turn| turn.activated = Some(ago(5000)));
    request.failures = failures;
    request
}

#[test]
fn the_last_resort_evicts_at_once() {
    check(&evicting(0), &Target::Present(pod()), &Step::Evict, None);
}

#[test]
fn some_pods_are_never_evicted() {
    let terminating = Target::Present(Present {
        is_terminating: true,
        ..pod()
    });
    check(&evicting(0), &terminating, &Step::Wait, None);
    for never in [NeverEvict::Daemon, NeverEvict::Mirror] {
        let target = Target::Present(Present {
            never_evict: Some(never),
            ..pod()
        });
        check(&evicting(0), &target, &Step::NoteNeverEvict(never), None);
        let noted = with(evicting(0), 2, |turn| turn.message = never.message().to_owned());
        check(&noted, &target, &Step::Wait, None);
    }
}

#[test]
fn the_built_in_interceptor_of_daemon_pods_is_not_passed_over() {
    let mut request = with(request(Some(1)), 1, |turn| turn.activated = Some(ago(9000)));
    request.turns[1].name = DAEMON_SET_INTERCEPTOR.to_owned();
    let target = Target::Present(Present {
        never_evict: Some(NeverEvict::Daemon),
        ..pod()
    });
    check(&request, &target, &Step::Wait, None);
}

fn blocked(allowed: &[i32]) -> Target {
    let budgets = allowed.iter().enumerate().map(|(index, allowed)| Budget {
        name: format!("budget-{index}"),
        allowed: *allowed,
    });
    Target::Present(Present {
        budgets: budgets.collect(),
        ..pod()
    })
}

#[test]
fn attempts_back_off_and_hurry_once_no_budget_is_in_the_way() {
    let attempt = |retry_after: Option<u64>, blocked_by_budget| {
        Some(Attempt {
            at: ago(2),
            retry_after: retry_after.map(Duration::from_secs),
            blocked_by_budget,
        })
    };
    for (failures, budgets, attempt, next) in [
        (1, &[0][..], attempt(None, true), None),
        (3, &[0], attempt(None, true), after(2)),
        (3, &[0], attempt(Some(30), true), after(28)),
        (20, &[0], attempt(None, true), after(898)),
        (20, &[1], attempt(None, true), after(1)),
        (20, &[], attempt(Some(30), true), after(1)),
        (20, &[1, 1], attempt(None, true), after(898)),
        (20, &[], attempt(None, false), after(898)),
        (20, &[0], None, None),
    ] {
        let decision = decided(&evicting(failures), &blocked(budgets), attempt);
        assert_eq!(decision.next, next, "{failures} {budgets:?} {attempt:?}");
        assert_eq!(decision.step == Step::Evict, next.is_none());
    }
}

#[test]
fn a_restart_does_not_forget_the_back_off() {
    let request = with(evicting(20), 2, |turn| turn.heartbeat = Some(ago(100)));
    check(&request, &blocked(&[0]), &Step::Wait, after(800));
}

#[test]
fn an_interceptor_that_wakes_up_stops_the_last_resort() {
    let request = with(evicting(3), 1, |turn| turn.heartbeat = Some(ago(200)));
    check(&request, &Target::Present(pod()), &Step::Wait, after(1000));
    let request = with(evicting(3), 1, |turn| turn.heartbeat = Some(ago(6000)));
    check(&request, &Target::Present(pod()), &Step::Evict, None);
}

#[test]
fn finished_requests_are_collected_after_their_time() {
    let day = 86_400;
    for (finished, ttl, default_ttl, step, next) in [
        (day - 10, None, DAY, Step::Wait, after(10)),
        (day, None, DAY, Step::Collect, None),
        (day, None, Duration::ZERO, Step::Wait, None),
        (0, Some(0), DAY, Step::Collect, None),
        (50, Some(60), Duration::ZERO, Step::Wait, after(10)),
    ] {
        let request = Request {
            finished: Some(ago(finished)),
            ttl: ttl.map(Duration::from_secs),
            ..request(Some(0))
        };
        let target = absent();
        let snapshot = Snapshot {
            request: &request,
            target: &target,
            order: None,
            attempt: None,
            now: ago(0),
            chance: 0.0,
        };
        let decision = decide(&snapshot, &Settings { default_ttl });
        assert_eq!((decision.step, decision.next), (step, next), "{finished} {ttl:?}");
    }
}

#[test]
fn a_request_being_deleted_is_left_alone() {
    let request = Request {
        is_deleting: true,
        ..request(Some(0))
    };
    check(&request, &absent(), &Step::Wait, None);
}

#[test]
fn a_new_generation_is_acknowledged_when_there_is_nothing_else_to_do() {
    let mut request = with(request(Some(0)), 0, |turn| turn.activated = Some(ago(0)));
    request.generation = 2;
    check(&request, &Target::Present(pod()), &Step::Acknowledge, after(120));
}

proptest! {
    /// Whatever is stored, a decision is reached, and one that only waits never waits for the past.
    #[test]
    fn decisions_are_total(
        active in proptest::option::of(0_usize..4),
        times in proptest::collection::vec(proptest::option::of(0_i64..4000), 9),
        failures in 0_u32..100,
        wanted: bool, forbidden: bool, terminating: bool, daemon: bool,
        allowed in proptest::collection::vec(0_i32..2, 0..3),
    ) {
        let mut request = request(active);
        for (index, turn) in request.turns.iter_mut().enumerate() {
            turn.activated = times[index * 3].map(ago);
            turn.heartbeat = times[index * 3 + 1].map(ago);
            turn.completed = times[index * 3 + 2].map(ago);
        }
        request.failures = failures;
        request.is_wanted = wanted;
        request.is_cancellation_forbidden = forbidden;
        let Target::Present(present) = blocked(&allowed) else { unreachable!() };
        let target = Target::Present(Present {
            is_terminating: terminating,
            never_evict: daemon.then_some(NeverEvict::Daemon),
            ..present
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
