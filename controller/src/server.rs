//! Builds the parts of the process in order, runs them, and stops them in reverse order.
//!
//! Watches start before leadership is acquired, so that a new leader acts at once. When leadership is lost the
//! controllers stop and the process exits; after a restart it decides again from the stored objects.
//!
//! Controllers and watches share one thread: they wait for servers most of the time, and threads that wake each other cost
//! more than they compute. [`wakeups`](crate::wakeups) says how often it wakes. Plans and rules are computed by threads of
//! their own. The secure port has one too, so whoever connects to it does not hold up the renewals of the Lease.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::{Clock, SystemClock};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::api::Clients;
use crate::bridge::{self, Bridge};
use crate::config::{Config, ElectionConfig, LogConfig, LogFormat};
use crate::connections::{self, Connections};
use crate::context::Context;
use crate::descheduling::annotations;
use crate::descheduling::nominations::{self, Requester};
use crate::endpoints::Endpoints;
use crate::events::{self, EventRecorder};
use crate::evictioninterceptor::{self, rules::Rules};
use crate::evictionrequest::broker::Broker;
use crate::evictionrequest::gone_pods::GonePods;
use crate::evictionrequest::undelivered_writes::UndeliveredWrites;
use crate::health::Health;
use crate::informer::ObjectKey;
use crate::leader::{Election, LeadershipEnd};
use crate::lease_fence::LeaseFence;
use crate::listener::{Listener, ListenerError};
use crate::metrics::Metrics;
use crate::object_counts::ObjectCounts;
use crate::server_time::ServerClock;
use crate::stores::{Informers, Stores};
use crate::temporary_requests::expiry;
use crate::transport::TransportLayer;
use crate::watch_health::{READY_GRACE, WatchFailure};
use crate::watch_metrics::WatchFailures;
use crate::work_queue::{self, Outcome, WorkQueue};
use crate::{daemonset, evictionrequest, nodemaintenance};

/// How long shutdown waits for queued Events to be written.
const EVENT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How many eviction requests are reconciled at a time. Each waits for a server, or for the next wakeup, most of the time.
const REQUEST_WORKERS: usize = 96;
/// How many DaemonSet pods are handled at a time.
const DAEMON_SET_WORKERS: usize = 8;
/// How many eviction interceptors are reconciled at a time.
const INTERCEPTOR_WORKERS: usize = 2;
/// How many requests are withdrawn from at a time.
const EXPIRY_WORKERS: usize = 4;
/// How long a request of the bridge, or for a nominated pod, lives that does not say until when, while they are off.
const LIFETIME_WHEN_OFF: Duration = Duration::from_mins(15);
/// How many pods are annotated at a time.
const ANNOTATION_WORKERS: usize = 4;

