//! Decides the next step of one request: a pure function of the stored request, the state of its pod, and the time.
//!
//! Its model is independent of the API version: [`super::observe`] fills it, [`super::act`] executes the step. After
//! each step the request is observed again, so a crash between two steps changes nothing.
//!
//! ```text
//! validate ─▶ copy labels ─▶ initialize interceptors ─▶ activate the first ─▶ … ─▶ activate the last ─▶ evict, retry
//!     │            at any time: pod gone ─▶ Evicted,  no requesters ─▶ Canceled
//!     └─▶ Canceled                                       finished ─▶ deleted after its TTL
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use drydock_proto::kinds::evictionrequest::{DAEMON_SET_INTERCEPTOR, IMPERATIVE_EVICTION};
use jiff::Timestamp;

use super::interceptors::{InterceptorOrder, TooManyInterceptors};
use crate::backoff::backoff;

/// How long an active interceptor may take to its first heartbeat before an Event reports it.
pub const UNRESPONSIVE_AFTER: Duration = Duration::from_mins(2);
/// Added to heartbeat deadlines. The server checks them by its own clock and must agree that they have passed.
const DEADLINE_MARGIN: Duration = Duration::from_secs(1);
/// The first delay between two eviction attempts.
const FIRST_ATTEMPT_DELAY: Duration = Duration::from_secs(1);
/// The longest delay between two eviction attempts.
const LONGEST_ATTEMPT_DELAY: Duration = Duration::from_mins(15);
/// The longest delay once no budget blocks the eviction any more.
const UNBLOCKED_ATTEMPT_DELAY: Duration = Duration::from_secs(3);
/// The delay after an accepted eviction of a pod that is neither terminating nor gone.
const ACCEPTED_ATTEMPT_DELAY: Duration = Duration::from_secs(10);

/// The stored request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// `metadata.generation`.
    pub generation: i64,
    /// `status.observedGeneration`.
    pub observed_generation: i64,
    /// Its own labels.
    pub labels: BTreeMap<String, String>,
    /// Whether it has requesters.
    pub has_requesters: bool,
    /// Whether the active interceptor forbids cancellation.
    pub is_cancellation_forbidden: bool,
    /// `spec.heartbeatDeadlineSeconds`.
    pub heartbeat_deadline: Duration,
    /// `spec.ttlSecondsAfterFinished`; `None` uses the default.
    pub ttl: Option<Duration>,
    /// When `Evicted` or `Canceled` became true.
    pub finished_at: Option<Timestamp>,
    /// The interceptors in order; empty until they are initialized.
    pub interceptors: Vec<InterceptorState>,
    /// The active interceptor: an index into `interceptors`.
    pub active: Option<usize>,
    /// How many interceptors were active before.
    pub processed: usize,
    /// How many calls of the eviction API were rejected.
    pub failed_evictions: u32,
}

/// An interceptor of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterceptorState {
    /// Its name.
    pub name: String,
    /// When it was activated.
    pub activated_at: Option<Timestamp>,
    /// Its last heartbeat.
    pub heartbeat_at: Option<Timestamp>,
    /// When it completed.
    pub completed_at: Option<Timestamp>,
    /// Its message.
    pub message: String,
    /// The shortest heartbeat deadline that an EvictionInterceptor sets for it.
    pub rule_deadline: Option<Duration>,
}

/// The pod that the request names, in its current state.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// There is no pod of this name.
    Absent {
        /// Its name.
        name: String,
    },
    /// A pod of this name exists with another UID.
    Replaced {
        /// Its name.
        name: String,
    },
    /// The pod exists.
    Present(TargetPod),
}

/// A pod that exists.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TargetPod {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether its phase is Succeeded or Failed.
    pub is_terminal: bool,
    /// Whether it is being deleted.
    pub is_terminating: bool,
    /// Whether it belongs to a Workload or `PodGroup`.
    pub is_grouped: bool,
    /// Why it is exempt from the eviction API.
    pub exemption: Option<EvictionExemption>,
    /// The budgets that select it.
    pub budgets: Vec<Budget>,
}

/// Why the eviction API is never called for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionExemption {
    /// Its DaemonSet would create it again.
    DaemonSetPod,
    /// The same, and a maintenance of its node leaves it alone as well: it tolerates the drain taint.
    TolerantDaemonSetPod,
    /// Only its node's kubelet can end it.
    StaticPod,
}

impl EvictionExemption {
    /// The message of the interceptor.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::DaemonSetPod => {
                "blocked: pods of DaemonSets are not evicted; they leave with a maintenance of their node"
            }
            Self::TolerantDaemonSetPod => {
                "blocked: the pod tolerates the drain taint, so its DaemonSet would create it again"
            }
            Self::StaticPod => "blocked: static pod",
        }
    }
}

/// A disruption budget that selects the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Its name.
    pub name: String,
    /// `status.disruptionsAllowed`.
    pub disruptions_allowed: i32,
}

