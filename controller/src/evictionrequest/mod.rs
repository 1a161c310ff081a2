//! The evictionrequest controller: which changes queue a request, and one reconciliation. Start at
//! [`Controller::reconcile`]; the rules are in [`decide`].
//!
//! ```text
//! requests, pods, budgets, interceptors ──changes──▶ queue ──key──▶ observe ──▶ decide ──▶ act
//!                                                      ▲                           │
//!                                                      └────── next deadline ──────┘
//! ```

pub mod act;
pub mod decide;
pub mod interceptors;
pub mod observe;
pub mod status;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use drydock_proto::kinds::evictionrequest::{EvictionRequest, IMPERATIVE_EVICTION};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::api::Error;
use crate::context::Context;
use crate::evictioninterceptor::rules::Rules;
use crate::informer::{Change, ObjectKey, key_of};
use crate::pod::Pod;
use crate::stores::{Informers, Stores};
use crate::sync::lock;
use crate::work_queue::{Outcome, WorkQueue};

use act::{EvictionOutcome, RequestWriter};
use decide::{Attempt, Snapshot, Step, Target, decide};
use observe::{Observer, disruptions_allowed, selects};

/// How many steps one reconciliation takes at most. A request without declared interceptors needs five.
const MAX_STEPS: usize = 8;
/// The delay after a write conflict.
const CONFLICT_DELAY: Duration = Duration::from_secs(1);

/// The evictionrequest controller.
#[derive(Debug)]
pub struct Controller {
    context: Arc<Context>,
    observer: Observer,
    writer: RequestWriter,
    default_ttl: Duration,
    memory: Mutex<Memory>,
}

/// State that saves calls. Losing it does not change decisions.
#[derive(Debug, Default)]
struct Memory {
    attempts: HashMap<ObjectKey, Attempt>,
    writes: HashMap<ObjectKey, Written>,
}

/// A request that was written and that the watch may not have delivered yet.
#[derive(Debug)]
struct Written {
    /// The resource versions before the write.
    superseded: HashSet<String>,
    latest: Arc<EvictionRequest>,
}

impl Controller {
    /// A controller. `allowed` contains the reserved names that interceptors may have. Finished requests without a
    /// TTL are deleted after `default_ttl`; zero keeps them.
    #[must_use]
    pub fn new(
        context: Arc<Context>,
        rules: Arc<Rules>,
        allowed: AllowedNames,
        default_ttl: Duration,
    ) -> Self {
        Self {
            observer: Observer::new(Arc::clone(&context), rules, allowed),
            writer: RequestWriter::new(Arc::clone(&context)),
            context,
            default_ttl,
            memory: Mutex::default(),
        }
    }

    /// Reconciles one request.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        match self.take_steps(&key).await {
            Ok(outcome) => outcome,
            Err(error) if error.is_not_found() => Outcome::Wait(None),
            Err(error) if error.is_conflict() => {
                lock(&self.memory).writes.remove(&key);
                self.after_conflict()
            }
            Err(error) => {
                let cause = error.cause();
                tracing::warn!(namespace = key.0, name = key.1, %error, cause, "reconciling an eviction request failed");
                Outcome::Retry
            }
        }
    }

    fn after_conflict(&self) -> Outcome {
        Outcome::Wait(self.context.clock.now().checked_add(CONFLICT_DELAY).ok())
    }

    async fn take_steps(&self, key: &ObjectKey) -> Result<Outcome, Error> {
        let Some(mut request) = self.latest(key) else {
            let mut memory = lock(&self.memory);
            memory.attempts.remove(key);
            memory.writes.remove(key);
            return Ok(Outcome::Wait(None));
        };
        for _ in 0..MAX_STEPS {
            let observed = self.observer.observe(&request).await?;
            let pod = observed.pod.as_deref();
            let snapshot = Snapshot {
                request: &observed.request,
                target: &observed.target,
                order: observed.order.as_ref(),
                attempt: lock(&self.memory).attempts.get(key).copied(),
                now: self.context.clock.now(),
                jitter: fastrand::f64(),
            };
            let decision = decide(&snapshot, self.default_ttl);
            for warning in &decision.warnings {
                self.writer.publish_warning(&request, pod, warning);
            }
            let written = match (&decision.step, pod, &observed.target) {
                (Step::Wait, ..) => return Ok(Outcome::Wait(decision.next)),
                (Step::DeleteRequest, ..) => {
                    self.writer.delete(&request).await?;
                    return Ok(Outcome::Wait(None));
                }
                (Step::Evict, Some(pod), Target::Present(target)) => {
                    let EvictionOutcome { attempt, written } = self
                        .writer
                        .evict(&request, pod, &target.budgets, snapshot.attempt)
                        .await;
                    lock(&self.memory).attempts.insert(key.clone(), attempt);
                    written?
                }
                (step, ..) => self.writer.write(&request, pod, step).await?,
            };
            let Some(written) = written else {
                // The pod was deleted concurrently; the watch will deliver the deletion.
                return Ok(self.after_conflict());
            };
            self.remember(key, &request, &written);
            request = written;
        }
        // Another writer may be reverting the steps, so the next attempt is delayed.
        Ok(Outcome::Retry)
    }

    /// The request as this process last read or wrote it.
    fn latest(&self, key: &ObjectKey) -> Option<Arc<EvictionRequest>> {
        let stored = self.context.stores.requests.get(&key.0, &key.1)?;
        let version = stored.metadata.resource_version.clone().unwrap_or_default();
        let mut memory = lock(&self.memory);
        match memory.writes.get(key) {
            Some(written) if written.superseded.contains(&version) => Some(Arc::clone(&written.latest)),
            Some(_) => {
                memory.writes.remove(key);
                Some(stored)
            }
            None => Some(stored),
        }
    }

    fn remember(&self, key: &ObjectKey, before: &EvictionRequest, latest: &Arc<EvictionRequest>) {
        if before.metadata.resource_version == latest.metadata.resource_version {
            return;
        }
        let mut memory = lock(&self.memory);
        let written = memory.writes.entry(key.clone()).or_insert_with(|| Written {
            superseded: HashSet::new(),
            latest: Arc::clone(latest),
        });
        written
            .superseded
            .extend(before.metadata.resource_version.clone());
        written.latest = Arc::clone(latest);
    }
}

