//! How is a step carried out? Writes to the request, evictions of its pod, and what people are told. Every write
//! is conditional on what was seen, so that doing a step twice is harmless.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::Clock;
use drydock_proto::kinds::evictionrequest::{EvictionRequest, EvictionRequestStatus};
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::decide::{Attempt, Budget, End, Notice, Passing, Step};
use super::status;
use crate::api::{Clients, Error, call, status_patch};
use crate::events::{self, Events};
use crate::metrics::Metrics;
use crate::pod::Pod;

/// How often a write is tried again when others change the request at the same time.
const CONFLICTS: usize = 5;

/// What came of an eviction.
#[derive(Debug)]
pub enum Evicted {
    /// The API was asked: the request now, and the attempt to remember.
    Tried(Arc<EvictionRequest>, Attempt),
    /// There is nothing to evict any more.
    Gone,
}

/// Carries steps out.
#[derive(Debug, Clone)]
pub struct Actor {
    clients: Clients,
    events: Events,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
}

impl Actor {
    /// An actor on these APIs.
    #[must_use]
    pub fn new(clients: Clients, events: Events, metrics: Metrics, clock: Arc<dyn Clock>) -> Self {
        Self {
            clients,
            events,
            metrics,
            clock,
        }
    }

    fn requests(&self, request: &EvictionRequest) -> Api<EvictionRequest> {
        let namespace = request.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.clients.ours.clone(), namespace)
    }

    /// Deletes the finished request, if it is still as it was seen.
    ///
    /// # Errors
    ///
    /// What became of the call.
    pub async fn collect(&self, request: &EvictionRequest) -> Result<(), Error> {
        let parameters = DeleteParams::default().preconditions(kube::api::Preconditions {
            uid: request.metadata.uid.clone(),
            resource_version: request.metadata.resource_version.clone(),
        });
        match call(self.requests(request).delete(name(request), &parameters)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Carries out a step that writes to the request, and yields the request as it is then.
    ///
    /// # Errors
    ///
    /// What became of the call; a conflict when the request is not as it was seen.
    pub async fn write(
        &self,
        request: &EvictionRequest,
        pod: Option<&Pod>,
        step: &Step,
    ) -> Result<Option<Arc<EvictionRequest>>, Error> {
        if let Step::CopyLabels(labels) = step {
            let patch = json!({"metadata": {"labels": labels}});
            let api = self.requests(request);
            let patched =
                call(api.patch(name(request), &PatchParams::default(), &Patch::Merge(&patch))).await?;
            return Ok(Some(Arc::new(patched)));
        }
        let Some(after) = status::after(request, step, self.clock.now()) else {
            return Ok(None);
        };
        let written = self.write_status(request, &after).await?;
        self.tell_step(request, pod, step);
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
        let api = self.requests(request);
        let patched =
            call(api.patch_status(name(request), &PatchParams::default(), &Patch::Merge(&patch))).await?;
        Ok(Arc::new(patched))
    }

    /// Writes what `change` makes of the request's status, and tries again on newer states of it when others write
    /// at the same time. Nothing is written when `change` yields nothing.
    ///
    /// # Errors
    ///
    /// What became of the calls.
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
                Err(error) if error.is_conflict() && conflicts < CONFLICTS => {
                    conflicts += 1;
                    current = Arc::new(call(self.requests(request).get(name(request))).await?);
                }
                written => return written,
            }
        }
    }

    /// Calls the eviction API and writes down what it said.
    ///
    /// # Errors
    ///
    /// What became of the calls. A refusal by the eviction API is not an error.
    pub async fn evict(
        &self,
        request: &EvictionRequest,
        pod: &Pod,
        budgets: &[Budget],
    ) -> Result<Evicted, Error> {
        let at = self.clock.now();
        let refusal = match self.post_eviction(pod).await {
            Ok(()) => {
                self.metrics.evicted("accepted");
                let note = format!(
                    "Evicted pod {} for eviction request {}.",
                    pod.name(),
                    name(request)
                );
                let notice = events::Notice::normal("Evicted", "Evict", note);
                self.events.say(&events::reference(pod), notice.clone());
                self.events.say(&events::reference(request), notice);
                let written = self
                    .update_status(request, |request| status::after_accepted(request, at))
                    .await?;
                return Ok(Evicted::Tried(written, attempt(at, None, false)));
            }
            // Not found, or another pod of that name: the uid is a precondition.
            Err(error) if error.is_not_found() || error.is_conflict() => return Ok(Evicted::Gone),
            Err(error) => Refusal::of(error, budgets)?,
        };
        self.metrics
            .evicted(if refusal.is_by_budget { "budget" } else { "refused" });
        let note = format!("Could not evict pod {}: {}.", pod.name(), refusal.why);
        let notice = events::Notice::warning("EvictionBlocked", "Evict", note);
        self.events.say(&events::reference(pod), notice.clone());
        self.events.say(&events::reference(request), notice);
        let written = self
            .update_status(request, |request| {
                status::after_refused(request, &refusal.why, at)
            })
            .await?;
        Ok(Evicted::Tried(
            written,
            attempt(at, refusal.retry_after, refusal.is_by_budget),
        ))
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
        let pods: Api<Pod> = Api::namespaced(self.clients.host.clone(), pod.namespace());
        let parameters = PostParams::default();
        call::<Value>(pods.create_subresource("eviction", pod.name(), &parameters, &eviction)).await?;
        Ok(())
    }

    /// Tells people what a decision noticed besides.
    pub fn tell(&self, request: &EvictionRequest, pod: Option<&Pod>, notice: &Notice) {
        let about = events::reference(request);
        match notice {
            Notice::Unresponsive(interceptor) => {
                let note = format!("Interceptor {interceptor} has not reported since it was activated.");
                self.events
                    .say(&about, events::Notice::warning("Unresponsive", "Intercept", note));
            }
            Notice::Faults(faults) => {
                for fault in faults {
                    let notice =
                        events::Notice::warning("InvalidInterceptor", "Declare", format!("Skipped {fault}."));
                    if let Some(pod) = pod {
                        self.events.say(&events::reference(pod), notice.clone());
                    }
                    self.events.say(&about, notice);
                }
            }
        }
    }

    fn tell_step(&self, request: &EvictionRequest, pod: Option<&Pod>, step: &Step) {
        let about = events::reference(request);
        let active = request
            .status
            .as_ref()
            .and_then(|status| status.active_interceptors.first());
        match step {
            Step::Finish { end, message } => {
                let notice = match end {
                    End::PodDeleted => events::Notice::normal("PodDeleted", "Finish", message),
                    End::PodTerminal => events::Notice::normal("PodTerminal", "Finish", message),
                    End::NoRequesters => events::Notice::normal("NoRequesters", "Cancel", message),
                    End::ValidationFailed => events::Notice::warning("ValidationFailed", "Cancel", message),
                };
                if let Some(pod) = pod {
                    self.events.say(&events::reference(pod), notice.clone());
                }
                self.events.say(&about, notice);
            }
            Step::Activate { index, because } => {
                let status = request.status.as_ref();
                let next = status.and_then(|status| status.target_interceptors.get(*index));
                let next = next.map_or("", |next| next.name.as_str());
                let mut note = String::new();
                let written = match (because, active) {
                    (Some(Passing::Completed), Some(before)) => {
                        write!(note, "Interceptor {before} has completed; {next} is next.")
                    }
                    (Some(Passing::Silent), Some(before)) => {
                        write!(
                            note,
                            "Interceptor {before} is passed over for its silence; {next} is next."
                        )
                    }
                    _ => write!(note, "Interceptor {next} is the first."),
                };
                debug_assert!(written.is_ok(), "writing to a String does not fail");
                let notice = match because {
                    Some(Passing::Silent) => {
                        events::Notice::warning("InterceptorPassedOver", "Activate", note)
                    }
                    _ => events::Notice::normal("InterceptorActivated", "Activate", note),
                };
                self.events.say(&about, notice);
            }
            Step::NoteNeverEvict(never) => {
                self.events.say(
                    &about,
                    events::Notice::warning("EvictionBlocked", "Evict", never.message()),
                );
            }
            _ => {}
        }
    }
}

