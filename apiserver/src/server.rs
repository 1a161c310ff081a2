//! The server: how its parts are put together, and in which order they stop. Start reading here.
//!
//! Start: log, host, storage, caches, filters, listener. The listener opens as soon as the storage is open, so that
//! probes are answered while the caches load; until they are loaded, reads are answered with 429 and readiness fails.
//!
//! Stop, in reverse: [`Stages`] is the order towards clients; then the background tasks end, and the storage closes last.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::{Clock, SystemClock};
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::{GROUP, KINDS};
use drydock_storage::{Health as StoreHealth, Store, StoreError};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admission::cluster_policy::ClusterPolicy;
use crate::admission::policy::PolicyContext;
use crate::admission::{self, AdmissionSettings, PluginName, StoredRules};
use crate::audit::{AuditError, Auditor};
use crate::authorization::Authorizer;
use crate::backend::{self, Backend, ServerStore};
use crate::backups::Backups;
use crate::cache::{CacheConfig, CacheLimits, CacheMetrics, WatchCache};
use crate::config::{CertificateFiles, ServeConfig, ServerConfig};
use crate::encryption::{Encryption, EncryptionError, Probe};
use crate::filters::{AnonymousAccess, Authenticator, Chain, ChainParts};
use crate::handlers::{Api, Extension};
use crate::health::{Health, HealthBuilder, Mark, Scope};
use crate::host::kube::{KubeHost, StartError};
use crate::host::reviews::Reviews;
use crate::host::{Host, HostError};
use crate::http::listener::Listener;
use crate::http::shutdown::Stages;
use crate::http::tls::{CertificateSource, Tls, TlsError};
use crate::member_events;
use crate::metrics::{Exposition, Metrics, ServedResource};
use crate::registry::admission::Admission;
use crate::registry::attributes;
use crate::registry::catalog::Catalog;
use crate::registry::kinds;
use crate::registry::registration::UnusableSchema;
use crate::registry::resource::Resource;
use crate::registry::store::ResourceStore;
use crate::telemetry::spans::Spans;
use crate::telemetry::{self, TelemetryError};

/// The window within which watches end, staggered, when the server stops.
const WATCH_TERMINATION_WINDOW: Duration = Duration::from_secs(3);
/// How long closing the storage may take.
const CLOSE_GRACE: Duration = Duration::from_secs(10);
/// How often the health of the storage is checked.
const HEALTH_PERIOD: Duration = Duration::from_secs(1);
/// The environment variable that names the node of this pod.
const NODE_NAME: &str = "NODE_NAME";

