//! Which built-in kinds does the embedded host serve, and by which rules?
//!
//! One file a family: [`core`], [`apps`], [`policy`], [`coordination`], [`events`]. The schemas know metadata and keep
//! everything else as it comes, so nothing of a pod is lost; the rules are the few that demos and tests rely on.

mod apps;
mod coordination;
mod core;
mod events;
mod policy;

use std::sync::Arc;

use drydock_machinery::codec::protobuf::Message;
use drydock_machinery::field_error::ErrorList;
use drydock_machinery::schema::{SchemaError, Shape, Structural};
use drydock_machinery::table::{Cell, Column, age_of, name_of};
use drydock_proto::kinds::{Conversion, Scope};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::pod::{integer, text};
use crate::strategic;
use drydock_apiserver::registry::face::{Face, Table};
use drydock_apiserver::registry::resource::{Capabilities, GracePeriod, Resource, Subresource, api_version};
use drydock_apiserver::registry::strategy::{Strategy, WriteContext};

/// Every built-in resource, in the order of discovery.
///
/// # Errors
/// A schema that cannot be read: a fault of this program.
pub(crate) fn resources() -> Result<Vec<Resource>, SchemaError> {
    let families = [
        core::kinds(),
        apps::kinds(),
        policy::kinds(),
        coordination::kinds(),
        events::kinds(),
    ];
    families
        .into_iter()
        .flatten()
        .map(BuiltIn::into_resource)
        .collect()
}

/// A built-in kind as a row of a table.
struct BuiltIn {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    scope: Scope,
    /// Members beside `metadata`; `status` among them makes it a subresource.
    members: &'static [&'static str],
    more_subresources: &'static [Subresource],
    rules: Rules,
}

impl BuiltIn {
    fn into_resource(self) -> Result<Resource, SchemaError> {
        let anything = json!({ "description": "As clients write it, kept whole." });
        let members: Vec<(&str, &Value)> = self.members.iter().map(|member| (*member, &anything)).collect();
        let description = "A built-in kind of Kubernetes, as standalone mode keeps it.";
        let mut schema = Structural::for_kind(self.kind, self.version, description, &members)?;
        if let Shape::Object(object) = &mut schema.shape {
            object.preserves_unknown = true;
        }
        Ok(Resource {
            group: self.group,
            plural: self.plural,
            singular: self.singular,
            kind: self.kind,
            short_names: self.short_names,
            categories: self.categories,
            scope: self.scope,
            faces: vec![Arc::new(Face {
                version: self.version,
                api_version: api_version(self.group, self.version).into(),
                schema: Arc::new(schema),
                table: Table {
                    columns: self.rules.columns,
                    cells: self.rules.cells,
                },
                conversion: Conversion::Identity,
            })],
            has_status: self.members.contains(&"status"),
            capabilities: Capabilities {
                selectable_fields: self.rules.selectable_fields,
                more_subresources: self.more_subresources,
                grace_period: self.rules.grace_period,
                strategic_merge: Some(strategic::apply),
                message: self.rules.message,
            },
            strategy: Box::new(self.rules),
        })
    }
}

/// The rules of a built-in kind: [`Rules::PLAIN`] with what differs.
struct Rules {
    columns: &'static [Column],
    cells: fn(&Value, Timestamp) -> Vec<Cell>,
    selectable_fields: &'static [&'static str],
    prepare_for_create: fn(&mut Value, Timestamp),
    validate: fn(&Value) -> ErrorList,
    grace_period: Option<GracePeriod>,
    message: Option<Message>,
}

impl Rules {
    /// An object that only has a name and an age.
    const PLAIN: Self = Self {
        columns: &[Column::NAME, Column::AGE],
        cells: |object, now| vec![name_of(object), age_of(object, now)],
        selectable_fields: &[],
        prepare_for_create: |_, _| {},
        validate: |_| ErrorList::new(),
        grace_period: None,
        message: None,
    };
}

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value, context: &WriteContext) {
        (self.prepare_for_create)(object, context.now);
    }

    fn validate(&self, object: &Value, _context: &WriteContext) -> ErrorList {
        (self.validate)(object)
    }

    fn validate_update(&self, new: &Value, _old: &Value, _context: &WriteContext) -> ErrorList {
        (self.validate)(new)
    }

    fn validate_status_update(&self, _new: &Value, _old: &Value, _context: &WriteContext) -> ErrorList {
        ErrorList::new()
    }
}

/// A number as a cell; 0 when absent.
fn count_of(object: &Value, pointer: &str) -> Cell {
    Cell::from(integer(object, pointer).unwrap_or(0))
}

/// A text as a cell; `otherwise` when absent.
fn text_of(object: &Value, pointer: &str, otherwise: &str) -> Cell {
    match text(object, pointer) {
        "" => Cell::from(otherwise),
        text => Cell::from(text),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_built_in_kind_is_a_resource_with_whole_rows() {
        let resources = resources().unwrap();
        let mut seen = HashSet::new();
        for resource in &resources {
            assert!(
                seen.insert((resource.group, resource.plural)),
                "{resource:?} stands twice"
            );
            let mut object = json!({"metadata": {"name": "a"}});
            let now = Timestamp::UNIX_EPOCH;
            resource.strategy.prepare_for_create(
                &mut object,
                &WriteContext {
                    now,
                    namespace_terminating: false,
                },
            );
            let cells = (resource.storage_face().table.cells)(&object, now);
            assert_eq!(
                cells.len(),
                resource.storage_face().table.columns.len(),
                "{resource:?}"
            );
        }
        assert!(seen.contains(&("", "pods")) && seen.contains(&("policy", "poddisruptionbudgets")));
    }

    #[test]
    fn nothing_of_a_pod_is_lost() {
        let resources = resources().unwrap();
        let pods = resources
            .iter()
            .find(|resource| resource.plural == "pods")
            .unwrap();
        let schema = &pods.storage_face().schema;
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "x": {"y": [1, 2.5, null]}}], "future": true},
            "status": {"phase": "Running"},
            "more": 1
        });
        let before = pod.clone();
        let unknown = schema.conform(&mut pod).unwrap();
        assert_eq!((pod, unknown.len()), (before, 0));
    }
}
