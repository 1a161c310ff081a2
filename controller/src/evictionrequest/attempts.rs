//! When the eviction API may be called for a request. Pure functions.
//!
//! ```text
//! first attempt ─▶ at once
//! refused       ─▶ after a back-off from 1 s to 15 min, or what the API requested
//! by a budget   ─▶ the same, or when the budget opens; either way the broker of budgets must admit the attempt
//! accepted      ─▶ after 30 s without a deletion, then after twice the time that has passed
//! ```

use std::time::Duration;

use jiff::Timestamp;

use super::blocked::NOT_DELETING_AFTER;
use super::budget::Budget;
use super::reason::Reason;
use super::refusal::Refusal;
use super::snapshot::{Snapshot, TargetPod};
use crate::backoff::backoff;

/// The first delay after a refusal.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest delay after a refusal.
const LONGEST_DELAY: Duration = Duration::from_mins(15);

/// Whether and when to call the eviction API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextAttempt {
    /// Now.
    Now,
    /// Now, if the broker admits it to this budget.
    ByBudget(String),
    /// Then, or before when the named budget opens.
    At {
        /// When.
        at: Timestamp,
        /// The budget.
        budget: Option<String>,
    },
}

/// The delay after this refusal.
#[must_use]
pub fn delay_after(refusal: &Refusal, snapshot: &Snapshot<'_>) -> Duration {
    let failures = snapshot.request.failed_evictions.saturating_add(1);
    let delay = backoff(failures, FIRST_DELAY, LONGEST_DELAY, snapshot.jitter);
    // A jittered second may end in the second of the attempt.
    delay
        .max(FIRST_DELAY)
        .max(refusal.retry_after.unwrap_or_default())
}

/// When the eviction API may be called.
#[must_use]
pub fn next_attempt(snapshot: &Snapshot<'_>, pod: &TargetPod) -> NextAttempt {
    let (request, now) = (snapshot.request, snapshot.now);
    let Some(last) = request.last_attempt_at else {
        return NextAttempt::Now;
    };
    let Some(next) = request.next_attempt_at else {
        return match after_accepted(snapshot, last) {
            at if at > now => NextAttempt::At { at, budget: None },
            _ => NextAttempt::Now,
        };
    };
    let was_by_budget = request
        .blocked
        .as_ref()
        .is_some_and(|blocked| Reason::is_by_budget(&blocked.reason));
    if !was_by_budget || pod.unwatched_budgets.is_some() {
        return due(next, now, None);
    }
    // As long as the budgets stay as they were at the last attempt, so does its result.
    let has_changed = snapshot
        .attempt
        .is_none_or(|attempt| attempt.budgets != pod.budgets);
    match protecting(&pod.budgets).as_slice() {
        [] if has_changed => NextAttempt::Now,
        [budget] if has_changed && budget.places() > 0 => NextAttempt::ByBudget(budget.name.clone()),
        [budget] => due(next, now, Some(&budget.name)),
        _ => due(next, now, None),
    }
}

/// The budgets that protect the pod.
fn protecting(budgets: &[Budget]) -> Vec<&Budget> {
    match budgets {
        // The eviction API refuses pods of several budgets before it looks at the pod's health.
        [only] if only.lets_pod_go => Vec::new(),
        budgets => budgets.iter().collect(),
    }
}

fn due(at: Timestamp, now: Timestamp, budget: Option<&str>) -> NextAttempt {
    let budget = budget.map(str::to_owned);
    match (at > now, budget) {
        (true, budget) => NextAttempt::At { at, budget },
        (false, Some(budget)) => NextAttempt::ByBudget(budget),
        (false, None) => NextAttempt::Now,
    }
}

/// When to post an eviction again that was accepted at `last` and has not deleted the pod.
fn after_accepted(snapshot: &Snapshot<'_>, last: Timestamp) -> Timestamp {
    let blocked = snapshot.request.blocked.as_ref();
    let since = blocked
        .filter(|blocked| blocked.reason == Reason::NotDeleting.as_str())
        .map_or(last, |blocked| blocked.since);
    let passed = Duration::try_from(last.duration_since(since)).unwrap_or_default();
    let delay = passed.clamp(NOT_DELETING_AFTER, LONGEST_DELAY);
    last.checked_add(delay).unwrap_or(last)
}
