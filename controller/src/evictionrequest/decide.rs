//! Decides the next step of one request: a pure function of the stored request, the state of its pod, and the time.
//!
//! [`super::observe`] fills its input, [`super::act`] executes the step. After each step the request is observed again, so
//! a crash between two steps changes nothing.
//!
//! ```text
//! validate ─▶ copy labels ─▶ initialize, activate the first ─▶ … ─▶ activate the last ─▶ evict, record a refusal, retry
//!     │            at any time: pod gone ─▶ Evicted,  no requesters ─▶ Canceled
//!     └─▶ Canceled                                       finished ─▶ deleted after its TTL
//! ```
//!
//! An eviction is posted only after its intent was written. Where the turn of imperative eviction begins, the activation
//! contains the intent, which saves a write.

use std::collections::BTreeMap;
use std::time::Duration;

use drydock_proto::kinds::evictionrequest::{DAEMON_SET_INTERCEPTOR, IMPERATIVE_EVICTION};
use jiff::Timestamp;

use super::attempts::{self, NextAttempt};
use super::blocked::{self, Hold};
use super::reason::Reason;
use super::refusal::Refusal;
use super::snapshot::{EvictionExemption, InterceptorState, NoOrder, Request, Snapshot, Target, TargetPod};
use crate::request_labels::LabelChanges;

/// How often it is tried again whether a rule can be evaluated.
const RULE_RETRY: Duration = Duration::from_mins(1);
/// Added to heartbeat deadlines. The server checks them by its own clock and must agree that they have passed.
const DEADLINE_MARGIN: Duration = Duration::from_secs(1);

/// The condition and reason of a finished request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// Evicted: the pod was deleted.
    PodDeleted,
    /// Evicted: the pod's phase is Succeeded or Failed.
    PodTerminal,
    /// Canceled: the request is not valid.
    ValidationFailed,
    /// Canceled: all requesters withdrew.
    NoRequesters,
}

/// Why the next interceptor is activated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActivationReason {
    /// The one before completed.
    PreviousCompleted,
    /// The one before is passed over.
    PreviousPassedOver {
        /// Its message: why.
        message: String,
        /// Whether to set its completion time. The server knows only the deadline of the request, so it rejects the
        /// activation after a shorter deadline unless the interceptor has completed.
        complete: bool,
    },
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing until the next change or deadline.
    Wait,
    /// Delete the request, whose TTL has passed.
    DeleteRequest,
    /// Set the final condition.
    Finish {
        /// Its reason.
        reason: FinishReason,
        /// Its message.
        message: String,
    },
    /// Change labels and annotations of the request.
    CopyLabels {
        /// The labels.
        labels: LabelChanges,
        /// The annotations to set.
        annotations: BTreeMap<String, String>,
    },
    /// Write the order of interceptors, once, and activate the first.
    Initialize {
        /// The interceptors in order.
        names: Vec<String>,
        /// Whether to write the intent to evict, and to evict then.
        evict: bool,
    },
    /// Activate the next interceptor.
    Activate {
        /// Its index.
        index: usize,
        /// Why; `None` for the first.
        reason: Option<ActivationReason>,
        /// Whether to write the intent to evict, and to evict then.
        evict: bool,
    },
    /// Write the intent to evict, and evict then.
    Evict {
        /// The budget whose broker must admit it.
        budget: Option<String>,
    },
    /// Write that the eviction was refused.
    RecordRefusal {
        /// The refusal.
        refusal: Refusal,
        /// When the next attempt may be made, from now.
        delay: Duration,
    },
    /// Write the condition `Blocked`.
    RecordHold(Hold),
    /// Write `status.observedGeneration`.
    ObserveGeneration,
}

impl Step {
    /// Whether an eviction follows.
    #[must_use]
    pub const fn evicts(&self) -> bool {
        matches!(
            self,
            Self::Initialize { evict: true, .. } | Self::Activate { evict: true, .. } | Self::Evict { .. }
        )
    }
}

/// A Warning Event to publish along with the step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestWarning {
    /// The active interceptor has sent no heartbeat since its activation.
    Unresponsive(String),
    /// Interceptor declarations that were skipped.
    SkippedDeclarations(Vec<String>),
}

