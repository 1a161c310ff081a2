//! How the built-in kinds are patched by strategic merge: which of their lists are merged, and by which key.
//!
//! kubectl computes such patches from its Go types and sends them for pods and nodes whatever the server supports. The
//! schemas here keep most fields as sent, so that the lists are found by name instead: in [`LISTS`], which has all lists
//! that the served built-in kinds merge.

use drydock_machinery::patch::strategic::{ListType, Place, apply_at};
use drydock_machinery::patch::{PatchError, Patched};
use serde_json::Value;

/// The merge key of lists of scalars.
const SCALARS: &str = "";

/// The lists that are merged: the field (or list) that contains them, their name, and their merge key.
const LISTS: &[(&str, &str, &str)] = &[
    ("metadata", "finalizers", SCALARS),
    ("metadata", "ownerReferences", "uid"),
    // nodes
    ("spec", "podCIDRs", SCALARS),
    ("status", "addresses", "type"),
    // pods and their templates
    ("spec", "containers", "name"),
    ("spec", "ephemeralContainers", "name"),
    ("spec", "evictionInterceptors", "name"),
    ("spec", "evictionResponders", "name"),
    ("spec", "hostAliases", "ip"),
    ("spec", "imagePullSecrets", "name"),
    ("spec", "initContainers", "name"),
    ("spec", "resourceClaims", "name"),
    ("spec", "schedulingGates", "name"),
    ("spec", "topologySpreadConstraints", "topologyKey"),
    ("spec", "volumes", "name"),
    ("status", "hostIPs", "ip"),
    ("status", "podIPs", "ip"),
    ("status", "resourceClaimStatuses", "name"),
    // many kinds
    ("status", "conditions", "type"),
];

/// The lists in a container of any list of containers.
const LISTS_OF_CONTAINERS: &[(&str, &str)] = &[
    ("env", "name"),
    ("ports", "containerPort"),
    ("volumeDevices", "devicePath"),
    ("volumeMounts", "mountPath"),
];

/// A place in an object of a built-in kind.
#[derive(Debug, Clone, Default)]
struct Named {
    is_budget: bool,
    /// The field of the object that contains this one.
    parent: String,
    /// The field here; an item of a list has that of its list.
    field: String,
}

impl Place for Named {
    fn field(&self, name: &str) -> Self {
        Self {
            is_budget: self.is_budget,
            parent: self.field.clone(),
            field: name.to_owned(),
        }
    }

    fn item(&self) -> Self {
        self.clone()
    }

    fn list_type(&self) -> ListType {
        let (parent, field) = (self.parent.as_str(), self.field.as_str());
        let key = if matches!(parent, "containers" | "initContainers" | "ephemeralContainers") {
            let mut lists = LISTS_OF_CONTAINERS.iter();
            lists.find(|(name, _)| *name == field).map(|(_, key)| *key)
        } else {
            let mut lists = LISTS.iter();
            lists
                .find(|(place, name, _)| *place == parent && *name == field)
                .map(|(_, _, key)| *key)
        };
        match key {
            None => ListType::Atomic,
            Some(SCALARS) => ListType::Set,
            Some(key) => ListType::Map(key.to_owned()),
        }
    }

    /// The Go type of a budget declares the selector to be replaced; clients omit the directive.
    fn is_replaced(&self) -> bool {
        self.is_budget && self.parent == "spec" && self.field == "selector"
    }
}

/// Applies a patch to an object of a built-in kind.
///
/// # Errors
/// As for [`apply_at`].
pub(crate) fn apply(document: &Value, patch: &[u8]) -> Result<Patched, PatchError> {
    let place = Named {
        is_budget: document.get("kind").and_then(Value::as_str) == Some("PodDisruptionBudget"),
        ..Named::default()
    };
    apply_at(document, patch, &place)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(document: &Value, patch: &Value, expected: &Value) {
        let patched = apply(document, patch.to_string().as_bytes()).unwrap();
        assert_eq!(&patched.value, expected, "{document} patched with {patch}");
    }

    #[test]
    fn the_selector_of_a_budget_is_replaced() {
        let of_kind =
            |kind: &str, labels: Value| json!({"kind": kind, "spec": {"selector": {"matchLabels": labels}}});
        let patch = json!({"spec": {"selector": {"matchLabels": {"b": "1"}}}});
        check(
            &of_kind("PodDisruptionBudget", json!({"a": "1"})),
            &patch,
            &of_kind("PodDisruptionBudget", json!({"b": "1"})),
        );
        check(
            &of_kind("Deployment", json!({"a": "1"})),
            &patch,
            &of_kind("Deployment", json!({"a": "1", "b": "1"})),
        );
    }

    #[test]
    fn the_lists_of_containers_are_merged_too() {
        check(
            &json!({"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y"}]}]}}),
            &json!({"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}]}, {"name": "b"}]}}),
            &json!({"spec": {"containers": [
                {"name": "a", "env": [{"name": "X", "value": "2"}, {"name": "Y"}]}, {"name": "b"}]}}),
        );
        check(
            &json!({"metadata": {"finalizers": ["a"]}, "spec": {"taints": [{"key": "a"}]}}),
            &json!({"metadata": {"finalizers": ["b"]}, "spec": {"taints": [{"key": "b"}]}}),
            &json!({"metadata": {"finalizers": ["b", "a"]}, "spec": {"taints": [{"key": "b"}]}}),
        );
    }
}
