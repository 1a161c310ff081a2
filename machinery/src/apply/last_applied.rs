//! The annotation in which `kubectl apply` without `--server-side` keeps the last applied configuration.
//!
//! When a user switches to server-side apply, the fields that kubectl applied before are owned by another manager
//! (`kubectl-client-side-apply`). They must not conflict: a conflict is allowed if the annotation contains the field with
//! its live value. After an apply by `kubectl` the annotation is updated, so that switching back works, too. Equivalent to
//! `lastAppliedManager` and `lastAppliedUpdater` of `k8s.io/apimachinery/pkg/util/managedfields`.

use serde_json::Value;

use super::field_set::FieldSet;
use super::managed_fields::{Endpoint, Writer};
use super::typed::{Comparison, compare};
use super::validate::validate;
use super::value_paths::applied_paths;
use crate::codec;
use crate::object_meta::MAX_ANNOTATIONS_BYTES;

/// The only manager for which the annotation is used.
const KUBECTL: &str = "kubectl";

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The fields that `kubectl` may change without force. `None` for other managers, and if the annotation is absent,
/// invalid or in another version.
pub(super) fn allowed_fields(endpoint: &Endpoint<'_>, live: &Value, writer: &Writer<'_>) -> Option<FieldSet> {
    if writer.manager != KUBECTL {
        return None;
    }
    let text = annotation(live)?;
    let last_applied = codec::json::decode(text.as_bytes()).ok()?.value;
    let api_version = last_applied.get("apiVersion").and_then(Value::as_str);
    if api_version != Some(writer.api_version) || !validate(endpoint.schema, &last_applied).is_empty() {
        return None;
    }
    let mut allowed = applied_paths(endpoint.schema, &last_applied).ok()?;
    let Comparison {
        added,
        modified,
        removed,
    } = compare(endpoint.schema, &last_applied, live).ok()?;
    for different in [added, modified, removed] {
        allowed.subtract(&different);
    }
    Some(allowed)
}

/// Sets the annotation to `config` if the manager is `kubectl` and the object has the annotation. Removes it if the
/// annotations become too large.
pub(super) fn update_annotation(object: &mut Value, config: &Value, writer: &Writer<'_>) {
    if writer.manager != KUBECTL || annotation(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = config
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(ANNOTATION);
    }
    let mut text = codec::encode(&config);
    text.push(b'\n');
    let text = String::from_utf8_lossy(&text).into_owned();
    if let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.insert(ANNOTATION.to_owned(), text.into());
        let bytes: usize = annotations
            .iter()
            .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
            .sum();
        if bytes > MAX_ANNOTATIONS_BYTES {
            annotations.remove(ANNOTATION);
        }
    }
}

fn annotation(object: &Value) -> Option<&str> {
    let annotations = object.get("metadata")?.get("annotations")?;
    annotations
        .get(ANNOTATION)?
        .as_str()
        .filter(|text| !text.is_empty())
}
