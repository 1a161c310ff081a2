//! What is the next step of one request? A pure function of what is stored, what the host says, and the time.
//!
//! The model here speaks of targets, requesters, turns and clocks, not of one API version's fields: `observe`
//! fills it, and `act` carries steps out. One step at a time is taken and the result looked at again, so a crash
//! between any two of them changes nothing.
//!
//! ```text
//! validate ─▶ copy labels ─▶ declare ─▶ activate the first ─▶ … ─▶ activate the last ─▶ evict, and again
//!     │                          any time: target gone ─▶ evicted,  nobody asks ─▶ canceled
//!     └─▶ canceled                                                finished ─▶ collected after its time to live
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use drydock_proto::kinds::evictionrequest::{DAEMON_SET_INTERCEPTOR, IMPERATIVE_EVICTION};
use jiff::Timestamp;

use super::interceptors::{Order, TooMany};
use crate::work_queue::backoff;

/// How long an active interceptor may be silent before people are told.
pub const UNRESPONSIVE_AFTER: Duration = Duration::from_mins(2);
/// The server compares with its own clock; a move is asked for only when it surely agrees.
const DEADLINE_GRACE: Duration = Duration::from_secs(1);
/// The first delay between two eviction attempts.
const FIRST_ATTEMPT_DELAY: Duration = Duration::from_secs(1);
/// The longest delay between two eviction attempts.
const LONGEST_ATTEMPT_DELAY: Duration = Duration::from_mins(15);
/// The longest delay once no budget is in the way any more.
const UNBLOCKED_ATTEMPT_DELAY: Duration = Duration::from_secs(3);

/// A request, as far as decisions go.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// The generation of what is asked.
    pub generation: i64,
    /// The generation the controller has acted on.
    pub observed_generation: i64,
    /// Labels of the request itself.
    pub labels: BTreeMap<String, String>,
    /// Whether somebody still asks.
    pub is_wanted: bool,
    /// Whether requesters may no longer withdraw.
    pub is_cancellation_forbidden: bool,
    /// How long an interceptor may be silent.
    pub deadline: Duration,
    /// How long it is kept when finished; `None` leaves it to the settings.
    pub ttl: Option<Duration>,
    /// When it became final.
    pub finished: Option<Timestamp>,
    /// The interceptors in order; empty until declared.
    pub turns: Vec<Turn>,
    /// Whose turn it is: an index into `turns`.
    pub active: Option<usize>,
    /// How many turns are over.
    pub processed: usize,
    /// How many evictions were refused.
    pub failures: u32,
}

/// An interceptor of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turn {
    /// The name of the interceptor.
    pub name: String,
    /// When its turn began.
    pub activated: Option<Timestamp>,
    /// Its last sign of life.
    pub heartbeat: Option<Timestamp>,
    /// When it was done.
    pub completed: Option<Timestamp>,
    /// What it says.
    pub message: String,
    /// An upper bound of its deadline by rule.
    pub bound: Option<Duration>,
}

/// The target as the host knows it now.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// There is no such pod.
    Absent {
        /// Its name.
        name: String,
    },
    /// A pod of that name exists, and is another one.
    Replaced {
        /// Its name.
        name: String,
    },
    /// It is there.
    Present(Present),
}

/// A target that exists.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Present {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether it ended by itself.
    pub is_terminal: bool,
    /// Whether it is being deleted.
    pub is_terminating: bool,
    /// Whether it belongs to a group that must not be evicted one by one.
    pub is_grouped: bool,
    /// Why the eviction API must not be called for it at all.
    pub never_evict: Option<NeverEvict>,
    /// The budgets that select it.
    pub budgets: Vec<Budget>,
}

/// Why a pod is not for the eviction API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeverEvict {
    /// A DaemonSet owns it and would bring it back.
    Daemon,
    /// Only its node can end it.
    Mirror,
}

impl NeverEvict {
    /// What people read.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Daemon => {
                "blocked: pods of DaemonSets are not evicted; they leave with a maintenance of their node"
            }
            Self::Mirror => "blocked: static pod",
        }
    }
}

