//! Which rules match a pod? EvictionInterceptors compiled once per generation, and asked.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use drydock_machinery::expression::Expression;
use drydock_machinery::selector::Selector;
use drydock_proto::kinds::evictioninterceptor::{EvictionInterceptor, InterceptorRole};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

use crate::api::{Error, call};
use crate::evictionrequest::interceptors::Ruled;
use crate::pod::Pod;
use crate::stores::Stores;

/// A rule that was understood.
#[derive(Debug)]
pub struct Rule {
    namespaces: Selector,
    pods: Selector,
    conditions: Vec<Expression>,
}

/// Why a rule is not in force, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(String);

type Compiled = Arc<Result<Rule, Fault>>;

/// Rules by the UID of their object, with the generation they were compiled from.
#[derive(Debug, Default)]
pub struct Rules {
    compiled: Mutex<HashMap<String, (Option<i64>, Compiled)>>,
}

impl Rules {
    /// The rule of the object, compiled when it is new.
    #[must_use]
    pub fn of(&self, object: &EvictionInterceptor) -> Compiled {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let generation = object.metadata.generation;
        let lock = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, rule)) = lock().get(&uid)
            && *known == generation
        {
            return Arc::clone(rule);
        }
        let rule = Arc::new(Rule::compile(object));
        lock().insert(uid, (generation, Arc::clone(&rule)));
        rule
    }

    /// Forgets the rule of an object that is gone.
    pub fn forget(&self, uid: &str) {
        self.compiled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uid);
    }

    /// The interceptors whose rules match the pod. A condition that cannot be evaluated counts as met: a mistake in
    /// a rule is no reason to evict sooner.
    ///
    /// # Errors
    ///
    /// What became of reading the pod, which is done only for rules with conditions.
    pub async fn matching(&self, stores: &Stores, host: &Client, pod: &Pod) -> Result<Vec<Ruled>, Error> {
        let namespace = stores.namespaces.get("", pod.namespace());
        let mut document = None;
        let mut matching = Vec::new();
        for object in stores.rules.all() {
            let rule = self.of(&object);
            let Ok(rule) = &*rule else { continue };
            if !rule.selects(namespace.as_deref(), pod.labels()) {
                continue;
            }
            if rule.has_conditions() {
                if document.is_none() {
                    document = read(host, pod).await?;
                }
                let Some(document) = &document else { continue };
                if !rule.is_met(document, namespace.as_deref()) {
                    continue;
                }
            }
            matching.push(Ruled {
                name: object.spec.interceptor_name.clone(),
                priority: object.spec.effective_priority(),
                is_controller: object.spec.role == Some(InterceptorRole::Controller),
            });
        }
        Ok(matching)
    }
}

impl Rule {
    fn compile(object: &EvictionInterceptor) -> Result<Self, Fault> {
        let conditions = object.spec.match_conditions.iter().map(|condition| {
            Expression::compile(&condition.expression)
                .map_err(|error| Fault(format!("matchConditions[{}]: {error}", condition.name)))
        });
        Ok(Self {
            namespaces: selector("namespaceSelector", object.spec.namespace_selector.as_ref())?,
            pods: selector("podSelector", object.spec.pod_selector.as_ref())?,
            conditions: conditions.collect::<Result<_, _>>()?,
        })
    }

    /// Whether the labels match.
    #[must_use]
    pub fn selects(&self, namespace: Option<&Namespace>, labels: &BTreeMap<String, String>) -> bool {
        let none = BTreeMap::new();
        let of_namespace = namespace
            .and_then(|namespace| namespace.metadata.labels.as_ref())
            .unwrap_or(&none);
        self.pods.matches(|key| labels.get(key).map(String::as_str))
            && self
                .namespaces
                .matches(|key| of_namespace.get(key).map(String::as_str))
    }

    /// Whether the whole pod must be looked at.
    #[must_use]
    pub fn has_conditions(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// The labels of pods, as a list of pods can be narrowed by.
    #[must_use]
    pub fn pod_selector(&self) -> String {
        self.pods.to_string()
    }

    /// Whether every condition is met by the pod and its namespace.
    #[must_use]
    pub fn is_met(&self, pod: &Value, namespace: Option<&Namespace>) -> bool {
        let namespace = namespace
            .and_then(|namespace| serde_json::to_value(namespace).ok())
            .unwrap_or_default();
        self.conditions.iter().all(|condition| {
            condition
                .evaluate(&[("pod", pod), ("namespace", &namespace)])
                .unwrap_or(true)
        })
    }
}

fn selector(field: &str, selector: Option<&LabelSelector>) -> Result<Selector, Fault> {
    match selector {
        None => Ok(Selector::everything()),
        Some(selector) => Selector::try_from(selector).map_err(|faults| Fault(format!("{field}: {faults}"))),
    }
}

/// The pods of a namespace, or of all, as whole documents.
#[must_use]
pub fn documents(host: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<Pod>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(host.clone(), namespace, &resource),
        None => Api::all_with(host.clone(), &resource),
    }
}

/// The pod as a whole document; `None` when it is gone.
async fn read(host: &Client, pod: &Pod) -> Result<Option<Value>, Error> {
    let document = call(documents(host, Some(pod.namespace())).get_opt(pod.name())).await?;
    Ok(document.and_then(|document| serde_json::to_value(document).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(spec: &Value) -> Result<Rule, Fault> {
        let object = json!({"metadata": {"name": "r", "uid": "1", "generation": 1}, "spec": spec});
        Rule::compile(&serde_json::from_value(object).unwrap())
    }

    fn namespace() -> Namespace {
        serde_json::from_value(json!({"metadata": {"name": "shop", "labels": {"tier": "gold"}}})).unwrap()
    }

    #[test]
    fn labels_of_pod_and_namespace_must_match() {
        let rule = rule(&json!({
            "podSelector": {"matchLabels": {"app": "web"}},
            "namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold"]}]},
        }))
        .unwrap();
        let labels = |app: &str| BTreeMap::from([("app".to_owned(), app.to_owned())]);
        assert!(rule.selects(Some(&namespace()), &labels("web")));
        assert!(!rule.selects(Some(&namespace()), &labels("db")));
        assert!(!rule.selects(None, &labels("web")));
    }

    #[test]
    fn conditions_see_pod_and_namespace_and_failures_count_as_met() {
        let pod = json!({"metadata": {"name": "web"}, "spec": {"priority": 7}});
        for (expression, is_met) in [
            ("pod.spec.priority > 5", true),
            ("pod.spec.priority > 9", false),
            ("namespace.metadata.labels.tier == 'gold'", true),
            ("pod.spec.missing == 1", true),
        ] {
            let rule = rule(&json!({"matchConditions": [{"name": "c", "expression": expression}]})).unwrap();
            assert_eq!(rule.is_met(&pod, Some(&namespace())), is_met, "{expression}");
        }
    }

    #[test]
    fn faults_name_the_condition() {
        let fault = rule(&json!({"matchConditions": [{"name": "mine", "expression": "pod."}]})).unwrap_err();
        assert!(
            fault.to_string().starts_with("matchConditions[mine]: "),
            "{fault}"
        );
    }

    #[test]
    fn a_rule_is_compiled_once_per_generation() {
        let rules = Rules::default();
        let object = |generation| -> EvictionInterceptor {
            serde_json::from_value(json!({"metadata": {"name": "r", "uid": "1", "generation": generation}}))
                .unwrap()
        };
        let first = rules.of(&object(1));
        assert!(Arc::ptr_eq(&first, &rules.of(&object(1))));
        assert!(!Arc::ptr_eq(&first, &rules.of(&object(2))));
    }
}
