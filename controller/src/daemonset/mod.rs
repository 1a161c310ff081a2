//! The built-in interceptor `daemonset.apps.k8s.io`, which deletes DaemonSet pods from nodes under maintenance. It works
//! through the status of eviction requests, as any interceptor does. The rules are in [`decide`].

pub mod decide;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use drydock_proto::kinds::evictionrequest::{DAEMON_SET_INTERCEPTOR, EvictionRequest, InterceptorStatus};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::Preconditions;

use crate::api::{self, Error};
use crate::context::Context;
use crate::evictionrequest::act::RequestWriter;
use crate::evictionrequest::status;
use crate::informer::{Change, ObjectKey, key_of};
use crate::nodemaintenance::drain_plan::entries;
use crate::nodemaintenance::{node_state, observe};
use crate::pod::Pod;
use crate::stores::{Informers, Stores};
use crate::sync::lock;
use crate::work_queue::{Outcome, WorkQueue};

use decide::{DaemonPodAction, DaemonPodState, decide};

/// The grace period of pods that do not set one.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The interceptor.
#[derive(Debug)]
pub struct Controller {
    context: Arc<Context>,
    writer: RequestWriter,
}

impl Controller {
    /// The interceptor.
    #[must_use]
    pub fn new(context: Arc<Context>) -> Self {
        Self {
            writer: RequestWriter::new(Arc::clone(&context)),
            context,
        }
    }

    /// Acts on one request, if this interceptor is active in it.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        match self.act(&key).await {
            Ok(outcome) => outcome,
            Err(error) if error.is_not_found() || error.is_conflict() => Outcome::Retry,
            Err(error) => {
                let cause = error.cause();
                tracing::warn!(namespace = key.0, name = key.1, %error, cause, "removing a DaemonSet pod from its node failed");
                Outcome::Retry
            }
        }
    }

    async fn act(&self, key: &ObjectKey) -> Result<Outcome, Error> {
        let Some(request) = self.context.stores.requests.get(&key.0, &key.1) else {
            return Ok(Outcome::Wait(None));
        };
        let (Some(entry), Some(pod)) = (active_entry(&request), self.pod_of(&request)) else {
            return Ok(Outcome::Wait(None));
        };
        let reason = self.maintenance_reason(&pod);
        let state = DaemonPodState {
            is_targeted: reason.is_some(),
            is_terminating: pod.is_terminating(),
            heartbeat: entry.heartbeat_time.as_ref().map(|time| time.0),
            now: self.context.clock.now(),
        };
        match decide(&state) {
            DaemonPodAction::Wait(until) => return Ok(Outcome::Wait(until)),
            DaemonPodAction::Heartbeat => {
                let reason = reason.unwrap_or_default();
                let is_wanted = self.write_heartbeat(&request, &pod, &reason).await?;
                // Deletes right after the first heartbeat, without waiting for the watch to deliver it.
                if is_wanted && state.heartbeat.is_none() && !state.is_terminating {
                    self.delete(&pod).await?;
                }
            }
            DaemonPodAction::Delete => {
                // The request may have been canceled since this process last heard of it.
                let current = self.writer.read(&request).await?;
                if active_entry(&current).is_some() {
                    self.delete(&pod).await?;
                }
            }
        }
        Ok(Outcome::Wait(
            state.now.checked_add(decide::HEARTBEAT_INTERVAL).ok(),
        ))
    }

    fn pod_of(&self, request: &EvictionRequest) -> Option<Arc<Pod>> {
        let reference = request.spec.target.pod.as_ref()?;
        let namespace = request.metadata.namespace.as_deref()?;
        let pod = self.context.stores.pods.get(namespace, &reference.name)?;
        (pod.uid() == reference.uid && pod.is_daemon_set_pod()).then_some(pod)
    }

    /// The reason of the maintenance that drains the pod's node; `None` unless the drain has reached the pod. This is judged
    /// as the plans judge it: a pod that they count must also be deleted.
    fn maintenance_reason(&self, pod: &Pod) -> Option<String> {
        let node = self
            .context
            .stores
            .nodes
            .get("", pod.spec.node_name.as_deref()?)?;
        let record = node_state::record(&node)?;
        let draining = record.draining()?;
        let maintenances = &self.context.stores.maintenances;
        let plans: Vec<_> = record
            .drainers()
            .filter_map(|one| maintenances.get("", &one.name))
            .map(|maintenance| entries(&maintenance.spec.drain_plan))
            .collect();
        let recorded = entries(&record.targets);
        observe::pod_properties(pod)
            .targeted_from(&recorded, plans.iter().map(Vec::as_slice))
            .filter(|from| from.is_reached(record.reached.as_ref()))?;
        let maintenance = maintenances.get("", &draining.name);
        let reason = maintenance.map(|maintenance| maintenance.spec.reason.clone());
        Some(
            reason
                .filter(|reason| !reason.is_empty())
                .unwrap_or_else(|| draining.name.clone()),
        )
    }

    /// Returns whether it was written: not when the request does not want the pod to leave any more.
    async fn write_heartbeat(
        &self,
        request: &EvictionRequest,
        pod: &Pod,
        reason: &str,
    ) -> Result<bool, Error> {
        let owner = pod.controller_owner().map_or("the DaemonSet", |(_, name)| name);
        let message = format!("{owner} is terminating the pod due to node maintenance ({reason}).");
        let grace = pod
            .spec
            .termination_grace_period_seconds
            .unwrap_or(DEFAULT_GRACE_SECONDS)
            .max(0);
        let deleted = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let written = self
            .writer
            .update_status(request, |request| {
                active_entry(request)?;
                // The server accepts only times close to its own, so each attempt takes the current time.
                let now = self.context.clock.now();
                let since = deleted.map_or(now, |deleted| deleted.min(now));
                let expected = since.checked_add(jiff::SignedDuration::from_secs(grace)).ok();
                status::after_heartbeat(request, &message, expected, now)
            })
            .await?;
        Ok(written.is_some())
    }

    async fn delete(&self, pod: &Pod) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.context.clients.host.clone(), pod.namespace());
        let preconditions = Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        };
        match api::delete(&pods, pod.name(), preconditions).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }
}

