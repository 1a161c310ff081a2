//! How does an EvictionRequest come to its end? The wiring: what is watched, how it is queued, and one
//! reconciliation. Start at [`Controller::reconcile`]; the rules are in [`decide`].
//!
//! ```text
//! requests, pods, budgets, rules ──changes──▶ queue ──key──▶ observe ──▶ decide ──▶ act
//!                                               ▲                │
//!                                               └── next deadline┘
//! ```

pub mod act;
pub mod decide;
pub mod interceptors;
pub mod observe;
pub mod status;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drydock_machinery::clock::Clock;
use drydock_proto::kinds::evictionrequest::{EvictionRequest, IMPERATIVE_EVICTION};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::api::Error;
use crate::informer::Change;
use crate::pod::Pod;
use crate::stores::{Informers, Stores};
use crate::work_queue::{Outcome, WorkQueue};

use act::{Actor, Evicted};
use decide::{Attempt, Settings, Snapshot, Step, Target, decide};
use observe::{Observer, allowed, selects};

/// Namespace and name of a request.
pub type Key = (String, String);

/// How many steps are taken in a row. A request without declared interceptors needs five.
const STEPS: usize = 8;
/// When to look again at what changed while it was looked at.
const AFTER_CONFLICT: Duration = Duration::from_secs(1);

/// The evictionrequest controller.
#[derive(Debug)]
pub struct Controller {
    stores: Stores,
    observer: Observer,
    actor: Actor,
    clock: Arc<dyn Clock>,
    settings: Settings,
    memory: Mutex<Memory>,
}

/// What is remembered only to be quick and polite: it may be forgotten at any time.
#[derive(Debug, Default)]
struct Memory {
    attempts: HashMap<Key, Attempt>,
    written: HashMap<Key, Written>,
}

/// A request that was written and may not have come back through the watch yet.
#[derive(Debug)]
struct Written {
    before: HashSet<String>,
    latest: Arc<EvictionRequest>,
}

