//! Does the server behave as a Kubernetes API server does, on every way to it?
//!
//! Each rule is a function over a [`Road`]: a caller with every right at one server, by one protocol,
//! directly or through kube-apiserver. A suite runs all rules ([`for_every_rule`](crate::for_every_rule))
//! on the roads it has, each time with a road of its own, so that rules do not see each other's objects.

#![expect(
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::similar_names,
    reason = "rules fail by panicking, also where JSON has another shape"
)]

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::calls::{Answer, Caller, Watch};

pub mod deletes;
pub mod discovery;
pub mod lists;
pub mod negotiation;
pub mod watches;
pub mod writes;

/// The served group-version.
pub const GROUP_VERSION: &str = "coordination.k8s.io/v1alpha3";
/// Where it is served.
pub const ROOT: &str = "/apis/coordination.k8s.io/v1alpha3";
/// The resource of most rules: cluster-scoped, and nothing acts on it while it is idle.
pub const PLURAL: &str = "nodemaintenances.coordination.k8s.io";

/// Hands every rule to a macro as `module::rule`, so that each becomes a test of its own.
#[macro_export]
macro_rules! for_every_rule {
    ($tests:ident) => {
        $tests! {
            discovery::resources_are_listed,
            discovery::groups_are_listed_in_both_forms,
            discovery::openapi_describes_every_kind,
            discovery::unknown_paths_and_methods_are_told_apart,
            discovery::every_answer_has_an_audit_id_and_is_not_cached,
            writes::create_sets_system_metadata,
            writes::create_refuses_what_exists_or_cannot_be,
            writes::create_generates_names,
            writes::create_knows_namespaces,
            writes::bodies_that_cannot_be_decoded,
            writes::update_needs_the_current_resource_version,
            writes::update_restores_what_it_may_not_change,
            writes::only_spec_changes_advance_the_generation,
            writes::status_is_written_apart,
            writes::of_two_updates_of_one_version_one_wins,
            writes::merge_patch,
            writes::json_patch,
            writes::patches_of_other_types_are_refused,
            writes::patches_without_a_version_never_conflict,
            writes::dry_runs_change_nothing,
            writes::unknown_and_duplicate_fields,
            writes::field_managers_are_recorded,
            writes::metadata_is_validated,
            deletes::delete_answers_with_the_uid,
            deletes::finalizers_hold_an_object,
            deletes::propagation_policies_become_finalizers,
            deletes::options_come_from_the_body_or_the_query,
            deletes::preconditions_are_checked,
            deletes::a_terminating_object_takes_no_new_finalizer,
            deletes::collections_are_deleted_by_selection,
            lists::an_empty_list_has_a_version,
            lists::pages_are_one_snapshot,
            lists::resource_versions_are_understood,
            lists::labels_select,
            lists::fields_select,
            lists::namespaces_are_in_key_order,
            lists::a_list_has_every_earlier_write,
            watches::a_watch_starts_where_it_is_told,
            watches::initial_events_end_with_a_bookmark,
            watches::selectors_turn_changes_into_additions_and_deletions,
            watches::a_deletion_has_its_own_version,
            watches::bad_watches_are_refused,
            watches::timeouts_end_a_watch_cleanly,
            watches::a_watch_without_bookmarks_has_none,
            watches::list_and_watch_miss_nothing_under_load,
            negotiation::tables,
            negotiation::partial_metadata,
            negotiation::table_watch,
            negotiation::partial_metadata_watch,
            negotiation::yaml_in_and_out,
            negotiation::what_cannot_be_served_is_refused,
            negotiation::pretty_and_compressed,
        }
    };
}

/// A way to a server, with room for the objects of one rule.
pub struct Road {
    /// Somebody with every right.
    pub caller: Caller,
    /// An existing namespace of this road's own; maintenances are named after it.
    pub namespace: String,
    /// Whether kube-apiserver stands between.
    pub through_host: bool,
}

impl Road {
    /// A UID that no other object of this process has.
    #[must_use]
    pub fn uid(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        format!(
            "c0f0a8ce-0000-4000-8000-{:012x}",
            NEXT.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// The full name of one of this road's maintenances.
    #[must_use]
    pub fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// An idle maintenance, with this road's label.
    #[must_use]
    pub fn maintenance(&self, name: &str) -> Value {
        json!({
            "apiVersion": GROUP_VERSION,
            "kind": "NodeMaintenance",
            "metadata": { "name": self.name(name), "labels": { "road": self.namespace } },
            "spec": { "nodeSelector": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": ["nowhere"] },
            ] }] } },
        })
    }

    /// A request for a pod of this road's namespace, which need not exist.
    #[must_use]
    pub fn request(&self) -> Value {
        let uid = self.uid();
        json!({
            "apiVersion": GROUP_VERSION,
            "kind": "EvictionRequest",
            "metadata": { "name": uid, "namespace": self.namespace },
            "spec": {
                "target": { "pod": { "name": "pod", "uid": uid } },
                "requesters": [{ "name": "suite.example.com" }],
            },
        })
    }

    /// The collection of maintenances.
    #[must_use]
    pub fn maintenances(&self) -> String {
        format!("{ROOT}/nodemaintenances")
    }

    /// The maintenances of this road, as a path to list or watch.
    #[must_use]
    pub fn own(&self) -> String {
        format!("{}?labelSelector=road%3D{}", self.maintenances(), self.namespace)
    }

    /// One of this road's maintenances.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        format!("{}/{}", self.maintenances(), self.name(name))
    }

    /// The requests in this road's namespace.
    #[must_use]
    pub fn requests(&self) -> String {
        format!("{ROOT}/namespaces/{}/evictionrequests", self.namespace)
    }

    /// Creates a maintenance.
    ///
    /// # Errors
    /// The server does not answer with 201.
    pub async fn create(&self, name: &str) -> Result<Value> {
        self.create_from(&self.maintenance(name)).await
    }

    /// Creates a maintenance from this body.
    ///
    /// # Errors
    /// The server does not answer with 201.
    pub async fn create_from(&self, object: &Value) -> Result<Value> {
        self.caller.post(&self.maintenances(), object).await?.expect(201)
    }

    /// The maintenance as it is now.
    ///
    /// # Errors
    /// The server does not answer with 200.
    pub async fn read(&self, name: &str) -> Result<Value> {
        self.caller.get(&self.path(name)).await?.expect(200)
    }

    /// Merges into a maintenance.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn merge(&self, name: &str, patch: &Value) -> Result<Answer> {
        self.caller
            .patch(&self.path(name), crate::calls::MERGE_PATCH, patch)
            .await
    }

    /// Watches this road's maintenances; the parameters begin with `&`.
    ///
    /// # Errors
    /// The server does not answer with 200.
    pub async fn watch(&self, parameters: &str) -> Result<Watch> {
        self.caller
            .watch(&format!("{}&watch=true{parameters}", self.own()))
            .await
    }
}

/// An object's resourceVersion as the number it is here.
///
/// # Errors
/// It is none.
pub fn version(object: &Value) -> Result<u64> {
    let text = object["metadata"]["resourceVersion"].as_str();
    text.and_then(|text| text.parse().ok())
        .with_context(|| format!("no resourceVersion: {object}"))
}

/// The names of a list's items, in its order.
#[must_use]
pub fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// The causes of a refusal, as `field: reason`.
#[must_use]
pub fn causes(status: &Value) -> Vec<String> {
    let causes = status["details"]["causes"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    causes
        .iter()
        .map(|cause| format!("{}: {}", text(&cause["field"]), text(&cause["reason"])))
        .collect()
}
