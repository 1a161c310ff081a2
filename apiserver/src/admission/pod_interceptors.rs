//! The interceptors of a pod when its request is created in an older version: the order that the controller would determine.
//!
//! Where the controller would not store an order, or this server cannot tell it, there is none, and the controller decides:
//! for pods of a group, for too many interceptors, and for rules that cannot be evaluated.

mod compiled;

use std::borrow::Cow;
use std::collections::BTreeMap;

use drydock_machinery::interceptors::rule::Rule;
use drydock_machinery::interceptors::{RuleSource, Sources, order as merge};
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace as KubeNamespace;
use serde_json::Value;
use tokio::sync::Semaphore;

use self::compiled::CompiledRules;
use super::namespace_lifecycle::namespace_not_read;
use crate::error::ApiError;
use crate::host::{FollowedKind, Host, HostEvent, Namespace, Versions};

/// The annotation of a mirror pod, which represents a static pod.
const MIRROR_ANNOTATION: &str = "/metadata/annotations/kubernetes.io~1config.mirror";

/// How many creates evaluate conditions at a time. An evaluation goes on, and keeps its place, when its request has ended.
static EVALUATIONS: Semaphore = Semaphore::const_new(4);
/// The rules with conditions that creates have compiled. A pod seldom matches more.
static COMPILED: CompiledRules = CompiledRules::new(256);

/// The rules that register interceptors, and the names that these may have.
pub trait InterceptorRules: Send + Sync {
    /// All EvictionInterceptor objects.
    ///
    /// # Errors
    /// They cannot be read.
    fn all(&self) -> BoxFuture<'_, Result<Vec<EvictionInterceptor>, ApiError>>;

    /// The reserved names that interceptors may have.
    fn names(&self) -> &AllowedNames;
}

/// The order of the interceptors of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PodInterceptors {
    /// The first one acts first.
    pub(super) names: Vec<String>,
    /// Declarations that are skipped, and why.
    pub(super) skipped: Vec<String>,
}

/// The order of the pod's interceptors; `None` if the controller has to decide.
///
/// # Errors
/// The rules cannot be read, or the host cannot be asked.
pub(super) async fn order(
    host: &dyn Host,
    rules: &dyn InterceptorRules,
    namespace: &str,
    pod: &Value,
) -> Result<Option<PodInterceptors>, ApiError> {
    if is_grouped(pod) {
        return Ok(None);
    }
    let Some(matching) = matching(host, rules, namespace, pod).await? else {
        return Ok(None);
    };
    let annotations = strings(pod, "/metadata/annotations");
    let order = merge(
        &Sources {
            eviction_interceptors: named(pod, "/spec/evictionInterceptors"),
            eviction_responders: named(pod, "/spec/evictionResponders"),
            annotations: &annotations,
            rules: matching.iter().map(RuleSource::from).collect(),
            has_daemon_set: has_daemon_set(pod),
        },
        rules.names(),
    );
    if order.excess.is_some() {
        return Ok(None);
    }
    let names = order.interceptors.into_iter().map(|interceptor| interceptor.name);
    Ok(Some(PodInterceptors {
        names: names.collect(),
        skipped: order.skipped,
    }))
}

/// The event about a declaration that is skipped, as the controller records it.
pub(super) fn skipped_event(pod: &Value, skipped: &str) -> HostEvent {
    HostEvent {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: text(pod, "/metadata/namespace"),
        name: text(pod, "/metadata/name"),
        uid: text(pod, "/metadata/uid"),
        warning: true,
        reason: "InvalidInterceptor".to_owned(),
        action: "Declare".to_owned(),
        note: format!("Skipped {skipped}.").chars().take(1_000).collect(),
    }
}

