//! Mutating policies in the manner of the documentation of Kubernetes
//! (`docs/reference/access-authn-authz/mutating-admission-policy`) and of Kyverno's mutations.

#![expect(
    clippy::needless_pass_by_value,
    reason = "rows are written as values in place"
)]

use serde_json::{Value, json};

use super::{LABEL, Row};

fn row(name: &'static str, policy: Value, objects: Vec<Value>) -> Row {
    let mut spec = json!({ "reinvocationPolicy": "Never" });
    super::merge(&mut spec, &policy);
    Row {
        name,
        policy: spec,
        binding: json!({}),
        objects,
    }
}

fn apply(expression: &str) -> Value {
    json!({ "patchType": "ApplyConfiguration", "applyConfiguration": { "expression": expression } })
}

fn patch(expression: &str) -> Value {
    json!({ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } })
}

fn one(name: &'static str, mutation: Value) -> Row {
    row(name, json!({ "mutations": [mutation] }), vec![json!({})])
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        one("labels.apply.test", apply("Object{metadata: Object.metadata{labels: {'added': 'yes', 'from': string(object.metadata.namespace)}}}")),
        one("spec.apply.test", apply("Object{spec: Object.spec{ttlSecondsAfterFinished: 61}}")),
        one("list-map.apply.test", apply("Object{spec: Object.spec{requesters: [Object.spec.requesters{name: 'added.example.com'}]}}")),
        one("wrong-type-name.apply.test", apply("Object{spec: Object.other{ttlSecondsAfterFinished: 61}}")),
        one("unknown-field.apply.test", apply("Object{spec: Object.spec{absent: 1}}")),
        one("wrong-value.apply.test", apply("Object{spec: Object.spec{ttlSecondsAfterFinished: 'x'}}")),
        one("error.apply.test", apply("Object{spec: Object.spec{ttlSecondsAfterFinished: object.spec.absent}}")),
        row(
            "ignored-error.apply.test",
            json!({ "failurePolicy": "Ignore", "mutations": [apply("Object{spec: Object.spec{ttlSecondsAfterFinished: object.spec.absent}}"), apply("Object{metadata: Object.metadata{labels: {'second': 'yes'}}}")] }),
            vec![json!({})],
        ),
        one(
            "add.patch.test",
            patch("[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('example.com/added'), value: 'yes'}, JSONPatch{op: 'add', path: '/spec/requesters/-', value: Object.spec.requesters{name: 'patched.example.com'}}]"),
        ),
        one("test.patch.test", patch("[JSONPatch{op: 'test', path: '/metadata/namespace', value: 'other'}, JSONPatch{op: 'add', path: '/metadata/labels/added', value: 'yes'}]")),
        one("move.patch.test", patch("[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'a': 'b'}}, JSONPatch{op: 'move', from: '/metadata/annotations/a', path: '/metadata/annotations/c'}, JSONPatch{op: 'replace', path: '/spec/ttlSecondsAfterFinished', value: 62}]")),
        row(
            "conditional.patch.test",
            json!({
                "matchConditions": [{ "name": "unset", "expression": "!has(object.metadata.labels.set)" }],
                "variables": [{ "name": "name", "expression": "object.spec.requesters[0].name" }],
                "mutations": [patch("variables.name == 'first.example.com' ? [JSONPatch{op: 'add', path: '/metadata/labels/set', value: variables.name}] : []")],
            }),
            vec![json!({}), json!({ "metadata": { "labels": { "set": "no" } } }), json!({ "spec": { "requesters": [{ "name": "x.example.com" }] } })],
        ),
        row(
            "chained.patch.test",
            json!({ "mutations": [
                apply("Object{metadata: Object.metadata{labels: {'one': '1'}}}"),
                patch("[JSONPatch{op: 'add', path: '/metadata/labels/two', value: object.metadata.labels['one'] + '2'}]"),
                apply("Object{metadata: Object.metadata{labels: {'three': object.metadata.labels['two'] + '3'}}}"),
            ] }),
            vec![json!({})],
        ),
        row(
            "params.patch.test",
            json!({
                "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" },
                "mutations": [apply("Object{metadata: Object.metadata{labels: {'max': string(params.data.max), 'environment': namespaceObject.metadata.labels['environment']}}}")],
            }),
            vec![json!({})],
        )
        .bound(json!({ "paramRef": { "name": "limits", "parameterNotFoundAction": "Deny" } })),
        row(
            "missing-params.patch.test",
            json!({ "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" }, "mutations": [apply("Object{}")] }),
            vec![json!({})],
        )
        .bound(json!({ "paramRef": { "name": "absent", "parameterNotFoundAction": "Deny" } })),
        // A fault of the policy rejects also what no binding selects.
        row(
            "unknown-kind.patch.test",
            json!({ "paramKind": { "apiVersion": "absent.example.com/v1", "kind": "Nothing" }, "mutations": [apply("Object{}")] }),
            vec![json!({})],
        )
        .bound(json!({ "matchResources": { "objectSelector": { "matchLabels": { LABEL: "of-no-object" } } } })),
        // With the last of the parameters, all are known.
        row(
            "last.patch.test",
            json!({
                "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" },
                "mutations": [apply("Object{metadata: Object.metadata{labels: {'last': 'yes'}}}")],
            }),
            vec![json!({})],
        )
        .bound(json!({ "paramRef": { "name": "third-limits", "parameterNotFoundAction": "Deny" } })),
    ]
}

impl Row {
    fn bound(self, binding: Value) -> Self {
        Self { binding, ..self }
    }
}
