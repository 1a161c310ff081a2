//! The eviction API: `POST pods/NAME/eviction`, as in Kubernetes.
//!
//! A pod that is pending, terminated or terminating is deleted at once. Any other pod is deleted only if its disruption
//! budget allows one more disruption; the budget is charged before the pod is deleted.

use std::sync::Arc;

use drydock_apiserver::error::{ApiError, GroupResource, Reason, Status, StatusCause, StatusDetails};
use drydock_apiserver::handlers::{Extension, ResponseFuture};
use drydock_apiserver::http::body::{RequestBody, ResponseBody};
use drydock_apiserver::registry::caller::Caller;
use drydock_apiserver::registry::endpoint::Endpoint;
use drydock_apiserver::registry::metadata::time_text;
use drydock_apiserver::registry::part::Part;
use drydock_apiserver::registry::store::DeleteRequest;
use drydock_apiserver::request::options::{DeleteOptions, WriteOptions};
use drydock_apiserver::request::{Query, RequestContext, ResourceRequest, Verb};
use drydock_proto::protobuf::{Field, FieldKind, META_V1_DELETE_OPTIONS, META_V1_OBJECT_META, Message};
use drydock_storage::{Revision, Store};
use futures_util::FutureExt as _;
use http::{HeaderMap, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::body;
use crate::budgets::{selects, set_disruption_allowed};
use crate::object::{Condition, integer, is_ready, is_terminating, member_mut, set, set_condition, text};
use crate::objects::{Kind, ObjectRef, Objects};
use crate::pod::{is_terminal, phase};

/// How many pods `status.disruptedPods` of a budget may hold: `MaxDisruptedPodSize` of kube-apiserver.
const MAX_DISRUPTED_PODS: usize = 2000;

/// How often an eviction is attempted when the pod changes concurrently.
const MAX_ATTEMPTS: usize = 5;

/// The eviction subresource of pods.
pub(crate) struct Evictions<S: Store> {
    pub(crate) objects: Arc<Objects<S>>,
}

/// How a pod may be evicted.
#[derive(Debug, Clone, PartialEq)]
enum Decision<'a> {
    /// It is deleted.
    Delete,
    /// It is deleted if it has not changed since the decision.
    DeleteUnchanged,
    /// This budget is charged, then the pod is deleted.
    Charge(&'a Value),
    /// Several budgets select the pod: the eviction API rejects that.
    Ambiguous,
}

/// The outcome of one attempt.
enum Attempt {
    /// The pod is deleted, or being deleted.
    Done,
    /// The pod changed between the decision and the deletion; no budget was charged.
    Conflict(ApiError),
}

fn decide<'a>(pod: &Value, budgets: &'a [Value]) -> Decision<'a> {
    if is_terminal(pod) || is_terminating(pod) {
        return Decision::Delete;
    }
    if phase(pod) == "Pending" {
        return Decision::DeleteUnchanged;
    }
    let mut selecting = budgets.iter().filter(|budget| selects(budget, pod));
    match (selecting.next(), selecting.next()) {
        (None, _) => Decision::Delete,
        (Some(_), Some(_)) => Decision::Ambiguous,
        (Some(budget), None) if !is_ready(pod) && allows_unready(budget) => Decision::DeleteUnchanged,
        (Some(budget), None) => Decision::Charge(budget),
    }
}

/// Whether pods that are not ready may be evicted without charging the budget.
fn allows_unready(budget: &Value) -> bool {
    let count = |pointer: &str| integer(budget, pointer).unwrap_or(0);
    let desired = count("/status/desiredHealthy");
    text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow"
        || (desired > 0 && count("/status/currentHealthy") >= desired)
}

/// Takes one disruption from a budget.
fn charge(budget: &mut Value, pod: &str, now: Timestamp) -> Result<(), ApiError> {
    let name = text(budget, "/metadata/name").to_owned();
    let count = |pointer: &str| integer(budget, pointer).unwrap_or(0);
    let forbidden = |why: &str| {
        Err(ApiError::forbidden(
            GroupResource {
                group: "policy",
                resource: "poddisruptionbudget",
            },
            &name,
            why,
        ))
    };
    if count("/status/observedGeneration") < count("/metadata/generation") {
        return Err(still_processed(&name));
    }
    let allowed = count("/status/disruptionsAllowed");
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    let disrupted = budget.pointer("/status/disruptedPods").and_then(Value::as_object);
    if disrupted.is_some_and(|disrupted| disrupted.len() > MAX_DISRUPTED_PODS) {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        let (needed, healthy) = (count("/status/desiredHealthy"), count("/status/currentHealthy"));
        return Err(violates(format!(
            "The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
        )));
    }
    let status = member_mut(budget, "status");
    set(status, "disruptionsAllowed", json!(allowed - 1));
    set(member_mut(status, "disruptedPods"), pod, json!(time_text(now)));
    if allowed == 1 {
        set_disruption_allowed(budget, false, now);
    }
    Ok(())
}

