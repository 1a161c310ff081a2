//! Plans what to do with the requests of pods. Requests that ended without their pod stand in the way and are replaced.

use jiff::Timestamp;

use super::holds::Hold;
use super::progress::{DrainProgress, has_passed};
use crate::nodemaintenance::model::{Plan, PodFacts, RequestAction, RequestFacts, RequestState};
use crate::nodemaintenance::replacement::{LONGEST_DELETION, MAX_REPLACEMENTS, pause};

/// What to do with a request, now or later.
enum Step {
    Nothing,
    Now(RequestAction),
    At(Option<Timestamp>),
}

/// Adds what to do with all requests to the plan.
pub(super) fn plan_requests(progress: &DrainProgress<'_>, holds: &[Hold], plan: &mut Plan) {
    for (index, pod) in progress.state.pods.iter().enumerate() {
        if progress.is_paused(pod) {
            continue;
        }
        let request = progress.state.requests.get(&pod.uid);
        let step = match (progress.is_targeted(index, pod), request) {
            (true, None) if pod.namespace_deleted.is_some() => Step::Nothing,
            (true, None) => Step::Now(RequestAction::Create {
                origin: origin(progress, pod),
            }),
            (true, Some(request)) => plan_targeted(progress, pod, request),
            (false, Some(request)) => {
                // A maintenance that is about to become active wants the pod to leave. One that vanished does not.
                let is_kept = holds
                    .get(pod.node)
                    .is_some_and(|hold| hold.kept.len() > hold.vanished.len());
                let is_obsolete = request.is_active_for_maintenance() && !pod.is_terminal && !is_kept;
                if is_obsolete && !request.is_cancellation_forbidden && request.deletion.is_none() {
                    Step::Now(RequestAction::Withdraw)
                } else {
                    Step::Nothing
                }
            }
            (false, None) => Step::Nothing,
        };
        match step {
            Step::Now(action) => plan.requests.push((index, action)),
            Step::At(at) => plan.next = plan.next.into_iter().chain(at).min(),
            Step::Nothing => {}
        }
    }
}

/// Set when a successor may follow the pod: whether it was there before the drain began.
fn origin(progress: &DrainProgress<'_>, pod: &PodFacts) -> Option<bool> {
    let is_successor = progress.is_successor(pod);
    (is_successor || pod.may_come_back).then_some(!is_successor)
}

fn plan_targeted(progress: &DrainProgress<'_>, pod: &PodFacts, request: &RequestFacts) -> Step {
    if let Some(deletion) = &request.deletion {
        let reported = deletion.since.checked_add(LONGEST_DELETION).ok();
        return Step::At(reported.filter(|at| *at > progress.now));
    }
    match request.state {
        RequestState::Active => {
            let joins = !request.has_maintenance_requester
                && !request.is_cancellation_forbidden
                && request.other_pod.is_none();
            if joins {
                let origin = origin(progress, pod);
                Step::Now(RequestAction::Join { origin })
            } else {
                Step::Nothing
            }
        }
        RequestState::Canceled => replace(progress, pod, request),
        RequestState::Evicted => {
            // The deletion of the pod may not have been delivered yet.
            let due = request
                .ended
                .and_then(|ended| ended.checked_add(LONGEST_DELETION).ok());
            match due {
                Some(due) if due > progress.now => Step::At(Some(due)),
                _ => replace(progress, pod, request),
            }
        }
    }
}

/// Replaces a request that ended without its pod, after a pause that grows with each replacement.
fn replace(progress: &DrainProgress<'_>, pod: &PodFacts, request: &RequestFacts) -> Step {
    let ended = request.ended.unwrap_or(request.created);
    let start = progress.starts.get(pod.node).copied().flatten();
    // Replacements of earlier drains do not count.
    let count = match start {
        Some(start) if ended < start => 0,
        _ => request.replaced,
    };
    let is_undeletable = request.is_cancellation_forbidden && request.state == RequestState::Canceled;
    if count >= MAX_REPLACEMENTS || is_undeletable || pod.namespace_deleted.is_some() {
        return Step::Nothing;
    }
    if has_passed(ended, pause(count), progress.now) {
        return Step::Now(RequestAction::Replace { count: count + 1 });
    }
    Step::At(ended.checked_add(pause(count)).ok())
}
