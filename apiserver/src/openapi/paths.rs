//! The paths of a group-version, with the parameters and bodies of each verb.

use drydock_machinery::schema::openapi::{Dialect, META_V1};
use serde_json::{Map, Value, json};

use super::{definition_name, group_version_kind, root};
use crate::registry::catalog::Catalog;
use crate::registry::resource::Resource;

/// Media types of request bodies.
const BODY_TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/cbor",
];
/// Media types of patches.
const PATCH_TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "application/apply-patch+cbor",
];

struct Writer<'a> {
    dialect: Dialect,
    resource: &'a Resource,
    kind: &'static str,
    version: &'a str,
    definition: String,
}

/// Path → path item.
pub(super) fn of_group_version(
    catalog: &Catalog,
    group: &str,
    version: &str,
    dialect: Dialect,
) -> Map<String, Value> {
    let root = root(group, version);
    let mut paths = Map::new();
    for endpoint in catalog.of_group_version(group, version) {
        let resource = endpoint.resource();
        let writer = Writer {
            dialect,
            resource,
            kind: endpoint.kind(),
            version,
            definition: definition_name(&endpoint),
        };
        let plural = endpoint.face().names.plural;
        let collection = if resource.is_namespaced() {
            let get = writer.list("ForAllNamespaces");
            paths.insert(
                format!("{root}/{plural}"),
                writer.item(&[("get", get)], false, false),
            );
            format!("{root}/namespaces/{{namespace}}/{plural}")
        } else {
            format!("{root}/{plural}")
        };
        let verbs = [
            ("get", writer.list("")),
            ("post", writer.create()),
            ("delete", writer.delete_collection()),
        ];
        paths.insert(
            collection.clone(),
            writer.item(&verbs, resource.is_namespaced(), false),
        );
        let verbs = [
            ("get", writer.get("")),
            ("put", writer.replace("")),
            ("patch", writer.patch("")),
            ("delete", writer.delete()),
        ];
        paths.insert(
            format!("{collection}/{{name}}"),
            writer.item(&verbs, resource.is_namespaced(), true),
        );
        if resource.has_status {
            let verbs = [
                ("get", writer.get("Status")),
                ("put", writer.replace("Status")),
                ("patch", writer.patch("Status")),
            ];
            paths.insert(
                format!("{collection}/{{name}}/status"),
                writer.item(&verbs, resource.is_namespaced(), true),
            );
        }
    }
    paths
}