/// A disruption budget that selects the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Its name.
    pub name: String,
    /// How many pods it lets go now.
    pub allowed: i32,
}

/// The last eviction attempt this process knows of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// When.
    pub at: Timestamp,
    /// How long the API asked to wait.
    pub retry_after: Option<Duration>,
    /// Whether a budget was the reason of the refusal.
    pub blocked_by_budget: bool,
}

/// All that a decision is made of.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The request.
    pub request: &'a Request,
    /// Its target.
    pub target: &'a Target,
    /// The order of the target's interceptors; `None` where it is not needed any more.
    pub order: Option<&'a Result<Order, TooMany>>,
    /// The last attempt, if this process made one.
    pub attempt: Option<Attempt>,
    /// The time.
    pub now: Timestamp,
    /// A number from 0 to 1 that spreads attempts.
    pub chance: f64,
}

/// How long finished requests are kept where they do not say; zero keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The time to live.
    pub default_ttl: Duration,
}

/// How a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The target is gone: deleted.
    PodDeleted,
    /// The target is gone: it ended by itself.
    PodTerminal,
    /// The request was not valid.
    ValidationFailed,
    /// Nobody asks any more.
    NoRequesters,
}

/// Why a turn is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passing {
    /// The interceptor said so.
    Completed,
    /// It was silent for too long.
    Silent,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing, until something changes.
    Wait,
    /// Delete the request.
    Collect,
    /// Make the request final.
    Finish {
        /// How.
        end: End,
        /// For people.
        message: String,
    },
    /// Set these labels on the request.
    CopyLabels(BTreeMap<String, String>),
    /// Write down the order, once.
    Declare(Vec<String>),
    /// Write down why the active interceptor is passed over, before it is.
    NoteSilence {
        /// For people.
        message: String,
        /// Whether the turn has to be completed on the interceptor's behalf, as its own bound is shorter than
        /// the request's deadline, which is all the server knows.
        complete: bool,
    },
    /// Begin the turn with this index, ending the one before.
    Activate {
        /// The index.
        index: usize,
        /// Why the one before is over; `None` for the first.
        because: Option<Passing>,
    },
    /// Call the eviction API.
    Evict,
    /// Write down why the last resort cannot help.
    NoteNeverEvict(NeverEvict),
    /// Write down that the present generation was seen.
    Acknowledge,
}

/// What people should be told besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The interceptor has not shown itself since its turn began.
    Unresponsive(String),
    /// Declarations on the target that were skipped.
    Faults(Vec<String>),
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What to do next.
    pub step: Step,
    /// When to look again if nothing changes.
    pub next: Option<Timestamp>,
    /// What to tell.
    pub notices: Vec<Notice>,
}

impl Decision {
    fn now(step: Step) -> Self {
        Self {
            step,
            next: None,
            notices: Vec::new(),
        }
    }

    fn wait_until(next: Option<Timestamp>) -> Self {
        Self {
            next,
            ..Self::now(Step::Wait)
        }
    }
}

/// The next step of the request.
#[must_use]
pub fn decide(snapshot: &Snapshot<'_>, settings: &Settings) -> Decision {
    let request = snapshot.request;
    if request.is_deleting {
        return Decision::wait_until(None);
    }
    if let Some(finished) = request.finished {
        return collect(request, finished, snapshot.now, settings);
    }
    let pod = match alive(snapshot) {
        Ok(pod) => pod,
        Err((end, message)) => return Decision::now(Step::Finish { end, message }),
    };
    if !request.is_wanted && !request.is_cancellation_forbidden {
        return Decision::now(Step::Finish {
            end: End::NoRequesters,
            message: "Nobody asks for the eviction any more.".to_owned(),
        });
    }
    let missing = pod
        .labels
        .iter()
        .any(|(key, value)| request.labels.get(key) != Some(value));
    if missing {
        return Decision::now(Step::CopyLabels(pod.labels.clone()));
    }
    if request.turns.is_empty() {
        return declare(snapshot, pod);
    }
    let mut decision = match request.active {
        None if request.processed >= request.turns.len() => Decision::wait_until(None),
        None => Decision::now(Step::Activate {
            index: request.processed,
            because: None,
        }),
        Some(index) => take_turn(snapshot, pod, index),
    };
    if decision.step == Step::Wait && request.observed_generation < request.generation {
        decision.step = Step::Acknowledge;
    }
    decision
}

