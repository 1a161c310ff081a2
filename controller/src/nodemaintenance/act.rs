//! Executes plans: first the nodes, then the requests of their pods, then the maintenances. Every write has a
//! precondition or has no effect when repeated.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use drydock_proto::kinds::evictionrequest::{
    EvictionRequest, EvictionRequestSpec, EvictionTarget, NODE_MAINTENANCE_REQUESTER, PodReference, Requester,
};
use drydock_proto::kinds::nodemaintenance::{COMPLETION_FINALIZER, NodeMaintenance, Stage};
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{PostParams, Preconditions};
use serde_json::{Value, json};

use super::model::{MaintenanceAction, MaintenanceEvent, Plan, PodFacts, RequestAction};
use super::node_state::{self, NodeAction};
use super::observe::ObservedCluster;
use super::successor::{KEPT_SECONDS, Origin, SUCCESSOR_ANNOTATION};
use crate::api::{self, Error, call, merge_patch, merge_patch_status, status_patch};
use crate::context::Context;
use crate::events::{EventContent, node_reference, object_reference};

/// How many calls are in flight at a time.
const CONCURRENT_CALLS: usize = 16;
/// How many requests are changed before the cluster is observed again.
const MAX_REQUESTS_PER_PLAN: usize = 2000;
/// How often a change of requesters is retried after a write conflict.
const CONFLICT_RETRIES: usize = 5;

/// Executes plans.
#[derive(Debug)]
pub struct PlanExecutor {
    context: Arc<Context>,
}

/// How far a plan was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanOutcome {
    /// All of it.
    Complete,
    /// Part of it: the rest needs a new plan, or there were write conflicts.
    Partial,
    /// A call failed.
    Failed,
}

impl PlanExecutor {
    /// An executor.
    #[must_use]
    pub fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// Executes the plan.
    pub async fn execute(&self, observed: &ObservedCluster, plan: &Plan) -> PlanOutcome {
        self.publish_events(observed, plan);
        let nodes = plan
            .nodes
            .iter()
            .map(|(index, action)| async move { (*index, self.change_node(observed, *index, action).await) });
        let mut results = Vec::new();
        let mut failed_nodes = BTreeSet::new();
        for (index, result) in run_concurrently(nodes).await {
            if result.is_err() {
                failed_nodes.insert(index);
            }
            results.push(result);
        }
        // No pod is requested to leave a node that may still be schedulable, or whose taint may be missing.
        let requests = plan.requests.iter().filter_map(|(index, action)| {
            let pod = observed.state.pods.get(*index)?;
            let node = observed
                .state
                .nodes
                .get(pod.node)
                .map_or("", |node| node.name.as_str());
            (!failed_nodes.contains(&pod.node)).then(|| self.change_request(node, pod, *action))
        });
        results.extend(run_concurrently(requests.take(MAX_REQUESTS_PER_PLAN)).await);
        let maintenances = plan
            .maintenances
            .iter()
            .map(|(index, action)| self.change_maintenance(observed, *index, action));
        results.extend(run_concurrently(maintenances).await);

        let is_incomplete = plan.requests.len() > MAX_REQUESTS_PER_PLAN
            || plan
                .requests
                .iter()
                .any(|(_, action)| *action == RequestAction::DeleteWithdrawn);
        let mut outcome = if is_incomplete {
            PlanOutcome::Partial
        } else {
            PlanOutcome::Complete
        };
        for error in results.into_iter().filter_map(Result::err) {
            if error.is_conflict() || error.is_not_found() {
                if outcome == PlanOutcome::Complete {
                    outcome = PlanOutcome::Partial;
                }
                continue;
            }
            let cause = error.cause();
            tracing::warn!(%error, cause, "executing a plan for node maintenances failed in part");
            outcome = PlanOutcome::Failed;
        }
        outcome
    }

