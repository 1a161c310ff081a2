//! Writes the requests of pods: the maintenance requester joins and leaves them by server-side apply, so that the
//! requesters of others are never part of a write.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use drydock_proto::kinds::evictionrequest::{EvictionRequest, NODE_MAINTENANCE_REQUESTER};
use kube::api::Preconditions;
use kube::{Api, Resource};
use serde_json::{Value, json};

use crate::api::{self, Error, call, merge_patch};
use crate::context::Context;
use crate::nodemaintenance::model::{Obstacle, PodFacts, RequestAction, RequestFacts};
use crate::nodemaintenance::replacement::REPLACED_ANNOTATION;
use crate::nodemaintenance::successor::{KEPT_SECONDS, Origin, SUCCESSOR_ANNOTATION};
use crate::request_labels::{self, RequestLabels};
use crate::sync::lock;

/// The name under which the fields are owned.
const FIELD_MANAGER: &str = NODE_MAINTENANCE_REQUESTER;
/// How many entries of its memory are kept at most.
const MAX_REMEMBERED: usize = 100_000;

/// Writes requests.
#[derive(Debug)]
pub(super) struct Requester {
    context: Arc<Context>,
    memory: Mutex<Memory>,
}

/// What saves calls and explains failures. Losing it changes no decision except that replacements are counted anew.
#[derive(Debug, Default)]
struct Memory {
    /// By the UID of the pod: how many requests the next one replaces.
    replaced: HashMap<String, u32>,
    /// By the UID of the pod: why its request could not be written.
    refused: HashMap<String, Obstacle>,
}

/// What the write of a request did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// The pod is requested to leave.
    Requested,
    /// The pod is no longer requested to leave.
    Withdrawn,
    /// The old request is gone, and a new one can be created.
    Deleted,
    /// Nothing: there was nothing to do.
    Nothing,
}