fn collect(request: &Request, finished: Timestamp, now: Timestamp, settings: &Settings) -> Decision {
    let ttl = match request.ttl {
        Some(ttl) => ttl,
        None if settings.default_ttl.is_zero() => return Decision::wait_until(None),
        None => settings.default_ttl,
    };
    match later(finished, ttl) {
        Some(at) if at <= now => Decision::now(Step::Collect),
        at => Decision::wait_until(at),
    }
}

/// The target if there is still something to evict, or how the request ends.
fn alive<'a>(snapshot: &Snapshot<'a>) -> Result<&'a Present, (End, String)> {
    let is_declared = !snapshot.request.turns.is_empty();
    let pod = match (snapshot.target, is_declared) {
        (Target::Present(pod), _) => pod,
        (Target::Absent { name } | Target::Replaced { name }, true) => {
            return Err((End::PodDeleted, format!("Pod {name} was deleted.")));
        }
        (Target::Absent { name }, false) => {
            return Err((End::ValidationFailed, format!("Target Pod {name} was not found.")));
        }
        (Target::Replaced { name }, false) => {
            let message = format!("Target Pod {name} was not found: the pod of that name has another UID.");
            return Err((End::ValidationFailed, message));
        }
    };
    if pod.is_terminal {
        return Err((End::PodTerminal, format!("Pod {} has ended.", pod.name)));
    }
    if pod.is_grouped && !is_declared {
        let message = format!(
            "Target Pod {} is part of a Workload/PodGroup. Eviction of such pods is currently not supported.",
            pod.name
        );
        return Err((End::ValidationFailed, message));
    }
    Ok(pod)
}

fn declare(snapshot: &Snapshot<'_>, pod: &Present) -> Decision {
    match snapshot.order {
        None => Decision::wait_until(None),
        Some(Ok(order)) => Decision {
            notices: if order.faults.is_empty() {
                Vec::new()
            } else {
                vec![Notice::Faults(order.faults.clone())]
            },
            ..Decision::now(Step::Declare(order.names.clone()))
        },
        Some(Err(error)) => Decision::now(Step::Finish {
            end: End::ValidationFailed,
            message: format!("Target Pod {} cannot be evicted: {error}.", pod.name),
        }),
    }
}

fn take_turn(snapshot: &Snapshot<'_>, pod: &Present, index: usize) -> Decision {
    let request = snapshot.request;
    let Some(turn) = request.turns.get(index) else {
        return Decision::wait_until(None);
    };
    if turn.name == IMPERATIVE_EVICTION {
        return evict(snapshot, pod, turn);
    }
    let is_last = index + 1 >= request.turns.len();
    let activate = |because| {
        Decision::now(Step::Activate {
            index: index + 1,
            because: Some(because),
        })
    };
    if turn.completed.is_some() {
        return if is_last {
            Decision::wait_until(None)
        } else {
            activate(Passing::Completed)
        };
    }
    // The built-in interceptor is this very program: it does not go silent, it waits for a maintenance. To pass it
    // over would leave the pod to the eviction API, which never takes pods of DaemonSets.
    if is_last || (turn.name == DAEMON_SET_INTERCEPTOR && pod.never_evict == Some(NeverEvict::Daemon)) {
        return Decision::wait_until(None);
    }
    let bound = turn
        .bound
        .map_or(request.deadline, |bound| bound.min(request.deadline));
    let base = turn.activated.max(turn.heartbeat);
    let Some(deadline) = base.and_then(|base| later(base, bound.saturating_add(DEADLINE_GRACE))) else {
        return Decision::wait_until(None);
    };
    if deadline <= snapshot.now {
        let message = silence(turn, bound);
        let complete = bound < request.deadline;
        return if turn.message == message && !complete {
            activate(Passing::Silent)
        } else {
            Decision::now(Step::NoteSilence { message, complete })
        };
    }
    let shows_up_by = match (turn.heartbeat, turn.activated) {
        (None, Some(activated)) => later(activated, UNRESPONSIVE_AFTER),
        _ => None,
    };
    match shows_up_by {
        Some(at) if at <= snapshot.now => Decision {
            notices: vec![Notice::Unresponsive(turn.name.clone())],
            ..Decision::wait_until(Some(deadline))
        },
        Some(at) => Decision::wait_until(Some(at.min(deadline))),
        None => Decision::wait_until(Some(deadline)),
    }
}

