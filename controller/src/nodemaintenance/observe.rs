//! Observes all maintenances, nodes, pods and requests as one [`ClusterState`] for the planner.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use drydock_machinery::selector::NodeMatcher;
use drydock_proto::kinds::evictionrequest::{
    CANCELED, EvictionRequest, IMPERATIVE_EVICTION, NODE_MAINTENANCE_REQUESTER,
};
use drydock_proto::kinds::nodemaintenance::{COMPLETION_FINALIZER, NodeMaintenance, PodType, Stage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::drain_plan::entries;
use super::model::{
    ClusterState, Controller, Maintenance, NodeFacts, Obstacle, PodFacts, RequestFacts, RequestState,
    StaticPods,
};
use super::node_state;
use super::successor::Life;
use crate::pod::Pod;
use crate::rejection;
use crate::stores::Stores;

/// The input of the planner, and the API objects behind it.
#[derive(Debug, Default)]
pub struct ObservedCluster {
    /// The input of the planner.
    pub state: ClusterState,
    /// The objects of `state.maintenances`, by the same indexes.
    pub maintenances: Vec<Arc<NodeMaintenance>>,
    /// The objects of `state.nodes`, by the same indexes.
    pub nodes: Vec<Arc<Node>>,
}

/// Reads the current state from the stores. Idle maintenances are left out.
#[must_use]
pub fn observe(stores: &Stores, static_pods: StaticPods) -> ObservedCluster {
    let mut observed = ObservedCluster {
        maintenances: stores.maintenances.all(),
        nodes: stores.nodes.all(),
        ..ObservedCluster::default()
    };
    observed
        .maintenances
        .retain(|maintenance| maintenance.spec.stage != Stage::Idle);
    observed
        .maintenances
        .sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    observed
        .nodes
        .sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    observed.state.static_pods = static_pods;
    observed.state.maintenances = observed
        .maintenances
        .iter()
        .map(|object| maintenance(object, &observed.nodes))
        .collect();
    observed.state.nodes = observed.nodes.iter().map(|object| node(object)).collect();
    add_pods(stores, &mut observed);
    observed
}

fn maintenance(object: &NodeMaintenance, nodes: &[Arc<Node>]) -> Maintenance {
    let metadata = &object.metadata;
    let matcher = object.spec.node_selector.as_ref().map(NodeMatcher::try_from);
    let selected = |node: &Node| {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let labels = node.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
        matches!(&matcher, Some(Ok(matcher)) if matcher.matches(name, label))
    };
    Maintenance {
        name: metadata.name.clone().unwrap_or_default(),
        created: metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        generation: metadata.generation,
        stage: object.spec.stage.clone(),
        is_deleting: metadata.deletion_timestamp.is_some(),
        has_finalizer: metadata
            .finalizers
            .iter()
            .flatten()
            .any(|one| one == COMPLETION_FINALIZER),
        entries: entries(&object.spec.drain_plan),
        nodes: nodes
            .iter()
            .enumerate()
            .filter_map(|(index, node)| selected(node).then_some(index))
            .collect(),
        status: object.status.clone().unwrap_or_default(),
    }
}

fn node(object: &Node) -> NodeFacts {
    NodeFacts {
        name: object.metadata.name.clone().unwrap_or_default(),
        is_unschedulable: object
            .spec
            .as_ref()
            .and_then(|spec| spec.unschedulable)
            .unwrap_or(false),
        is_tainted: node_state::is_tainted(object),
        record: node_state::record(object),
    }
}

fn add_pods(stores: &Stores, observed: &mut ObservedCluster) {
    let state = &mut observed.state;
    let selected: BTreeSet<usize> = state
        .maintenances
        .iter()
        .flat_map(|one| &one.nodes)
        .copied()
        .collect();
    let by_name: HashMap<String, usize> = state
        .nodes
        .iter()
        .enumerate()
        .map(|(index, node)| (node.name.clone(), index))
        .collect();
    let node_of = |pod: &Pod| by_name.get(pod.spec.node_name.as_deref()?).copied();
    if !selected.is_empty() {
        for pod in stores.pods.all() {
            if let Some(node) = node_of(&pod).filter(|node| selected.contains(node)) {
                if let Some(object) = stores.requests.get(pod.namespace(), pod.uid()) {
                    state.requests.insert(pod.uid().to_owned(), request(&object));
                }
                state.pods.push(pod_facts(&pod, node));
            }
        }
    }
    for object in stores.requests.all() {
        if let Some(life) = Life::of(&object)
            && by_name
                .get(&life.origin.node)
                .is_some_and(|node| selected.contains(node))
        {
            state.lives.push(life);
        }
        if !has_maintenance_requester(&object) || object.is_finished() {
            continue;
        }
        let Some(reference) = &object.spec.target.pod else {
            continue;
        };
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let Some(pod) = stores
            .pods
            .get(namespace, &reference.name)
            .filter(|pod| pod.uid() == reference.uid)
        else {
            continue;
        };
        if let Some(node) = node_of(&pod).filter(|node| !selected.contains(node)) {
            state.requests.insert(reference.uid.clone(), request(&object));
            state.pods.push(pod_facts(&pod, node));
        }
    }
}

/// Whether node maintenances are among the requesters.
#[must_use]
pub fn has_maintenance_requester(request: &EvictionRequest) -> bool {
    request
        .spec
        .requesters
        .iter()
        .any(|requester| requester.name == NODE_MAINTENANCE_REQUESTER)
}

/// The pod as the planner sees it. `node` is the index of its node.
#[must_use]
pub fn pod_facts(pod: &Pod, node: usize) -> PodFacts {
    let pod_type = if pod.is_mirror() {
        PodType::Static
    } else if pod.is_daemon_set_pod() {
        PodType::DaemonSet
    } else {
        PodType::Default
    };
    PodFacts {
        uid: pod.uid().to_owned(),
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        node,
        pod_type: pod_type.rank().unwrap_or_default(),
        priority: pod.spec.priority.unwrap_or_default(),
        labels: pod.labels().clone(),
        is_terminal: pod.is_terminal(),
        created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        controller: pod.controller_reference().map(|owner| Controller {
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        }),
        is_tolerant_daemon_set_pod: pod.is_tolerant_daemon_set_pod(),
    }
}

/// What keeps the request from ending its pod: failed evictions, or its cancellation for another reason than the
/// withdrawal of its requesters.
fn obstacle(object: &EvictionRequest) -> Option<Obstacle> {
    let status = object.status.as_ref()?;
    if object.is_finished() {
        let canceled = status.conditions.iter().find(|condition| {
            condition.type_ == CANCELED && condition.status == "True" && condition.reason != "NoRequesters"
        })?;
        return Some(Obstacle {
            since: canceled.last_transition_time.0,
            reason: "RequestObstructed",
            message: format!("{}: {}", canceled.reason, canceled.message),
        });
    }
    let active = status.active_interceptors.first()?;
    let entry = status
        .interceptors
        .iter()
        .find(|entry| entry.name == *active && entry.name == IMPERATIVE_EVICTION)?;
    let cause = rejection::cause(&entry.message)?;
    Some(Obstacle {
        since: entry.start_time.as_ref()?.0,
        reason: rejection::reason(cause),
        message: cause.to_owned(),
    })
}

fn request(object: &EvictionRequest) -> RequestFacts {
    let was_withdrawn = object
        .status
        .iter()
        .flat_map(|status| &status.conditions)
        .any(|condition| {
            condition.type_ == CANCELED && condition.status == "True" && condition.reason == "NoRequesters"
        });
    RequestFacts {
        created: object
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        obstacle: obstacle(object),
        has_maintenance_requester: has_maintenance_requester(object),
        is_cancellation_forbidden: object.is_cancellation_forbidden(),
        state: if was_withdrawn {
            RequestState::Withdrawn
        } else if object.is_finished() {
            RequestState::Final
        } else {
            RequestState::Active
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::typed;
    use serde_json::{Value, json};

    fn obstacle_of(status: &Value) -> Option<(i64, &'static str, String)> {
        let object: EvictionRequest = typed(json!({"metadata": {"name": "uid-1"}, "status": status}));
        let obstacle = obstacle(&object)?;
        Some((obstacle.since.as_second(), obstacle.reason, obstacle.message))
    }

    #[test]
    fn obstacle_is_the_cause_of_failed_evictions_or_of_the_cancellation() {
        let evicting = |active: &str, message: &str| {
            json!({
                "activeInterceptors": [active],
                "interceptors": [{"name": active, "startTime": "1970-01-01T00:00:09Z", "message": message}],
            })
        };
        let rejected = rejection::message(&rejection::budgets(&["db"]), 7, 100);
        assert_eq!(
            obstacle_of(&evicting(IMPERATIVE_EVICTION, &rejected)),
            Some((9, "Budget", "blocked by PodDisruptionBudget db".to_owned()))
        );
        assert_eq!(obstacle_of(&evicting("a.example.com", &rejected)), None);
        assert_eq!(
            obstacle_of(&evicting(IMPERATIVE_EVICTION, "The pod was evicted.")),
            None
        );
        let canceled = |reason: &str| {
            json!({"conditions": [{
                "type": "Canceled", "status": "True", "reason": reason, "message": "m",
                "lastTransitionTime": "1970-01-01T00:00:05Z",
            }]})
        };
        assert_eq!(
            obstacle_of(&canceled("ValidationFailed")),
            Some((5, "RequestObstructed", "ValidationFailed: m".to_owned()))
        );
        assert_eq!(obstacle_of(&canceled("NoRequesters")), None);
        assert_eq!(obstacle_of(&json!({})), None);
    }
}