/// Why the server did not start, or stopped because of a failure.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The host cannot be used.
    #[error(transparent)]
    Host(#[from] StartError),
    /// The group-versions that the host serves cannot be read.
    #[error("cannot find out which versions of {GROUP} the host serves")]
    Lookup(#[source] HostError),
    /// The host serves a group-version of this server.
    #[error(
        "the host serves {GROUP}/{version} itself: this server must not claim it. Serve it from one place only: turn \
         it off with --runtime-config={GROUP}/{version}=false at the host, or do not run this server"
    )]
    Claimed {
        /// The version.
        version: &'static str,
    },
    /// The audit log cannot be started.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] backend::OpenError),
    /// Encryption at rest cannot be configured.
    #[error(transparent)]
    Encryption(#[from] EncryptionError),
    /// The store has failed.
    #[error("the storage has failed: {0}")]
    StoreFailed(String),
    /// The task that feeds a watch cache ended: the cache would never see another change.
    #[error("a watch cache stopped following the storage")]
    CacheEnded,
    /// A loop that follows the host ended: certificates and namespaces would be judged by what was true then.
    #[error("the host is no longer followed")]
    HostLost,
    /// The store did not close.
    #[error("the storage did not close")]
    Close(#[source] StoreError),
    /// A schema of our own kinds cannot be read: a bug of this program.
    #[error(transparent)]
    Schema(#[from] UnusableSchema),
    /// The serving certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No certificate was given.
    #[error("--tls-cert-file and --tls-private-key-file are needed")]
    NoCertificate,
    /// The port cannot be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The system provides no randomness, or no signals.
    #[error("the machine lacks {0}")]
    Machine(&'static str),
}

/// Serves as an aggregated API server of a cluster until a signal arrives.
///
/// # Errors
/// [`RunError`].
pub async fn serve(config: ServeConfig) -> Result<(), RunError> {
    telemetry::init(&config.server.log)?;
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
    let encryption = Encryption::load(config.server.storage.encryption.clone()).await?;
    let store = backend::open(&config.server.storage, &encryption).await?;
    let parts = ServerParts {
        encryption: Arc::new(encryption),
        host: Arc::<KubeHost>::clone(&host),
        certificate: CertificateSource::Files { certificate, key },
        resources,
        plugins: config.plugins,
        extend: Box::new(|_, _| Extended::default()),
    };
    base.serve(config.server, store, parts).await?;
    host.join().await;
    Ok(())
}

/// Refuses to start if the host serves one of our versions itself: both would serve the same objects.
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
    kinds::resources(&Arc::new(allowed_names(config)))
}

/// The reserved names that requesters and interceptors may have.
fn allowed_names(config: &ServerConfig) -> AllowedNames {
    let mut names = AllowedNames::default();
    names.extend(config.allowed_reserved_names.iter().cloned());
    names
}

/// What every mode of serving begins with.
pub struct Base {
    /// The server's clock.
    pub clock: Arc<dyn Clock>,
    /// The server's metrics.
    pub metrics: Metrics,
    /// The stages of a stop.
    pub stages: Stages,
    registry: Registry,
}

/// What differs between the modes of serving.
pub struct ServerParts<S: Store> {
    /// What seals the values of the store.
    pub encryption: Arc<Encryption>,
    /// The cluster we serve for.
    pub host: Arc<dyn Host>,
    /// The serving certificate.
    pub certificate: CertificateSource,
    /// Everything that is served.
    pub resources: Vec<Arc<Resource>>,
    /// The admission plugins that run, and their configuration.
    pub plugins: AdmissionSettings,
    /// Called once the listener is bound.
    pub extend: Extend<S>,
}

/// Extends a server, given the store of each resource and the address it listens on.
pub type Extend<S> = Box<dyn FnOnce(&[Arc<ResourceStore<S>>], SocketAddr) -> Extended + Send>;

/// What a mode of serving adds to the server.
pub struct Extended {
    /// Routes beside those of the resources.
    pub extensions: Vec<Box<dyn Extension>>,
    /// Runs beside the server once its caches are filled; the stop waits for its end.
    pub task: BoxFuture<'static, ()>,
}

impl Default for Extended {
    fn default() -> Self {
        Self {
            extensions: Vec::new(),
            task: ready(()).boxed(),
        }
    }
}

/// What is recorded of requests, elsewhere than in the log.
struct Records {
    auditor: Option<Arc<Auditor>>,
    spans: Option<Arc<Spans>>,
}

impl Records {
    /// Delivers what is recorded so far.
    async fn close(self) {
        if let Some(auditor) = self.auditor {
            auditor.close().await;
        }
        if let Some(spans) = self.spans {
            spans.close().await;
        }
    }
}

/// Who may do what, and which writes are admitted.
struct Access {
    reviews: Arc<Reviews>,
    authorizer: Arc<Authorizer>,
    admission: Arc<admission::Chain>,
}

impl Base {
    /// With metrics for these resources.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, resources: &[Arc<Resource>]) -> Self {
        let mut registry = Registry::default();
        let served: Vec<ServedResource> = resources
            .iter()
            .flat_map(|resource| {
                resource.faces.iter().map(|face| ServedResource {
                    group: resource.group,
                    version: face.version,
                    resource: face.names.plural,
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

    /// Serves until a signal arrives or the store fails, then stops in order.
    ///
    /// The server is generic over its backend; this function is not, so that it is compiled once and in this crate,
    /// whichever mode of serving calls it.
    ///
    /// # Errors
    /// [`RunError`].
    #[must_use = "futures do nothing unless awaited"]
    pub fn serve(
        self,
        config: ServerConfig,
        store: ServerStore,
        parts: ServerParts<ServerStore>,
    ) -> BoxFuture<'static, Result<(), RunError>> {
        self.serve_on(config, store, parts).boxed()
    }

    async fn serve_on<S: Backend>(
        mut self,
        config: ServerConfig,
        store: S,
        parts: ServerParts<S>,
    ) -> Result<(), RunError> {
        let ServerParts {
            encryption,
            host,
            certificate,
            resources,
            plugins,
            extend,
        } = parts;
        store.register_metrics(&mut self.registry);
        encryption.register_metrics(&mut self.registry);
        let records = self.records(&config).await?;
        let access = self.access(&host, &plugins, &config)?;
        let mut feeders = JoinSet::new();
        let stores = self.resource_stores(&resources, &store, &access.admission, &config, &mut feeders);
        let listener = Listener::bind(config.address)
            .await
            .map_err(|source| RunError::Bind {
                address: config.address,
                source,
            })?;
        let Extended { mut extensions, task } = extend(&stores, listener.address());
        extensions.push(Box::new(Backups::new(
            store.clone(),
            &config.storage,
            Arc::clone(&access.authorizer),
        )));

        let caches: Vec<_> = stores.iter().map(|store| store.cache.clone()).collect();
        let of_encryption = encryption.check(config.reload_encryption);
        let (health, filled) = self.health(&store, &host, &access.admission, of_encryption);
        let mut tasks = JoinSet::new();
        if config.reload_encryption {
            tasks.spawn(encryption.follow_file(self.stages.stopped().clone()));
        }
        tasks.spawn(run_once_filled(
            caches.clone(),
            filled,
            task,
            self.stages.stopped().clone(),
        ));
        tasks.spawn(end_watches(caches, self.stages.ending().clone()));
        if let Some(notices) = store.notices() {
            let stopped = self.stages.stopped().clone();
            tasks.spawn(member_events::run(notices, Arc::clone(&host), stopped));
        }

        let catalog = Catalog::new(resources);
        let api = Api::new(catalog, stores, extensions, Arc::clone(&self.clock));
        let (tls, reloader) = Tls::load(certificate, config.min_tls_version, host.authentication()).await?;
        tasks.spawn(reloader.run(
            self.metrics.clone(),
            Arc::clone(&self.clock),
            self.stages.stopped().clone(),
        ));
        let routes_installed = Mark::default();
        routes_installed.set();
        let chain = Chain::new(ChainParts {
            authenticator: Authenticator::new(access.reviews, Arc::clone(&self.clock), self.metrics.clone()),
            authorizer: access.authorizer,
            spans: records.spans.clone(),
            auditor: records.auditor.clone(),
            anonymous: AnonymousAccess::OpenPaths,
            limits: config.limits,
            request_timeout: config.request_timeout,
            routes_installed,
            health,
            exposition: Exposition::new(self.registry),
            metrics: self.metrics.clone(),
            stages: self.stages.clone(),
            handler: api,
        });
        tasks.spawn(listener.run(tls, Arc::new(chain), self.metrics, self.stages.clone()));

        let ended = wait_for_shutdown(&store, &*host, &mut feeders).await;
        self.stages.stop(config.shutdown_delay).await;
        while tasks.join_next().await.is_some() {}
        while feeders.join_next().await.is_some() {}
        records.close().await;
        store.close(CLOSE_GRACE).await.map_err(RunError::Close)?;
        tracing::info!("stopped");
        ended
    }

    /// Opens the audit log if there is a policy, and prepares the export of spans if there is a collector.
    async fn records(&self, config: &ServerConfig) -> Result<Records, RunError> {
        let auditor = match &config.audit {
            Some(settings) => {
                let metrics = self.metrics.audit().clone();
                Some(Auditor::start(settings, Arc::clone(&self.clock), metrics).await?)
            }
            None => None,
        };
        let spans = match &config.tracing {
            Some(settings) => Some(Spans::start(settings, &instance())?),
            None => None,
        };
        Ok(Records { auditor, spans })
    }

    fn access(
        &mut self,
        host: &Arc<dyn Host>,
        plugins: &AdmissionSettings,
        config: &ServerConfig,
    ) -> Result<Access, RunError> {
        let reviews = Reviews::new(Arc::clone(host), config.review_ttls)
            .map_err(|_| RunError::Machine("randomness"))?;
        let reviews = Arc::new(reviews);
        let authorizer = Arc::new(Authorizer::new(
            Arc::clone(&reviews),
            config.always_allow_paths.clone(),
            self.metrics.clone(),
        ));
        let policies = PolicyContext::new(Arc::clone(host), Arc::clone(&authorizer), &mut self.registry);
        let own_node = std::env::var(NODE_NAME).ok().filter(|name| !name.is_empty());
        let admission = admission::Chain::new(Arc::clone(host), Arc::clone(&authorizer), own_node)
            .checking_namespaces(plugins.enabled.has(PluginName::NamespaceLifecycle))
            .enforcing_owner_references(
                plugins
                    .enabled
                    .has(PluginName::OwnerReferencesPermissionEnforcement),
            )
            .with_policy(ClusterPolicy::of_host(
                host,
                Arc::clone(&self.clock),
                self.metrics.admission().clone(),
                plugins,
                &policies,
            ));
        let admission = Arc::new(admission);
        Ok(Access {
            reviews,
            authorizer,
            admission,
        })
    }

    fn resource_stores<S: Backend>(
        &mut self,
        resources: &[Arc<Resource>],
        store: &S,
        admission: &Arc<admission::Chain>,
        config: &ServerConfig,
        feeders: &mut JoinSet<()>,
    ) -> Vec<Arc<ResourceStore<S>>> {
        let mut limits = CacheLimits {
            window: config.storage.history_window,
            ..CacheLimits::default()
        };
        if let Some(period) = config.debug_cache_check_period {
            limits.check_period = period;
            limits.abort_on_difference = true;
        }
        let cache_metrics = CacheMetrics::new(&mut self.registry);
        let stores: Vec<_> = resources
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
                    Arc::clone(admission) as Arc<dyn Admission>,
                    Arc::clone(&self.clock),
                ))
            })
            .collect();
        if let Some(rules) = StoredRules::of(&stores, allowed_names(config)) {
            admission.read_interceptors(Arc::new(rules));
        }
        stores
    }

    /// The health checks, and the mark to set when the caches are filled.
    fn health<S: Backend>(
        &self,
        store: &S,
        host: &Arc<dyn Host>,
        admission: &Arc<admission::Chain>,
        of_encryption: Option<(&'static str, Probe)>,
    ) -> (Health, Mark) {
        let mut health = HealthBuilder::new();
        let filled = health.post_start_hook("start-watch-caches");
        if let Some((name, probe)) = of_encryption {
            health = health.check(name, Scope::All, probe);
        }
        let (ready, store) = (store.clone(), store.clone());
        let (host, admission) = (Arc::clone(host), Arc::clone(admission));
        let unready = self.stages.unready().clone();
        let health = health
            .check("etcd", Scope::Live, move || match store.health() {
                StoreHealth::Failed(reason) => Err(reason),
                // A restart would not help.
                StoreHealth::Ready | StoreHealth::ReadOnly(_) | StoreHealth::Unreachable(_) => Ok(()),
            })
            .check("etcd", Scope::Ready, move || match ready.health() {
                StoreHealth::Failed(reason) | StoreHealth::Unreachable(reason) => Err(reason),
                StoreHealth::Ready | StoreHealth::ReadOnly(_) => Ok(()),
            })
            .check("informer-sync", Scope::Ready, move || {
                if !host.is_synced() {
                    return Err("the host's namespaces or nodes are not loaded yet".to_owned());
                }
                match admission.not_loaded() {
                    missing if missing.is_empty() => Ok(()),
                    missing => Err(format!("not loaded yet: {}", missing.join("; "))),
                }
            })
            .check("shutdown", Scope::Ready, move || {
                if unready.is_cancelled() {
                    Err("the server is stopping".to_owned())
                } else {
                    Ok(())
                }
            });
        (health.build(), filled)
    }
}

/// What tells this server from others: the name of its pod, or of its machine.
fn instance() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Sets `filled` and runs `task` once every cache is filled.
async fn run_once_filled<S: Store>(
    caches: Vec<WatchCache<S>>,
    filled: Mark,
    task: impl Future<Output = ()>,
    stopped: CancellationToken,
) {
    for cache in &caches {
        tokio::select! {
            () = stopped.cancelled() => return,
            () = cache.ready() => {}
        }
    }
    filled.set();
    tracing::info!("caches filled");
    task.await;
}

/// Ends the watches of every cache once `ending` is cancelled.
async fn end_watches<S: Store>(caches: Vec<WatchCache<S>>, ending: CancellationToken) {
    ending.cancelled().await;
    for cache in &caches {
        cache.end_watches(WATCH_TERMINATION_WINDOW);
    }
}

/// Waits for a signal, which is no failure, or for the store, the host or the feeder of a cache to fail.
async fn wait_for_shutdown<S: Store>(
    store: &S,
    host: &dyn Host,
    feeders: &mut JoinSet<()>,
) -> Result<(), RunError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(|_| RunError::Machine("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|_| RunError::Machine("signals"))?;
    let mut check = tokio::time::interval(HEALTH_PERIOD);
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            Some(_) = feeders.join_next() => return Err(RunError::CacheEnded),
            () = host.failed() => return Err(RunError::HostLost),
            _ = check.tick() => {
                if let StoreHealth::Failed(reason) = store.health() {
                    tracing::error!(reason, "the storage has failed: only a restart can establish what it holds");
                    return Err(RunError::StoreFailed(reason));
                }
            }
        }
    }
}