/// What stands in the message of an interceptor that was passed over.
fn silence(turn: &Turn, bound: Duration) -> String {
    let bound = bound.as_secs();
    match turn.heartbeat {
        None => format!("Passed over: no heartbeat within {bound} s after its activation."),
        Some(heartbeat) => format!("Passed over: no heartbeat within {bound} s after {heartbeat}."),
    }
}

fn evict(snapshot: &Snapshot<'_>, pod: &Present, turn: &Turn) -> Decision {
    let request = snapshot.request;
    if let Some(never) = pod.never_evict {
        return if turn.message == never.message() {
            Decision::wait_until(None)
        } else {
            Decision::now(Step::NoteNeverEvict(never))
        };
    }
    if pod.is_terminating {
        return Decision::wait_until(None);
    }
    // An interceptor that woke up after all is given its window.
    let awake = request
        .turns
        .iter()
        .filter(|other| {
            other.name != turn.name && other.completed.is_none() && other.heartbeat > turn.activated
        })
        .filter_map(|other| later(other.heartbeat?, request.deadline))
        .max();
    if let Some(until) = awake.filter(|until| *until > snapshot.now) {
        return Decision::wait_until(Some(until));
    }
    match next_attempt(snapshot, pod, turn) {
        Some(at) if at > snapshot.now => Decision::wait_until(Some(at)),
        _ => Decision::now(Step::Evict),
    }
}

/// When the eviction API may be called again; `None` is now.
///
/// After a restart the heartbeat tells when the last attempt was, as far as heartbeats are written.
fn next_attempt(snapshot: &Snapshot<'_>, pod: &Present, turn: &Turn) -> Option<Timestamp> {
    let failures = snapshot.request.failures;
    let last = match snapshot.attempt {
        Some(attempt) => Some(attempt.at).max(turn.heartbeat),
        None => turn.heartbeat,
    }?;
    if failures == 0 {
        // Accepted before, and yet the pod is neither terminating nor gone: ask again, unhurried.
        return later(last, UNRESPONSIVE_AFTER.min(LONGEST_ATTEMPT_DELAY) / 12);
    }
    let mut delay = backoff(
        failures,
        FIRST_ATTEMPT_DELAY,
        LONGEST_ATTEMPT_DELAY,
        snapshot.chance,
    );
    let was_blocked = snapshot.attempt.is_none_or(|attempt| attempt.blocked_by_budget);
    if was_blocked && is_unblocked(&pod.budgets) {
        delay = delay.min(UNBLOCKED_ATTEMPT_DELAY);
    } else if let Some(retry_after) = snapshot.attempt.and_then(|attempt| attempt.retry_after) {
        delay = delay.max(retry_after);
    }
    later(last, delay)
}

/// Whether the eviction API would find no budget in the way. It refuses pods that several budgets select.
fn is_unblocked(budgets: &[Budget]) -> bool {
    match budgets {
        [] => true,
        [only] => only.allowed > 0,
        _ => false,
    }
}

fn later(at: Timestamp, by: Duration) -> Option<Timestamp> {
    at.checked_add(by).ok()
}

#[cfg(test)]
mod tests;