/// The output of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What to do next.
    pub step: Step,
    /// When to decide again without a change.
    pub next: Option<Timestamp>,
    /// The budget that may open before.
    pub budget: Option<String>,
    /// What to report.
    pub warnings: Vec<RequestWarning>,
}

impl Decision {
    fn now(step: Step) -> Self {
        Self {
            step,
            next: None,
            budget: None,
            warnings: Vec::new(),
        }
    }

    fn wait_until(next: Option<Timestamp>) -> Self {
        Self {
            next,
            ..Self::now(Step::Wait)
        }
    }
}

/// What to do, what holds the pod meanwhile, and when the hold may change by itself.
struct Supervision {
    decision: Decision,
    hold: Hold,
}

impl Supervision {
    fn wait(hold: Hold, next: impl IntoIterator<Item = Timestamp>) -> Self {
        Self {
            decision: Decision::wait_until(next.into_iter().min()),
            hold,
        }
    }

    fn step(step: Step) -> Self {
        Self {
            decision: Decision::now(step),
            hold: Hold::AsStored,
        }
    }

    /// The decision. What holds the pod is written when there is nothing else to write.
    fn decide(self, request: &Request) -> Decision {
        let mut decision = self.decision;
        if decision.step == Step::Wait && self.hold.differs_from(request.blocked.as_ref()) {
            decision.step = Step::RecordHold(self.hold);
        } else if decision.step == Step::Wait && request.observed_generation < request.generation {
            decision.step = Step::ObserveGeneration;
        }
        decision
    }
}

/// The next step of the request. `default_ttl` is for requests without a TTL of their own; zero keeps them.
#[must_use]
pub fn decide(snapshot: &Snapshot<'_>, default_ttl: Duration) -> Decision {
    let request = snapshot.request;
    if let Some(finished_at) = request.finished_at {
        if request.is_deleting {
            return Decision::wait_until(None);
        }
        return decide_deletion(request, finished_at, snapshot.now, default_ttl);
    }
    let pod = match check_target(snapshot) {
        Ok(pod) => pod,
        Err((reason, message)) => return Decision::now(Step::Finish { reason, message }),
    };
    if request.is_deleting {
        // A finalizer holds it. It ends with its pod, for whom nothing is done any more.
        return Decision::wait_until(None);
    }
    if !request.has_requesters && !request.is_cancellation_forbidden {
        return Decision::now(Step::Finish {
            reason: FinishReason::NoRequesters,
            message: "All requesters withdrew.".to_owned(),
        });
    }
    if !request.label_changes.is_empty() || !request.missing_annotations.is_empty() {
        return Decision::now(Step::CopyLabels {
            labels: request.label_changes.clone(),
            annotations: request.missing_annotations.clone(),
        });
    }
    if request.interceptors.is_empty() {
        return initialize(snapshot, pod);
    }
    let supervision = match request.active {
        None if request.processed >= request.interceptors.len() => Supervision::wait(Hold::Nothing, None),
        None => activate(snapshot, pod, request.processed, None),
        Some(index) => supervise_active(snapshot, pod, index),
    };
    supervision.decide(request)
}

fn decide_deletion(
    request: &Request,
    finished_at: Timestamp,
    now: Timestamp,
    default_ttl: Duration,
) -> Decision {
    let ttl = match request.ttl {
        Some(ttl) => ttl,
        None if default_ttl.is_zero() => return Decision::wait_until(None),
        None => default_ttl,
    };
    match after(finished_at, ttl) {
        Some(at) if at <= now => Decision::now(Step::DeleteRequest),
        at => Decision::wait_until(at),
    }
}

