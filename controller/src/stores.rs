//! The watched kinds: one table row, one informer and one store for each.

use std::collections::BTreeMap;
use std::time::Duration;

use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use drydock_proto::kinds::evictionrequest::{CANCELED, EVICTED, EvictionRequest, EvictionRequestStatus};
use drydock_proto::kinds::nodemaintenance::{NodeMaintenance, STATUS_ANNOTATION};
use k8s_openapi::api::core::v1::{Namespace, Node, NodeSpec, NodeStatus};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Client, ResourceExt};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::Clients;
use crate::informer::{Informer, Store};
use crate::pod::Pod;
use crate::pod_stream::protobuf_client;
use crate::watch_health::{READY_GRACE, WatchFailure};

/// How often it is looked whether the initial lists are complete.
const SYNC_POLL: Duration = Duration::from_millis(50);
/// How often it is looked whether a watch fails.
const FAILURE_POLL: Duration = Duration::from_secs(1);

/// Whether the process can act without knowing the objects of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// It cannot.
    Essential,
    /// It can: the API says the same when it is asked.
    Auxiliary,
}

/// Declares [`Stores`] and [`Informers`]: `field: Type, function that returns its client, plural name, need, trim
/// function`.
macro_rules! watched_kinds {
    ($($(#[$doc:meta])* $field:ident: $kind:ty, $client:ident, $plural:literal, $need:ident, $trim:expr;)*) => {
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
                $(tasks.spawn(self.$field.run($client(clients), cancel.clone()));)*
            }
        }

        impl Stores {
            /// The kinds whose initial list is not complete yet and without which nothing can be decided.
            #[must_use]
            pub fn unsynced(&self) -> Vec<&'static str> {
                [$(($plural, self.$field.is_synced() || is_missed(Need::$need, self.$field.failure().as_ref())),)*]
                    .into_iter()
                    .filter_map(|(kind, is_synced)| (!is_synced).then_some(kind))
                    .collect()
            }

            /// The kinds whose watch fails, each with its failure.
            #[must_use]
            pub fn failing_watches(&self) -> Vec<(&'static str, WatchFailure)> {
                self.failing(|_| true)
            }

            /// Those of them that are needed so.
            fn failing(&self, is_meant: fn(Need) -> bool) -> Vec<(&'static str, WatchFailure)> {
                [$(($plural, Need::$need, self.$field.failure()),)*]
                    .into_iter()
                    .filter(|(_, need, _)| is_meant(*need))
                    .filter_map(|(kind, _, failure)| Some((kind, failure?)))
                    .collect()
            }

            /// Every watched kind.
            pub const KINDS: &[&str] = &[$($plural,)*];
        }
    };
}

watched_kinds! {
    /// Eviction requests.
    requests: EvictionRequest, drydock, "evictionrequests", Essential, trim_request;
    /// Node maintenances.
    maintenances: NodeMaintenance, drydock, "nodemaintenances", Essential, drop_bookkeeping;
    /// Eviction interceptors: the rules that register interceptors.
    interceptors: EvictionInterceptor, drydock, "evictioninterceptors", Essential, drop_bookkeeping;
    /// Pods.
    pods: Pod, host_over_protobuf, "pods", Essential, keep;
    /// Nodes.
    nodes: Node, host, "nodes", Essential, trim_node;
    /// Namespaces.
    namespaces: Namespace, host, "namespaces", Essential, trim_namespace;
    /// Disruption budgets. They say when an eviction may succeed; the eviction API knows it in any case.
    budgets: PodDisruptionBudget, host, "poddisruptionbudgets", Auxiliary, trim_budget;
}

fn drydock(clients: &Clients) -> Client {
    clients.drydock.clone()
}

fn host(clients: &Clients) -> Client {
    clients.host.clone()
}

fn host_over_protobuf(clients: &Clients) -> Client {
    protobuf_client(clients.host.clone())
}

/// Whether the process goes on without the list of a kind, whose watch fails so.
fn is_missed(need: Need, failure: Option<&WatchFailure>) -> bool {
    need == Need::Auxiliary && failure.is_some_and(|failure| failure.lasting >= READY_GRACE)
}

