//! Executes steps: writes of the request, evictions of its pod, and Events. Executing a step twice is harmless: status
//! writes and deletes have the observed resource version as a precondition, evictions the UID of the pod.

use std::sync::Arc;
use std::time::Duration;

use drydock_proto::kinds::evictionrequest::{EvictionRequest, EvictionRequestStatus};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use serde_json::json;

use super::decide::{ActivationReason, Attempt, Budget, FinishReason, RequestWarning, Step};
use super::status;
use crate::api::{self, Error, call, merge_patch, merge_patch_status, status_patch};
use crate::context::Context;
use crate::events::{EventContent, object_reference};
use crate::pod::Pod;
use crate::rejection;

/// How often a status write is retried after a write conflict.
const CONFLICT_RETRIES: usize = 5;

/// The result of an eviction.
#[derive(Debug)]
pub struct EvictionOutcome {
    /// The attempt. It is to be remembered also when its result could not be written.
    pub attempt: Attempt,
    /// The request as written; `None` when the pod does not exist any more.
    pub written: Result<Option<Arc<EvictionRequest>>, Error>,
}

/// Writes requests and evicts their pods.
#[derive(Debug)]
pub struct RequestWriter {
    context: Arc<Context>,
}

impl RequestWriter {
    /// A writer.
    #[must_use]
    pub fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    fn requests(&self, request: &EvictionRequest) -> Api<EvictionRequest> {
        let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.context.clients.drydock.clone(), namespace)
    }

    /// Deletes the request, if it is unchanged.
    ///
    /// # Errors
    ///
    /// [`Error`] of the call. A request that is gone is not an error.
    pub async fn delete(&self, request: &EvictionRequest) -> Result<(), Error> {
        let preconditions = kube::api::Preconditions {
            uid: request.metadata.uid.clone(),
            resource_version: request.metadata.resource_version.clone(),
        };
        match api::delete(&self.requests(request), name(request), preconditions).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Executes a step that writes the request. Returns the request as written; `None` when the step does not apply.
    ///
    /// # Errors
    ///
    /// [`Error`] of the call; a conflict when the request has changed.
    pub async fn write(
        &self,
        request: &EvictionRequest,
        pod: Option<&Pod>,
        step: &Step,
    ) -> Result<Option<Arc<EvictionRequest>>, Error> {
        if let Step::CopyLabels(labels) = step {
            let patch = json!({"metadata": {"labels": labels}});
            let patched = merge_patch(&self.requests(request), name(request), &patch).await?;
            return Ok(Some(Arc::new(patched)));
        }
        let Some(after) = status::after_step(request, step, self.context.clock.now()) else {
            return Ok(None);
        };
        let written = self.write_status(request, &after).await?;
        self.publish_step(request, pod, step);
        Ok(Some(written))
    }

    async fn write_status(
        &self,
        request: &EvictionRequest,
        after: &EvictionRequestStatus,
    ) -> Result<Arc<EvictionRequest>, Error> {
        let resource_version = request.metadata.resource_version.as_deref();
        let Some(patch) = status_patch(resource_version, request.status.as_ref(), after) else {
            return Ok(Arc::new(request.clone()));
        };
        let patched = merge_patch_status(&self.requests(request), name(request), &patch).await;
        if patched.as_ref().is_err_and(Error::is_invalid) {
            self.context
                .metrics
                .count_invalid_status_write("evictionrequests");
        }
        Ok(Arc::new(patched?))
    }

    /// Writes the status that `change` returns, and writes nothing when it returns `None`. After a write conflict it is
    /// called again with the current request. The server accepts only times close to its own, so `change` must take the
    /// time itself.
    ///
    /// # Errors
    ///
    /// [`Error`] of a call.
    pub async fn update_status(
        &self,
        request: &EvictionRequest,
        change: impl Fn(&EvictionRequest) -> Option<EvictionRequestStatus>,
    ) -> Result<Arc<EvictionRequest>, Error> {
        let mut current = Arc::new(request.clone());
        let mut conflicts = 0;
        loop {
            let Some(after) = change(&current) else {
                return Ok(current);
            };
            match self.write_status(&current, &after).await {
                Err(error) if error.is_conflict() && conflicts < CONFLICT_RETRIES => {
                    conflicts += 1;
                    current = Arc::new(call(self.requests(request).get(name(request))).await?);
                }
                written => return written,
            }
        }
    }

    /// Calls the eviction API and writes the result to the request's status. `previous` is the last attempt.
    pub async fn evict(
        &self,
        request: &EvictionRequest,
        pod: &Pod,
        budgets: &[Budget],
        previous: Option<Attempt>,
    ) -> EvictionOutcome {
        let response = self.post_eviction(pod).await;
        // Admission webhooks may take long. Times in the status must be close to those of its write.
        let mut attempt = Attempt {
            at: self.context.clock.now(),
            is_accepted: response.is_ok(),
            retry_after: None,
            is_blocked_by_budget: false,
            unrecorded: 0,
        };
        let rejection = match response {
            Ok(()) => None,
            Err(error) if self.is_pod_gone(pod, &error).await => {
                let written = Ok(None);
                return EvictionOutcome { attempt, written };
            }
            Err(error) => Some(Rejection::from_error(&error, budgets)),
        };
        let now = || self.context.clock.now();
        let written = if let Some(rejection) = rejection {
            attempt.retry_after = rejection.retry_after;
            attempt.is_blocked_by_budget = rejection.is_by_budget;
            self.context.metrics.count_eviction(rejection.result);
            let note = format!("Could not evict pod {}: {}.", pod.name(), rejection.why);
            let content = EventContent::warning("EvictionBlocked", "Evict", note);
            self.publish(request, Some(pod), &content);
            let after = |request: &_| status::after_rejected(request, &rejection.why, now());
            self.update_status(request, after).await
        } else {
            self.context.metrics.count_eviction("accepted");
            let note = format!(
                "Evicted pod {} for eviction request {}.",
                pod.name(),
                name(request)
            );
            let content = EventContent::normal("Evicted", "Evict", note);
            self.publish(request, Some(pod), &content);
            let after = |request: &_| status::after_accepted(request, now());
            self.update_status(request, after).await
        };
        if written.is_err() {
            let unrecorded = previous.map_or(0, |previous| previous.unrecorded);
            attempt.unrecorded = unrecorded.saturating_add(1);
        }
        EvictionOutcome {
            attempt,
            written: written.map(Some),
        }
    }

    /// Whether the eviction failed because the pod is gone: deleted, or replaced by another one of its name. A conflict
    /// has other causes than the precondition on the UID, so the API is asked.
    async fn is_pod_gone(&self, pod: &Pod, error: &Error) -> bool {
        if !error.is_not_found() && !error.is_conflict() {
            return false;
        }
        let pods: Api<Pod> = Api::namespaced(self.context.clients.host.clone(), pod.namespace());
        match call(pods.get_opt(pod.name())).await {
            Ok(Some(current)) => current.uid() != pod.uid(),
            Ok(None) => true,
            Err(_) => false,
        }
    }

    async fn post_eviction(&self, pod: &Pod) -> Result<(), Error> {
        let eviction = Eviction {
            metadata: ObjectMeta {
                name: pod.metadata.name.clone(),
                namespace: pod.metadata.namespace.clone(),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                preconditions: Some(Preconditions {
                    uid: pod.metadata.uid.clone(),
                    resource_version: None,
                }),
                ..DeleteOptions::default()
            }),
        };
        let pods: Api<Pod> = Api::namespaced(self.context.clients.host.clone(), pod.namespace());
        api::create_subresource(&pods, "eviction", pod.name(), &eviction).await
    }

    /// Publishes an Event about the request, and about the pod where given.
    fn publish(&self, request: &EvictionRequest, pod: Option<&Pod>, content: &EventContent) {
        if let Some(pod) = pod {
            self.context
                .events
                .publish(&object_reference(pod), content.clone());
        }
        self.context
            .events
            .publish(&object_reference(request), content.clone());
    }

    /// Publishes the Events of a warning.
    pub fn publish_warning(&self, request: &EvictionRequest, pod: Option<&Pod>, warning: &RequestWarning) {
        match warning {
            RequestWarning::Unresponsive(interceptor) => {
                let note = format!("Interceptor {interceptor} has sent no heartbeat since it was activated.");
                let content = EventContent::warning("Unresponsive", "Intercept", note);
                self.publish(request, None, &content);
            }
            RequestWarning::SkippedDeclarations(declarations) => {
                for declaration in declarations {
                    let note = format!("Skipped {declaration}.");
                    let content = EventContent::warning("InvalidInterceptor", "Declare", note);
                    self.publish(request, pod, &content);
                }
            }
        }
    }

    fn publish_step(&self, request: &EvictionRequest, pod: Option<&Pod>, step: &Step) {
        match step {
            Step::Finish { reason, message } => {
                let content = match reason {
                    FinishReason::PodDeleted => EventContent::normal("PodDeleted", "Finish", message),
                    FinishReason::PodTerminal => EventContent::normal("PodTerminal", "Finish", message),
                    FinishReason::NoRequesters => EventContent::normal("NoRequesters", "Cancel", message),
                    FinishReason::ValidationFailed => {
                        EventContent::warning("ValidationFailed", "Cancel", message)
                    }
                };
                self.publish(request, pod, &content);
            }
            Step::Activate { index, reason } => {
                self.publish(request, None, &activation(request, *index, *reason));
            }
            Step::RecordExemption(exemption) => {
                let content = EventContent::warning("EvictionBlocked", "Evict", exemption.message());
                self.publish(request, None, &content);
            }
            _ => {}
        }
    }
}

