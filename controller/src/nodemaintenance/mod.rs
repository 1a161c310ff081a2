//! The nodemaintenance controller: which changes queue a reconciliation, and one reconciliation, which observes, plans
//! and acts on all maintenances that have changed, together with those that they depend on. Start at
//! [`Controller::reconcile`]; the rules are in [`plan`].

pub mod act;
mod components;
pub mod drain_plan;
pub mod index;
pub mod model;
pub mod node_state;
pub mod observe;
pub mod pace;
pub mod plan;
pub mod planning_rate;
pub mod recovery;
pub mod replacement;
pub mod request_facts;
#[cfg(test)]
mod scale;
pub mod shared;
pub mod successor;

use std::sync::{Arc, Mutex};

use drydock_proto::kinds::evictionrequest::EvictionRequest;
use drydock_proto::kinds::nodemaintenance::NodeMaintenance;
use k8s_openapi::api::core::v1::{Namespace, Node};
use tokio::time::Instant;

use crate::context::Context;
use crate::informer::Change;
use crate::pod::Pod;
use crate::stores::{Informers, Stores};
use crate::sync::lock;
use crate::work_queue::{Outcome, WorkQueue};

pub use act::DeletedRequests;
use act::PlanExecutor;
pub use index::ClusterIndex;
use model::StaticPods;
use observe::Observer;
use plan::plan;
use planning_rate::PlanningRate;

/// The nodemaintenance controller.
#[derive(Debug)]
pub struct Controller {
    context: Arc<Context>,
    observer: Arc<Observer>,
    executor: PlanExecutor,
    index: Arc<ClusterIndex>,
    rate: Mutex<PlanningRate>,
}

impl Controller {
    /// A controller. [`add_handlers`] fills the index and finds the requests that somebody deleted.
    #[must_use]
    pub fn new(
        context: Arc<Context>,
        static_pods: StaticPods,
        index: Arc<ClusterIndex>,
        deleted: Arc<DeletedRequests>,
    ) -> Self {
        Self {
            observer: Arc::new(Observer::new(
                context.stores.clone(),
                Arc::clone(&index),
                static_pods,
            )),
            executor: PlanExecutor::new(Arc::clone(&context), deleted),
            context,
            index,
            rate: Mutex::default(),
        }
    }

    /// Reconciles all maintenances.
    ///
    /// # Panics
    ///
    /// Resumes a panic of the planner.
    pub async fn reconcile(&self) -> Outcome {
        let rate = *lock(&self.rate);
        rate.pause(&self.index).await;
        let started = Instant::now();
        let begun = self.context.clock.now();
        let (source, refused) = (Arc::clone(&self.observer), self.executor.refusals());
        // Large clusters take long to plan, and workers of the runtime have other tasks.
        let planned = tokio::task::spawn_blocking(move || {
            let mut observation = source.observe(begun);
            observation.cluster.state.refused = refused;
            let plan = plan(&observation.cluster.state, begun);
            source.planned(&observation, &plan, begun);
            (observation, plan)
        });
        let (observation, plan) = match planned.await {
            Ok(planned) => planned,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return Outcome::Retry,
            },
        };
        let ended = Instant::now();
        lock(&self.rate).planned(ended - started, ended);
        let again = self.executor.execute(&observation.cluster, &plan).await;
        Outcome::Wait(plan.next.into_iter().chain(observation.next).chain(again).min())
    }
}

/// Queues a reconciliation when something changes that maintenances depend on. The queue has a single key, as all
/// maintenances are planned together. Keeps the index up to date, and adds requests that somebody deletes before they
/// are finished to `deleted`.
pub fn add_handlers(
    informers: &mut Informers,
    stores: &Stores,
    queue: &Arc<WorkQueue<()>>,
    index: &Arc<ClusterIndex>,
    deleted: &Arc<DeletedRequests>,
) {
    // The index has a change before the round that it queues.
    informers.pods.add_handler({
        let index = Arc::clone(index);
        move |change: &Change<Pod>| index.pod_changed(change)
    });
    informers.requests.add_handler({
        let index = Arc::clone(index);
        move |change: &Change<EvictionRequest>| index.request_changed(change)
    });
    informers.namespaces.add_handler({
        let (queue, maintenances) = (Arc::clone(queue), stores.maintenances.clone());
        let index = Arc::clone(index);
        move |change: &Change<Namespace>| {
            let deleted = |namespace: &Option<Arc<Namespace>>| {
                namespace
                    .as_ref()
                    .and_then(|one| one.metadata.deletion_timestamp.clone())
            };
            if deleted(&change.old) == deleted(&change.new) {
                return;
            }
            let name = change.latest().and_then(|one| one.metadata.name.as_deref());
            index.namespace_changed(name.unwrap_or_default());
            if !maintenances.is_empty() {
                queue.add(());
            }
        }
    });
    informers.maintenances.add_handler({
        let queue = Arc::clone(queue);
        move |_: &Change<NodeMaintenance>| queue.add(())
    });
    informers.nodes.add_handler({
        let (queue, maintenances) = (Arc::clone(queue), stores.maintenances.clone());
        move |change: &Change<Node>| {
            let is_unchanged = match (&change.old, &change.new) {
                // The kubelet updates the node status every few minutes; the stored fields rarely change.
                (Some(old), Some(new)) => {
                    old.spec == new.spec
                        && old.metadata.labels == new.metadata.labels
                        && old.metadata.annotations == new.metadata.annotations
                }
                _ => false,
            };
            let is_under_maintenance = change
                .latest()
                .is_some_and(|node| node_state::is_under_maintenance(node));
            if !is_unchanged && (is_under_maintenance || !maintenances.is_empty()) {
                queue.add(());
            }
        }
    });
    informers.pods.add_handler({
        let (queue, nodes) = (Arc::clone(queue), stores.nodes.clone());
        move |change: &Change<Pod>| {
            let node = change
                .latest()
                .and_then(|pod| nodes.get("", pod.spec.node_name.as_deref()?));
            if node.is_some_and(|node| node_state::is_under_maintenance(&node)) {
                queue.add(());
            }
        }
    });
    informers.requests.add_handler({
        let (queue, stores, deleted) = (Arc::clone(queue), stores.clone(), Arc::clone(deleted));
        move |change: &Change<EvictionRequest>| {
            if let Change {
                old: Some(old),
                new: None,
            } = change
                && request_facts::has_maintenance_requester(old)
                && !old.is_finished()
            {
                deleted.add(old.metadata.name.as_deref().unwrap_or_default());
            }
            if change.states().any(|request| {
                request_facts::has_maintenance_requester(request) || concerns_maintenance(&stores, request)
            }) {
                queue.add(());
            }
        }
    });
}

/// Whether the pod of the request is on a node under maintenance.
fn concerns_maintenance(stores: &Stores, request: &EvictionRequest) -> bool {
    let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
    let reference = request.spec.target.pod.as_ref();
    let pod = reference.and_then(|reference| stores.pods.get(namespace, &reference.name));
    let node = pod.and_then(|pod| stores.nodes.get("", pod.spec.node_name.as_deref()?));
    node.is_some_and(|node| node_state::is_under_maintenance(&node))
}
