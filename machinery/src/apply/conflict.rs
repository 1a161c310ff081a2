//! Conflicts of an apply with other managers, and their texts.

use std::fmt::{self, Display, Formatter};

use super::entry::{Entry, Operation};
use super::field_set::FieldSet;
use super::path::Path;
use crate::excerpt;
use crate::field_error::quoted;

/// How much of the path of a field causes print, in bytes.
const MAX_FIELD_BYTES: usize = 1024;

/// The fields of one manager that an apply would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The name of the manager.
    pub manager: String,
    /// Whether the manager applied the fields or updated them.
    pub operation: Operation,
    /// The group and version of the schema that the field names refer to.
    pub api_version: String,
    /// The subresource through which the manager wrote, or the empty string.
    pub subresource: String,
    /// The time of the manager's last change.
    pub time: Option<String>,
    /// The fields, in the order of [`FieldSet::paths`]; never empty.
    pub fields: Vec<Path>,
    /// The JSON text of the entry's identity, by which conflicts are sorted.
    identity: String,
}

impl Conflict {
    pub(super) fn new(entry: &Entry, fields: &FieldSet) -> Self {
        Self {
            manager: entry.manager.clone(),
            operation: entry.operation,
            api_version: entry.api_version.clone(),
            subresource: entry.subresource.clone(),
            time: entry.time.clone(),
            fields: fields.paths(),
            identity: entry.identity(),
        }
    }

    /// The manager as messages name it: `"kubectl-edit" using example.com/v1`.
    fn manager_text(&self) -> String {
        let mut text = quoted(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(" with subresource ");
            text.push_str(&quoted(&self.subresource));
        }
        if self.operation == Operation::Update {
            text.push_str(" using ");
            text.push_str(&self.api_version);
        }
        text
    }
}

/// The conflicts of an apply, sorted by manager; never empty. `Display` prints the message of the 409 response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflicts(Vec<Conflict>);

impl Conflicts {
    /// The conflicts, or `None` if there are none.
    pub(super) fn new(mut conflicts: Vec<Conflict>) -> Option<Self> {
        conflicts.sort_by(|left, right| left.identity.cmp(&right.identity));
        (!conflicts.is_empty()).then_some(Self(conflicts))
    }

    /// The conflicts outside `allowed`, or `None` if there are none.
    pub(super) fn outside(mut self, allowed: &FieldSet) -> Option<Self> {
        for conflict in &mut self.0 {
            conflict.fields.retain(|field| !allowed.contains(field));
        }
        self.0.retain(|conflict| !conflict.fields.is_empty());
        (!self.0.is_empty()).then_some(self)
    }

    /// The conflicts, one for each manager.
    pub fn iter(&self) -> std::slice::Iter<'_, Conflict> {
        self.0.iter()
    }

    /// The message and the field of each cause of the `Status`, whose reason is `FieldManagerConflict`. Fields are cut to
    /// 1 KiB: they contain keys and values of clients.
    pub fn causes(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().flat_map(|conflict| {
            let message = format!("conflict with {}", conflict.manager_text());
            conflict
                .fields
                .iter()
                .map(move |field| (message.clone(), excerpt::print(field, MAX_FIELD_BYTES)))
        })
    }
}

impl<'a> IntoIterator for &'a Conflicts {
    type Item = &'a Conflict;
    type IntoIter = std::slice::Iter<'a, Conflict>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Display for Conflicts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice()
            && let [field] = only.fields.as_slice()
        {
            let manager = only.manager_text();
            return write!(
                f,
                "Apply failed with 1 conflict: conflict with {manager}: {field}"
            );
        }
        let count: usize = self.0.iter().map(|conflict| conflict.fields.len()).sum();
        write!(f, "Apply failed with {count} conflicts:")?;
        for (index, conflict) in self.0.iter().enumerate() {
            let separator = if index == 0 { ' ' } else { '\n' };
            write!(f, "{separator}conflicts with {}:", conflict.manager_text())?;
            for field in &conflict.fields {
                write!(f, "\n- {field}")?;
            }
        }
        Ok(())
    }
}
