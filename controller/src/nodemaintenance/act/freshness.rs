//! Whether what was planned is still wanted. A plan is executed for seconds, and a maintenance that is called off meanwhile
//! must not request one more pod to leave.

use drydock_proto::kinds::nodemaintenance::{NodeMaintenance, Stage};

use crate::nodemaintenance::model::PodFacts;
use crate::nodemaintenance::node_state::NodeRecord;
use crate::nodemaintenance::observe::ObservedCluster;
use crate::stores::Stores;

/// Whether a maintenance that drained the node of the pod when it was observed still does, and the pod is still there.
pub(super) fn is_still_drained(stores: &Stores, observed: &ObservedCluster, pod: &PodFacts) -> bool {
    let is_there = stores
        .pods
        .get(&pod.namespace, &pod.name)
        .is_some_and(|current| current.uid() == pod.uid);
    let drainers = observed.state.maintenances.iter();
    let mut drainers = drainers.filter(|one| one.is_draining() && one.selects(pod.node));
    let is_drained = |stage: &Stage| *stage == Stage::Drain;
    is_there && drainers.any(|one| is_in_stage(stores, &one.name, &one.uid, is_drained))
}

/// Whether one of the maintenances in the record still keeps its nodes unschedulable.
pub(super) fn is_still_held(stores: &Stores, record: &NodeRecord) -> bool {
    let is_held = |stage: &Stage| matches!(stage, Stage::Cordon | Stage::Drain);
    let mut named = record.maintenances.iter();
    named.any(|one| is_in_stage(stores, &one.name, &one.uid, is_held))
}

/// Whether the maintenance with this name and UID is in such a stage now, and not being deleted.
fn is_in_stage(stores: &Stores, name: &str, uid: &str, is_wanted: impl Fn(&Stage) -> bool) -> bool {
    stores
        .maintenances
        .get("", name)
        .is_some_and(|current: std::sync::Arc<NodeMaintenance>| {
            current.metadata.uid.as_deref().unwrap_or_default() == uid
                && current.metadata.deletion_timestamp.is_none()
                && is_wanted(&current.spec.stage)
        })
}
