//! The interface between the registry and admission control, which changes writes and decides whether they are allowed
//! beyond the rules of the kind itself.

use std::borrow::Cow;

use drydock_storage::Revision;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::caller::Caller;
use super::endpoint::Endpoint;
use super::part::Part;
use super::resource::Resource;
use crate::error::{ApiError, Reason};
use crate::request::audit::TARGET_AUTHORIZATION;
use crate::request::options::{DeleteOptions, WriteOptions};

/// The kind of write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// A change of an existing object, by any verb.
    Update,
    /// The removal of an object, or setting its deletion timestamp.
    Delete,
}

/// The options of a write.
#[derive(Debug, Clone, Copy)]
pub enum Options<'a> {
    /// Of a create or an update, by any verb.
    Write(&'a WriteOptions),
    /// Of a delete.
    Delete(&'a DeleteOptions),
}

/// A write as admission sees it. The objects are hubs.
#[derive(Debug, Clone, Copy)]
pub struct WriteAttributes<'a> {
    /// The kind of write.
    pub operation: Operation,
    /// The resource.
    pub resource: &'a Resource,
    /// The version of the request.
    pub endpoint: &'a Endpoint,
    /// The client.
    pub caller: Caller<'a>,
    /// The part that is written.
    pub part: Part,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// The name; empty for a create with `generateName` before the name is generated.
    pub name: &'a str,
    /// The object as it will be stored, or before that in the mutating phase; `None` for a delete.
    pub object: Option<&'a Value>,
    /// The stored object; `None` for a create.
    pub old: Option<&'a Value>,
    /// The revision of the stored object, which is its resourceVersion; `None` for a create.
    pub revision: Option<Revision>,
    /// The options of the request.
    pub options: Options<'a>,
    /// Whether the write is the delete of one object of a collection: the request then names no object.
    pub of_collection: bool,
    /// Whether the write is a dry run.
    pub dry_run: bool,
}

impl WriteAttributes<'_> {
    /// The name in the version of the request.
    #[must_use]
    pub fn shown_name(&self) -> Cow<'_, str> {
        match self.object.or(self.old) {
            Some(object) if self.endpoint.face().alias.is_some() => self.endpoint.name_of(object),
            _ => Cow::Borrowed(self.name),
        }
    }

    /// Tells the audit log how a review of the rights on what the write is about has ended, unless it could not be made.
    ///
    /// # Errors
    /// The outcome itself.
    pub fn record_target_authorization(&self, outcome: Result<(), ApiError>) -> Result<(), ApiError> {
        let decision = match &outcome {
            Ok(()) => "allow",
            Err(error) if error.is(Reason::Forbidden) => "forbid",
            Err(_) => return outcome,
        };
        self.caller.audit.annotate(TARGET_AUTHORIZATION, decision);
        outcome
    }

    /// Whether an update changes only managed fields and the resourceVersion. Storage migrations send such updates, and their
    /// users have no rights on the target.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        let (Some(new), Some(old)) = (self.object, self.old) else {
            return false;
        };
        let bookkeeping = ["managedFields", "resourceVersion"];
        without(Some(new), &["metadata"]).eq(without(Some(old), &["metadata"]))
            && without(new.get("metadata"), &bookkeeping).eq(without(old.get("metadata"), &bookkeeping))
    }
}

/// The members of an object in order, except those named.
fn without<'a>(
    object: Option<&'a Value>,
    names: &'a [&str],
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let members = object.and_then(Value::as_object).into_iter().flatten();
    members.filter(|(name, _)| !names.contains(&name.as_str()))
}

/// Changes writes, and decides whether they are allowed. Both phases run again for each attempt to commit, and for dry runs
/// too. A write is rejected if the decision cannot be made.
pub trait Admission: Send + Sync {
    /// Whether the mutating phase has something to do for such a write. If it has not, the write costs nothing more than
    /// this call. The objects of the write are not read.
    fn mutates(&self, write: &WriteAttributes<'_>) -> bool;

    /// The mutating phase: the policy of the cluster may change the object. Runs before the strategy prepares the object.
    /// Returns the changed object, or `None` if it does not change. For a delete there is nothing to change.
    ///
    /// # Errors
    /// Those of the cluster's policy, with any code.
    fn mutate<'a>(&'a self, write: &'a WriteAttributes<'a>)
    -> BoxFuture<'a, Result<Option<Value>, ApiError>>;

    /// Checks that the namespace accepts a new object. Runs before the mutating phase; `object` is `None`.
    ///
    /// # Errors
    /// 403 and 404 for the namespace, 500 if the host cannot be reached.
    fn check_namespace<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>>;

    /// The rules of this server: checks a write after the validation of the kind. Returns a new object with what the server
    /// determines for it from other objects, or `None` if that is nothing.
    ///
    /// # Errors
    /// 403, 404 and 422 for what the object refers to, and 500 if the host cannot be reached.
    fn check<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<Option<Value>, ApiError>>;

    /// The validating phase: the policy of the cluster checks the final object.
    ///
    /// # Errors
    /// Those of the cluster's policy, with any code.
    fn validate<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Whether the caller may create an object: an apply that creates one was authorized as a patch only.
    ///
    /// # Errors
    /// 403, or 500 when the host does not answer.
    fn check_create<'a>(
        &'a self,
        caller: Caller<'a>,
        endpoint: &'a Endpoint,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Checks that the caller may remove an object that cannot be read. No other rule can be checked for it.
    ///
    /// # Errors
    /// 403, also if the host cannot be reached.
    fn check_unsafe_delete<'a>(
        &'a self,
        caller: Caller<'a>,
        endpoint: &'a Endpoint,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Whether a namespace is being deleted or does not exist; false if it cannot be looked up.
    fn is_namespace_terminating<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, bool>;
}
