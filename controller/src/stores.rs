//! Which objects does the process watch? One informer per kind, and the stores they fill.

use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use drydock_proto::kinds::evictionrequest::{EvictionRequest, NODE_MAINTENANCE_REQUESTER};
use drydock_proto::kinds::nodemaintenance::{NodeMaintenance, STATUS_ANNOTATION};
use k8s_openapi::api::core::v1::{Namespace, Node, NodeSpec};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::Clients;
use crate::informer::{Informer, Store};
use crate::metrics::{Census, Counts};
use crate::pod::Pod;

/// Everything that is watched.
#[derive(Debug, Clone)]
pub struct Stores {
    /// Eviction requests.
    pub requests: Store<EvictionRequest>,
    /// Node maintenances.
    pub maintenances: Store<NodeMaintenance>,
    /// Interceptors by rule.
    pub rules: Store<EvictionInterceptor>,
    /// Pods.
    pub pods: Store<Pod>,
    /// Nodes.
    pub nodes: Store<Node>,
    /// Namespaces.
    pub namespaces: Store<Namespace>,
    /// Disruption budgets.
    pub budgets: Store<PodDisruptionBudget>,
}

/// What fills the stores. Listeners are added before they run.
#[derive(Debug)]
pub struct Informers {
    /// Eviction requests.
    pub requests: Informer<EvictionRequest>,
    /// Node maintenances.
    pub maintenances: Informer<NodeMaintenance>,
    /// Interceptors by rule.
    pub rules: Informer<EvictionInterceptor>,
    /// Pods.
    pub pods: Informer<Pod>,
    /// Nodes.
    pub nodes: Informer<Node>,
    /// Namespaces.
    pub namespaces: Informer<Namespace>,
    /// Disruption budgets.
    pub budgets: Informer<PodDisruptionBudget>,
}

impl Informers {
    /// Informers and their stores.
    #[must_use]
    pub fn new() -> (Self, Stores) {
        let (requests_informer, requests) =
            Informer::new(|request: &mut EvictionRequest| drop_fields(&mut request.metadata));
        let (maintenances_informer, maintenances) =
            Informer::new(|maintenance: &mut NodeMaintenance| drop_fields(&mut maintenance.metadata));
        let (rules_informer, rules) =
            Informer::new(|rule: &mut EvictionInterceptor| drop_fields(&mut rule.metadata));
        let (pods_informer, pods) = Informer::new(Pod::trim);
        let (nodes_informer, nodes) = Informer::new(trim_node);
        let (namespaces_informer, namespaces) = Informer::new(|namespace: &mut Namespace| {
            drop_fields(&mut namespace.metadata);
            namespace.spec = None;
        });
        let (budgets_informer, budgets) = Informer::new(|budget: &mut PodDisruptionBudget| {
            drop_fields(&mut budget.metadata);
            if let Some(status) = &mut budget.status {
                status.conditions = None;
                status.disrupted_pods = None;
            }
        });
        let informers = Self {
            requests: requests_informer,
            maintenances: maintenances_informer,
            rules: rules_informer,
            pods: pods_informer,
            nodes: nodes_informer,
            namespaces: namespaces_informer,
            budgets: budgets_informer,
        };
        let stores = Stores {
            requests,
            maintenances,
            rules,
            pods,
            nodes,
            namespaces,
            budgets,
        };
        (informers, stores)
    }

    /// Watches everything until cancelled.
    pub fn spawn(self, clients: &Clients, cancel: &CancellationToken, tasks: &mut JoinSet<()>) {
        let (host, ours) = (&clients.host, &clients.ours);
        tasks.spawn(self.requests.run(Api::all(ours.clone()), cancel.clone()));
        tasks.spawn(self.maintenances.run(Api::all(ours.clone()), cancel.clone()));
        tasks.spawn(self.rules.run(Api::all(ours.clone()), cancel.clone()));
        tasks.spawn(self.pods.run(Api::all(host.clone()), cancel.clone()));
        tasks.spawn(self.nodes.run(Api::all(host.clone()), cancel.clone()));
        tasks.spawn(self.namespaces.run(Api::all(host.clone()), cancel.clone()));
        tasks.spawn(self.budgets.run(Api::all(host.clone()), cancel.clone()));
    }
}

impl Stores {
    /// The kinds whose first list is not complete yet.
    #[must_use]
    pub fn unsynced(&self) -> Vec<&'static str> {
        [
            ("evictionrequests", self.requests.is_synced()),
            ("nodemaintenances", self.maintenances.is_synced()),
            ("evictioninterceptors", self.rules.is_synced()),
            ("pods", self.pods.is_synced()),
            ("nodes", self.nodes.is_synced()),
            ("namespaces", self.namespaces.is_synced()),
            ("poddisruptionbudgets", self.budgets.is_synced()),
        ]
        .into_iter()
        .filter_map(|(kind, is_synced)| (!is_synced).then_some(kind))
        .collect()
    }

    /// Waits until every first list is complete. Nothing is decided before.
    pub async fn synced(&self) {
        self.requests.synced().await;
        self.maintenances.synced().await;
        self.rules.synced().await;
        self.pods.synced().await;
        self.nodes.synced().await;
        self.namespaces.synced().await;
        self.budgets.synced().await;
    }

    /// The numbers that are counted at a scrape.
    #[must_use]
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        let add = |counts: &mut Counts, name: &str| {
            if let Some(count) = counts.get_mut(name) {
                *count += 1;
            } else {
                counts.insert(name.to_owned(), 1);
            }
        };
        for request in self.requests.all() {
            if request.is_finished() {
                continue;
            }
            for requester in &request.spec.requesters {
                add(&mut census.active_requesters, &requester.name);
            }
            let Some(status) = &request.status else { continue };
            for name in &status.active_interceptors {
                add(&mut census.active_interceptors, name);
            }
            for name in &status.processed_interceptors {
                add(&mut census.processed_interceptors, name);
            }
            for target in &status.target_interceptors {
                add(&mut census.pod_interceptors, &target.name);
            }
        }
        for maintenance in self.maintenances.all() {
            add(&mut census.maintenances, maintenance.spec.stage.as_str());
        }
        for node in self.nodes.all() {
            if let Some(record) = crate::nodemaintenance::taints::record(&node) {
                let is_drained = record.message == "Drained";
                add(&mut census.nodes, if is_drained { "true" } else { "false" });
            }
        }
        census
    }
}

/// Whether node maintenances are among the requesters.
#[must_use]
pub fn is_requested_by_maintenance(request: &EvictionRequest) -> bool {
    request
        .spec
        .requesters
        .iter()
        .any(|requester| requester.name == NODE_MAINTENANCE_REQUESTER)
}

fn drop_fields(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

fn trim_node(node: &mut Node) {
    drop_fields(&mut node.metadata);
    if let Some(annotations) = &mut node.metadata.annotations {
        annotations.retain(|key, _| key == STATUS_ANNOTATION);
    }
    if let Some(spec) = node.spec.take() {
        node.spec = Some(NodeSpec {
            unschedulable: spec.unschedulable,
            taints: spec.taints,
            ..NodeSpec::default()
        });
    }
    node.status = None;
}