/// The pod, if it is still to be evicted; otherwise how the request finishes.
fn check_target<'a>(snapshot: &Snapshot<'a>) -> Result<&'a TargetPod, (FinishReason, String)> {
    let is_validated = !snapshot.request.interceptors.is_empty();
    let pod = match (snapshot.target, is_validated) {
        (Target::Present(pod), _) => pod,
        (Target::Absent { name } | Target::Replaced { name }, true) => {
            return Err((FinishReason::PodDeleted, format!("Pod {name} was deleted.")));
        }
        (Target::Absent { name }, false) => {
            let message = format!("Target Pod {name} was not found.");
            return Err((FinishReason::ValidationFailed, message));
        }
        (Target::Replaced { name }, false) => {
            let message = format!("Target Pod {name} was not found: the pod of that name has another UID.");
            return Err((FinishReason::ValidationFailed, message));
        }
    };
    if pod.is_terminal {
        return Err((FinishReason::PodTerminal, format!("Pod {} has ended.", pod.name)));
    }
    if pod.is_grouped && !is_validated {
        let message = format!(
            "Target Pod {} is part of a Workload/PodGroup. Eviction of such pods is currently not supported.",
            pod.name
        );
        return Err((FinishReason::ValidationFailed, message));
    }
    Ok(pod)
}

fn initialize(snapshot: &Snapshot<'_>, pod: &TargetPod) -> Decision {
    let (request, now) = (snapshot.request, snapshot.now);
    match snapshot.order {
        None => Decision::wait_until(None),
        Some(Ok(order)) => {
            let first = order.names.first().map_or("", String::as_str);
            let step = Step::Initialize {
                names: order.names.clone(),
                evict: first == IMPERATIVE_EVICTION && may_evict(pod),
            };
            Decision {
                warnings: if order.skipped.is_empty() {
                    Vec::new()
                } else {
                    vec![RequestWarning::SkippedDeclarations(order.skipped.clone())]
                },
                ..Decision::now(step)
            }
        }
        Some(Err(NoOrder::TooMany(error))) => Decision::now(Step::Finish {
            reason: FinishReason::ValidationFailed,
            message: format!("Target Pod {} cannot be evicted: {error}.", pod.name),
        }),
        Some(Err(NoOrder::Unknown(rule))) => {
            let hold = blocked::by_rule(rule, request.blocked.as_ref(), now);
            Supervision::wait(hold, after(now, RULE_RETRY)).decide(request)
        }
    }
}

/// Whether the eviction API may be called for the pod at all.
fn may_evict(pod: &TargetPod) -> bool {
    pod.exemption.is_none() && pod.deletion.is_none()
}

/// Activates the interceptor of this index.
fn activate(
    snapshot: &Snapshot<'_>,
    pod: &TargetPod,
    index: usize,
    reason: Option<ActivationReason>,
) -> Supervision {
    let request = snapshot.request;
    let is_imperative = request
        .interceptors
        .get(index)
        .is_some_and(|next| next.name == IMPERATIVE_EVICTION);
    Supervision::step(Step::Activate {
        index,
        reason,
        evict: is_imperative && request.last_attempt_at.is_none() && may_evict(pod),
    })
}

/// Waits for the active interceptor, moves on to the next one, or evicts when imperative eviction is active.
fn supervise_active(snapshot: &Snapshot<'_>, pod: &TargetPod, index: usize) -> Supervision {
    let (request, now) = (snapshot.request, snapshot.now);
    let Some(active) = request.interceptors.get(index) else {
        return Supervision::wait(Hold::Nothing, None);
    };
    if active.name == IMPERATIVE_EVICTION {
        return decide_eviction(snapshot, pod, active);
    }
    // What holds the pod, and when that may change by itself.
    let (hold, changes_at) = match (&pod.deletion, daemon_set_exemption(pod, active)) {
        (Some(deletion), _) => blocked::by_deletion(deletion, now),
        (None, Some(exemption)) => blocked::by_exemption(exemption, active, now),
        (None, None) => blocked::by_silence(active, now),
    };
    let is_last = index + 1 >= request.interceptors.len();
    // The DaemonSet interceptor is part of this program and sends no heartbeats while it waits for a maintenance. The
    // one after it would be imperative eviction, which never evicts pods of DaemonSets.
    if is_last || daemon_set_exemption(pod, active).is_some() {
        return Supervision::wait(hold, changes_at);
    }
    let activate_next = |reason| activate(snapshot, pod, index + 1, Some(reason));
    if active.completed_at.is_some() {
        return activate_next(ActivationReason::PreviousCompleted);
    }
    if active.name == DAEMON_SET_INTERCEPTOR {
        return activate_next(ActivationReason::PreviousPassedOver {
            message: "Passed over: no DaemonSet controls the pod.".to_owned(),
            complete: true,
        });
    }
    let window = active
        .rule_deadline
        .map_or(request.heartbeat_deadline, |deadline| {
            deadline.min(request.heartbeat_deadline)
        });
    let base = active.activated_at.max(active.heartbeat_at);
    let Some(deadline) = base.and_then(|base| after(base, window.saturating_add(DEADLINE_MARGIN))) else {
        return Supervision::wait(hold, changes_at);
    };
    if deadline <= now {
        return activate_next(ActivationReason::PreviousPassedOver {
            message: timeout_message(active, window),
            complete: window < request.heartbeat_deadline,
        });
    }
    let mut supervision = Supervision::wait(hold, changes_at.into_iter().chain([deadline]));
    if let Hold::By(blocked) = &supervision.hold
        && blocked.reason == Reason::InterceptorSilent
    {
        let warning = RequestWarning::Unresponsive(active.name.clone());
        supervision.decision.warnings.push(warning);
    }
    supervision
}

