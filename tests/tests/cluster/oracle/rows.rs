//! Single requests that both servers must answer alike, and the table of those that they may not.
//!
//! `{collection}`, `{item}` and `{name}` stand for the paths and the name of the row's own object, `{group}` for the
//! server's group, `{uid}` and `{resourceVersion}` for those of the object.

use drydock_tests::calls::{APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH};

use super::subject::Subject;

/// A request to an object that exists, or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// A name that no other row has.
    pub(super) name: &'static str,
    /// Whether the row's object exists before the request.
    pub(super) exists: bool,
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) media_type: &'static str,
    pub(super) accept: &'static str,
    pub(super) body: &'static str,
}

const JSON: &str = "application/json";
const NONE: &str = "";

/// An EvictionInterceptor: its type, and the rest.
macro_rules! object {
    ($($rest:literal)*) => {
        concat!(
            r#"{"apiVersion":"{group}/v1alpha3","kind":"EvictionInterceptor","#,
            $($rest,)*
            "}"
        )
    };
}

/// A NodeMaintenance with this spec.
macro_rules! maintenance {
    ($spec:literal) => {
        concat!(
            r#"{"apiVersion":"{group}/v1alpha3","kind":"NodeMaintenance","metadata":{"name":"{name}"},"spec":"#,
            $spec,
            "}"
        )
    };
}

macro_rules! rows {
    ($($name:literal: $exists:ident $method:ident $path:literal, $media_type:expr, $accept:literal, $body:expr;)*) => {
        &[$(Row {
            name: $name,
            exists: rows!(@$exists),
            method: stringify!($method),
            path: $path,
            media_type: $media_type,
            accept: $accept,
            body: $body,
        },)*]
    };
    (@existing) => { true };
    (@absent) => { false };
}

/// All requests, each with the kind of its object.
pub(super) fn all() -> impl Iterator<Item = (Subject, &'static Row)> {
    let interceptors = INTERCEPTORS.iter().map(|row| (Subject::Interceptor, row));
    interceptors.chain(MAINTENANCES.iter().map(|row| (Subject::Maintenance, row)))
}