/// The Event about the activation of an interceptor.
fn activation(request: &EvictionRequest, index: usize, reason: ActivationReason) -> EventContent {
    let status = request.status.as_ref();
    let next = status
        .and_then(|status| status.target_interceptors.get(index))
        .map_or("", |next| next.name.as_str());
    let previous = status
        .and_then(|status| status.active_interceptors.first())
        .map_or("", String::as_str);
    match reason {
        ActivationReason::First => {
            let note = format!("Interceptor {next} is activated first.");
            EventContent::normal("InterceptorActivated", "Activate", note)
        }
        ActivationReason::PreviousCompleted => {
            let note = format!("Interceptor {previous} has completed; {next} is next.");
            EventContent::normal("InterceptorActivated", "Activate", note)
        }
        ActivationReason::PreviousTimedOut => {
            let note = format!("Interceptor {previous} missed its heartbeat deadline; {next} is next.");
            EventContent::warning("InterceptorPassedOver", "Activate", note)
        }
    }
}

/// A rejection by the eviction API, or a failure of the call.
struct Rejection {
    why: String,
    /// The result as the metric names it.
    result: &'static str,
    retry_after: Option<Duration>,
    is_by_budget: bool,
}

impl Rejection {
    fn from_error(error: &Error, budgets: &[Budget]) -> Self {
        let Some(status) = error.status() else {
            let cause = error.cause().map(|cause| format!(": {cause}"));
            return Self {
                why: format!("{error}{}", cause.unwrap_or_default()),
                result: "failed",
                retry_after: None,
                is_by_budget: false,
            };
        };
        let details = status.details.as_ref();
        let causes = details
            .map(|details| details.causes.as_slice())
            .unwrap_or_default();
        let is_by_budget = causes.iter().any(|cause| cause.reason == "DisruptionBudget")
            || (status.code == 429 && !budgets.is_empty())
            || (status.code == 500 && budgets.len() > 1);
        let blocking: Vec<&str> = budgets
            .iter()
            .filter(|budget| budget.disruptions_allowed <= 0 || budgets.len() > 1)
            .map(|budget| budget.name.as_str())
            .collect();
        let why = if is_by_budget && !blocking.is_empty() {
            rejection::budgets(&blocking)
        } else {
            let causes: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
            let text = format!("{} {}", status.message, causes.join(" "));
            let text = text.trim().trim_end_matches('.');
            if text.is_empty() {
                format!("the API responded with code {}", status.code)
            } else {
                text.to_owned()
            }
        };
        let result = match status.code {
            _ if is_by_budget => "budget",
            401 | 503 | 504 => "failed",
            _ => "refused",
        };
        let seconds = details.map_or(0, |details| details.retry_after_seconds);
        let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        Self {
            why,
            result,
            retry_after,
            is_by_budget,
        }
    }
}

fn name(request: &EvictionRequest) -> &str {
    request.metadata.name.as_deref().unwrap_or_default()
}
