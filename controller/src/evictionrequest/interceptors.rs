//! Merges all sources of a pod's interceptors into one order.
//!
//! | source | position |
//! | --- | --- |
//! | `spec.evictionInterceptors`, `spec.evictionResponders` | as listed, at priority 10000 |
//! | annotation `evictionrequest.coordination.k8s.io/interceptors` | as listed, at priority 10000, after those |
//! | annotations `…/priority_NAME` | by priority, ties by name |
//! | EvictionInterceptor objects | by priority, ties by name |
//! | a DaemonSet that controls the pod | at priority 10000, after all others of that priority |
//! | imperative eviction | always last |
//!
//! A higher priority comes first. An invalid declaration is skipped and reported; it does not affect the others. The
//! DaemonSet interceptor is part of this program and does not count among the 15 that a pod may declare; imperative
//! eviction, which never evicts pods of DaemonSets, is left out where both do not fit.

use std::collections::BTreeSet;

use drydock_machinery::field_error::FieldPath;
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictionrequest::{DAEMON_SET_INTERCEPTOR, IMPERATIVE_EVICTION, MAX_INTERCEPTORS};

use crate::evictioninterceptor::rules::MatchedInterceptor;
use crate::pod::{INTERCEPTORS_ANNOTATION, PRIORITY_ANNOTATION_PREFIXES, Pod};

/// The priority of listed interceptors and of the role `controller`. No other declaration may have it.
const CONTROLLER_PRIORITY: i32 = 10_000;
/// The role that has [`CONTROLLER_PRIORITY`].
const CONTROLLER_ROLE: &str = "controller";
/// The valid priorities.
const PRIORITIES: std::ops::RangeInclusive<i32> = 0..=100_000;

/// The merged order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterceptorOrder {
    /// The interceptors in the order of their activation, imperative eviction last.
    pub names: Vec<String>,
    /// Invalid declarations, each with the reason why it was skipped.
    pub skipped: Vec<String>,
}

/// The pod declares more interceptors than a request can contain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it declares {count} interceptors and at most {limit} are possible; beyond that are {beyond}", limit = MAX_INTERCEPTORS - 1)]
pub struct TooManyInterceptors {
    /// How many the pod declares.
    pub count: usize,
    /// The names beyond the limit, in order.
    pub beyond: String,
}

/// A valid declaration. The derived order is the order of the interceptors.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Declaration {
    priority: std::cmp::Reverse<i32>,
    source: Source,
    index: usize,
    name: String,
}

/// The sources of one priority, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Spec,
    ListAnnotation,
    PriorityAnnotationOrRule,
    DaemonSet,
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
    let has_daemon_set = pod.is_daemon_set_pod() && !pod.is_mirror();
    let mut collector = Collector {
        declarations: Vec::new(),
        skipped: Vec::new(),
        controller: None,
        allowed,
        has_daemon_set,
    };
    collector.add_lists(pod);
    collector.add_priority_annotations(pod);
    collector.add_from_rules(from_rules);
    if has_daemon_set {
        collector.add(CONTROLLER_PRIORITY, Source::DaemonSet, 0, DAEMON_SET_INTERCEPTOR);
    }
    collector.finish()
}

struct Collector<'a> {
    declarations: Vec<Declaration>,
    skipped: Vec<String>,
    /// The interceptor with the role `controller`.
    controller: Option<String>,
    allowed: &'a AllowedNames,
    /// Whether a DaemonSet controls the pod.
    has_daemon_set: bool,
}

