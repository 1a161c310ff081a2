//! How does a namespace go?
//!
//! Its deletion is held up by a finalizer of ours until everything in it is gone, whatever kind it is of.

use std::sync::Arc;

use drydock_apiserver::error::{ApiError, Reason};
use drydock_apiserver::registry::resource::Part;
use drydock_storage::Store;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::objects::{Kind, Objects, Place};
use crate::pod::{items, member_mut, set, text};
use crate::reconcile::Reconcile;

/// Holds a namespace while there is something in it.
pub(crate) const CONTENT_FINALIZER: &str = "standalone.coordination.k8s.io/content";

/// The namespaces that are always there.
const ALWAYS: [&str; 2] = ["default", "kube-system"];

/// How long to wait for contents to go before asking again.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(1);

/// Makes the namespaces that are always there, and empties those that are to go.
pub(crate) struct Namespaces<S: Store> {
    pub(crate) objects: Arc<Objects<S>>,
}

impl<S: Store> Namespaces<S> {
    /// Makes the namespaces that are always there, where they are missing.
    ///
    /// # Errors
    /// What the storage refuses.
    pub(crate) async fn make_initial(&self) -> Result<(), ApiError> {
        for name in ALWAYS {
            match self
                .objects
                .create(Kind::NAMESPACES, "", json!({ "metadata": { "name": name } }))
                .await
            {
                Err(error) if error.is(Reason::AlreadyExists) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Deletes what is in the namespace; true when nothing was left.
    async fn empty(&self, namespace: &str) -> Result<bool, ApiError> {
        let mut is_empty = true;
        for own in self.objects.resources() {
            if !own.resource.is_namespaced() {
                continue;
            }
            let kind = Kind {
                group: own.resource.group,
                plural: own.resource.plural,
            };
            for object in self.objects.scan(&own.resource, Some(namespace)).await? {
                is_empty = false;
                if text(&object, "/metadata/deletionTimestamp").is_empty() {
                    let place = Place {
                        kind,
                        namespace,
                        name: text(&object, "/metadata/name"),
                    };
                    match self
                        .objects
                        .delete(place, text(&object, "/metadata/uid"), None)
                        .await
                    {
                        Err(error) if error.is(Reason::NotFound) || error.is(Reason::Conflict) => {}
                        other => other?,
                    }
                }
            }
        }
        Ok(is_empty)
    }

    async fn finish(&self, namespace: &Value) -> Result<bool, ApiError> {
        let name = text(namespace, "/metadata/name");
        let place = Place {
            kind: Kind::NAMESPACES,
            namespace: "",
            name,
        };
        if text(namespace, "/status/phase") != "Terminating" {
            self.objects
                .edit(place, Part::Status, |object| {
                    set(member_mut(object, "status"), "phase", json!("Terminating"));
                    Ok(())
                })
                .await?;
        }
        if !self.empty(name).await? {
            return Ok(false);
        }
        self.objects
            .edit(place, Part::Main, |object| {
                let mut finalizers = items(object, "/metadata/finalizers").to_vec();
                finalizers.retain(|finalizer| finalizer != CONTENT_FINALIZER);
                set(
                    member_mut(object, "metadata"),
                    "finalizers",
                    Value::Array(finalizers),
                );
                Ok(())
            })
            .await?;
        Ok(true)
    }
}

impl<S: Store> Reconcile for Namespaces<S> {
    const NAME: &'static str = "namespaces";

    fn follows(&self) -> &[Kind] {
        &[Kind::NAMESPACES]
    }

    async fn look(&self) -> Result<Option<Timestamp>, ApiError> {
        let mut again = None;
        for namespace in self.objects.list(Kind::NAMESPACES, None).await? {
            let is_held = items(&namespace, "/metadata/finalizers")
                .iter()
                .any(|held| held == CONTENT_FINALIZER);
            if text(&namespace, "/metadata/deletionTimestamp").is_empty() || !is_held {
                continue;
            }
            match self.finish(&namespace).await {
                Ok(true) => {}
                Ok(false) => again = self.objects.now().saturating_add(ASK_AGAIN).ok(),
                Err(error) if error.is(Reason::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(again)
    }
}
