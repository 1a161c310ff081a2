//! Who is asked before a pod is evicted, and in which order? All sources of a pod's interceptors merged into one
//! list.
//!
//! | source | place |
//! | --- | --- |
//! | `spec.evictionInterceptors`, `spec.evictionResponders` | as listed, at priority 10000 |
//! | annotation `evictionrequest.coordination.k8s.io/interceptors` | as listed, at priority 10000, after those |
//! | annotations `…/priority_NAME` | by priority, ties by name |
//! | EvictionInterceptor objects | by priority, ties by name |
//! | a DaemonSet that owns the pod | priority 10000, after all others there |
//! | imperative eviction | last, always |
//!
//! A declaration that cannot be understood is reported and skipped: it is never a reason to evict sooner than
//! the others allow.

use std::collections::BTreeSet;

use drydock_machinery::field_error::FieldPath;
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictionrequest::{DAEMON_SET_INTERCEPTOR, IMPERATIVE_EVICTION, MAX_INTERCEPTORS};

use crate::pod::Pod;

/// The annotation that lists interceptors, separated by commas.
pub const LIST_ANNOTATION: &str = "evictionrequest.coordination.k8s.io/interceptors";
/// The starts of annotations that carry an interceptor's name in their key and its priority in their value.
pub const PRIORITY_PREFIXES: [&str; 2] = [
    "interceptor.evictionrequest.coordination.k8s.io/priority_",
    "evacuation.coordination.k8s.io/priority_",
];
/// The priority of listed interceptors, and of the role `controller` alone.
const CONTROLLER_PRIORITY: i32 = 10_000;
/// The role that has [`CONTROLLER_PRIORITY`].
const CONTROLLER_ROLE: &str = "controller";
/// The priorities there are.
const PRIORITIES: std::ops::RangeInclusive<i32> = 0..=100_000;

/// An interceptor that a rule, not the pod, declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruled {
    /// Its name.
    pub name: String,
    /// Its priority, 0 to 100000.
    pub priority: i32,
    /// Whether it is the controller of the pods.
    pub is_controller: bool,
}

/// The order, and what could not be understood on the way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    /// The interceptors, the first to be asked first, imperative eviction last.
    pub names: Vec<String>,
    /// Declarations that were skipped, each with its reason, for people.
    pub faults: Vec<String>,
}

/// There are more interceptors than a request can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it declares {count} interceptors and at most {limit} are possible; beyond that are {beyond}", limit = MAX_INTERCEPTORS - 1)]
pub struct TooMany {
    /// How many.
    pub count: usize,
    /// The names that are too many, in order.
    pub beyond: String,
}

/// A declaration on its way into the order. Ordered as the list is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    priority: std::cmp::Reverse<i32>,
    group: Group,
    index: usize,
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Spec,
    List,
    Priority,
    Owner,
}

/// Whether an annotation's key declares interceptors.
#[must_use]
pub fn is_declaration(key: &str) -> bool {
    key == LIST_ANNOTATION || PRIORITY_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// The order of the pod's interceptors. `allowed` knows which names may be used.
///
/// # Errors
///
/// [`TooMany`] when more than 15 are declared.
pub fn order(pod: &Pod, ruled: &[Ruled], allowed: &AllowedNames) -> Result<Order, TooMany> {
    let mut collector = Collector {
        places: Vec::new(),
        faults: Vec::new(),
        controller: None,
        allowed,
    };
    collector.listed(pod);
    collector.annotated(pod);
    collector.ruled(ruled);
    if pod.is_daemon() && !pod.is_mirror() {
        collector.place(CONTROLLER_PRIORITY, Group::Owner, 0, DAEMON_SET_INTERCEPTOR);
    }
    collector.finish()
}

struct Collector<'a> {
    places: Vec<Place>,
    faults: Vec<String>,
    controller: Option<String>,
    allowed: &'a AllowedNames,
}

