//! The rule of an EvictionInterceptor: compiled, and matched with a pod.

use std::collections::BTreeMap;

use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use crate::expression::Expression;
use crate::selector::Selector;

/// A compiled rule.
#[derive(Debug)]
pub struct Rule {
    namespaces: Selector,
    pods: Selector,
    /// By name.
    conditions: Vec<(String, Expression)>,
}

/// Why a rule was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRule(String);

impl Rule {
    /// The rule of an object. Blocks for milliseconds where it has conditions.
    ///
    /// # Errors
    /// The first part that is not valid.
    pub fn compile(object: &EvictionInterceptor) -> Result<Self, InvalidRule> {
        let conditions = object.spec.match_conditions.iter().map(|condition| {
            Expression::compile(&condition.expression)
                .map(|expression| (condition.name.clone(), expression))
                .map_err(|error| InvalidRule(format!("matchConditions[{}]: {error}", condition.name)))
        });
        Ok(Self {
            conditions: conditions.collect::<Result<_, _>>()?,
            ..Self::selectors(object)?
        })
    }

    /// The rule without its conditions.
    ///
    /// # Errors
    /// A selector that is not valid.
    pub fn selectors(object: &EvictionInterceptor) -> Result<Self, InvalidRule> {
        Ok(Self {
            namespaces: selector("namespaceSelector", object.spec.namespace_selector.as_ref())?,
            pods: selector("podSelector", object.spec.pod_selector.as_ref())?,
            conditions: Vec::new(),
        })
    }

    /// Whether both selectors match.
    #[must_use]
    pub fn selects(&self, namespace: Option<&Namespace>, labels: &BTreeMap<String, String>) -> bool {
        let none = BTreeMap::new();
        let namespace_labels = namespace
            .and_then(|namespace| namespace.metadata.labels.as_ref())
            .unwrap_or(&none);
        self.pods.matches(|key| labels.get(key).map(String::as_str))
            && self
                .namespaces
                .matches(|key| namespace_labels.get(key).map(String::as_str))
    }

    /// Whether matching needs the complete pod.
    #[must_use]
    pub fn has_conditions(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// The pod selector in the syntax of the `labelSelector` parameter.
    #[must_use]
    pub fn pod_selector(&self) -> String {
        self.pods.to_string()
    }

    /// Whether every condition is true for the pod and its namespace. A condition that is false decides, as in
    /// `matchConditions` of admission webhooks.
    ///
    /// # Errors
    ///
    /// [`InvalidRule`] when no condition is false and one cannot be evaluated. Blocks.
    pub fn conditions_hold(&self, pod: &Value, namespace: Option<&Namespace>) -> Result<bool, InvalidRule> {
        let namespace = namespace
            .and_then(|namespace| serde_json::to_value(namespace).ok())
            .unwrap_or_default();
        let mut failure = None;
        for (name, condition) in &self.conditions {
            match condition.evaluate(&[("pod", pod), ("namespace", &namespace)]) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    failure.get_or_insert_with(|| InvalidRule(format!("matchConditions[{name}]: {error}")));
                }
            }
        }
        failure.map_or(Ok(true), Err)
    }
}

fn selector(field: &str, selector: Option<&LabelSelector>) -> Result<Selector, InvalidRule> {
    match selector {
        None => Ok(Selector::everything()),
        Some(selector) => {
            Selector::try_from(selector).map_err(|errors| InvalidRule(format!("{field}: {errors}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(spec: &Value) -> Result<Rule, InvalidRule> {
        let object = json!({"metadata": {"name": "r", "uid": "1", "generation": 1}, "spec": spec});
        Rule::compile(&serde_json::from_value(object).unwrap())
    }

    fn namespace() -> Namespace {
        serde_json::from_value(json!({"metadata": {"name": "shop", "labels": {"tier": "gold"}}})).unwrap()
    }

    #[test]
    fn both_selectors_must_match() {
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
    fn conditions_read_pod_and_namespace_and_errors_are_reported() {
        let pod = json!({"metadata": {"name": "web"}, "spec": {"priority": 7}});
        for (expression, holds) in [
            ("pod.spec.priority > 5", Some(true)),
            ("pod.spec.priority > 9", Some(false)),
            ("namespace.metadata.labels.tier == 'gold'", Some(true)),
            ("pod.spec.missing == 1", None),
        ] {
            let rule = rule(&json!({"matchConditions": [{"name": "c", "expression": expression}]})).unwrap();
            assert_eq!(
                rule.conditions_hold(&pod, Some(&namespace())).ok(),
                holds,
                "{expression}"
            );
        }
    }

    #[test]
    fn errors_name_the_condition() {
        let error = rule(&json!({"matchConditions": [{"name": "mine", "expression": "pod."}]})).unwrap_err();
        assert!(
            error.to_string().starts_with("matchConditions[mine]: "),
            "{error}"
        );
    }
}