impl Collector<'_> {
    fn add(&mut self, priority: i32, source: Source, index: usize, name: &str) {
        self.declarations.push(Declaration {
            priority: std::cmp::Reverse(priority),
            source,
            index,
            name: name.to_owned(),
        });
    }

    /// Whether a request may contain the name. An invalid name is recorded as skipped.
    fn accepts(&mut self, name: &str, origin: &str) -> bool {
        if name == IMPERATIVE_EVICTION {
            // It is always last and is added at the end.
            return false;
        }
        if name == DAEMON_SET_INTERCEPTOR && !self.has_daemon_set {
            self.skipped
                .push(format!("{origin}: {name} acts only on pods of DaemonSets"));
            return false;
        }
        let errors = self.allowed.validate(&FieldPath::new("name"), name);
        if !errors.is_empty() {
            self.skipped.push(format!("{origin}: {errors}"));
        }
        errors.is_empty()
    }

    fn add_lists(&mut self, pod: &Pod) {
        let spec = pod
            .spec
            .eviction_interceptors
            .iter()
            .map(|reference| ("spec.evictionInterceptors", reference))
            .chain(
                pod.spec
                    .eviction_responders
                    .iter()
                    .map(|reference| ("spec.evictionResponders", reference)),
            );
        for (index, (origin, reference)) in spec.enumerate() {
            if self.accepts(&reference.name, origin) {
                self.add(CONTROLLER_PRIORITY, Source::Spec, index, &reference.name);
            }
        }
        let list = pod
            .annotations()
            .get(INTERCEPTORS_ANNOTATION)
            .map(String::as_str)
            .unwrap_or_default();
        if list.trim().is_empty() {
            return;
        }
        for (index, name) in list.split(',').map(str::trim).enumerate() {
            if self.accepts(name, INTERCEPTORS_ANNOTATION) {
                self.add(CONTROLLER_PRIORITY, Source::ListAnnotation, index, name);
            }
        }
    }

    fn add_priority_annotations(&mut self, pod: &Pod) {
        for (key, value) in pod.annotations() {
            let Some(name) = PRIORITY_ANNOTATION_PREFIXES
                .iter()
                .find_map(|prefix| key.strip_prefix(prefix))
            else {
                continue;
            };
            if !self.accepts(name, key) {
                continue;
            }
            match parse_priority(value) {
                Ok((priority, is_controller)) => self.add_prioritized(key, name, priority, is_controller),
                Err(why) => self.skipped.push(format!("{key}: {why}")),
            }
        }
    }

    fn add_from_rules(&mut self, from_rules: &[MatchedInterceptor]) {
        let mut sorted: Vec<_> = from_rules.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        for one in sorted {
            if self.accepts(&one.name, "EvictionInterceptor") {
                self.add_prioritized("EvictionInterceptor", &one.name, one.priority, one.is_controller);
            }
        }
    }

    fn add_prioritized(&mut self, origin: &str, name: &str, priority: i32, is_controller: bool) {
        if is_controller {
            match &self.controller {
                Some(other) if other != name => {
                    let other = other.clone();
                    self.skipped.push(format!(
                        "{origin}: the role {CONTROLLER_ROLE} is already assigned to {other}; {name} is skipped"
                    ));
                    return;
                }
                _ => self.controller = Some(name.to_owned()),
            }
        }
        self.add(priority, Source::PriorityAnnotationOrRule, 0, name);
    }

    fn finish(mut self) -> Result<InterceptorOrder, TooManyInterceptors> {
        self.declarations.sort();
        let mut seen = BTreeSet::new();
        let mut names: Vec<String> = self
            .declarations
            .into_iter()
            .map(|declaration| declaration.name)
            .filter(|name| seen.insert(name.clone()))
            .collect();
        let declared = names.iter().filter(|name| *name != DAEMON_SET_INTERCEPTOR);
        let count = declared.clone().count();
        if count >= MAX_INTERCEPTORS {
            let beyond: Vec<&str> = declared.skip(MAX_INTERCEPTORS - 1).map(String::as_str).collect();
            let beyond = beyond.join(", ");
            return Err(TooManyInterceptors { count, beyond });
        }
        if names.len() < MAX_INTERCEPTORS {
            names.push(IMPERATIVE_EVICTION.to_owned());
        }
        Ok(InterceptorOrder {
            names,
            skipped: self.skipped,
        })
    }
}

