//! Executes plans: first the nodes, then the requests of their pods, then the maintenances. Every write has a
//! precondition or has no effect when repeated.
//!
//! A large plan takes long, and the cluster changes meanwhile. So before a node is cordoned or a pod is requested to leave,
//! the maintenances and the pod are looked up once more ([`freshness`]), and no write begins after [`MAX_ROUND`]. The end
//! of a maintenance cannot be undone and is decided from nodes that were read for it ([`completion`]).

mod announcements;
mod completion;
mod freshness;
mod requests;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_proto::kinds::nodemaintenance::{
    COMPLETION_FINALIZER, NodeMaintenance, NodeMaintenanceStatus, Stage,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::Api;
use serde_json::{Value, json};

use super::model::{MaintenanceAction, MaintenanceEvent, Obstacle, Plan, PodFacts, RequestAction};
use super::node_state::{self, NodeAction, NodeRecord};
use super::observe::ObservedCluster;
use super::pace::{Item, Pace};
use crate::api::{Error, merge_patch, merge_patch_status, status_patch};
use crate::context::Context;
use crate::events::{EventContent, node_reference, object_reference};
use crate::sync::lock;

use announcements::{content_of, fight};
pub use requests::DeletedRequests;
use requests::{Requester, Written};

/// How many calls are in flight at a time.
const CONCURRENT_CALLS: usize = 32;
/// How many requests are changed before the cluster is observed again.
const MAX_REQUESTS_PER_PLAN: usize = 2000;
/// How long nodes and requests are changed before the cluster is observed again.
const MAX_ROUND: Duration = Duration::from_secs(5);
/// How often a node is repaired before somebody is told to undo it again and again.
const REPAIRS_UNTIL_FIGHT: u32 = 3;
/// The delay after a partially executed plan.
const PARTIAL_PLAN_DELAY: Duration = Duration::from_millis(500);

/// The time that one plan may take.
#[derive(Debug)]
struct Round {
    until: Timestamp,
    /// Whether something was left for the next plan.
    is_cut: AtomicBool,
}

impl Round {
    fn is_over(&self, now: Timestamp) -> bool {
        let is_over = now >= self.until;
        self.is_cut.fetch_or(is_over, Ordering::Relaxed);
        is_over
    }
}

/// Executes plans.
#[derive(Debug)]
pub struct PlanExecutor {
    context: Arc<Context>,
    requester: Requester,
    deleted: Arc<DeletedRequests>,
    pace: Mutex<Pace>,
}

impl PlanExecutor {
    /// An executor. `deleted` are the requests that somebody deleted.
    #[must_use]
    pub fn new(context: Arc<Context>, deleted: Arc<DeletedRequests>) -> Self {
        Self {
            requester: Requester::new(Arc::clone(&context)),
            context,
            deleted,
            pace: Mutex::default(),
        }
    }

    /// Why requests could not be written, by the UID of their pod.
    #[must_use]
    pub fn refusals(&self) -> HashMap<String, Obstacle> {
        self.requester.refusals()
    }

    /// Executes the plan. What fails is tried again later and holds up nothing else. Returns when to plan again because
    /// of what is left.
    pub async fn execute(&self, observed: &ObservedCluster, plan: &Plan) -> Option<Timestamp> {
        let begun = self.context.clock.now();
        let round = Round {
            until: begun.checked_add(MAX_ROUND).unwrap_or(begun),
            is_cut: AtomicBool::new(false),
        };
        lock(&self.pace).begin(begun);
        self.publish_events(observed, plan);
        let nodes = plan.nodes.iter().map(|(index, action)| {
            let round = &round;
            async move {
                (
                    *index,
                    self.hold_or_release(observed, *index, action, round).await,
                )
            }
        });
        let failed_nodes: BTreeSet<usize> = Box::pin(run_concurrently(nodes))
            .await
            .into_iter()
            .filter_map(|(index, done)| done.is_none().then_some(index))
            .collect();
        // No pod is requested to leave a node that may still be schedulable, or whose taint may be missing.
        let mut is_partial = false;
        let mut due = Vec::new();
        for (index, action) in &plan.requests {
            let Some(pod) = observed.state.pods.get(*index) else {
                continue;
            };
            let item = Item::Request(pod.uid.clone());
            let has_failed_node =
                failed_nodes.contains(&pod.node) && !matches!(action, RequestAction::Withdraw);
            if has_failed_node || !lock(&self.pace).is_due(&item, begun) {
                continue;
            }
            if due.len() >= MAX_REQUESTS_PER_PLAN {
                is_partial = true;
                break;
            }
            is_partial |= matches!(action, RequestAction::Replace { .. });
            due.push((item, pod, *action));
        }
        let requests = due.into_iter().map(|(item, pod, action)| {
            let change = self.change_request(observed, pod, action);
            self.paced(item, Some(&round), change)
        });
        Box::pin(run_concurrently(requests)).await;
        // Maintenances are few, and people wait for what is written to them.
        let maintenances = plan.maintenances.iter().map(|(index, action)| {
            let item = Item::Maintenance(maintenance_name(observed, *index).to_owned());
            self.paced(item, None, self.change_maintenance(observed, *index, action))
        });
        Box::pin(run_concurrently(maintenances)).await;
        let known: HashSet<&str> = observed.state.pods.iter().map(|pod| pod.uid.as_str()).collect();
        self.requester.forget(|uid| known.contains(uid));

        let now = self.context.clock.now();
        let next = lock(&self.pace).next(now);
        let is_partial = is_partial || round.is_cut.load(Ordering::Relaxed);
        let again = is_partial
            .then(|| now.checked_add(PARTIAL_PLAN_DELAY).ok())
            .flatten();
        next.into_iter().chain(again).min()
    }

