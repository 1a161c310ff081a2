//! What holds a drain: the targeted pods that cannot leave, and the controllers whose pods come back. The list contains
//! the oldest blockers and changes only when their causes do: it contains no counts of attempts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use drydock_proto::kinds::nodemaintenance::{Blocker, MAX_BLOCKER_MESSAGE_BYTES, MAX_BLOCKERS, PodType};
use jiff::Timestamp;

use super::progress::{DrainProgress, has_passed};
use crate::conditions::whole_seconds;
use crate::nodemaintenance::model::{Obstacle, PodFacts, RequestFacts, RequestState, StaticPods};
use crate::nodemaintenance::replacement::LONGEST_DELETION;

/// The reason of a request that stands in the way.
const OBSTRUCTED: &str = "RequestObstructed";

/// What holds the drain of a node. The derived order is by age.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeBlocker<'a> {
    since: Timestamp,
    node: &'a str,
    namespace: &'a str,
    pod: &'a str,
    request: &'a str,
    reason: &'a str,
    message: Cow<'a, str>,
}

/// The blockers of all nodes, by node.
pub(super) type BlockersByNode<'a> = BTreeMap<usize, Vec<NodeBlocker<'a>>>;

/// Finds what holds the drains of all nodes.
pub(super) fn find_blockers<'a>(progress: &DrainProgress<'a>) -> BlockersByNode<'a> {
    let state = progress.state;
    let mut blockers = BlockersByNode::new();
    let name = |index: usize| state.nodes.get(index).map_or("", |node| node.name.as_str());
    for (index, pod) in state.pods.iter().enumerate() {
        if progress.is_targeted(index, pod)
            && let Some((since, reason, message)) = pod_blocker(progress, pod)
        {
            blockers.entry(pod.node).or_default().push(NodeBlocker {
                since,
                node: name(pod.node),
                namespace: &pod.namespace,
                pod: &pod.name,
                request: if state.requests.contains_key(&pod.uid) {
                    &pod.uid
                } else {
                    ""
                },
                reason,
                message,
            });
        }
    }
    for (index, node) in progress.nodes.iter().enumerate() {
        for controller in node.returning.values().filter(|one| one.is_blocking()) {
            let pod = controller.present;
            let has_request = |pod: &&PodFacts| state.requests.contains_key(&pod.uid);
            blockers.entry(index).or_default().push(NodeBlocker {
                since: controller.first_requested_at,
                node: name(index),
                namespace: &controller.life.namespace,
                pod: pod.map_or("", |pod| pod.name.as_str()),
                request: pod.filter(has_request).map_or("", |pod| pod.uid.as_str()),
                reason: "ComesBack",
                message: Cow::Owned(controller.describe(progress.now)),
            });
        }
    }
    blockers
}

/// Since when a targeted pod cannot leave, and why; `None` when nothing is known to hold it.
fn pod_blocker<'a>(
    progress: &DrainProgress<'a>,
    pod: &'a PodFacts,
) -> Option<(Timestamp, &'a str, Cow<'a, str>)> {
    let request = progress.state.requests.get(&pod.uid);
    if Some(pod.pod_type) == PodType::Static.rank() {
        let is_required = progress.state.static_pods == StaticPods::Required;
        let message = Cow::Borrowed("Only the kubelet of its node can end a static pod.");
        // Without a request, its namespace is being deleted.
        let since = request.map(|request| request.created).or(pod.namespace_deleted);
        return since
            .filter(|_| is_required)
            .map(|since| (since, "StaticPod", message));
    }
    let found = request.and_then(|request| request_blocker(progress, pod, request));
    let refused = || progress.state.refused.get(&pod.uid).map(blocker_of);
    let terminating = || {
        let message = Cow::Borrowed("Its namespace is being deleted, and it is deleted with it.");
        pod.namespace_deleted
            .map(|since| (since, "NamespaceTerminating", message))
    };
    found.or_else(terminating).or_else(refused)
}

/// Since when and why the request does not end its pod.
fn request_blocker<'a>(
    progress: &DrainProgress<'a>,
    pod: &'a PodFacts,
    request: &'a RequestFacts,
) -> Option<(Timestamp, &'a str, Cow<'a, str>)> {
    if let Some(deletion) = &request.deletion {
        let is_late = has_passed(deletion.since, LONGEST_DELETION, progress.now);
        let message = format!(
            "The eviction request is being deleted and held by finalizers: {}.",
            deletion.finalizers.join(", ")
        );
        return is_late.then_some((deletion.since, OBSTRUCTED, Cow::Owned(message)));
    }
    if let Some(other) = &request.other_pod {
        let message = format!(
            "The eviction request has the UID of pod {} and names pod {other}.",
            pod.name
        );
        let since = request.ended.unwrap_or(request.created);
        return Some((since, OBSTRUCTED, Cow::Owned(message)));
    }
    match (request.state, &request.obstacle) {
        // It is replaced now.
        (RequestState::Canceled, _) if request.replaced == 0 && !request.is_cancellation_forbidden => None,
        (_, Some(obstacle)) => Some(blocker_of(obstacle)),
        (RequestState::Evicted, None) => {
            let since = request.ended?;
            let message = Cow::Borrowed("The eviction request is finished, and its pod is still there.");
            has_passed(since, LONGEST_DELETION, progress.now).then_some((since, OBSTRUCTED, message))
        }
        _ => None,
    }
}

fn blocker_of(obstacle: &Obstacle) -> (Timestamp, &str, Cow<'_, str>) {
    (
        obstacle.since,
        obstacle.reason.as_str(),
        Cow::Borrowed(obstacle.message.as_str()),
    )
}

/// The oldest blockers of these nodes, as the API shows them.
pub(super) fn oldest(blockers: &BlockersByNode<'_>, nodes: impl Iterator<Item = usize>) -> Vec<Blocker> {
    let mut found: Vec<&NodeBlocker<'_>> = nodes.filter_map(|node| blockers.get(&node)).flatten().collect();
    found.sort();
    found
        .into_iter()
        .take(MAX_BLOCKERS)
        .map(|blocker| {
            let end = blocker.message.floor_char_boundary(MAX_BLOCKER_MESSAGE_BYTES);
            Blocker {
                node: blocker.node.to_owned(),
                namespace: blocker.namespace.to_owned(),
                pod: blocker.pod.to_owned(),
                request: blocker.request.to_owned(),
                reason: blocker.reason.to_owned(),
                message: blocker.message.get(..end).unwrap_or_default().to_owned(),
                since: Some(whole_seconds(blocker.since)),
            }
        })
        .collect()
}
