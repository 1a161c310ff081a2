//! The texts of the Events about maintenances and nodes.

use k8s_openapi::api::core::v1::Node;

use crate::events::EventContent;
use crate::nodemaintenance::model::MaintenanceEvent;
use crate::request_labels::MANAGER;

/// The maintenances that the Event is about, and its content.
pub(super) fn content_of(event: &MaintenanceEvent) -> (Vec<&str>, EventContent) {
    match event {
        MaintenanceEvent::FastForwarded { maintenance, node } => {
            let note =
                format!("Node {node} has reached later drain targets; they are not reset for {maintenance}.");
            let content = EventContent::warning("FastForwarded", "Drain", note);
            (vec![maintenance], content)
        }
        MaintenanceEvent::CordonConflict { node, maintenances } => {
            let note = format!(
                "Node {node} was made schedulable during maintenance {}; it is cordoned again.",
                maintenances.join(", ")
            );
            let content = EventContent::warning("CordonConflict", "Cordon", note);
            (maintenances.iter().map(String::as_str).collect(), content)
        }
        MaintenanceEvent::StaticPods { maintenance, count } => {
            let note = format!("blocked: static pod ({count} on drained nodes)");
            let content = EventContent::warning("StaticPods", "Drain", note);
            (vec![maintenance], content)
        }
        MaintenanceEvent::TolerantDaemonSetPods {
            maintenance,
            description,
        } => {
            let note = format!("Left alone: {description}.");
            let content = EventContent::warning("DaemonSetPod", "Drain", note);
            (vec![maintenance], content)
        }
        MaintenanceEvent::ComesBack {
            maintenance,
            description,
        } => {
            let content = EventContent::warning("ComesBack", "Drain", format!("{description}."));
            (vec![maintenance], content)
        }
        MaintenanceEvent::StageStarted { maintenance, stage } => {
            let note = format!("Stage {stage} has started.");
            (
                vec![maintenance],
                EventContent::normal("StageStarted", "Stage", note),
            )
        }
        MaintenanceEvent::Blocked {
            maintenance,
            description,
        } => {
            let content = EventContent::warning("Blocked", "Drain", description);
            (vec![maintenance], content)
        }
        MaintenanceEvent::NodesVanished { maintenance, names } => {
            let note = format!("Nodes are gone or no longer selected: {names}.");
            (
                vec![maintenance],
                EventContent::warning("NodesVanished", "Drain", note),
            )
        }
        MaintenanceEvent::Drained { maintenance } => {
            let note = "All targeted pods are gone from all selected nodes.";
            let content = EventContent::normal("Drained", "Drain", note);
            (vec![maintenance], content)
        }
        MaintenanceEvent::Completed { maintenance } => {
            let note = "Nodes are released and requests withdrawn.";
            let content = EventContent::normal("Completed", "Complete", note);
            (vec![maintenance], content)
        }
    }
}

/// The Event about a node that somebody makes schedulable, or untaints, again and again. `node` is as it was written last.
pub(super) fn fight(node: &Node, maintenances: &str) -> EventContent {
    let others = node.metadata.managed_fields.iter().flatten();
    let last = others
        .filter(|entry| entry.manager.as_deref() != Some(MANAGER))
        .filter(|entry| entry.subresource.as_deref().unwrap_or_default().is_empty())
        .max_by_key(|entry| entry.time.as_ref().map(|time| time.0))
        .and_then(|entry| entry.manager.as_deref());
    let by = last
        .map(|name| format!(" Somebody else who wrote it last: {name}."))
        .unwrap_or_default();
    let text = format!(
        "Somebody undoes again and again what maintenance {maintenances} does to the node: its cordon, its taint or its \
         annotation. It is restored after pauses of up to a minute, and its pods are not asked to leave meanwhile.{by}"
    );
    EventContent::warning("CordonFight", "Cordon", text)
}