impl Collector<'_> {
    fn place(&mut self, priority: i32, group: Group, index: usize, name: &str) {
        self.places.push(Place {
            priority: std::cmp::Reverse(priority),
            group,
            index,
            name: name.to_owned(),
        });
    }

    fn fault(&mut self, text: String) {
        self.faults.push(text);
    }

    /// Whether the name may stand in a request; otherwise says why not.
    fn accepts(&mut self, name: &str, origin: &str) -> bool {
        if name == IMPERATIVE_EVICTION {
            // It is last whatever anybody declares.
            return false;
        }
        let faults = self.allowed.validate(&FieldPath::new("name"), name);
        if !faults.is_empty() {
            self.fault(format!("{origin}: {faults}"));
        }
        faults.is_empty()
    }

    fn listed(&mut self, pod: &Pod) {
        let spec = pod
            .spec
            .eviction_interceptors
            .iter()
            .map(|named| ("spec.evictionInterceptors", named))
            .chain(
                pod.spec
                    .eviction_responders
                    .iter()
                    .map(|named| ("spec.evictionResponders", named)),
            );
        for (index, (origin, named)) in spec.enumerate() {
            if self.accepts(&named.name, origin) {
                self.place(CONTROLLER_PRIORITY, Group::Spec, index, &named.name);
            }
        }
        let list = pod
            .annotations()
            .get(LIST_ANNOTATION)
            .map(String::as_str)
            .unwrap_or_default();
        if list.trim().is_empty() {
            return;
        }
        for (index, name) in list.split(',').map(str::trim).enumerate() {
            if self.accepts(name, LIST_ANNOTATION) {
                self.place(CONTROLLER_PRIORITY, Group::List, index, name);
            }
        }
    }

    fn annotated(&mut self, pod: &Pod) {
        for (key, value) in pod.annotations() {
            let Some(name) = PRIORITY_PREFIXES
                .iter()
                .find_map(|prefix| key.strip_prefix(prefix))
            else {
                continue;
            };
            if !self.accepts(name, key) {
                continue;
            }
            match parse_priority(value) {
                Ok((priority, is_controller)) => self.prioritized(key, name, priority, is_controller),
                Err(why) => self.fault(format!("{key}: {why}")),
            }
        }
    }

    fn ruled(&mut self, ruled: &[Ruled]) {
        let mut ruled: Vec<_> = ruled.iter().collect();
        ruled.sort_by(|a, b| a.name.cmp(&b.name));
        for rule in ruled {
            if self.accepts(&rule.name, "EvictionInterceptor") {
                self.prioritized(
                    "EvictionInterceptor",
                    &rule.name,
                    rule.priority,
                    rule.is_controller,
                );
            }
        }
    }

    fn prioritized(&mut self, origin: &str, name: &str, priority: i32, is_controller: bool) {
        if is_controller {
            match &self.controller {
                Some(other) if other != name => {
                    let other = other.clone();
                    self.fault(format!(
                        "{origin}: a pod has one controller, and {other} is it already; {name} is skipped"
                    ));
                    return;
                }
                _ => self.controller = Some(name.to_owned()),
            }
        }
        self.place(priority, Group::Priority, 0, name);
    }

    fn finish(mut self) -> Result<Order, TooMany> {
        self.places.sort();
        let mut seen = BTreeSet::new();
        let mut names: Vec<String> = self
            .places
            .into_iter()
            .map(|place| place.name)
            .filter(|name| seen.insert(name.clone()))
            .collect();
        let count = names.len();
        if count >= MAX_INTERCEPTORS {
            let beyond = names.split_off(MAX_INTERCEPTORS - 1).join(", ");
            return Err(TooMany { count, beyond });
        }
        names.push(IMPERATIVE_EVICTION.to_owned());
        Ok(Order {
            names,
            faults: self.faults,
        })
    }
}

