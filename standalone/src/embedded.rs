//! The embedded host beside the server: its routes, and its controllers.

use std::sync::Arc;

use drydock_apiserver::error::ApiError;
use drydock_apiserver::handlers::Extension;
use drydock_apiserver::host::HostEvent;
use drydock_apiserver::registry::store::ResourceStore;
use drydock_machinery::clock::Clock;
use drydock_storage::Store;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::budgets::Budgets;
use crate::events::{self, EventMirror};
use crate::eviction::Evictions;
use crate::namespaces::Namespaces;
use crate::objects::Objects;
use crate::pod_life_cycle::PodLifeCycle;
use crate::reconcile;
use crate::reviews::Reviews;

/// The routes and controllers of standalone mode.
pub(crate) struct EmbeddedHost<S: Store> {
    objects: Arc<Objects<S>>,
    reported: mpsc::Receiver<HostEvent>,
}

impl<S: Store> EmbeddedHost<S> {
    /// Over every resource of the server, including the built-in ones. `reported` are the events that the server reports
    /// to its host.
    pub(crate) fn new(
        store: S,
        resources: Vec<Arc<ResourceStore<S>>>,
        clock: Arc<dyn Clock>,
        reported: mpsc::Receiver<HostEvent>,
    ) -> Self {
        Self {
            objects: Arc::new(Objects::new(store, resources, clock)),
            reported,
        }
    }

    /// The routes that no resource store serves: evictions and reviews.
    pub(crate) fn extensions(&self) -> Vec<Box<dyn Extension>> {
        vec![
            Box::new(Evictions {
                objects: Arc::clone(&self.objects),
            }),
            Box::new(Reviews),
        ]
    }

    /// Creates the initial namespaces. Needs filled caches.
    ///
    /// # Errors
    /// The storage rejects a write.
    pub(crate) async fn prepare(&self) -> Result<(), ApiError> {
        let objects = Arc::clone(&self.objects);
        Namespaces { objects }.create_initial().await
    }

    /// Runs the controllers until cancelled or the storage is closed.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let objects = || Arc::clone(&self.objects);
        let mut controllers = JoinSet::new();
        controllers.spawn(reconcile::run(
            objects(),
            PodLifeCycle { objects: objects() },
            cancel.clone(),
        ));
        controllers.spawn(reconcile::run(
            objects(),
            Budgets { objects: objects() },
            cancel.clone(),
        ));
        controllers.spawn(reconcile::run(
            objects(),
            Namespaces { objects: objects() },
            cancel.clone(),
        ));
        controllers.spawn(reconcile::run(
            objects(),
            EventMirror { objects: objects() },
            cancel.clone(),
        ));
        controllers.spawn(events::record(objects(), self.reported, cancel));
        while let Some(ended) = controllers.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a controller of standalone mode panicked");
            }
        }
    }
}