/// A call of the eviction API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// When its result was known.
    pub at: Timestamp,
    /// Whether the API accepted it.
    pub is_accepted: bool,
    /// The delay that the API requested.
    pub retry_after: Option<Duration>,
    /// Whether a budget was the reason of the rejection.
    pub is_blocked_by_budget: bool,
    /// How many consecutive attempts, this one included, have a result that could not be written to the request.
    pub unrecorded: u32,
}

/// The input of a decision.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The request.
    pub request: &'a Request,
    /// Its pod.
    pub target: &'a Target,
    /// The order of the pod's interceptors; `None` once they are initialized.
    pub order: Option<&'a Result<InterceptorOrder, TooManyInterceptors>>,
    /// The last attempt of this process.
    pub attempt: Option<Attempt>,
    /// The time.
    pub now: Timestamp,
    /// A random number from 0 to 1 that spreads attempts.
    pub jitter: f64,
}

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationReason {
    /// It is the first.
    First,
    /// The one before completed.
    PreviousCompleted,
    /// The one before missed its heartbeat deadline.
    PreviousTimedOut,
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
    /// Set these labels on the request.
    CopyLabels(BTreeMap<String, String>),
    /// Write the order of interceptors, once.
    InitializeInterceptors(Vec<String>),
    /// Write why the active interceptor is passed over, before the next one is activated.
    RecordTimeout {
        /// The message.
        message: String,
        /// Whether to set its completion time. The server knows only the deadline of the request, so it rejects the
        /// activation after a shorter deadline unless the interceptor has completed.
        complete: bool,
    },
    /// Activate the next interceptor.
    Activate {
        /// Its index.
        index: usize,
        /// Why.
        reason: ActivationReason,
    },
    /// Call the eviction API.
    Evict,
    /// Write why the pod cannot be evicted.
    RecordExemption(EvictionExemption),
    /// Write `status.observedGeneration`.
    ObserveGeneration,
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
    /// What to report.
    pub warnings: Vec<RequestWarning>,
}

