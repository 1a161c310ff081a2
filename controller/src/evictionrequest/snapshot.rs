//! The model of one request, independent of the API version: [`super::observe`] fills it, [`super::decide`] reads it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::budget::{Budget, Known};
use super::interceptors::{InterceptorOrder, TooManyInterceptors};
use super::refusal::Refusal;
use crate::evictioninterceptor::rules::UnusableRule;
use crate::request_labels::LabelChanges;

/// The input of a decision.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The request.
    pub request: &'a Request,
    /// Its pod.
    pub target: &'a Target,
    /// The order of the pod's interceptors; `None` once they are initialized.
    pub order: Option<&'a Result<InterceptorOrder, NoOrder>>,
    /// The last attempt of this process.
    pub attempt: Option<&'a Attempt>,
    /// The time.
    pub now: Timestamp,
    /// A random number from 0 to 1 that spreads attempts.
    pub jitter: f64,
}

/// Why there is no order of interceptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoOrder {
    /// The pod declares too many.
    TooMany(TooManyInterceptors),
    /// It is unknown whether a rule registers an interceptor.
    Unknown(UnusableRule),
}

/// The stored request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// `metadata.generation`.
    pub generation: i64,
    /// `status.observedGeneration`.
    pub observed_generation: i64,
    /// How its labels are to change: they are those of the pod.
    pub label_changes: LabelChanges,
    /// Annotations that it is to have and has not.
    pub missing_annotations: BTreeMap<String, String>,
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
    /// When the eviction API was last called, or was about to be called.
    pub last_attempt_at: Option<Timestamp>,
    /// When it may be called again after a rejection. `None` after a call whose result is not stored.
    pub next_attempt_at: Option<Timestamp>,
    /// The condition `Blocked`, if it is True.
    pub blocked: Option<StoredBlock>,
}

/// The condition `Blocked` as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredBlock {
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Since when it is True.
    pub since: Timestamp,
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
    /// Whether its phase is Succeeded or Failed.
    pub is_terminal: bool,
    /// Set while it is being deleted.
    pub deletion: Option<PodDeletion>,
    /// Whether it belongs to a Workload or `PodGroup`.
    pub is_grouped: bool,
    /// Why it is exempt from the eviction API.
    pub exemption: Option<EvictionExemption>,
    /// The budgets that select it.
    pub budgets: Vec<Budget>,
    /// Why budgets are not known, so that none is listed.
    pub unwatched_budgets: Option<String>,
}

impl TargetPod {
    /// What is known about its budgets.
    #[must_use]
    pub fn known_budgets(&self) -> Known<'_> {
        Known {
            budgets: &self.budgets,
            unwatched: self.unwatched_budgets.as_deref(),
        }
    }
}

/// A deletion in progress.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodDeletion {
    /// When its grace period ends.
    pub ends_at: Timestamp,
    /// What must be removed before it ends.
    pub finalizers: Vec<String>,
    /// The pod's node, if it is not ready.
    pub unready_node: Option<String>,
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
    /// The message of the request.
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

/// The last attempt of this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attempt {
    /// The budgets of the pod at that time. As long as they stay the same, so does the result.
    pub budgets: Vec<Budget>,
    /// A refusal that is not written yet.
    pub unwritten: Option<Refusal>,
}
