//! What the registry asks of admission: whether a write is allowed, beyond the rules of the kind itself.

use drydock_storage::Key;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::caller::Caller;
use super::resource::{Part, Resource};
use crate::error::ApiError;

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

/// A write as admission sees it. The objects are hubs.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    /// The kind of write.
    pub operation: Operation,
    /// The resource.
    pub resource: &'a Resource,
    /// The client.
    pub caller: Caller<'a>,
    /// The part that is written.
    pub part: Part,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// The name; empty before one is generated.
    pub name: &'a str,
    /// The object as it will be stored; `None` for a delete.
    pub object: Option<&'a Value>,
    /// The stored object; `None` for a create.
    pub old: Option<&'a Value>,
    /// Whether nothing will be stored.
    pub dry_run: bool,
}

impl Attributes<'_> {
    /// Whether an update changes nothing but managed fields and the resourceVersion. Storage migrations write like that,
    /// with identities that have no right to the target.
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

/// Decides whether a write is allowed. It runs inside the loop that commits the object, for dry runs too, and never
/// changes the object. Anything that cannot be determined is a refusal.
pub trait Admission: Send + Sync {
    /// Runs before a new object is prepared; `object` is not yet set.
    ///
    /// # Errors
    /// 403 and 404 for the namespace, 500 when the host does not answer.
    fn begin_create<'a>(&'a self, write: &'a Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Runs on the final object, after validation.
    ///
    /// # Errors
    /// 403, or 500 when the host does not answer.
    fn validate<'a>(&'a self, write: &'a Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Whether the caller may remove an object that cannot be read. No other rule can look at it.
    ///
    /// # Errors
    /// 403, also when the host does not answer.
    fn check_unsafe_delete<'a>(
        &'a self,
        caller: Caller<'a>,
        resource: &'a Resource,
        version: &'a str,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Whether a namespace is being deleted, or gone with objects left behind; false if that cannot be determined.
    fn is_namespace_ending<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, bool>;
}