impl Writer<'_> {
    fn item(&self, verbs: &[(&str, Value)], in_namespace: bool, named: bool) -> Value {
        let mut parameters = vec![self.query(
            "pretty",
            "string",
            "If 'true', then the output is pretty printed.",
        )];
        if in_namespace {
            parameters.insert(
                0,
                self.path(
                    "namespace",
                    "object name and auth scope, such as for teams and projects",
                ),
            );
        }
        if named {
            parameters.insert(0, self.path("name", &format!("name of the {}", self.kind)));
        }
        let mut item = Map::new();
        for (verb, operation) in verbs {
            item.insert((*verb).to_owned(), operation.clone());
        }
        item.insert("parameters".to_owned(), Value::Array(parameters));
        Value::Object(item)
    }

    fn typed(&self, type_: &str) -> Value {
        match self.dialect {
            Dialect::V2 => json!({ "type": type_, "uniqueItems": true }),
            Dialect::V3 => json!({ "schema": { "type": type_, "uniqueItems": true } }),
        }
    }

    fn parameter(&self, place: &str, name: &str, type_: &str, description: &str) -> Value {
        let mut parameter = self.typed(type_);
        if let Some(members) = parameter.as_object_mut() {
            members.insert("name".to_owned(), name.into());
            members.insert("in".to_owned(), place.into());
            members.insert("description".to_owned(), description.into());
            if place == "path" {
                members.insert("required".to_owned(), true.into());
            }
        }
        parameter
    }

    fn query(&self, name: &str, type_: &str, description: &str) -> Value {
        self.parameter("query", name, type_, description)
    }

    fn path(&self, name: &str, description: &str) -> Value {
        self.parameter("path", name, "string", description)
    }

    fn write_parameters(&self) -> Vec<Value> {
        vec![
            self.query(
                "dryRun",
                "string",
                "When present, indicates that modifications should not be persisted.",
            ),
            self.query(
                "fieldManager",
                "string",
                "The name of the actor or entity that makes these changes.",
            ),
            self.query(
                "fieldValidation",
                "string",
                "What to do with unknown or duplicate fields: Ignore, Warn or Strict.",
            ),
        ]
    }

    fn list_parameters(&self) -> Vec<Value> {
        vec![
            self.query(
                "allowWatchBookmarks",
                "boolean",
                "Requests watch events with type \"BOOKMARK\".",
            ),
            self.query("continue", "string", "The continue token of the previous page."),
            self.query("fieldSelector", "string", "Restricts the list by fields."),
            self.query("labelSelector", "string", "Restricts the list by labels."),
            self.query("limit", "integer", "The maximum number of objects of a page."),
            self.query(
                "resourceVersion",
                "string",
                "The state to show, or to watch from.",
            ),
            self.query(
                "resourceVersionMatch",
                "string",
                "How resourceVersion is applied to a list.",
            ),
            self.query(
                "sendInitialEvents",
                "boolean",
                "Begins a watch with the existing objects.",
            ),
            self.query("timeoutSeconds", "integer", "How long a watch lasts, in seconds."),
            self.query("watch", "boolean", "Watch for changes."),
        ]
    }

    fn delete_parameters(&self) -> Vec<Value> {
        vec![
            self.query(
                "dryRun",
                "string",
                "When present, indicates that modifications should not be persisted.",
            ),
            self.query(
                "gracePeriodSeconds",
                "integer",
                "Accepted, and ignored by kinds without graceful deletion.",
            ),
            self.query(
                "ignoreStoreReadErrorWithClusterBreakingPotential",
                "boolean",
                "Removes an object whose stored value cannot be read. No other option may be set; it needs the verb \
                 unsafe-delete-ignore-read-errors.",
            ),
            self.query(
                "orphanDependents",
                "boolean",
                "Deprecated: use propagationPolicy.",
            ),
            self.query(
                "propagationPolicy",
                "string",
                "What happens to dependents: Orphan, Background or Foreground.",
            ),
        ]
    }

    fn operation(
        &self,
        action: &str,
        verb: &str,
        suffix: &str,
        mut parameters: Vec<Value>,
    ) -> Map<String, Value> {
        let scope = if self.resource.is_namespaced() && suffix != "ForAllNamespaces" {
            "Namespaced"
        } else {
            ""
        };
        let mut operation = Map::new();
        operation.insert(
            "operationId".to_owned(),
            format!("{verb}{}{scope}{}{suffix}", camel(self.version), self.kind).into(),
        );
        operation.insert(
            "description".to_owned(),
            format!("{verb} objects of kind {}", self.kind).into(),
        );
        operation.insert(
            "tags".to_owned(),
            json!([format!(
                "{}_{}",
                self.resource.group.replace('.', "_"),
                self.version
            )]),
        );
        if self.dialect == Dialect::V2 {
            operation.insert("schemes".to_owned(), json!(["https"]));
            operation.insert("produces".to_owned(), json!(BODY_TYPES));
            operation.insert("consumes".to_owned(), json!(["*/*"]));
        }
        parameters.sort_by_key(|parameter| parameter.get("name").and_then(Value::as_str).map(str::to_owned));
        if !parameters.is_empty() {
            operation.insert("parameters".to_owned(), Value::Array(parameters));
        }
        operation.insert("x-kubernetes-action".to_owned(), action.into());
        operation.insert(
            "x-kubernetes-group-version-kind".to_owned(),
            group_version_kind(self.resource, self.version, self.kind),
        );
        operation
    }

    fn set_responses(&self, operation: &mut Map<String, Value>, codes: &[&str], definition: &str) {
        let mut responses = Map::new();
        for code in codes {
            let description = if *code == "201" { "Created" } else { "OK" };
            let schema = self.dialect.reference(definition);
            let response = match self.dialect {
                Dialect::V2 => json!({ "description": description, "schema": schema }),
                Dialect::V3 => json!({ "description": description, "content": content(BODY_TYPES, &schema) }),
            };
            responses.insert((*code).to_owned(), response);
        }
        responses.insert("401".to_owned(), json!({ "description": "Unauthorized" }));
        operation.insert("responses".to_owned(), Value::Object(responses));
    }

    fn set_body(&self, operation: &mut Map<String, Value>, types: &[&str], definition: &str, required: bool) {
        let schema = self.dialect.reference(definition);
        match self.dialect {
            Dialect::V2 => {
                operation.insert("consumes".to_owned(), json!(types));
                let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
                if let Some(parameters) = parameters.as_array_mut() {
                    let body =
                        json!({ "name": "body", "in": "body", "required": required, "schema": schema });
                    parameters.insert(0, body);
                }
            }
            Dialect::V3 => {
                operation.insert(
                    "requestBody".to_owned(),
                    json!({ "required": required, "content": content(types, &schema) }),
                );
            }
        }
    }

    fn list(&self, suffix: &str) -> Value {
        let mut operation = self.operation("list", "list", suffix, self.list_parameters());
        self.set_responses(&mut operation, &["200"], &format!("{}List", self.definition));
        Value::Object(operation)
    }

    fn get(&self, suffix: &str) -> Value {
        let mut operation = self.operation("get", "read", suffix, Vec::new());
        self.set_responses(&mut operation, &["200"], &self.definition);
        Value::Object(operation)
    }

    fn create(&self) -> Value {
        let mut operation = self.operation("post", "create", "", self.write_parameters());
        self.set_body(&mut operation, BODY_TYPES, &self.definition, true);
        self.set_responses(&mut operation, &["200", "201"], &self.definition);
        Value::Object(operation)
    }

    fn replace(&self, suffix: &str) -> Value {
        let mut operation = self.operation("put", "replace", suffix, self.write_parameters());
        self.set_body(&mut operation, BODY_TYPES, &self.definition, true);
        self.set_responses(&mut operation, &["200", "201"], &self.definition);
        Value::Object(operation)
    }

    fn patch(&self, suffix: &str) -> Value {
        let mut parameters = self.write_parameters();
        parameters.push(self.query("force", "boolean", "For apply patches only."));
        let mut operation = self.operation("patch", "patch", suffix, parameters);
        self.set_body(&mut operation, PATCH_TYPES, &format!("{META_V1}.Patch"), true);
        self.set_responses(&mut operation, &["200", "201"], &self.definition);
        Value::Object(operation)
    }

    fn delete(&self) -> Value {
        let mut operation = self.operation("delete", "delete", "", self.delete_parameters());
        self.set_body(
            &mut operation,
            BODY_TYPES,
            &format!("{META_V1}.DeleteOptions"),
            false,
        );
        self.set_responses(&mut operation, &["200", "202"], &format!("{META_V1}.Status"));
        Value::Object(operation)
    }

    fn delete_collection(&self) -> Value {
        let mut parameters = self.delete_parameters();
        let more = self.list_parameters().into_iter().filter(|parameter| {
            !matches!(
                parameter.get("name").and_then(Value::as_str),
                Some("watch" | "allowWatchBookmarks")
            )
        });
        parameters.extend(more);
        let mut operation = self.operation("deletecollection", "deleteCollection", "", parameters);
        self.set_body(
            &mut operation,
            BODY_TYPES,
            &format!("{META_V1}.DeleteOptions"),
            false,
        );
        self.set_responses(&mut operation, &["200"], &format!("{META_V1}.Status"));
        Value::Object(operation)
    }
}

fn content(types: &[&str], schema: &Value) -> Value {
    let members: Map<String, Value> = types
        .iter()
        .map(|type_| ((*type_).to_owned(), json!({ "schema": schema })))
        .collect();
    Value::Object(members)
}

/// `v1alpha3` as part of an operation's name: `V1alpha3`.
fn camel(version: &str) -> String {
    let mut characters = version.chars();
    characters
        .next()
        .map(|first| first.to_uppercase().chain(characters).collect())
        .unwrap_or_default()
}
