//! The rights that setting owner references needs, as in kube-apiserver's plug-in `OwnerReferencesPermissionEnforcement`.
//! It is off by default, as there: the flag `--enable-admission-plugins` switches it on.
//!
//! Whoever changes the owners of an existing object may have it deleted, by naming an owner that does not exist: the right to
//! delete the object is required. Whoever sets `blockOwnerDeletion` can hold up the deletion of the owner: the right to update
//! the finalizers of the owner is required. kube-apiserver cannot check this for an aggregated resource.

use std::sync::Arc;

use drydock_machinery::field_error::quoted;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::rule::Rule;
use super::{Chain, review};
use crate::authorization::{Authorizer, Decision};
use crate::error::ApiError;
use crate::host::{AccessReview, Attributes, Host, HostResource, ResourceAttributes};
use crate::registry::admission::{Operation, WriteAttributes};
use crate::registry::part::Part;

struct OwnerReferences {
    host: Arc<dyn Host>,
    authorizer: Arc<Authorizer>,
}

impl Chain {
    /// Adds the rule, if it is enabled.
    #[must_use]
    pub fn enforcing_owner_references(mut self, enabled: bool) -> Self {
        if enabled {
            self.rules.push(Box::new(OwnerReferences {
                host: Arc::clone(&self.host),
                authorizer: Arc::clone(&self.authorizer),
            }));
        }
        self
    }
}

fn owners(object: Option<&Value>) -> &[Value] {
    object
        .and_then(|object| object.pointer("/metadata/ownerReferences"))
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn text<'a>(owner: &'a Value, member: &str) -> &'a str {
    owner.get(member).and_then(Value::as_str).unwrap_or_default()
}

fn blocks(owner: &Value) -> bool {
    owner.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true)
}

/// The owners whose deletion the write newly blocks.
fn newly_blocked<'a>(new: &'a [Value], old: &[Value]) -> Vec<&'a Value> {
    let blocked_before = |owner: &Value| {
        let mut before = old
            .iter()
            .filter(|before| text(before, "uid") == text(owner, "uid"));
        before.any(blocks)
    };
    new.iter()
        .filter(|owner| blocks(owner) && !blocked_before(owner))
        .collect()
}

impl OwnerReferences {
    async fn check(&self, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
        let (new, old) = (owners(write.object), owners(write.old));
        if write.part == Part::Status || write.operation == Operation::Delete || new == old {
            return Ok(());
        }
        if write.operation != Operation::Create {
            let name = write.shown_name();
            let delete = review(write.caller, "delete", write.endpoint, write.namespace, &name);
            self.require(
                write,
                &delete,
                "cannot set an ownerRef on a resource you can't delete",
            )
            .await?;
        }
        let blocked = newly_blocked(new, old);
        if blocked.is_empty()
            || self.decide(&finalizers(write, "*", "*", "*", "", "*")).await? == Decision::Allow
        {
            return Ok(());
        }
        for owner in blocked {
            for resource in self.resources_of(write, owner).await? {
                let (group, version) = group_version(text(owner, "apiVersion"));
                // A namespaced owner is in the namespace of what it owns.
                let namespace = if resource.is_namespaced {
                    write.namespace
                } else {
                    ""
                };
                let update = finalizers(
                    write,
                    group,
                    version,
                    &resource.plural,
                    namespace,
                    text(owner, "name"),
                );
                let why = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on";
                self.require(write, &update, why).await?;
            }
        }
        Ok(())
    }

    /// The resources of the owner's kind.
    async fn resources_of(
        &self,
        write: &WriteAttributes<'_>,
        owner: &Value,
    ) -> Result<Vec<HostResource>, ApiError> {
        let (api_version, kind) = (text(owner, "apiVersion"), text(owner, "kind"));
        let found = self.host.resources_of(api_version, kind).await.map_err(|error| {
            ApiError::internal(format_args!(
                "the resources of {api_version} could not be looked up"
            ))
            .because(error)
        })?;
        if found.is_empty() {
            return Err(forbidden(
                write,
                format!(
                    "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {api_version} \
                     Kind {kind}: no matches for kind {} in version {}",
                    quoted(kind),
                    quoted(api_version)
                ),
            ));
        }
        Ok(found)
    }

    async fn decide(&self, review: &AccessReview) -> Result<Decision, ApiError> {
        self.authorizer
            .decide(review)
            .await
            .map_err(|error| ApiError::internal("the rights on owners could not be reviewed").because(error))
    }

    async fn require(
        &self,
        write: &WriteAttributes<'_>,
        review: &AccessReview,
        why: &str,
    ) -> Result<(), ApiError> {
        match self.decide(review).await? {
            Decision::Allow => Ok(()),
            // The reference prints the authorizer's error too, of which there is none.
            Decision::Forbid(reason) => Err(forbidden(write, format!("{why}: {reason}, <nil>"))),
        }
    }
}

fn forbidden(write: &WriteAttributes<'_>, why: String) -> ApiError {
    ApiError::forbidden(write.endpoint.group_resource(), &write.shown_name(), why)
}

fn group_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// A review of the right to update the finalizers of an object.
fn finalizers(
    write: &WriteAttributes<'_>,
    group: &str,
    version: &str,
    resource: &str,
    namespace: &str,
    name: &str,
) -> AccessReview {
    AccessReview {
        user: Arc::clone(write.caller.user),
        attributes: Attributes::Resource(ResourceAttributes {
            verb: "update".to_owned(),
            group: group.to_owned(),
            version: version.to_owned(),
            resource: resource.to_owned(),
            subresource: "finalizers".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..ResourceAttributes::default()
        }),
    }
}

impl Rule for OwnerReferences {
    fn admit<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        self.check(write).boxed()
    }
}

#[cfg(test)]
mod tests;
