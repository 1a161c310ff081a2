//! The watched kinds: one table row, one informer and one store for each.

use std::collections::BTreeMap;
use std::time::Duration;

use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use drydock_proto::kinds::evictionrequest::{CANCELED, EVICTED, EvictionRequest, EvictionRequestStatus};
use drydock_proto::kinds::nodemaintenance::{NodeMaintenance, STATUS_ANNOTATION};
use k8s_openapi::api::core::v1::{Namespace, Node, NodeSpec, NodeStatus};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::Clients;
use crate::informer::{Informer, Store};
use crate::pod::Pod;
use crate::watch_health::{READY_GRACE, WatchFailure};

/// Declares [`Stores`] and [`Informers`]: `field: Type, client that serves it, plural name, trim function`.
macro_rules! watched_kinds {
    ($($(#[$doc:meta])* $field:ident: $kind:ty, $client:ident, $plural:literal, $trim:expr;)*) => {
        /// The last known state of every watched kind.
        #[derive(Debug, Clone)]
        pub struct Stores {
            $($(#[$doc])* pub $field: Store<$kind>,)*
        }

        /// What fills the stores. Handlers are added before the informers run.
        #[derive(Debug)]
        pub struct Informers {
            $($(#[$doc])* pub $field: Informer<$kind>,)*
        }

        impl Informers {
            /// Informers and the stores that they fill.
            #[must_use]
            pub fn new() -> (Self, Stores) {
                $(let $field = Informer::new($trim);)*
                (Self { $($field: $field.0,)* }, Stores { $($field: $field.1,)* })
            }

            /// Watches every kind until cancelled, each in a task of its own.
            pub fn spawn(self, clients: &Clients, cancel: &CancellationToken, tasks: &mut JoinSet<()>) {
                $(tasks.spawn(self.$field.run(clients.$client.clone(), cancel.clone()));)*
            }
        }

        impl Stores {
            /// The kinds whose initial list is not complete yet.
            #[must_use]
            pub fn unsynced(&self) -> Vec<&'static str> {
                [$(($plural, self.$field.is_synced()),)*]
                    .into_iter()
                    .filter_map(|(kind, is_synced)| (!is_synced).then_some(kind))
                    .collect()
            }

            /// The kinds whose watch fails, each with its failure.
            #[must_use]
            pub fn failing_watches(&self) -> Vec<(&'static str, WatchFailure)> {
                [$(($plural, self.$field.failure()),)*]
                    .into_iter()
                    .filter_map(|(kind, failure)| Some((kind, failure?)))
                    .collect()
            }

            /// Every watched kind.
            pub const KINDS: &[&str] = &[$($plural,)*];

            /// Waits until every initial list is complete. No controller decides before that.
            pub async fn wait_until_synced(&self) {
                $(self.$field.wait_until_synced().await;)*
            }
        }
    };
}

watched_kinds! {
    /// Eviction requests.
    requests: EvictionRequest, drydock, "evictionrequests", trim_request;
    /// Node maintenances.
    maintenances: NodeMaintenance, drydock, "nodemaintenances", drop_bookkeeping;
    /// Eviction interceptors: the rules that register interceptors.
    interceptors: EvictionInterceptor, drydock, "evictioninterceptors", drop_bookkeeping;
    /// Pods.
    pods: Pod, host, "pods", keep;
    /// Nodes.
    nodes: Node, host, "nodes", trim_node;
    /// Namespaces.
    namespaces: Namespace, host, "namespaces", trim_namespace;
    /// Disruption budgets.
    budgets: PodDisruptionBudget, host, "poddisruptionbudgets", trim_budget;
}

impl Stores {
    /// Why the process cannot act now, for people; `None` when it can.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        let failing = self.failing_watches().into_iter();
        let failing: Vec<String> = failing
            .filter(|(_, failure)| failure.lasting >= READY_GRACE)
            .map(|(kind, failure)| {
                let (seconds, cause) = (failure.lasting.as_secs(), failure.cause);
                format!("the watch of {kind} has failed for {seconds} s: {cause}")
            })
            .collect();
        if !failing.is_empty() {
            return Some(failing.join("\n"));
        }
        let unsynced = self.unsynced();
        (!unsynced.is_empty()).then(|| format!("waiting for the initial list of {}", unsynced.join(", ")))
    }

    /// Waits until the watch of a kind has failed for this long. Returns the kind and the failure.
    pub async fn watch_failed_for(&self, bound: Duration) -> (&'static str, WatchFailure) {
        loop {
            let failing = self.failing_watches().into_iter();
            let longest = failing.max_by_key(|(_, failure)| failure.lasting);
            let lasting = longest
                .as_ref()
                .map_or(Duration::ZERO, |(_, failure)| failure.lasting);
            match longest {
                Some(longest) if lasting >= bound => return longest,
                _ => tokio::time::sleep(bound.saturating_sub(lasting)).await,
            }
        }
    }
}

/// The reason of a budget's condition when its controller cannot compute how many pods may be disrupted.
pub const SYNC_FAILED: &str = "SyncFailed";

/// The prefix of the annotations of maintenances on their requests, which count after the end of a request.
const MAINTENANCE_ANNOTATIONS: &str = "nodemaintenance.coordination.k8s.io/";

/// Pods are trimmed while they are decoded.
fn keep(_pod: &mut Pod) {}

/// Drops of a finished request what is for people: it is kept for its TTL, and a cluster has many of them.
fn trim_request(request: &mut EvictionRequest) {
    drop_bookkeeping(request);
    if !request.is_finished() {
        return;
    }
    let metadata = &mut request.metadata;
    metadata.labels = None;
    let annotations = metadata.annotations.take().into_iter().flatten();
    let annotations: BTreeMap<_, _> = annotations
        .filter(|(key, _)| key.starts_with(MAINTENANCE_ANNOTATIONS))
        .collect();
    metadata.annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
    if let Some(status) = request.status.take() {
        let conditions = status.conditions.into_iter().filter(|condition| {
            condition.status == "True" && (condition.type_ == EVICTED || condition.type_ == CANCELED)
        });
        request.status = Some(EvictionRequestStatus {
            conditions: conditions.collect(),
            eviction_request_cancellation_policy: status.eviction_request_cancellation_policy,
            ..EvictionRequestStatus::default()
        });
    }
}

/// Drops metadata that no controller reads.
fn drop_bookkeeping<K: ResourceExt>(object: &mut K) {
    let metadata = object.meta_mut();
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

fn trim_node(node: &mut Node) {
    drop_bookkeeping(node);
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
    // Whether the node is ready changes seldom; everything else in its status changes with each heartbeat.
    node.status = (!is_ready(node)).then(NodeStatus::default);
}

/// Whether the condition Ready of a node is True. Trimmed nodes have a status only while they are not ready.
#[must_use]
pub fn is_ready(node: &Node) -> bool {
    node.status.as_ref().is_none_or(|status| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

fn trim_namespace(namespace: &mut Namespace) {
    drop_bookkeeping(namespace);
    namespace.spec = None;
}

fn trim_budget(budget: &mut PodDisruptionBudget) {
    drop_bookkeeping(budget);
    if let Some(status) = &mut budget.status {
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(|condition| condition.reason == SYNC_FAILED);
        }
        status.disrupted_pods = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::typed;
    use serde_json::{Value, json};

    fn request(condition: &str) -> Value {
        json!({
            "metadata": {
                "name": "uid-1", "uid": "er-1", "resourceVersion": "7", "labels": {"app": "web"},
                "annotations": {"nodemaintenance.coordination.k8s.io/successor": "{}", "a.example.com/b": "c"},
            },
            "spec": {"target": {"pod": {"name": "web", "uid": "uid-1"}}, "requesters": [{"name": "r.example.com"}]},
            "status": {
                "targetInterceptors": [{"name": "a.example.com"}], "processedInterceptors": ["a.example.com"],
                "interceptors": [{"name": "a.example.com", "message": "done"}],
                "evictionRequestCancellationPolicy": "Forbid", "podEvictionStatus": {"failedAPIEvictionCounter": 3},
                "conditions": [
                    {"type": "Blocked", "status": "False", "reason": "r", "message": "",
                        "lastTransitionTime": "1970-01-01T00:00:01Z"},
                    {"type": condition, "status": "True", "reason": "r", "message": "m",
                        "lastTransitionTime": "1970-01-01T00:00:02Z"},
                ],
            },
        })
    }

    #[test]
    fn finished_requests_keep_only_what_counts_after_their_end() {
        for condition in [EVICTED, CANCELED] {
            let mut trimmed: EvictionRequest = typed(request(condition));
            trim_request(&mut trimmed);
            let mut kept = request(condition);
            kept["metadata"].as_object_mut().unwrap().remove("labels");
            kept["metadata"]["annotations"]
                .as_object_mut()
                .unwrap()
                .remove("a.example.com/b");
            kept["status"] = json!({
                "evictionRequestCancellationPolicy": "Forbid",
                "conditions": [request(condition)["status"]["conditions"][1]],
            });
            assert_eq!(trimmed, typed(kept));
            assert!(trimmed.is_finished());
        }
    }

    #[test]
    fn unfinished_requests_are_kept() {
        let mut kept: EvictionRequest = typed(request("Blocked"));
        trim_request(&mut kept);
        assert_eq!(kept, typed(request("Blocked")));
    }
}