impl Stores {
    /// Why the process cannot act now, for people; `None` when it can. `grace` is how long the watch of a kind may fail.
    #[must_use]
    pub fn not_ready(&self, grace: Duration) -> Option<String> {
        let failing = self.failing(|need| need == Need::Essential).into_iter();
        let failing: Vec<String> = failing
            .filter(|(_, failure)| failure.lasting >= grace)
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

    /// Waits until nothing is [unsynced](Self::unsynced). No controller decides before that.
    pub async fn wait_until_synced(&self) {
        while !self.unsynced().is_empty() {
            tokio::time::sleep(SYNC_POLL).await;
        }
    }

    /// Waits until the watch of a kind that is essential has failed for this long. Returns the kind and the failure.
    pub async fn watch_failed_for(&self, bound: Duration) -> (&'static str, WatchFailure) {
        loop {
            let failing = self.failing(|need| need == Need::Essential).into_iter();
            let longest = failing.max_by_key(|(_, failure)| failure.lasting);
            let left = match longest {
                Some((_, ref failure)) if failure.lasting < bound => bound.saturating_sub(failure.lasting),
                Some(longest) => return longest,
                None => bound,
            };
            // A watch that fails from now on is not to be noticed only when the whole bound has passed once more.
            tokio::time::sleep(left.min(FAILURE_POLL)).await;
        }
    }

    /// Why budgets are not known: their first list is not complete, or their watch has failed for some time, and what is
    /// stored may be long past.
    #[must_use]
    pub fn unwatched_budgets(&self) -> Option<String> {
        let failure = self.budgets.failure();
        if !self.budgets.is_synced() {
            let cause = failure.map(|failure| failure.cause);
            return Some(cause.unwrap_or_else(|| "their list is not complete".to_owned()));
        }
        let failure = failure.filter(|failure| is_missed(Need::Auxiliary, Some(failure)));
        failure.map(|failure| failure.cause)
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
    use crate::fixtures::{empty_stores, typed};
    use serde_json::{Value, json};
    use tokio::time::Instant;

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

    #[tokio::test(start_paused = true)]
    async fn failures_are_noticed_when_their_bound_has_passed() {
        let stores = empty_stores();
        let bound = Duration::from_mins(2);
        let failed = stores.watch_failed_for(bound);
        tokio::pin!(failed);
        let began = Instant::now();
        let early = tokio::time::timeout(Duration::from_secs(3), failed.as_mut());
        assert!(early.await.is_err());
        stores.nodes.health().failed("forbidden (403)".to_owned());
        assert_eq!(failed.await.0, "nodes");
        let passed = began.elapsed();
        assert!(
            passed <= Duration::from_secs(3) + bound + FAILURE_POLL,
            "{passed:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn budgets_that_cannot_be_watched_stop_nothing() {
        let stores = empty_stores();
        stores.budgets.health().failed("forbidden (403)".to_owned());
        assert_eq!(stores.unwatched_budgets(), None, "a server may be restarting");
        tokio::time::advance(READY_GRACE).await;
        assert_eq!(stores.not_ready(READY_GRACE), None);
        assert_eq!(stores.unwatched_budgets().as_deref(), Some("forbidden (403)"));
        assert_eq!(stores.failing_watches().len(), 1);
        let bound = Duration::from_mins(2);
        let given_up = tokio::time::timeout(bound * 3, stores.watch_failed_for(bound)).await;
        assert!(given_up.is_err(), "{given_up:?}");
        stores.budgets.health().delivered();
        assert_eq!(stores.unwatched_budgets(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_initial_list_of_budgets_is_waited_for_only_while_it_may_come() {
        let (_informers, unsynced) = Informers::new();
        let stores = Stores {
            budgets: unsynced.budgets,
            ..empty_stores()
        };
        assert_eq!(stores.unsynced(), ["poddisruptionbudgets"]);
        stores.budgets.health().failed("forbidden (403)".to_owned());
        let began = Instant::now();
        stores.wait_until_synced().await;
        assert!(began.elapsed() >= READY_GRACE);
        assert_eq!(stores.unwatched_budgets().as_deref(), Some("forbidden (403)"));
        stores.budgets.health().delivered();
        // It works again, and nothing was listed yet.
        assert_eq!(
            stores.unwatched_budgets().as_deref(),
            Some("their list is not complete")
        );
    }

    #[test]
    fn unfinished_requests_are_kept() {
        let mut kept: EvictionRequest = typed(request("Blocked"));
        trim_request(&mut kept);
        assert_eq!(kept, typed(request("Blocked")));
    }
}
