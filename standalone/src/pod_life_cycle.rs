//! The life cycle of pods. No container runs: status changes after fixed times.
//!
//! ```text
//! Pending ──► bound to a node ──► Running, ready ──► (deleted) grace period ──► removed
//! ```
//!
//! [`decide`] is pure: a pod, the nodes and the time yield the next step, or the time of the next one.

use std::sync::Arc;

use drydock_apiserver::error::{ApiError, Reason};
use drydock_apiserver::registry::metadata::time_text;
use drydock_apiserver::registry::part::Part;
use drydock_storage::Store;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::object::{Condition, condition, integer, items, member_mut, set, set_condition, text, time};
use crate::objects::{Kind, ObjectRef, Objects};
use crate::pod::{node_name, phase};
use crate::reconcile::{Reconcile, earlier, tolerate};
use crate::scheduler::{self, Node};

/// How long after its binding a pod is running and ready.
const START_AFTER: SignedDuration = SignedDuration::from_secs(1);

/// A change of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Bind it to this node.
    Bind(String),
    /// Report with this message that no node fits.
    ReportUnschedulable(String),
    /// Report that its containers are running and ready.
    Start,
    /// Remove it: its grace period is over.
    Remove,
}

/// What comes next for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// This step is due.
    Step(Step),
    /// A step is due at this time.
    At(Timestamp),
    /// No step is due until the pod or a node changes.
    Nothing,
}

fn decide(pod: &Value, nodes: &[Node], now: Timestamp) -> Next {
    if let Some(removed_at) = time(pod, "/metadata/deletionTimestamp") {
        return match integer(pod, "/metadata/deletionGracePeriodSeconds") {
            // Only finalizers keep it.
            None | Some(0) => Next::Nothing,
            Some(_) if removed_at <= now => Next::Step(Step::Remove),
            Some(_) => Next::At(removed_at),
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
    let starts_at = bound_at.saturating_add(START_AFTER).unwrap_or(now);
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
    if let Some(node) = scheduler::choose(pod, nodes) {
        return Next::Step(Step::Bind(node.name.clone()));
    }
    let message = format!("0/{} nodes are available for the pod.", nodes.len());
    if condition(pod, "PodScheduled").is_some_and(|reported| text(reported, "/message") == message) {
        Next::Nothing
    } else {
        Next::Step(Step::ReportUnschedulable(message))
    }
}

/// Sets the status of a pod whose containers are running.
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
        set_condition(pod, Condition::new_true(type_), now);
    }
}

/// A loopback address derived from the uid of a pod, for display only.
fn address_of(uid: &str) -> String {
    let sum = uid.bytes().fold(17_u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    let [_, a, b, c] = sum.to_be_bytes();
    format!("127.{a}.{b}.{}", c.max(2))
}

/// Binds, starts and removes pods.
pub(crate) struct PodLifeCycle<S: Store> {
    pub(crate) objects: Arc<Objects<S>>,
}

impl<S: Store> PodLifeCycle<S> {
    async fn step(&self, pod: &Value, step: Step) -> Result<(), ApiError> {
        let now = self.objects.now();
        let at = ObjectRef::to(Kind::PODS, pod);
        let uid = text(pod, "/metadata/uid");
        // Another pod of the same name may have replaced it since it was read.
        let same = |current: &Value| {
            if text(current, "/metadata/uid") == uid {
                Ok(())
            } else {
                Err(replaced(at.name))
            }
        };
        match step {
            Step::Bind(node) => {
                self.objects
                    .edit(at, Part::Main, |pod| {
                        same(pod)?;
                        set(member_mut(pod, "spec"), "nodeName", json!(node));
                        Ok(())
                    })
                    .await?;
                self.edit_status(at, same, |pod| {
                    set_condition(pod, Condition::new_true("PodScheduled"), now);
                })
                .await
            }
            Step::ReportUnschedulable(message) => {
                let wanted = Condition {
                    type_: "PodScheduled",
                    status: "False",
                    reason: "Unschedulable",
                    message: &message,
                };
                self.edit_status(at, same, |pod| set_condition(pod, wanted, now))
                    .await
            }
            Step::Start => self.edit_status(at, same, |pod| start(pod, now)).await,
            Step::Remove => self.objects.delete(Kind::PODS, pod, Some(0)).await,
        }
    }

    async fn edit_status(
        &self,
        at: ObjectRef<'_>,
        same: impl Fn(&Value) -> Result<(), ApiError> + Send + Sync,
        edit: impl Fn(&mut Value) + Send + Sync,
    ) -> Result<(), ApiError> {
        self.objects
            .edit(at, Part::Status, |pod| {
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

    fn watched(&self) -> &[Kind] {
        &[Kind::PODS, Kind::NODES]
    }

    async fn reconcile(&self) -> Result<Option<Timestamp>, ApiError> {
        let pods = self.objects.list(Kind::PODS, None).await?;
        let nodes = self.objects.list(Kind::NODES, None).await?;
        let mut nodes: Vec<Node> = nodes.iter().map(|node| Node::read(node, &pods)).collect();
        let mut again = None;
        for pod in &pods {
            match decide(pod, &nodes, self.objects.now()) {
                Next::Nothing => {}
                Next::At(at) => again = earlier(again, Some(at)),
                Next::Step(step) => {
                    if let Step::Bind(name) = &step
                        && let Some(node) = nodes.iter_mut().find(|node| node.name == *name)
                    {
                        node.pods += 1;
                    }
                    let done = self.step(pod, step).await;
                    tolerate(done, &[Reason::NotFound, Reason::Conflict])?;
                }
            }
        }
        Ok(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::is_ready;
    use crate::scheduler::tests::nodes;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
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
    fn a_pod_is_bound_then_started() {
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
    fn a_deleted_pod_is_removed_after_its_grace_period() {
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
    fn unschedulable_is_reported_once() {
        let cordoned = json!({"unschedulable": true});
        let nodes = nodes(&[("a", cordoned.clone()), ("b", cordoned)]);
        let mut waiting = pod(&json!({}), &json!({}));
        let message = "0/2 nodes are available for the pod.".to_owned();
        let report = Step::ReportUnschedulable(message.clone());
        check(&waiting, &nodes, 10, &Next::Step(report));
        let reported = Condition {
            type_: "PodScheduled",
            status: "False",
            reason: "Unschedulable",
            message: &message,
        };
        set_condition(&mut waiting, reported, at(10));
        check(&waiting, &nodes, 11, &Next::Nothing);
        check(
            &pod(&json!({"schedulingGates": [{"name": "g"}]}), &json!({})),
            &[],
            11,
            &Next::Nothing,
        );
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
