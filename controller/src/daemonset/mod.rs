//! How do pods of DaemonSets leave a node under maintenance? The built-in interceptor `daemonset.apps.k8s.io`: it
//! takes its turn as any interceptor would, through the status of the request. The rules are in [`decide`].

pub mod decide;

use std::sync::Arc;

use drydock_machinery::clock::Clock;
use drydock_proto::kinds::evictionrequest::{DAEMON_SET_INTERCEPTOR, EvictionRequest, InterceptorStatus};
use drydock_proto::kinds::nodemaintenance::Stage;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};

use crate::api::{Clients, Error, call};
use crate::evictionrequest::{Key, act, status};
use crate::informer::Change;
use crate::nodemaintenance::{observe, plan, taints};
use crate::pod::Pod;
use crate::stores::{Informers, Stores};
use crate::work_queue::{Outcome, WorkQueue};

use decide::{Snapshot, Step, decide};

/// How long a pod is expected to take where it does not say.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The interceptor.
#[derive(Debug)]
pub struct Controller {
    stores: Stores,
    clients: Clients,
    actor: act::Actor,
    clock: Arc<dyn Clock>,
}

impl Controller {
    /// An interceptor over these parts.
    #[must_use]
    pub fn new(stores: Stores, clients: Clients, actor: act::Actor, clock: Arc<dyn Clock>) -> Self {
        Self {
            stores,
            clients,
            actor,
            clock,
        }
    }

    /// Takes a turn, if it is one.
    pub async fn reconcile(&self, key: Key) -> Outcome {
        match self.take_turn(&key).await {
            Ok(outcome) => outcome,
            Err(error) if error.is_not_found() || error.is_conflict() => Outcome::Retry,
            Err(error) => {
                tracing::warn!(namespace = key.0, name = key.1, %error, "a DaemonSet pod was not taken off its node");
                Outcome::Retry
            }
        }
    }

    async fn take_turn(&self, key: &Key) -> Result<Outcome, Error> {
        let Some(request) = self.stores.requests.get(&key.0, &key.1) else {
            return Ok(Outcome::Wait(None));
        };
        let (Some(entry), Some(pod)) = (turn(&request), self.pod_of(&request)) else {
            return Ok(Outcome::Wait(None));
        };
        let reason = self.reason(&pod);
        let snapshot = Snapshot {
            is_targeted: reason.is_some(),
            is_terminating: pod.is_terminating(),
            heartbeat: entry.heartbeat_time.as_ref().map(|time| time.0),
            now: self.clock.now(),
        };
        match decide(&snapshot) {
            Step::Wait(until) => return Ok(Outcome::Wait(until)),
            Step::Report => self.report(&request, &pod, &reason.unwrap_or_default()).await?,
            Step::Delete => self.delete(&pod).await?,
        }
        // What was written comes back through the watch and brings the next step.
        if snapshot.heartbeat.is_none() && !snapshot.is_terminating {
            self.delete(&pod).await?;
        }
        Ok(Outcome::Wait(
            snapshot.now.checked_add(decide::HEARTBEAT_EVERY).ok(),
        ))
    }

    fn pod_of(&self, request: &EvictionRequest) -> Option<Arc<Pod>> {
        let reference = request.spec.target.pod.as_ref()?;
        let namespace = request.metadata.namespace.as_deref()?;
        let pod = self.stores.pods.get(namespace, &reference.name)?;
        (pod.uid() == reference.uid && pod.is_daemon()).then_some(pod)
    }

    /// Why the pod has to leave its node; `None` when it has not.
    fn reason(&self, pod: &Pod) -> Option<String> {
        let node = self.stores.nodes.get("", pod.spec.node_name.as_deref()?)?;
        let record = taints::record(&node)?;
        let facts = observe::facts(pod, 0);
        let draining = record.maintenances.iter().find(|one| one.stage == Stage::Drain)?;
        if !plan::is_targeted(&record.targets, &facts) {
            return None;
        }
        let maintenance = self.stores.maintenances.get("", &draining.name);
        let reason = maintenance.map(|maintenance| maintenance.spec.reason.clone());
        Some(
            reason
                .filter(|reason| !reason.is_empty())
                .unwrap_or_else(|| draining.name.clone()),
        )
    }

    async fn report(&self, request: &EvictionRequest, pod: &Pod, reason: &str) -> Result<(), Error> {
        let owner = pod.controller().map_or("the DaemonSet", |(_, name)| name);
        let message = format!("{owner} is terminating the pod due to node maintenance ({reason}).");
        let now = self.clock.now();
        let grace = pod
            .spec
            .termination_grace_period_seconds
            .unwrap_or(DEFAULT_GRACE_SECONDS)
            .max(0);
        let since = pod
            .metadata
            .deletion_timestamp
            .as_ref()
            .map_or(now, |time| time.0.min(now));
        let expected = since.checked_add(jiff::SignedDuration::from_secs(grace)).ok();
        self.actor
            .update_status(request, |request| {
                turn(request)?;
                status::after_heartbeat(request, &message, expected, now)
            })
            .await?;
        Ok(())
    }

    async fn delete(&self, pod: &Pod) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.clients.host.clone(), pod.namespace());
        let parameters = DeleteParams::default().preconditions(Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        });
        match call(pods.delete(pod.name(), &parameters)).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Our entry of the request, if it is our turn and we are not done.
fn turn(request: &EvictionRequest) -> Option<&InterceptorStatus> {
    let status = request.status.as_ref().filter(|_| !request.is_finished())?;
    let is_ours = status
        .active_interceptors
        .iter()
        .any(|active| active == DAEMON_SET_INTERCEPTOR);
    let entry = status
        .interceptors
        .iter()
        .find(|entry| entry.name == DAEMON_SET_INTERCEPTOR)?;
    (is_ours && entry.completion_time.is_none()).then_some(entry)
}

/// Has changes of what the interceptor depends on bring requests into its queue.
pub fn listen(informers: &mut Informers, stores: &Stores, queue: &Arc<WorkQueue<Key>>) {
    informers.requests.listen({
        let queue = Arc::clone(queue);
        move |change: &Change<EvictionRequest>| {
            if let Some(request) = change.new.as_ref().filter(|request| turn(request).is_some()) {
                queue.add(key_of(request));
            }
        }
    });
    informers.pods.listen({
        let (queue, requests) = (Arc::clone(queue), stores.requests.clone());
        move |change: &Change<Pod>| {
            let Some(pod) = change.latest().filter(|pod| pod.is_daemon()) else {
                return;
            };
            if let Some(request) = requests
                .get(pod.namespace(), pod.uid())
                .filter(|request| turn(request).is_some())
            {
                queue.add(key_of(&request));
            }
        }
    });
    informers.nodes.listen({
        let (queue, requests) = (Arc::clone(queue), stores.requests.clone());
        move |change: &Change<Node>| {
            let record = |node: &Option<Arc<Node>>| node.as_deref().and_then(taints::record);
            let (old, new) = (record(&change.old), record(&change.new));
            let targets =
                |record: &Option<taints::NodeRecord>| record.as_ref().map(|record| record.targets.clone());
            if targets(&old) == targets(&new) {
                return;
            }
            for request in requests.all().iter().filter(|request| turn(request).is_some()) {
                queue.add(key_of(request));
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

#[cfg(test)]
mod tests;