    /// Awaits the write of an item unless it has to wait because its last one failed, or the round is over. `None` when it
    /// was not written.
    async fn paced<T>(
        &self,
        item: Item,
        round: Option<&Round>,
        write: impl Future<Output = Result<T, Error>>,
    ) -> Option<T> {
        let now = self.context.clock.now();
        if !lock(&self.pace).is_due(&item, now) || round.is_some_and(|round| round.is_over(now)) {
            return None;
        }
        match write.await {
            Ok(written) => {
                if !matches!(item, Item::Repair(_)) {
                    lock(&self.pace).succeeded(&item);
                }
                Some(written)
            }
            Err(error) => {
                let is_conflict = error.is_conflict() || error.is_not_found();
                if !is_conflict {
                    let cause = error.cause();
                    tracing::warn!(?item, %error, cause, "a write for node maintenances failed");
                }
                let now = self.context.clock.now();
                lock(&self.pace).failed(item, is_conflict, now, fastrand::f64());
                None
            }
        }
    }

    /// Changes a node. What somebody undid is restored at a slower pace each time. `None` when the node is not as planned.
    async fn hold_or_release(
        &self,
        observed: &ObservedCluster,
        index: usize,
        action: &NodeAction,
        round: &Round,
    ) -> Option<()> {
        let name = node_name(observed, index);
        let change = self.change_node(observed, index, action);
        let before = observed.nodes.get(index);
        let Some(record) = before.and_then(|node| node_state::repaired_record(node, action)) else {
            let changed = self.paced(Item::Node(name.to_owned()), Some(round), change).await;
            return changed.map(drop);
        };
        let item = Item::Repair(name.to_owned());
        let node = self.paced(item.clone(), Some(round), change).await?;
        let repairs = lock(&self.pace).repaired(item, self.context.clock.now(), fastrand::f64());
        if repairs >= REPAIRS_UNTIL_FIGHT {
            let content = fight(&node, &record.names());
            self.publish_about(observed, name, record, &content);
        }
        Some(())
    }

    /// Publishes an Event about a node and about the maintenances that its record names.
    fn publish_about(
        &self,
        observed: &ObservedCluster,
        node: &str,
        record: &NodeRecord,
        content: &EventContent,
    ) {
        let events = &self.context.events;
        events.publish(&node_reference(node), content.clone());
        let named = record.maintenances.iter();
        for maintenance in named.filter_map(|one| find_maintenance(observed, &one.name)) {
            events.publish(&object_reference(&**maintenance), content.clone());
        }
    }