/// The status of this interceptor in the request, if it is active, has not completed, and somebody wants the pod to leave.
fn active_entry(request: &EvictionRequest) -> Option<&InterceptorStatus> {
    let is_wanted = !request.spec.requesters.is_empty() || request.is_cancellation_forbidden();
    let status = request
        .status
        .as_ref()
        .filter(|_| is_wanted && !request.is_finished())?;
    let is_active = status
        .active_interceptors
        .iter()
        .any(|active| active == DAEMON_SET_INTERCEPTOR);
    let entry = status
        .interceptors
        .iter()
        .find(|entry| entry.name == DAEMON_SET_INTERCEPTOR)?;
    (is_active && entry.completion_time.is_none()).then_some(entry)
}

/// Queues requests in which this interceptor is active when they, their pods, or drain targets change.
pub fn add_handlers(informers: &mut Informers, stores: &Stores, queue: &Arc<WorkQueue<ObjectKey>>) {
    // A drain changes the targets of each node several times, and most requests are no concern of this interceptor.
    let active = Arc::<Mutex<HashSet<ObjectKey>>>::default();
    informers.requests.add_handler({
        let (queue, active) = (Arc::clone(queue), Arc::clone(&active));
        move |change: &Change<EvictionRequest>| {
            let of_active = |state: &Option<Arc<EvictionRequest>>| {
                let request = state.as_ref().filter(|request| active_entry(request).is_some());
                request.map(|request| key_of(&**request))
            };
            if let Some(key) = of_active(&change.new) {
                lock(&active).insert(key.clone());
                queue.add(key);
            } else if let Some(key) = of_active(&change.old) {
                lock(&active).remove(&key);
            }
        }
    });
    informers.pods.add_handler({
        let (queue, requests) = (Arc::clone(queue), stores.requests.clone());
        move |change: &Change<Pod>| {
            let Some(pod) = change.latest().filter(|pod| pod.is_daemon_set_pod()) else {
                return;
            };
            if let Some(request) = requests
                .get(pod.namespace(), pod.uid())
                .filter(|request| active_entry(request).is_some())
            {
                queue.add(key_of(&*request));
            }
        }
    });
    informers.nodes.add_handler({
        let queue = Arc::clone(queue);
        move |change: &Change<Node>| {
            let targets = |node: &Option<Arc<Node>>| {
                let record = node.as_deref().and_then(node_state::record);
                record.map(|record| (record.targets, record.reached))
            };
            if targets(&change.old) == targets(&change.new) {
                return;
            }
            for request in lock(&active).iter() {
                queue.add(request.clone());
            }
        }
    });
}

#[cfg(test)]
mod tests;
