//! The nodemaintenance controller: which changes queue a reconciliation, and one reconciliation, which observes, plans
//! and acts on all maintenances together. Start at [`Controller::reconcile`]; the rules are in [`plan`].

pub mod act;
pub mod drain_plan;
pub mod model;
pub mod node_state;
pub mod observe;
pub mod pace;
pub mod plan;
pub mod recovery;
pub mod replacement;
pub mod successor;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drydock_proto::kinds::evictionrequest::EvictionRequest;
use drydock_proto::kinds::nodemaintenance::NodeMaintenance;
use k8s_openapi::api::core::v1::Node;

use crate::context::Context;
use crate::informer::Change;
use crate::pod::Pod;
use crate::stores::{Informers, Stores};
use crate::work_queue::{Outcome, WorkQueue};

pub use act::DeletedRequests;
use act::PlanExecutor;
use model::StaticPods;
use plan::plan;

/// How long changes are collected before a reconciliation. Changes come in bursts, and each reconciliation observes
/// everything.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// The delay before a reconciliation is at least this many times the duration of the last one, so that large clusters
/// are not planned without a pause.
const BATCH_DELAY_FACTOR: u32 = 3;
/// The longest delay before a reconciliation.
const MAX_BATCH_DELAY: Duration = Duration::from_secs(5);

/// The nodemaintenance controller.
#[derive(Debug)]
pub struct Controller {
    context: Arc<Context>,
    executor: PlanExecutor,
    static_pods: StaticPods,
    /// The duration of the last reconciliation, in milliseconds.
    last_duration: AtomicU64,
}

impl Controller {
    /// A controller. `deleted` are the requests that somebody deleted, as [`add_handlers`] finds them.
    #[must_use]
    pub fn new(context: Arc<Context>, static_pods: StaticPods, deleted: Arc<DeletedRequests>) -> Self {
        Self {
            executor: PlanExecutor::new(Arc::clone(&context), deleted),
            context,
            static_pods,
            last_duration: AtomicU64::new(0),
        }
    }

    /// Reconciles all maintenances.
    pub async fn reconcile(&self) -> Outcome {
        let last = Duration::from_millis(self.last_duration.load(Ordering::Relaxed));
        let delay = last.saturating_mul(BATCH_DELAY_FACTOR);
        tokio::time::sleep(delay.clamp(BATCH_DELAY, MAX_BATCH_DELAY)).await;
        let begun = self.context.clock.now();
        let mut observed = observe::observe(&self.context.stores, self.static_pods);
        observed.state.refused = self.executor.refusals();
        let plan = plan(&observed.state, self.context.clock.now());
        let again = self.executor.execute(&observed, &plan).await;
        let took = self.context.clock.now().duration_since(begun).as_millis();
        self.last_duration
            .store(u64::try_from(took).unwrap_or(0), Ordering::Relaxed);
        Outcome::Wait(plan.next.into_iter().chain(again).min())
    }
}

/// Queues a reconciliation when something changes that maintenances depend on. The queue has a single key, as all
/// maintenances are planned together. Requests that somebody deletes before they are finished are added to `deleted`.
pub fn add_handlers(
    informers: &mut Informers,
    stores: &Stores,
    queue: &Arc<WorkQueue<()>>,
    deleted: &Arc<DeletedRequests>,
) {
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
            if !is_unchanged && (is_under_maintenance || !maintenances.all().is_empty()) {
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
                && observe::has_maintenance_requester(old)
                && !old.is_finished()
            {
                deleted.add(old.metadata.name.as_deref().unwrap_or_default());
            }
            if change.states().any(|request| {
                observe::has_maintenance_requester(request) || concerns_maintenance(&stores, request)
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