impl Requester {
    /// A writer.
    #[must_use]
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            memory: Mutex::default(),
        }
    }

    /// Why requests could not be written, by the UID of their pod.
    #[must_use]
    pub(super) fn refusals(&self) -> HashMap<String, Obstacle> {
        lock(&self.memory).refused.clone()
    }

    /// Writes the request of the pod on the node of this name. `request` is the observed one.
    ///
    /// # Errors
    ///
    /// [`Error`] of a call.
    pub(super) async fn write(
        &self,
        node: &str,
        pod: &PodFacts,
        request: Option<&RequestFacts>,
        action: RequestAction,
    ) -> Result<Written, Error> {
        let written = self.try_write(node, pod, request, action).await;
        let mut memory = lock(&self.memory);
        match &written {
            Err(error) => {
                if let Some((reason, message)) = refusal(error) {
                    if memory.refused.len() >= MAX_REMEMBERED {
                        memory.refused.clear();
                    }
                    let now = self.context.clock.now();
                    let known = memory
                        .refused
                        .get(&pod.uid)
                        .filter(|known| known.reason == reason);
                    let since = known.map_or(now, |known| known.since);
                    let obstacle = Obstacle {
                        since,
                        reason: reason.to_owned(),
                        message,
                    };
                    memory.refused.insert(pod.uid.clone(), obstacle);
                }
            }
            Ok(written) => {
                memory.refused.remove(&pod.uid);
                if *written == Written::Requested {
                    memory.replaced.remove(&pod.uid);
                }
            }
        }
        written
    }

    /// Forgets pods that are gone. `is_known` tells whether a pod with this UID is still of interest.
    pub(super) fn forget(&self, is_known: impl Fn(&str) -> bool) {
        let mut memory = lock(&self.memory);
        memory.refused.retain(|uid, _| is_known(uid));
        memory.replaced.retain(|uid, _| is_known(uid));
    }

    async fn try_write(
        &self,
        node: &str,
        pod: &PodFacts,
        request: Option<&RequestFacts>,
        action: RequestAction,
    ) -> Result<Written, Error> {
        let requests: Api<EvictionRequest> =
            Api::namespaced(self.context.clients.drydock.clone(), &pod.namespace);
        match action {
            RequestAction::Create { origin } => {
                let origin = origin.and_then(|is_first| origin_of(node, pod, is_first));
                self.create(&requests, pod, origin.as_deref()).await
            }
            RequestAction::Join { origin } => {
                let origin = origin.and_then(|is_first| origin_of(node, pod, is_first));
                let uid = request.map(|request| request.uid.as_str());
                let config = joining(pod, uid, origin.as_deref());
                api::apply(&requests, &pod.uid, FIELD_MANAGER, false, &config).await?;
                Ok(Written::Requested)
            }
            RequestAction::Withdraw => self.withdraw(&requests, pod, request).await,
            RequestAction::Replace { count } => self.replace(&requests, pod, count).await,
        }
    }

    /// Creates the request, or joins it when somebody else created it meanwhile.
    async fn create(
        &self,
        requests: &Api<EvictionRequest>,
        pod: &PodFacts,
        origin: Option<&str>,
    ) -> Result<Written, Error> {
        let replaced = lock(&self.memory).replaced.get(&pod.uid).copied();
        let config = complete(&self.context.labels, pod, origin, replaced, true);
        match api::apply(requests, &pod.uid, FIELD_MANAGER, false, &config).await {
            // Another requester created it with other labels or another TTL, which stay.
            Err(error) if error.is_conflict() => {
                let config = joining(pod, None, origin);
                api::apply(requests, &pod.uid, FIELD_MANAGER, false, &config).await?;
            }
            created => drop(created?),
        }
        Ok(Written::Requested)
    }

    /// Removes the maintenance requester.
    async fn withdraw(
        &self,
        requests: &Api<EvictionRequest>,
        pod: &PodFacts,
        request: Option<&RequestFacts>,
    ) -> Result<Written, Error> {
        // An apply removes what this manager owned alone and leaves out. The UID keeps it from creating the request.
        let mut config = if request.is_some_and(|request| request.is_created_by_maintenance) {
            complete(&self.context.labels, pod, None, None, false)
        } else {
            described(pod)
        };
        if let (Some(request), Some(metadata)) = (request, config.get_mut("metadata")) {
            metadata["uid"] = json!(request.uid);
        }
        let mut left: EvictionRequest = api::apply(requests, &pod.uid, FIELD_MANAGER, true, &config).await?;
        let is_listed = |request: &EvictionRequest| {
            let mut names = request.spec.requesters.iter();
            names.any(|requester| requester.name == NODE_MAINTENANCE_REQUESTER)
        };
        if is_listed(&left) && !left.is_finished() {
            // Somebody else, such as an earlier release, owns the entry too.
            left.spec
                .requesters
                .retain(|requester| requester.name != NODE_MAINTENANCE_REQUESTER);
            let patch = json!({
                "metadata": { "resourceVersion": left.metadata.resource_version },
                "spec": { "requesters": left.spec.requesters },
            });
            merge_patch(requests, &pod.uid, &patch).await?;
        }
        Ok(Written::Withdrawn)
    }

    /// Deletes a request that ended without its pod.
    async fn replace(
        &self,
        requests: &Api<EvictionRequest>,
        pod: &PodFacts,
        count: u32,
    ) -> Result<Written, Error> {
        let request = call(requests.get_opt(&pod.uid)).await?;
        let Some(request) = request.filter(EvictionRequest::is_finished) else {
            return Ok(Written::Nothing);
        };
        let preconditions = Preconditions {
            uid: request.metadata.uid,
            resource_version: request.metadata.resource_version,
        };
        api::delete(requests, &pod.uid, preconditions).await?;
        let mut memory = lock(&self.memory);
        if memory.replaced.len() >= MAX_REMEMBERED {
            memory.replaced.clear();
        }
        memory.replaced.insert(pod.uid.clone(), count);
        Ok(Written::Deleted)
    }
}

