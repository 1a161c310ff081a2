//! What holds a drain: the targeted pods that cannot leave, and the controllers whose pods come back. The list contains
//! the oldest blockers and changes only when their causes do: it contains no counts of attempts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use drydock_proto::kinds::nodemaintenance::{Blocker, MAX_BLOCKER_MESSAGE_BYTES, MAX_BLOCKERS, PodType};
use jiff::Timestamp;

use super::progress::DrainProgress;
use crate::conditions::whole_seconds;
use crate::nodemaintenance::model::{PodFacts, StaticPods};

/// What holds the drain of a node. The derived order is by age.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeBlocker<'a> {
    since: Timestamp,
    node: &'a str,
    namespace: &'a str,
    pod: &'a str,
    request: &'a str,
    reason: &'static str,
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
                request: &pod.uid,
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
                namespace: &controller.last.namespace,
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
) -> Option<(Timestamp, &'static str, Cow<'a, str>)> {
    let request = progress.state.requests.get(&pod.uid)?;
    if Some(pod.pod_type) == PodType::Static.rank() {
        let is_required = progress.state.static_pods == StaticPods::Required;
        let message = Cow::Borrowed("Only the kubelet of its node can end a static pod.");
        return is_required.then_some((request.created, "StaticPod", message));
    }
    let obstacle = request.obstacle.as_ref()?;
    Some((
        obstacle.since,
        obstacle.reason,
        Cow::Borrowed(obstacle.message.as_str()),
    ))
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

/// The blocker of a maintenance that selects no node.
pub(super) fn no_node_selected(since: Option<Timestamp>, now: Timestamp) -> Blocker {
    Blocker {
        reason: "NoNodeSelected".to_owned(),
        message: "No node is selected.".to_owned(),
        since: Some(whole_seconds(since.unwrap_or(now))),
        ..Blocker::default()
    }
}