/// `PRIORITY[/ROLE]` as a priority and whether the role is the controller's.
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
            "the role {CONTROLLER_ROLE} has priority {CONTROLLER_PRIORITY}"
        )),
        (_, CONTROLLER_PRIORITY) => Err(format!(
            "priority {CONTROLLER_PRIORITY} is for the role {CONTROLLER_ROLE} alone"
        )),
        _ => Ok((parsed, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    /// The declared order (without the last one) and how many faults were found.
    #[track_caller]
    fn check(overlay: &serde_json::Value, ruled: &[Ruled], expected: &[&str], faults: usize) {
        let order = order(&pod(overlay), ruled, &AllowedNames::default()).unwrap();
        let (last, declared) = order.names.split_last().unwrap();
        assert_eq!(last, IMPERATIVE_EVICTION);
        assert_eq!(declared, expected);
        assert_eq!(order.faults.len(), faults, "{:?}", order.faults);
    }

    fn ruled(name: &str, priority: i32) -> Ruled {
        Ruled {
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
        format!("{}{name}", PRIORITY_PREFIXES[0])
    }

    #[test]
    fn a_plain_pod_has_only_the_last_resort() {
        check(&json!({}), &[], &[], 0);
    }

    #[test]
    fn spec_fields_come_as_listed_and_the_list_annotation_after_them() {
        check(
            &json!({
                "metadata": {"annotations": {LIST_ANNOTATION: "a.example.com, z.example.com"}},
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
    fn annotations_and_rules_go_by_priority_then_by_name() {
        check(
            &annotated(&[
                (&priority("low.example.com"), "2000"),
                (&priority("deployment.apps.k8s.io"), "10000/controller"),
                (
                    "evacuation.coordination.k8s.io/priority_old.example.com",
                    "11000/app-specific",
                ),
                (LIST_ANNOTATION, "listed.example.com"),
            ]),
            &[
                ruled("b.example.com", 20_000),
                ruled("a.example.com", 20_000),
                ruled("zero.example.com", 0),
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
    fn the_same_name_counts_once_at_its_highest_place() {
        check(
            &annotated(&[
                (&priority("a.example.com"), "5"),
                (LIST_ANNOTATION, "b.example.com,a.example.com"),
            ]),
            &[ruled("b.example.com", 1), ruled("a.example.com", 100_000)],
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
            &annotated(&[(LIST_ANNOTATION, "a.example.com,,B,")]),
            &[],
            &["a.example.com"],
            3,
        );
    }

    #[test]
    fn a_pod_has_one_controller() {
        check(
            &annotated(&[
                (&priority("a.example.com"), "10000/controller"),
                (&priority("b.example.com"), "10000/controller"),
            ]),
            &[ruled("c.example.com", CONTROLLER_PRIORITY)],
            &["a.example.com"],
            2,
        );
    }

    #[test]
    fn allowed_reserved_names_are_accepted() {
        let overlay = annotated(&[(LIST_ANNOTATION, "mine.k8s.io")]);
        let mut allowed = AllowedNames::default();
        allowed.extend(["mine.k8s.io".to_owned()]);
        let order = order(&pod(&overlay), &[], &allowed).unwrap();
        assert_eq!(order.names, ["mine.k8s.io", IMPERATIVE_EVICTION]);
    }

    #[test]
    fn the_last_resort_is_last_whatever_is_declared() {
        let list = format!("{IMPERATIVE_EVICTION},a.example.com");
        check(
            &annotated(&[(LIST_ANNOTATION, &list)]),
            &[],
            &["a.example.com"],
            0,
        );
    }

    #[test]
    fn daemon_pods_have_the_built_in_interceptor_after_their_own() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "2", "controller": true}]);
        check(
            &json!({"metadata": {"ownerReferences": owner, "annotations": {LIST_ANNOTATION: "a.example.com"}}}),
            &[ruled("low.example.com", 1)],
            &["a.example.com", DAEMON_SET_INTERCEPTOR, "low.example.com"],
            0,
        );
    }

    #[test]
    fn fifteen_are_enough() {
        let names = |count: usize| {
            let list: Vec<_> = (0..count)
                .map(|index| format!("i{index:02}.example.com"))
                .collect();
            annotated(&[(LIST_ANNOTATION, &list.join(","))])
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
}
