//! How is the process put together, and how does it end? Parts are built in order; shutdown goes backwards.
//!
//! Watches begin before leadership, so that a successor acts at once. When leadership is lost all work ends and so
//! does the process: whoever starts it again begins from what is stored.

use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::{Clock, SystemClock};
use http::header::{HeaderValue, USER_AGENT};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config as ClientConfig};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::Clients;
use crate::config::{Config, ElectionConfig, LogConfig, LogFormat};
use crate::events::{self, Events};
use crate::evictioninterceptor::{self, rules::Rules};
use crate::evictionrequest::decide::Settings;
use crate::evictionrequest::{self, observe::Observer};
use crate::health::{Health, HealthError, Listener};
use crate::leader::{Election, HostLease, Kept};
use crate::metrics::Metrics;
use crate::stores::{Informers, Stores};
use crate::work_queue::{self, WorkQueue};
use crate::{daemonset, nodemaintenance};

/// How long the end waits for events that are still to be written.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How many eviction requests are worked on at a time.
const REQUEST_WORKERS: usize = 32;
/// How many DaemonSet pods are taken off nodes at a time.
const DAEMON_WORKERS: usize = 8;
/// How many rules are reported on at a time.
const RULE_WORKERS: usize = 2;

/// Why the process ends other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kubeconfig cannot be used.
    #[error("the kubeconfig {path} cannot be used")]
    Kubeconfig {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// There is no kubeconfig and no service account.
    #[error("no --kubeconfig is given and this is no pod with a service account")]
    InCluster(#[source] Box<kube::config::InClusterError>),
    /// A client cannot be made.
    #[error("no client could be made")]
    Client(#[source] Box<kube::Error>),
    /// Health and metrics cannot be served.
    #[error("health and metrics cannot be served")]
    Health(#[from] HealthError),
    /// Signals cannot be received.
    #[error("signals cannot be received")]
    Signals(#[source] std::io::Error),
    /// Another process leads, or may soon.
    #[error("leadership was lost")]
    LeadershipLost,
    /// A part ended that never should.
    #[error("a part of the process ended")]
    PartEnded,
    /// The log level is no directive.
    #[error("--log-level is wrong")]
    LogLevel(#[source] tracing_subscriber::filter::ParseError),
}

/// Sends the log where the configuration says, once per process.
///
/// # Errors
///
/// [`Error::LogLevel`].
pub fn start_log(config: &LogConfig) -> Result<(), Error> {
    use tracing_subscriber::{EnvFilter, layer::SubscriberExt, util::SubscriberInitExt};
    let filter = EnvFilter::try_new(&config.level).map_err(Error::LogLevel)?;
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let started = match config.format {
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    if started.is_err() {
        tracing::debug!("the log was started before");
    }
    Ok(())
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
///
/// What kept the process from starting, or made it end.
pub async fn run(config: Config) -> Result<(), Error> {
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let asked = shutdown.clone();
    let signals = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to end");
        asked.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = run_until(config, shutdown) => result,
        () = signals => Ok(()),
    }
}

/// Runs until cancelled.
///
/// # Errors
///
/// As [`run`].
pub async fn run_until(config: Config, shutdown: CancellationToken) -> Result<(), Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let identity = identity();
    let clients = connect(&config).await?;
    let metrics = Metrics::default();
    let (events, said) = Events::new(Arc::clone(&clock), &identity);
    let (informers, stores) = Informers::new();
    metrics.census({
        let stores = stores.clone();
        move || stores.census()
    });
    let listener = Listener::bind(config.address, config.certificate.as_ref()).await?;

    // What does not need leadership. It outlives the work, so that the last words are written.
    let background = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let health = Health::new(stores.clone(), metrics.clone(), shutdown.clone());
    tasks.spawn(listener.serve(health, background.clone()));
    tasks.spawn(events::write(clients.host.clone(), said, background.clone()));
    let controllers = Controllers::new(&config, &clients, &stores, &events, &metrics, &clock, informers);
    let (controllers, informers) = controllers;
    informers.spawn(&clients, &background, &mut tasks);

    let ended = tokio::select! {
        ended = lead(&config, &clients, &identity, &metrics, &clock, controllers, &shutdown) => ended,
        // None of them ends before it is asked to.
        _ = tasks.join_next() => Err(Error::PartEnded),
    };
    shutdown.cancel();
    background.cancel();
    let last_words = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_WORDS, last_words).await.is_err() {
        tracing::debug!("not everything was said in time");
    }
    ended
}

/// Waits for leadership, works while it lasts, and gives it up.
async fn lead(
    config: &Config,
    clients: &Clients,
    identity: &str,
    metrics: &Metrics,
    clock: &Arc<dyn Clock>,
    controllers: Controllers,
    shutdown: &CancellationToken,
) -> Result<(), Error> {
    let work = shutdown.child_token();
    let Some(ElectionConfig { namespace, timing }) = &config.election else {
        metrics.leads(true);
        controllers.run(work).await;
        return Ok(());
    };
    let lease = HostLease::new(clients.host.clone(), namespace);
    let mut election = Election::new(lease, identity.to_owned(), *timing, Arc::clone(clock));
    if !election.acquire(shutdown).await {
        return Ok(());
    }
    tracing::info!(identity, "leading");
    metrics.leads(true);
    let kept = {
        let running = controllers.run(work.clone());
        let keeping = async {
            let kept = election.keep(shutdown).await;
            work.cancel();
            kept
        };
        // All work has ended before the Lease is given up.
        let ((), kept) = tokio::join!(running, keeping);
        kept
    };
    metrics.leads(false);
    match kept {
        Kept::Cancelled => {
            election.resign().await;
            Ok(())
        }
        Kept::Lost => Err(Error::LeadershipLost),
    }
}

/// Every controller and its queue.
struct Controllers {
    stores: Stores,
    requests: (
        Arc<evictionrequest::Controller>,
        Arc<WorkQueue<evictionrequest::Key>>,
    ),
    daemons: (Arc<daemonset::Controller>, Arc<WorkQueue<evictionrequest::Key>>),
    maintenances: (
        Arc<nodemaintenance::Controller>,
        Arc<WorkQueue<nodemaintenance::Key>>,
    ),
    rules: (Arc<evictioninterceptor::Controller>, Arc<WorkQueue<String>>),
}

impl Controllers {
    fn new(
        config: &Config,
        clients: &Clients,
        stores: &Stores,
        events: &Events,
        metrics: &Metrics,
        clock: &Arc<dyn Clock>,
        mut informers: Informers,
    ) -> (Self, Informers) {
        let rules = Arc::new(Rules::default());
        let actor = evictionrequest::act::Actor::new(
            clients.clone(),
            events.clone(),
            metrics.clone(),
            Arc::clone(clock),
        );
        let observer = Observer::new(
            stores.clone(),
            clients.clone(),
            Arc::clone(&rules),
            config.allowed_names.clone(),
        );
        let settings = Settings {
            default_ttl: config.default_ttl,
        };

        let queue = Arc::new(WorkQueue::new(
            Arc::clone(clock),
            metrics.queue("evictionrequests"),
        ));
        evictionrequest::listen(&mut informers, stores, &queue);
        let controller = evictionrequest::Controller::new(
            stores.clone(),
            observer,
            actor.clone(),
            Arc::clone(clock),
            settings,
        );
        let requests = (Arc::new(controller), queue);

        let queue = Arc::new(WorkQueue::new(Arc::clone(clock), metrics.queue("daemonsets")));
        daemonset::listen(&mut informers, stores, &queue);
        let controller =
            daemonset::Controller::new(stores.clone(), clients.clone(), actor, Arc::clone(clock));
        let daemons = (Arc::new(controller), queue);

        let queue = Arc::new(WorkQueue::new(
            Arc::clone(clock),
            metrics.queue("nodemaintenances"),
        ));
        nodemaintenance::listen(&mut informers, stores, &queue);
        let actor = nodemaintenance::act::Actor::new(clients.clone(), events.clone(), metrics.clone());
        let controller =
            nodemaintenance::Controller::new(stores.clone(), actor, Arc::clone(clock), config.static_pods);
        let maintenances = (Arc::new(controller), queue);

        let queue = Arc::new(WorkQueue::new(
            Arc::clone(clock),
            metrics.queue("evictioninterceptors"),
        ));
        evictioninterceptor::listen(&mut informers, &rules, &queue);
        let controller =
            evictioninterceptor::Controller::new(stores.clone(), clients.clone(), rules, Arc::clone(clock));
        let rules = (Arc::new(controller), queue);

        let controllers = Self {
            stores: stores.clone(),
            requests,
            daemons,
            maintenances,
            rules,
        };
        (controllers, informers)
    }

    /// Works until cancelled. Nothing is decided before every first list is complete.
    async fn run(self, cancel: CancellationToken) {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = self.stores.synced() => {}
        }
        tracing::info!("working");
        // Nodes may be held by maintenances that are gone: look once without being told.
        self.maintenances.1.add(());
        let mut loops = JoinSet::new();
        let (controller, queue) = self.requests;
        loops.spawn(work_queue::run(
            queue,
            REQUEST_WORKERS,
            cancel.clone(),
            move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.reconcile(key).await }
            },
        ));
        let (controller, queue) = self.daemons;
        loops.spawn(work_queue::run(
            queue,
            DAEMON_WORKERS,
            cancel.clone(),
            move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.reconcile(key).await }
            },
        ));
        let (controller, queue) = self.maintenances;
        loops.spawn(work_queue::run(queue, 1, cancel.clone(), move |()| {
            let controller = Arc::clone(&controller);
            async move { controller.round().await }
        }));
        let (controller, queue) = self.rules;
        loops.spawn(work_queue::run(
            queue,
            RULE_WORKERS,
            cancel.clone(),
            move |name| {
                let controller = Arc::clone(&controller);
                async move { controller.reconcile(name).await }
            },
        ));
        while let Some(ended) = loops.join_next().await {
            if let Err(error) = ended
                && let Ok(panic) = error.try_into_panic()
            {
                cancel.cancel();
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// A name of this process that no other has.
fn identity() -> String {
    let host = std::env::var("POD_NAME")
        .or_else(|_| std::env::var("HOSTNAME"))
        .unwrap_or_else(|_| "localhost".to_owned());
    format!("{host}_{}_{:08x}", std::process::id(), fastrand::u32(..))
}

async fn connect(config: &Config) -> Result<Clients, Error> {
    let host = if let Some(path) = &config.kubeconfig {
        from_file(path).await?
    } else {
        client(ClientConfig::incluster().map_err(|error| Error::InCluster(Box::new(error)))?)?
    };
    let ours = match &config.apiserver_kubeconfig {
        Some(path) => from_file(path).await?,
        None => host.clone(),
    };
    Ok(Clients { host, ours })
}

async fn from_file(path: &std::path::Path) -> Result<Client, Error> {
    let wrong = |source| Error::Kubeconfig {
        path: path.display().to_string(),
        source: Box::new(source),
    };
    let file = Kubeconfig::read_from(path).map_err(wrong)?;
    let config = ClientConfig::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(wrong)?;
    client(config)
}

fn client(mut config: ClientConfig) -> Result<Client, Error> {
    // Refusals of the eviction API are answers here, and retries have their own pace.
    config.default_retry = false;
    // Without it we are an unknown manager of the fields we write.
    let agent = HeaderValue::from_static(concat!("drydock-controller/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));
    Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))
}
