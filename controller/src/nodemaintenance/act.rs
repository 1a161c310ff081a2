//! How is a plan carried out? Nodes first, then requests of their pods, then the maintenances themselves; every
//! write is conditional or harmless when repeated.

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
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use super::observe::Observed;
use super::plan::{Ask, NodeTarget, Notice, Plan, Pod, Upkeep};
use super::taints;
use crate::api::{Clients, Error, call, status_patch};
use crate::events::{self, Events};
use crate::metrics::Metrics;

/// How many calls are under way at a time.
const CALLS: usize = 16;
/// How many requests are made in one go, before the world is looked at again.
const ASKS: usize = 2000;
/// How often a change of requesters is tried again when others change the request at the same time.
const CONFLICTS: usize = 5;

/// Carries plans out.
#[derive(Debug, Clone)]
pub struct Actor {
    clients: Clients,
    events: Events,
    metrics: Metrics,
}

/// What became of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carried {
    /// All of it was carried out.
    Out,
    /// There is more of it, or others changed the same objects at the same time: plan again.
    InPart,
    /// Something failed.
    Failed,
}

impl Actor {
    /// An actor on these APIs.
    #[must_use]
    pub fn new(clients: Clients, events: Events, metrics: Metrics) -> Self {
        Self {
            clients,
            events,
            metrics,
        }
    }

