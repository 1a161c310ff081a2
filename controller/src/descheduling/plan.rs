//! Which nominated pods are asked to leave: limits that count what is in flight, and no pod back and forth. Pure functions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

/// How many evictions may be in flight at a time, and how long a pod is left alone. Whoever requested an eviction, it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// On one node.
    pub per_node: usize,
    /// In one namespace.
    pub per_namespace: usize,
    /// In all.
    pub total: usize,
    /// How many nominated pods are requested within an hour, however fast they leave.
    pub per_hour: usize,
    /// How long a pod is left alone after it was created, and after a request for it ended without it.
    pub pause: Duration,
}

/// Where a pod is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// The node; empty for a pod that is on none.
    pub node: String,
    /// The namespace.
    pub namespace: String,
}

/// The evictions in flight, by the UID of their pod.
pub type InFlight = HashMap<String, Place>;

/// A pod that a program would like to leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The UID.
    pub uid: String,
    /// Where it is.
    pub place: Place,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// When a request for it ended, if it is still there after one.
    pub request_ended: Option<Timestamp>,
}

/// What becomes of a nomination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// The pod is asked to leave.
    Requested,
    /// It was asked before, and counts already.
    InProgress,
    /// Too many evictions are in flight on its node.
    NodeLimit,
    /// Too many evictions are in flight in its namespace.
    NamespaceLimit,
    /// Too many evictions are in flight.
    TotalLimit,
    /// Too many nominated pods were requested within the last hour.
    HourlyLimit,
    /// It was created, or a request for it ended, a short time ago.
    Pausing,
    /// There is no such pod, or it leaves anyway.
    NotApplicable,
    /// The user may not evict it.
    Forbidden,
    /// The request could not be written.
    Failed,
}

impl Outcome {
    /// Its name, as it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requested => "Requested",
            Self::InProgress => "InProgress",
            Self::NodeLimit => "NodeLimit",
            Self::NamespaceLimit => "NamespaceLimit",
            Self::TotalLimit => "TotalLimit",
            Self::HourlyLimit => "HourlyLimit",
            Self::Pausing => "Pausing",
            Self::NotApplicable => "NotApplicable",
            Self::Forbidden => "Forbidden",
            Self::Failed => "Failed",
        }
    }
}

/// What becomes of each candidate, in their order. Those that are in flight take no place; the others take what is left, the
/// first first. `recent` is how many nominated pods were requested within the last hour.
#[must_use]
pub fn plan(
    candidates: &[Candidate],
    in_flight: &InFlight,
    recent: usize,
    limits: &Limits,
    now: Timestamp,
) -> Vec<Outcome> {
    let mut used = Used::of(in_flight, recent);
    let mut taken: HashSet<&str> = HashSet::new();
    let is_recent = |at: Option<Timestamp>| {
        at.is_some_and(|at| now.duration_since(at).as_secs_f64() < limits.pause.as_secs_f64())
    };
    candidates
        .iter()
        .map(|candidate| {
            if in_flight.contains_key(&candidate.uid) || taken.contains(candidate.uid.as_str()) {
                return Outcome::InProgress;
            }
            if is_recent(candidate.created) || is_recent(candidate.request_ended) {
                return Outcome::Pausing;
            }
            if let Some(limit) = used.limit(&candidate.place, limits) {
                return limit;
            }
            used.add(&candidate.place);
            taken.insert(&candidate.uid);
            Outcome::Requested
        })
        .collect()
}

/// How many places are taken.
#[derive(Debug, Default)]
struct Used {
    nodes: BTreeMap<String, usize>,
    namespaces: BTreeMap<String, usize>,
    total: usize,
    within_the_hour: usize,
}

impl Used {
    fn of(in_flight: &InFlight, recent: usize) -> Self {
        let mut used = Self::default();
        for place in in_flight.values() {
            used.add(place);
        }
        used.within_the_hour = recent;
        used
    }

    fn add(&mut self, place: &Place) {
        if !place.node.is_empty() {
            *self.nodes.entry(place.node.clone()).or_default() += 1;
        }
        *self.namespaces.entry(place.namespace.clone()).or_default() += 1;
        self.total += 1;
        self.within_the_hour += 1;
    }

