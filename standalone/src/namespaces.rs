//! Deletion of namespaces: a finalizer keeps a namespace until every object in it, of whatever kind, is deleted.

use std::sync::Arc;

use drydock_apiserver::error::{ApiError, Reason};
use drydock_apiserver::registry::part::Part;
use drydock_storage::Store;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::object::{is_terminating, items, member_mut, set, text};
use crate::objects::{Kind, ObjectRef, Objects};
use crate::reconcile::{Reconcile, tolerate};

/// Keeps a namespace until it is empty.
pub(crate) const CONTENT_FINALIZER: &str = "standalone.coordination.k8s.io/content";

/// The namespaces that exist from the start.
const INITIAL: [&str; 2] = ["default", "kube-system"];

/// How long to wait before checking again whether a namespace is empty.
const RECHECK_AFTER: SignedDuration = SignedDuration::from_secs(1);

/// Creates the initial namespaces, and deletes the content of terminating ones.
pub(crate) struct Namespaces<S: Store> {
    pub(crate) objects: Arc<Objects<S>>,
}

impl<S: Store> Namespaces<S> {
    /// Creates the initial namespaces that do not exist.
    ///
    /// # Errors
    /// The storage rejects a write.
    pub(crate) async fn create_initial(&self) -> Result<(), ApiError> {
        for name in INITIAL {
            let namespace = json!({ "metadata": { "name": name } });
            let created = self.objects.create(Kind::NAMESPACES, "", namespace).await;
            tolerate(created, &[Reason::AlreadyExists])?;
        }
        Ok(())
    }

    /// Deletes the objects in a namespace. Returns whether it was empty.
    async fn delete_content(&self, namespace: &str) -> Result<bool, ApiError> {
        let mut is_empty = true;
        for own in self.objects.resources() {
            if !own.resource.is_namespaced() {
                continue;
            }
            let kind = Kind::new(own.resource.group, own.resource.plural);
            for object in self.objects.list_resource(&own.resource, Some(namespace)).await? {
                is_empty = false;
                if !is_terminating(&object) {
                    let deleted = self.objects.delete(kind, &object, None).await;
                    tolerate(deleted, &[Reason::NotFound, Reason::Conflict])?;
                }
            }
        }
        Ok(is_empty)
    }

    /// Moves a terminating namespace one step on. Returns whether its finalizer was removed.
    async fn finalize(&self, namespace: &Value) -> Result<bool, ApiError> {
        let at = ObjectRef::to(Kind::NAMESPACES, namespace);
        if text(namespace, "/status/phase") != "Terminating" {
            self.objects
                .edit(at, Part::Status, |object| {
                    set(member_mut(object, "status"), "phase", json!("Terminating"));
                    Ok(())
                })
                .await?;
        }
        if !self.delete_content(at.name).await? {
            return Ok(false);
        }
        self.objects
            .edit(at, Part::Main, |object| {
                let mut finalizers = items(object, "/metadata/finalizers").to_vec();
                finalizers.retain(|finalizer| finalizer != CONTENT_FINALIZER);
                let metadata = member_mut(object, "metadata");
                set(metadata, "finalizers", Value::Array(finalizers));
                Ok(())
            })
            .await?;
        Ok(true)
    }
}

impl<S: Store> Reconcile for Namespaces<S> {
    const NAME: &'static str = "namespaces";

    fn watched(&self) -> &[Kind] {
        &[Kind::NAMESPACES]
    }

    async fn reconcile(&self) -> Result<Option<Timestamp>, ApiError> {
        let mut again = None;
        for namespace in self.objects.list(Kind::NAMESPACES, None).await? {
            let is_kept = items(&namespace, "/metadata/finalizers")
                .iter()
                .any(|finalizer| finalizer == CONTENT_FINALIZER);
            if !is_terminating(&namespace) || !is_kept {
                continue;
            }
            let finalized = tolerate(self.finalize(&namespace).await, &[Reason::NotFound])?;
            if finalized == Some(false) {
                again = self.objects.now().saturating_add(RECHECK_AFTER).ok();
            }
        }
        Ok(again)
    }
}
