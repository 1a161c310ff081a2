//! May this pod be evicted now?
//!
//! `POST pods/NAME/eviction`, as Kubernetes answers it: a pod that does not serve anyway goes at once, every other one
//! only if its disruption budget has something left, which is taken from the budget before the pod is deleted.

use std::sync::Arc;

use drydock_machinery::codec::protobuf::{DELETE_OPTIONS, FieldType, Message, NAMES};
use drydock_storage::{Revision, Store};
use futures_util::FutureExt as _;
use http::{HeaderMap, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::answer;
use crate::budgets::{covers, say_allowed};
use crate::objects::{Kind, Objects, Place};
use crate::pod::{Condition, integer, is_ready, is_terminal, member_mut, phase, set, set_condition, text};
use drydock_apiserver::error::{ApiError, GroupResource, Reason, Status, StatusCause, StatusDetails};
use drydock_apiserver::handlers::{Answered, Extension};
use drydock_apiserver::http::body::{RequestBody, ResponseBody};
use drydock_apiserver::registry::caller::Caller;
use drydock_apiserver::registry::metadata::time_text;
use drydock_apiserver::registry::resource::Part;
use drydock_apiserver::request::options::{DeleteOptions, WriteOptions};
use drydock_apiserver::request::{Query, RequestContext, ResourceRequest, Verb};

/// The most evictions a budget keeps in mind at a time.
const MOST_DISRUPTED_PODS: usize = 2000;

/// How often an eviction looks again when the pod changes under its hands.
const TRIES: usize = 5;

/// The eviction subresource of pods.
pub(crate) struct Evictions<S: Store> {
    pub(crate) objects: Arc<Objects<S>>,
}

/// What stands between a pod and its end.
#[derive(Debug, Clone, PartialEq)]
enum Decision<'a> {
    /// Nothing.
    Delete,
    /// Nothing, as long as the pod is as it was when this was decided.
    DeleteUnchanged,
    /// This budget has to give one disruption.
    Charge(&'a Value),
    /// More budgets than one, which nobody can charge.
    Ambiguous,
}

/// What came of an eviction.
enum Attempt {
    /// The pod goes.
    Done,
    /// It changed between the decision and the delete; nothing was charged.
    Changed(ApiError),
}

fn decide<'a>(pod: &Value, budgets: &'a [Value]) -> Decision<'a> {
    let is_ending = is_terminal(pod) || !text(pod, "/metadata/deletionTimestamp").is_empty();
    if is_ending {
        return Decision::Delete;
    }
    if phase(pod) == "Pending" {
        return Decision::DeleteUnchanged;
    }
    let mut covering = budgets.iter().filter(|budget| covers(budget, pod));
    match (covering.next(), covering.next()) {
        (None, _) => Decision::Delete,
        (Some(_), Some(_)) => Decision::Ambiguous,
        (Some(budget), None) if !is_ready(pod) && may_lose_unready(budget) => Decision::DeleteUnchanged,
        (Some(budget), None) => Decision::Charge(budget),
    }
}

