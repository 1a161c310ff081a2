//! Observes maintenances, nodes, pods and requests as one [`ClusterState`] for the planner: those groups of maintenances
//! and nodes that depend on each other ([`components`]) and have changed since their last plan, or whose next plan is
//! due. What is computed from an object is kept until the object changes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_machinery::selector::NodeMatcher;
use drydock_proto::kinds::evictionrequest::EvictionRequest;
use drydock_proto::kinds::nodemaintenance::{COMPLETION_FINALIZER, NodeMaintenance, PodType, Stage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::components::{Component, components};
use super::drain_plan::{Entry, entries};
use super::index::ClusterIndex;
use super::model::{
    ClusterState, Controller, Maintenance, NodeFacts, Plan, PodFacts, PodProperties, RecordSource,
    RequestFacts, StaticPods,
};
use super::node_state;
use super::recovery::recover_records;
use super::request_facts::request_facts;
use super::shared::Shared;
use super::successor::Life;
use crate::pod::Pod;
use crate::stores::Stores;
use crate::sync::lock;

/// The longest time without a plan of a group: it bounds the harm of a missed change.
const RESYNC_INTERVAL: Duration = Duration::from_mins(10);

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

/// What is planned in one round.
#[derive(Debug, Default)]
pub struct Observation {
    /// The groups that are planned.
    pub cluster: ObservedCluster,
    /// When the first of the others is planned again without a change.
    pub next: Option<Timestamp>,
    /// What the groups in `cluster` are like.
    fingerprints: Vec<u64>,
}

/// Observes the cluster.
#[derive(Debug)]
pub struct Observer {
    stores: Stores,
    index: Arc<ClusterIndex>,
    static_pods: StaticPods,
    cache: Mutex<Cache>,
}

/// What earlier rounds computed, by object.
#[derive(Debug, Default)]
struct Cache {
    /// By UID.
    maintenances: HashMap<String, CachedMaintenance>,
    /// By the same indexes: what the maintenances were matched against.
    nodes: Vec<(Arc<Node>, NodeFacts)>,
    /// By the name of the node.
    contents: HashMap<String, CachedContents>,
    /// The requests of all pods in `contents`, by the UID of the pod.
    requests: Shared<HashMap<String, Shared<RequestFacts>>>,
    /// The groups whose last plan had nothing to do, by fingerprint, and when they are planned again.
    settled: HashMap<u64, Timestamp>,
}

#[derive(Debug)]
struct CachedMaintenance {
    generation: Option<i64>,
    spec: Arc<CompiledSpec>,
    /// Its nodes, by index.
    nodes: Vec<usize>,
}

/// What concerns a node, at one version.
#[derive(Debug, Default)]
struct CachedContents {
    version: u64,
    pods: Vec<CachedPod>,
    lives: Vec<Life>,
}

#[derive(Debug)]
struct CachedPod {
    pod: Arc<Pod>,
    facts: Shared<PodProperties>,
    namespace_deleted: Option<Timestamp>,
    request: Option<(Arc<EvictionRequest>, Shared<RequestFacts>)>,
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

    /// Reads the current state of what has to be planned at this time. Idle maintenances are left out, unless they are
    /// being deleted, and so are nodes that no maintenance concerns.
    #[must_use]
    pub fn observe(&self, now: Timestamp) -> Observation {
        let mut objects = self.stores.maintenances.all();
        objects.retain(|maintenance| {
            maintenance.spec.stage != Stage::Idle || maintenance.metadata.deletion_timestamp.is_some()
        });
        objects.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let mut cache = lock(&self.cache);
        let has_same_names_and_labels = cache.update_nodes(self.stores.nodes.all());
        let maintenances = cache.update_maintenances(&objects, has_same_names_and_labels);
        let nodes: Vec<NodeFacts> = cache.nodes.iter().map(|(_, facts)| facts.clone()).collect();
        let is_relevant = |index: usize| {
            nodes.get(index).is_some_and(|node| {
                node.record.is_some()
                    || node.is_tainted
                    || node.record_source == RecordSource::Damaged
                    || self.index.has_requested_pods(&node.name)
            })
        };
        let groups = components(&maintenances, &nodes, is_relevant);
        cache.retain_contents(&groups);
        let mut settled = std::mem::take(&mut cache.settled);
        let mut observation = Observation::default();
        let mut chosen = Component::default();
        for group in groups {
            let fingerprint = self.fingerprint(&group, &objects, &cache.nodes);
            if let Some(due) = settled.remove(&fingerprint).filter(|due| *due > now) {
                observation.next = Some(observation.next.map_or(due, |next| next.min(due)));
                cache.settled.insert(fingerprint, due);
                continue;
            }
            observation.fingerprints.push(fingerprint);
            chosen.maintenances.extend(group.maintenances);
            chosen.nodes.extend(group.nodes);
        }
        observation.cluster = self.read(chosen, &objects, maintenances, nodes, &mut cache);
        observation
    }

    /// Takes note of the plan. Groups with nothing to do are not planned again before something changes in them.
    pub fn planned(&self, observation: &Observation, plan: &Plan, now: Timestamp) {
        if !plan.nodes.is_empty() || !plan.requests.is_empty() || !plan.maintenances.is_empty() {
            return;
        }
        let resync = now.checked_add(RESYNC_INTERVAL).unwrap_or(Timestamp::MAX);
        let due = plan.next.map_or(resync, |next| next.min(resync));
        let mut cache = lock(&self.cache);
        let groups = observation.fingerprints.iter();
        cache
            .settled
            .extend(groups.map(|fingerprint| (*fingerprint, due)));
    }

    /// A hash of the versions of everything in the group.
    fn fingerprint(
        &self,
        group: &Component,
        objects: &[Arc<NodeMaintenance>],
        nodes: &[(Arc<Node>, NodeFacts)],
    ) -> u64 {
        let mut hasher = DefaultHasher::new();
        for object in group.maintenances.iter().filter_map(|index| objects.get(*index)) {
            object.metadata.uid.hash(&mut hasher);
            object.metadata.resource_version.hash(&mut hasher);
        }
        for (node, facts) in group.nodes.iter().filter_map(|index| nodes.get(*index)) {
            node.metadata.uid.hash(&mut hasher);
            node.metadata.resource_version.hash(&mut hasher);
            facts.name.hash(&mut hasher);
            self.index.version_of(&facts.name).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Reads the chosen maintenances and nodes, which get new indexes, with their pods and requests.
    fn read(
        &self,
        mut chosen: Component,
        objects: &[Arc<NodeMaintenance>],
        maintenances: Vec<Maintenance>,
        nodes: Vec<NodeFacts>,
        cache: &mut Cache,
    ) -> ObservedCluster {
        chosen.maintenances.sort_unstable();
        chosen.nodes.sort_unstable();
        let mut observed = ObservedCluster::default();
        let state = &mut observed.state;
        state.static_pods = self.static_pods;
        let numbers: HashMap<usize, usize> = chosen.nodes.iter().copied().zip(0..).collect();
        for (index, mut maintenance) in maintenances.into_iter().enumerate() {
            if chosen.maintenances.binary_search(&index).is_ok() {
                let nodes = maintenance.nodes.iter().filter_map(|node| numbers.get(node));
                maintenance.nodes = nodes.copied().collect();
                state.maintenances.push(maintenance);
                observed.maintenances.extend(objects.get(index).cloned());
            }
        }
        for (index, facts) in nodes.into_iter().enumerate() {
            if numbers.contains_key(&index) {
                state.nodes.push(facts);
                let object = cache.nodes.get(index).map(|(node, _)| Arc::clone(node));
                observed.nodes.extend(object);
            }
        }
        recover_records(state);
        self.update_contents(state, cache);
        for (index, node) in state.nodes.iter().enumerate() {
            let Some(contents) = cache.contents.get(&node.name) else {
                continue;
            };
            state.lives.extend(contents.lives.iter().cloned());
            state.pods.extend(contents.pods.iter().map(|cached| PodFacts {
                node: index,
                namespace_deleted: cached.namespace_deleted,
                pod: cached.facts.clone(),
            }));
        }
        state.requests = cache.requests.clone();
        observed
    }

    /// Reads what concerns the nodes of the state and has changed since it was read.
    fn update_contents(&self, state: &ClusterState, cache: &mut Cache) {
        let mut outdated = Vec::new();
        for node in &state.nodes {
            let known = cache.contents.get(&node.name);
            if known.is_none_or(|known| known.version != self.index.version_of(&node.name)) {
                let contents = cache.contents.remove(&node.name).unwrap_or_default();
                cache.forget_requests(&contents);
                outdated.push((node.name.clone(), contents));
            }
        }
        for (name, known) in outdated {
            let contents = self.read_contents(&name, known);
            for cached in &contents.pods {
                if let Some((_, facts)) = &cached.request {
                    cache.requests.insert(cached.facts.uid.clone(), facts.clone());
                }
            }
            cache.contents.insert(name, contents);
        }
    }

    /// Reads what concerns the node. Facts of objects that have not changed are taken over.
    fn read_contents(&self, name: &str, known: CachedContents) -> CachedContents {
        let mut known: HashMap<String, CachedPod> = known
            .pods
            .into_iter()
            .map(|cached| (cached.facts.uid.clone(), cached))
            .collect();
        let contents = self.index.contents_of(name);
        let pods = contents.pods.into_iter().map(|pod| {
            let request = self.stores.requests.get(pod.namespace(), pod.uid());
            let known = known.remove(pod.uid());
            let (facts, known_request) = match known {
                Some(cached) if Arc::ptr_eq(&cached.pod, &pod) => (Some(cached.facts), cached.request),
                _ => (None, None),
            };
            CachedPod {
                facts: facts.unwrap_or_else(|| pod_properties(&pod).into()),
                namespace_deleted: namespace_deleted(&self.stores, &pod),
                request: request.map(|object| {
                    known_request
                        .filter(|(known, _)| Arc::ptr_eq(known, &object))
                        .unwrap_or_else(|| {
                            let facts = request_facts(&object, pod.name());
                            (object, facts.into())
                        })
                }),
                pod,
            }
        });
        CachedContents {
            version: contents.version,
            pods: pods.collect(),
            lives: contents.lives,
        }
    }
}

impl Cache {
    /// Takes over the nodes. Returns whether all have the names and labels that they had.
    fn update_nodes(&mut self, mut objects: Vec<Arc<Node>>) -> bool {
        objects.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let before = std::mem::take(&mut self.nodes);
        let is_same = |(old, new): (&(Arc<Node>, NodeFacts), &Arc<Node>)| {
            Arc::ptr_eq(&old.0, new)
                || (old.0.metadata.name == new.metadata.name && old.0.metadata.labels == new.metadata.labels)
        };
        let are_same = before.len() == objects.len() && before.iter().zip(&objects).all(is_same);
        let mut before: HashMap<String, (Arc<Node>, NodeFacts)> = before
            .into_iter()
            .map(|cached| (cached.1.name.clone(), cached))
            .collect();
        self.nodes = objects
            .into_iter()
            .map(|object| {
                let known = before.remove(object.metadata.name.as_deref().unwrap_or_default());
                known
                    .filter(|(known, _)| Arc::ptr_eq(known, &object))
                    .unwrap_or_else(|| {
                        let facts = node(&object);
                        (object, facts)
                    })
            })
            .collect();
        are_same
    }

    /// Takes over the maintenances, and returns them as the planner sees them.
    fn update_maintenances(
        &mut self,
        objects: &[Arc<NodeMaintenance>],
        has_same_nodes: bool,
    ) -> Vec<Maintenance> {
        let mut before = std::mem::take(&mut self.maintenances);
        let mut maintenances = Vec::with_capacity(objects.len());
        for object in objects {
            let uid = object.metadata.uid.clone().unwrap_or_default();
            let known = before
                .remove(&uid)
                .filter(|known| known.generation == object.metadata.generation);
            let cached = match known {
                Some(known) if has_same_nodes => known,
                known => {
                    let spec = known.map_or_else(|| Arc::new(CompiledSpec::of(object)), |known| known.spec);
                    CachedMaintenance {
                        generation: object.metadata.generation,
                        nodes: spec.select(&self.nodes),
                        spec,
                    }
                }
            };
            maintenances.push(maintenance(object, &cached));
            self.maintenances.insert(uid, cached);
        }
        maintenances
    }

    fn forget_requests(&mut self, contents: &CachedContents) {
        for cached in contents.pods.iter().filter(|cached| cached.request.is_some()) {
            self.requests.remove(&cached.facts.uid);
        }
    }

    /// Forgets what concerns nodes that are in no group any more.
    fn retain_contents(&mut self, groups: &[Component]) {
        let grouped = groups.iter().flat_map(|group| &group.nodes);
        let mut known = std::mem::take(&mut self.contents);
        for index in grouped {
            let name = self.nodes.get(*index).map(|(_, facts)| facts.name.as_str());
            if let Some((name, contents)) = name.and_then(|name| known.remove_entry(name)) {
                self.contents.insert(name, contents);
            }
        }
        for contents in known.values() {
            self.forget_requests(contents);
        }
    }
}

impl CompiledSpec {
    fn of(object: &NodeMaintenance) -> Self {
        let selector = object.spec.node_selector.as_ref();
        Self {
            matcher: selector.and_then(|selector| NodeMatcher::try_from(selector).ok()),
            entries: Arc::new(entries(&object.spec.drain_plan)),
        }
    }

    /// The indexes of the nodes that it selects.
    fn select(&self, nodes: &[(Arc<Node>, NodeFacts)]) -> Vec<usize> {
        let Some(matcher) = &self.matcher else {
            return Vec::new();
        };
        let is_selected = |(node, facts): &(Arc<Node>, NodeFacts)| {
            let labels = node.metadata.labels.as_ref();
            let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
            matcher.matches(&facts.name, label)
        };
        let selected = nodes.iter().enumerate().filter(|(_, node)| is_selected(node));
        selected.map(|(index, _)| index).collect()
    }
}

fn maintenance(object: &NodeMaintenance, cached: &CachedMaintenance) -> Maintenance {
    let metadata = &object.metadata;
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
        entries: Arc::clone(&cached.spec.entries),
        nodes: cached.nodes.clone(),
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

#[cfg(test)]
mod tests;
