//! How is a server put together, and in which order does it stop? Read this first.
//!
//! Start: log, host, storage, caches, filters, listener. The listener opens as soon as the storage is, so that probes
//! are answered while the caches load; until they have, reads answer 429 and readiness fails.
//!
//! Stop: [`Stages`] says the order towards clients; then the loops end, and the storage closes last.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::{Clock, SystemClock};
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::{GROUP, KINDS, Kind};
use drydock_storage::rocks::{OpenError, RocksStore};
use drydock_storage::{Health as StoreHealth, Options, Store, StoreError};
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::admission;
use crate::backups::Backups;
use crate::cache::{CacheConfig, CacheLimits, CacheMetrics, WatchCache};
use crate::config::{
    CertificateFiles, Config, Durability, ServeConfig, ServerConfig, StandaloneConfig, StorageConfig,
};
use crate::filters::{Authenticator, Authorizer, Chain, ChainParts};
use crate::handlers::{Api, Extension};
use crate::health::{HealthBuilder, Scope};
use crate::host::kube::{KubeHost, StartError};
use crate::host::reviews::Reviews;
use crate::host::{Host, HostError};
use crate::http::listener::Listener;
use crate::http::shutdown::Stages;
use crate::http::tls::{CertificateSource, Tls, TlsError};
use crate::metrics::{Exposition, Metrics, ServedResource};
use crate::registry::attributes;
use crate::registry::evictioninterceptor::EvictionInterceptorStrategy;
use crate::registry::evictionrequest::EvictionRequestStrategy;
use crate::registry::nodemaintenance::NodeMaintenanceStrategy;
use crate::registry::resource::{Catalog, Resource, UnusableSchema};
use crate::registry::store::ResourceStore;
use crate::registry::strategy::Strategy;
use crate::standalone::certificates::{CertificateError, Certificates};
use crate::standalone::{self, Embedded, kubeconfig};
use crate::storage_command::{self, CommandError};
use crate::telemetry::{self, TelemetryError};
use crate::threads;

/// Over how long watches end when the server stops.
const WATCHES_END_OVER: Duration = Duration::from_secs(3);
/// How long the storage gets to close.
const CLOSE_GRACE: Duration = Duration::from_secs(10);
/// How often the storage is asked whether it has failed.
const HEALTH_PERIOD: Duration = Duration::from_secs(1);
/// The environment variable that names the node of this pod.
const NODE_NAME: &str = "NODE_NAME";

