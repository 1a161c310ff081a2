//! The interface of an admission rule, and the permission reviews that rules make.

use std::sync::Arc;

use drydock_machinery::field_error::quoted;
use futures_util::future::BoxFuture;

use crate::authorization::{Authorizer, Decision};
use crate::error::ApiError;
use crate::host::{AccessReview, Attributes, ResourceAttributes};
use crate::registry::admission::WriteAttributes;

/// A rule that may reject a write.
pub(super) trait Rule: Send + Sync {
    /// Allows or rejects the write. The write is rejected if the decision cannot be made.
    fn admit<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// A verb on an object, or on all objects of a resource.
#[derive(Debug, Clone, Copy)]
pub(super) struct Right<'a> {
    pub(super) verb: &'a str,
    /// Empty for core.
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) resource: &'a str,
    /// Empty for cluster-scoped resources.
    pub(super) namespace: &'a str,
    /// Empty for all objects.
    pub(super) name: &'a str,
}

impl<'a> Right<'a> {
    /// A verb on all objects of a resource of the core group.
    pub(super) const fn core(verb: &'a str, resource: &'a str, namespace: &'a str) -> Self {
        Self {
            verb,
            group: "",
            version: "v1",
            resource,
            namespace,
            name: "",
        }
    }

    /// The same verb on one object.
    pub(super) const fn on(self, name: &'a str) -> Self {
        Self { name, ..self }
    }

    /// The 403 of a write by a user without this right, as the Go library words it. `about` says what the right is needed for,
    /// and may be empty.
    pub(super) fn missing(self, write: &WriteAttributes<'_>, about: &str) -> ApiError {
        let scope = match self.namespace {
            "" => " at the cluster scope".to_owned(),
            namespace => format!(" in the namespace \"{namespace}\""),
        };
        let separator = if about.is_empty() { "" } else { ": " };
        let why = format!(
            "User {} cannot {} resource \"{}\" in API group \"{}\"{scope}{separator}{about}",
            quoted(&write.caller.user.name),
            self.verb,
            self.resource,
            self.group,
        );
        ApiError::forbidden(write.endpoint.group_resource(), &write.shown_name(), why)
    }
}

/// Reviews the rights of a user.
#[derive(Clone)]
pub(super) struct Access {
    authorizer: Arc<Authorizer>,
}

impl Access {
    pub(super) const fn new(authorizer: Arc<Authorizer>) -> Self {
        Self { authorizer }
    }

    /// Whether the user who writes has the right.
    ///
    /// # Errors
    /// 500 if the host cannot be asked.
    pub(super) async fn decide(
        &self,
        write: &WriteAttributes<'_>,
        right: Right<'_>,
    ) -> Result<Decision, ApiError> {
        let review = AccessReview {
            user: Arc::clone(write.caller.user),
            attributes: Attributes::Resource(ResourceAttributes {
                verb: right.verb.to_owned(),
                group: right.group.to_owned(),
                version: right.version.to_owned(),
                resource: right.resource.to_owned(),
                namespace: right.namespace.to_owned(),
                name: right.name.to_owned(),
                ..ResourceAttributes::default()
            }),
        };
        self.authorizer.decide(&review).await.map_err(|error| {
            ApiError::internal(format_args!(
                "the permission to {} {} could not be reviewed",
                right.verb, right.resource
            ))
            .because(error)
        })
    }

    /// Whether the user who writes has the right for the object or for all objects of the resource. The latter is reviewed
    /// first, unless every name is: one review then covers thousands of objects for as long as it is cached.
    ///
    /// # Errors
    /// 500 if the host cannot be asked.
    pub(super) async fn decide_all_or_one(
        &self,
        write: &WriteAttributes<'_>,
        right: Right<'_>,
    ) -> Result<Decision, ApiError> {
        if !self.authorizer.reviews_every_name() && self.decide(write, right.on("")).await? == Decision::Allow
        {
            return Ok(Decision::Allow);
        }
        self.decide(write, right).await
    }
}