    /// The limit that another eviction at this place would exceed.
    fn limit(&self, place: &Place, limits: &Limits) -> Option<Outcome> {
        let count = |map: &BTreeMap<String, usize>, key: &str| map.get(key).copied().unwrap_or_default();
        if self.total >= limits.total {
            Some(Outcome::TotalLimit)
        } else if !place.node.is_empty() && count(&self.nodes, &place.node) >= limits.per_node {
            Some(Outcome::NodeLimit)
        } else if count(&self.namespaces, &place.namespace) >= limits.per_namespace {
            Some(Outcome::NamespaceLimit)
        } else if self.within_the_hour >= limits.per_hour {
            Some(Outcome::HourlyLimit)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn place(node: &str, namespace: &str) -> Place {
        Place {
            node: node.to_owned(),
            namespace: namespace.to_owned(),
        }
    }

    fn candidate(uid: &str, node: &str, namespace: &str) -> Candidate {
        Candidate {
            uid: uid.to_owned(),
            place: place(node, namespace),
            created: Some(at(0)),
            request_ended: None,
        }
    }

    fn limits(per_node: usize, per_namespace: usize, total: usize) -> Limits {
        Limits {
            per_node,
            per_namespace,
            total,
            per_hour: 1000,
            pause: Duration::from_mins(5),
        }
    }

    #[test]
    fn limits_count_what_is_in_flight() {
        use Outcome::{InProgress, NamespaceLimit, NodeLimit, Requested, TotalLimit};
        let in_flight: InFlight = [
            ("a".to_owned(), place("one", "shop")),
            ("b".to_owned(), place("two", "bank")),
        ]
        .into();
        let candidates = [
            candidate("a", "one", "shop"),
            candidate("c", "one", "bank"),
            candidate("d", "one", "bank"),
            candidate("c", "one", "bank"),
            candidate("e", "two", "bank"),
            candidate("f", "three", "bank"),
            candidate("g", "", "shop"),
        ];
        let planned = |limits: &Limits| plan(&candidates, &in_flight, 0, limits, at(1000));
        assert_eq!(
            planned(&limits(2, 9, 9)),
            [
                InProgress, Requested, NodeLimit, InProgress, Requested, Requested, Requested
            ]
        );
        assert_eq!(
            planned(&limits(9, 2, 9)),
            [
                InProgress,
                Requested,
                NamespaceLimit,
                InProgress,
                NamespaceLimit,
                NamespaceLimit,
                Requested
            ]
        );
        assert_eq!(
            planned(&limits(9, 9, 3)),
            [
                InProgress, Requested, TotalLimit, InProgress, TotalLimit, TotalLimit, TotalLimit
            ]
        );
    }

    #[test]
    fn pods_that_have_just_come_or_were_just_asked_are_left_alone() {
        let young = Candidate {
            created: Some(at(701)),
            ..candidate("a", "one", "shop")
        };
        let asked = Candidate {
            request_ended: Some(at(701)),
            ..candidate("b", "one", "shop")
        };
        let candidates = [young, asked];
        let planned = |second| plan(&candidates, &InFlight::new(), 0, &limits(9, 9, 9), at(second));
        assert_eq!(planned(1000), [Outcome::Pausing; 2]);
        assert_eq!(planned(1001), [Outcome::Requested; 2]);
    }

    #[test]
    fn pods_that_leave_fast_are_limited_as_well() {
        let candidates = ["a", "b", "c"].map(|uid| candidate(uid, uid, "shop"));
        let limits = Limits {
            per_hour: 10,
            ..limits(9, 9, 9)
        };
        let planned = |recent| plan(&candidates, &InFlight::new(), recent, &limits, at(1000));
        assert_eq!(planned(7), [Outcome::Requested; 3]);
        assert_eq!(
            planned(9),
            [Outcome::Requested, Outcome::HourlyLimit, Outcome::HourlyLimit]
        );
        assert_eq!(planned(10), [Outcome::HourlyLimit; 3]);
    }

    proptest! {
        #[test]
        fn no_limit_is_ever_exceeded(
            in_flight in prop::collection::vec((0_u8..3, 0_u8..3), 0..8),
            nominated in prop::collection::vec((0_u8..20, 0_u8..3, 0_u8..3), 0..20),
            (per_node, per_namespace, total) in (0_usize..6, 0_usize..6, 0_usize..12),
        ) {
            let mut flying: InFlight = in_flight
                .iter()
                .enumerate()
                .map(|(index, (node, namespace))| (format!("f{index}"), place(&node.to_string(), &namespace.to_string())))
                .collect();
            let candidates: Vec<Candidate> = nominated
                .iter()
                .map(|(uid, node, namespace)| candidate(&format!("c{uid}"), &node.to_string(), &namespace.to_string()))
                .collect();
            let before = Used::of(&flying, 0);
            let outcomes = plan(&candidates, &flying, 0, &limits(per_node, per_namespace, total), at(1000));
            for (candidate, outcome) in candidates.iter().zip(outcomes) {
                if outcome == Outcome::Requested {
                    flying.insert(candidate.uid.clone(), candidate.place.clone());
                }
            }
            let after = Used::of(&flying, 0);
            prop_assert!(after.total <= total.max(before.total));
            for (node, count) in &after.nodes {
                prop_assert!(*count <= per_node.max(before.nodes.get(node).copied().unwrap_or_default()));
            }
            for (namespace, count) in &after.namespaces {
                prop_assert!(*count <= per_namespace.max(before.namespaces.get(namespace).copied().unwrap_or_default()));
            }
        }
    }
}
