//! What makes the server useful without a cluster?
//!
//! An embedded host: the few built-in kinds that kubectl, clients and drydock-controller need to show the main job, kept
//! in the same storage and served by the same handlers, and small loops that move pods through their lives. Nothing runs
//! anywhere, and there is no RBAC: for first looks, demos and fast tests, never for a cluster.
//!
//! What a real cluster has and this has not: controllers of workloads, garbage collection, service accounts, quotas,
//! server-side apply of built-in kinds, and bodies of built-in kinds in protobuf, which `kubectl create deployment` and
//! typed Go clients send (namespaces, options, evictions and reviews are read so): use `kubectl apply -f` instead.
//!
//! ```text
//! Certificates ─► StandaloneHost (authentication, namespaces, pods, nodes) ─► filters, admission
//! resources()  ─► catalog ─► ResourceStore each ─► Embedded ─┬─ extensions: pods/eviction, reviews
//!                                                            └─ run: pod life cycle, budgets, namespaces, events
//! ```
//!
//! Start at [`Embedded`]; how pods live is in [`pod_life_cycle`], how they are evicted in [`eviction`].

mod answer;
mod budgets;
pub mod certificates;
mod events;
mod eviction;
pub mod host;
mod kinds;
pub mod kubeconfig;
mod namespaces;
mod objects;
mod pod;
mod pod_life_cycle;
mod reconcile;
mod reviews;
mod strategic;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use drydock_machinery::clock::Clock;
use drydock_machinery::schema::SchemaError;
use drydock_storage::Store;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::budgets::Budgets;
use self::certificates::Certificates;
use self::events::EventMirror;
use self::eviction::Evictions;
use self::host::StandaloneHost;
use self::namespaces::Namespaces;
use self::objects::Objects;
use self::pod_life_cycle::PodLifeCycle;
use self::reviews::Reviews;
use crate::error::ApiError;
use crate::handlers::Extension;
use crate::host::HostEvent;
use crate::host::trust::{TrustBundle, TrustError};
use crate::registry::resource::Resource;
use crate::registry::store::ResourceStore;

/// What a person should read before anything else.
pub const WARNING: &str = "STANDALONE MODE: there is no cluster behind this server. Pods run nowhere, nodes are names, \
     whoever holds the kubeconfig may do everything. For a first look, demos and tests only.";

/// Why there is no embedded host.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// A schema that cannot be read: a fault of this program.
    #[error("a built-in kind has an unusable schema")]
    Schema(#[from] SchemaError),
    /// The authority vouches for nobody.
    #[error("the authority in the data directory cannot be used")]
    Authority(#[from] TrustError),
}

/// The built-in resources, to follow Drydock's own in the catalog.
///
/// # Errors
/// [`SetUpError::Schema`].
pub fn resources() -> Result<Vec<Resource>, SetUpError> {
    Ok(kinds::resources()?)
}

/// Events that the server reports and nobody has stored yet.
#[derive(Debug)]
pub struct ReportedEvents(mpsc::Receiver<HostEvent>);

/// The host that the filters and admission ask, and what it is told, for [`Embedded::new`].
///
/// # Errors
/// [`SetUpError::Authority`].
pub fn host<S: Store>(
    store: S,
    certificates: &Certificates,
    built_in: &[Arc<Resource>],
) -> Result<(StandaloneHost<S>, ReportedEvents), SetUpError> {
    let group_versions = built_in
        .iter()
        .flat_map(|resource| resource.faces.iter().map(|face| (resource.group, face.version)))
        .collect::<std::collections::BTreeSet<_>>();
    let trust = TrustBundle::from_pem(&certificates.authority)?;
    let (host, waiting) = StandaloneHost::new(store, trust, group_versions.into_iter().collect());
    Ok((host, ReportedEvents(waiting)))
}

/// The routes and loops of standalone mode.
pub struct Embedded<S: Store> {
    objects: Arc<Objects<S>>,
    events: ReportedEvents,
}

impl<S: Store> Embedded<S> {
    /// Over every resource of the server, the built-in ones among them.
    #[must_use]
    pub fn new(
        store: S,
        resources: Vec<Arc<ResourceStore<S>>>,
        clock: Arc<dyn Clock>,
        events: ReportedEvents,
    ) -> Self {
        Self {
            objects: Arc::new(Objects::new(store, resources, clock)),
            events,
        }
    }

    /// The routes beside those of resources: evictions and reviews.
    #[must_use]
    pub fn extensions(&self) -> Vec<Box<dyn Extension>> {
        vec![
            Box::new(Evictions {
                objects: Arc::clone(&self.objects),
            }),
            Box::new(Reviews),
        ]
    }

    /// Makes what is always there: the first namespaces. The caches of the resources must have been filled.
    ///
    /// # Errors
    /// What the storage refuses.
    pub async fn prepare(&self) -> Result<(), ApiError> {
        let objects = Arc::clone(&self.objects);
        Namespaces { objects }.make_initial().await
    }

    /// Keeps things moving until cancelled or the storage is closed.
    pub async fn run(self, cancel: CancellationToken) {
        let objects = || Arc::clone(&self.objects);
        let mut loops = JoinSet::new();
        loops.spawn(reconcile::run(
            objects(),
            PodLifeCycle { objects: objects() },
            cancel.clone(),
        ));
        loops.spawn(reconcile::run(
            objects(),
            Budgets { objects: objects() },
            cancel.clone(),
        ));
        loops.spawn(reconcile::run(
            objects(),
            Namespaces { objects: objects() },
            cancel.clone(),
        ));
        loops.spawn(reconcile::run(
            objects(),
            EventMirror { objects: objects() },
            cancel.clone(),
        ));
        loops.spawn(events::record(objects(), self.events.0, cancel));
        while let Some(ended) = loops.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a loop of standalone mode ended");
            }
        }
    }
}
