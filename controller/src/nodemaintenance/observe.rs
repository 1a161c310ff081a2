//! Observes all maintenances, nodes, pods and requests as one [`ClusterState`] for the planner.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use drydock_machinery::selector::NodeMatcher;
use drydock_proto::kinds::evictionrequest::EvictionRequest;
use drydock_proto::kinds::nodemaintenance::{COMPLETION_FINALIZER, NodeMaintenance, PodType, Stage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::drain_plan::{Entry, entries};
use super::index::ClusterIndex;
use super::model::{
    ClusterState, Controller, Maintenance, NodeFacts, PodFacts, PodProperties, RecordSource, RequestFacts,
    StaticPods,
};
use super::node_state;
use super::recovery::recover_records;
use super::request_facts::request_facts;
use super::shared::Shared;
use crate::pod::Pod;
use crate::stores::Stores;
use crate::sync::lock;

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

/// Observes the cluster. What it computes from an object it keeps until the object changes.
#[derive(Debug)]
pub struct Observer {
    stores: Stores,
    index: Arc<ClusterIndex>,
    static_pods: StaticPods,
    cache: Mutex<Cache>,
}

/// What the last round computed, by object.
#[derive(Debug, Default)]
struct Cache {
    /// By UID, with the generation.
    maintenances: HashMap<String, (Option<i64>, Arc<CompiledSpec>)>,
    /// By name.
    nodes: HashMap<String, (Arc<Node>, NodeFacts)>,
    /// By UID.
    pods: HashMap<String, CachedPod>,
    /// The number of the last round.
    round: u64,
    /// Since when the namespace of the last pod is being deleted, in this round.
    namespace: Option<(String, Option<Timestamp>)>,
}

#[derive(Debug)]
struct CachedPod {
    pod: Arc<Pod>,
    facts: Shared<PodProperties>,
    request: Option<(Arc<EvictionRequest>, Shared<RequestFacts>)>,
    /// The last round that observed it.
    round: u64,
}

/// The spec of a maintenance, compiled.
#[derive(Debug)]
struct CompiledSpec {
    /// `None` when it is invalid. It then selects no node.
    matcher: Option<NodeMatcher>,
    entries: Arc<Vec<Entry>>,
}

impl Observer {
    /// An observer of these stores.
    #[must_use]
    pub fn new(stores: Stores, index: Arc<ClusterIndex>, static_pods: StaticPods) -> Self {
        Self {
            stores,
            index,
            static_pods,
            cache: Mutex::default(),
        }
    }

    /// Reads the current state. Idle maintenances are left out, unless they are being deleted.
    #[must_use]
    pub fn observe(&self) -> ObservedCluster {
        let mut observed = ObservedCluster {
            maintenances: self.stores.maintenances.all(),
            nodes: self.stores.nodes.all(),
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
        let mut cache = lock(&self.cache);
        let state = &mut observed.state;
        state.static_pods = self.static_pods;
        let before = std::mem::take(&mut cache.maintenances);
        for object in &observed.maintenances {
            let compiled = compiled(&before, object);
            state
                .maintenances
                .push(maintenance(object, &compiled, &observed.nodes));
            let uid = object.metadata.uid.clone().unwrap_or_default();
            cache
                .maintenances
                .insert(uid, (object.metadata.generation, compiled));
        }
        let mut before = std::mem::take(&mut cache.nodes);
        for object in &observed.nodes {
            let name = object.metadata.name.clone().unwrap_or_default();
            let cached = before
                .remove(&name)
                .filter(|(known, _)| Arc::ptr_eq(known, object))
                .unwrap_or_else(|| (Arc::clone(object), node(object)));
            state.nodes.push(cached.1.clone());
            cache.nodes.insert(name, cached);
        }
        recover_records(state);
        self.add_pods(&mut cache, state);
        observed
    }

    fn add_pods(&self, cache: &mut Cache, state: &mut ClusterState) {
        cache.round += 1;
        cache.namespace = None;
        state.pods.reserve(cache.pods.len());
        state.requests.reserve(cache.pods.len());
        let selected: BTreeSet<usize> = state
            .maintenances
            .iter()
            .flat_map(|one| &one.nodes)
            .copied()
            .collect();
        for index in &selected {
            let name = state.nodes.get(*index).map(|node| node.name.clone());
            let name = name.unwrap_or_default();
            state.lives.extend(self.index.lives_of(&name));
            for pod in self.index.pods_of(&name) {
                self.add_pod(&pod, *index, cache, state);
            }
        }
        let by_name: HashMap<String, usize> = state
            .nodes
            .iter()
            .enumerate()
            .map(|(index, node)| (node.name.clone(), index))
            .collect();
        let mut others = Vec::new();
        self.index.visit_active_requests(|key| {
            // The name of a request is the UID of its pod.
            if !state.requests.contains_key(&key.1) {
                others.push(key.clone());
            }
        });
        for (namespace, name) in others {
            let pod = self.stores.requests.get(&namespace, &name).and_then(|request| {
                let reference = request.spec.target.pod.as_ref()?;
                let pod = self.stores.pods.get(&namespace, &reference.name)?;
                (pod.uid() == reference.uid).then_some(pod)
            });
            let node = pod
                .as_ref()
                .and_then(|pod| by_name.get(pod.spec.node_name.as_deref()?));
            if let (Some(pod), Some(node)) = (&pod, node)
                && !selected.contains(node)
            {
                self.add_pod(pod, *node, cache, state);
            }
        }
        let round = cache.round;
        if cache.pods.len() > state.pods.len() {
            cache.pods.retain(|_, cached| cached.round == round);
        }
    }

    fn add_pod(&self, pod: &Arc<Pod>, node: usize, cache: &mut Cache, state: &mut ClusterState) {
        let uid = pod.uid();
        let request = self.stores.requests.get(pod.namespace(), uid);
        let round = cache.round;
        let cached = match cache.pods.get_mut(uid) {
            Some(cached) => {
                if !Arc::ptr_eq(&cached.pod, pod) {
                    *cached = CachedPod::new(pod);
                }
                cached
            }
            None => cache
                .pods
                .entry(uid.to_owned())
                .or_insert_with(|| CachedPod::new(pod)),
        };
        cached.round = round;
        if let Some(facts) = cached.request_facts(request) {
            state.requests.insert(uid.to_owned(), facts);
        }
        let known = cache
            .namespace
            .take()
            .filter(|(namespace, _)| namespace == pod.namespace());
        let (namespace, deleted) =
            known.unwrap_or_else(|| (pod.namespace().to_owned(), namespace_deleted(&self.stores, pod)));
        state.pods.push(PodFacts {
            node,
            namespace_deleted: deleted,
            pod: cached.facts.clone(),
        });
        cache.namespace = Some((namespace, deleted));
    }
}

impl CachedPod {
    fn new(pod: &Arc<Pod>) -> Self {
        Self {
            pod: Arc::clone(pod),
            facts: pod_properties(pod).into(),
            request: None,
            round: 0,
        }
    }

    /// The facts of its request as it is now.
    fn request_facts(&mut self, request: Option<Arc<EvictionRequest>>) -> Option<Shared<RequestFacts>> {
        let known = self.request.take();
        self.request = request.map(|object| {
            known
                .filter(|(known, _)| Arc::ptr_eq(known, &object))
                .unwrap_or_else(|| {
                    let facts = request_facts(&object, self.pod.name());
                    (object, facts.into())
                })
        });
        self.request.as_ref().map(|(_, facts)| facts.clone())
    }
}

/// The compiled spec of the maintenance, from the last round if it has not changed.
fn compiled(
    before: &HashMap<String, (Option<i64>, Arc<CompiledSpec>)>,
    object: &NodeMaintenance,
) -> Arc<CompiledSpec> {
    let known = object.metadata.uid.as_ref().and_then(|uid| before.get(uid));
    match known {
        Some((generation, compiled)) if *generation == object.metadata.generation => Arc::clone(compiled),
        _ => Arc::new(CompiledSpec {
            matcher: object
                .spec
                .node_selector
                .as_ref()
                .and_then(|selector| NodeMatcher::try_from(selector).ok()),
            entries: Arc::new(entries(&object.spec.drain_plan)),
        }),
    }
}

fn maintenance(object: &NodeMaintenance, compiled: &CompiledSpec, nodes: &[Arc<Node>]) -> Maintenance {
    let metadata = &object.metadata;
    let selected = |node: &Node| {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let labels = node.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
        let matcher = compiled.matcher.as_ref();
        matcher.is_some_and(|matcher| matcher.matches(name, label))
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
        entries: Arc::clone(&compiled.entries),
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

/// Since when the namespace of the pod is being deleted.
fn namespace_deleted(stores: &Stores, pod: &Pod) -> Option<Timestamp> {
    let namespace = stores.namespaces.get("", pod.namespace())?;
    Some(namespace.metadata.deletion_timestamp.as_ref()?.0)
}

/// The pod as the planner sees it.
#[must_use]
pub fn pod_properties(pod: &Pod) -> PodProperties {
    let pod_type = if pod.is_mirror() {
        PodType::Static
    } else if pod.is_daemon_set_pod() {
        PodType::DaemonSet
    } else {
        PodType::Default
    };
    PodProperties {
        uid: pod.uid().to_owned(),
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
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
    }
}
