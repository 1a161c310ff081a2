//! Columns and cells of the tables that `kubectl get` prints.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::duration::human_duration;

/// The text of a cell with an unknown value.
pub const UNKNOWN: &str = "<unknown>";
/// The text of a cell without a value.
pub const NONE: &str = "<none>";

/// A cell: a JSON scalar of the type of its column.
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
    /// An RFC 3339 time; clients print it as an age.
    Date,
}

/// A column definition. All five members are always serialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Column {
    /// The heading; kubectl prints it in upper case.
    pub name: &'static str,
    /// The type of its cells.
    #[serde(rename = "type")]
    pub type_: ColumnType,
    /// `name` marks the column of names; otherwise empty.
    pub format: &'static str,
    /// The meaning of the column.
    pub description: &'static str,
    /// 0: always shown; greater than 0: shown only with `-o wide`.
    pub priority: i32,
}

impl Column {
    /// The name column, the first of every table.
    pub const NAME: Self = Self {
        name: "Name",
        type_: ColumnType::String,
        format: "name",
        description: "Name must be unique within a namespace. It identifies the object and cannot be updated.",
        priority: 0,
    };

    /// The age column, the last of most tables.
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

/// The human readable duration since a time.
#[must_use]
pub fn time_since(moment: Option<Timestamp>, now: Timestamp) -> String {
    moment.map_or_else(
        || UNKNOWN.to_owned(),
        |moment| human_duration(now.duration_since(moment)),
    )
}

/// The human readable duration until a time; empty if there is none.
#[must_use]
pub fn time_until(moment: Option<Timestamp>, now: Timestamp) -> String {
    moment.map_or_else(String::new, |moment| human_duration(moment.duration_since(now)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_members_of_a_column_are_serialized() {
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
    fn ages_are_measured_from_the_creation_timestamp() {
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        let object = json!({"metadata": {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(age_of(&object, now), json!("5m"));
        assert_eq!(name_of(&object), json!("n"));
        assert_eq!(age_of(&json!({}), now), json!("<unknown>"));
        assert_eq!(time_until("2026-01-01T01:05:00Z".parse().ok(), now), "60m");
        assert_eq!(time_until(None, now), "");
    }
}
