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
mod certificates;
mod events;
mod eviction;
mod flags;
mod host;
mod kinds;
mod kubeconfig;
mod namespaces;
mod objects;
mod pod;
mod pod_life_cycle;
mod reconcile;
mod reviews;
mod serve;
mod strategic;
#[cfg(test)]
mod tests;

pub use crate::certificates::CertificateError;
pub use crate::flags::{StandaloneConfig, StandaloneFlags};
pub use crate::serve::{RunError, serve};

use std::sync::Arc;

use drydock_apiserver::error::ApiError;
use drydock_apiserver::handlers::Extension;
use drydock_apiserver::host::HostEvent;
use drydock_apiserver::host::trust::{TrustBundle, TrustError};
use drydock_apiserver::registry::resource::Resource;
use drydock_apiserver::registry::store::ResourceStore;
use drydock_machinery::clock::Clock;
use drydock_storage::Store;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::budgets::Budgets;
use crate::certificates::Certificates;
use crate::events::EventMirror;
use crate::eviction::Evictions;
use crate::host::StandaloneHost;
use crate::namespaces::Namespaces;
use crate::objects::Objects;
use crate::pod_life_cycle::PodLifeCycle;
use crate::reviews::Reviews;

/// Events that the server reports and nobody has stored yet.
#[derive(Debug)]
struct ReportedEvents(mpsc::Receiver<HostEvent>);

/// The host that the filters and admission ask, and what it is told, for [`Embedded::new`].
///
/// # Errors
/// An authority that vouches for nobody.
fn host<S: Store>(
    store: S,
    certificates: &Certificates,
    built_in: &[Arc<Resource>],
) -> Result<(StandaloneHost<S>, ReportedEvents), TrustError> {
    let group_versions = built_in
        .iter()
        .flat_map(|resource| resource.faces.iter().map(|face| (resource.group, face.version)))
        .collect::<std::collections::BTreeSet<_>>();
    let trust = TrustBundle::from_pem(&certificates.authority)?;
    let (host, waiting) = StandaloneHost::new(store, trust, group_versions.into_iter().collect());
    Ok((host, ReportedEvents(waiting)))
}

/// The routes and loops of standalone mode.
struct Embedded<S: Store> {
    objects: Arc<Objects<S>>,
    events: ReportedEvents,
}

impl<S: Store> Embedded<S> {
    /// Over every resource of the server, the built-in ones among them.
    fn new(
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
    fn extensions(&self) -> Vec<Box<dyn Extension>> {
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
    async fn prepare(&self) -> Result<(), ApiError> {
        let objects = Arc::clone(&self.objects);
        Namespaces { objects }.make_initial().await
    }

    /// Keeps things moving until cancelled or the storage is closed.
    async fn run(self, cancel: CancellationToken) {
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