fn violates(cause: String) -> ApiError {
    let cause = StatusCause {
        reason: "DisruptionBudget".into(),
        message: cause,
        field: String::new(),
    };
    ApiError::too_many_requests(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        0,
    )
    .causes(vec![cause])
}

fn still_processed(budget: &str) -> ApiError {
    violates(format!(
        "The disruption budget {budget} is still being processed by the server."
    ))
    .retry_after(10)
}

fn ambiguous() -> ApiError {
    ApiError::unclassified(
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
    )
}

/// The fields of an Eviction in protobuf.
static EVICTION: Message = Message {
    name: "k8s.io.api.policy.v1.Eviction",
    fields: &[
        Field::one(1, "metadata", FieldKind::Message(&META_V1_OBJECT_META)),
        Field::one(2, "deleteOptions", FieldKind::Message(&META_V1_DELETE_OPTIONS)),
    ],
};

/// The options of an Eviction.
fn options_of(eviction: &Value, namespace: &str, name: &str) -> Result<DeleteOptions, ApiError> {
    let (api_version, kind) = (text(eviction, "/apiVersion"), text(eviction, "/kind"));
    if !matches!((api_version, kind), ("policy/v1" | "", "Eviction" | "")) {
        return Err(ApiError::bad_request(format!(
            "expected an Eviction of policy/v1, found {kind:?} of {api_version:?}"
        )));
    }
    if text(eviction, "/metadata/name") != name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    if !matches!(text(eviction, "/metadata/namespace"), own if own.is_empty() || own == namespace) {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    match eviction.get("deleteOptions").filter(|options| !options.is_null()) {
        Some(options) => DeleteOptions::parse(&Query::default(), Some(options.clone()), "policy/v1"),
        None => Ok(DeleteOptions::default()),
    }
}

impl<S: Store> Evictions<S> {
    /// Evicts a pod on behalf of the client.
    ///
    /// # Errors
    /// 429 from its budget, 500 for several budgets, 404, 409 for preconditions, and the errors of a delete.
    pub(crate) async fn evict(
        &self,
        caller: Caller<'_>,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let at = ObjectRef {
            kind: Kind::PODS,
            namespace,
            name,
        };
        let mut attempt = 1;
        loop {
            match self.evict_once(caller, at, options).await? {
                Attempt::Done => return Ok(()),
                Attempt::Conflict(error) if attempt == MAX_ATTEMPTS => return Err(error),
                Attempt::Conflict(_) => attempt += 1,
            }
        }
    }

    async fn evict_once(
        &self,
        caller: Caller<'_>,
        at: ObjectRef<'_>,
        options: &DeleteOptions,
    ) -> Result<Attempt, ApiError> {
        let pod = self.objects.get(Kind::PODS, at.namespace, at.name).await?;
        let budgets = self.objects.list(Kind::BUDGETS, Some(at.namespace)).await?;
        let mut options = options.clone();
        match decide(&pod, &budgets) {
            Decision::Delete => {}
            // The resourceVersion of the client is the precondition; if it does not match, the client gets 409.
            Decision::DeleteUnchanged if options.preconditions.resource_version.is_some() => {}
            Decision::DeleteUnchanged => {
                let seen = text(&pod, "/metadata/resourceVersion").to_owned();
                options.preconditions.resource_version = Some(seen);
                return match self.delete(caller, at, options).await {
                    Err(error) if error.is(Reason::Conflict) => Ok(Attempt::Conflict(error)),
                    outcome => outcome.map(|()| Attempt::Done),
                };
            }
            Decision::Charge(budget) => self.charge(budget, at, options.dry_run).await?,
            Decision::Ambiguous => return Err(ambiguous()),
        }
        self.delete(caller, at, options).await?;
        Ok(Attempt::Done)
    }

    async fn charge(&self, budget: &Value, pod: ObjectRef<'_>, dry_run: bool) -> Result<(), ApiError> {
        let now = self.objects.now();
        if dry_run {
            return charge(&mut budget.clone(), pod.name, now);
        }
        let at = ObjectRef::to(Kind::BUDGETS, budget);
        self.objects
            .edit(at, Part::Status, |budget| charge(budget, pod.name, now))
            .await
            .map(drop)
    }

    /// Sets the condition `DisruptionTarget` on the pod and deletes it.
    async fn delete(
        &self,
        caller: Caller<'_>,
        at: ObjectRef<'_>,
        mut options: DeleteOptions,
    ) -> Result<(), ApiError> {
        let pods = self.objects.store_of(Kind::PODS)?;
        if !options.dry_run {
            let now = self.objects.now();
            let reason = Condition {
                reason: "EvictionByEvictionAPI",
                message: "Eviction API: evicting",
                ..Condition::new_true("DisruptionTarget")
            };
            let preconditions = options.preconditions.clone();
            let meets_preconditions = |pod: &Value| {
                let is = |precondition: &Option<String>, pointer: &str| {
                    precondition
                        .as_ref()
                        .is_none_or(|wanted| text(pod, pointer) == wanted)
                };
                is(&preconditions.uid, "/metadata/uid")
                    && is(&preconditions.resource_version, "/metadata/resourceVersion")
            };
            let mut is_written = false;
            let written = self
                .objects
                .edit(at, Part::Status, |pod| {
                    // Any other pod is left as it is; the delete below reports the failed precondition.
                    is_written = meets_preconditions(pod);
                    if is_written {
                        set_condition(pod, reason, now);
                    }
                    Ok(())
                })
                .await?;
            if let Some(Revision(revision)) = written
                && is_written
                && options.preconditions.resource_version.is_some()
            {
                options.preconditions.resource_version = Some(revision.to_string());
            }
        }
        let request = DeleteRequest {
            caller,
            endpoint: &Endpoint::stored(&pods.resource),
            options: &options,
            of_collection: false,
        };
        pods.delete(request, at.namespace, at.name).await.map(drop)
    }

    async fn respond(
        &self,
        context: RequestContext,
        headers: HeaderMap,
        body: RequestBody,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let Some(request) = context.info.resource.clone() else {
            return Err(ApiError::no_route());
        };
        if request.verb != Verb::Create {
            return Err(ApiError::method_not_allowed());
        }
        let eviction = body::read(&headers, body, &EVICTION).await?;
        let mut options = options_of(&eviction, &request.namespace, &request.name)?;
        options.dry_run |= WriteOptions::parse("CreateOptions", &context.query)?.dry_run;
        self.evict((&context).into(), &request.namespace, &request.name, &options)
            .await?;
        let mut status = Status::success(StatusDetails::default());
        status.details = None;
        status.code = StatusCode::CREATED.as_u16();
        body::created(&status)
    }
}

