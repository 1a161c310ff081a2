//! How are nodes taken out of service? The wiring: what is watched, and one round of observing, planning and
//! acting over all maintenances together. The rules are in [`plan`]; start at [`Controller::round`].

pub mod act;
pub mod observe;
pub mod plan;
pub mod taints;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drydock_machinery::clock::Clock;
use drydock_proto::kinds::evictionrequest::EvictionRequest;
use drydock_proto::kinds::nodemaintenance::NodeMaintenance;
use k8s_openapi::api::core::v1::Node;

use crate::informer::Change;
use crate::pod::Pod;
use crate::stores::{Informers, Stores, is_requested_by_maintenance};
use crate::work_queue::{Outcome, WorkQueue};

use act::{Actor, Carried};
use plan::{StaticPods, plan};

/// The only key: maintenances are planned together.
pub type Key = ();

/// How long changes are gathered before a round. Changes come in bursts, and a round looks at everything.
const GATHER: Duration = Duration::from_millis(100);
/// How many times the length of the last round the next one waits: large clusters are not planned without a pause.
const REST: u32 = 3;
/// The longest wait.
const LONGEST_GATHER: Duration = Duration::from_secs(5);
/// When to plan again what others were in the way of.
const AFTER_CONFLICT: Duration = Duration::from_millis(500);

/// The nodemaintenance controller.
#[derive(Debug)]
pub struct Controller {
    stores: Stores,
    actor: Actor,
    clock: Arc<dyn Clock>,
    static_pods: StaticPods,
    /// How long the last round took, in milliseconds.
    last_round: AtomicU64,
}

impl Controller {
    /// A controller over these parts.
    #[must_use]
    pub fn new(stores: Stores, actor: Actor, clock: Arc<dyn Clock>, static_pods: StaticPods) -> Self {
        Self {
            stores,
            actor,
            clock,
            static_pods,
            last_round: AtomicU64::new(0),
        }
    }

    /// Looks at everything and does what is to be done.
    pub async fn round(&self) -> Outcome {
        let last = Duration::from_millis(self.last_round.load(Ordering::Relaxed));
        tokio::time::sleep(GATHER.max(last.saturating_mul(REST)).min(LONGEST_GATHER)).await;
        let begun = self.clock.now();
        let observed = observe::observe(&self.stores, self.static_pods);
        let plan = plan(&observed.world, self.clock.now());
        let carried = self.actor.carry_out(&observed, &plan).await;
        let took = self.clock.now().duration_since(begun).as_millis();
        self.last_round
            .store(u64::try_from(took).unwrap_or(0), Ordering::Relaxed);
        match carried {
            Carried::Out => Outcome::Wait(None),
            Carried::InPart => Outcome::Wait(self.clock.now().checked_add(AFTER_CONFLICT).ok()),
            Carried::Failed => Outcome::Retry,
        }
    }
}

/// Has changes that maintenances depend on ask for a round.
pub fn listen(informers: &mut Informers, stores: &Stores, queue: &Arc<WorkQueue<Key>>) {
    informers.maintenances.listen({
        let queue = Arc::clone(queue);
        move |_: &Change<NodeMaintenance>| queue.add(())
    });
    informers.nodes.listen({
        let (queue, maintenances) = (Arc::clone(queue), stores.maintenances.clone());
        move |change: &Change<Node>| {
            let is_same = match (&change.old, &change.new) {
                // Nodes report themselves every few minutes; what is kept of them rarely changes.
                (Some(old), Some(new)) => {
                    old.spec == new.spec
                        && old.metadata.labels == new.metadata.labels
                        && old.metadata.annotations == new.metadata.annotations
                }
                _ => false,
            };
            let is_held = change.latest().is_some_and(|node| taints::is_held(node));
            if !is_same && (is_held || !maintenances.all().is_empty()) {
                queue.add(());
            }
        }
    });
    informers.pods.listen({
        let (queue, nodes) = (Arc::clone(queue), stores.nodes.clone());
        move |change: &Change<Pod>| {
            let node = change
                .latest()
                .and_then(|pod| nodes.get("", pod.spec.node_name.as_deref()?));
            if node.is_some_and(|node| taints::is_held(&node)) {
                queue.add(());
            }
        }
    });
    informers.requests.listen({
        let (queue, stores) = (Arc::clone(queue), stores.clone());
        move |change: &Change<EvictionRequest>| {
            let matters = |request: &Arc<EvictionRequest>| {
                is_requested_by_maintenance(request) || is_on_held_node(&stores, request)
            };
            if [&change.old, &change.new].into_iter().flatten().any(matters) {
                queue.add(());
            }
        }
    });
}

/// Whether the pod of the request is on a node under maintenance.
fn is_on_held_node(stores: &Stores, request: &EvictionRequest) -> bool {
    let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
    let reference = request.spec.target.pod.as_ref();
    let pod = reference.and_then(|reference| stores.pods.get(namespace, &reference.name));
    let node = pod.and_then(|pod| stores.nodes.get("", pod.spec.node_name.as_deref()?));
    node.is_some_and(|node| taints::is_held(&node))
}