/// Why the process ends without a signal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There are no clients.
    #[error(transparent)]
    Connections(#[from] connections::Error),
    /// The secure port cannot be served.
    #[error("cannot serve the secure port")]
    Listener(#[from] ListenerError),
    /// Signal handlers cannot be installed.
    #[error("cannot install signal handlers")]
    Signals(#[source] std::io::Error),
    /// Another replica is the leader, or may become it.
    #[error("leadership was lost")]
    LeadershipLost,
    /// A watch failed for longer than the bound. The Lease was given up.
    #[error("the watch of {kind} has failed for {} s, so the lease was given up: {cause}", lasting.as_secs())]
    WatchFailed {
        /// The kind.
        kind: &'static str,
        /// For how long it had failed.
        lasting: Duration,
        /// The last error.
        cause: String,
    },
    /// A background task ended before shutdown.
    #[error("a background task ended unexpectedly")]
    PartEnded,
    /// The log level cannot be parsed.
    #[error("--log-level is invalid")]
    LogLevel(#[source] tracing_subscriber::filter::ParseError),
}

/// Initializes logging, once per process.
///
/// # Errors
///
/// [`Error::LogLevel`].
pub fn init_logging(config: &LogConfig) -> Result<(), Error> {
    use tracing_subscriber::{EnvFilter, layer::SubscriberExt, util::SubscriberInitExt};
    let filter = EnvFilter::try_new(&config.level).map_err(Error::LogLevel)?;
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let initialized = match config.format {
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    if initialized.is_err() {
        tracing::debug!("logging is already initialized");
    }
    Ok(())
}

/// Runs until SIGTERM or SIGINT. The secure port is served by its own runtime.
///
/// # Errors
///
/// [`Error`].
pub async fn run(config: Config, secure_port: Handle) -> Result<(), Error> {
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let on_signal = shutdown.clone();
    let signals = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("shutdown requested by a signal");
        on_signal.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = run_until(config, &secure_port, shutdown) => result,
        () = signals => Ok(()),
    }
}

/// Runs until cancelled.
///
/// # Errors
///
/// As [`run`].
async fn run_until(config: Config, secure_port: &Handle, shutdown: CancellationToken) -> Result<(), Error> {
    let identity = identity();
    let metrics = Metrics::default();
    let server_clock = Arc::new(ServerClock::new(Arc::new(SystemClock)));
    let fence = Arc::new(if config.election.is_some() {
        LeaseFence::closed()
    } else {
        LeaseFence::open()
    });
    let transport = TransportLayer {
        fence: Arc::clone(&fence),
        clock: Arc::clone(&server_clock),
        metrics: metrics.clone(),
    };
    let Connections {
        calls: clients,
        watches,
        unfenced,
        served,
    } = Connections::new(&config, &transport).await?;
    let clock: Arc<dyn Clock> = server_clock;
    let (events, queued_events) = EventRecorder::new(Arc::clone(&clock), &identity);
    let (mut informers, stores) = Informers::new();
    metrics.register_collector(ObjectCounts(stores.clone()));
    metrics.register_collector(WatchFailures(stores.clone()));
    let (address, tls) = (config.address, config.tls.clone());
    let bound = secure_port.spawn(async move { Listener::bind(address, &tls).await });
    let listener = bound.await.map_err(|_| Error::PartEnded)??;
    let context = Arc::new(Context {
        stores,
        clients,
        events,
        metrics,
        labels: config.labels.clone(),
        clock,
    });

    // Tasks that need no leadership. They outlive the controllers, so that the last Events are written.
    let background = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let rules = Arc::<Rules>::default();
    let endpoints = endpoints(&config, &context, &served, &rules, &fence, &shutdown);
    tasks.spawn_on(
        listener.serve(Arc::new(endpoints), background.clone()),
        secure_port,
    );
    tasks.spawn(events::write_queued(
        unfenced.host.clone(),
        queued_events,
        background.clone(),
    ));
    let controllers = Controllers::new(&config, &context, rules, &mut informers);
    informers.spawn(&watches, &background, &mut tasks);

    let candidate = config
        .election
        .as_ref()
        .map(|ElectionConfig { namespace, timing }| {
            let clock = Arc::clone(&context.clock);
            Election::new(unfenced.host, namespace, identity.clone(), *timing, clock, fence)
        });
    let ended = tokio::select! {
        ended = lead(&context, candidate, config.watch_failure_deadline, controllers, &shutdown) => ended,
        // No background task ends before it is cancelled.
        _ = tasks.join_next() => Err(Error::PartEnded),
    };
    shutdown.cancel();
    background.cancel();
    let drained = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(EVENT_FLUSH_TIMEOUT, drained).await.is_err() {
        tracing::debug!("background tasks did not end in time; queued events may be lost");
    }
    ended
}

/// Waits for leadership, runs the controllers while it lasts, and releases the Lease, also when a watch has failed for
/// `watch_failure_deadline`. `None` acts without an election.
async fn lead(
    context: &Context,
    candidate: Option<Election>,
    watch_failure_deadline: Duration,
    controllers: Controllers,
    shutdown: &CancellationToken,
) -> Result<(), Error> {
    let work = shutdown.child_token();
    let Some(mut election) = candidate else {
        context.metrics.set_leader(true);
        controllers.run(work).await;
        return Ok(());
    };
    let stores = &context.stores;
    // A replica that knows nothing yet, or learns nothing any more, would only keep others from leading.
    tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        () = stores.wait_until_synced() => {}
    }
    if !election.acquire(|| stores.not_ready(READY_GRACE), shutdown).await {
        return Ok(());
    }
    tracing::info!("became the leader");
    context.metrics.set_leader(true);
    let renewing = async {
        let end = tokio::select! {
            end = election.renew_until_lost(shutdown) => (end, None),
            failed = stores.watch_failed_for(watch_failure_deadline) => (LeadershipEnd::GivenUp, Some(failed)),
        };
        work.cancel();
        end
    };
    // The controllers have ended before the Lease is released.
    let ((), (end, failed)) = tokio::join!(controllers.run(work.clone()), renewing);
    context.metrics.set_leader(false);
    if end == LeadershipEnd::Lost {
        return Err(Error::LeadershipLost);
    }
    election.release().await;
    match failed {
        None => Ok(()),
        Some((kind, WatchFailure { lasting, cause })) => Err(Error::WatchFailed { kind, lasting, cause }),
    }
}

/// What the secure port serves.
fn endpoints(
    config: &Config,
    context: &Arc<Context>,
    clients: &Clients,
    rules: &Arc<Rules>,
    fence: &Arc<LeaseFence>,
    shutdown: &CancellationToken,
) -> Endpoints {
    let access = Arc::new(Access::new(
        clients.host.clone(),
        config.open_paths.clone(),
        Arc::clone(&context.clock),
    ));
    let bridge = config.bridge.as_ref().map(|bridge| {
        let options = bridge::Options {
            allowed: config.allowed_names.clone(),
            clients: bridge.clients.clone(),
            lifetime: bridge.lifetime,
            descheduler_lifetime: bridge.descheduler_lifetime,
        };
        let (context, rules) = (Arc::clone(context), Arc::clone(rules));
        Bridge::new(context, clients.clone(), rules, options)
    });
    let descheduling = config.descheduling.clone().map(|options| {
        let (context, access) = (Arc::clone(context), Arc::clone(&access));
        Requester::new(context, access, Arc::clone(fence), options)
    });
    let (stores, metrics) = (context.stores.clone(), context.metrics.clone());
    // The Service of the bridge leaves out what is not ready.
    let grace = if bridge.is_some() {
        bridge::READY_GRACE
    } else {
        READY_GRACE
    };
    Endpoints {
        health: Health::new(
            stores,
            metrics,
            access,
            grace,
            shutdown.clone(),
            Handle::current(),
        ),
        bridge,
        descheduling,
    }
}

/// A queue that is named so in metrics. `is_gone` says of a key whether its object is gone.
fn new_queue<K>(
    context: &Context,
    name: &'static str,
    is_gone: impl Fn(&Stores, &K) -> bool + Send + Sync + 'static,
) -> Arc<WorkQueue<K>>
where
    K: Ord + Hash + Clone + Send + Sync + 'static,
{
    let stores = context.stores.clone();
    let queue = WorkQueue::new(Arc::clone(&context.clock), context.metrics.queue(name));
    let queue = Arc::new(queue.forgetting(move |key| is_gone(&stores, key)));
    let shown = Arc::clone(&queue);
    context
        .metrics
        .add_unfinished_work(name, move || shown.processing());
    queue
}

/// Whether there is no request of this key.
fn has_no_request(stores: &Stores, key: &ObjectKey) -> bool {
    stores.requests.get(&key.0, &key.1).is_none()
}

/// The workers of one controller, not yet started.
type Workers = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>;

fn workers<C, K, R>(
    count: usize,
    queue: Arc<WorkQueue<K>>,
    controller: C,
    reconcile: fn(Arc<C>, K) -> R,
) -> Workers
where
    C: Send + Sync + 'static,
    K: Ord + Hash + Clone + Send + Sync + 'static,
    R: Future<Output = Outcome> + Send + 'static,
{
    let controller = Arc::new(controller);
    let reconcile = move |key| reconcile(Arc::clone(&controller), key);
    Box::new(move |cancel| work_queue::run(queue, count, cancel, reconcile).boxed())
}

/// Every controller.
struct Controllers {
    stores: Stores,
    workers: Vec<Workers>,
}

impl Controllers {
    /// Builds the controllers and connects their queues to the informers.
    fn new(config: &Config, context: &Arc<Context>, rules: Arc<Rules>, informers: &mut Informers) -> Self {
        let stores = &context.stores;

        let queue = new_queue(context, "evictionrequests", has_no_request);
        let broker = Arc::<Broker>::default();
        let gone_pods = Arc::<GonePods>::default();
        let writes = Arc::<UndeliveredWrites>::default();
        evictionrequest::add_handlers(informers, stores, &queue, &broker, &gone_pods, &writes);
        let controller = evictionrequest::Controller::new(
            Arc::clone(context),
            Arc::clone(&rules),
            evictionrequest::Options {
                allowed: config.allowed_names.clone(),
                default_ttl: config.default_ttl,
            },
            Arc::clone(&queue),
            broker,
            gone_pods,
            writes,
        );
        let requests = workers(REQUEST_WORKERS, queue, controller, |controller, key| async move {
            controller.reconcile(key).await
        });

        let queue = new_queue(context, "daemonsets", has_no_request);
        daemonset::add_handlers(informers, stores, &queue);
        let controller = daemonset::Controller::new(Arc::clone(context));
        let daemon_sets = workers(
            DAEMON_SET_WORKERS,
            queue,
            controller,
            |controller, key| async move { controller.reconcile(key).await },
        );

        let queue = new_queue(context, "nodemaintenances", |_, ()| false);
        let deleted = Arc::<nodemaintenance::DeletedRequests>::default();
        let index = Arc::<nodemaintenance::ClusterIndex>::default();
        nodemaintenance::add_handlers(informers, stores, &queue, &index, &deleted);
        // Nodes may still be held by maintenances that no longer exist, and no change would report them.
        queue.add(());
        let controller =
            nodemaintenance::Controller::new(Arc::clone(context), config.static_pods, index, deleted);
        let maintenances = workers(1, queue, controller, |controller, ()| async move {
            controller.reconcile().await
        });

        let queue = new_queue(
            context,
            "evictioninterceptors",
            |stores: &Stores, name: &String| stores.interceptors.get("", name).is_none(),
        );
        evictioninterceptor::add_handlers(informers, &rules, &queue);
        let controller = evictioninterceptor::Controller::new(Arc::clone(context), Arc::clone(&rules));
        let interceptors = workers(
            INTERCEPTOR_WORKERS,
            queue,
            controller,
            |controller, name| async move { controller.reconcile(name).await },
        );

        let mut all = vec![requests, daemon_sets, maintenances, interceptors];
        all.extend(expiry_workers(config, context, informers));
        all.push(annotation_workers(config, context, rules, informers));
        Self {
            stores: stores.clone(),
            workers: all,
        }
    }

    /// Reconciles until cancelled. Nothing is decided before every initial list is complete.
    async fn run(self, cancel: CancellationToken) {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = self.stores.wait_until_synced() => {}
        }
        tracing::info!("initial lists complete, controllers started");
        let mut tasks = JoinSet::new();
        for workers in self.workers {
            tasks.spawn(workers(cancel.clone()));
        }
        work_queue::join_all(tasks, &cancel).await;
    }
}

/// What withdraws the parties whose time is over: the bridge and the requester of nominated pods, also when they are off now and
/// were on before.
fn expiry_workers(config: &Config, context: &Arc<Context>, informers: &mut Informers) -> Vec<Workers> {
    let bridge = config.bridge.as_ref();
    let bridge = bridge.map_or(LIFETIME_WHEN_OFF, |bridge| bridge.lifetime);
    let descheduling = config.descheduling.as_ref();
    let descheduling = descheduling.map_or(LIFETIME_WHEN_OFF, |options| options.lifetime);
    let parties = [
        ("evictionbridge", bridge::PARTY, bridge),
        ("nominations", nominations::PARTY, descheduling),
    ];
    parties
        .into_iter()
        .map(|(name, party, lifetime)| {
            let queue = new_queue(context, name, has_no_request);
            expiry::add_handlers(informers, &queue, party);
            let controller = expiry::Controller::new(Arc::clone(context), party, lifetime);
            workers(EXPIRY_WORKERS, queue, controller, |controller, key| async move {
                controller.reconcile(key).await
            })
        })
        .collect()
}

/// What annotates pods for the descheduler, or takes off what an earlier process has put there.
fn annotation_workers(
    config: &Config,
    context: &Arc<Context>,
    rules: Arc<Rules>,
    informers: &mut Informers,
) -> Workers {
    let annotated = config.descheduler_annotations;
    let queue = new_queue(context, "descheduling", |stores: &Stores, key: &ObjectKey| {
        stores.pods.get(&key.0, &key.1).is_none()
    });
    annotations::add_handlers(informers, &context.stores, &queue, annotated);
    let allowed = config.allowed_names.clone();
    let controller = annotations::Controller::new(Arc::clone(context), rules, allowed, annotated);
    workers(
        ANNOTATION_WORKERS,
        queue,
        controller,
        |controller, key| async move { controller.reconcile(key).await },
    )
}

/// A unique name of this process.
fn identity() -> String {
    let host = std::env::var("POD_NAME")
        .or_else(|_| std::env::var("HOSTNAME"))
        .unwrap_or_else(|_| "localhost".to_owned());
    format!("{host}_{}_{:08x}", std::process::id(), fastrand::u32(..))
}