    async fn change_node(
        &self,
        observed: &ObservedCluster,
        index: usize,
        action: &NodeAction,
    ) -> Result<(), Error> {
        let Some(node) = observed.nodes.get(index) else {
            return Ok(());
        };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let patch = node_state::patch(node, action);
        let nodes: Api<Node> = Api::all(self.context.clients.host.clone());
        merge_patch(&nodes, name, &patch).await?;
        let content = match action {
            NodeAction::Hold { record, .. } if node_state::record(node).is_none() => {
                let names: Vec<_> = record.maintenances.iter().map(|one| one.name.as_str()).collect();
                let reason = names
                    .first()
                    .and_then(|name| find_maintenance(observed, name))
                    .map(|one| one.spec.reason.as_str())
                    .filter(|reason| !reason.is_empty())
                    .map(|reason| format!(" ({reason})"))
                    .unwrap_or_default();
                let text = format!("Cordoned for maintenance {}{reason}.", names.join(", "));
                EventContent::normal("MaintenanceStarted", "Cordon", text)
            }
            NodeAction::Hold { .. } => return Ok(()),
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
        Ok(())
    }

    async fn change_request(&self, node: &str, pod: &PodFacts, action: RequestAction) -> Result<(), Error> {
        let requests: Api<EvictionRequest> =
            Api::namespaced(self.context.clients.drydock.clone(), &pod.namespace);
        match action {
            RequestAction::Create { is_successor } => {
                let origin = is_successor.then(|| origin(node, pod)).flatten();
                let request = request_for(pod, origin.as_deref());
                let created = call(requests.create(&PostParams::default(), &request)).await;
                match created {
                    Ok(_) => self.context.metrics.count_request(),
                    Err(error) if error.is_conflict() => {
                        self.change_requesters(&requests, &pod.uid, add_requester, origin.as_deref())
                            .await?;
                    }
                    // The pods of a namespace in deletion are deleted with it.
                    Err(error) if is_namespace_terminating(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            RequestAction::Join { is_successor } => {
                let origin = is_successor.then(|| origin(node, pod)).flatten();
                self.change_requesters(&requests, &pod.uid, add_requester, origin.as_deref())
                    .await?;
                self.context.metrics.count_request();
            }
            RequestAction::Withdraw => {
                self.change_requesters(&requests, &pod.uid, remove_requester, None)
                    .await?;
            }
            RequestAction::DeleteWithdrawn => {
                let request = call(requests.get_opt(&pod.uid)).await?;
                let Some(request) = request.filter(EvictionRequest::is_finished) else {
                    return Ok(());
                };
                let preconditions = Preconditions {
                    uid: request.metadata.uid,
                    resource_version: request.metadata.resource_version,
                };
                api::delete(&requests, &pod.uid, preconditions).await?;
            }
        }
        Ok(())
    }

    /// Writes the requesters that `change` returns for the current request, and with them the origin of a successor.
    async fn change_requesters(
        &self,
        requests: &Api<EvictionRequest>,
        name: &str,
        change: fn(&EvictionRequest) -> Option<Vec<Requester>>,
        origin: Option<&str>,
    ) -> Result<(), Error> {
        for attempt in 0..=CONFLICT_RETRIES {
            let Some(request) = call(requests.get_opt(name)).await? else {
                return Ok(());
            };
            if request.is_finished() || request.is_cancellation_forbidden() {
                return Ok(());
            }
            let Some(requesters) = change(&request) else {
                return Ok(());
            };
            let mut metadata = json!({ "resourceVersion": request.metadata.resource_version });
            if let (Some(origin), Some(metadata)) = (origin, metadata.as_object_mut()) {
                metadata.insert("annotations".to_owned(), json!({ SUCCESSOR_ANNOTATION: origin }));
            }
            let patch = json!({ "metadata": metadata, "spec": { "requesters": requesters } });
            match merge_patch(requests, name, &patch).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() && attempt < CONFLICT_RETRIES => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
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
                if let Some(patch) = status_patch(resource_version, maintenance.status.as_ref(), &**status) {
                    let written = merge_patch_status(&maintenances, name, &patch).await;
                    if written.as_ref().is_err_and(Error::is_invalid) {
                        self.context
                            .metrics
                            .count_invalid_status_write("nodemaintenances");
                    }
                    written?;
                }
                return Ok(());
            }
            MaintenanceAction::AddFinalizer => {
                with_finalizers(finalizers.chain([COMPLETION_FINALIZER]).collect())
            }
            MaintenanceAction::RemoveFinalizer => {
                with_finalizers(finalizers.filter(|one| *one != COMPLETION_FINALIZER).collect())
            }
            MaintenanceAction::SetStageComplete => json!({
                "metadata": {"resourceVersion": resource_version},
                "spec": {"stage": Stage::Complete},
            }),
        };
        merge_patch(&maintenances, name, &patch).await?;
        Ok(())
    }

    fn publish_events(&self, observed: &ObservedCluster, plan: &Plan) {
        for event in &plan.events {
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

/// The maintenances that the Event is about, and its content.
fn content_of(event: &MaintenanceEvent) -> (Vec<&str>, EventContent) {
    match event {
        MaintenanceEvent::FastForwarded { maintenance, node } => {
            let note =
                format!("Node {node} has reached later drain targets; they are not reset for {maintenance}.");
            let content = EventContent::warning("FastForwarded", "Drain", note);
            (vec![maintenance], content)
        }
        MaintenanceEvent::CordonConflict { node, maintenances } => {
            let note = format!(
                "Node {node} was made schedulable during maintenance {}; it is cordoned again.",
                maintenances.join(", ")
            );
            let content = EventContent::warning("CordonConflict", "Cordon", note);
            (maintenances.iter().map(String::as_str).collect(), content)
        }
        MaintenanceEvent::StaticPods { maintenance, count } => {
            let note = format!("blocked: static pod ({count} on drained nodes)");
            let content = EventContent::warning("StaticPods", "Drain", note);
            (vec![maintenance], content)
        }
        MaintenanceEvent::TolerantDaemonSetPods {
            maintenance,
            description,
        } => {
            let note = format!("Left alone: {description}.");
            let content = EventContent::warning("DaemonSetPod", "Drain", note);
            (vec![maintenance], content)
        }
        MaintenanceEvent::ComesBack {
            maintenance,
            description,
        } => {
            let content = EventContent::warning("ComesBack", "Drain", format!("{description}."));
            (vec![maintenance], content)
        }
        MaintenanceEvent::Drained { maintenance } => {
            let note = "All targeted pods are gone from all selected nodes.";
            let content = EventContent::normal("Drained", "Drain", note);
            (vec![maintenance], content)
        }
        MaintenanceEvent::Completed { maintenance } => {
            let note = "Nodes are released and requests withdrawn.";
            let content = EventContent::normal("Completed", "Complete", note);
            (vec![maintenance], content)
        }
    }
}

fn find_maintenance<'a>(observed: &'a ObservedCluster, name: &str) -> Option<&'a Arc<NodeMaintenance>> {
    observed
        .maintenances
        .iter()
        .find(|one| one.metadata.name.as_deref() == Some(name))
}

/// Awaits the calls, [`CONCURRENT_CALLS`] at a time.
async fn run_concurrently<F: Future>(calls: impl Iterator<Item = F>) -> Vec<F::Output> {
    let calls: Vec<F> = calls.collect();
    stream::iter(calls)
        .buffer_unordered(CONCURRENT_CALLS)
        .collect()
        .await
}

/// The origin of a successor, as the value of its annotation; `None` without a controller.
fn origin(node: &str, pod: &PodFacts) -> Option<String> {
    let controller = pod.controller.as_ref()?;
    let origin = Origin {
        node: node.to_owned(),
        kind: controller.kind.clone(),
        name: controller.name.clone(),
        uid: controller.uid.clone(),
    };
    serde_json::to_string(&origin).ok()
}

fn request_for(pod: &PodFacts, origin: Option<&str>) -> EvictionRequest {
    EvictionRequest {
        metadata: ObjectMeta {
            name: Some(pod.uid.clone()),
            namespace: Some(pod.namespace.clone()),
            annotations: origin.map(|origin| [(SUCCESSOR_ANNOTATION.to_owned(), origin.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: EvictionRequestSpec {
            target: EvictionTarget {
                pod: Some(PodReference {
                    name: pod.name.clone(),
                    uid: pod.uid.clone(),
                }),
            },
            requesters: vec![maintenance_requester()],
            ttl_seconds_after_finished: origin.map(|_| KEPT_SECONDS),
            ..EvictionRequestSpec::default()
        },
        status: None,
    }
}

fn maintenance_requester() -> Requester {
    Requester {
        name: NODE_MAINTENANCE_REQUESTER.to_owned(),
    }
}

/// The requesters with the maintenance requester; `None` when it is already among them.
fn add_requester(request: &EvictionRequest) -> Option<Vec<Requester>> {
    let requesters = &request.spec.requesters;
    let added = maintenance_requester();
    (!requesters.contains(&added)).then(|| requesters.iter().cloned().chain([added]).collect())
}

/// The requesters without the maintenance requester; `None` when it is not among them.
fn remove_requester(request: &EvictionRequest) -> Option<Vec<Requester>> {
    let requesters = &request.spec.requesters;
    let removed = maintenance_requester();
    let others = || {
        requesters
            .iter()
            .filter(|one| **one != removed)
            .cloned()
            .collect()
    };
    requesters.contains(&removed).then(others)
}

fn is_namespace_terminating(error: &Error) -> bool {
    let details = error.status().and_then(|status| status.details.as_ref());
    details.is_some_and(|details| {
        details
            .causes
            .iter()
            .any(|cause| cause.reason == "NamespaceTerminating")
    })
}

#[cfg(test)]
mod tests;
