//! The rules of EvictionInterceptors, compiled once per generation, and which of them match a pod.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

pub use drydock_machinery::interceptors::rule::{InvalidRule, Rule};
use drydock_proto::kinds::evictioninterceptor::{EvictionInterceptor, InterceptorRole};
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

use crate::api::{Error, call};
use crate::pod::Pod;
use crate::stores::Stores;
use crate::sync::lock;

/// An interceptor that a rule registers for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchedInterceptor {
    /// Its name.
    pub name: String,
    /// Its priority, 0 to 100000.
    pub priority: i32,
    /// Whether it has the role `controller`.
    pub is_controller: bool,
}

/// The interceptors that rules register for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matching {
    /// These.
    Known(Vec<MatchedInterceptor>),
    /// It is unknown whether this rule matches. An interceptor is never skipped for that: the pod waits.
    Unknown(UnusableRule),
}

/// A rule of which it is unknown whether it matches a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("It is unknown whether EvictionInterceptor {name} matches the pod: {why}")]
pub struct UnusableRule {
    /// The name of the object.
    pub name: String,
    /// Why.
    pub why: String,
}

type Compiled = Arc<Result<Arc<Rule>, InvalidRule>>;

/// Compiled rules by the UID of their object, with the generation they were compiled from.
#[derive(Debug, Default)]
pub struct Rules {
    compiled: Mutex<HashMap<String, (Option<i64>, Compiled)>>,
}

impl Rules {
    /// The rule of the object. It is compiled when its generation is new.
    #[must_use]
    pub fn get_or_compile(&self, object: &EvictionInterceptor) -> Compiled {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let generation = object.metadata.generation;
        if let Some((known, rule)) = lock(&self.compiled).get(&uid)
            && *known == generation
        {
            return Arc::clone(rule);
        }
        let rule = Arc::new(Rule::compile(object).map(Arc::new));
        lock(&self.compiled).insert(uid, (generation, Arc::clone(&rule)));
        rule
    }

    /// Removes the rule of a deleted object.
    pub fn remove(&self, uid: &str) {
        lock(&self.compiled).remove(uid);
    }

    /// The interceptors whose rules match the pod. An error in a rule must not let a pod be evicted sooner, so that there
    /// is no answer while a rule is invalid, or cannot be evaluated for the pod.
    ///
    /// # Errors
    ///
    /// [`Error`] of reading the complete pod, which only rules with conditions need.
    pub async fn matching(&self, stores: &Stores, host: &Client, pod: &Pod) -> Result<Matching, Error> {
        let namespace = stores.namespaces.get("", pod.namespace());
        let mut complete_pod: Option<Arc<Value>> = None;
        let mut matching = Vec::new();
        for object in stores.interceptors.all() {
            let unknown = |why: String| {
                let name = object.metadata.name.clone().unwrap_or_default();
                Ok(Matching::Unknown(UnusableRule { name, why }))
            };
            // The watch of namespaces may be behind that of pods.
            if namespace.is_none() && object.spec.namespace_selector.is_some() {
                return unknown(format!("namespace {} is not known yet", pod.namespace()));
            }
            let rule = match &*self.get_or_compile(&object) {
                Ok(rule) => Arc::clone(rule),
                Err(_)
                    if Rule::selectors(&object)
                        .is_ok_and(|rule| !rule.selects(namespace.as_deref(), pod.labels())) =>
                {
                    continue;
                }
                Err(error) => return unknown(error.to_string()),
            };
            if !rule.selects(namespace.as_deref(), pod.labels()) {
                continue;
            }
            if rule.has_conditions() {
                if complete_pod.is_none() {
                    complete_pod = read_complete_pod(host, pod).await?.map(Arc::new);
                }
                let Some(complete_pod) = &complete_pod else {
                    continue;
                };
                let (complete_pod, namespace) = (Arc::clone(complete_pod), namespace.clone());
                let holds = blocking(move || rule.conditions_hold(&complete_pod, namespace.as_deref())).await;
                match holds {
                    Some(Ok(true)) => {}
                    Some(Ok(false)) => continue,
                    Some(Err(error)) => return unknown(error.to_string()),
                    None => return unknown("the evaluation of its conditions failed".to_owned()),
                }
            }
            matching.push(MatchedInterceptor {
                name: object.spec.interceptor_name.clone(),
                priority: object.spec.effective_priority(),
                is_controller: object.spec.role == Some(InterceptorRole::Controller),
            });
        }
        Ok(Matching::Known(matching))
    }
}

/// Runs what blocks, such as the evaluation of conditions, beside the tasks of the runtime. `None` when it panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// The API of complete pods, in one namespace or in all. [`Pod`] has only some of their fields.
#[must_use]
pub fn complete_pods(host: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<Pod>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(host.clone(), namespace, &resource),
        None => Api::all_with(host.clone(), &resource),
    }
}

/// The complete pod as JSON; `None` when it no longer exists.
async fn read_complete_pod(host: &Client, pod: &Pod) -> Result<Option<Value>, Error> {
    let object = call(complete_pods(host, Some(pod.namespace())).get_opt(pod.name())).await?;
    Ok(object.and_then(|object| serde_json::to_value(object).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rule_is_compiled_once_per_generation() {
        let rules = Rules::default();
        let object = |generation| -> EvictionInterceptor {
            serde_json::from_value(json!({"metadata": {"name": "r", "uid": "1", "generation": generation}}))
                .unwrap()
        };
        let first = rules.get_or_compile(&object(1));
        assert!(Arc::ptr_eq(&first, &rules.get_or_compile(&object(1))));
        assert!(!Arc::ptr_eq(&first, &rules.get_or_compile(&object(2))));
    }
}
