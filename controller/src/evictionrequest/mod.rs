//! The evictionrequest controller: which changes queue a request, and one reconciliation. Start at
//! [`Controller::reconcile`]; the rules are in [`decide`].
//!
//! ```text
//! requests, pods, budgets, interceptors ──changes──▶ queue ──key──▶ observe ──▶ decide ──▶ act
//!                                                      ▲                           │
//!                                                      └────── next deadline ──────┘
//! ```

pub mod act;
pub mod attempts;
pub mod blocked;
pub mod broker;
pub mod budget;
pub mod decide;
pub mod gone_pods;
pub mod interceptors;
pub mod observe;
pub mod reason;
pub mod refusal;
pub mod snapshot;
pub mod status;
pub mod undelivered_writes;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use drydock_proto::kinds::evictionrequest::{BLOCKED, EvictionRequest};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::api::Error;
use crate::context::Context;
use crate::evictioninterceptor::rules::Rules;
use crate::informer::{Change, ObjectKey, key_of};
use crate::pod::Pod;
use crate::stores::{Informers, Stores, is_ready};
use crate::sync::lock;
use crate::work_queue::{Outcome, WorkQueue};

use act::{EvictionOutcome, RequestWriter};
use blocked::{Blocked, Hold};
use broker::{Admission, Broker, Settlement};
use decide::{Decision, Step, decide};
use gone_pods::GonePods;
use observe::{ObservedRequest, Observer, budget_of, selector_of, selects};
use reason::Reason;
use snapshot::{Attempt, Snapshot, Target};
use undelivered_writes::UndeliveredWrites;

/// How many steps one reconciliation takes at most. A request without declared interceptors needs four.
const MAX_STEPS: usize = 8;
/// The delay after a write conflict.
const CONFLICT_DELAY: Duration = Duration::from_secs(1);
/// The longest time without a decision about a request that is not final: it bounds the harm of a missed change.
const RESYNC_INTERVAL: Duration = Duration::from_mins(10);

/// What a controller is configured with.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The reserved names that interceptors may have.
    pub allowed: AllowedNames,
    /// How long finished requests without a TTL are kept; zero keeps them.
    pub default_ttl: Duration,
}

/// The evictionrequest controller.
#[derive(Debug)]
pub struct Controller {
    context: Arc<Context>,
    observer: Observer,
    writer: RequestWriter,
    default_ttl: Duration,
    queue: Arc<WorkQueue<ObjectKey>>,
    broker: Arc<Broker>,
    writes: Arc<UndeliveredWrites>,
    /// They save calls. Losing them does not change decisions.
    attempts: Mutex<HashMap<ObjectKey, Attempt>>,
}

/// What a step leads to.
enum Taken {
    /// The request as it is now: decide again.
    Next(Arc<EvictionRequest>),
    /// Nothing more now.
    End(Outcome),
}

impl Controller {
    /// A controller. It queues requests that the broker wakes. [`add_handlers`] fills `gone_pods`, and empties `writes`.
    #[must_use]
    pub fn new(
        context: Arc<Context>,
        rules: Arc<Rules>,
        options: Options,
        queue: Arc<WorkQueue<ObjectKey>>,
        broker: Arc<Broker>,
        gone_pods: Arc<GonePods>,
        writes: Arc<UndeliveredWrites>,
    ) -> Self {
        Self {
            observer: Observer::new(Arc::clone(&context), rules, options.allowed, gone_pods),
            writer: RequestWriter::new(Arc::clone(&context)),
            context,
            default_ttl: options.default_ttl,
            queue,
            broker,
            writes,
            attempts: Mutex::default(),
        }
    }

