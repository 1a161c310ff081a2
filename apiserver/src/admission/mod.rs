//! May this object be stored, beyond what its own rules say?
//!
//! Neither the front proxy nor the host has asked: an aggregated server is the only place where admission of its kinds
//! can happen. The chain runs on the final object, inside the loop that commits it, for dry runs too:
//!
//! - [`namespace_lifecycle`]: nothing new in a namespace that is missing or being deleted;
//! - [`target_access`]: who touches an EvictionRequest must be allowed to delete its pod;
//! - [`node_access`]: who touches a NodeMaintenance must be allowed to delete its nodes.

mod namespace_lifecycle;
mod node_access;
mod target_access;

use std::sync::Arc;

use drydock_storage::Key;
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::authorization::{Authorizer, Decision};
use crate::error::ApiError;
use crate::host::{AccessReview, Host, Namespace, ResourceAttributes};
use crate::registry::resource::{Part, Resource};
use crate::request::RequestContext;

/// The verb of the right to remove objects that cannot be read, as kube-apiserver names it.
const UNSAFE_DELETE_VERB: &str = "unsafe-delete-ignore-read-errors";

/// What is done to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// It is stored for the first time.
    Create,
    /// It is changed, by whatever verb.
    Update,
    /// It is removed, or marked for removal.
    Delete,
}

/// A write as admission sees it. Objects are private copies: nothing here can change what is stored.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    /// What is done.
    pub operation: Operation,
    /// To what kind of object.
    pub resource: &'a Resource,
    /// On whose behalf.
    pub context: &'a RequestContext,
    /// To which part.
    pub part: Part,
    /// Its namespace; empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// Its name; empty before one is generated.
    pub name: &'a str,
    /// What it is to become; none for a delete.
    pub object: Option<&'a Value>,
    /// What is stored; none for a create.
    pub old: Option<&'a Value>,
    /// Whether nothing will be stored.
    pub dry_run: bool,
}

impl Attributes<'_> {
    /// Whether an update leaves everything but the bookkeeping of fields as it is. Migrations of the stored form write
    /// like that, under identities without any right to a target.
    fn changes_nothing(&self) -> bool {
        let (Some(new), Some(old)) = (self.object, self.old) else {
            return false;
        };
        let bookkeeping = ["managedFields", "resourceVersion"];
        without(Some(new), &["metadata"]).eq(without(Some(old), &["metadata"]))
            && without(new.get("metadata"), &bookkeeping).eq(without(old.get("metadata"), &bookkeeping))
    }
}

/// The members of an object in order, less some.
fn without<'a>(
    object: Option<&'a Value>,
    names: &'a [&str],
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let members = object.and_then(Value::as_object).into_iter().flatten();
    members.filter(|(name, _)| !names.contains(&name.as_str()))
}

/// A rule that may refuse a write.
trait Rule: Send + Sync {
    /// Lets the write pass or refuses it. Anything unsure is a refusal.
    fn admit<'a>(&'a self, write: &'a Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// The rules in order.
pub struct Chain {
    host: Arc<dyn Host>,
    rules: Vec<Box<dyn Rule>>,
    authorizer: Arc<Authorizer>,
}

impl Chain {
    /// The chain of a server. `own_node` is the node it runs on, if it runs on one: maintenances that select it are
    /// answered with a warning.
    #[must_use]
    pub fn new(host: Arc<dyn Host>, authorizer: Arc<Authorizer>, own_node: Option<String>) -> Self {
        let access = Access {
            authorizer: Arc::clone(&authorizer),
        };
        let rules: Vec<Box<dyn Rule>> = vec![
            Box::new(target_access::TargetAccess {
                access: access.clone(),
            }),
            Box::new(node_access::NodeAccess {
                access,
                host: Arc::clone(&host),
                own_node,
            }),
        ];
        Self {
            host,
            rules,
            authorizer,
        }
    }

    /// What is asked before a new object is brought into shape.
    ///
    /// # Errors
    /// 403 and 404 of the namespace, 500 when the host does not answer.
    pub async fn begin_create(&self, write: &Attributes<'_>) -> Result<(), ApiError> {
        namespace_lifecycle::check(&*self.host, write).await
    }

    /// What is asked of the final object.
    ///
    /// # Errors
    /// 403, or 500 when the host does not answer.
    pub async fn validate(&self, write: &Attributes<'_>) -> Result<(), ApiError> {
        for rule in &self.rules {
            rule.admit(write).await?;
        }
        Ok(())
    }

    /// Whether the user may remove an object that cannot be read, which no other rule can look at.
    ///
    /// # Errors
    /// 403, also when the host does not answer.
    pub async fn check_unsafe_delete(
        &self,
        context: &RequestContext,
        resource: &Resource,
        version: &str,
        key: &Key,
    ) -> Result<(), ApiError> {
        let review = AccessReview {
            user: Arc::clone(&context.user),
            attributes: crate::host::Attributes::Resource(ResourceAttributes {
                verb: UNSAFE_DELETE_VERB.to_owned(),
                group: resource.group.to_owned(),
                version: version.to_owned(),
                resource: resource.plural.to_owned(),
                namespace: key.namespace().to_owned(),
                name: key.name().to_owned(),
                ..ResourceAttributes::default()
            }),
        };
        let forbid = |why: String| ApiError::forbidden(resource.group_resource(), key.name(), why);
        match self.authorizer.decide(&review).await {
            Ok(Decision::Allow) => Ok(()),
            Ok(Decision::Forbid(reason)) => Err(forbid(format!(
                "not permitted to do \"{UNSAFE_DELETE_VERB}\", reason: {reason}"
            ))),
            Err(error) => Err(forbid(format!(
                "error while checking permission for \"{UNSAFE_DELETE_VERB}\""
            ))
            .because(error)),
        }
    }

    /// Whether a namespace is being deleted, or gone with something left behind. Where that is not known, it is not.
    pub async fn is_namespace_ending(&self, namespace: &str) -> bool {
        !namespace.is_empty()
            && matches!(
                self.host.namespace(namespace).await,
                Ok(Namespace::Terminating(_) | Namespace::Missing)
            )
    }
}

/// Asks what the user of a request may do elsewhere.
#[derive(Clone)]
struct Access {
    authorizer: Arc<Authorizer>,
}

impl Access {
    /// Whether the user may delete an object of the core group; an empty name means every one.
    async fn may_delete(
        &self,
        write: &Attributes<'_>,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Decision, ApiError> {
        let review = AccessReview {
            user: Arc::clone(&write.context.user),
            attributes: crate::host::Attributes::Resource(ResourceAttributes {
                verb: "delete".to_owned(),
                version: "v1".to_owned(),
                resource: resource.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                ..ResourceAttributes::default()
            }),
        };
        self.authorizer.decide(&review).await.map_err(|error| {
            ApiError::internal("the right to the target could not be reviewed").because(error)
        })
    }
}

#[cfg(test)]
mod tests;