    async fn change_node(
        &self,
        observed: &ObservedCluster,
        index: usize,
        action: &NodeAction,
    ) -> Result<Node, Error> {
        let Some(node) = observed.nodes.get(index) else {
            return Ok(Node::default());
        };
        if let NodeAction::Hold { record, .. } = action
            && node_state::record(node).is_none()
            && !freshness::is_still_held(&self.context.stores, record)
        {
            return Ok((**node).clone());
        }
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let patch = node_state::patch(node, action);
        let nodes: Api<Node> = Api::all(self.context.clients.host.clone());
        let written = merge_patch(&nodes, name, &patch).await?;
        let content = match action {
            NodeAction::Hold {
                record,
                is_restored: true,
                ..
            } => {
                self.context.metrics.count_repair("record");
                let text = format!(
                    "The annotation of maintenance {} was lost and is restored.",
                    record.names()
                );
                EventContent::warning("RecordRestored", "Cordon", text)
            }
            NodeAction::Note { record } => {
                let text = record.message.clone();
                EventContent::warning("MaintenanceVanished", "Cordon", text)
            }
            NodeAction::Hold { record, .. } if node_state::record(node).is_none() => {
                let first = record.maintenances.first();
                let reason = first
                    .and_then(|first| find_maintenance(observed, &first.name))
                    .map(|one| one.spec.reason.as_str())
                    .filter(|reason| !reason.is_empty())
                    .map(|reason| format!(" ({reason})"))
                    .unwrap_or_default();
                let text = format!("Cordoned for maintenance {}{reason}.", record.names());
                EventContent::normal("MaintenanceStarted", "Cordon", text)
            }
            NodeAction::Hold { .. } => return Ok(written),
            NodeAction::Release { was_unschedulable } => {
                let text = if *was_unschedulable {
                    "Maintenance ended; the node stays unschedulable, as it was before."
                } else {
                    "Maintenance ended; the node is schedulable again."
                };
                EventContent::normal("MaintenanceEnded", "Uncordon", text)
            }
        };
        self.context.events.publish(&node_reference(name), content);
        Ok(written)
    }

    async fn change_request(
        &self,
        observed: &ObservedCluster,
        pod: &PodFacts,
        action: RequestAction,
    ) -> Result<(), Error> {
        let is_asked = matches!(action, RequestAction::Create { .. } | RequestAction::Join { .. });
        if is_asked && !freshness::is_still_drained(&self.context.stores, observed, pod) {
            return Ok(());
        }
        let node = node_name(observed, pod.node);
        let request = observed.state.requests.get(&pod.uid).map(|request| &**request);
        let written = self.requester.write(node, pod, request, action).await?;
        if written == Written::Requested {
            self.context.metrics.count_request();
            if let RequestAction::Create { .. } = action
                && self.deleted.take(&pod.uid)
            {
                self.publish_renewal(observed, pod);
            }
        }
        Ok(())
    }

    /// Tells that a request which somebody deleted was created again.
    fn publish_renewal(&self, observed: &ObservedCluster, pod: &PodFacts) {
        let note = format!(
            "The eviction request of pod {}/{} was deleted before it was finished; it is renewed, because its node is drained.",
            pod.namespace, pod.name
        );
        let content = EventContent::warning("RequestRenewed", "Drain", note);
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        self.context.events.publish(&regarding, content.clone());
        let maintenances = observed.state.maintenances.iter().zip(&observed.maintenances);
        for (_, object) in maintenances.filter(|(one, _)| one.is_draining() && one.selects(pod.node)) {
            self.context
                .events
                .publish(&object_reference(&**object), content.clone());
        }
    }

    async fn change_maintenance(
        &self,
        observed: &ObservedCluster,
        index: usize,
        action: &MaintenanceAction,
    ) -> Result<(), Error> {
        let Some(maintenance) = observed.maintenances.get(index) else {
            return Ok(());
        };
        let name = maintenance.metadata.name.as_deref().unwrap_or_default();
        let maintenances: Api<NodeMaintenance> = Api::all(self.context.clients.drydock.clone());
        let resource_version = maintenance.metadata.resource_version.as_deref();
        let finalizers = maintenance
            .metadata
            .finalizers
            .iter()
            .flatten()
            .map(String::as_str);
        let with_finalizers = |finalizers: Vec<&str>| -> Value {
            json!({"metadata": {"resourceVersion": resource_version, "finalizers": finalizers}})
        };
        let patch = match action {
            MaintenanceAction::WriteStatus(status) => {
                let now = self.context.clock.now();
                let is_urgent = is_urgent(maintenance.status.as_ref(), status);
                if !is_urgent && !lock(&self.pace).may_write_status(name, now) {
                    return Ok(());
                }
                if let Some(patch) = status_patch(resource_version, maintenance.status.as_ref(), &**status) {
                    let written = merge_patch_status(&maintenances, name, &patch).await;
                    if written.as_ref().is_err_and(Error::is_invalid) {
                        self.context
                            .metrics
                            .count_invalid_status_write("nodemaintenances");
                    }
                    written?;
                    lock(&self.pace).wrote_status(name, now);
                }
                return Ok(());
            }
            MaintenanceAction::AddFinalizer { .. } => {
                with_finalizers(finalizers.chain([COMPLETION_FINALIZER]).collect())
            }
            MaintenanceAction::RemoveFinalizer => {
                if !self.may_complete(maintenance).await? {
                    return Ok(());
                }
                with_finalizers(finalizers.filter(|one| *one != COMPLETION_FINALIZER).collect())
            }
            MaintenanceAction::SetStageComplete => json!({
                "metadata": {"resourceVersion": resource_version},
                "spec": {"stage": Stage::Complete},
            }),
        };
        merge_patch(&maintenances, name, &patch).await?;
        if *action == MaintenanceAction::RemoveFinalizer && maintenance.spec.stage == Stage::Complete {
            let completed = MaintenanceEvent::Completed {
                maintenance: name.to_owned(),
            };
            let (_, content) = content_of(&completed);
            let regarding = object_reference(&**maintenance);
            self.context.events.publish(&regarding, content);
        }
        if *action == (MaintenanceAction::AddFinalizer { is_restored: true }) {
            self.context.metrics.count_repair("finalizer");
            let note = "The completion finalizer was taken away and is restored.";
            let content = EventContent::warning("FinalizerRestored", "Cordon", note);
            let regarding = object_reference(&**maintenance);
            self.context.events.publish(&regarding, content);
        }
        Ok(())
    }