impl Controller {
    /// A controller over these parts.
    #[must_use]
    pub fn new(
        stores: Stores,
        observer: Observer,
        actor: Actor,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Self {
        Self {
            stores,
            observer,
            actor,
            clock,
            settings,
            memory: Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at one request and does what is to be done.
    pub async fn reconcile(&self, key: Key) -> Outcome {
        match self.steps(&key).await {
            Ok(outcome) => outcome,
            Err(error) if error.is_not_found() => Outcome::Wait(None),
            Err(error) if error.is_conflict() => {
                self.memory().written.remove(&key);
                Outcome::Wait(self.clock.now().checked_add(AFTER_CONFLICT).ok())
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(namespace = key.0, name = key.1, %error, cause, "an eviction request was not reconciled");
                Outcome::Retry
            }
        }
    }

    async fn steps(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(mut request) = self.freshest(key) else {
            let mut memory = self.memory();
            memory.attempts.remove(key);
            memory.written.remove(key);
            return Ok(Outcome::Wait(None));
        };
        for _ in 0..STEPS {
            let observed = self.observer.observe(&request).await?;
            let pod = observed.pod.as_deref();
            let snapshot = Snapshot {
                request: &observed.request,
                target: &observed.target,
                order: observed.order.as_ref(),
                attempt: self.memory().attempts.get(key).copied(),
                now: self.clock.now(),
                chance: fastrand::f64(),
            };
            let decision = decide(&snapshot, &self.settings);
            for notice in &decision.notices {
                self.actor.tell(&request, pod, notice);
            }
            let written = match (&decision.step, pod, &observed.target) {
                (Step::Wait, ..) => return Ok(Outcome::Wait(decision.next)),
                (Step::Collect, ..) => {
                    self.actor.collect(&request).await?;
                    return Ok(Outcome::Wait(None));
                }
                (Step::Evict, Some(pod), Target::Present(present)) => {
                    match self.actor.evict(&request, pod, &present.budgets).await? {
                        Evicted::Tried(written, attempt) => {
                            self.memory().attempts.insert(key.clone(), attempt);
                            Some(written)
                        }
                        Evicted::Gone => None,
                    }
                }
                (step, ..) => self.actor.write(&request, pod, step).await?,
            };
            let Some(written) = written else {
                // The pod went while it was looked at: the watch will say so.
                return Ok(Outcome::Wait(self.clock.now().checked_add(AFTER_CONFLICT).ok()));
            };
            self.remember(key, &request, &written);
            request = written;
        }
        // Something undoes what is done, most likely: not at once again.
        Ok(Outcome::Retry)
    }

    /// The request as it was stored last, as far as this process knows.
    fn freshest(&self, key: &Key) -> Option<Arc<EvictionRequest>> {
        let stored = self.stores.requests.get(&key.0, &key.1)?;
        let version = stored.metadata.resource_version.clone().unwrap_or_default();
        let mut memory = self.memory();
        match memory.written.get(key) {
            Some(written) if written.before.contains(&version) => Some(Arc::clone(&written.latest)),
            Some(_) => {
                memory.written.remove(key);
                Some(stored)
            }
            None => Some(stored),
        }
    }

    fn remember(&self, key: &Key, before: &EvictionRequest, latest: &Arc<EvictionRequest>) {
        if before.metadata.resource_version == latest.metadata.resource_version {
            return;
        }
        let mut memory = self.memory();
        let written = memory.written.entry(key.clone()).or_insert_with(|| Written {
            before: HashSet::new(),
            latest: Arc::clone(latest),
        });
        written.before.extend(before.metadata.resource_version.clone());
        written.latest = Arc::clone(latest);
    }
}

/// Has changes of what requests depend on bring them into the queue.
pub fn listen(informers: &mut Informers, stores: &Stores, queue: &Arc<WorkQueue<Key>>) {
    informers.requests.listen({
        let queue = Arc::clone(queue);
        move |change: &Change<EvictionRequest>| {
            let Some(request) = change.latest() else { return };
            queue.add(key_of(request));
        }
    });
    informers.pods.listen({
        let (queue, requests) = (Arc::clone(queue), stores.requests.clone());
        move |change: &Change<Pod>| {
            // The name of a request is the UID of its pod.
            for pod in [&change.old, &change.new].into_iter().flatten() {
                if requests.get(pod.namespace(), pod.uid()).is_some() {
                    queue.add((pod.namespace().to_owned(), pod.uid().to_owned()));
                }
            }
        }
    });
    informers.budgets.listen({
        let (queue, stores) = (Arc::clone(queue), stores.clone());
        move |change: &Change<PodDisruptionBudget>| {
            if may_unblock(change) {
                add_blocked(&queue, &stores, change);
            }
        }
    });
    informers.rules.listen({
        let (queue, requests) = (Arc::clone(queue), stores.requests.clone());
        move |change: &Change<_>| {
            let rule: &Arc<drydock_proto::kinds::evictioninterceptor::EvictionInterceptor> =
                match change.latest() {
                    Some(rule) => rule,
                    None => return,
                };
            let name = &rule.spec.interceptor_name;
            for request in requests.all() {
                let active = request.status.as_ref().map(|status| &status.active_interceptors);
                if !request.is_finished() && active.is_some_and(|active| active.contains(name)) {
                    queue.add(key_of(&request));
                }
            }
        }
    });
}

fn key_of(request: &EvictionRequest) -> Key {
    let metadata = &request.metadata;
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

/// Whether evictions may be allowed now that were not before.
fn may_unblock(change: &Change<PodDisruptionBudget>) -> bool {
    match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.spec != new.spec || (allowed(new) > 0 && allowed(new) > allowed(old)),
        (Some(_), None) => true,
        _ => false,
    }
}

/// Brings the requests into the queue that wait for an eviction the budget was in the way of.
fn add_blocked(queue: &WorkQueue<Key>, stores: &Stores, change: &Change<PodDisruptionBudget>) {
    let Some(budget) = change.latest() else { return };
    let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
    for request in stores.requests.in_namespace(namespace) {
        let Some(status) = &request.status else { continue };
        let is_refused = status
            .pod_eviction_status
            .as_ref()
            .is_some_and(|status| status.failed_api_eviction_counter > 0);
        let is_last = status
            .active_interceptors
            .iter()
            .any(|active| active == IMPERATIVE_EVICTION);
        if !is_refused || !is_last || request.is_finished() {
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
        if [&change.old, &change.new]
            .into_iter()
            .flatten()
            .any(|budget| selects(budget, &pod))
        {
            queue.add(key_of(&request));
        }
    }
}

#[cfg(test)]
mod tests;
