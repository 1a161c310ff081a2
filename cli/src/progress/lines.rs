//! Progress as plain lines, for logs and pipes: one for each change, none while nothing changes.

use std::collections::BTreeMap;

use drydock_proto::kinds::nodemaintenance::Stage;

use super::Snapshot;
use crate::terminal::printable;

/// The lines about what changed between two snapshots; all of the second when there is no first.
#[must_use]
pub fn changes(before: Option<&Snapshot>, after: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    if before.is_none_or(|before| before.stage != after.stage) {
        lines.push(format!("{}: stage {}", after.maintenance, after.stage));
    }
    let nodes: BTreeMap<&str, _> = before
        .iter()
        .flat_map(|before| &before.nodes)
        .map(|node| (node.name.as_str(), node))
        .collect();
    for node in &after.nodes {
        let known = nodes.get(node.name.as_str());
        if known.is_some_and(|known| (known.left, known.is_cordoned) == (node.left, node.is_cordoned)) {
            continue;
        }
        let state = match (node.left, node.is_cordoned) {
            (0, true) if after.stage == Stage::Drain => "no pods left",
            (_, true) => "cordoned",
            (_, false) => "not cordoned",
        };
        lines.push(match (node.left, known) {
            (0, _) => format!("{}: {state}", node.name),
            (1, _) => format!("{}: {state}, 1 pod left", node.name),
            (left, _) => format!("{}: {state}, {left} pods left", node.name),
        });
    }
    let key = |held: &super::Held| (held.node.clone(), held.pod.clone(), held.reason.clone());
    let held_before: Vec<_> = before
        .iter()
        .flat_map(|before| &before.blockers)
        .map(key)
        .collect();
    let held_after: Vec<_> = after.blockers.iter().map(key).collect();
    for held in &after.blockers {
        if !held_before.contains(&key(held)) {
            let what = if held.pod.is_empty() {
                &after.maintenance
            } else {
                &held.pod
            };
            lines.push(
                printable(&format!("{what}: blocked: {}: {}", held.reason, held.message)).replace('\n', " "),
            );
        }
    }
    for (_, pod, reason) in held_before {
        if !held_after
            .iter()
            .any(|(_, held, why)| *held == pod && *why == reason)
        {
            let what = if pod.is_empty() {
                after.maintenance.clone()
            } else {
                pod
            };
            lines.push(format!("{what}: no longer blocked: {reason}"));
        }
    }
    let is_draining = after.stage == Stage::Drain;
    if is_draining && after.is_drained && before.is_none_or(|before| !before.is_drained) {
        lines.push(
            format!("{}: drained. {}", after.maintenance, after.outcome)
                .trim_end()
                .to_owned(),
        );
    }
    lines
}
