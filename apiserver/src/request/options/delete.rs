//! The options of delete and deletecollection.

use serde::Deserialize;

use super::causes::{cause, check_dry_run, invalid};
use crate::{error::ApiError, request::query::Query};

/// What happens to the dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
    /// They stay.
    Orphan,
}

/// What must hold for the object to be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preconditions {
    /// Its uid.
    pub uid: Option<String>,
    /// Its resourceVersion.
    pub resource_version: Option<String>,
}

/// The options of delete and deletecollection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// Whether to check everything and remove nothing.
    pub dry_run: bool,
    /// What happens to dependents; none = the finalizers of the object decide.
    pub propagation: Option<Propagation>,
    /// Whether the deprecated `orphanDependents: false` was used, which changes the code of the response.
    pub explicitly_not_orphaned: bool,
    /// What must hold for the object.
    pub preconditions: Preconditions,
    /// Grace period in seconds; kinds without graceful deletion ignore it.
    pub grace_period_seconds: Option<i64>,
    /// Whether to remove an object whose stored value cannot be read, and only such an object, without considering
    /// finalizers. No other option may be set. It needs a permission of its own and breaks what depends on the object.
    pub unsafe_delete: bool,
}

/// The name of the option for [`DeleteOptions::unsafe_delete`].
pub const UNSAFE_DELETE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// `DeleteOptions` on the wire.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeleteOptionsBody {
    kind: Option<String>,
    api_version: Option<String>,
    dry_run: Option<Vec<String>>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    preconditions: Option<Preconditions>,
    grace_period_seconds: Option<i64>,
    ignore_store_read_error_with_cluster_breaking_potential: Option<bool>,
}

impl DeleteOptions {
    /// Reads the options from the body if there is one, else from the query; they are never merged. `group_version` is that
    /// of the URL, which clients may use as the apiVersion of the options.
    ///
    /// # Errors
    /// 400 for a body that is not `DeleteOptions`, 422 for invalid values.
    pub fn parse(
        query: &Query,
        body: Option<serde_json::Value>,
        group_version: &str,
    ) -> Result<Self, ApiError> {
        let body = match body {
            Some(value) => {
                serde_json::from_value(value).map_err(|error| ApiError::bad_request(error.to_string()))?
            }
            None => DeleteOptionsBody {
                dry_run: query
                    .has("dryRun")
                    .then(|| query.all("dryRun").map(str::to_owned).collect()),
                propagation_policy: query.first("propagationPolicy").map(str::to_owned),
                orphan_dependents: query.boolean("orphanDependents"),
                grace_period_seconds: query.integer("gracePeriodSeconds")?,
                ignore_store_read_error_with_cluster_breaking_potential: query.boolean(UNSAFE_DELETE),
                ..DeleteOptionsBody::default()
            },
        };
        Self::check(body, group_version)
    }

    fn check(body: DeleteOptionsBody, group_version: &str) -> Result<Self, ApiError> {
        let kind = body.kind.as_deref().unwrap_or_default();
        let version = body.api_version.as_deref().unwrap_or_default();
        let is_known_version = ["", "v1", "meta.k8s.io/v1", group_version].contains(&version);
        if !matches!(kind, "" | "DeleteOptions") || !is_known_version {
            return Err(ApiError::bad_request(format!(
                "the object provided is unrecognized (must be of type DeleteOptions): {kind:?} in version {version:?}"
            )));
        }
        let mut causes = Vec::new();
        let dry_run = check_dry_run(body.dry_run.iter().flatten().map(String::as_str), &mut causes);
        if body.propagation_policy.is_some() && body.orphan_dependents.is_some() {
            causes.push(cause(
                "FieldValueInvalid",
                "propagationPolicy",
                format!(
                    "Invalid value: {:?}: orphanDependents and deletionPropagation cannot be both set",
                    body.propagation_policy.as_deref().unwrap_or_default()
                ),
            ));
        }
        let unsafe_delete = body.ignore_store_read_error_with_cluster_breaking_potential == Some(true);
        if unsafe_delete {
            for (is_set, other) in [
                (
                    body.dry_run.as_ref().is_some_and(|values| !values.is_empty()),
                    "dryRun",
                ),
                (body.propagation_policy.is_some(), "propagationPolicy"),
                (body.orphan_dependents.is_some(), "orphanDependents"),
                (body.grace_period_seconds.is_some(), "gracePeriodSeconds"),
                (body.preconditions.is_some(), "preconditions"),
            ] {
                if is_set {
                    let why = format!("Invalid value: true: cannot be set together with .{other}");
                    causes.push(cause("FieldValueInvalid", UNSAFE_DELETE, why));
                }
            }
        }
        let propagation = match (body.propagation_policy.as_deref(), body.orphan_dependents) {
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            (Some(other), _) => {
                causes.push(cause(
                    "FieldValueNotSupported",
                    "propagationPolicy",
                    format!(
                        "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                    ),
                ));
                None
            }
        };
        if !causes.is_empty() {
            return Err(invalid("DeleteOptions", causes));
        }
        Ok(Self {
            dry_run,
            propagation,
            explicitly_not_orphaned: body.orphan_dependents == Some(false),
            preconditions: body.preconditions.unwrap_or_default(),
            grace_period_seconds: body.grace_period_seconds,
            unsafe_delete,
        })
    }

    /// Checks that the options are allowed for a deletecollection.
    ///
    /// # Errors
    /// 422 for an unsafe delete: damaged objects are removed one by one.
    pub fn check_for_collection(&self) -> Result<(), ApiError> {
        if !self.unsafe_delete {
            return Ok(());
        }
        let why =
            "Invalid value: true: is not allowed with DELETECOLLECTION, try again after removing the option";
        Err(invalid(
            "DeleteOptions",
            vec![cause("FieldValueInvalid", UNSAFE_DELETE, why)],
        ))
    }
}