/// The reason and the message of a blocker for an error of the API. `None` when the API did not decide, or when
/// somebody else wrote the request meanwhile.
fn refusal(error: &Error) -> Option<(&'static str, String)> {
    let status = error.status()?;
    if error.is_conflict() || error.is_not_found() {
        return None;
    }
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    let reason = if causes.any(|cause| cause.reason == "NamespaceTerminating") {
        "NamespaceTerminating"
    } else if status.code == 429 {
        "Throttled"
    } else {
        "RequestRefused"
    };
    Some((reason, format!("The eviction request was refused: {error}")))
}

/// The request of the pod with its target, for an apply.
fn described(pod: &PodFacts) -> Value {
    json!({
        "apiVersion": EvictionRequest::api_version(&()),
        "kind": EvictionRequest::kind(&()),
        "metadata": { "name": pod.uid, "namespace": pod.namespace },
        "spec": { "target": { "pod": { "name": pod.name, "uid": pod.uid } } },
    })
}

/// Everything that a request has which was created for a maintenance. With the pod's labels, which saves a write.
fn complete(
    rules: &RequestLabels,
    pod: &PodFacts,
    origin: Option<&str>,
    replaced: Option<u32>,
    is_requested: bool,
) -> Value {
    let mut config = described(pod);
    let labels = rules.of_pod(&pod.labels);
    let mut annotations = request_labels::annotations();
    annotations.extend(origin.map(|origin| (SUCCESSOR_ANNOTATION.to_owned(), origin.to_owned())));
    annotations.extend(replaced.map(|count| (REPLACED_ANNOTATION.to_owned(), count.to_string())));
    if let Some(metadata) = config.get_mut("metadata") {
        if !labels.is_empty() {
            metadata["labels"] = json!(labels);
        }
        metadata["annotations"] = json!(annotations);
    }
    if let Some(spec) = config.get_mut("spec") {
        if is_requested {
            spec["requesters"] = json!([{ "name": NODE_MAINTENANCE_REQUESTER }]);
        }
        if origin.is_some() {
            spec["ttlSecondsAfterFinished"] = json!(KEPT_SECONDS);
        }
    }
    config
}

/// The maintenance requester alone. With the UID of the request, it is never created.
fn joining(pod: &PodFacts, uid: Option<&str>, origin: Option<&str>) -> Value {
    let mut config = described(pod);
    if let Some(metadata) = config.get_mut("metadata") {
        if let Some(uid) = uid {
            metadata["uid"] = json!(uid);
        }
        if let Some(origin) = origin {
            metadata["annotations"] = json!({ SUCCESSOR_ANNOTATION: origin });
        }
    }
    if let Some(spec) = config.get_mut("spec") {
        spec["requesters"] = json!([{ "name": NODE_MAINTENANCE_REQUESTER }]);
    }
    config
}

/// The origin of a pod that may come back, as the value of its annotation; `None` without a controller.
fn origin_of(node: &str, pod: &PodFacts, is_first: bool) -> Option<String> {
    let controller = pod.controller.as_ref()?;
    let origin = Origin {
        node: node.to_owned(),
        kind: controller.kind.clone(),
        name: controller.name.clone(),
        uid: controller.uid.clone(),
        is_first,
    };
    serde_json::to_string(&origin).ok()
}

/// The requests for maintenances that somebody deleted before they were finished, by their name. They are renewed, and
/// people are told.
#[derive(Debug, Default)]
pub struct DeletedRequests(Mutex<HashSet<String>>);

impl DeletedRequests {
    /// An unfinished request of this name was deleted.
    pub fn add(&self, name: &str) {
        let mut deleted = lock(&self.0);
        if deleted.len() >= MAX_REMEMBERED {
            deleted.clear();
        }
        deleted.insert(name.to_owned());
    }

    /// Whether the request of this name was deleted. Forgets it.
    #[must_use]
    pub fn take(&self, name: &str) -> bool {
        lock(&self.0).remove(name)
    }
}
