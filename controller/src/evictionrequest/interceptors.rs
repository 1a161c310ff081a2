//! The interceptors of a pod, as its request stores them. [`drydock_machinery::interceptors`] merges their sources.

pub use drydock_machinery::interceptors::TooManyInterceptors;
use drydock_machinery::interceptors::{self, RuleSource, Sources};
use drydock_machinery::names::AllowedNames;

use crate::evictioninterceptor::rules::MatchedInterceptor;
use crate::pod::{InterceptorReference, Pod};

/// The merged order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterceptorOrder {
    /// The interceptors in the order of their activation, imperative eviction last.
    pub names: Vec<String>,
    /// Invalid declarations, each with the reason why it was skipped.
    pub skipped: Vec<String>,
}

/// The order of the pod's interceptors: those that it declares, and those that rules register for it. `allowed`
/// contains the reserved names that may be used.
///
/// # Errors
///
/// [`TooManyInterceptors`] when more than 15 are declared.
pub fn order(
    pod: &Pod,
    from_rules: &[MatchedInterceptor],
    allowed: &AllowedNames,
) -> Result<InterceptorOrder, TooManyInterceptors> {
    let sources = Sources {
        eviction_interceptors: names(&pod.spec.eviction_interceptors),
        eviction_responders: names(&pod.spec.eviction_responders),
        annotations: pod.annotations(),
        rules: from_rules
            .iter()
            .map(|rule| RuleSource {
                name: &rule.name,
                priority: rule.priority,
                is_controller: rule.is_controller,
            })
            .collect(),
        has_daemon_set: pod.is_daemon_set_pod() && !pod.is_mirror(),
    };
    let order = interceptors::order(&sources, allowed);
    match order.excess {
        Some(excess) => Err(excess),
        None => Ok(InterceptorOrder {
            names: order
                .interceptors
                .into_iter()
                .map(|interceptor| interceptor.name)
                .collect(),
            skipped: order.skipped,
        }),
    }
}

fn names(references: &[InterceptorReference]) -> Vec<&str> {
    references
        .iter()
        .map(|reference| reference.name.as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use drydock_machinery::interceptors::LIST_ANNOTATION;
    use drydock_proto::kinds::evictionrequest::{DAEMON_SET_INTERCEPTOR, IMPERATIVE_EVICTION};
    use serde_json::json;

    use super::*;
    use crate::fixtures::pod;

    #[test]
    fn every_source_of_a_pod_is_merged() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "2", "controller": true}]);
        let mut all = json!({
            "metadata": {"ownerReferences": owner, "annotations": {LIST_ANNOTATION: "listed.example.com,,"}},
            "spec": {
                "evictionInterceptors": [{"name": "interceptor.example.com"}],
                "evictionResponders": [{"name": "responder.example.com"}],
            },
        });
        let rule = MatchedInterceptor {
            name: "rule.example.com".to_owned(),
            priority: 20_000,
            is_controller: false,
        };
        let rules = std::slice::from_ref(&rule);
        let found = order(&pod(&all), rules, &AllowedNames::default()).unwrap();
        let expected = [
            "rule.example.com",
            "interceptor.example.com",
            "responder.example.com",
            "listed.example.com",
            DAEMON_SET_INTERCEPTOR,
            IMPERATIVE_EVICTION,
        ];
        assert_eq!(found.names, expected);
        assert_eq!(found.skipped.len(), 2);

        all["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("");
        let mirror = order(&pod(&all), &[], &AllowedNames::default()).unwrap();
        assert!(!mirror.names.iter().any(|name| name == DAEMON_SET_INTERCEPTOR));

        let list: Vec<_> = (0..16).map(|index| format!("i{index}.example.com")).collect();
        all["metadata"]["annotations"][LIST_ANNOTATION] = json!(list.join(","));
        assert_eq!(
            order(&pod(&all), rules, &AllowedNames::default())
                .unwrap_err()
                .count,
            19
        );
    }
}