/// Why a server did not start, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The host cannot be used.
    #[error(transparent)]
    Host(#[from] StartError),
    /// The host cannot say what it serves.
    #[error("the host does not say which versions of {GROUP} it serves")]
    Lookup(#[source] HostError),
    /// The host serves a group-version that is ours.
    #[error(
        "the host serves {GROUP}/{version} itself: this server must not claim it. Serve it from one place only: turn \
         it off with --runtime-config={GROUP}/{version}=false at the host, or do not run this server"
    )]
    Claimed {
        /// The version.
        version: &'static str,
    },
    /// The store cannot be opened.
    #[error("the storage cannot be opened")]
    Open(#[source] Box<OpenError>),
    /// The store has failed.
    #[error("the storage has failed: {0}")]
    StoreFailed(String),
    /// The task behind a cache ended: nothing it serves would ever be news again.
    #[error("a watch cache stopped following the storage")]
    CacheEnded,
    /// The store did not close.
    #[error("the storage did not close")]
    Close(#[source] StoreError),
    /// A schema of ours cannot be read: a fault of this program.
    #[error(transparent)]
    Schema(#[from] UnusableSchema),
    /// The serving certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No certificate was given.
    #[error("--tls-cert-file and --tls-private-key-file are needed")]
    NoCertificate,
    /// The certificates of standalone mode cannot be made or kept.
    #[error("the certificates of standalone mode cannot be used")]
    Certificates(#[from] CertificateError),
    /// The embedded host cannot be set up.
    #[error("the embedded host cannot be set up")]
    Embedded(#[from] standalone::SetUpError),
    /// The port cannot be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The machine lacks something every machine has: randomness, signals, threads.
    #[error("the machine lacks {0}")]
    Machine(&'static str),
    /// A storage command failed.
    #[error(transparent)]
    Storage(#[from] CommandError),
}

/// Does what the process was started for, until it is told to stop.
///
/// # Errors
/// [`RunError`].
pub async fn run(config: Config) -> Result<(), RunError> {
    match config {
        Config::Serve(config) => {
            telemetry::init(&config.server.log)?;
            serve(*config).await
        }
        Config::Standalone(config) => {
            telemetry::init(&config.server.log)?;
            serve_standalone(*config).await
        }
        Config::Storage(command) => Ok(storage_command::run(command).await?),
    }
}

async fn serve(config: ServeConfig) -> Result<(), RunError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let resources = own_resources(&config.server)?;
    let base = Base::new(clock, &resources);
    let host = KubeHost::start(
        &config.host,
        &config.authentication,
        base.metrics.clone(),
        Arc::clone(&base.clock),
        base.stages.stopped().clone(),
    )
    .await?;
    refuse_claimed(&*host).await?;
    let CertificateFiles { certificate, key } =
        config.server.certificate.clone().ok_or(RunError::NoCertificate)?;
    let store = open_store(&config.server.storage).await?;
    let seen = Arc::clone(&host);
    base.serve(
        config.server,
        store,
        Surroundings {
            host,
            certificate: CertificateSource::Files { certificate, key },
            resources,
            extend: |_: &[Arc<ResourceStore<RocksStore>>], _| (Vec::new(), std::future::ready(())),
        },
    )
    .await?;
    seen.join().await;
    Ok(())
}

/// The same server with an embedded host over its own storage. The kubeconfig is written once it serves.
async fn serve_standalone(mut config: StandaloneConfig) -> Result<(), RunError> {
    tracing::warn!("{}", standalone::WARNING);
    // Its certificate is for loopback alone, so every address means that.
    if config.server.address.ip().is_unspecified() {
        config.server.address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    // What is shown here is worth no more than the folder it lies in, and temporary folders often lie in memory.
    config.server.storage.any_file_system = true;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let built_in: Vec<Arc<Resource>> = standalone::resources()?.into_iter().map(Arc::new).collect();
    let mut resources = own_resources(&config.server)?;
    resources.extend(built_in.iter().cloned());
    let base = Base::new(Arc::clone(&clock), &resources);
    let store = open_store(&config.server.storage).await?;
    let certificates = Certificates::load_or_make(&config.server.storage.data_dir, clock.now())?;
    let (host, reported) = standalone::host(store.clone(), &certificates, &built_in)?;
    let serving = certificates.serving.clone();
    let stopped = base.stages.stopped().clone();
    let own_store = store.clone();
    let extend = move |stores: &[Arc<ResourceStore<RocksStore>>], address: SocketAddr| {
        let embedded = Embedded::new(own_store, stores.to_vec(), clock, reported);
        let extensions = embedded.extensions();
        let beside = async move {
            if let Err(error) = embedded.prepare().await {
                tracing::error!(%error, "the embedded host cannot start");
                return;
            }
            let path = config.write_kubeconfig;
            match kubeconfig::write(&path, &format!("https://{address}"), &certificates) {
                Ok(()) => tracing::warn!(path = %path.display(), "kubeconfig written"),
                Err(error) => {
                    tracing::error!(path = %path.display(), %error, "the kubeconfig cannot be written");
                }
            }
            embedded.run(stopped).await;
        };
        (extensions, beside)
    };
    let certificate = CertificateSource::Pem {
        certificate: serving.certificate,
        key: serving.key,
    };
    base.serve(
        config.server,
        store,
        Surroundings {
            host: Arc::new(host),
            certificate,
            resources,
            extend,
        },
    )
    .await
}

/// Refuses to run beside a host that serves one of our versions itself: both would answer for the same objects.
async fn refuse_claimed(host: &dyn Host) -> Result<(), RunError> {
    let local = host.served_locally(GROUP).await.map_err(RunError::Lookup)?;
    let mut versions = KINDS.iter().flat_map(|kind| kind.faces).map(|face| face.version);
    match versions.find(|version| local.iter().any(|served| served == version)) {
        Some(version) => Err(RunError::Claimed { version }),
        None => Ok(()),
    }
}

/// The resources of our own kinds with their rules.
///
/// # Errors
/// A schema that cannot be read.
pub fn own_resources(config: &ServerConfig) -> Result<Vec<Arc<Resource>>, UnusableSchema> {
    let mut names = AllowedNames::default();
    names.extend(config.allowed_reserved_names.iter().cloned());
    let names = Arc::new(names);
    KINDS
        .iter()
        .map(|kind| Resource::of_kind(kind, strategy_of(kind, &names)).map(Arc::new))
        .collect()
}

fn strategy_of(kind: &Kind, names: &Arc<AllowedNames>) -> Box<dyn Strategy> {
    match kind.plural {
        "evictionrequests" => Box::new(EvictionRequestStrategy::new(Arc::clone(names))),
        "nodemaintenances" => Box::new(NodeMaintenanceStrategy),
        _ => Box::new(EvictionInterceptorStrategy::new(Arc::clone(names))),
    }
}

/// How the store is to behave, for a server and for work on its files alike.
pub(crate) fn store_options(config: &StorageConfig) -> Options {
    Options {
        durability: match config.durability {
            Durability::Strict => drydock_storage::Durability::Strict,
            Durability::Relaxed(interval) => drydock_storage::Durability::Relaxed { interval },
        },
        window: config.history_window,
        object_bytes: config.object_bytes_limit,
        any_file_system: config.any_file_system,
        check_every: config.check_interval,
        ..Options::new(&config.data_dir)
    }
}

/// Opens the store, off the async workers and not below their rank, if the main thread asks: see [`crate::threads`].
///
/// # Errors
/// [`RunError::Open`].
pub async fn open_store(config: &StorageConfig) -> Result<RocksStore, RunError> {
    let options = store_options(config);
    let opened = threads::beside_workers(move || RocksStore::open(options)).await;
    let opened = opened
        .ok()
        .flatten()
        .ok_or(RunError::Machine("a thread to open the storage"))?;
    let (store, report) = opened.map_err(|error| RunError::Open(Box::new(error)))?;
    tracing::info!(
        store = %report.store,
        revision = report.revision,
        objects = report.objects,
        durability = %config.durability,
        took_ms = report.took_ms,
        "storage opened"
    );
    if report.resumed_at_ceiling {
        tracing::warn!(
            revision = report.revision,
            "power was lost in relaxed mode: newest writes may be gone, revisions go on above all that were given \
             out, and every client lists again"
        );
    }
    for key in &report.damaged {
        tracing::error!(key, "a stored value is damaged: reads of it fail");
    }
    Ok(store)
}

/// What every mode of serving begins with.
pub struct Base {
    /// The server's clock.
    pub clock: Arc<dyn Clock>,
    /// What is counted.
    pub metrics: Metrics,
    /// How the server stops.
    pub stages: Stages,
    registry: Registry,
}

/// What differs between the modes of serving.
pub struct Surroundings<H, E> {
    /// The cluster we serve for.
    pub host: Arc<H>,
    /// The serving certificate.
    pub certificate: CertificateSource,
    /// Everything that is served.
    pub resources: Vec<Arc<Resource>>,
    /// Makes the routes beside those of the resources, and what runs beside the server once its caches are filled. Is
    /// told where the server listens.
    pub extend: E,
}

impl Base {
    /// Counters for these resources.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, resources: &[Arc<Resource>]) -> Self {
        let mut registry = Registry::default();
        let served: Vec<ServedResource> = resources
            .iter()
            .flat_map(|resource| {
                resource.versions.iter().map(|version| ServedResource {
                    group: resource.group,
                    version: version.name,
                    resource: resource.plural,
                })
            })
            .collect();
        let metrics = Metrics::register(&mut registry, served);
        Self {
            clock,
            metrics,
            stages: Stages::new(),
            registry,
        }
    }

    /// Serves until a signal or a failure of the store, then stops in order.
    ///
    /// # Errors
    /// [`RunError`].
    pub async fn serve<H, E, F>(
        mut self,
        config: ServerConfig,
        store: RocksStore,
        surroundings: Surroundings<H, E>,
    ) -> Result<(), RunError>
    where
        H: Host,
        E: FnOnce(&[Arc<ResourceStore<RocksStore>>], SocketAddr) -> (Vec<Box<dyn Extension>>, F),
        F: Future<Output = ()> + Send + 'static,
    {
        let Surroundings {
            host,
            certificate,
            resources,
            extend,
        } = surroundings;
        store.metrics().register(&mut self.registry);
        let host: Arc<dyn Host> = host;
        let reviews = Arc::new(
            Reviews::new(Arc::clone(&host), config.review_ttls)
                .map_err(|_| RunError::Machine("randomness"))?,
        );
        let authorizer = Arc::new(Authorizer::new(
            Arc::clone(&reviews),
            config.always_allow_paths.clone(),
            self.metrics.clone(),
        ));
        let own_node = std::env::var(NODE_NAME).ok().filter(|name| !name.is_empty());
        let admission = Arc::new(admission::Chain::new(
            Arc::clone(&host),
            Arc::clone(&authorizer),
            own_node,
        ));

        let mut loops = JoinSet::new();
        let mut feeders = JoinSet::new();
        let stores = self.resource_stores(&resources, &store, &admission, &config, &mut feeders);
        let listener = Listener::bind(config.address)
            .await
            .map_err(|source| RunError::Bind {
                address: config.address,
                source,
            })?;
        let (mut extensions, beside) = extend(&stores, listener.address());
        extensions.push(Box::new(Backups::new(store.clone(), &config.storage)));
        let mut health = HealthBuilder::new();
        let filled = health.post_start_hook("start-watch-caches");
        let health = self.checks(health, &store, &host).build();
        let caches: Vec<_> = stores.iter().map(|store| store.cache.clone()).collect();
        let ready = caches.clone();
        loops.spawn({
            let stopped = self.stages.stopped().clone();
            async move {
                for cache in &ready {
                    tokio::select! {
                        () = stopped.cancelled() => return,
                        () = cache.ready() => {}
                    }
                }
                filled.set();
                tracing::info!("caches filled");
                beside.await;
            }
        });
        loops.spawn({
            let ending = self.stages.ending().clone();
            async move {
                ending.cancelled().await;
                for cache in &caches {
                    cache.end_watches(WATCHES_END_OVER);
                }
            }
        });

        let api = Api::new(
            Catalog::new(resources),
            stores,
            extensions,
            Arc::clone(&self.clock),
        );
        let routes_installed = crate::health::Mark::default();
        routes_installed.set();
        let (tls, reloader) = Tls::load(certificate, config.min_tls_version, host.authentication()).await?;
        loops.spawn(reloader.run(
            self.metrics.clone(),
            Arc::clone(&self.clock),
            self.stages.stopped().clone(),
        ));
        let chain = Chain::new(ChainParts {
            authenticator: Authenticator::new(reviews, Arc::clone(&self.clock), self.metrics.clone()),
            authorizer,
            limits: config.limits,
            request_timeout: config.request_timeout,
            routes_installed,
            health,
            exposition: Exposition::new(self.registry),
            metrics: self.metrics.clone(),
            stages: self.stages.clone(),
            handler: api,
        });
        tracing::info!(address = %listener.address(), "listening");
        loops.spawn(listener.run(tls, Arc::new(chain), self.metrics.clone(), self.stages.clone()));

        let ended = until_told(&store, &mut feeders).await;
        self.stages.stop(config.shutdown_delay).await;
        while loops.join_next().await.is_some() {}
        while feeders.join_next().await.is_some() {}
        store.close(CLOSE_GRACE).await.map_err(RunError::Close)?;
        tracing::info!("stopped");
        ended
    }

    fn resource_stores(
        &mut self,
        resources: &[Arc<Resource>],
        store: &RocksStore,
        admission: &Arc<admission::Chain>,
        config: &ServerConfig,
        feeders: &mut JoinSet<()>,
    ) -> Vec<Arc<ResourceStore<RocksStore>>> {
        let mut limits = CacheLimits {
            window: config.storage.history_window,
            ..CacheLimits::default()
        };
        if let Some(period) = config.debug_cache_check_period {
            limits.check_period = period;
            limits.abort_on_difference = true;
        }
        let cache_metrics = CacheMetrics::new(&mut self.registry);
        resources
            .iter()
            .map(|resource| {
                let (group, plural) = resource.key_prefix();
                let config = CacheConfig {
                    group: group.to_owned(),
                    resource: plural.to_owned(),
                    extract: attributes::extract(resource),
                    limits: limits.clone(),
                    metrics: cache_metrics.clone(),
                    seed: fastrand::u64(..),
                };
                let (cache, feeder) = WatchCache::new(store.clone(), config);
                feeders.spawn(feeder.run(self.stages.stopped().clone()));
                Arc::new(ResourceStore::new(
                    Arc::clone(resource),
                    store.clone(),
                    cache,
                    Arc::clone(admission),
                    Arc::clone(&self.clock),
                ))
            })
            .collect()
    }

    fn checks(&self, health: HealthBuilder, store: &RocksStore, host: &Arc<dyn Host>) -> HealthBuilder {
        let (writable, host, unready) = (store.clone(), Arc::clone(host), self.stages.unready().clone());
        health
            .check("etcd", Scope::All, move || match writable.health() {
                StoreHealth::Ready | StoreHealth::ReadOnly(_) => Ok(()),
                StoreHealth::Failed(reason) => Err(reason),
            })
            .check("informer-sync", Scope::Ready, move || {
                if host.is_synced() {
                    Ok(())
                } else {
                    Err("the host's objects are not loaded yet".to_owned())
                }
            })
            .check("shutdown", Scope::Ready, move || {
                if unready.is_cancelled() {
                    Err("the server is stopping".to_owned())
                } else {
                    Ok(())
                }
            })
    }
}

/// Waits for a signal (fine), or for the store or the task behind a cache to fail (not).
async fn until_told(store: &RocksStore, feeders: &mut JoinSet<()>) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(|_| RunError::Machine("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|_| RunError::Machine("signals"))?;
    let mut look = tokio::time::interval(HEALTH_PERIOD);
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            Some(_) = feeders.join_next() => return Err(RunError::CacheEnded),
            _ = look.tick() => {
                if let StoreHealth::Failed(reason) = store.health() {
                    tracing::error!(reason, "the storage has failed; only a restart tells what it holds");
                    return Err(RunError::StoreFailed(reason));
                }
            }
        }
    }
}