    /// Whether the finalizer of a maintenance may go: no node is held for it.
    async fn may_complete(&self, maintenance: &NodeMaintenance) -> Result<bool, Error> {
        // An idle one has touched nothing.
        if maintenance.spec.stage == Stage::Idle {
            return Ok(true);
        }
        let name = maintenance.metadata.name.clone().unwrap_or_default();
        let item = Item::Completion(name);
        if !lock(&self.pace).is_due(&item, self.context.clock.now()) {
            return Ok(false);
        }
        let held = completion::held_nodes(&self.context.clients.host, maintenance).await?;
        if held.is_empty() {
            lock(&self.pace).succeeded(&item);
            return Ok(true);
        }
        let now = self.context.clock.now();
        lock(&self.pace).failed(item, false, now, fastrand::f64());
        let note = format!(
            "Not completed yet: the maintenance still holds nodes that were about to be released: {}.",
            held.join(", ")
        );
        let content = EventContent::warning("CompletionDelayed", "Complete", note);
        self.context
            .events
            .publish(&object_reference(maintenance), content);
        Ok(false)
    }

    fn publish_events(&self, observed: &ObservedCluster, plan: &Plan) {
        // Completion is told when it has happened.
        let is_told_now = |event: &&MaintenanceEvent| !matches!(event, MaintenanceEvent::Completed { .. });
        for event in plan.events.iter().filter(is_told_now) {
            let (maintenances, content) = content_of(event);
            if let MaintenanceEvent::CordonConflict { node, .. } = event {
                self.context
                    .events
                    .publish(&node_reference(node), content.clone());
            }
            for maintenance in maintenances {
                if let Some(maintenance) = find_maintenance(observed, maintenance) {
                    let regarding = object_reference(&**maintenance);
                    self.context.events.publish(&regarding, content.clone());
                }
            }
        }
    }
}

/// Whether a status is written at once: a stage, a condition or what nodes were before differs, not only counts and
/// messages.
fn is_urgent(before: Option<&NodeMaintenanceStatus>, after: &NodeMaintenanceStatus) -> bool {
    let Some(before) = before else { return true };
    let conditions = |status: &NodeMaintenanceStatus| -> Vec<(String, String, String)> {
        let conditions = status.conditions.iter();
        conditions
            .map(|one| (one.type_.clone(), one.status.clone(), one.reason.clone()))
            .collect()
    };
    before.stage_statuses != after.stage_statuses
        || before.cordoned_before != after.cordoned_before
        || conditions(before) != conditions(after)
}

fn node_name(observed: &ObservedCluster, index: usize) -> &str {
    let node = observed.nodes.get(index);
    node.and_then(|node| node.metadata.name.as_deref())
        .unwrap_or_default()
}

fn maintenance_name(observed: &ObservedCluster, index: usize) -> &str {
    let maintenance = observed.maintenances.get(index);
    maintenance
        .and_then(|maintenance| maintenance.metadata.name.as_deref())
        .unwrap_or_default()
}

fn find_maintenance<'a>(observed: &'a ObservedCluster, name: &str) -> Option<&'a Arc<NodeMaintenance>> {
    observed
        .maintenances
        .iter()
        .find(|one| one.metadata.name.as_deref() == Some(name))
}

/// Awaits the calls, [`CONCURRENT_CALLS`] at a time.
async fn run_concurrently<F: Future>(calls: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut ended = Vec::new();
    let mut running = FuturesUnordered::new();
    for call in calls {
        if running.len() >= CONCURRENT_CALLS {
            ended.extend(running.next().await);
        }
        running.push(call);
    }
    ended.extend(running.collect::<Vec<_>>().await);
    ended
}

#[cfg(test)]
mod tests;