/// The objects whose rules match the pod; `None` if that cannot be told of one.
async fn matching(
    host: &dyn Host,
    rules: &dyn InterceptorRules,
    namespace: &str,
    pod: &Value,
) -> Result<Option<Vec<EvictionInterceptor>>, ApiError> {
    let labels = strings(pod, "/metadata/labels");
    let mut selected = Vec::new();
    let mut known = None;
    for object in rules.all().await? {
        if known.is_none() {
            known = Some(labelled_namespace(host, namespace).await?);
        }
        let Ok(selectors) = Rule::selectors(&object) else {
            return Ok(None);
        };
        if selectors.selects(known.as_ref(), &labels) {
            selected.push(object);
        }
    }
    if selected
        .iter()
        .all(|object| object.spec.match_conditions.is_empty())
    {
        return Ok(Some(selected));
    }
    let Some(namespace) = complete_namespace(host, namespace).await? else {
        return Ok(None);
    };
    let pod = pod.clone();
    let failed = "the conditions of interceptors could not be evaluated";
    let place = EVALUATIONS.acquire().await;
    let place = place.map_err(|error| ApiError::internal(failed).because(error))?;
    // Evaluating conditions takes milliseconds, and so does compiling them the first time.
    let evaluated = tokio::task::spawn_blocking(move || {
        let _place = place;
        holding(selected, &pod, &namespace)
    });
    evaluated
        .await
        .map_err(|error| ApiError::internal(failed).because(error))
}

/// The objects whose conditions hold; `None` if that cannot be told of one.
fn holding(
    objects: Vec<EvictionInterceptor>,
    pod: &Value,
    namespace: &KubeNamespace,
) -> Option<Vec<EvictionInterceptor>> {
    let mut held = Vec::new();
    for object in objects {
        let rule = COMPILED.of(&object).ok()?;
        if rule.conditions_hold(pod, Some(namespace)).ok()? {
            held.push(object);
        }
    }
    Some(held)
}

/// The namespace with its labels, from the cache.
async fn labelled_namespace(host: &dyn Host, name: &str) -> Result<KubeNamespace, ApiError> {
    let labels = match host.namespace(name).await {
        Ok(Namespace::Active(labels) | Namespace::Terminating(labels)) => BTreeMap::clone(&labels),
        Ok(Namespace::Missing) => BTreeMap::new(),
        Err(error) => return Err(namespace_not_read(error)),
    };
    let mut namespace = KubeNamespace::default();
    namespace.metadata.name = Some(name.to_owned());
    namespace.metadata.labels = Some(labels);
    Ok(namespace)
}

/// The namespace as conditions see it; `None` if the host has no complete one.
async fn complete_namespace(host: &dyn Host, name: &str) -> Result<Option<KubeNamespace>, ApiError> {
    let kind = FollowedKind {
        group: Cow::Borrowed(""),
        resource: Cow::Borrowed("namespaces"),
        kind: Cow::Borrowed("Namespace"),
        versions: Versions::Known(&["v1"]),
    };
    let object = host.read(&kind, "", name).await.map_err(namespace_not_read)?;
    Ok(object.and_then(|object| serde_json::from_value(object).ok()))
}

/// Whether the pod belongs to a Workload or `PodGroup`, whose pods are not evicted one by one.
fn is_grouped(pod: &Value) -> bool {
    ["/spec/workloadRef", "/spec/schedulingGroup"]
        .iter()
        .any(|pointer| pod.pointer(pointer).is_some_and(|value| !value.is_null()))
}

/// Whether a DaemonSet controls the pod, and it is no static pod.
fn has_daemon_set(pod: &Value) -> bool {
    let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let is_controller = |owner: &&Value| owner.get("controller").and_then(Value::as_bool) == Some(true);
    let controller = owners.into_iter().flatten().find(is_controller);
    pod.pointer(MIRROR_ANNOTATION).is_none()
        && controller.is_some_and(|owner| text(owner, "/kind") == "DaemonSet")
}

fn text(object: &Value, pointer: &str) -> String {
    let text = object.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

/// The members of a map of strings.
fn strings(object: &Value, pointer: &str) -> BTreeMap<String, String> {
    let members = object.pointer(pointer).and_then(Value::as_object);
    let members = members.into_iter().flatten();
    members
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The names in a list of references.
fn named<'a>(object: &'a Value, pointer: &str) -> Vec<&'a str> {
    let references = object.pointer(pointer).and_then(Value::as_array);
    let references = references.into_iter().flatten();
    references
        .filter_map(|reference| reference.get("name")?.as_str())
        .collect()
}
