//! Observes all maintenances, nodes, pods and requests as one [`ClusterState`] for the planner.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use drydock_machinery::selector::NodeMatcher;
use drydock_proto::kinds::evictionrequest::{
    CANCELED, EVICTED, EvictionRequest, IMPERATIVE_EVICTION, NODE_MAINTENANCE_REQUESTER,
};
use drydock_proto::kinds::nodemaintenance::{COMPLETION_FINALIZER, NodeMaintenance, PodType, Stage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::drain_plan::entries;
use super::model::{
    ClusterState, Controller, Deletion, Maintenance, NodeFacts, Obstacle, PodFacts, RecordSource,
    RequestFacts, RequestState, StaticPods,
};
use super::node_state;
use super::recovery::recover_records;
use super::replacement::REPLACED_ANNOTATION;
use super::successor::Life;
use crate::pod::Pod;
use crate::rejection;
use crate::request_labels;
use crate::stores::Stores;

/// The condition of a request that says what its pod waits for.
const BLOCKED: &str = "Blocked";

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

/// Reads the current state from the stores. Idle maintenances are left out, unless they are being deleted.
#[must_use]
pub fn observe(stores: &Stores, static_pods: StaticPods) -> ObservedCluster {
    let mut observed = ObservedCluster {
        maintenances: stores.maintenances.all(),
        nodes: stores.nodes.all(),
        ..ObservedCluster::default()
    };
    observed.maintenances.retain(|maintenance| {
        maintenance.spec.stage != Stage::Idle || maintenance.metadata.deletion_timestamp.is_some()
    });
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
    recover_records(&mut observed.state);
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
        uid: metadata.uid.clone().unwrap_or_default(),
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
    let record = node_state::record(object);
    NodeFacts {
        record_source: if record.is_none() && node_state::is_under_maintenance(object) {
            RecordSource::Damaged
        } else {
            RecordSource::Annotation
        },
        name: object.metadata.name.clone().unwrap_or_default(),
        is_unschedulable: object
            .spec
            .as_ref()
            .and_then(|spec| spec.unschedulable)
            .unwrap_or(false),
        is_tainted: node_state::is_tainted(object),
        record,
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
                    let facts = request(&object, pod.name());
                    state.requests.insert(pod.uid().to_owned(), facts);
                }
                state.pods.push(PodFacts {
                    namespace_deleted: namespace_deleted(stores, &pod),
                    ..pod_facts(&pod, node)
                });
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
            let facts = request(&object, pod.name());
            state.requests.insert(reference.uid.clone(), facts);
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

/// Since when the namespace of the pod is being deleted.
fn namespace_deleted(stores: &Stores, pod: &Pod) -> Option<Timestamp> {
    let namespace = stores.namespaces.get("", pod.namespace())?;
    Some(namespace.metadata.deletion_timestamp.as_ref()?.0)
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
        may_come_back: pod.may_come_back(),
        namespace_deleted: None,
    }
}

/// What keeps the request from ending its pod: its condition says so, its evictions fail, or it was canceled.
fn obstacle(object: &EvictionRequest) -> Option<Obstacle> {
    let status = object.status.as_ref()?;
    let condition = |wanted: &str| {
        let mut conditions = status.conditions.iter();
        conditions.find(|condition| condition.type_ == wanted && condition.status == "True")
    };
    if object.is_finished() {
        let canceled = condition(CANCELED)?;
        return Some(Obstacle {
            since: canceled.last_transition_time.0,
            reason: "RequestObstructed".to_owned(),
            message: format!("{}: {}", canceled.reason, canceled.message),
        });
    }
    if let Some(blocked) = condition(BLOCKED) {
        return Some(Obstacle {
            since: blocked.last_transition_time.0,
            reason: blocked.reason.clone(),
            message: blocked.message.clone(),
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
        reason: rejection::reason(cause).to_owned(),
        message: cause.to_owned(),
    })
}

/// The request as the planner sees it. `pod` is the name of the pod whose UID it has.
fn request(object: &EvictionRequest, pod: &str) -> RequestFacts {
    let conditions = object.status.iter().flat_map(|status| &status.conditions);
    let ended = conditions
        .filter(|condition| condition.status == "True")
        .find(|condition| condition.type_ == CANCELED || condition.type_ == EVICTED);
    let metadata = &object.metadata;
    let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key));
    let target = object.spec.target.pod.as_ref();
    RequestFacts {
        uid: metadata.uid.clone().unwrap_or_default(),
        created: metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        obstacle: obstacle(object),
        has_maintenance_requester: has_maintenance_requester(object),
        is_created_by_maintenance: request_labels::missing_annotations(metadata.annotations.as_ref())
            .is_empty(),
        is_cancellation_forbidden: object.is_cancellation_forbidden(),
        state: match ended {
            None => RequestState::Active,
            Some(condition) if condition.type_ == CANCELED => RequestState::Canceled,
            Some(_) => RequestState::Evicted,
        },
        ended: ended.map(|condition| condition.last_transition_time.0),
        replaced: annotation(REPLACED_ANNOTATION)
            .and_then(|count| count.parse().ok())
            .unwrap_or_default(),
        deletion: metadata.deletion_timestamp.as_ref().map(|since| Deletion {
            since: since.0,
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
        }),
        other_pod: target
            .map(|target| target.name.clone())
            .filter(|name| name != pod),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::typed;
    use serde_json::{Value, json};

    fn obstacle_of(status: &Value) -> Option<(i64, String, String)> {
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
            Some((
                9,
                "Budget".to_owned(),
                "blocked by PodDisruptionBudget db".to_owned()
            ))
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
            Some((
                5,
                "RequestObstructed".to_owned(),
                "ValidationFailed: m".to_owned()
            ))
        );
        assert_eq!(obstacle_of(&json!({})), None);
    }

    #[test]
    fn condition_of_the_request_says_what_its_pod_waits_for() {
        let blocked = |status: &str| {
            json!({"conditions": [{
                "type": "Blocked", "status": status, "reason": "NodeUnreachable", "message": "node one is not ready",
                "lastTransitionTime": "1970-01-01T00:00:05Z",
            }]})
        };
        assert_eq!(
            obstacle_of(&blocked("True")),
            Some((
                5,
                "NodeUnreachable".to_owned(),
                "node one is not ready".to_owned()
            ))
        );
        assert_eq!(obstacle_of(&blocked("False")), None);
    }

    #[test]
    fn request_facts_tell_what_stands_in_the_way() {
        let object: EvictionRequest = typed(json!({
            "metadata": {
                "name": "uid-1", "uid": "er-1", "deletionTimestamp": "1970-01-01T00:00:07Z",
                "finalizers": ["a.example.com/f"], "annotations": {REPLACED_ANNOTATION: "3"},
            },
            "spec": {"target": {"pod": {"name": "other", "uid": "uid-1"}}},
        }));
        let facts = request(&object, "web");
        assert_eq!(facts.other_pod.as_deref(), Some("other"));
        assert_eq!(request(&object, "other").other_pod, None);
        let deletion = facts.deletion.unwrap();
        assert_eq!(
            (deletion.since.as_second(), deletion.finalizers),
            (7, vec!["a.example.com/f".to_owned()])
        );
        assert_eq!((facts.replaced, facts.uid.as_str()), (3, "er-1"));
    }
}