    /// Reconciles one request.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        match self.take_steps(&key).await {
            Ok(outcome) => outcome,
            Err(error) if error.is_not_found() => Outcome::Wait(None),
            Err(error) if error.is_conflict() => {
                self.writes.forget(&key);
                self.after_conflict()
            }
            Err(error) => {
                let cause = error.cause();
                tracing::warn!(namespace = key.0, name = key.1, %error, cause, "reconciling an eviction request failed");
                if is_clock_skew(&error) {
                    Box::pin(self.record_clock_skew(&key)).await;
                }
                Outcome::Retry
            }
        }
    }

    fn after_conflict(&self) -> Outcome {
        Outcome::Wait(self.context.clock.now().checked_add(CONFLICT_DELAY).ok())
    }

    async fn take_steps(&self, key: &ObjectKey) -> Result<Outcome, Error> {
        let Some(mut request) = self.latest(key) else {
            self.forget(key);
            return Ok(Outcome::Wait(None));
        };
        for _ in 0..MAX_STEPS {
            let observed = self.observer.observe(&request).await?;
            let attempt = lock(&self.attempts).get(key).cloned();
            let snapshot = Snapshot {
                request: &observed.request,
                target: &observed.target,
                order: observed.order.as_ref(),
                attempt: attempt.as_ref(),
                now: self.context.clock.now(),
                jitter: fastrand::f64(),
            };
            let decision = decide(&snapshot, self.default_ttl);
            for warning in &decision.warnings {
                self.writer
                    .publish_warning(&request, observed.pod.as_deref(), warning);
            }
            match self.take_step(key, &request, &observed, decision).await? {
                Taken::Next(written) => {
                    self.remember(key, &request, &written);
                    request = written;
                }
                Taken::End(outcome) => return Ok(outcome),
            }
        }
        // Another writer may be reverting the steps, so the next attempt is delayed.
        Ok(Outcome::Retry)
    }

    async fn take_step(
        &self,
        key: &ObjectKey,
        request: &Arc<EvictionRequest>,
        observed: &ObservedRequest,
        decision: Decision,
    ) -> Result<Taken, Error> {
        let pod = observed.pod.as_deref();
        match &decision.step {
            Step::Wait => Ok(Taken::End(self.wait(key, observed, &decision))),
            Step::DeleteRequest => {
                Box::pin(self.writer.delete(request)).await?;
                Ok(Taken::End(Outcome::Wait(None)))
            }
            // The futures of calls take kilobytes, and most looks at a request make none.
            step if step.evicts() => Box::pin(self.evict(key, request, observed, step)).await,
            step => {
                let Some(written) = Box::pin(self.writer.write(request, pod, step)).await? else {
                    return Ok(Taken::End(self.after_conflict()));
                };
                if matches!(step, Step::RecordRefusal { .. })
                    && let Some(attempt) = lock(&self.attempts).get_mut(key)
                {
                    attempt.unwritten = None;
                }
                Ok(Taken::Next(written))
            }
        }
    }

    /// Waits for a change, a deadline, or the budget that the decision names.
    fn wait(&self, key: &ObjectKey, observed: &ObservedRequest, decision: &Decision) -> Outcome {
        let now = self.context.clock.now();
        if let Some(budget) = decision.budget.as_ref().map(|name| (key.0.clone(), name.clone())) {
            // A request that does not use a place it was granted has found that the budget refuses it.
            self.wake(self.broker.settle(key, Settlement::Refused));
            self.broker.wait(&budget, key);
            if self.has_changed(&budget, observed) {
                return Outcome::Wait(Some(now));
            }
        } else {
            self.wake(self.broker.forget(key));
        }
        if observed.request.finished_at.is_some() {
            lock(&self.attempts).remove(key);
            return Outcome::Wait(decision.next);
        }
        let resync = now
            .checked_add(RESYNC_INTERVAL.mul_f64(1.0 + 0.1 * fastrand::f64()))
            .ok();
        Outcome::Wait(decision.next.into_iter().chain(resync).min())
    }

    /// Whether the budget is not as it was observed: its change came before the request began to wait for it.
    fn has_changed(&self, budget: &ObjectKey, observed: &ObservedRequest) -> bool {
        let current = self.context.stores.budgets.get(&budget.0, &budget.1);
        let version = current.and_then(|current| current.metadata.resource_version.clone());
        let Target::Present(pod) = &observed.target else {
            return false;
        };
        let known = pod.budgets.iter().find(|known| known.name == budget.1);
        known.map(|known| known.version.clone()) != Some(version.unwrap_or_default())
    }

    fn wake(&self, requests: Vec<ObjectKey>) {
        for request in requests {
            self.queue.add(request);
        }
    }

    /// Writes the intent, posts the eviction, and remembers a refusal, which the next step writes.
    async fn evict(
        &self,
        key: &ObjectKey,
        request: &Arc<EvictionRequest>,
        observed: &ObservedRequest,
        step: &Step,
    ) -> Result<Taken, Error> {
        let (Some(pod), Target::Present(target)) = (observed.pod.as_deref(), &observed.target) else {
            return Ok(Taken::End(self.after_conflict()));
        };
        if let Step::Evict { budget: Some(name) } = step {
            let budget = (key.0.clone(), name.clone());
            let known = target.budgets.iter().find(|budget| budget.name == *name);
            let places = known.map_or(0, budget::Budget::places);
            let now = self.context.clock.now();
            let (admission, others) = self.broker.admit(&budget, key, places, now);
            self.wake(others);
            if let Admission::NotBefore(at) = admission {
                return Ok(Taken::End(Outcome::Wait(Some(at))));
            }
        }
        let settle = |settlement| self.wake(self.broker.settle(key, settlement));
        let written = match self.writer.write(request, Some(pod), step).await {
            Ok(Some(written)) => written,
            Ok(None) => {
                settle(Settlement::Unused);
                return Ok(Taken::End(self.after_conflict()));
            }
            Err(error) => {
                settle(Settlement::Unused);
                return Err(error);
            }
        };
        self.remember(key, request, &written);
        let outcome = self.writer.evict(&written, pod, target.known_budgets()).await;
        let mut attempt = Attempt {
            budgets: target.budgets.clone(),
            unwritten: None,
        };
        match outcome {
            EvictionOutcome::Accepted => settle(Settlement::Used),
            EvictionOutcome::PodGone => {
                settle(Settlement::Unused);
                // The watch will deliver the deletion.
                return Ok(Taken::End(self.after_conflict()));
            }
            EvictionOutcome::Refused(refusal) => {
                settle(if Reason::is_by_budget(refusal.reason.as_str()) {
                    Settlement::Refused
                } else {
                    Settlement::Unused
                });
                attempt.unwritten = Some(refusal);
            }
        }
        lock(&self.attempts).insert(key.clone(), attempt);
        Ok(Taken::Next(written))
    }

    /// Writes that the server rejects the times of this process. The times in this write are not checked.
    async fn record_clock_skew(&self, key: &ObjectKey) {
        let Some(request) = self.latest(key) else { return };
        let step = Step::RecordHold(Hold::By(Blocked {
            reason: Reason::ClockSkew,
            message: "drydock-apiserver rejects the times that drydock-controller writes: their clocks differ by more \
                      than 10 s."
                .to_owned(),
            since: self.context.clock.now(),
        }));
        match self.writer.write(&request, None, &step).await {
            Ok(Some(written)) => self.remember(key, &request, &written),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "recording the clock skew failed"),
        }
    }

    /// Forgets a request that does not exist any more.
    fn forget(&self, key: &ObjectKey) {
        lock(&self.attempts).remove(key);
        self.writes.forget(key);
        self.observer.forget(key);
        self.wake(self.broker.forget(key));
    }

    /// The request as this process last read or wrote it.
    fn latest(&self, key: &ObjectKey) -> Option<Arc<EvictionRequest>> {
        let stored = self.context.stores.requests.get(&key.0, &key.1)?;
        Some(self.writes.latest(key, stored))
    }

    fn remember(&self, key: &ObjectKey, before: &EvictionRequest, latest: &Arc<EvictionRequest>) {
        let stored = self.context.stores.requests.get(&key.0, &key.1);
        self.writes.written(key, before, latest, stored.as_deref());
    }
}

