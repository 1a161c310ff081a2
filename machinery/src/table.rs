//! What does `kubectl get` show? Columns of a kind, and cells of an object.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::duration::human_duration;

/// What a cell shows that is not known.
pub const UNKNOWN: &str = "<unknown>";
/// What a cell shows that is empty for good.
pub const NONE: &str = "<none>";

/// A cell: a JSON scalar that fits its column.
pub type Cell = Value;

/// The type of the cells of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnType {
    /// Text.
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// True or false.
    Boolean,
    /// An RFC 3339 time, which clients print as an age.
    Date,
}

/// A column. All five members stand on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Column {
    /// The heading; kubectl prints it in upper case.
    pub name: &'static str,
    /// The type of its cells.
    #[serde(rename = "type")]
    pub type_: ColumnType,
    /// `name` marks the column of names; otherwise empty.
    pub format: &'static str,
    /// What the column means.
    pub description: &'static str,
    /// 0 is always shown, more only with `-o wide`.
    pub priority: i32,
}

impl Column {
    /// The column of names, which every table begins with.
    pub const NAME: Self = Self {
        name: "Name",
        type_: ColumnType::String,
        format: "name",
        description: "Name must be unique within a namespace. It identifies the object and cannot be updated.",
        priority: 0,
    };

    /// The column of ages, which most tables end with.
    pub const AGE: Self = Self::new(
        "Age",
        ColumnType::String,
        "The time since the object was created.",
    );

    /// A column that is always shown.
    #[must_use]
    pub const fn new(name: &'static str, type_: ColumnType, description: &'static str) -> Self {
        Self {
            name,
            type_,
            format: "",
            description,
            priority: 0,
        }
    }

    /// The column, shown only with `-o wide`.
    #[must_use]
    pub const fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }
}

/// The cell of [`Column::NAME`].
#[must_use]
pub fn name_of(object: &Value) -> Cell {
    object
        .pointer("/metadata/name")
        .cloned()
        .unwrap_or_else(|| Value::from(""))
}

/// The cell of [`Column::AGE`].
#[must_use]
pub fn age_of(object: &Value, now: Timestamp) -> Cell {
    let created = object
        .pointer("/metadata/creationTimestamp")
        .and_then(Value::as_str);
    Value::from(time_since(created.and_then(|text| text.parse().ok()), now))
}

/// How long ago a moment was, for people.
#[must_use]
pub fn time_since(moment: Option<Timestamp>, now: Timestamp) -> String {
    moment.map_or_else(
        || UNKNOWN.to_owned(),
        |moment| human_duration(now.duration_since(moment)),
    )
}

/// How far a moment is ahead, for people.
#[must_use]
pub fn time_until(moment: Option<Timestamp>, now: Timestamp) -> String {
    moment.map_or_else(
        || UNKNOWN.to_owned(),
        |moment| human_duration(moment.duration_since(now)),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_column_has_all_members_on_the_wire() {
        assert_eq!(
            serde_json::to_value(Column::AGE.wide()).unwrap(),
            json!({
                "name": "Age",
                "type": "string",
                "format": "",
                "description": "The time since the object was created.",
                "priority": 1
            })
        );
    }

    #[test]
    fn ages_count_from_creation() {
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        let object = json!({"metadata": {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(age_of(&object, now), json!("5m"));
        assert_eq!(name_of(&object), json!("n"));
        assert_eq!(age_of(&json!({}), now), json!("<unknown>"));
        assert_eq!(time_until("2026-01-01T01:05:00Z".parse().ok(), now), "60m");
        assert_eq!(time_until(None, now), "<unknown>");
    }
}
