//! Version v1alpha1, as the design describes it: the spec of the hub, and a status without the drain of each node, counts
//! of nodes, and blockers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{DrainPlanEntry, NodeMaintenanceSpec, StageStatus};
use crate::kinds::hidden::{hide, keep_hidden, members_mut};
use crate::kinds::{Context, Conversion, ConversionError, Face};

/// The version.
pub const FACE: Face = Face {
    version: "v1alpha1",
    alias: None,
    spec: spec_schema,
    status: status_schema,
    conversion: Conversion::Functions { to_hub, from_hub },
    paths: &[],
};

/// The members of `status` in this version.
const STATUS: &[&str] = &["stageStatuses", "drainStatus", "conditions"];
/// The members of `status.drainStatus` in this version.
const DRAIN_STATUS: &[&str] = &[
    "reachedDrainTargets",
    "podsPendingEvictionRequest",
    "activeEvictionRequests",
];

/// The observed progress of the maintenance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenanceStatus {
    /// The stages that have started, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub stage_statuses: Vec<StageStatus>,
    /// The drain of all selected nodes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_status: Option<DrainStatus>,
    /// Drained, and other conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// The drain of all selected nodes together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// The drain targets that all selected nodes have reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub reached_drain_targets: Vec<DrainPlanEntry>,
    /// The number of targeted pods without an EvictionRequest.
    #[serde(default)]
    pub pods_pending_eviction_request: i32,
    /// The number of active EvictionRequests of targeted pods.
    #[serde(default)]
    pub active_eviction_requests: i32,
}

/// The JSON schema of `spec`.
#[must_use]
pub fn spec_schema() -> Value {
    crate::schema::inlined::<NodeMaintenanceSpec>()
}

/// The JSON schema of `status`.
#[must_use]
pub fn status_schema() -> Value {
    crate::schema::inlined::<NodeMaintenanceStatus>()
}

#[expect(clippy::unnecessary_wraps, reason = "a conversion has this type")]
fn to_hub(object: &mut Value, context: &Context<'_>) -> Result<(), ConversionError> {
    let stored = context.stored.and_then(|stored| stored.get("status"));
    if stored.is_none() {
        return Ok(());
    }
    let status = members_mut(object, "status");
    keep_hidden(status, stored, STATUS);
    if let Some(drain) = stored.and_then(|stored| stored.get("drainStatus"))
        && let Some(shown) = status.get_mut("drainStatus").and_then(Value::as_object_mut)
    {
        keep_hidden(shown, Some(drain), DRAIN_STATUS);
    }
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "a conversion has this type")]
fn from_hub(object: &mut Value) -> Result<(), ConversionError> {
    hide(object.get_mut("status"), STATUS);
    hide(object.pointer_mut("/status/drainStatus"), DRAIN_STATUS);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_this_version_does_not_show_is_kept_from_the_stored_object() {
        let stored = json!({"spec": {"stage": "Drain"}, "status": {"selectedNodes": 2, "nodeStatuses": [{}],
            "drainStatus": {"drainMessage": "Draining", "activeEvictionRequests": 1}}});
        let mut shown = stored.clone();
        from_hub(&mut shown).unwrap();
        assert_eq!(
            shown,
            json!({"spec": {"stage": "Drain"}, "status": {"drainStatus": {"activeEvictionRequests": 1}}})
        );
        shown["status"]["drainStatus"]["activeEvictionRequests"] = json!(0);
        let context = Context {
            stored: Some(&stored),
            now: "2026-06-01T12:00:00Z",
        };
        to_hub(&mut shown, &context).unwrap();
        let mut expected = stored.clone();
        expected["status"]["drainStatus"]["activeEvictionRequests"] = json!(0);
        assert_eq!(shown, expected);
    }
}
