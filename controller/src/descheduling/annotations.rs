//! Keeps the annotations by which the descheduler of Kubernetes knows evictions that take time.
//!
//! With its feature gate `EvictionsInBackground`, a pod with [`REQUEST_EVICT_ONLY`] whose eviction answers 429 with the words of
//! the [bridge](crate::bridge) counts as requested, and one that also has [`EVICTION_IN_PROGRESS`] is not asked about again, counts
//! against the limits, and is found again after a restart. Both are on a pod while its request lives, if the request takes time:
//! interceptors act, or something blocks it. What others have put on a pod stays as it is.

use std::sync::Arc;

use clap::ValueEnum;
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use drydock_proto::kinds::evictionrequest::{
    BLOCKED, DAEMON_SET_INTERCEPTOR, EvictionRequest, IMPERATIVE_EVICTION,
};
use kube::Api;
use serde_json::{Map, Value, json};

use crate::api::{self, Error};
use crate::context::Context;
use crate::evictioninterceptor::rules::{Matching, Rules};
use crate::evictionrequest::interceptors;
use crate::informer::{Change, ObjectKey, key_of};
use crate::pod::{EVICTION_IN_PROGRESS, Pod, REQUEST_EVICT_ONLY};
use crate::stores::{Informers, Stores};
use crate::work_queue::{Outcome, WorkQueue};

/// The value of the annotations that this program writes. The descheduler reads only whether they are there.
const VALUE: &str = "drydock";
/// The name under which the annotations are owned.
const FIELD_MANAGER: &str = "drydock-descheduling";

/// Which pods are annotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Annotated {
    /// None; those that an earlier process has put on pods are taken off.
    None,
    /// Pods whose request takes time, while it lives.
    Requested,
    /// Also `request-evict-only` on every pod that has interceptors, so that the descheduler counts its first request right.
    Intercepted,
}

/// The annotations of a pod: whether it has, or should have, each of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Marks {
    evict_only: bool,
    in_progress: bool,
}

/// Annotates pods.
#[derive(Debug)]
pub struct Controller {
    context: Arc<Context>,
    rules: Arc<Rules>,
    allowed: AllowedNames,
    annotated: Annotated,
}

impl Controller {
    /// A controller. `allowed` contains the reserved names that interceptors may have.
    #[must_use]
    pub fn new(
        context: Arc<Context>,
        rules: Arc<Rules>,
        allowed: AllowedNames,
        annotated: Annotated,
    ) -> Self {
        Self {
            context,
            rules,
            allowed,
            annotated,
        }
    }

    /// Annotates one pod.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        match self.annotate(&key).await {
            Ok(()) => Outcome::Wait(None),
            Err(error) if error.is_not_found() => Outcome::Wait(None),
            // The right goes with the bridge.
            Err(error) if self.annotated == Annotated::None && error.is_forbidden() => {
                tracing::warn!(
                    namespace = key.0, name = key.1, %error,
                    "a pod keeps the annotations of evictions in progress: remove them, or grant deploy/bridge/rbac.yaml"
                );
                Outcome::Wait(None)
            }
            Err(error) => {
                let cause = error.cause();
                tracing::warn!(namespace = key.0, name = key.1, %error, cause, "annotating a pod failed");
                Outcome::Retry
            }
        }
    }

    async fn annotate(&self, key: &ObjectKey) -> Result<(), Error> {
        let stores = &self.context.stores;
        let Some(pod) = stores.pods.get(&key.0, &key.1) else {
            return Ok(());
        };
        if pod.is_terminating() {
            return Ok(());
        }
        let request = stores.requests.get(&key.0, pod.uid());
        let mut wanted = match self.annotated {
            Annotated::None => Marks::default(),
            _ => wanted(&pod, request.as_deref()),
        };
        if self.annotated == Annotated::Intercepted && !wanted.evict_only {
            wanted.evict_only = self.is_intercepted(&pod).await?;
        }
        let wanted = without_foreign(&pod, wanted);
        if wanted == ours(&pod) {
            return Ok(());
        }
        let pods: Api<Pod> = Api::namespaced(self.context.clients.host.clone(), &key.0);
        api::apply(&pods, &key.1, FIELD_MANAGER, &configuration(&pod, wanted)).await?;
        Ok(())
    }

    /// Whether interceptors other than those of the controller act before the pod is evicted.
    async fn is_intercepted(&self, pod: &Pod) -> Result<bool, Error> {
        if pod.is_terminal() || pod.is_mirror() || pod.is_grouped() {
            return Ok(false);
        }
        let stores = &self.context.stores;
        let matching = self
            .rules
            .matching(stores, &self.context.clients.host, pod)
            .await?;
        let Matching::Known(rules) = matching else {
            return Ok(true);
        };
        let order = interceptors::order(pod, &rules, &self.allowed);
        Ok(order.is_ok_and(|order| order.names.iter().any(|name| !is_built_in(name))))
    }
}

