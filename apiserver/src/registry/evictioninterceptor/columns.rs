//! The columns of `kubectl get evictioninterceptors`.

use drydock_machinery::table::{Cell, Column, ColumnType, UNKNOWN, age_of, name_of};
use drydock_proto::kinds::evictioninterceptor::{
    ACCEPTED, EvictionInterceptorSpec, EvictionInterceptorStatus,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::registry::view::part;

pub(super) const COLUMNS: [Column; 7] = [
    Column::NAME,
    Column::new("Interceptor", ColumnType::String, "The name of the interceptor."),
    Column::new(
        "Priority",
        ColumnType::Integer,
        "The interceptor with the highest priority is activated first.",
    ),
    Column::new("Pods", ColumnType::Integer, "The number of pods that match."),
    Column::new("Accepted", ColumnType::String, "Whether the rule is in effect."),
    Column::AGE,
    Column::new(
        "Role",
        ColumnType::String,
        "The role of the interceptor for its pods.",
    )
    .wide(),
];

pub(super) fn cells(object: &Value, now: Timestamp) -> Vec<Cell> {
    let spec: EvictionInterceptorSpec = part(object, "spec").unwrap_or_default();
    let status: EvictionInterceptorStatus = part(object, "status").unwrap_or_default();
    let accepted = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == ACCEPTED);
    vec![
        name_of(object),
        json!(spec.interceptor_name),
        json!(spec.effective_priority()),
        json!(status.matched_pods),
        json!(accepted.map_or(UNKNOWN, |accepted| &accepted.status)),
        age_of(object, now),
        json!(spec.role.as_ref().map_or("", |role| role.as_str())),
    ]
}
