//! What pods lose when they leave, what brings them back, and what drains leave alone.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};

use super::{Facts, Finding, FoundPod, Severity, finding};
use crate::pods;

/// The label of the pods of Drydock itself.
const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "drydock");

/// Drydock's own pods: while its server moves, nobody reports progress.
pub(super) fn own_server(node: &str, leaving: &[&FoundPod], findings: &mut Vec<Finding>) {
    let own: Vec<&FoundPod> = leaving
        .iter()
        .copied()
        .filter(|found| {
            let labels = found.pod.metadata.labels.as_ref();
            labels
                .and_then(|labels| labels.get(PART_OF.0))
                .is_some_and(|value| value == PART_OF.1)
        })
        .collect();
    if !own.is_empty() {
        let message = "Drydock itself runs on this node: the drain pauses while it moves to another one.";
        findings.push(finding(
            Severity::Warns,
            "OwnServer",
            node,
            &own,
            message.to_owned(),
        ));
    }
}

/// Volumes that exist on this node alone.
pub(super) fn volumes(facts: &Facts, node: &str, leaving: &[&FoundPod], findings: &mut Vec<Finding>) {
    for found in leaving {
        let namespace = pods::namespace(&found.pod);
        let volumes = found.pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
        let mut pinned = Vec::new();
        for volume in volumes.unwrap_or_default() {
            let Some(claim) = volume.persistent_volume_claim.as_ref() else {
                continue;
            };
            let bound = facts.claims.iter().find(|known| {
                known.metadata.namespace.as_deref() == Some(namespace)
                    && known.metadata.name.as_deref() == Some(claim.claim_name.as_str())
            });
            let name = bound.and_then(|claim| claim.spec.as_ref()?.volume_name.as_deref());
            let known = facts
                .volumes
                .iter()
                .find(|known| known.metadata.name.as_deref() == name);
            if name.is_some() && known.is_some_and(is_pinned) {
                pinned.push(claim.claim_name.as_str());
            }
        }
        if let Some(first) = pinned.first() {
            let message = format!(
                "The pod cannot start on another node: its volumes exist on this one alone: {}.",
                pinned.join(", ")
            );
            findings.push(
                finding(Severity::Warns, "PinnedVolume", node, &[found], message)
                    .with_command(format!("kubectl describe pvc {first} -n {namespace}")),
            );
        }
    }
    let temporary: Vec<&FoundPod> = leaving
        .iter()
        .copied()
        .filter(|found| has_empty_dir(&found.pod))
        .collect();
    if !temporary.is_empty() {
        let message = "What these pods have in emptyDir volumes is lost.";
        findings.push(finding(
            Severity::Notes,
            "EmptyDir",
            node,
            &temporary,
            message.to_owned(),
        ));
    }
}

fn has_empty_dir(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    volumes
        .unwrap_or_default()
        .iter()
        .any(|volume| volume.empty_dir.is_some())
}

/// Whether a volume can be used on one node only: a local one, or one with the name of a node in its affinity.
fn is_pinned(volume: &PersistentVolume) -> bool {
    let Some(spec) = &volume.spec else { return false };
    let required = spec
        .node_affinity
        .as_ref()
        .and_then(|affinity| affinity.required.as_ref());
    let names_a_node = required.is_some_and(|required| {
        required.node_selector_terms.iter().all(|term| {
            term.match_expressions.iter().flatten().any(|requirement| {
                requirement.key == "kubernetes.io/hostname"
                    && requirement.operator == "In"
                    && requirement
                        .values
                        .as_ref()
                        .is_some_and(|values| values.len() == 1)
            })
        })
    });
    spec.local.is_some() || spec.host_path.is_some() || names_a_node
}

/// Pods that are the only one of their controller, and pods without one.
pub(super) fn replicas(facts: &Facts, node: &str, leaving: &[&FoundPod], findings: &mut Vec<Finding>) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in facts.neighbours.iter().filter(|pod| !pods::is_terminal(pod)) {
        if let Some((_, _, uid)) = pods::controller(pod) {
            *counts.entry(uid).or_insert(0) += 1;
        }
    }
    let mut unmanaged = Vec::new();
    for found in leaving {
        let pod = &found.pod;
        match pods::controller(pod) {
            None => unmanaged.push(*found),
            Some(("ReplicaSet" | "StatefulSet" | "ReplicationController", _, uid))
                if counts.get(uid).copied().unwrap_or_default() <= 1 =>
            {
                let workload = pods::workload(pod).unwrap_or_default();
                let message = format!("{workload} has one replica: nothing serves while it moves.");
                let mut single = finding(Severity::Warns, "SingleReplica", node, &[found], message);
                if pods::is_scalable(&workload) {
                    let namespace = pods::namespace(pod);
                    single =
                        single.with_command(format!("kubectl scale {workload} -n {namespace} --replicas=2"));
                }
                findings.push(single);
            }
            Some(_) => {}
        }
    }
    if !unmanaged.is_empty() {
        let message = "Nothing creates these pods again: they have no controller.";
        findings.push(finding(
            Severity::Warns,
            "Unmanaged",
            node,
            &unmanaged,
            message.to_owned(),
        ));
    }
}

/// Pods of other controllers than DaemonSets that tolerate everything: the scheduler may put them back.
pub(super) fn tolerations(node: &str, leaving: &[&FoundPod], findings: &mut Vec<Finding>) {
    let tolerant: Vec<&FoundPod> = leaving
        .iter()
        .copied()
        .filter(|found| !pods::is_daemon_set_pod(&found.pod) && pods::tolerates_everything(&found.pod))
        .collect();
    if !tolerant.is_empty() {
        let message = "The pods tolerate every taint: the scheduler may put them back on the cordoned node.";
        findings.push(finding(
            Severity::Warns,
            "ToleratesEverything",
            node,
            &tolerant,
            message.to_owned(),
        ));
    }
}

/// Annotations by which other programs are told to leave pods alone.
pub(super) fn habits(node: &str, leaving: &[&FoundPod], findings: &mut Vec<Finding>) {
    let mut by_habit: BTreeMap<String, Vec<&FoundPod>> = BTreeMap::new();
    for found in leaving {
        for habit in pods::habits(&found.pod) {
            by_habit.entry(habit).or_default().push(found);
        }
    }
    for (habit, held) in by_habit {
        let message =
            format!("The pods carry {habit}, which other programs heed. Drydock evicts them all the same.");
        findings.push(finding(Severity::Notes, "Annotated", node, &held, message));
    }
}

/// Pods that stay: static pods, and pods of DaemonSets that tolerate the drain taint.
pub(super) fn left_alone(node: &str, staying: &[&FoundPod], findings: &mut Vec<Finding>) {
    let (is_static, tolerant): (Vec<&FoundPod>, Vec<&FoundPod>) =
        staying.iter().partition(|found| pods::is_static(&found.pod));
    for (check, held, message) in [
        (
            "StaticPod",
            is_static,
            "Static pods stay: only the kubelet of the node can end them.",
        ),
        (
            "DaemonSetPod",
            tolerant,
            "Pods of DaemonSets that tolerate the drain taint stay.",
        ),
    ] {
        if !held.is_empty() {
            findings.push(finding(Severity::Notes, check, node, &held, message.to_owned()));
        }
    }
}