/// Queues requests when they, their pods, or what blocks them changes.
pub fn add_handlers(informers: &mut Informers, stores: &Stores, queue: &Arc<WorkQueue<ObjectKey>>) {
    informers.requests.add_handler({
        let queue = Arc::clone(queue);
        move |change: &Change<EvictionRequest>| {
            let Some(request) = change.latest() else { return };
            queue.add(key_of(&**request));
        }
    });
    informers.pods.add_handler({
        let (queue, requests) = (Arc::clone(queue), stores.requests.clone());
        move |change: &Change<Pod>| {
            // The name of a request is the UID of its pod.
            for pod in change.states() {
                if requests.get(pod.namespace(), pod.uid()).is_some() {
                    queue.add((pod.namespace().to_owned(), pod.uid().to_owned()));
                }
            }
        }
    });
    informers.budgets.add_handler({
        let (queue, stores) = (Arc::clone(queue), stores.clone());
        move |change: &Change<PodDisruptionBudget>| {
            if may_unblock(change) {
                queue_blocked(&queue, &stores, change);
            }
        }
    });
    informers.interceptors.add_handler({
        let (queue, requests) = (Arc::clone(queue), stores.requests.clone());
        move |change: &Change<EvictionInterceptor>| {
            let Some(object) = change.latest() else { return };
            let name = &object.spec.interceptor_name;
            for request in requests.all() {
                let active = request.status.as_ref().map(|status| &status.active_interceptors);
                if !request.is_finished() && active.is_some_and(|active| active.contains(name)) {
                    queue.add(key_of(&*request));
                }
            }
        }
    });
}

/// Whether the change of a budget may allow an eviction that was blocked before.
fn may_unblock(change: &Change<PodDisruptionBudget>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            let (before, now) = (disruptions_allowed(old), disruptions_allowed(new));
            old.spec != new.spec || (now > 0 && now > before)
        }
        (Some(_), None) => true,
        _ => false,
    }
}

/// Queues the requests whose eviction was rejected and whose pod the budget selects or selected.
fn queue_blocked(queue: &WorkQueue<ObjectKey>, stores: &Stores, change: &Change<PodDisruptionBudget>) {
    let Some(budget) = change.latest() else { return };
    let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
    for request in stores.requests.in_namespace(namespace) {
        let Some(status) = &request.status else { continue };
        let was_rejected = status
            .pod_eviction_status
            .as_ref()
            .is_some_and(|status| status.failed_api_eviction_counter > 0);
        let is_evicting = status
            .active_interceptors
            .iter()
            .any(|active| active == IMPERATIVE_EVICTION);
        if !was_rejected || !is_evicting || request.is_finished() {
            continue;
        }
        let name = request
            .spec
            .target
            .pod
            .as_ref()
            .map_or("", |pod| pod.name.as_str());
        let Some(pod) = stores.pods.get(namespace, name) else {
            continue;
        };
        if change.states().any(|budget| selects(budget, &pod)) {
            queue.add(key_of(&*request));
        }
    }
}

#[cfg(test)]
mod tests;