/// Whether the server rejected a status because of its times.
fn is_clock_skew(error: &Error) -> bool {
    let causes = error.status().and_then(|status| status.details.as_ref());
    error.is_invalid()
        && causes.is_some_and(|details| {
            details
                .causes
                .iter()
                .any(|cause| cause.message.contains("10 seconds"))
        })
}

/// Queues requests when they, their pods, or what blocks them changes.
pub fn add_handlers(
    informers: &mut Informers,
    stores: &Stores,
    queue: &Arc<WorkQueue<ObjectKey>>,
    broker: &Arc<Broker>,
    gone_pods: &Arc<GonePods>,
    writes: &Arc<UndeliveredWrites>,
) {
    informers.requests.add_handler({
        let (queue, writes) = (Arc::clone(queue), Arc::clone(writes));
        move |change: &Change<EvictionRequest>| {
            let Some(request) = change.latest() else { return };
            let key = key_of(&**request);
            // Whoever wrote the request has decided what follows.
            let is_own = change.new.is_some() && writes.delivered(&key, request);
            if !is_own {
                queue.add(key);
            }
        }
    });
    informers.pods.add_deletion_handler({
        let (requests, gone_pods) = (stores.requests.clone(), Arc::clone(gone_pods));
        move |pod: &Pod| {
            if requests.get(pod.namespace(), pod.uid()).is_some() {
                gone_pods.deleted(pod);
            }
        }
    });
    informers.pods.add_handler({
        let (queue, requests) = (Arc::clone(queue), stores.requests.clone());
        let gone_pods = Arc::clone(gone_pods);
        move |change: &Change<Pod>| {
            if let Some(pod) = &change.new {
                gone_pods.exists(pod);
            }
            // The name of a request is the UID of its pod.
            for pod in change.states() {
                if requests.get(pod.namespace(), pod.uid()).is_some() {
                    queue.add((pod.namespace().to_owned(), pod.uid().to_owned()));
                }
            }
        }
    });
    informers.nodes.add_handler({
        let (queue, stores) = (Arc::clone(queue), stores.clone());
        move |change: &Change<Node>| {
            let was_ready = change.old.as_deref().map(is_ready);
            if was_ready.is_some() && was_ready != change.new.as_deref().map(is_ready) {
                queue_deleted_pods_of(&queue, &stores, change);
            }
        }
    });
    informers.budgets.add_handler({
        let (queue, stores, broker) = (Arc::clone(queue), stores.clone(), Arc::clone(broker));
        move |change: &Change<PodDisruptionBudget>| on_budget_change(&queue, &stores, &broker, change)
    });
    informers.interceptors.add_handler({
        let (queue, requests) = (Arc::clone(queue), stores.requests.clone());
        move |change: &Change<EvictionInterceptor>| {
            for request in requests.all() {
                if concerns(change, &request) {
                    queue.add(key_of(&*request));
                }
            }
        }
    });
}

