//! The conformance suite: the rules of a Kubernetes API server, checked over HTTP.
//!
//! Each rule is an async function over an [`Endpoint`]: a server, a protocol and a caller with all rights, either
//! direct or through kube-apiserver. [`conformance_suite!`](crate::conformance_suite) makes a test of each rule, which
//! runs on every endpoint of the suite. Each run has a namespace and a label of its own, so that rules do not see each
//! other's objects.

#![expect(
    clippy::indexing_slicing,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::similar_names,
    reason = "rules fail by panicking or with an error, also where JSON has another shape"
)]

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::calls::{Caller, Response, Watch};
pub use crate::objects::{GROUP_VERSION, ROOT};
use crate::objects::{eviction_request, idle_maintenance, requests_of};

pub mod apply;
pub mod creates;
pub mod deletes;
pub mod discovery;
pub mod encodings;
pub mod kinds;
pub mod limits;
pub mod lists;
pub mod negotiation;
pub mod options;
pub mod patches;
pub mod paths;
pub mod updates;
pub mod watches;
pub mod websockets;

/// The resource of most rules: cluster-scoped, and no controller acts on it while its stage is Idle.
pub const PLURAL: &str = "nodemaintenances.coordination.k8s.io";

/// The end of the message of a write conflict.
const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// Makes a test of every rule. `$endpoints` is an async function that takes the rule's name and returns the endpoints
/// to run it on, with a guard that is held meanwhile.
#[macro_export]
macro_rules! conformance_suite {
    ($endpoints:ident) => {
        $crate::conformance_tests! {
            $endpoints;
            discovery::resources_are_listed,
            discovery::resources_of_the_older_version_are_listed,
            discovery::groups_are_listed_in_both_forms,
            discovery::openapi_describes_every_kind,
            discovery::openapi_can_be_cached,
            paths::unknown_paths_are_404,
            paths::unknown_methods_are_405,
            paths::trailing_slashes_are_ignored,
            paths::impossible_names_are_400_or_404,
            paths::checks_have_an_order,
            discovery::every_response_has_an_audit_id_and_is_not_cached,
            creates::create_sets_system_metadata,
            creates::create_rejects_duplicates_and_invalid_bodies,
            creates::create_generates_names,
            creates::create_checks_the_namespace,
            creates::undecodable_bodies_are_rejected,
            creates::large_and_unknown_bodies_are_rejected,
            creates::metadata_is_validated,
            updates::update_needs_the_current_resource_version,
            updates::update_keeps_system_metadata,
            updates::only_spec_changes_advance_the_generation,
            updates::status_is_a_separate_subresource,
            updates::of_two_concurrent_updates_one_conflicts,
            updates::field_managers_are_recorded,
            patches::merge_patch,
            patches::json_patch,
            patches::failed_patches,
            patches::strategic_merge_patch,
            patches::other_patch_types_are_rejected,
            patches::patches_without_a_resource_version_never_conflict,
            apply::apply_creates_updates_and_writes_nothing,
            apply::apply_conflicts_are_reported_and_forced,
            apply::apply_merges_lists_by_their_keys,
            apply::applies_of_different_items_at_once_all_succeed,
            apply::clients_may_write_the_list_of_managers,
            apply::invalid_applies_are_rejected,
            apply::applies_name_their_object,
            apply::apply_bodies_are_decoded_strictly_on_request,
            apply::apply_dry_runs_store_nothing,
            apply::updates_and_applies_share_ownership,
            options::dry_runs_change_nothing,
            options::dry_run_takes_only_all,
            options::field_validation_controls_unknown_and_duplicate_fields,
            deletes::delete_returns_the_uid,
            deletes::finalizers_hold_an_object,
            deletes::propagation_policies_become_finalizers,
            deletes::options_come_from_the_body_or_the_query,
            deletes::preconditions_are_checked,
            deletes::a_terminating_object_takes_no_new_finalizer,
            deletes::collections_are_deleted_by_selection,
            limits::errors_are_small_whatever_is_sent,
            limits::errors_of_changes_are_small,
            limits::costly_patches_are_rejected,
            limits::an_object_has_at_most_64_owners,
            lists::an_empty_list_has_a_resource_version,
            lists::pages_are_one_snapshot,
            lists::resource_version_parameters_select_the_snapshot,
            lists::invalid_parameters_are_rejected,
            lists::label_selectors_filter,
            lists::field_selectors_filter,
            lists::lists_are_in_key_order,
            lists::a_list_contains_every_acknowledged_write,
            watches::a_watch_starts_at_its_resource_version,
            watches::initial_events_end_with_a_bookmark,
            watches::selectors_turn_changes_into_additions_and_deletions,
            watches::a_deletion_has_its_own_revision,
            watches::invalid_watches_are_rejected,
            watches::timeouts_end_a_watch_cleanly,
            watches::a_watch_without_bookmarks_has_none,
            watches::list_and_watch_miss_nothing_under_load,
            negotiation::tables,
            negotiation::table_options,
            negotiation::partial_metadata,
            negotiation::table_watch,
            negotiation::partial_metadata_watch,
            negotiation::yaml_is_read_and_written,
            negotiation::encodings_hold_the_same_document,
            negotiation::unsupported_media_types_are_rejected,
            negotiation::pretty_and_compressed,
            negotiation::accept_clauses_are_tried_in_order,
            encodings::objects_are_exchanged_in_binary_encodings,
            encodings::lists_are_served_in_binary_encodings,
            encodings::watches_are_served_in_binary_encodings,
            encodings::applies_may_be_cbor,
            websockets::a_watch_over_websocket_has_a_message_for_each_event,
            websockets::a_watch_over_websocket_ends_with_a_close_frame,
            websockets::websocket_messages_have_the_negotiated_form,
            websockets::refused_websockets_are_4xx,
            kinds::every_kind_is_served,
            kinds::every_kind_has_every_representation,
            kinds::owner_references_are_unique_and_can_be_patched,
        }
    };
}

