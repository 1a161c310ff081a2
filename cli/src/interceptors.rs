//! Which interceptors a pod has, in which order, from where, and whether they have been heard of. Pure functions.
//!
//! The controller decides the order when a request is made, and stores it in the request. Before that, [`declared`] works
//! out the same order, and names the source of each interceptor.

use std::collections::BTreeMap;

pub use drydock_machinery::interceptors::Interceptor;
use drydock_machinery::interceptors::rule::Rule;
use drydock_machinery::interceptors::{RuleSource, Sources, order};
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictioninterceptor::{ACCEPTED, EvictionInterceptor};
use drydock_proto::kinds::evictionrequest::{DAEMON_SET_INTERCEPTOR, EvictionRequest, IMPERATIVE_EVICTION};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use serde_json::Value;

use crate::pods;
use crate::times::timestamp;

/// The interceptors of a pod that has no request yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
    /// In the order of their turns.
    pub interceptors: Vec<Interceptor>,
    /// Declarations that are skipped, and why.
    pub skipped: Vec<String>,
}

/// The order that the pod's request will have. `object` is the whole pod, with fields that typed clients do not know.
#[must_use]
pub fn declared(
    pod: &Pod,
    object: &Value,
    rules: &[EvictionInterceptor],
    namespace: Option<&Namespace>,
) -> Declared {
    let matching: Vec<&EvictionInterceptor> = rules
        .iter()
        .filter(|rule| is_matching(rule, pod, object, namespace))
        .collect();
    let none = BTreeMap::new();
    let sources = Sources {
        eviction_interceptors: names_in(object, "/spec/evictionInterceptors"),
        eviction_responders: names_in(object, "/spec/evictionResponders"),
        annotations: pod.metadata.annotations.as_ref().unwrap_or(&none),
        rules: matching.into_iter().map(RuleSource::from).collect(),
        has_daemon_set: pods::is_daemon_set_pod(pod) && !pods::is_static(pod),
    };
    let order = order(&sources, &AllowedNames::default());
    let mut skipped = order.skipped;
    skipped.extend(
        order
            .excess
            .map(|excess| format!("the request of this pod will be canceled, since {excess}")),
    );
    Declared {
        interceptors: order.interceptors,
        skipped,
    }
}

/// The names in a list of references.
fn names_in<'a>(object: &'a Value, pointer: &str) -> Vec<&'a str> {
    let references = object.pointer(pointer).and_then(Value::as_array);
    references
        .into_iter()
        .flatten()
        .filter_map(|reference| reference.get("name")?.as_str())
        .collect()
}

/// Whether the rule of an EvictionInterceptor is in effect and matches the pod. A condition that cannot be evaluated counts as
/// true, as in the controller: an error must not let a pod be evicted sooner.
fn is_matching(
    interceptor: &EvictionInterceptor,
    pod: &Pod,
    object: &Value,
    namespace: Option<&Namespace>,
) -> bool {
    let conditions = interceptor.status.iter().flat_map(|status| &status.conditions);
    let is_refused = conditions
        .into_iter()
        .any(|condition| condition.type_ == ACCEPTED && condition.status == "False");
    let none = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
    // Conditions take milliseconds to compile, so only those of rules that select the pod are.
    !is_refused
        && Rule::selectors(interceptor).is_ok_and(|rule| rule.selects(namespace, labels))
        && Rule::compile(interceptor)
            .is_ok_and(|rule| rule.conditions_hold(object, namespace).unwrap_or(true))
}

/// Whether an interceptor has been heard of. Nothing else tells whether its program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// It has reported, last at this time.
    Last(Timestamp),
    /// It had a turn and reported nothing: since when, in how many requests.
    Silent(Timestamp, usize),
    /// No request has been its turn.
    NeverAsked,
    /// The controller or the eviction API: part of Drydock.
    BuiltIn,
}

/// How long an interceptor may be silent after its activation before it counts as silent.
const SILENT_AFTER_SECONDS: i64 = 120;