impl<S: Store> Extension for Evictions<S> {
    fn claims(&self, resource: &ResourceRequest) -> bool {
        resource.group.is_empty()
            && resource.version == "v1"
            && resource.resource == "pods"
            && resource.subresource == "eviction"
            && !resource.namespace.is_empty()
            && resource.surplus_segments == 0
    }

    fn handle(&self, context: RequestContext, headers: HeaderMap, body: RequestBody) -> ResponseFuture<'_> {
        Self::respond(self, context, headers, body).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(phase: &str, ready: &str) -> Value {
        json!({"metadata": {"name": "p", "labels": {"app": "a"}},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn budget(spec: &Value, status: &Value) -> Value {
        let mut spec = spec.clone();
        spec["selector"] = json!({"matchLabels": {"app": "a"}});
        json!({"metadata": {"name": "b", "generation": 1}, "spec": spec, "status": status})
    }

    #[track_caller]
    fn check(pod: &Value, budgets: &[Value], expected: &Decision<'_>) {
        assert_eq!(decide(pod, budgets), *expected, "{pod}");
    }

    #[test]
    fn a_pod_that_is_not_running_is_deleted_without_a_charge() {
        let tight = [budget(&json!({}), &json!({"disruptionsAllowed": 0}))];
        check(&pod("Succeeded", "False"), &tight, &Decision::Delete);
        check(&pod("Failed", "False"), &tight, &Decision::Delete);
        check(&pod("Pending", "False"), &tight, &Decision::DeleteUnchanged);
        let mut ending = pod("Running", "True");
        ending["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
        check(&ending, &tight, &Decision::Delete);
    }

    #[test]
    fn a_running_pod_is_charged_to_its_only_budget() {
        let one = budget(&json!({}), &json!({}));
        let other = json!({"spec": {"selector": {"matchLabels": {"app": "z"}}}});
        check(&pod("Running", "True"), &[], &Decision::Delete);
        check(
            &pod("Running", "True"),
            std::slice::from_ref(&other),
            &Decision::Delete,
        );
        check(
            &pod("Running", "True"),
            &[other, one.clone()],
            &Decision::Charge(&one),
        );
        check(
            &pod("Running", "True"),
            &[one.clone(), one.clone()],
            &Decision::Ambiguous,
        );
    }

    #[test]
    fn an_unready_pod_is_free_if_enough_others_are_healthy() {
        for (spec, healthy, desired, is_free) in [
            (json!({}), 2, 2, true),
            (json!({}), 1, 2, false),
            (json!({}), 0, 0, false),
            (json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"}), 0, 2, true),
        ] {
            let one = budget(
                &spec,
                &json!({"currentHealthy": healthy, "desiredHealthy": desired}),
            );
            let expected = if is_free {
                Decision::DeleteUnchanged
            } else {
                Decision::Charge(&one)
            };
            check(&pod("Running", "False"), std::slice::from_ref(&one), &expected);
        }
    }

    /// Expects the code, message, cause and Retry-After of an error, or no error. Returns the status of the budget.
    #[track_caller]
    fn check_charge(status: &Value, expected: Option<(u16, &str, &str, u32)>) -> Value {
        let mut budget = budget(&json!({}), status);
        let outcome = charge(&mut budget, "p", Timestamp::UNIX_EPOCH);
        let found = outcome.err().map(|error| {
            let status = error.status().clone();
            let details = status.details.unwrap_or_default();
            let cause = details.causes.first().cloned().unwrap_or_default();
            assert!(cause.reason.is_empty() || cause.reason == "DisruptionBudget");
            (
                status.code,
                status.message.into_owned(),
                cause.message,
                details.retry_after_seconds,
            )
        });
        let expected =
            expected.map(|(code, message, cause, retry)| (code, message.to_owned(), cause.to_owned(), retry));
        assert_eq!(found, expected, "{status}");
        budget["status"].take()
    }

    #[test]
    fn a_charge_takes_one_allowed_disruption() {
        let seen = json!({"observedGeneration": 1, "disruptionsAllowed": 2});
        let charged = check_charge(&seen, None);
        assert_eq!(charged["disruptionsAllowed"], 1);
        assert_eq!(charged["disruptedPods"], json!({"p": "1970-01-01T00:00:00Z"}));
        assert_eq!(charged.get("conditions"), None);
        let last = check_charge(&json!({"observedGeneration": 1, "disruptionsAllowed": 1}), None);
        assert_eq!(last["conditions"][0]["status"], "False");
    }

    #[test]
    fn rejections_have_the_messages_of_kubernetes() {
        let violates = "Cannot evict pod as it would violate the pod's disruption budget.";
        check_charge(
            &json!({"observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 3, "currentHealthy": 2}),
            Some((
                429,
                violates,
                "The disruption budget b needs 3 healthy pods and has 2 currently",
                0,
            )),
        );
        check_charge(
            &json!({"observedGeneration": 0, "disruptionsAllowed": 1}),
            Some((
                429,
                violates,
                "The disruption budget b is still being processed by the server.",
                10,
            )),
        );
        check_charge(
            &json!({"observedGeneration": 1, "disruptionsAllowed": -1}),
            Some((
                403,
                "poddisruptionbudget.policy \"b\" is forbidden: pdb disruptions allowed is negative",
                "",
                0,
            )),
        );
        assert_eq!(ambiguous().code(), 500);
    }

    #[test]
    fn an_eviction_must_name_its_pod() {
        let check = |eviction: Value| options_of(&eviction, "ns", "p").map_err(|error| error.code().as_u16());
        let named = json!({"name": "p", "namespace": "ns"});
        let options = check(
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": named,
            "deleteOptions": {"gracePeriodSeconds": 3, "preconditions": {"uid": "u"}, "dryRun": ["All"]}}),
        );
        let options = options.unwrap();
        assert_eq!((options.grace_period_seconds, options.dry_run), (Some(3), true));
        assert_eq!(options.preconditions.uid.as_deref(), Some("u"));
        assert_eq!(check(json!({"metadata": named})), Ok(DeleteOptions::default()));
        assert_eq!(check(json!({"metadata": {"name": "q"}})), Err(400));
        assert_eq!(
            check(json!({"metadata": {"name": "p", "namespace": "other"}})),
            Err(400)
        );
        assert_eq!(check(json!({"kind": "Pod", "metadata": named})), Err(400));
    }
}