/// Parses `PRIORITY[/ROLE]` into the priority and whether the role is `controller`.
fn parse_priority(value: &str) -> Result<(i32, bool), String> {
    let (priority, role) = match value.split_once('/') {
        Some((priority, role)) => (priority, Some(role)),
        None => (value, None),
    };
    let parsed: i32 = priority
        .parse()
        .ok()
        .filter(|parsed| PRIORITIES.contains(parsed) && !priority.starts_with('+'))
        .ok_or_else(|| {
            format!(
                "{priority:?} is not a priority from {} to {}",
                PRIORITIES.start(),
                PRIORITIES.end()
            )
        })?;
    match (role, parsed) {
        (Some(""), _) => Err("the role after / is empty".to_owned()),
        (Some(CONTROLLER_ROLE), CONTROLLER_PRIORITY) => Ok((parsed, true)),
        (Some(CONTROLLER_ROLE), _) => Err(format!(
            "the role {CONTROLLER_ROLE} requires priority {CONTROLLER_PRIORITY}"
        )),
        (_, CONTROLLER_PRIORITY) => Err(format!(
            "priority {CONTROLLER_PRIORITY} requires the role {CONTROLLER_ROLE}"
        )),
        _ => Ok((parsed, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::pod;
    use serde_json::json;

    /// Checks the declared order (without imperative eviction) and how many declarations are skipped.
    #[track_caller]
    fn check(
        overlay: &serde_json::Value,
        from_rules: &[MatchedInterceptor],
        expected: &[&str],
        skipped: usize,
    ) {
        let order = order(&pod(overlay), from_rules, &AllowedNames::default()).unwrap();
        let (last, declared) = order.names.split_last().unwrap();
        assert_eq!(last, IMPERATIVE_EVICTION);
        assert_eq!(declared, expected);
        assert_eq!(order.skipped.len(), skipped, "{:?}", order.skipped);
    }

    fn from_rule(name: &str, priority: i32) -> MatchedInterceptor {
        MatchedInterceptor {
            name: name.to_owned(),
            priority,
            is_controller: priority == CONTROLLER_PRIORITY,
        }
    }

    fn annotated(pairs: &[(&str, &str)]) -> serde_json::Value {
        let map: serde_json::Map<_, _> = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        json!({"metadata": {"annotations": map}})
    }

    fn priority(name: &str) -> String {
        format!("{}{name}", PRIORITY_ANNOTATION_PREFIXES[0])
    }

    #[test]
    fn pod_without_declarations_has_only_imperative_eviction() {
        check(&json!({}), &[], &[], 0);
    }

    #[test]
    fn spec_fields_keep_their_order_and_precede_the_list_annotation() {
        check(
            &json!({
                "metadata": {"annotations": {INTERCEPTORS_ANNOTATION: "a.example.com, z.example.com"}},
                "spec": {
                    "evictionInterceptors": [{"name": "y.example.com"}, {"name": "b.example.com"}],
                    "evictionResponders": [{"name": "c.example.com"}, {"name": "y.example.com"}],
                },
            }),
            &[],
            &[
                "y.example.com",
                "b.example.com",
                "c.example.com",
                "a.example.com",
                "z.example.com",
            ],
            0,
        );
    }

    #[test]
    fn annotations_and_rules_are_ordered_by_priority_then_name() {
        check(
            &annotated(&[
                (&priority("low.example.com"), "2000"),
                (&priority("deployment.apps.k8s.io"), "10000/controller"),
                (
                    "evacuation.coordination.k8s.io/priority_old.example.com",
                    "11000/app-specific",
                ),
                (INTERCEPTORS_ANNOTATION, "listed.example.com"),
            ]),
            &[
                from_rule("b.example.com", 20_000),
                from_rule("a.example.com", 20_000),
                from_rule("zero.example.com", 0),
            ],
            &[
                "a.example.com",
                "b.example.com",
                "old.example.com",
                "listed.example.com",
                "deployment.apps.k8s.io",
                "low.example.com",
                "zero.example.com",
            ],
            0,
        );
    }

    #[test]
    fn repeated_name_counts_once_at_its_highest_position() {
        check(
            &annotated(&[
                (&priority("a.example.com"), "5"),
                (INTERCEPTORS_ANNOTATION, "b.example.com,a.example.com"),
            ]),
            &[from_rule("b.example.com", 1), from_rule("a.example.com", 100_000)],
            &["a.example.com", "b.example.com"],
            0,
        );
    }

    #[test]
    fn malformed_annotations_are_reported_and_skipped() {
        for value in [
            "",
            "high",
            "-1",
            "+5",
            "100001",
            "10000",
            "5000/controller",
            "7/",
            "99999999999",
        ] {
            check(
                &annotated(&[
                    (&priority("bad.example.com"), value),
                    (&priority("good.example.com"), "1"),
                ]),
                &[],
                &["good.example.com"],
                1,
            );
        }
        for name in ["nodots", "Upper.example.com", "made-up.k8s.io", ""] {
            check(&annotated(&[(&priority(name), "5")]), &[], &[], 1);
        }
        check(
            &annotated(&[(INTERCEPTORS_ANNOTATION, "a.example.com,,B,")]),
            &[],
            &["a.example.com"],
            3,
        );
    }

    #[test]
    fn controller_role_is_assigned_once() {
        check(
            &annotated(&[
                (&priority("a.example.com"), "10000/controller"),
                (&priority("b.example.com"), "10000/controller"),
            ]),
            &[from_rule("c.example.com", CONTROLLER_PRIORITY)],
            &["a.example.com"],
            2,
        );
    }

    #[test]
    fn allowed_reserved_names_are_accepted() {
        let overlay = annotated(&[(INTERCEPTORS_ANNOTATION, "mine.k8s.io")]);
        let mut allowed = AllowedNames::default();
        allowed.extend(["mine.k8s.io".to_owned()]);
        let order = order(&pod(&overlay), &[], &allowed).unwrap();
        assert_eq!(order.names, ["mine.k8s.io", IMPERATIVE_EVICTION]);
    }

    #[test]
    fn imperative_eviction_is_always_last() {
        let list = format!("{IMPERATIVE_EVICTION},a.example.com");
        check(
            &annotated(&[(INTERCEPTORS_ANNOTATION, &list)]),
            &[],
            &["a.example.com"],
            0,
        );
    }

    #[test]
    fn daemon_set_interceptor_follows_declared_ones_of_its_priority() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "2", "controller": true}]);
        check(
            &json!({"metadata": {"ownerReferences": owner, "annotations": {INTERCEPTORS_ANNOTATION: "a.example.com"}}}),
            &[from_rule("low.example.com", 1)],
            &["a.example.com", DAEMON_SET_INTERCEPTOR, "low.example.com"],
            0,
        );
    }

    #[test]
    fn more_than_fifteen_interceptors_are_rejected() {
        let names = |count: usize| {
            let list: Vec<_> = (0..count)
                .map(|index| format!("i{index:02}.example.com"))
                .collect();
            annotated(&[(INTERCEPTORS_ANNOTATION, &list.join(","))])
        };
        assert_eq!(
            order(&pod(&names(15)), &[], &AllowedNames::default())
                .unwrap()
                .names
                .len(),
            MAX_INTERCEPTORS
        );
        let error = order(&pod(&names(17)), &[], &AllowedNames::default()).unwrap_err();
        assert_eq!(
            (error.count, error.beyond.as_str()),
            (17, "i15.example.com, i16.example.com")
        );
    }

    #[test]
    fn daemon_set_interceptor_neither_counts_nor_acts_on_other_pods() {
        let list: Vec<_> = (0..15).map(|index| format!("i{index:02}.example.com")).collect();
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "2", "controller": true}]);
        let overlay = json!({"metadata": {
            "ownerReferences": owner, "annotations": {INTERCEPTORS_ANNOTATION: list.join(",")},
        }});
        let names = order(&pod(&overlay), &[], &AllowedNames::default())
            .unwrap()
            .names;
        assert_eq!(names.len(), MAX_INTERCEPTORS);
        assert_eq!(names.last().unwrap(), DAEMON_SET_INTERCEPTOR);
        check(
            &annotated(&[(INTERCEPTORS_ANNOTATION, DAEMON_SET_INTERCEPTOR)]),
            &[],
            &[],
            1,
        );
    }
}
