//! The columns of `kubectl get nodemaintenances`.

use drydock_machinery::table::{Cell, Column, ColumnType, age_of, name_of};
use drydock_proto::kinds::nodemaintenance::NodeMaintenanceStatus;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::registry::face::Table;
use crate::registry::view::{part, text};

pub(super) const V1ALPHA3: Table = Table {
    columns: &COLUMNS,
    cells,
};

/// Without the columns whose fields this version does not have.
pub(super) const V1ALPHA1: Table = Table {
    columns: &[Column::NAME, STAGE, PODS_LEFT, Column::AGE, REASON],
    cells: |object, now| {
        let status: NodeMaintenanceStatus = part(object, "status").unwrap_or_default();
        vec![
            name_of(object),
            json!(text(object, "/spec/stage")),
            json!(pods_left(&status)),
            age_of(object, now),
            json!(text(object, "/spec/reason")),
        ]
    },
};

const STAGE: Column = Column::new(
    "Stage",
    ColumnType::String,
    "The stage that the maintenance is to reach.",
);
const PODS_LEFT: Column = Column::new(
    "Pods Left",
    ColumnType::Integer,
    "The number of pods that are still to be evicted.",
);
const REASON: Column = Column::new(
    "Reason",
    ColumnType::String,
    "Why the nodes are taken out of service.",
)
.wide();

/// How many nodes a row names.
const MAX_NODES_NAMED: usize = 5;

pub(super) const COLUMNS: [Column; 9] = [
    Column::NAME,
    STAGE,
    Column::new("Nodes", ColumnType::Integer, "The number of selected nodes."),
    Column::new(
        "Drained",
        ColumnType::String,
        "The number of drained nodes, of those selected.",
    ),
    PODS_LEFT,
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
    REASON,
];

fn pods_left(status: &NodeMaintenanceStatus) -> Option<i64> {
    let drain = status.drain_status.as_ref()?;
    Some(i64::from(drain.pods_pending_eviction_request) + i64::from(drain.active_eviction_requests))
}

pub(super) fn cells(object: &Value, now: Timestamp) -> Vec<Cell> {
    let status: NodeMaintenanceStatus = part(object, "status").unwrap_or_default();
    let drain = status.drain_status.as_ref();
    // A count that the controller has not set yet is shown as empty, not as zero.
    let drained = status
        .selected_nodes
        .map(|nodes| format!("{}/{nodes}", status.drained_nodes.unwrap_or_default()));
    vec![
        name_of(object),
        json!(text(object, "/spec/stage")),
        json!(status.selected_nodes),
        json!(drained.unwrap_or_default()),
        json!(pods_left(&status)),
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
