//! Executes steps: writes of the request, evictions of its pod, and Events. Executing a step twice is harmless: status
//! writes and deletes have the observed resource version as a precondition, evictions the UID of the pod. An eviction is
//! posted only after [`RequestWriter::write`] has written its intent.

use std::sync::Arc;

use drydock_proto::kinds::evictionrequest::{EvictionRequest, EvictionRequestStatus};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use serde_json::{Map, json};

use super::blocked::Hold;
use super::budget::Known;
use super::decide::{ActivationReason, FinishReason, RequestWarning, Step};
use super::reason::Reason;
use super::refusal::Refusal;
use super::status;
use crate::api::{self, Error, StatusPatch, call, merge_patch, merge_patch_status, status_patch};
use crate::context::Context;
use crate::events::{EventContent, object_reference};
use crate::pod::Pod;

/// How often a status write is retried after a write conflict.
const CONFLICT_RETRIES: usize = 5;

/// The result of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictionOutcome {
    /// The API accepted it.
    Accepted,
    /// The pod does not exist any more.
    PodGone,
    /// The API refused it, or the call failed.
    Refused(Refusal),
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
        if let Step::CopyLabels { labels, annotations } = step {
            let mut metadata = Map::new();
            if !labels.is_empty() {
                metadata.insert("labels".to_owned(), json!(labels));
            }
            if !annotations.is_empty() {
                metadata.insert("annotations".to_owned(), json!(annotations));
            }
            let patch = json!({ "metadata": metadata });
            let patched = merge_patch(&self.requests(request), name(request), &patch).await?;
            return Ok(Some(Arc::new(patched)));
        }
        let Some(after) = status::after_step(request, step, self.context.clock.now()) else {
            return Ok(None);
        };
        let written = if step.evicts() {
            self.write_intent(request, &after).await?
        } else {
            self.write_status(request, &after).await?
        };
        self.publish_step(request, pod, step);
        Ok(Some(written))
    }

    /// Writes the status with the intent to evict. The write is sent in any case: it fails if the request has changed.
    async fn write_intent(
        &self,
        request: &EvictionRequest,
        after: &EvictionRequestStatus,
    ) -> Result<Arc<EvictionRequest>, Error> {
        let resource_version = request.metadata.resource_version.as_deref();
        let patch = status_patch(resource_version, request.status.as_ref(), after).unwrap_or_else(|| {
            StatusPatch::of_member(resource_version, "podEvictionStatus", &after.pod_eviction_status)
        });
        self.patch_status(request, &patch).await
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
        self.patch_status(request, &patch).await
    }

    async fn patch_status(
        &self,
        request: &EvictionRequest,
        patch: &StatusPatch,
    ) -> Result<Arc<EvictionRequest>, Error> {
        let patched = merge_patch_status(&self.requests(request), name(request), patch).await;
        if patched.as_ref().is_err_and(Error::is_invalid) {
            self.context
                .metrics
                .count_invalid_status_write("evictionrequests");
        }
        Ok(Arc::new(patched?))
    }

    /// Reads the request as it is now.
    ///
    /// # Errors
    ///
    /// [`Error`] of the call.
    pub async fn read(&self, request: &EvictionRequest) -> Result<Arc<EvictionRequest>, Error> {
        Ok(Arc::new(call(self.requests(request).get(name(request))).await?))
    }

    /// Writes the status that `change` returns. Writes nothing and returns `None` when it returns `None`. After a write conflict it is
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
    ) -> Result<Option<Arc<EvictionRequest>>, Error> {
        let mut current = Arc::new(request.clone());
        let mut conflicts = 0;
        loop {
            let Some(after) = change(&current) else {
                return Ok(None);
            };
            match self.write_status(&current, &after).await {
                Err(error) if error.is_conflict() && conflicts < CONFLICT_RETRIES => {
                    conflicts += 1;
                    current = self.read(request).await?;
                }
                written => return written.map(Some),
            }
        }
    }

    /// Calls the eviction API, and publishes the result. The intent must have been written before.
    pub async fn evict(&self, request: &EvictionRequest, pod: &Pod, budgets: Known<'_>) -> EvictionOutcome {
        let error = match self.post_eviction(pod).await {
            Ok(()) => {
                self.context.metrics.count_eviction("accepted");
                let note = format!(
                    "Evicted pod {} for eviction request {}.",
                    pod.name(),
                    name(request)
                );
                let content = EventContent::normal("Evicted", "Evict", note);
                self.publish(request, Some(pod), &content);
                return EvictionOutcome::Accepted;
            }
            Err(error) => error,
        };
        if self.is_pod_gone(pod, &error).await {
            return EvictionOutcome::PodGone;
        }
        let refusal = Refusal::from_error(&error, budgets);
        self.context.metrics.count_eviction(refusal.result);
        let note = format!("Could not evict pod {}: {}.", pod.name(), refusal.cause);
        let content = EventContent::warning("EvictionBlocked", "Evict", note);
        self.publish(request, Some(pod), &content);
        EvictionOutcome::Refused(refusal)
    }

    /// Whether the eviction failed because the pod is gone: deleted, or replaced by another one of its name. A conflict
    /// has other causes than the precondition on the UID, so the API is asked.
    async fn is_pod_gone(&self, pod: &Pod, error: &Error) -> bool {
        if !error
            .status()
            .is_some_and(|status| matches!(status.code, 404 | 409))
        {
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
            Step::Initialize { names, .. } => {
                let first = names.first().map_or("", String::as_str);
                self.publish(request, None, &first_activation(first));
            }
            Step::Activate { index, reason, .. } => {
                self.publish(request, None, &activation(request, *index, reason.as_ref()));
            }
            // The silence of an interceptor has an Event of its own.
            Step::RecordHold(Hold::By(blocked)) if blocked.reason != Reason::InterceptorSilent => {
                let content = EventContent::warning("EvictionBlocked", "Evict", &blocked.message);
                self.publish(request, None, &content);
            }
            _ => {}
        }
    }
}

fn first_activation(name: &str) -> EventContent {
    let note = format!("Interceptor {name} is activated first.");
    EventContent::normal("InterceptorActivated", "Activate", note)
}

/// The Event about the activation of an interceptor.
fn activation(request: &EvictionRequest, index: usize, reason: Option<&ActivationReason>) -> EventContent {
    let status = request.status.as_ref();
    let next = status
        .and_then(|status| status.target_interceptors.get(index))
        .map_or("", |next| next.name.as_str());
    let previous = status
        .and_then(|status| status.active_interceptors.first())
        .map_or("", String::as_str);
    match reason {
        None => first_activation(next),
        Some(ActivationReason::PreviousCompleted) => {
            let note = format!("Interceptor {previous} has completed; {next} is next.");
            EventContent::normal("InterceptorActivated", "Activate", note)
        }
        Some(ActivationReason::PreviousPassedOver { message, .. }) => {
            let note = format!("Interceptor {previous}: {message} Next is {next}.");
            EventContent::warning("InterceptorPassedOver", "Activate", note)
        }
    }
}

fn name(request: &EvictionRequest) -> &str {
    request.metadata.name.as_deref().unwrap_or_default()
}