/// What the requests of the cluster say about an interceptor.
#[must_use]
pub fn heard(name: &str, requests: &[EvictionRequest], now: Timestamp) -> Heard {
    if [IMPERATIVE_EVICTION, DAEMON_SET_INTERCEPTOR].contains(&name) {
        return Heard::BuiltIn;
    }
    let reports = requests
        .iter()
        .filter_map(|request| request.status.as_ref())
        .flat_map(|status| &status.interceptors)
        .filter(|report| report.name == name);
    let mut last: Option<Timestamp> = None;
    let mut silent: Option<(Timestamp, usize)> = None;
    for report in reports {
        let times = [&report.start_time, &report.heartbeat_time];
        let reported = times
            .into_iter()
            .filter_map(|time| timestamp(time.as_ref()))
            .max();
        last = last.max(reported);
        if reported.is_none()
            && let Some(activated) = timestamp(report.activation_time.as_ref())
            && now.duration_since(activated).as_secs() > SILENT_AFTER_SECONDS
        {
            let (since, count) = silent.unwrap_or((activated, 0));
            silent = Some((since.min(activated), count + 1));
        }
    }
    match (last, silent) {
        (Some(last), _) => Heard::Last(last),
        (None, Some((since, count))) => Heard::Silent(since, count),
        (None, None) => Heard::NeverAsked,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use drydock_machinery::interceptors::{LIST_ANNOTATION, PRIORITY_ANNOTATION_PREFIXES};

    use super::*;

    #[track_caller]
    fn check(pod: &Value, rules: &[EvictionInterceptor], expected: &[&str], skipped: usize) {
        let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
        let declared = declared(&typed, pod, rules, None);
        let (last, others) = declared.interceptors.split_last().unwrap();
        assert_eq!(last.name, IMPERATIVE_EVICTION);
        let names: Vec<&str> = others.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, expected);
        assert_eq!(declared.skipped.len(), skipped, "{:?}", declared.skipped);
    }

    fn rule(name: &str, priority: i32, condition: Option<&str>) -> EvictionInterceptor {
        let conditions: Vec<Value> = condition
            .map(|expression| json!({"name": "c", "expression": expression}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "interceptorName": name, "priority": priority, "matchConditions": conditions,
                "podSelector": {"matchLabels": {"app": "web"}},
            },
        }))
        .unwrap()
    }

    #[test]
    fn sources_are_merged_by_priority_then_source_then_name() {
        let priority = |name: &str| format!("{}{name}", PRIORITY_ANNOTATION_PREFIXES[0]);
        let pod = json!({
            "metadata": {
                "name": "web-0", "namespace": "shop", "labels": {"app": "web"},
                "annotations": {
                    LIST_ANNOTATION: "listed.example.com, spec.example.com",
                    priority("low.example.com"): "5",
                    priority("high.example.com"): "30000",
                    priority("bad.example.com"): "many",
                    priority("nodots"): "7",
                },
            },
            "spec": {"containers": [], "evictionInterceptors": [{"name": "spec.example.com"}]},
        });
        let rules = [
            rule("rule.example.com", 20_000, None),
            rule("yes.example.com", 20_000, Some("pod.metadata.name == 'web-0'")),
            rule("no.example.com", 20_000, Some("pod.metadata.name == 'web-1'")),
        ];
        check(
            &pod,
            &rules,
            &[
                "high.example.com",
                "rule.example.com",
                "yes.example.com",
                "spec.example.com",
                "listed.example.com",
                "low.example.com",
            ],
            2,
        );
        check(&json!({"metadata": {"name": "other"}}), &rules, &[], 0);
    }

    #[test]
    fn a_rule_that_cannot_be_evaluated_matches_and_one_that_cannot_be_compiled_does_not() {
        let pod = json!({ "metadata": { "name": "web-0", "labels": { "app": "web" } }, "spec": { "containers": [] } });
        let matched = |condition: &str, expected: &[&str]| {
            check(
                &pod,
                &[rule("rule.example.com", 20_000, Some(condition))],
                expected,
                0,
            );
        };
        matched("pod.spec.missing == 1", &["rule.example.com"]);
        matched("pod.", &[]);
        let mut refused = rule("rule.example.com", 20_000, None);
        let status = json!({ "conditions": [{
            "type": ACCEPTED, "status": "False", "reason": "Invalid", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] });
        refused.status = serde_json::from_value(status).unwrap();
        check(&pod, &[refused], &[], 0);
    }

    #[test]
    fn daemon_set_pods_have_their_interceptor() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "2", "controller": true}]);
        check(
            &json!({"metadata": {"ownerReferences": owner}}),
            &[],
            &[DAEMON_SET_INTERCEPTOR],
            0,
        );
    }

    #[test]
    fn interceptor_is_silent_only_when_it_never_answered() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let request = |report: Value| -> EvictionRequest {
            serde_json::from_value(json!({"status": {"interceptors": [report]}})).unwrap()
        };
        let silent = request(json!({"name": "a.example.com", "activationTime": "2026-01-01T00:10:00Z"}));
        let recent = request(json!({"name": "a.example.com", "activationTime": "2026-01-01T00:59:00Z"}));
        let answered = request(json!({
            "name": "a.example.com", "activationTime": "2026-01-01T00:10:00Z",
            "startTime": "2026-01-01T00:11:00Z", "heartbeatTime": "2026-01-01T00:12:00Z",
        }));
        let heard = |requests: &[EvictionRequest]| super::heard("a.example.com", requests, now);
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(heard(&[]), Heard::NeverAsked);
        assert_eq!(heard(std::slice::from_ref(&recent)), Heard::NeverAsked);
        assert_eq!(
            heard(&[silent.clone(), recent]),
            Heard::Silent(at("2026-01-01T00:10:00Z"), 1)
        );
        assert_eq!(
            heard(&[silent, answered]),
            Heard::Last(at("2026-01-01T00:12:00Z"))
        );
        assert_eq!(super::heard(IMPERATIVE_EVICTION, &[], now), Heard::BuiltIn);
    }
}
