//! Which interceptors a pod has, in which order, and from where: all sources merged into one order.
//!
//! The controller stores this order in the request of the pod; the kubectl plugin shows it before there is a request.
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
//! DaemonSet interceptor is part of the controller and does not count among the 15 that a pod may declare; imperative
//! eviction, which never evicts pods of DaemonSets, is left out where both do not fit.

pub mod rule;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use drydock_proto::kinds::evictioninterceptor::{
    CONTROLLER_PRIORITY, EvictionInterceptor, InterceptorRole, PRIORITIES,
};
use drydock_proto::kinds::evictionrequest::{DAEMON_SET_INTERCEPTOR, IMPERATIVE_EVICTION, MAX_INTERCEPTORS};

use crate::field_error::FieldPath;
use crate::names::AllowedNames;

/// The annotation that lists interceptors, separated by commas.
pub const LIST_ANNOTATION: &str = "evictionrequest.coordination.k8s.io/interceptors";
/// Prefixes of annotations whose key ends with an interceptor's name and whose value is its priority, `PRIORITY[/ROLE]`.
pub const PRIORITY_ANNOTATION_PREFIXES: [&str; 2] = [
    "interceptor.evictionrequest.coordination.k8s.io/priority_",
    "evacuation.coordination.k8s.io/priority_",
];
/// The role that has the priority [`CONTROLLER_PRIORITY`], which no other declaration may have.
const CONTROLLER_ROLE: &str = "controller";

/// Whether an annotation with this key declares interceptors.
#[must_use]
pub fn declares_interceptors(key: &str) -> bool {
    key == LIST_ANNOTATION || name_in_key(key).is_some()
}

/// What declares interceptors for a pod.
#[derive(Debug, Clone)]
pub struct Sources<'a> {
    /// The names in `spec.evictionInterceptors`.
    pub eviction_interceptors: Vec<&'a str>,
    /// The names in `spec.evictionResponders`.
    pub eviction_responders: Vec<&'a str>,
    /// The pod's annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// The EvictionInterceptor objects that match the pod.
    pub rules: Vec<RuleSource<'a>>,
    /// Whether a DaemonSet controls the pod, and it is no static pod.
    pub has_daemon_set: bool,
}

/// An EvictionInterceptor object that matches the pod. The derived order is that in which rules get the role.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleSource<'a> {
    /// The name of the interceptor.
    pub name: &'a str,
    /// Its priority.
    pub priority: i32,
    /// Whether it has the role `controller`.
    pub is_controller: bool,
}

impl<'a> From<&'a EvictionInterceptor> for RuleSource<'a> {
    fn from(object: &'a EvictionInterceptor) -> Self {
        Self {
            name: &object.spec.interceptor_name,
            priority: object.spec.effective_priority(),
            is_controller: object.spec.role == Some(InterceptorRole::Controller),
        }
    }
}

/// An interceptor of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interceptor {
    /// Its name.
    pub name: String,
    /// Its priority; imperative eviction, which is always last, has none.
    pub priority: Option<i32>,
    /// What declares it: a field, an annotation or an object.
    pub source: String,
}

/// The merged order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    /// The interceptors in the order of their activation, imperative eviction last. All declared ones and no other when
    /// there are too many.
    pub interceptors: Vec<Interceptor>,
    /// Invalid declarations, each with the reason why it was skipped.
    pub skipped: Vec<String>,
    /// Set when the pod declares more interceptors than a request can contain.
    pub excess: Option<TooManyInterceptors>,
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

/// The order of a pod's interceptors. `allowed` contains the reserved names that may be used.
#[must_use]
pub fn order(sources: &Sources<'_>, allowed: &AllowedNames) -> Order {
    let mut collector = Collector {
        declarations: Vec::new(),
        skipped: Vec::new(),
        controller: None,
        allowed,
        has_daemon_set: sources.has_daemon_set,
    };
    collector.add_lists(sources);
    collector.add_priority_annotations(sources.annotations);
    collector.add_rules(&sources.rules);
    if sources.has_daemon_set {
        collector.add(
            CONTROLLER_PRIORITY,
            Rank::DaemonSet,
            0,
            DAEMON_SET_INTERCEPTOR,
            "the pod's DaemonSet".to_owned(),
        );
    }
    collector.finish()
}