/// A refusal of the eviction API.
struct Refusal {
    why: String,
    retry_after: Option<Duration>,
    is_by_budget: bool,
}

impl Refusal {
    /// The refusal, or the error where the API was not able to decide.
    fn of(error: Error, budgets: &[Budget]) -> Result<Self, Error> {
        let Some(status) = error.status() else {
            return Err(error);
        };
        // Who may not evict at all will not by trying more; that is for the log and the operator.
        if matches!(status.code, 401 | 503 | 504) {
            return Err(error);
        }
        let details = status.details.as_ref();
        let causes = details
            .map(|details| details.causes.as_slice())
            .unwrap_or_default();
        let is_by_budget = causes.iter().any(|cause| cause.reason == "DisruptionBudget")
            || (status.code == 429 && !budgets.is_empty())
            || (status.code == 500 && budgets.len() > 1);
        let blocking: Vec<&str> = budgets
            .iter()
            .filter(|budget| budget.allowed <= 0 || budgets.len() > 1)
            .map(|budget| budget.name.as_str())
            .collect();
        let why = if is_by_budget && !blocking.is_empty() {
            format!("blocked by PodDisruptionBudget {}", blocking.join(", "))
        } else {
            let causes: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
            let said = format!("{} {}", status.message, causes.join(" "));
            said.trim().trim_end_matches('.').to_owned()
        };
        let seconds = details.map_or(0, |details| details.retry_after_seconds);
        let retry_after = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        Ok(Self {
            why,
            retry_after,
            is_by_budget,
        })
    }
}

fn attempt(at: Timestamp, retry_after: Option<Duration>, blocked_by_budget: bool) -> Attempt {
    Attempt {
        at,
        retry_after,
        blocked_by_budget,
    }
}

fn name(request: &EvictionRequest) -> &str {
    request.metadata.name.as_deref().unwrap_or_default()
}
