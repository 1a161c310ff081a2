//! What happens to a pod on which nothing acts but the embedded host?
//!
//! ```text
//! Pending ──► bound to a node ──► Running, ready ──► (deleted) its grace period ──► gone
//! ```
//!
//! [`decide`] is pure: a pod, the nodes and the time yield the next step, or when to look again. Nothing runs anywhere:
//! containers are ready because the clock says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use drydock_apiserver::error::{ApiError, Reason};
use drydock_apiserver::registry::metadata::time_text;
use drydock_apiserver::registry::resource::Part;
use drydock_machinery::selector::node::NodeMatcher;
use drydock_proto::kinds::nodemaintenance::NodeSelector;
use drydock_storage::Store;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::objects::{Kind, Objects, Place};
use crate::pod::member_mut;
use crate::pod::{
    Condition, condition, integer, is_ready, is_terminal, items, labels, node_name, phase, set,
    set_condition, text, time,
};
use crate::reconcile::Reconcile;

/// How long a bound pod takes to be running and ready.
const START: SignedDuration = SignedDuration::from_secs(1);

/// The taint that `spec.unschedulable` stands for.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// A node as the scheduler sees it.
#[derive(Debug, Clone)]
struct Node {
    name: String,
    labels: BTreeMap<String, String>,
    /// Key, value and effect.
    taints: Vec<(String, String, String)>,
    ready: bool,
    pods: usize,
}

impl Node {
    fn read(node: &Value, pods: &[Value]) -> Self {
        let name = text(node, "/metadata/name").to_owned();
        let mut taints: Vec<_> = items(node, "/spec/taints")
            .iter()
            .map(|taint| {
                (
                    text(taint, "/key").to_owned(),
                    text(taint, "/value").to_owned(),
                    text(taint, "/effect").to_owned(),
                )
            })
            .filter(|(_, _, effect)| effect != "PreferNoSchedule")
            .collect();
        if node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true) {
            taints.push((UNSCHEDULABLE.to_owned(), String::new(), "NoSchedule".to_owned()));
        }
        Self {
            labels: labels(node),
            taints,
            ready: is_ready(node) && text(node, "/metadata/deletionTimestamp").is_empty(),
            pods: pods
                .iter()
                .filter(|pod| node_name(pod) == name && !is_terminal(pod))
                .count(),
            name,
        }
    }

    fn takes(&self, pod: &Value) -> bool {
        self.ready && self.is_chosen_by(pod) && self.taints.iter().all(|taint| is_tolerated(pod, taint))
    }

    fn is_chosen_by(&self, pod: &Value) -> bool {
        let wanted = pod
            .pointer("/spec/nodeSelector")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let affinity = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        let required = pod.pointer(affinity).filter(|required| !required.is_null());
        wanted
            .into_iter()
            .all(|(label, value)| self.labels.get(label).map(String::as_str) == value.as_str())
            && required.is_none_or(|required| {
                let selector = serde_json::from_value::<NodeSelector>(required.clone()).ok();
                let matcher = selector.and_then(|selector| NodeMatcher::try_from(&selector).ok());
                matcher.is_some_and(|matcher| {
                    matcher.matches(&self.name, |label| self.labels.get(label).map(String::as_str))
                })
            })
    }
}

fn is_tolerated(pod: &Value, (key, value, effect): &(String, String, String)) -> bool {
    items(pod, "/spec/tolerations").iter().any(|toleration| {
        let (own_key, own_effect) = (text(toleration, "/key"), text(toleration, "/effect"));
        let exists = text(toleration, "/operator") == "Exists";
        (own_effect.is_empty() || own_effect == effect)
            && (own_key == key || (own_key.is_empty() && exists))
            && (exists || text(toleration, "/value") == value)
    })
}

/// What is done to a pod next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// It gets a node.
    Bind(String),
    /// No node takes it, and it does not say so yet.
    SayUnschedulable(String),
    /// Its containers are running and ready.
    Start,
    /// Its time to end is over.
    Remove,
}

/// A step, or when there may be one.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    Step(Step),
    At(Timestamp),
    Nothing,
}

