//! The built-in kinds of the embedded host and their rules.
//!
//! One file per family: [`core`], [`apps`], [`policy`], [`coordination`], [`events`]. The schemas define metadata and keep
//! every other field as sent, so no field of a pod is lost. The rules are the few that demos and tests need.

mod apps;
mod coordination;
mod core;
mod events;
mod policy;

use std::sync::Arc;

use drydock_apiserver::registry::face::{Face, Table};
use drydock_apiserver::registry::resource::{Capabilities, GracePeriod, Resource, Subresource, api_version};
use drydock_apiserver::registry::strategy::{Strategy, WriteContext};
use drydock_machinery::field_error::ErrorList;
use drydock_machinery::schema::{SchemaError, Shape, Structural};
use drydock_machinery::table::{Cell, Column, age_of, name_of};
use drydock_proto::kinds::{Conversion, Names, Scope};
use drydock_proto::protobuf::Message;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::object::{integer, text};
use crate::strategic_merge;

/// Every built-in resource, in the order of discovery.
///
/// # Errors
/// A schema that cannot be read: a bug of this program.
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

/// A row of the table of built-in kinds: [`BuiltIn::V1`] with the differences.
struct BuiltIn {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    scope: Scope,
    /// Members in addition to `metadata`; a member `status` is served as a subresource.
    members: &'static [&'static str],
    more_subresources: &'static [Subresource],
    rules: Rules,
}

impl BuiltIn {
    /// A namespaced kind of version v1 without a name.
    const V1: Self = Self {
        group: "",
        version: "v1",
        kind: "",
        plural: "",
        singular: "",
        short_names: &[],
        categories: &[],
        scope: Scope::Namespaced,
        members: &[],
        more_subresources: &[],
        rules: Rules::PLAIN,
    };

    fn into_resource(self) -> Result<Resource, SchemaError> {
        let anything = json!({ "description": "Kept as sent." });
        let members: Vec<(&str, &Value)> = self.members.iter().map(|member| (*member, &anything)).collect();
        let description = "A built-in kind of Kubernetes, as kept by standalone mode.";
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
                names: Names {
                    kind: self.kind,
                    plural: self.plural,
                    singular: self.singular,
                    short_names: self.short_names,
                    description,
                },
                alias: None,
                api_version: api_version(self.group, self.version).into(),
                schema: Arc::new(schema),
                message: None,
                table: Table {
                    columns: self.rules.columns,
                    cells: self.rules.cells,
                },
                conversion: Conversion::Identity,
                paths: &[],
            })],
            has_status: self.members.contains(&"status"),
            capabilities: Capabilities {
                selectable_fields: self.rules.selectable_fields,
                more_subresources: self.more_subresources,
                // As in kube-apiserver, where of these kinds only leases need a resourceVersion.
                unconditional_update: self.kind != "Lease",
                grace_period: self.rules.grace_period,
                strategic_merge: Some(strategic_merge::apply),
                body_message: self.rules.message,
            },
            strategy: Box::new(self.rules),
        })
    }
}

/// The rules of a built-in kind: [`Rules::PLAIN`] with the differences.
struct Rules {
    columns: &'static [Column],
    cells: fn(&Value, Timestamp) -> Vec<Cell>,
    selectable_fields: &'static [&'static str],
    prepare_for_create: fn(&mut Value, Timestamp),
    validate: fn(&Value) -> ErrorList,
    grace_period: Option<GracePeriod>,
    message: Option<&'static Message>,
}

impl Rules {
    /// The rules of an object with only a name and an age.
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

/// A number as a cell; 0 if absent.
fn count_of(object: &Value, pointer: &str) -> Cell {
    Cell::from(integer(object, pointer).unwrap_or(0))
}

/// A string as a cell; `otherwise` if absent.
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
    fn every_built_in_kind_has_one_resource_and_a_cell_per_column() {
        let resources = resources().unwrap();
        let mut seen = HashSet::new();
        for resource in &resources {
            assert!(
                seen.insert((resource.group, resource.plural)),
                "{resource:?} is listed twice"
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
            let table = &resource.storage_face().table;
            let cells = (table.cells)(&object, now);
            assert_eq!(cells.len(), table.columns.len(), "{resource:?}");
        }
        assert!(seen.contains(&("", "pods")) && seen.contains(&("policy", "poddisruptionbudgets")));
    }

    #[test]
    fn no_field_of_a_pod_is_lost() {
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