/// Requests to maintenances: what the schema of a custom resource cannot say about this kind.
const MAINTENANCES: &[Row] = rows! {
    "maintenance": absent POST "{collection}", JSON, "", maintenance!(r#"{"nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["a"]}]}]}}"#);
    "maintenance with a short plan": absent POST "{collection}", JSON, "", maintenance!(r#"{"nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["a"]}]}]},"drainPlan":[{"podType":"Default","podPriority":5}]}"#);
    "maintenance without a selector": absent POST "{collection}", JSON, "", maintenance!("{}");
    "maintenance without terms": absent POST "{collection}", JSON, "", maintenance!(r#"{"nodeSelector":{"nodeSelectorTerms":[]}}"#);
    "maintenance of an unknown stage": absent POST "{collection}", JSON, "", maintenance!(r#"{"stage":"Other","nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["a"]}]}]}}"#);
    "maintenance by an unknown operator": absent POST "{collection}", JSON, "", maintenance!(r#"{"nodeSelector":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Other"}]}]}}"#);
    "maintenance merges a part of its plan": existing PATCH "{item}", MERGE_PATCH, "", r#"{"spec":{"drainPlan":[{"podType":"Default","podPriority":100,"podSelector":{"matchLabels":{"app":"web"}}}]}}"#;
    "maintenance merges another plan": existing PATCH "{item}", MERGE_PATCH, "", r#"{"spec":{"drainPlan":[{"podType":"Default","podPriority":7}]}}"#;
    "maintenance applies a part of its plan": existing PATCH "{item}?fieldManager=row&force=true", APPLY_PATCH, "", maintenance!(r#"{"drainPlan":[{"podType":"Default","podPriority":100,"podSelector":{"matchLabels":{"app":"web"}}}]}"#);
    "maintenance conflicts about its plan": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", maintenance!(r#"{"drainPlan":[{"podType":"Default","podPriority":7}]}"#);
    "maintenance starts": existing PATCH "{item}", MERGE_PATCH, "", r#"{"spec":{"stage":"Drain"}}"#;
    "maintenance selects others": existing PATCH "{item}", MERGE_PATCH, "", r#"{"spec":{"nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["b"]}]}]}}}"#;
    "maintenance removes its stage": existing PATCH "{item}", MERGE_PATCH, "", r#"{"spec":{"stage":null}}"#;
    "maintenance status": existing PATCH "{item}/status", MERGE_PATCH, "", r#"{"spec":{"stage":"Drain"},"status":{"selectedNodes":2,"drainStatus":{"drainMessage":"x"}}}"#;
    "maintenance status of an unknown stage": existing PATCH "{item}/status", MERGE_PATCH, "", r#"{"status":{"stageStatuses":[{"name":"Other"}]}}"#;
    "maintenance status with a node twice": existing PATCH "{item}/status", MERGE_PATCH, "", r#"{"status":{"cordonedBefore":["a","a"]}}"#;
    "maintenance status below zero": existing PATCH "{item}/status", MERGE_PATCH, "", r#"{"status":{"selectedNodes":-1}}"#;
    "maintenance status with a blocker of no reason": existing PATCH "{item}/status", MERGE_PATCH, "", r#"{"status":{"blockers":[{"node":"a","since":"2026-01-01T00:00:00Z"}]}}"#;
};

/// Requests to interceptors.
const INTERCEPTORS: &[Row] = rows! {
    "get": existing GET "{item}", NONE, "", "";
    "get absent": absent GET "{item}", NONE, "", "";
    "get status": existing GET "{item}/status", NONE, "", "";
    "get status absent": absent GET "{item}/status", NONE, "", "";
    "get unknown subresource": existing GET "{item}/scale", NONE, "", "";
    "get as yaml": existing GET "{item}", NONE, "application/yaml", "";
    "get as text": existing GET "{item}", NONE, "text/plain", "";
    "get as json or text": existing GET "{item}", NONE, "text/plain;q=0.5, application/json", "";
    "get as anything": existing GET "{item}", NONE, "*/*", "";
    "get as application/*": existing GET "{item}", NONE, "application/*", "";
    "get as partial metadata": existing GET "{item}", NONE, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "";
    "get as unknown form": existing GET "{item}", NONE, "application/json;as=Other;v=v1;g=meta.k8s.io", "";
    "get as unknown or json": existing GET "{item}", NONE, "application/json;as=Other;v=v1;g=meta.k8s.io, application/json", "";
    "get at a bad version": existing GET "{item}?resourceVersion=x", NONE, "", "";
    "get pretty": existing GET "{item}?pretty=true", NONE, "", "";
    "list by name": existing GET "{collection}?fieldSelector=metadata.name%3D{name}", NONE, "", "";
    "list by name as partial metadata": existing GET "{collection}?fieldSelector=metadata.name%3D{name}", NONE, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "";
    "list by unknown field": absent GET "{collection}?fieldSelector=spec.priority%3D1", NONE, "", "";
    "list by bad field selector": absent GET "{collection}?fieldSelector=a", NONE, "", "";
    "list by bad label selector": absent GET "{collection}?labelSelector=a%3D%3D%3Db", NONE, "", "";
    "list by bad label value": absent GET "{collection}?labelSelector=a%3D-", NONE, "", "";
    "list with bad limit": absent GET "{collection}?limit=x", NONE, "", "";
    "list with negative limit": absent GET "{collection}?limit=-1&labelSelector=no%3Dbody", NONE, "", "";
    "list with bad continue": absent GET "{collection}?continue=x&limit=1", NONE, "", "";
    "list with continue and version": absent GET "{collection}?continue=x&resourceVersion=1", NONE, "", "";
    "list at a bad version": absent GET "{collection}?resourceVersion=x", NONE, "", "";
    "list match without version": absent GET "{collection}?resourceVersionMatch=Exact", NONE, "", "";
    "list match exact zero": absent GET "{collection}?resourceVersionMatch=Exact&resourceVersion=0", NONE, "", "";
    "list unknown match": absent GET "{collection}?resourceVersionMatch=Other&resourceVersion=1", NONE, "", "";
    "list with initial events": absent GET "{collection}?sendInitialEvents=true", NONE, "", "";
    "list with bad timeout": absent GET "{collection}?timeoutSeconds=x", NONE, "", "";
    "watch at a bad version": absent GET "{collection}?watch=true&resourceVersion=x", NONE, "", "";
    "watch with any flag": absent GET "{collection}?watch=maybe&labelSelector=no%3Dbody&timeoutSeconds=1", NONE, "", "";
    "watch initial events without match": absent GET "{collection}?watch=true&sendInitialEvents=true", NONE, "", "";
    "watch as yaml": absent GET "{collection}?watch=true&resourceVersion=x", NONE, "application/yaml", "";
    "watch by unknown field": absent GET "{collection}?watch=true&fieldSelector=spec.priority%3D1", NONE, "", "";
    "post to item": existing POST "{item}", JSON, "", "{}";
    "put to collection": absent PUT "{collection}", JSON, "", "{}";
    "patch collection": absent PATCH "{collection}", MERGE_PATCH, "", "{}";
    "post to status": existing POST "{item}/status", JSON, "", "{}";
    "delete status": existing DELETE "{item}/status", NONE, "", "";
    "create": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}"#);
    "create with status": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"},"status":{"matchedPods":3}"#);
    "create dry run": absent POST "{collection}?dryRun=All", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}"#);
    "create bad dry run": absent POST "{collection}?dryRun=Some", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}"#);
    "create with system metadata": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","uid":"x","generation":7,"creationTimestamp":"2020-01-01T00:00:00Z","selfLink":"/x"},"spec":{"interceptorName":"{name}"}"#);
    "create with version": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"1"},"spec":{"interceptorName":"{name}"}"#);
    "create as yaml": absent POST "{collection}", "application/yaml", "", "apiVersion: {group}/v1alpha3\nkind: EvictionInterceptor\nmetadata: {name: {name}}\nspec: {interceptorName: {name}}\n";
    "create existing": existing POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}"#);
    "create nothing": absent POST "{collection}", JSON, "", "";
    "create null": absent POST "{collection}", JSON, "", "null";
    "create list": absent POST "{collection}", JSON, "", "[]";
    "create text": absent POST "{collection}", JSON, "", "\"x\"";
    "create broken": absent POST "{collection}", JSON, "", "{";
    "create trailing": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}}"#);
    "create without type": absent POST "{collection}", JSON, "", r#"{"metadata":{"name":"{name}"}}"#;
    "create without version": absent POST "{collection}", JSON, "", r#"{"kind":"EvictionInterceptor","metadata":{"name":"{name}"}}"#;
    "create of another kind": absent POST "{collection}", JSON, "", r#"{"apiVersion":"{group}/v1alpha3","kind":"Other","metadata":{"name":"{name}"}}"#;
    "create of another version": absent POST "{collection}", JSON, "", r#"{"apiVersion":"{group}/v2","kind":"EvictionInterceptor","metadata":{"name":"{name}"}}"#;
    "create of another group": absent POST "{collection}", JSON, "", r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"{name}"}}"#;
    "create without name": absent POST "{collection}", JSON, "", object!(r#""spec":{"interceptorName":"{name}"}"#);
    "create in a namespace": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","namespace":"default"},"spec":{"interceptorName":"{name}"}"#);
    "create with bad name": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"A_b"},"spec":{"interceptorName":"a.example.com"}"#);
    "create unsupported media type": absent POST "{collection}", "text/plain", "", "x";
    "create strict unknown field": absent POST "{collection}?fieldValidation=Strict", JSON, "", object!(r#""metadata":{"name":"{name}","other":1},"spec":{"interceptorName":"{name}","other":1},"other":2"#);
    "create warn unknown field": absent POST "{collection}?fieldValidation=Warn", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","other":1}"#);
    "create ignore unknown field": absent POST "{collection}?fieldValidation=Ignore", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","other":1}"#);
    "create bad field validation": absent POST "{collection}?fieldValidation=Some", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}"#);
    "create strict duplicate field": absent POST "{collection}?fieldValidation=Strict", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","priority":1,"priority":2}"#);
    "create warn duplicate field": absent POST "{collection}?fieldValidation=Warn", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","priority":1,"priority":2}"#);
    "create text for number": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","priority":"x"}"#);
    "create float for number": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","priority":1.5}"#);
    "create number for labels": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","labels":7},"spec":{"interceptorName":"{name}"}"#);
    "create number for a label": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","labels":{"a":7}},"spec":{"interceptorName":"{name}"}"#);
    "create bad label key": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","labels":{"-":"a"}},"spec":{"interceptorName":"{name}"}"#);
    "create bad label value": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","labels":{"a":"-"}},"spec":{"interceptorName":"{name}"}"#);
    "create bad annotation": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","annotations":{"a b":"-"}},"spec":{"interceptorName":"{name}"}"#);
    "create bad finalizer": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","finalizers":["a b/"]},"spec":{"interceptorName":"{name}"}"#);
    "create bare finalizer": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","finalizers":["bare"]},"spec":{"interceptorName":"{name}"}"#);
    "create bad owner": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","ownerReferences":[{"apiVersion":"","kind":"","name":"","uid":""}]},"spec":{"interceptorName":"{name}"}"#);
    "create two controllers": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"1","controller":true},{"apiVersion":"v1","kind":"Pod","name":"b","uid":"2","controller":true}]},"spec":{"interceptorName":"{name}"}"#);
    "create duplicate owners": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"a","uid":"1"},{"apiVersion":"v1","kind":"Pod","name":"a","uid":"1"}]},"spec":{"interceptorName":"{name}"}"#);
    "create owned by an event": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","ownerReferences":[{"apiVersion":"v1","kind":"Event","name":"a","uid":"1"}]},"spec":{"interceptorName":"{name}"}"#);
    "create bad creation time": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","creationTimestamp":"yesterday"},"spec":{"interceptorName":"{name}"}"#);
    "create bad managed fields": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}","managedFields":[{"manager":"a","operation":"Other"}]},"spec":{"interceptorName":"{name}"}"#);
    "create bad field manager": absent POST "{collection}?fieldManager=a%0Ab", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}"#);
    "create duplicate list keys": absent POST "{collection}", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","matchConditions":[{"name":"a","expression":"true"},{"name":"a","expression":"true"}]}"#);
    "update": existing PUT "{item}", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"{resourceVersion}"},"spec":{"interceptorName":"{name}","priority":5}"#);
    "update without change": existing PUT "{item}", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"{resourceVersion}","labels":{"row":"x"}},"spec":{"interceptorName":"{name}"}"#);
    "update without version": existing PUT "{item}", JSON, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}"#);
    "update at an old version": existing PUT "{item}", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"1"},"spec":{"interceptorName":"{name}"}"#);
    "update at a bad version": existing PUT "{item}", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"x"},"spec":{"interceptorName":"{name}"}"#);
    "update with another uid": existing PUT "{item}", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"{resourceVersion}","uid":"x"},"spec":{"interceptorName":"{name}"}"#);
    "update with another name": existing PUT "{item}", JSON, "", object!(r#""metadata":{"name":"other","resourceVersion":"{resourceVersion}"},"spec":{"interceptorName":"{name}"}"#);
    "update without a name": existing PUT "{item}", JSON, "", object!(r#""metadata":{"resourceVersion":"{resourceVersion}"},"spec":{"interceptorName":"{name}"}"#);
    "update absent": absent PUT "{item}", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"1"},"spec":{"interceptorName":"{name}"}"#);
    "update sets a deletion time": existing PUT "{item}", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"{resourceVersion}","deletionTimestamp":"2020-01-01T00:00:00Z"},"spec":{"interceptorName":"{name}"}"#);
    "update dry run": existing PUT "{item}?dryRun=All", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"{resourceVersion}"},"spec":{"interceptorName":"{name}","priority":5}"#);
    "update of the status": existing PUT "{item}/status", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"{resourceVersion}","labels":{"other":"x"}},"spec":{"interceptorName":"{name}","priority":5},"status":{"matchedPods":3}"#);
    "update ignores the status": existing PUT "{item}", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"{resourceVersion}","labels":{"row":"x"}},"spec":{"interceptorName":"{name}"},"status":{"matchedPods":3}"#);
    "update clears managed fields": existing PUT "{item}", JSON, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"{resourceVersion}","managedFields":[{}]},"spec":{"interceptorName":"{name}"}"#);
    "merge": existing PATCH "{item}", MERGE_PATCH, "", r#"{"spec":{"priority":5}}"#;
    "merge nothing": existing PATCH "{item}", MERGE_PATCH, "", "{}";
    "merge absent": absent PATCH "{item}", MERGE_PATCH, "", "{}";
    "merge removes": existing PATCH "{item}", MERGE_PATCH, "", r#"{"metadata":{"labels":null}}"#;
    "merge broken": existing PATCH "{item}", MERGE_PATCH, "", "{";
    "merge list": existing PATCH "{item}", MERGE_PATCH, "", "[]";
    "merge text": existing PATCH "{item}", MERGE_PATCH, "", "\"x\"";
    "merge empty body": existing PATCH "{item}", MERGE_PATCH, "", "";
    "merge at an old version": existing PATCH "{item}", MERGE_PATCH, "", r#"{"metadata":{"resourceVersion":"1"},"spec":{"priority":5}}"#;
    "merge another name": existing PATCH "{item}", MERGE_PATCH, "", r#"{"metadata":{"name":"other"}}"#;
    "merge another uid": existing PATCH "{item}", MERGE_PATCH, "", r#"{"metadata":{"uid":"other"}}"#;
    "merge another kind": existing PATCH "{item}", MERGE_PATCH, "", r#"{"kind":"Other"}"#;
    "merge another version": existing PATCH "{item}", MERGE_PATCH, "", r#"{"apiVersion":"{group}/v2"}"#;
    "merge wrong type": existing PATCH "{item}", MERGE_PATCH, "", r#"{"spec":{"priority":"x"}}"#;
    "merge strict unknown field": existing PATCH "{item}?fieldValidation=Strict", MERGE_PATCH, "", r#"{"spec":{"other":"x"}}"#;
    "merge warn unknown field": existing PATCH "{item}?fieldValidation=Warn", MERGE_PATCH, "", r#"{"spec":{"other":"x"}}"#;
    "merge forced": existing PATCH "{item}?force=true", MERGE_PATCH, "", "{}";
    "merge status": existing PATCH "{item}/status", MERGE_PATCH, "", r#"{"spec":{"priority":5},"status":{"matchedPods":4}}"#;
    "merge ignores the status": existing PATCH "{item}", MERGE_PATCH, "", r#"{"status":{"matchedPods":4}}"#;
    "merge as text": existing PATCH "{item}", "text/plain", "", "{}";
    "merge as json": existing PATCH "{item}", JSON, "", "{}";
    "merge strategic": existing PATCH "{item}", STRATEGIC_PATCH, "", "{}";
    "json patch": existing PATCH "{item}", JSON_PATCH, "", r#"[{"op":"add","path":"/spec/priority","value":5}]"#;
    "json patch test fails": existing PATCH "{item}", JSON_PATCH, "", r#"[{"op":"test","path":"/spec/priority","value":5}]"#;
    "json patch missing path": existing PATCH "{item}", JSON_PATCH, "", r#"[{"op":"replace","path":"/spec/other/a","value":5}]"#;
    "json patch remove missing": existing PATCH "{item}", JSON_PATCH, "", r#"[{"op":"remove","path":"/spec/podSelector"}]"#;
    "json patch unknown operation": existing PATCH "{item}", JSON_PATCH, "", r#"[{"op":"other","path":"/spec"}]"#;
    "json patch object": existing PATCH "{item}", JSON_PATCH, "", "{}";
    "json patch empty": existing PATCH "{item}", JSON_PATCH, "", "[]";
    "json patch broken": existing PATCH "{item}", JSON_PATCH, "", "[";
    "json patch absent": absent PATCH "{item}", JSON_PATCH, "", "[]";
    "apply creates": absent PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}"#);
    "apply changes": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","priority":5}"#);
    "apply without a name": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""spec":{"interceptorName":"{name}","priority":5}"#);
    "apply conflicts": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}","labels":{"row":"y"}},"spec":{"interceptorName":"{name}"}"#);
    "apply forced": existing PATCH "{item}?fieldManager=row&force=true", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}","labels":{"row":"y"}},"spec":{"interceptorName":"{name}"}"#);
    "apply bad force": existing PATCH "{item}?fieldManager=row&force=maybe", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}","labels":{"row":"y"}},"spec":{"interceptorName":"{name}"}"#);
    "apply without a manager": existing PATCH "{item}", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}"#);
    "apply with a bad manager": existing PATCH "{item}?fieldManager=a%0Ab", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}"}"#);
    "apply with managed fields": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}","managedFields":[]},"spec":{"interceptorName":"{name}"}"#);
    "apply with some managed fields": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}","managedFields":[{"manager":"a"}]},"spec":{"interceptorName":"{name}"}"#);
    "apply another name": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"other"},"spec":{"interceptorName":"{name}"}"#);
    "apply another kind": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", r#"{"apiVersion":"{group}/v1alpha3","kind":"Other","metadata":{"name":"{name}"}}"#;
    "apply another version": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", r#"{"apiVersion":"{group}/v2","kind":"EvictionInterceptor","metadata":{"name":"{name}"}}"#;
    "apply without type": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", r#"{"metadata":{"name":"{name}"}}"#;
    "apply at an old version": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}","resourceVersion":"1"},"spec":{"interceptorName":"{name}"}"#);
    "apply broken": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", "{";
    "apply nothing": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", "";
    "apply list": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", "[]";
    "apply unknown field": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","other":5}"#);
    "apply wrong type": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","priority":"x"}"#);
    "apply duplicate list keys": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","matchConditions":[{"name":"a","expression":"true"},{"name":"a","expression":"true"}]}"#);
    "apply list without key": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","matchConditions":[{"expression":"true"}]}"#);
    "apply null": existing PATCH "{item}?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","podSelector":null}"#);
    "apply status": existing PATCH "{item}/status?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"status":{"matchedPods":5}"#);
    "apply status absent": absent PATCH "{item}/status?fieldManager=row", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"status":{"matchedPods":5}"#);
    "apply dry run": existing PATCH "{item}?fieldManager=row&dryRun=All", APPLY_PATCH, "", object!(r#""metadata":{"name":"{name}"},"spec":{"interceptorName":"{name}","priority":5}"#);
    "delete": existing DELETE "{item}", NONE, "", "";
    "delete absent": absent DELETE "{item}", NONE, "", "";
    "delete dry run": existing DELETE "{item}?dryRun=All", NONE, "", "";
    "delete another uid": existing DELETE "{item}", JSON, "", r#"{"preconditions":{"uid":"other"}}"#;
    "delete another version": existing DELETE "{item}", JSON, "", r#"{"preconditions":{"resourceVersion":"1"}}"#;
    "delete this one": existing DELETE "{item}", JSON, "", r#"{"preconditions":{"uid":"{uid}","resourceVersion":"{resourceVersion}"}}"#;
    "delete foreground": existing DELETE "{item}?propagationPolicy=Foreground", NONE, "", "";
    "delete orphan": existing DELETE "{item}", JSON, "", r#"{"propagationPolicy":"Orphan"}"#;
    "delete unknown policy": existing DELETE "{item}?propagationPolicy=Other", NONE, "", "";
    "delete both policies": existing DELETE "{item}", JSON, "", r#"{"propagationPolicy":"Orphan","orphanDependents":true}"#;
    "delete bad grace": existing DELETE "{item}?gracePeriodSeconds=x", NONE, "", "";
    "delete broken": existing DELETE "{item}", JSON, "", "{";
    "delete another kind of options": existing DELETE "{item}", JSON, "", r#"{"apiVersion":"v1","kind":"Pod"}"#;
    "delete bad dry run": existing DELETE "{item}?dryRun=Some", NONE, "", "";
    "delete collection of one": existing DELETE "{collection}?fieldSelector=metadata.name%3D{name}", NONE, "", "";
    "delete collection bad selector": absent DELETE "{collection}?labelSelector=a%3D%3D%3Db", NONE, "", "";
};
