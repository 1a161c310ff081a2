//! Object metadata as readers of typed objects need it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};

/// Standard object metadata without managed fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    uid: Option<String>,
}

/// Deserializes metadata without `managedFields`. They are often larger than the rest of an object, and decoding them is
/// most of the cost of decoding it. Who needs them reads `PartialObjectMetadata`.
///
/// # Errors
///
/// A member has the wrong type.
pub(crate) fn without_managed_fields<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<ObjectMeta, D::Error> {
    let metadata = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        annotations: metadata.annotations,
        creation_timestamp: metadata.creation_timestamp,
        deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
        deletion_timestamp: metadata.deletion_timestamp,
        finalizers: metadata.finalizers,
        generate_name: metadata.generate_name,
        generation: metadata.generation,
        labels: metadata.labels,
        managed_fields: None,
        name: metadata.name,
        namespace: metadata.namespace,
        owner_references: metadata.owner_references,
        resource_version: metadata.resource_version,
        self_link: None,
        uid: metadata.uid,
    })
}

#[cfg(test)]
mod tests {
    use super::ObjectMeta;
    use crate::kinds::evictionrequest::EvictionRequest;
    use serde_json::json;

    #[test]
    fn everything_but_managed_fields_is_kept() {
        let metadata = json!({
            "name": "uid-1", "namespace": "shop", "generateName": "g-", "uid": "er-1", "resourceVersion": "7",
            "generation": 2, "labels": {"app": "web"}, "annotations": {"a": "b"}, "finalizers": ["f"],
            "creationTimestamp": "1970-01-01T00:00:01Z", "deletionTimestamp": "1970-01-01T00:00:02Z",
            "deletionGracePeriodSeconds": 3,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "uid-1"}],
        });
        let mut sent = metadata.clone();
        sent["managedFields"] = json!([{"manager": "m", "operation": "Update", "fieldsV1": {"f:spec": {}}}]);
        let request: EvictionRequest = serde_json::from_value(json!({"metadata": sent})).unwrap();
        assert_eq!(serde_json::to_value(&request.metadata).unwrap(), metadata);
        let bare: EvictionRequest = serde_json::from_value(json!({})).unwrap();
        assert_eq!(bare.metadata, ObjectMeta::default());
    }
}