fn decide(pod: &Value, nodes: &[Node], now: Timestamp) -> Next {
    if let Some(gone_at) = time(pod, "/metadata/deletionTimestamp") {
        return match integer(pod, "/metadata/deletionGracePeriodSeconds") {
            // Finalizers hold it.
            None | Some(0) => Next::Nothing,
            Some(_) if gone_at <= now => Next::Step(Step::Remove),
            Some(_) => Next::At(gone_at),
        };
    }
    if phase(pod) != "Pending" {
        return Next::Nothing;
    }
    let bound_to = node_name(pod);
    if bound_to.is_empty() {
        return schedule(pod, nodes);
    }
    if !nodes.iter().any(|node| node.name == bound_to) {
        return Next::Nothing;
    }
    let bound_at = condition(pod, "PodScheduled")
        .and_then(|scheduled| time(scheduled, "/lastTransitionTime"))
        .or_else(|| time(pod, "/metadata/creationTimestamp"))
        .unwrap_or(now);
    let starts_at = bound_at.saturating_add(START).unwrap_or(now);
    if starts_at <= now {
        Next::Step(Step::Start)
    } else {
        Next::At(starts_at)
    }
}

fn schedule(pod: &Value, nodes: &[Node]) -> Next {
    if !items(pod, "/spec/schedulingGates").is_empty() {
        return Next::Nothing;
    }
    let fitting = nodes.iter().filter(|node| node.takes(pod));
    if let Some(node) = fitting.min_by_key(|node| (node.pods, &node.name)) {
        return Next::Step(Step::Bind(node.name.clone()));
    }
    let message = format!("0/{} nodes are available for the pod.", nodes.len());
    if condition(pod, "PodScheduled").is_some_and(|said| text(said, "/message") == message) {
        Next::Nothing
    } else {
        Next::Step(Step::SayUnschedulable(message))
    }
}

/// The status of a pod whose containers run.
fn start(pod: &mut Value, now: Timestamp) {
    let started = time_text(now);
    let statuses: Vec<Value> = items(pod, "/spec/containers")
        .iter()
        .map(|container| {
            json!({
                "name": text(container, "/name"),
                "image": text(container, "/image"),
                "imageID": "",
                "ready": true,
                "started": true,
                "restartCount": 0,
                "state": { "running": { "startedAt": started } },
            })
        })
        .collect();
    let address = address_of(text(pod, "/metadata/uid"));
    let status = member_mut(pod, "status");
    for (member, value) in [
        ("phase", json!("Running")),
        ("startTime", json!(started)),
        ("hostIP", json!("127.0.0.1")),
        ("hostIPs", json!([{ "ip": "127.0.0.1" }])),
        ("podIP", json!(address)),
        ("podIPs", json!([{ "ip": address }])),
        ("containerStatuses", Value::Array(statuses)),
    ] {
        set(status, member, value);
    }
    for type_ in [
        "PodScheduled",
        "PodReadyToStartContainers",
        "Initialized",
        "ContainersReady",
        "Ready",
    ] {
        set_condition(pod, Condition::holds(type_), now);
    }
}

