//! The columns of `kubectl get nodemaintenances`.

use drydock_machinery::table::{Cell, Column, ColumnType, age_of, name_of};
use drydock_proto::kinds::nodemaintenance::NodeMaintenanceStatus;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::registry::view::{part, text};

/// How many nodes a row names.
const MAX_NODES_NAMED: usize = 5;

pub(super) const COLUMNS: [Column; 9] = [
    Column::NAME,
    Column::new(
        "Stage",
        ColumnType::String,
        "The stage that the maintenance is to reach.",
    ),
    Column::new("Nodes", ColumnType::Integer, "The number of selected nodes."),
    Column::new(
        "Drained",
        ColumnType::String,
        "The number of drained nodes, of those selected.",
    ),
    Column::new(
        "Pods Left",
        ColumnType::Integer,
        "The number of pods that are still to be evicted.",
    ),
    Column::new(
        "Message",
        ColumnType::String,
        "What the drain is doing or waiting for.",
    ),
    Column::AGE,
    Column::new(
        "Node Names",
        ColumnType::String,
        "The names of selected nodes, those that are not drained first.",
    )
    .wide(),
    Column::new(
        "Reason",
        ColumnType::String,
        "Why the nodes are taken out of service.",
    )
    .wide(),
];

pub(super) fn cells(object: &Value, now: Timestamp) -> Vec<Cell> {
    let status: NodeMaintenanceStatus = part(object, "status").unwrap_or_default();
    let drain = status.drain_status.as_ref();
    let pods_left = drain.map(|drain| {
        i64::from(drain.pods_pending_eviction_request) + i64::from(drain.active_eviction_requests)
    });
    // A count that the controller has not set yet is shown as empty, not as zero.
    let drained = status
        .selected_nodes
        .map(|nodes| format!("{}/{nodes}", status.drained_nodes.unwrap_or_default()));
    vec![
        name_of(object),
        json!(text(object, "/spec/stage")),
        json!(status.selected_nodes),
        json!(drained.unwrap_or_default()),
        json!(pods_left),
        json!(drain.map_or("", |drain| &drain.drain_message)),
        age_of(object, now),
        json!(node_names(&status)),
        json!(text(object, "/spec/reason")),
    ]
}

/// The first names of nodes, and how many more are selected.
fn node_names(status: &NodeMaintenanceStatus) -> String {
    let mut names: Vec<String> = status
        .node_statuses
        .iter()
        .take(MAX_NODES_NAMED)
        .map(|node| node.node_ref.name.clone())
        .collect();
    let selected = status
        .selected_nodes
        .and_then(|nodes| usize::try_from(nodes).ok());
    let listed = status.node_statuses.len();
    let others = selected.unwrap_or(listed).max(listed).saturating_sub(names.len());
    if others > 0 && !names.is_empty() {
        names.push(format!("{others} more"));
    }
    names.join(",")
}