/// What the request of a pod calls for.
fn wanted(pod: &Pod, request: Option<&EvictionRequest>) -> Marks {
    let takes_time = request.is_some_and(|request| {
        let status = request.status.as_ref();
        let mut targets = status.iter().flat_map(|status| &status.target_interceptors);
        let mut conditions = status.iter().flat_map(|status| &status.conditions);
        !request.is_finished()
            && request.metadata.deletion_timestamp.is_none()
            && (targets.any(|target| !is_built_in(&target.name))
                || conditions.any(|condition| condition.type_ == BLOCKED && condition.status == "True"))
    });
    let is_wanted = takes_time && !pod.is_terminal();
    Marks {
        evict_only: is_wanted,
        in_progress: is_wanted,
    }
}

fn is_built_in(name: &str) -> bool {
    [IMPERATIVE_EVICTION, DAEMON_SET_INTERCEPTOR].contains(&name)
}

/// The annotations that this program has put on the pod.
fn ours(pod: &Pod) -> Marks {
    let is_ours = |key| pod.annotations().get(key).is_some_and(|value| value == VALUE);
    Marks {
        evict_only: is_ours(REQUEST_EVICT_ONLY),
        in_progress: is_ours(EVICTION_IN_PROGRESS),
    }
}

/// Leaves out annotations that others have put on the pod.
fn without_foreign(pod: &Pod, wanted: Marks) -> Marks {
    let is_free = |key| pod.annotations().get(key).is_none_or(|value| value == VALUE);
    Marks {
        evict_only: wanted.evict_only && is_free(REQUEST_EVICT_ONLY),
        in_progress: wanted.in_progress && is_free(EVICTION_IN_PROGRESS),
    }
}

/// The apply that puts these annotations on the pod, and takes off what this program has put there before.
fn configuration(pod: &Pod, wanted: Marks) -> Value {
    let annotations: Map<String, Value> = [
        (REQUEST_EVICT_ONLY, wanted.evict_only),
        (EVICTION_IN_PROGRESS, wanted.in_progress),
    ]
    .into_iter()
    .filter(|(_, is_wanted)| *is_wanted)
    .map(|(key, _)| (key.to_owned(), json!(VALUE)))
    .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        // With the UID, another pod of this name is left alone.
        "metadata": { "name": pod.name(), "uid": pod.uid(), "annotations": annotations },
    })
}