/// Why the pod is exempt from evictions, if the built-in DaemonSet interceptor is to end it instead.
fn daemon_set_exemption(pod: &TargetPod, active: &InterceptorState) -> Option<EvictionExemption> {
    pod.exemption.filter(|exemption| {
        active.name == DAEMON_SET_INTERCEPTOR && *exemption != EvictionExemption::StaticPod
    })
}

/// The message of an interceptor that missed its heartbeat deadline.
fn timeout_message(interceptor: &InterceptorState, window: Duration) -> String {
    let seconds = window.as_secs();
    match interceptor.heartbeat_at {
        None => format!("Passed over: no heartbeat within {seconds} s after its activation."),
        Some(heartbeat) => format!("Passed over: no heartbeat within {seconds} s after {heartbeat}."),
    }
}

fn decide_eviction(snapshot: &Snapshot<'_>, pod: &TargetPod, imperative: &InterceptorState) -> Supervision {
    let (request, now) = (snapshot.request, snapshot.now);
    if let Some(deletion) = &pod.deletion {
        let (hold, changes_at) = blocked::by_deletion(deletion, now);
        return Supervision::wait(hold, changes_at);
    }
    if let Some(exemption) = pod.exemption {
        let (hold, changes_at) = blocked::by_exemption(exemption, imperative, now);
        return Supervision::wait(hold, changes_at);
    }
    if let Some(refusal) = snapshot.attempt.and_then(|attempt| attempt.unwritten.clone()) {
        let delay = attempts::delay_after(&refusal, snapshot);
        return Supervision::step(Step::RecordRefusal { refusal, delay });
    }
    // An interceptor that was passed over and sent a heartbeat since gets a full window.
    let resumed_until = request
        .interceptors
        .iter()
        .filter(|other| {
            other.name != imperative.name
                && other.completed_at.is_none()
                && other.heartbeat_at > imperative.activated_at
        })
        .filter_map(|other| after(other.heartbeat_at?, request.heartbeat_deadline))
        .max();
    if let Some(until) = resumed_until.filter(|until| *until > now) {
        return Supervision::wait(Hold::AsStored, Some(until));
    }
    // An attempt without a stored result: it was accepted, or this process has just started.
    let hold = match (request.last_attempt_at, request.next_attempt_at) {
        (Some(last), None) => blocked::by_missing_deletion(last, request.blocked.as_ref(), now).0,
        _ => Hold::AsStored,
    };
    if hold.differs_from(request.blocked.as_ref()) {
        return Supervision::wait(hold, Some(now));
    }
    match attempts::next_attempt(snapshot, pod) {
        NextAttempt::Now => Supervision::step(Step::Evict { budget: None }),
        NextAttempt::ByBudget(budget) => Supervision::step(Step::Evict { budget: Some(budget) }),
        NextAttempt::At { at, budget } => {
            let mut supervision = Supervision::wait(hold, Some(at));
            supervision.decision.budget = budget;
            supervision
        }
    }
}

fn after(at: Timestamp, delay: Duration) -> Option<Timestamp> {
    at.checked_add(delay).ok()
}

#[cfg(test)]
mod tests;