impl Decision {
    fn now(step: Step) -> Self {
        Self {
            step,
            next: None,
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

/// The next step of the request. `default_ttl` is for requests without a TTL of their own; zero keeps them.
#[must_use]
pub fn decide(snapshot: &Snapshot<'_>, default_ttl: Duration) -> Decision {
    let request = snapshot.request;
    if request.is_deleting {
        return Decision::wait_until(None);
    }
    if let Some(finished_at) = request.finished_at {
        return decide_deletion(request, finished_at, snapshot.now, default_ttl);
    }
    let pod = match check_target(snapshot) {
        Ok(pod) => pod,
        Err((reason, message)) => return Decision::now(Step::Finish { reason, message }),
    };
    if !request.has_requesters && !request.is_cancellation_forbidden {
        return Decision::now(Step::Finish {
            reason: FinishReason::NoRequesters,
            message: "All requesters withdrew.".to_owned(),
        });
    }
    let are_labels_missing = pod
        .labels
        .iter()
        .any(|(key, value)| request.labels.get(key) != Some(value));
    if are_labels_missing {
        return Decision::now(Step::CopyLabels(pod.labels.clone()));
    }
    if request.interceptors.is_empty() {
        return initialize_interceptors(snapshot, pod);
    }
    let mut decision = match request.active {
        None if request.processed >= request.interceptors.len() => Decision::wait_until(None),
        None => Decision::now(Step::Activate {
            index: request.processed,
            reason: ActivationReason::First,
        }),
        Some(index) => supervise_active(snapshot, pod, index),
    };
    if decision.step == Step::Wait && request.observed_generation < request.generation {
        decision.step = Step::ObserveGeneration;
    }
    decision
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

fn initialize_interceptors(snapshot: &Snapshot<'_>, pod: &TargetPod) -> Decision {
    match snapshot.order {
        None => Decision::wait_until(None),
        Some(Ok(order)) => Decision {
            warnings: if order.skipped.is_empty() {
                Vec::new()
            } else {
                vec![RequestWarning::SkippedDeclarations(order.skipped.clone())]
            },
            ..Decision::now(Step::InitializeInterceptors(order.names.clone()))
        },
        Some(Err(error)) => Decision::now(Step::Finish {
            reason: FinishReason::ValidationFailed,
            message: format!("Target Pod {} cannot be evicted: {error}.", pod.name),
        }),
    }
}

/// Waits for the active interceptor, moves on to the next one, or evicts when imperative eviction is active.
fn supervise_active(snapshot: &Snapshot<'_>, pod: &TargetPod, index: usize) -> Decision {
    let request = snapshot.request;
    let Some(active) = request.interceptors.get(index) else {
        return Decision::wait_until(None);
    };
    if active.name == IMPERATIVE_EVICTION {
        return decide_eviction(snapshot, pod, active);
    }
    let is_last = index + 1 >= request.interceptors.len();
    let activate_next = |reason| {
        Decision::now(Step::Activate {
            index: index + 1,
            reason,
        })
    };
    if active.completed_at.is_some() {
        return if is_last {
            Decision::wait_until(None)
        } else {
            activate_next(ActivationReason::PreviousCompleted)
        };
    }
    // The DaemonSet interceptor is part of this program and sends no heartbeats while it waits for a maintenance. The
    // one after it would be imperative eviction, which never evicts pods of DaemonSets.
    match pod.exemption.filter(|_| active.name == DAEMON_SET_INTERCEPTOR) {
        Some(exemption @ EvictionExemption::TolerantDaemonSetPod) => {
            return record_exemption(active, exemption);
        }
        Some(EvictionExemption::DaemonSetPod) => return Decision::wait_until(None),
        _ if is_last => return Decision::wait_until(None),
        _ => {}
    }
    let window = active
        .rule_deadline
        .map_or(request.heartbeat_deadline, |deadline| {
            deadline.min(request.heartbeat_deadline)
        });
    let base = active.activated_at.max(active.heartbeat_at);
    let Some(deadline) = base.and_then(|base| after(base, window.saturating_add(DEADLINE_MARGIN))) else {
        return Decision::wait_until(None);
    };
    if deadline <= snapshot.now {
        let message = timeout_message(active, window);
        let complete = window < request.heartbeat_deadline;
        return if active.message == message && !complete {
            activate_next(ActivationReason::PreviousTimedOut)
        } else {
            Decision::now(Step::RecordTimeout { message, complete })
        };
    }
    let first_heartbeat_by = match (active.heartbeat_at, active.activated_at) {
        (None, Some(activated_at)) => after(activated_at, UNRESPONSIVE_AFTER),
        _ => None,
    };
    match first_heartbeat_by {
        Some(at) if at <= snapshot.now => Decision {
            warnings: vec![RequestWarning::Unresponsive(active.name.clone())],
            ..Decision::wait_until(Some(deadline))
        },
        Some(at) => Decision::wait_until(Some(at.min(deadline))),
        None => Decision::wait_until(Some(deadline)),
    }
}

/// Writes once why the pod stays.
fn record_exemption(active: &InterceptorState, exemption: EvictionExemption) -> Decision {
    if active.message == exemption.message() {
        Decision::wait_until(None)
    } else {
        Decision::now(Step::RecordExemption(exemption))
    }
}

/// The message of an interceptor that missed its heartbeat deadline.
fn timeout_message(interceptor: &InterceptorState, window: Duration) -> String {
    let seconds = window.as_secs();
    match interceptor.heartbeat_at {
        None => format!("Passed over: no heartbeat within {seconds} s after its activation."),
        Some(heartbeat) => format!("Passed over: no heartbeat within {seconds} s after {heartbeat}."),
    }
}

fn decide_eviction(snapshot: &Snapshot<'_>, pod: &TargetPod, imperative: &InterceptorState) -> Decision {
    let request = snapshot.request;
    if let Some(exemption) = pod.exemption {
        return record_exemption(imperative, exemption);
    }
    if pod.is_terminating {
        return Decision::wait_until(None);
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
    if let Some(until) = resumed_until.filter(|until| *until > snapshot.now) {
        return Decision::wait_until(Some(until));
    }
    match next_attempt(snapshot, pod, imperative) {
        Some(at) if at > snapshot.now => Decision::wait_until(Some(at)),
        _ => Decision::now(Step::Evict),
    }
}

/// When the eviction API may be called again; `None` is now. After a restart the stored heartbeat is the time of the
/// last attempt, to the precision at which heartbeats are written.
fn next_attempt(
    snapshot: &Snapshot<'_>,
    pod: &TargetPod,
    imperative: &InterceptorState,
) -> Option<Timestamp> {
    let unrecorded = snapshot.attempt.map_or(0, |attempt| attempt.unrecorded);
    let failures = snapshot.request.failed_evictions.saturating_add(unrecorded);
    let last = match snapshot.attempt {
        Some(attempt) => Some(attempt.at).max(imperative.heartbeat_at),
        None => imperative.heartbeat_at,
    }?;
    if failures == 0 {
        return after(last, ACCEPTED_ATTEMPT_DELAY);
    }
    let mut delay = backoff(
        failures,
        FIRST_ATTEMPT_DELAY,
        LONGEST_ATTEMPT_DELAY,
        snapshot.jitter,
    );
    let was_blocked = snapshot
        .attempt
        .is_none_or(|attempt| attempt.is_blocked_by_budget);
    if was_blocked && is_unblocked(&pod.budgets) {
        delay = delay.min(UNBLOCKED_ATTEMPT_DELAY);
    } else if let Some(retry_after) = snapshot.attempt.and_then(|attempt| attempt.retry_after) {
        delay = delay.max(retry_after);
    }
    if snapshot.attempt.is_some_and(|attempt| attempt.is_accepted) {
        delay = delay.max(ACCEPTED_ATTEMPT_DELAY);
    }
    after(last, delay)
}

/// Whether no budget blocks the eviction. The eviction API rejects pods that several budgets select.
fn is_unblocked(budgets: &[Budget]) -> bool {
    match budgets {
        [] => true,
        [only] => only.disruptions_allowed > 0,
        _ => false,
    }
}

fn after(at: Timestamp, delay: Duration) -> Option<Timestamp> {
    at.checked_add(delay).ok()
}

#[cfg(test)]
mod tests;
