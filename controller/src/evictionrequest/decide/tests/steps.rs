//! Properties of sequences of steps, with the status as it is written and read again.

use std::collections::HashMap;

use super::super::super::status::{after_step, model};
use super::*;
use drydock_proto::kinds::evictionrequest::EvictionRequest;
use proptest::prelude::*;
use serde_json::json;

/// What decides about a request besides the request.
#[derive(Debug, Clone)]
struct World {
    target: Target,
    order: Result<InterceptorOrder, NoOrder>,
    /// What the eviction API answers.
    refusal: Option<Refusal>,
}

/// A request as it is stored, and what its process remembers.
struct Simulation {
    request: EvictionRequest,
    attempt: Option<Attempt>,
    evictions: usize,
}

impl Simulation {
    fn new() -> Self {
        let request = json!({
            "metadata": {"name": "uid-1", "namespace": "shop", "generation": 1},
            "spec": {"target": {"pod": {"name": "web", "uid": "uid-1"}}, "requesters": [{"name": "a.example.com"}]},
        });
        Self {
            request: serde_json::from_value(request).unwrap(),
            attempt: None,
            evictions: 0,
        }
    }

    /// Takes steps at one time until there is nothing more to do. Checks that no step is repeated.
    fn settle(&mut self, world: &World, now: Timestamp) -> Result<Decision, TestCaseError> {
        let mut taken: Vec<Step> = Vec::new();
        loop {
            let mut request = model(&self.request, &HashMap::new());
            request.missing_annotations.clear();
            let snapshot = Snapshot {
                request: &request,
                target: &world.target,
                order: Some(&world.order),
                attempt: self.attempt.as_ref(),
                now,
                jitter: 0.0,
            };
            let decision = decide(&snapshot, DAY);
            if matches!(decision.step, Step::Wait | Step::DeleteRequest) {
                return Ok(decision);
            }
            prop_assert!(!taken.contains(&decision.step), "repeated: {:?}", decision.step);
            prop_assert!(taken.len() < 8, "{taken:?}");
            let status = after_step(&self.request, &decision.step, now);
            prop_assert!(status.is_some(), "{:?}", decision.step);
            prop_assert!(
                status != self.request.status,
                "nothing is written by {:?}",
                decision.step
            );
            self.request.status = status;
            if decision.step.evicts() {
                self.evictions += 1;
                self.attempt = Some(Attempt {
                    budgets: match &world.target {
                        Target::Present(pod) => pod.budgets.clone(),
                        _ => Vec::new(),
                    },
                    unwritten: world.refusal.clone(),
                });
            } else if matches!(decision.step, Step::RecordRefusal { .. }) {
                self.attempt.as_mut().unwrap().unwritten = None;
            }
            taken.push(decision.step);
        }
    }

    fn is_blocked(&self) -> bool {
        model(&self.request, &HashMap::new()).blocked.is_some()
    }
}

fn any_refusal() -> impl Strategy<Value = Option<Refusal>> {
    let reasons = [
        Reason::Budget,
        Reason::MultipleBudgets,
        Reason::BudgetNotObserved,
        Reason::BudgetNotComputable,
        Reason::Webhook,
        Reason::Throttled,
        Reason::NamespaceTerminating,
        Reason::EvictionFailed,
    ];
    let refusal = proptest::sample::select(reasons.to_vec()).prop_map(|reason| Refusal {
        reason,
        message: "m".to_owned(),
        cause: "m".to_owned(),
        result: "refused",
        retry_after: None,
    });
    proptest::option::of(refusal)
}

fn any_pod() -> impl Strategy<Value = TargetPod> {
    let budgets = proptest::collection::vec((0_i32..2, any::<bool>()), 0..3);
    let deletion = proptest::option::of((-100_i64..100, 0_usize..2, any::<bool>()));
    let exemption = proptest::option::of(proptest::sample::select(vec![
        EvictionExemption::DaemonSetPod,
        EvictionExemption::TolerantDaemonSetPod,
        EvictionExemption::StaticPod,
    ]));
    (budgets, deletion, exemption).prop_map(|(budgets, deletion, exemption)| TargetPod {
        budgets: budgets
            .into_iter()
            .enumerate()
            .map(|(index, (allowed, is_observed))| Budget {
                name: format!("budget-{index}"),
                disruptions_allowed: allowed,
                is_observed,
                ..Budget::default()
            })
            .collect(),
        deletion: deletion.map(|(ends, finalizers, is_unready)| PodDeletion {
            ends_at: ago(ends),
            finalizers: (0..finalizers).map(|index| format!("f{index}")).collect(),
            unready_node: is_unready.then(|| "one".to_owned()),
        }),
        exemption,
        ..pod()
    })
}