/// A valid declaration. The derived order is the order of the interceptors.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Declaration {
    priority: Reverse<i32>,
    rank: Rank,
    index: usize,
    name: String,
    source: String,
}

/// The kinds of sources at one priority, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Spec,
    ListAnnotation,
    PriorityAnnotationOrRule,
    DaemonSet,
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
    fn add(&mut self, priority: i32, rank: Rank, index: usize, name: &str, source: String) {
        self.declarations.push(Declaration {
            priority: Reverse(priority),
            rank,
            index,
            name: name.to_owned(),
            source,
        });
    }

    /// Whether a request may contain the name. An invalid name is recorded as skipped.
    fn accepts(&mut self, name: &str, source: &str) -> bool {
        if name == IMPERATIVE_EVICTION {
            // It is always last and is added at the end.
            return false;
        }
        if name == DAEMON_SET_INTERCEPTOR && !self.has_daemon_set {
            self.skipped
                .push(format!("{source}: {name} acts only on pods of DaemonSets"));
            return false;
        }
        let errors = self.allowed.validate(&FieldPath::new("name"), name);
        if !errors.is_empty() {
            self.skipped.push(format!("{source}: {errors}"));
        }
        errors.is_empty()
    }

    fn add_lists(&mut self, sources: &Sources<'_>) {
        let interceptors = sources.eviction_interceptors.iter();
        let responders = sources.eviction_responders.iter();
        let spec = interceptors
            .map(|name| ("spec.evictionInterceptors", *name))
            .chain(responders.map(|name| ("spec.evictionResponders", *name)));
        for (index, (source, name)) in spec.enumerate() {
            if self.accepts(name, source) {
                self.add(CONTROLLER_PRIORITY, Rank::Spec, index, name, source.to_owned());
            }
        }
        let list = sources
            .annotations
            .get(LIST_ANNOTATION)
            .map_or("", String::as_str);
        if list.trim().is_empty() {
            return;
        }
        let source = format!("annotation {LIST_ANNOTATION}");
        for (index, name) in list.split(',').map(str::trim).enumerate() {
            if self.accepts(name, &source) {
                self.add(
                    CONTROLLER_PRIORITY,
                    Rank::ListAnnotation,
                    index,
                    name,
                    source.clone(),
                );
            }
        }
    }

    fn add_priority_annotations(&mut self, annotations: &BTreeMap<String, String>) {
        for (key, value) in annotations {
            let Some(name) = name_in_key(key) else { continue };
            let source = format!("annotation {key}");
            if !self.accepts(name, &source) {
                continue;
            }
            match parse_priority(value) {
                Ok((priority, is_controller)) => self.add_prioritized(source, name, priority, is_controller),
                Err(why) => self.skipped.push(format!("{source}: {why}")),
            }
        }
    }

    fn add_rules(&mut self, rules: &[RuleSource<'_>]) {
        let mut sorted: Vec<_> = rules.iter().collect();
        sorted.sort();
        for rule in sorted {
            // The name of the object is that of its interceptor, which may contain a slash.
            let source = format!("evictioninterceptor/{}", rule.name.replace('/', "."));
            if self.accepts(rule.name, &source) {
                self.add_prioritized(source, rule.name, rule.priority, rule.is_controller);
            }
        }
    }

    fn add_prioritized(&mut self, source: String, name: &str, priority: i32, is_controller: bool) {
        if is_controller {
            match &self.controller {
                Some(other) if other != name => {
                    self.skipped.push(format!(
                        "{source}: the role {CONTROLLER_ROLE} is already assigned to {other}; {name} is skipped"
                    ));
                    return;
                }
                _ => self.controller = Some(name.to_owned()),
            }
        }
        self.add(priority, Rank::PriorityAnnotationOrRule, 0, name, source);
    }

    fn finish(mut self) -> Order {
        self.declarations.sort();
        let mut seen = BTreeSet::new();
        let mut interceptors: Vec<Interceptor> = self
            .declarations
            .into_iter()
            .filter(|declaration| seen.insert(declaration.name.clone()))
            .map(|declaration| Interceptor {
                name: declaration.name,
                priority: Some(declaration.priority.0),
                source: declaration.source,
            })
            .collect();
        let declared: Vec<&str> = interceptors
            .iter()
            .map(|interceptor| interceptor.name.as_str())
            .filter(|name| *name != DAEMON_SET_INTERCEPTOR)
            .collect();
        let excess = (declared.len() >= MAX_INTERCEPTORS).then(|| TooManyInterceptors {
            count: declared.len(),
            beyond: declared
                .get(MAX_INTERCEPTORS - 1..)
                .unwrap_or_default()
                .join(", "),
        });
        if interceptors.len() < MAX_INTERCEPTORS {
            interceptors.push(Interceptor {
                name: IMPERATIVE_EVICTION.to_owned(),
                priority: None,
                source: "always last".to_owned(),
            });
        }
        Order {
            interceptors,
            skipped: self.skipped,
            excess,
        }
    }
}