/// The tests of [`conformance_suite!`](crate::conformance_suite).
#[macro_export]
macro_rules! conformance_tests {
    ($endpoints:ident; $($module:ident::$rule:ident,)*) => {
        $(
            #[tokio::test]
            async fn $rule() -> anyhow::Result<()> {
                let (_guard, endpoints) = $endpoints(stringify!($rule)).await?;
                $crate::conformance::check_each(endpoints, $crate::conformance::$module::$rule).await
            }
        )*
    };
}

/// Checks a rule on every endpoint.
///
/// # Errors
/// The rule does not hold; the message names the endpoint by its namespace.
pub async fn check_each(endpoints: Vec<Endpoint>, rule: impl AsyncFn(&Endpoint) -> Result<()>) -> Result<()> {
    for endpoint in endpoints {
        eprintln!("endpoint {}", endpoint.namespace);
        rule(&endpoint)
            .await
            .with_context(|| format!("endpoint {}", endpoint.namespace))?;
    }
    Ok(())
}

/// A server as one caller reaches it, with a namespace for the objects of one rule.
pub struct Endpoint {
    /// A caller with all rights.
    pub caller: Caller,
    /// An existing namespace that no other endpoint uses; its name also prefixes the names of maintenances.
    pub namespace: String,
    /// Whether requests pass through kube-apiserver.
    pub through_host: bool,
}

impl Endpoint {
    /// An endpoint without kube-apiserver, in a new namespace named after a rule and a protocol. `host` creates
    /// namespaces.
    ///
    /// # Errors
    /// The namespace cannot be created.
    pub async fn new(caller: Caller, host: &Caller, rule: &str, suffix: &str) -> Result<Self> {
        let namespace = format!("{}-{suffix}", rule.replace('_', "-"));
        let object = json!({ "metadata": { "name": namespace } });
        host.post("/api/v1/namespaces", &object).await?.expect(201)?;
        Ok(Self {
            caller,
            namespace,
            through_host: false,
        })
    }

    /// An endpoint without kube-apiserver in namespace `default`, for tests with a server of their own.
    #[must_use]
    pub fn in_default(caller: Caller) -> Self {
        Self {
            caller,
            namespace: "default".to_owned(),
            through_host: false,
        }
    }

    /// A UID that no other object of this process has.
    #[must_use]
    pub fn uid(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        format!(
            "c0f0a8ce-0000-4000-8000-{:012x}",
            NEXT.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// The full name of a maintenance of this endpoint.
    #[must_use]
    pub fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// An idle maintenance with this endpoint's label.
    #[must_use]
    pub fn maintenance(&self, name: &str) -> Value {
        let mut object = idle_maintenance(&self.name(name), "nowhere");
        object["metadata"]["labels"] = json!({ "endpoint": self.namespace });
        object
    }

    /// A request for a pod of this endpoint's namespace; the pod does not exist.
    #[must_use]
    pub fn request(&self) -> Value {
        eviction_request(&self.namespace, "pod", &self.uid())
    }

    /// The path of all maintenances.
    #[must_use]
    pub fn maintenances(&self) -> String {
        format!("{ROOT}/nodemaintenances")
    }

    /// The path to list or watch this endpoint's maintenances.
    #[must_use]
    pub fn own(&self) -> String {
        format!(
            "{}?labelSelector=endpoint%3D{}",
            self.maintenances(),
            self.namespace
        )
    }

    /// The path of a maintenance.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        format!("{}/{}", self.maintenances(), self.name(name))
    }

    /// The path of the requests in this endpoint's namespace.
    #[must_use]
    pub fn requests(&self) -> String {
        requests_of(&self.namespace)
    }

    /// Creates a maintenance.
    ///
    /// # Errors
    /// The response is not a 201.
    pub async fn create(&self, name: &str) -> Result<Value> {
        self.create_from(&self.maintenance(name)).await
    }

    /// Creates a maintenance from this body.
    ///
    /// # Errors
    /// The response is not a 201.
    pub async fn create_from(&self, object: &Value) -> Result<Value> {
        self.caller.post(&self.maintenances(), object).await?.expect(201)
    }

    /// Reads a maintenance.
    ///
    /// # Errors
    /// The response is not a 200.
    pub async fn read(&self, name: &str) -> Result<Value> {
        self.caller.get(&self.path(name)).await?.expect(200)
    }

    /// Sends a merge patch to a maintenance.
    ///
    /// # Errors
    /// There is no response.
    pub async fn merge(&self, name: &str, patch: &Value) -> Result<Response> {
        self.caller
            .patch(&self.path(name), crate::calls::MERGE_PATCH, patch)
            .await
    }

    /// Watches this endpoint's maintenances; the parameters begin with `&`.
    ///
    /// # Errors
    /// The response is not a 200.
    pub async fn watch(&self, parameters: &str) -> Result<Watch> {
        self.caller
            .watch(&format!("{}&watch=true{parameters}", self.own()))
            .await
    }
}

/// An object's resourceVersion as a number.
///
/// # Errors
/// It is not a number.
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

/// The causes of a Status, as `field: reason`.
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