/// Whether a rule may change what happens to the request: its interceptors are not ordered yet, or the rule's deadline
/// is that of the active one.
fn concerns(change: &Change<EvictionInterceptor>, request: &EvictionRequest) -> bool {
    // The status of a rule changes with the number of its pods.
    let specs: Vec<_> = change.states().map(|object| &object.spec).collect();
    if matches!(specs.as_slice(), [old, new] if old == new) || request.is_finished() {
        return false;
    }
    let Some(status) = request
        .status
        .as_ref()
        .filter(|status| !status.target_interceptors.is_empty())
    else {
        return true;
    };
    specs
        .into_iter()
        .any(|spec| status.active_interceptors.contains(&spec.interceptor_name))
}

/// Queues the requests of the node's pods that are being deleted.
fn queue_deleted_pods_of(queue: &WorkQueue<ObjectKey>, stores: &Stores, change: &Change<Node>) {
    let Some(node) = change.latest() else { return };
    for pod in stores.pods.all() {
        if pod.is_terminating()
            && pod.spec.node_name == node.metadata.name
            && stores.requests.get(pod.namespace(), pod.uid()).is_some()
        {
            queue.add((pod.namespace().to_owned(), pod.uid().to_owned()));
        }
    }
}

/// Wakes requests that wait for the budget: as many as it lets go, and all whose budgets are different ones now.
fn on_budget_change(
    queue: &WorkQueue<ObjectKey>,
    stores: &Stores,
    broker: &Broker,
    change: &Change<PodDisruptionBudget>,
) {
    let Some(latest) = change.latest() else { return };
    let is_gone = change.new.is_none();
    let has_new_spec = change.old.as_ref().is_some_and(|old| old.spec != latest.spec);
    if is_gone || has_new_spec {
        queue_blocked(queue, stores, change);
    } else {
        let places = budget_of(latest, &Pod::default()).places();
        for request in broker.changed(&key_of(&**latest), places) {
            queue.add(request);
        }
    }
}

/// Queues the requests that a budget blocks and whose pod this budget selects or selected.
fn queue_blocked(queue: &WorkQueue<ObjectKey>, stores: &Stores, change: &Change<PodDisruptionBudget>) {
    let Some(budget) = change.latest() else { return };
    let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
    let selectors: Vec<_> = change.states().map(|budget| selector_of(budget)).collect();
    for request in stores.requests.in_namespace(namespace) {
        let conditions = request.status.iter().flat_map(|status| &status.conditions);
        let is_blocked = conditions.into_iter().any(|condition| {
            condition.type_ == BLOCKED
                && condition.status == "True"
                && Reason::is_by_budget(&condition.reason)
        });
        if !is_blocked || request.is_finished() {
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
        if selectors.iter().any(|selector| selects(selector.as_ref(), &pod)) {
            queue.add(key_of(&*request));
        }
    }
}

#[cfg(test)]
mod tests;