    /// Carries out the plan.
    pub async fn carry_out(&self, observed: &Observed, plan: &Plan) -> Carried {
        self.tell(observed, plan);
        let nodes = plan
            .nodes
            .iter()
            .map(|(index, target)| async move { (*index, self.keep_node(observed, *index, target).await) });
        let mut results = Vec::new();
        let mut failed_nodes = BTreeSet::new();
        for (index, result) in together(nodes).await {
            if result.is_err() {
                failed_nodes.insert(index);
            }
            results.push(result);
        }
        // Pods of DaemonSets must find the taint in place before they go, and no pod goes from a node that still
        // takes new ones.
        let wanted = plan.asks.iter().filter_map(|(index, ask)| {
            let pod = observed.world.pods.get(*index)?;
            (!failed_nodes.contains(&pod.node)).then(|| self.ask(pod, *ask))
        });
        results.extend(together(wanted.take(ASKS)).await);
        let upkeep = plan
            .upkeep
            .iter()
            .map(|(index, upkeep)| self.keep_up(observed, *index, upkeep));
        results.extend(together(upkeep).await);

        let is_left = plan.asks.len() > ASKS || plan.asks.iter().any(|(_, ask)| *ask == Ask::Renew);
        let mut carried = if is_left { Carried::InPart } else { Carried::Out };
        for error in results.into_iter().filter_map(Result::err) {
            if error.is_conflict() || error.is_not_found() {
                if carried == Carried::Out {
                    carried = Carried::InPart;
                }
                continue;
            }
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, cause, "a plan for node maintenances was not carried out in full");
            carried = Carried::Failed;
        }
        carried
    }

    async fn keep_node(&self, observed: &Observed, index: usize, target: &NodeTarget) -> Result<(), Error> {
        let Some(node) = observed.nodes.get(index) else {
            return Ok(());
        };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let patch = taints::patch(node, target);
        let nodes: Api<Node> = Api::all(self.clients.host.clone());
        call(nodes.patch(name, &PatchParams::default(), &Patch::Merge(&patch))).await?;
        let about = events::node_reference(name);
        match target {
            NodeTarget::Held { record, .. } if taints::record(node).is_none() => {
                let names: Vec<_> = record.maintenances.iter().map(|one| one.name.as_str()).collect();
                let reason = observed
                    .maintenances
                    .iter()
                    .find(|one| one.metadata.name.as_deref() == names.first().copied())
                    .map(|one| one.spec.reason.as_str())
                    .filter(|reason| !reason.is_empty())
                    .map(|reason| format!(" ({reason})"))
                    .unwrap_or_default();
                let text = format!("Cordoned for maintenance {}{reason}.", names.join(", "));
                self.events.say(
                    &about,
                    events::Notice::normal("MaintenanceStarted", "Cordon", text),
                );
            }
            NodeTarget::Held { .. } => {}
            NodeTarget::Released { was_unschedulable } => {
                let text = if *was_unschedulable {
                    "Maintenance is over; the node took no pods before and takes none now."
                } else {
                    "Maintenance is over; the node takes pods again."
                };
                self.events.say(
                    &about,
                    events::Notice::normal("MaintenanceEnded", "Uncordon", text),
                );
            }
        }
        Ok(())
    }

    async fn ask(&self, pod: &Pod, ask: Ask) -> Result<(), Error> {
        let requests: Api<EvictionRequest> = Api::namespaced(self.clients.ours.clone(), &pod.namespace);
        match ask {
            Ask::Create => {
                let created = call(requests.create(&PostParams::default(), &request_for(pod))).await;
                match created {
                    Ok(_) => self.metrics.requested(),
                    Err(error) if error.is_conflict() => self.change(&requests, &pod.uid, join).await?,
                    // The namespace is going: its pods go with it.
                    Err(error) if is_terminating_namespace(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            Ask::Join => {
                self.change(&requests, &pod.uid, join).await?;
                self.metrics.requested();
            }
            Ask::Release => self.change(&requests, &pod.uid, leave).await?,
            Ask::Renew => {
                let Some(request) = call(requests.get_opt(&pod.uid)).await? else {
                    return Ok(());
                };
                if !request.is_finished() {
                    return Ok(());
                }
                let parameters = DeleteParams::default().preconditions(Preconditions {
                    uid: request.metadata.uid,
                    resource_version: request.metadata.resource_version,
                });
                call(requests.delete(&pod.uid, &parameters)).await?;
            }
        }
        Ok(())
    }

    /// Changes the requesters of a request, keeping those of others.
    async fn change(
        &self,
        requests: &Api<EvictionRequest>,
        name: &str,
        change: fn(&EvictionRequest) -> Option<Vec<Requester>>,
    ) -> Result<(), Error> {
        for attempt in 0..=CONFLICTS {
            let Some(request) = call(requests.get_opt(name)).await? else {
                return Ok(());
            };
            if request.is_finished() || request.is_cancellation_forbidden() {
                return Ok(());
            }
            let Some(requesters) = change(&request) else {
                return Ok(());
            };
            let patch = json!({
                "metadata": { "resourceVersion": request.metadata.resource_version },
                "spec": { "requesters": requesters },
            });
            match call(requests.patch(name, &PatchParams::default(), &Patch::Merge(&patch))).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() && attempt < CONFLICTS => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn keep_up(&self, observed: &Observed, index: usize, upkeep: &Upkeep) -> Result<(), Error> {
        let Some(maintenance) = observed.maintenances.get(index) else {
            return Ok(());
        };
        let name = maintenance.metadata.name.as_deref().unwrap_or_default();
        let maintenances: Api<NodeMaintenance> = Api::all(self.clients.ours.clone());
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
        let patch = match upkeep {
            Upkeep::Report(status) => {
                if let Some(patch) = status_patch(resource_version, maintenance.status.as_ref(), &**status) {
                    call(maintenances.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)))
                        .await?;
                }
                return Ok(());
            }
            Upkeep::AddFinalizer => with_finalizers(finalizers.chain([COMPLETION_FINALIZER]).collect()),
            Upkeep::RemoveFinalizer => {
                with_finalizers(finalizers.filter(|one| *one != COMPLETION_FINALIZER).collect())
            }
            Upkeep::Complete => json!({
                "metadata": {"resourceVersion": resource_version},
                "spec": {"stage": Stage::Complete},
            }),
        };
        call(maintenances.patch(name, &PatchParams::default(), &Patch::Merge(&patch))).await?;
        Ok(())
    }

    fn tell(&self, observed: &Observed, plan: &Plan) {
        let find = |name: &str| {
            let named = |one: &&Arc<NodeMaintenance>| one.metadata.name.as_deref() == Some(name);
            observed
                .maintenances
                .iter()
                .find(named)
                .map(|one| events::reference(&**one))
        };
        for notice in &plan.notices {
            let (names, said): (Vec<&str>, _) = match notice {
                Notice::FastForwarded { maintenance, node } => {
                    let note = format!(
                        "Node {node} is further in its drain: its targets do not go back for {maintenance}."
                    );
                    (
                        vec![maintenance],
                        events::Notice::warning("FastForwarded", "Drain", note),
                    )
                }
                Notice::Fight { node, maintenances } => {
                    let note = format!(
                        "Node {node} was made schedulable during maintenance {}; it is cordoned again.",
                        maintenances.join(", ")
                    );
                    let said = events::Notice::warning("CordonConflict", "Cordon", note);
                    self.events.say(&events::node_reference(node), said.clone());
                    (maintenances.iter().map(String::as_str).collect(), said)
                }
                Notice::StaticPods { maintenance, count } => {
                    let note = format!("blocked: static pod ({count} on drained nodes)");
                    (
                        vec![maintenance],
                        events::Notice::warning("StaticPods", "Drain", note),
                    )
                }
                Notice::Drained { maintenance } => {
                    let note = "All targeted pods are gone from all selected nodes.";
                    (
                        vec![maintenance],
                        events::Notice::normal("Drained", "Drain", note),
                    )
                }
                Notice::Completed { maintenance } => {
                    let note = "Nodes are released and requests withdrawn.";
                    (
                        vec![maintenance],
                        events::Notice::normal("Completed", "Complete", note),
                    )
                }
            };
            for about in names.into_iter().filter_map(find) {
                self.events.say(&about, said.clone());
            }
        }
    }
}

/// Awaits the calls, a few at a time.
async fn together<F: Future>(calls: impl Iterator<Item = F>) -> Vec<F::Output> {
    let calls: Vec<F> = calls.collect();
    stream::iter(calls).buffer_unordered(CALLS).collect().await
}

fn request_for(pod: &Pod) -> EvictionRequest {
    EvictionRequest {
        metadata: ObjectMeta {
            name: Some(pod.uid.clone()),
            namespace: Some(pod.namespace.clone()),
            ..ObjectMeta::default()
        },
        spec: EvictionRequestSpec {
            target: EvictionTarget {
                pod: Some(PodReference {
                    name: pod.name.clone(),
                    uid: pod.uid.clone(),
                }),
            },
            requesters: vec![ours()],
            ..EvictionRequestSpec::default()
        },
        status: None,
    }
}

fn ours() -> Requester {
    Requester {
        name: NODE_MAINTENANCE_REQUESTER.to_owned(),
    }
}

/// The requesters with ours among them; `None` when it is.
fn join(request: &EvictionRequest) -> Option<Vec<Requester>> {
    let requesters = &request.spec.requesters;
    (!requesters.contains(&ours())).then(|| requesters.iter().cloned().chain([ours()]).collect())
}

/// The requesters without ours; `None` when it is not among them.
fn leave(request: &EvictionRequest) -> Option<Vec<Requester>> {
    let requesters = &request.spec.requesters;
    let others = || requesters.iter().filter(|one| **one != ours()).cloned().collect();
    requesters.contains(&ours()).then(others)
}

fn is_terminating_namespace(error: &Error) -> bool {
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
