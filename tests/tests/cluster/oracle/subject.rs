//! The compared kinds, and random valid content for them.

use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::maintenance;

/// A compared kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Cluster-scoped, with a list map of expressions.
    Interceptor,
    /// Namespaced, with a list map of atomic items.
    Request,
    /// Cluster-scoped, with atomic parts, a default, and fields that cannot change freely.
    Maintenance,
}

/// The namespace of requests.
pub(crate) const NAMESPACE: &str = "oracle";

impl Subject {
    pub(crate) const ALL: [Self; 3] = [Self::Interceptor, Self::Request, Self::Maintenance];

    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::Interceptor => "EvictionInterceptor",
            Self::Request => "EvictionRequest",
            Self::Maintenance => "NodeMaintenance",
        }
    }

    pub(crate) const fn plural(self) -> &'static str {
        match self {
            Self::Interceptor => "evictioninterceptors",
            Self::Request => "evictionrequests",
            Self::Maintenance => "nodemaintenances",
        }
    }

    pub(crate) const fn is_namespaced(self) -> bool {
        matches!(self, Self::Request)
    }

    /// The path of the collection, with `{group}` for the group.
    pub(crate) fn collection(self) -> String {
        match self {
            Self::Interceptor => "/apis/{group}/v1alpha3/evictioninterceptors".to_owned(),
            Self::Maintenance => "/apis/{group}/v1alpha3/nodemaintenances".to_owned(),
            Self::Request => format!("/apis/{{group}}/v1alpha3/namespaces/{NAMESPACE}/evictionrequests"),
        }
    }

    /// The name of the object with this number.
    pub(crate) fn name(self, number: usize) -> String {
        match self {
            Self::Interceptor => format!("i{number}.example.com"),
            Self::Request => format!("0aac1e00-0000-4000-8000-{number:012x}"),
            Self::Maintenance => format!("m{number}"),
        }
    }

    /// The members that every object and every applied configuration has, among them an item of each list of the spec:
    /// without its last item a list of a custom resource is null, which its schema does not allow.
    pub(crate) fn base(self, name: &str) -> Value {
        let mut object = json!({
            "apiVersion": "{group}/v1alpha3",
            "kind": self.kind(),
            "metadata": { "name": name },
        });
        match self {
            Self::Interceptor => {
                object["spec"] = json!({
                    "interceptorName": name,
                    "matchConditions": [{ "name": "first", "expression": "true" }],
                });
            }
            Self::Request => {
                object["metadata"]["namespace"] = NAMESPACE.into();
                object["spec"] = json!({
                    "target": { "pod": { "name": "pod", "uid": name } },
                    "requesters": [{ "name": "first.example.com" }],
                });
            }
            Self::Maintenance => object["spec"] = maintenance::spec(),
        }
        object
    }

    /// The members that every applied status has.
    pub(crate) fn status_base(self, name: &str) -> Value {
        let mut object = self.base(name);
        if let Some(members) = object.as_object_mut() {
            members.remove("spec");
        }
        object["status"] = json!({ "conditions": [condition("First", "True", "one")] });
        object
    }

    /// Random metadata and spec, as a merge patch: some members of each kind of list and map.
    pub(crate) fn random_spec(self, rng: &mut Rng) -> Value {
        let mut metadata = Map::new();
        if rng.bool() {
            metadata.insert("labels".to_owned(), random_map(rng, "label"));
        }
        if rng.u8(0..3) == 0 {
            metadata.insert("annotations".to_owned(), random_map(rng, "annotation"));
        }
        if rng.u8(0..8) == 0 {
            metadata.insert("finalizers".to_owned(), random_names(rng, "example.com/f"));
        }
        let mut spec = Map::new();
        match self {
            Self::Interceptor => {
                if rng.bool() {
                    spec.insert("priority".to_owned(), rng.u32(20_000..20_004).into());
                }
                if rng.u8(0..3) == 0 {
                    spec.insert("heartbeatDeadlineSeconds".to_owned(), rng.u32(600..603).into());
                }
                if rng.u8(0..3) == 0 {
                    let labels = random_map(rng, "app");
                    spec.insert("podSelector".to_owned(), json!({ "matchLabels": labels }));
                }
                if rng.bool() {
                    let first = json!({ "name": "first", "expression": "true" });
                    let conditions = random_items(
                        rng,
                        first,
                        |rng, letter| json!({ "name": letter, "expression": if rng.bool() { "true" } else { "1 == 1" } }),
                    );
                    spec.insert("matchConditions".to_owned(), conditions);
                }
            }
            Self::Request => {
                if rng.bool() {
                    let seconds = rng.u32(60..64);
                    spec.insert("ttlSecondsAfterFinished".to_owned(), seconds.into());
                }
                if rng.bool() {
                    let first = json!({ "name": "first.example.com" });
                    let requesters = random_items(
                        rng,
                        first,
                        |_, letter| json!({ "name": format!("{letter}.example.com") }),
                    );
                    spec.insert("requesters".to_owned(), requesters);
                }
            }
            Self::Maintenance => spec = maintenance::random_spec(rng),
        }
        let mut change = Map::new();
        for (name, members) in [("metadata", metadata), ("spec", spec)] {
            if !members.is_empty() {
                change.insert(name.to_owned(), members.into());
            }
        }
        change.into()
    }

    /// The rules of the kind about changes that a custom resource can express: the JSON pointer of the schema that they
    /// belong to, and the rule in CEL. Both servers reject the others with 422.
    pub(crate) const fn transitions(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Interceptor | Self::Request => &[],
            Self::Maintenance => maintenance::TRANSITIONS,
        }
    }

    /// The JSON pointers of lists that these rules compare, with the largest number of items.
    pub(crate) const fn limits(self) -> &'static [(&'static str, u32)] {
        match self {
            Self::Interceptor | Self::Request => &[],
            Self::Maintenance => maintenance::LIMITS,
        }
    }

    /// A random status, as a merge patch.
    pub(crate) fn random_status(self, rng: &mut Rng) -> Value {
        let mut status = Map::new();
        if self == Self::Interceptor && rng.bool() {
            status.insert("matchedPods".to_owned(), rng.u32(1..4).into());
        }
        if self == Self::Maintenance {
            status = maintenance::random_status(rng);
        }
        if self == Self::Request || rng.bool() {
            let first = condition("First", "True", "one");
            let conditions = random_items(rng, first, |rng, letter| {
                condition(
                    &format!("Example{letter}"),
                    if rng.bool() { "True" } else { "False" },
                    if rng.bool() { "one" } else { "two" },
                )
            });
            status.insert("conditions".to_owned(), conditions);
        }
        json!({ "status": status })
    }
}

fn random_map(rng: &mut Rng, prefix: &str) -> Value {
    let mut members = Map::new();
    for _ in 0..rng.usize(1..4) {
        let name = format!("{prefix}-{}", rng.u8(0..4));
        members.insert(name, format!("v{}", rng.u8(0..3)).into());
    }
    members.into()
}

fn random_names(rng: &mut Rng, prefix: &str) -> Value {
    let mut names: Vec<_> = (0..3).map(|number| format!("{prefix}{number}")).collect();
    rng.shuffle(&mut names);
    names.truncate(rng.usize(1..3));
    names.into()
}

fn condition(type_: &str, status: &str, message: &str) -> Value {
    json!({
        "type": type_,
        "status": status,
        "reason": "Tested",
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

/// A list of `first` and some others, in any order.
fn random_items(rng: &mut Rng, first: Value, item: impl Fn(&mut Rng, &str) -> Value) -> Value {
    let mut letters = vec!["a", "b", "c", "d"];
    rng.shuffle(&mut letters);
    letters.truncate(rng.usize(1..4));
    let mut items: Vec<_> = letters.into_iter().map(|letter| item(rng, letter)).collect();
    items.push(first);
    rng.shuffle(&mut items);
    items.into()
}
