//! The interface of an admission rule, and the permission reviews that rules make.

use std::sync::Arc;

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

/// Reviews the permissions of a user on objects of the host.
#[derive(Clone)]
pub(super) struct Access {
    authorizer: Arc<Authorizer>,
}

impl Access {
    pub(super) const fn new(authorizer: Arc<Authorizer>) -> Self {
        Self { authorizer }
    }

    /// Whether the user may delete an object of the core group; an empty name stands for all objects.
    pub(super) async fn may_delete(
        &self,
        write: &WriteAttributes<'_>,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Decision, ApiError> {
        let review = AccessReview {
            user: Arc::clone(write.caller.user),
            attributes: Attributes::Resource(ResourceAttributes {
                verb: "delete".to_owned(),
                version: "v1".to_owned(),
                resource: resource.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                ..ResourceAttributes::default()
            }),
        };
        self.authorizer.decide(&review).await.map_err(|error| {
            ApiError::internal("the permission to delete the target could not be reviewed").because(error)
        })
    }
}