/// Queues pods when they or their requests change.
pub fn add_handlers(
    informers: &mut Informers,
    stores: &Stores,
    queue: &Arc<WorkQueue<ObjectKey>>,
    annotated: Annotated,
) {
    informers.requests.add_handler({
        let queue = Arc::clone(queue);
        move |change: &Change<EvictionRequest>| {
            let pod = change
                .latest()
                .and_then(|request| Some((request, request.spec.target.pod.as_ref()?)));
            let Some((request, pod)) = pod.filter(|_| annotated != Annotated::None) else {
                return;
            };
            let namespace = request.metadata.namespace.clone().unwrap_or_default();
            queue.add((namespace, pod.name.clone()));
        }
    });
    informers.pods.add_handler({
        let (queue, requests) = (Arc::clone(queue), stores.requests.clone());
        move |change: &Change<Pod>| {
            let Some(pod) = &change.new else { return };
            let is_known = ours(pod) != Marks::default()
                || (annotated != Annotated::None && requests.get(pod.namespace(), pod.uid()).is_some());
            let is_new_to_rules = annotated == Annotated::Intercepted
                && change
                    .old
                    .as_ref()
                    .is_none_or(|old| old.labels() != pod.labels() || old.annotations() != pod.annotations());
            if is_known || is_new_to_rules {
                queue.add(key_of(&**pod));
            }
        }
    });
    if annotated == Annotated::Intercepted {
        let (queue, pods) = (Arc::clone(queue), stores.pods.clone());
        informers
            .interceptors
            .add_handler(move |change: &Change<EvictionInterceptor>| {
                let specs = [&change.old, &change.new].map(|state| state.as_ref().map(|rule| &rule.spec));
                if specs[0] != specs[1] {
                    for pod in pods.all() {
                        queue.add(key_of(&*pod));
                    }
                }
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{api_double, clock_at, context, empty_stores, merge, pod, typed};
    use crate::informer::Store;

    fn annotated(evict_only: Option<&str>, in_progress: Option<&str>) -> Value {
        let mut annotations = Map::new();
        for (key, value) in [
            (REQUEST_EVICT_ONLY, evict_only),
            (EVICTION_IN_PROGRESS, in_progress),
        ] {
            annotations.extend(value.map(|value| (key.to_owned(), json!(value))));
        }
        json!({"metadata": {"annotations": annotations}})
    }

    fn condition(type_: &str) -> Value {
        json!([{"type": type_, "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    }

    /// A request of the pod `web` with these interceptors and this condition.
    fn request(interceptors: &[&str], condition_type: &str) -> Value {
        let targets: Vec<Value> = interceptors.iter().map(|name| json!({ "name": name })).collect();
        json!({
            "metadata": {"name": "uid-1", "namespace": "shop"},
            "spec": {"target": {"pod": {"name": "web", "uid": "uid-1"}}},
            "status": {"targetInterceptors": targets, "conditions": condition(condition_type)},
        })
    }

    /// Reconciles the pod. Returns the annotations that an apply names, if there was one.
    async fn reconcile(pod_patch: &Value, request: Option<Value>, mode: Annotated) -> Option<Vec<String>> {
        let mut stores = empty_stores();
        stores.pods = Store::synced_with(vec![pod(pod_patch)]);
        stores.requests = Store::synced_with(request.map(typed).into_iter().collect());
        let (clients, received) = api_double(|request| (200, request.body.clone()));
        let context = context(stores, clients, &clock_at(0));
        let controller = Controller::new(context, Arc::default(), AllowedNames::default(), mode);
        let outcome = controller.reconcile(("shop".to_owned(), "web".to_owned())).await;
        assert_eq!(outcome, Outcome::Wait(None));
        let received = received.lock().unwrap();
        let written = received.last()?;
        assert!(
            written.query.contains("fieldManager=drydock-descheduling"),
            "{}",
            written.query
        );
        assert!(!written.query.contains("force=true"), "{}", written.query);
        assert_eq!(written.body["metadata"]["uid"], "uid-1");
        let annotations = written.body["metadata"]["annotations"].as_object().unwrap();
        Some(
            annotations
                .keys()
                .map(|key| key.rsplit('/').next().unwrap().to_owned())
                .collect(),
        )
    }

    #[tokio::test]
    async fn annotations_are_there_while_a_request_takes_time() {
        let both = Some(vec![
            "eviction-in-progress".to_owned(),
            "request-evict-only".to_owned(),
        ]);
        let none = Some(Vec::new());
        let intercepted = || Some(request(&["a.example.com", IMPERATIVE_EVICTION], "Blocked"));
        let plain = |condition| Some(request(&[IMPERATIVE_EVICTION], condition));
        let ours = annotated(Some(VALUE), Some(VALUE));
        let bare = json!({});
        for (pod, request, expected) in [
            (&bare, intercepted(), both.clone()),
            // A pod without interceptors leaves at once, unless something blocks it.
            (&bare, plain("Other"), None),
            (&bare, plain("Blocked"), both.clone()),
            (&ours, intercepted(), None),
            (&ours, plain("Canceled"), none.clone()),
            (&ours, None, none.clone()),
            (&bare, None, None),
            // What others wrote stays.
            (
                &annotated(Some("true"), None),
                intercepted(),
                Some(vec!["eviction-in-progress".to_owned()]),
            ),
            (&annotated(Some("true"), Some("true")), intercepted(), None),
            (&annotated(Some("true"), Some(VALUE)), None, none),
        ] {
            let written = reconcile(pod, request.clone(), Annotated::Requested).await;
            assert_eq!(written, expected, "{pod} {request:?}");
        }
        let mut leaving = ours;
        merge(
            &mut leaving,
            &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        );
        assert_eq!(reconcile(&leaving, None, Annotated::Requested).await, None);
    }

    #[tokio::test]
    async fn annotations_of_an_earlier_process_are_taken_off_when_nothing_is_annotated() {
        let ours = annotated(Some(VALUE), Some(VALUE));
        let intercepted = || Some(request(&["a.example.com", IMPERATIVE_EVICTION], "Blocked"));
        let written = reconcile(&ours, intercepted(), Annotated::None).await;
        assert_eq!(written, Some(Vec::new()));
        let foreign = annotated(Some("true"), Some("true"));
        for pod in [foreign, json!({})] {
            assert_eq!(
                reconcile(&pod, intercepted(), Annotated::None).await,
                None,
                "{pod}"
            );
        }
    }

    #[tokio::test]
    async fn intercepted_pods_are_known_before_their_first_request() {
        let intercepted = json!({"metadata": {"annotations": {"evictionrequest.coordination.k8s.io/interceptors": "a.example.com"}}});
        let written = reconcile(&intercepted, None, Annotated::Intercepted).await;
        assert_eq!(written, Some(vec!["request-evict-only".to_owned()]));
        assert_eq!(reconcile(&intercepted, None, Annotated::Requested).await, None);
        assert_eq!(reconcile(&json!({}), None, Annotated::Intercepted).await, None);
    }
}