/// The name of the interceptor in the key of an annotation with a priority.
fn name_in_key(key: &str) -> Option<&str> {
    PRIORITY_ANNOTATION_PREFIXES
        .iter()
        .find_map(|prefix| key.strip_prefix(prefix))
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

    /// A pod without declarations, to be changed by a test.
    fn sources(annotations: &BTreeMap<String, String>) -> Sources<'_> {
        Sources {
            eviction_interceptors: Vec::new(),
            eviction_responders: Vec::new(),
            annotations,
            rules: Vec::new(),
            has_daemon_set: false,
        }
    }

    fn names(order: &Order) -> Vec<&str> {
        order.interceptors.iter().map(|one| one.name.as_str()).collect()
    }

    /// Checks the declared order (without imperative eviction) and how many declarations are skipped.
    #[track_caller]
    fn check(sources: &Sources<'_>, expected: &[&str], skipped: usize) -> Order {
        let order = order(sources, &AllowedNames::default());
        let all = names(&order);
        let (last, declared) = all.split_last().unwrap();
        assert_eq!(*last, IMPERATIVE_EVICTION);
        assert_eq!(declared, expected);
        assert_eq!(order.skipped.len(), skipped, "{:?}", order.skipped);
        assert_eq!(order.excess, None);
        order
    }

    fn rule(name: &str, priority: i32) -> RuleSource<'_> {
        RuleSource {
            name,
            priority,
            is_controller: priority == CONTROLLER_PRIORITY,
        }
    }

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn priority(name: &str) -> String {
        format!("{}{name}", PRIORITY_ANNOTATION_PREFIXES[0])
    }

    #[test]
    fn pod_without_declarations_has_only_imperative_eviction() {
        check(&sources(&annotations(&[])), &[], 0);
    }

    #[test]
    fn spec_fields_keep_their_order_and_precede_the_list_annotation() {
        let annotations = annotations(&[(LIST_ANNOTATION, "a.example.com, z.example.com")]);
        let sources = Sources {
            eviction_interceptors: vec!["y.example.com", "b.example.com"],
            eviction_responders: vec!["c.example.com", "y.example.com"],
            ..sources(&annotations)
        };
        let expected = [
            "y.example.com",
            "b.example.com",
            "c.example.com",
            "a.example.com",
            "z.example.com",
        ];
        let order = check(&sources, &expected, 0);
        let from: Vec<&str> = order.interceptors.iter().map(|one| one.source.as_str()).collect();
        assert_eq!(from[0], "spec.evictionInterceptors");
        assert_eq!(from[2], "spec.evictionResponders");
        assert_eq!(
            from[3],
            "annotation evictionrequest.coordination.k8s.io/interceptors"
        );
        assert_eq!(from[5], "always last");
    }

    #[test]
    fn annotations_and_rules_are_ordered_by_priority_then_name() {
        let annotations = annotations(&[
            (&priority("low.example.com"), "2000"),
            (&priority("deployment.apps.k8s.io"), "10000/controller"),
            (
                "evacuation.coordination.k8s.io/priority_old.example.com",
                "11000/app-specific",
            ),
            (LIST_ANNOTATION, "listed.example.com"),
        ]);
        let sources = Sources {
            rules: vec![
                rule("b.example.com", 20_000),
                rule("a.example.com/sub", 20_000),
                rule("zero.example.com", 0),
            ],
            ..sources(&annotations)
        };
        let expected = [
            "a.example.com/sub",
            "b.example.com",
            "old.example.com",
            "listed.example.com",
            "deployment.apps.k8s.io",
            "low.example.com",
            "zero.example.com",
        ];
        let order = check(&sources, &expected, 0);
        let first = &order.interceptors[0];
        assert_eq!(
            (first.priority, first.source.as_str()),
            (Some(20_000), "evictioninterceptor/a.example.com.sub")
        );
    }

    #[test]
    fn repeated_name_counts_once_at_its_highest_position() {
        let annotations = annotations(&[
            (&priority("a.example.com"), "5"),
            (LIST_ANNOTATION, "b.example.com,a.example.com"),
        ]);
        let sources = Sources {
            rules: vec![rule("b.example.com", 1), rule("a.example.com", 100_000)],
            ..sources(&annotations)
        };
        check(&sources, &["a.example.com", "b.example.com"], 0);
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
            let annotations = annotations(&[
                (&priority("bad.example.com"), value),
                (&priority("good.example.com"), "1"),
            ]);
            check(&sources(&annotations), &["good.example.com"], 1);
        }
        for name in ["nodots", "Upper.example.com", "made-up.k8s.io", ""] {
            check(&sources(&annotations(&[(&priority(name), "5")])), &[], 1);
        }
        let list = annotations(&[(LIST_ANNOTATION, "a.example.com,,B,")]);
        check(&sources(&list), &["a.example.com"], 3);
    }

    #[test]
    fn controller_role_is_assigned_once() {
        let annotations = annotations(&[
            (&priority("a.example.com"), "10000/controller"),
            (&priority("b.example.com"), "10000/controller"),
        ]);
        let sources = Sources {
            rules: vec![rule("c.example.com", CONTROLLER_PRIORITY)],
            ..sources(&annotations)
        };
        check(&sources, &["a.example.com"], 2);
    }

    #[test]
    fn allowed_reserved_names_are_accepted() {
        let annotations = annotations(&[(LIST_ANNOTATION, "mine.k8s.io")]);
        let mut allowed = AllowedNames::default();
        allowed.extend(["mine.k8s.io".to_owned()]);
        let order = order(&sources(&annotations), &allowed);
        assert_eq!(names(&order), ["mine.k8s.io", IMPERATIVE_EVICTION]);
    }

    #[test]
    fn imperative_eviction_is_always_last() {
        let list = format!("{IMPERATIVE_EVICTION},a.example.com");
        check(
            &sources(&annotations(&[(LIST_ANNOTATION, &list)])),
            &["a.example.com"],
            0,
        );
    }

    #[test]
    fn daemon_set_interceptor_follows_declared_ones_of_its_priority() {
        let annotations = annotations(&[(LIST_ANNOTATION, "a.example.com")]);
        let sources = Sources {
            rules: vec![rule("low.example.com", 1)],
            has_daemon_set: true,
            ..sources(&annotations)
        };
        check(
            &sources,
            &["a.example.com", DAEMON_SET_INTERCEPTOR, "low.example.com"],
            0,
        );
    }

    /// An annotation that lists so many interceptors.
    fn listing(count: usize) -> BTreeMap<String, String> {
        let list: Vec<_> = (0..count)
            .map(|index| format!("i{index:02}.example.com"))
            .collect();
        annotations(&[(LIST_ANNOTATION, &list.join(","))])
    }

    #[test]
    fn more_than_fifteen_interceptors_are_too_many() {
        let fitting = order(&sources(&listing(15)), &AllowedNames::default());
        assert_eq!(
            (fitting.interceptors.len(), fitting.excess),
            (MAX_INTERCEPTORS, None)
        );
        let order = order(&sources(&listing(17)), &AllowedNames::default());
        let excess = order.excess.as_ref().unwrap();
        assert_eq!(
            (excess.count, excess.beyond.as_str()),
            (17, "i15.example.com, i16.example.com")
        );
        assert_eq!(order.interceptors.len(), 17);
    }

    #[test]
    fn daemon_set_interceptor_neither_counts_nor_acts_on_other_pods() {
        let fifteen = listing(15);
        let of_daemon_set = Sources {
            has_daemon_set: true,
            ..sources(&fifteen)
        };
        let order = order(&of_daemon_set, &AllowedNames::default());
        assert_eq!(
            (order.interceptors.len(), &order.excess),
            (MAX_INTERCEPTORS, &None)
        );
        assert_eq!(names(&order).last(), Some(&DAEMON_SET_INTERCEPTOR));
        check(
            &sources(&annotations(&[(LIST_ANNOTATION, DAEMON_SET_INTERCEPTOR)])),
            &[],
            1,
        );
    }
}