proptest! {
    /// At any time a request comes to rest after a few steps, each of which writes something; no eviction is repeated
    /// before the deadline that was named; and a pod that is still there is blocked for a named reason, or there is a
    /// deadline at which that is judged again.
    #[test]
    fn no_step_repeats_and_every_blocked_pod_has_a_reason(
        pod in any_pod(),
        refusal in any_refusal(),
        has_interceptor: bool,
        has_daemon_set_interceptor: bool,
        is_rule_unusable: bool,
        waits in proptest::collection::vec(1_u64..2_000, 1..8),
    ) {
        let mut names = Vec::new();
        names.extend(has_interceptor.then(|| "a.example.com".to_owned()));
        names.extend(has_daemon_set_interceptor.then(|| DAEMON_SET_INTERCEPTOR.to_owned()));
        names.push(IMPERATIVE_EVICTION.to_owned());
        let order = if is_rule_unusable {
            Err(NoOrder::Unknown(UnusableRule { name: "r".to_owned(), why: "w".to_owned() }))
        } else {
            Ok(InterceptorOrder { names, skipped: Vec::new() })
        };
        let is_never_evicted = pod.exemption.is_some() || pod.deletion.is_some() || is_rule_unusable;
        let is_free_to_leave = pod.deletion.as_ref().is_some_and(|deletion| {
            deletion.finalizers.is_empty() && deletion.unready_node.is_none()
        });
        let world = World { target: Target::Present(pod), order, refusal };
        let mut simulation = Simulation::new();
        let mut now = ago(0);
        for wait in waits {
            let decision = simulation.settle(&world, now)?;
            let again = simulation.settle(&world, now)?;
            prop_assert_eq!(again.step, Step::Wait);
            let evictions = simulation.evictions;
            if let Some(next) = decision.next {
                prop_assert!(next > now, "{next} is not after {now}");
                let before = next.checked_sub(Duration::from_millis(1)).unwrap().max(now);
                simulation.settle(&world, before)?;
                prop_assert_eq!(simulation.evictions, evictions, "an attempt before its time");
            }
            let is_explained = simulation.is_blocked() || decision.next.is_some() || is_free_to_leave;
            prop_assert!(is_explained, "waits without a reason: {:?}", simulation.request.status);
            now = now.checked_add(Duration::from_secs(wait)).unwrap();
        }
        prop_assert!(!(is_never_evicted && simulation.evictions > 0));
    }

    /// Every stored state has a decision, and a decision to wait names a time in the future.
    #[test]
    fn every_state_has_a_decision(
        active in proptest::option::of(0_usize..4),
        times in proptest::collection::vec(proptest::option::of(0_i64..4000), 11),
        failures in 0_u32..100,
        wanted: bool,
        forbidden: bool,
        pod in any_pod(),
    ) {
        let mut request = request(active);
        for (index, interceptor) in request.interceptors.iter_mut().enumerate() {
            interceptor.activated_at = times[index * 3].map(ago);
            interceptor.heartbeat_at = times[index * 3 + 1].map(ago);
            interceptor.completed_at = times[index * 3 + 2].map(ago);
        }
        request.last_attempt_at = times[9].map(ago);
        request.next_attempt_at = times[10].map(|time| ago(time - 2000));
        request.failed_evictions = failures;
        request.has_requesters = wanted;
        request.is_cancellation_forbidden = forbidden;
        let is_evictable = pod.exemption.is_none() && pod.deletion.is_none();
        let decision = decided(&request, &Target::Present(pod), None);
        if decision.step == Step::Wait && let Some(next) = decision.next {
            prop_assert!(next > ago(0));
        }
        prop_assert!(is_evictable || !decision.step.evicts());
        if let Step::Activate { index, .. } = decision.step {
            prop_assert!(active.is_none_or(|active| index == active + 1));
        }
    }
}