/// An address on loopback that looks like the pod's own: made from its uid, for show.
fn address_of(uid: &str) -> String {
    let sum = uid.bytes().fold(17_u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    let [_, a, b, c] = sum.to_be_bytes();
    format!("127.{a}.{b}.{}", c.max(2))
}

/// Carries pods through their lives.
pub(crate) struct PodLifeCycle<S: Store> {
    pub(crate) objects: Arc<Objects<S>>,
}

impl<S: Store> PodLifeCycle<S> {
    async fn step(&self, pod: &Value, step: Step) -> Result<(), ApiError> {
        let now = self.objects.now();
        let place = Place {
            kind: Kind::PODS,
            namespace: text(pod, "/metadata/namespace"),
            name: text(pod, "/metadata/name"),
        };
        let uid = text(pod, "/metadata/uid");
        // The pod may have been replaced by another of its name since it was read.
        let same = |current: &Value| {
            if text(current, "/metadata/uid") == uid {
                Ok(())
            } else {
                Err(replaced(place.name))
            }
        };
        match step {
            Step::Bind(node) => {
                self.objects
                    .edit(place, Part::Main, |pod| {
                        same(pod)?;
                        set(member_mut(pod, "spec"), "nodeName", json!(node));
                        Ok(())
                    })
                    .await?;
                self.edit_status(place, same, |pod| {
                    set_condition(pod, Condition::holds("PodScheduled"), now);
                })
                .await
            }
            Step::SayUnschedulable(message) => {
                let wanted = Condition {
                    type_: "PodScheduled",
                    status: "False",
                    reason: "Unschedulable",
                    message: &message,
                };
                self.edit_status(place, same, |pod| set_condition(pod, wanted, now))
                    .await
            }
            Step::Start => self.edit_status(place, same, |pod| start(pod, now)).await,
            Step::Remove => self.objects.delete(place, uid, Some(0)).await,
        }
    }

    async fn edit_status(
        &self,
        place: Place<'_>,
        same: impl Fn(&Value) -> Result<(), ApiError> + Send + Sync,
        edit: impl Fn(&mut Value) + Send + Sync,
    ) -> Result<(), ApiError> {
        self.objects
            .edit(place, Part::Status, |pod| {
                same(pod)?;
                edit(pod);
                Ok(())
            })
            .await
            .map(drop)
    }
}

fn replaced(name: &str) -> ApiError {
    ApiError::conflict(
        drydock_apiserver::error::GroupResource {
            group: "",
            resource: "pods",
        },
        name,
        "the pod was replaced",
    )
}

impl<S: Store> Reconcile for PodLifeCycle<S> {
    const NAME: &'static str = "pod life cycle";

    fn follows(&self) -> &[Kind] {
        &[Kind::PODS, Kind::NODES]
    }

    async fn look(&self) -> Result<Option<Timestamp>, ApiError> {
        let pods = self.objects.list(Kind::PODS, None).await?;
        let nodes = self.objects.list(Kind::NODES, None).await?;
        let mut nodes: Vec<Node> = nodes.iter().map(|node| Node::read(node, &pods)).collect();
        let mut again: Option<Timestamp> = None;
        for pod in &pods {
            match decide(pod, &nodes, self.objects.now()) {
                Next::Nothing => {}
                Next::At(at) => again = Some(again.map_or(at, |before| before.min(at))),
                Next::Step(step) => {
                    if let Step::Bind(name) = &step
                        && let Some(node) = nodes.iter_mut().find(|node| node.name == *name)
                    {
                        node.pods += 1;
                    }
                    match self.step(pod, step).await {
                        // Gone, or another pod of that name: the next look sees what is there.
                        Err(error) if error.is(Reason::NotFound) || error.is(Reason::Conflict) => {}
                        other => other?,
                    }
                }
            }
        }
        Ok(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn nodes(specs: &[(&str, Value)]) -> Vec<Node> {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        specs
            .iter()
            .map(|(name, spec)| {
                let labels = json!({"kubernetes.io/hostname": name});
                let node = json!({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"conditions": ready}});
                Node::read(&node, &[])
            })
            .collect()
    }

    fn pod(spec: &Value, status: &Value) -> Value {
        json!({"metadata": {"name": "p", "uid": "u", "creationTimestamp": "1970-01-01T00:00:10Z"}, "spec": spec, "status": status})
    }

    #[track_caller]
    fn check(pod: &Value, nodes: &[Node], second: i64, expected: &Next) {
        assert_eq!(decide(pod, nodes, at(second)), *expected, "{pod} at {second}");
    }

    fn bound_to(name: &str) -> Next {
        Next::Step(Step::Bind(name.to_owned()))
    }

    #[test]
    fn a_pod_is_bound_started_and_left_alone() {
        let nodes = nodes(&[("a", json!({}))]);
        check(&pod(&json!({}), &json!({})), &nodes, 10, &bound_to("a"));
        let on_a = json!({"nodeName": "a"});
        check(&pod(&on_a, &json!({})), &nodes, 10, &Next::At(at(11)));
        check(&pod(&on_a, &json!({})), &nodes, 11, &Next::Step(Step::Start));
        let scheduled =
            json!({"conditions": [{"type": "PodScheduled", "lastTransitionTime": "1970-01-01T00:00:20Z"}]});
        check(&pod(&on_a, &scheduled), &nodes, 20, &Next::At(at(21)));
        check(
            &pod(&on_a, &json!({"phase": "Running"})),
            &nodes,
            99,
            &Next::Nothing,
        );
        check(
            &pod(&json!({"nodeName": "nowhere"}), &json!({})),
            &nodes,
            99,
            &Next::Nothing,
        );
    }

    #[test]
    fn a_deleted_pod_goes_when_its_grace_period_is_over() {
        let deleted = |grace: i64| {
            let mut pod = pod(&json!({"nodeName": "a"}), &json!({"phase": "Running"}));
            pod["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:01:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            pod
        };
        check(&deleted(30), &[], 59, &Next::At(at(60)));
        check(&deleted(30), &[], 60, &Next::Step(Step::Remove));
        check(&deleted(0), &[], 61, &Next::Nothing);
    }

    #[test]
    fn a_pod_goes_where_it_is_taken() {
        let tainted = json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]});
        let nodes = nodes(&[
            ("cordoned", json!({"unschedulable": true})),
            ("tainted", tainted),
            (
                "soft",
                json!({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}),
            ),
        ]);
        check(&pod(&json!({}), &json!({})), &nodes, 10, &bound_to("soft"));
        for (spec, expected) in [
            (
                json!({"nodeSelector": {"kubernetes.io/hostname": "tainted"}}),
                None,
            ),
            (
                json!({"nodeSelector": {"kubernetes.io/hostname": "tainted"}, "tolerations": [{"key": "k", "value": "v"}]}),
                Some("tainted"),
            ),
            (
                json!({"nodeSelector": {"kubernetes.io/hostname": "tainted"}, "tolerations": [{"key": "k", "value": "w"}]}),
                None,
            ),
            (
                json!({"nodeSelector": {"kubernetes.io/hostname": "cordoned"}, "tolerations": [{"operator": "Exists"}]}),
                Some("cordoned"),
            ),
            (
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["soft"]}]}]}}}}),
                Some("soft"),
            ),
        ] {
            let nowhere = Next::Step(Step::SayUnschedulable(
                "0/3 nodes are available for the pod.".to_owned(),
            ));
            check(
                &pod(&spec, &json!({})),
                &nodes,
                10,
                &expected.map_or(nowhere, bound_to),
            );
        }
    }

    #[test]
    fn a_pod_says_once_that_no_node_takes_it() {
        let mut waiting = pod(&json!({}), &json!({}));
        let Next::Step(Step::SayUnschedulable(message)) = decide(&waiting, &[], at(10)) else {
            panic!("not said")
        };
        let said = Condition {
            type_: "PodScheduled",
            status: "False",
            reason: "Unschedulable",
            message: &message,
        };
        set_condition(&mut waiting, said, at(10));
        check(&waiting, &[], 11, &Next::Nothing);
        check(
            &pod(&json!({"schedulingGates": [{"name": "g"}]}), &json!({})),
            &[],
            11,
            &Next::Nothing,
        );
    }

    #[test]
    fn the_node_with_the_fewest_pods_is_taken() {
        let mut nodes = nodes(&[("a", json!({})), ("b", json!({}))]);
        nodes[0].pods = 2;
        check(&pod(&json!({}), &json!({})), &nodes, 10, &bound_to("b"));
    }

    #[test]
    fn a_started_pod_is_ready_and_has_an_address() {
        let mut started = pod(&json!({"containers": [{"name": "c", "image": "i"}]}), &json!({}));
        start(&mut started, at(11));
        assert!(is_ready(&started));
        assert_eq!(phase(&started), "Running");
        assert_eq!(
            started["status"]["containerStatuses"][0]["state"]["running"]["startedAt"],
            "1970-01-01T00:00:11Z"
        );
        assert!(text(&started, "/status/podIP").starts_with("127."));
    }
}
