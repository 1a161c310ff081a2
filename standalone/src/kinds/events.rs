//! Events of two groups: recorders write events.k8s.io/v1, and kubectl reads core/v1. [`crate::events`] keeps a core/v1
//! copy of each.

use drydock_machinery::table::{Cell, Column, ColumnType, UNKNOWN, time_since};
use jiff::Timestamp;
use serde_json::Value;

use super::{BuiltIn, Rules, text_of};
use crate::events::last_seen;
use crate::object::text;

pub(super) fn kinds() -> Vec<BuiltIn> {
    vec![
        event(
            "",
            Rules {
                selectable_fields: &[
                    "involvedObject.apiVersion",
                    "involvedObject.fieldPath",
                    "involvedObject.kind",
                    "involvedObject.name",
                    "involvedObject.namespace",
                    "involvedObject.resourceVersion",
                    "involvedObject.uid",
                    "reason",
                    "reportingComponent",
                    "source",
                    "type",
                ],
                cells: |event, now| cells(event, "/involvedObject", "/message", now),
                columns: COLUMNS,
                ..Rules::PLAIN
            },
        ),
        event(
            "events.k8s.io",
            Rules {
                selectable_fields: &[
                    "reason",
                    "regarding.kind",
                    "regarding.name",
                    "regarding.namespace",
                    "regarding.uid",
                    "type",
                ],
                cells: |event, now| cells(event, "/regarding", "/note", now),
                columns: COLUMNS,
                ..Rules::PLAIN
            },
        ),
    ]
}

fn event(group: &'static str, rules: Rules) -> BuiltIn {
    BuiltIn {
        group,
        kind: "Event",
        plural: "events",
        singular: "event",
        short_names: &["ev"],
        rules,
        ..BuiltIn::V1
    }
}

const COLUMNS: &[Column] = &[
    Column::new("Last Seen", ColumnType::String, "When it last happened."),
    Column::new("Type", ColumnType::String, "Normal or Warning."),
    Column::new("Reason", ColumnType::String, "What happened, in one word."),
    Column::new("Object", ColumnType::String, "The object it happened to."),
    Column::new("Message", ColumnType::String, "What happened, in one sentence."),
];

fn cells(event: &Value, about: &str, message: &str, now: Timestamp) -> Vec<Cell> {
    let kind = text(event, &format!("{about}/kind")).to_ascii_lowercase();
    let name = text(event, &format!("{about}/name"));
    vec![
        time_since(last_seen(event), now).into(),
        text_of(event, "/type", UNKNOWN),
        text_of(event, "/reason", UNKNOWN),
        format!("{kind}/{name}").into(),
        text_of(event, message, ""),
    ]
}