/// Whether pods that are not ready may go without being counted.
fn may_lose_unready(budget: &Value) -> bool {
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
    if disrupted.is_some_and(|disrupted| disrupted.len() > MOST_DISRUPTED_PODS) {
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
        say_allowed(budget, false, now);
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

/// An Eviction in protobuf.
const EVICTION: Message = &[
    (1, "metadata", FieldType::Message(NAMES)),
    (2, "deleteOptions", FieldType::Message(DELETE_OPTIONS)),
];

/// The options of an Eviction.
fn options_of(eviction: &Value, namespace: &str, name: &str) -> Result<DeleteOptions, ApiError> {
    let said = |member: &str| eviction.get(member).and_then(Value::as_str).unwrap_or_default();
    if !matches!(
        (said("apiVersion"), said("kind")),
        ("policy/v1" | "", "Eviction" | "")
    ) {
        return Err(ApiError::bad_request(format!(
            "expected an Eviction of policy/v1, found {:?} of {:?}",
            said("kind"),
            said("apiVersion")
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
    /// Evicts a pod in the name of whoever asks.
    ///
    /// # Errors
    /// 429 of its budget, 500 for several budgets, 404, 409 of preconditions, and what a delete is refused for.
    pub(crate) async fn evict(
        &self,
        caller: Caller<'_>,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let place = Place {
            kind: Kind::PODS,
            namespace,
            name,
        };
        let mut tries = 1;
        loop {
            match self.evict_once(caller, place, options).await? {
                Attempt::Done => return Ok(()),
                Attempt::Changed(error) if tries == TRIES => return Err(error),
                Attempt::Changed(_) => tries += 1,
            }
        }
    }

    async fn evict_once(
        &self,
        caller: Caller<'_>,
        place: Place<'_>,
        options: &DeleteOptions,
    ) -> Result<Attempt, ApiError> {
        let pod = self.objects.get(Kind::PODS, place.namespace, place.name).await?;
        let budgets = self.objects.list(Kind::BUDGETS, Some(place.namespace)).await?;
        let mut options = options.clone();
        match decide(&pod, &budgets) {
            Decision::Delete => {}
            // The client insists on a state of the pod itself: it is told when that is gone.
            Decision::DeleteUnchanged if options.preconditions.resource_version.is_some() => {}
            Decision::DeleteUnchanged => {
                let seen = text(&pod, "/metadata/resourceVersion").to_owned();
                options.preconditions.resource_version = Some(seen);
                return match self.delete(caller, place, options).await {
                    Err(error) if error.is(Reason::Conflict) => Ok(Attempt::Changed(error)),
                    outcome => outcome.map(|()| Attempt::Done),
                };
            }
            Decision::Charge(budget) => self.charge(budget, place, options.dry_run).await?,
            Decision::Ambiguous => return Err(ambiguous()),
        }
        self.delete(caller, place, options).await?;
        Ok(Attempt::Done)
    }

    async fn charge(&self, budget: &Value, pod: Place<'_>, dry_run: bool) -> Result<(), ApiError> {
        let now = self.objects.now();
        if dry_run {
            return charge(&mut budget.clone(), pod.name, now);
        }
        let place = Place {
            kind: Kind::BUDGETS,
            namespace: pod.namespace,
            name: text(budget, "/metadata/name"),
        };
        self.objects
            .edit(place, Part::Status, |budget| charge(budget, pod.name, now))
            .await
            .map(drop)
    }

    /// Says on the pod why it goes, and deletes it.
    async fn delete(
        &self,
        caller: Caller<'_>,
        place: Place<'_>,
        mut options: DeleteOptions,
    ) -> Result<(), ApiError> {
        let pods = self.objects.of(Kind::PODS)?;
        if !options.dry_run {
            let now = self.objects.now();
            let why = Condition {
                reason: "EvictionByEvictionAPI",
                message: "Eviction API: evicting",
                ..Condition::holds("DisruptionTarget")
            };
            let wanted = options.preconditions.clone();
            let is_wanted = |pod: &Value| {
                let is = |precondition: &Option<String>, pointer: &str| {
                    precondition
                        .as_ref()
                        .is_none_or(|wanted| text(pod, pointer) == wanted)
                };
                is(&wanted.uid, "/metadata/uid") && is(&wanted.resource_version, "/metadata/resourceVersion")
            };
            let mut was_wanted = false;
            let written = self
                .objects
                .edit(place, Part::Status, |pod| {
                    // Another pod than the one meant is left as it is: the delete below says what is wrong.
                    was_wanted = is_wanted(pod);
                    if was_wanted {
                        set_condition(pod, why, now);
                    }
                    Ok(())
                })
                .await?;
            if let Some(Revision(revision)) = written
                && was_wanted
                && options.preconditions.resource_version.is_some()
            {
                options.preconditions.resource_version = Some(revision.to_string());
            }
        }
        let key = pods.key(place.namespace, place.name)?;
        pods.delete(caller, &key, &options).await.map(drop)
    }

    async fn answer(
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
        let eviction = answer::read(&headers, body, EVICTION).await?;
        let mut options = options_of(&eviction, &request.namespace, &request.name)?;
        options.dry_run |= WriteOptions::parse("CreateOptions", &context.query)?.dry_run;
        self.evict((&context).into(), &request.namespace, &request.name, &options)
            .await?;
        let mut status = Status::success(StatusDetails::default());
        status.details = None;
        status.code = StatusCode::CREATED.as_u16();
        answer::created(&status)
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

    fn answer(&self, context: RequestContext, headers: HeaderMap, body: RequestBody) -> Answered<'_> {
        Self::answer(self, context, headers, body).boxed()
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
    fn a_pod_that_does_not_serve_goes_at_once() {
        let tight = [budget(&json!({}), &json!({"disruptionsAllowed": 0}))];
        check(&pod("Succeeded", "False"), &tight, &Decision::Delete);
        check(&pod("Failed", "False"), &tight, &Decision::Delete);
        check(&pod("Pending", "False"), &tight, &Decision::DeleteUnchanged);
        let mut ending = pod("Running", "True");
        ending["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
        check(&ending, &tight, &Decision::Delete);
    }

    #[test]
    fn a_pod_that_serves_is_charged_to_its_only_budget() {
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
    fn a_pod_that_is_not_ready_goes_when_the_others_suffice() {
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

    /// Code, message, cause and Retry-After of a refusal; none when the budget is charged.
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
    fn a_budget_is_charged_while_it_allows_it() {
        let seen = json!({"observedGeneration": 1, "disruptionsAllowed": 2});
        let charged = check_charge(&seen, None);
        assert_eq!(charged["disruptionsAllowed"], 1);
        assert_eq!(charged["disruptedPods"], json!({"p": "1970-01-01T00:00:00Z"}));
        assert_eq!(charged.get("conditions"), None);
        let last = check_charge(&json!({"observedGeneration": 1, "disruptionsAllowed": 1}), None);
        assert_eq!(last["conditions"][0]["status"], "False");
    }

    #[test]
    fn a_refusal_says_what_kubernetes_says() {
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
    fn an_eviction_names_its_pod() {
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
