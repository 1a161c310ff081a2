//! Opens a store. Everything that makes a prefix or a cluster unfit is found before anything is written.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::error::{EtcdOpenError, supported_version};
use super::failure::Failure;
use super::floors::KnownFloors;
use super::keyspace::Keyspace;
use super::marker::Marker;
use super::members::{Connection, Members, Request, revision_of};
use super::metrics::EtcdMetrics;
use super::options::{EtcdOptions, Pem};
use super::parts::{Parts, Shared, revision};
use super::transact::{OPERATIONS, REQUEST_BYTES};
use super::waiting::Waiting;
use super::{clocks, compactor, probe};
use crate::record::Records;
use crate::{KeyRange, StoreError};

/// How long a member may take to tell its version.
const STATUS: Duration = Duration::from_secs(3);
/// The wait between two attempts to reach a member.
const RETRY: Duration = Duration::from_millis(250);
/// How often the compacted revision is asked for: other servers compact, too.
const ASK_FLOORS_EVERY: Duration = Duration::from_mins(1);
/// A server that does nothing looks at the marker once for so many probes of a member.
const LOOK_EVERY: u32 = 5;
/// What a request needs besides a value.
const FRAMES: usize = 2 << 10;

/// The most operations of a transaction of an import: what etcd accepts by default.
pub(super) const IMPORT_OPERATIONS: usize = 128;

/// What was found when a store was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdOpened {
    /// The identity of the store.
    pub store: Uuid,
    /// The current revision of etcd.
    pub revision: u64,
    /// The version of the members that answered, the oldest of them.
    pub version: String,
    /// Endpoints that did not answer.
    pub silent: Vec<String>,
    /// Endpoints that answered, and whose clock is unknown.
    pub without_clock: Vec<String>,
}

/// What a store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Reads and writes of objects.
    Serve,
    /// An import, which may replace an unfinished one.
    Import,
}

impl Purpose {
    /// The most operations of a transaction.
    fn operations(self) -> usize {
        match self {
            Self::Serve => OPERATIONS,
            Self::Import => IMPORT_OPERATIONS,
        }
    }
}

fn check_endpoints(options: &EtcdOptions) -> Result<(), EtcdOpenError> {
    let first = options.endpoints.first().ok_or(EtcdOpenError::NoEndpoint)?;
    let is_tls = first.starts_with("https://");
    for endpoint in &options.endpoints {
        let rest = endpoint.strip_prefix(if is_tls { "https://" } else { "http://" });
        let rest = rest.map(|rest| rest.trim_end_matches('/'));
        if rest.is_none_or(|rest| rest.is_empty() || rest.contains(['/', '@', '?', '#'])) {
            // A password does not belong there, and not into a log.
            let endpoint = match endpoint.rsplit_once('@') {
                Some((_, host)) => format!("...@{host}"),
                None => endpoint.clone(),
            };
            return Err(EtcdOpenError::Endpoint { endpoint });
        }
    }
    if options.tls.certificate.is_some() != options.tls.key.is_some() {
        return Err(EtcdOpenError::HalfIdentity);
    }
    Ok(())
}

/// Opens a store and starts its tasks.
pub(super) async fn open(
    options: EtcdOptions,
    purpose: Purpose,
) -> Result<(Shared, EtcdOpened), EtcdOpenError> {
    check_endpoints(&options)?;
    let keys = Keyspace::new(&options.prefix)?;
    let tls = options.tls.clone();
    let pem = tokio::task::spawn_blocking(move || tls.read()).await;
    let pem = pem
        .map_err(io::Error::other)
        .and_then(|read| read)
        .map_err(EtcdOpenError::Files)?;
    let metrics = EtcdMetrics::default();
    let members = Members::new(&options, &pem, metrics.clone()).await?;
    let (version, silent) = check_members(&members, options.start_wait).await?;
    let answered = options
        .endpoints
        .iter()
        .filter(|endpoint| !silent.contains(endpoint));
    let without_clock = clocks::check(answered, &pem).await?;
    let marker = check_prefix(&members, &keys, purpose).await?;
    check_request_limit(&members, &keys).await?;
    check_operation_limit(&members, &keys, purpose.operations()).await?;
    let floors = KnownFloors::default();
    floors.ask(&members, &keys).await;
    let parts = Arc::new(Parts {
        records: Records::new(Arc::clone(&options.seal)),
        options,
        keys,
        members,
        marker,
        floors,
        metrics,
        waiting: Waiting::default(),
        pulse: watch::Sender::new(0),
        pulsed: AtomicU64::new(0),
        closed: CancellationToken::new(),
    });
    let current = super::revision::current(&parts).await.map_err(refused)?;
    start_tasks(&parts, pem, purpose);
    let opened = EtcdOpened {
        store: parts.marker.store(),
        revision: current.0,
        version,
        silent,
        without_clock,
    };
    Ok((parts, opened))
}

fn refused(error: impl std::fmt::Display) -> EtcdOpenError {
    EtcdOpenError::Refused {
        reason: error.to_string(),
    }
}

fn start_tasks(parts: &Shared, pem: Pem, purpose: Purpose) {
    for index in 0..parts.members.all().len() {
        let parts = Arc::clone(parts);
        let period = parts.options.probe_period;
        let run = async move { until_closed(&parts, probe::run(&parts.members, index, period)).await };
        tokio::spawn(run);
    }
    let shared = Arc::clone(parts);
    tokio::spawn(async move {
        let parts = &shared;
        let floors = async {
            loop {
                sleep(ASK_FLOORS_EVERY).await;
                parts.floors.ask(&parts.members, &parts.keys).await;
            }
        };
        let looks = async {
            loop {
                sleep(parts.options.probe_period * LOOK_EVERY).await;
                // What it says about the marker is noted; that etcd does not answer is for probes to tell.
                drop(super::revision::current(parts).await);
            }
        };
        // An import looks itself, and compacts itself: a look that began before it wrote its marker would find another one.
        let of_server = async {
            match purpose {
                Purpose::Serve => tokio::select! {
                    () = looks => {}
                    () = compactor::run(parts, parts.options.compaction_interval) => {}
                },
                Purpose::Import => std::future::pending().await,
            }
        };
        let work = Box::pin(async {
            tokio::select! {
                () = of_server => {}
                () = probe::follow_files(&parts.members, &parts.options, pem) => {}
                () = floors => {}
            }
        });
        until_closed(parts, work).await;
    });
}

/// Runs until the store is closed.
async fn until_closed(parts: &Parts, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        () = parts.closed.cancelled() => {}
    }
}

/// Checks every member that answers; waits until one does. Returns the oldest version and the silent endpoints.
async fn check_members(members: &Members, wait: Duration) -> Result<(String, Vec<String>), EtcdOpenError> {
    let began = Instant::now();
    loop {
        let mut silent = Vec::new();
        let mut troubles = Vec::new();
        let mut answered: Option<String> = None;
        let mut oldest: Option<((u64, u64), String)> = None;
        for (index, member) in members.all().iter().enumerate() {
            let endpoint = &member.endpoint;
            let mut maintenance = member.maintenance();
            let status = match timeout(STATUS, maintenance.status()).await {
                Ok(Ok(status)) => status,
                Ok(Err(error)) => match Failure::of(&error) {
                    Failure::Refused(reason) => return Err(refused(format!("{endpoint}: {reason}"))),
                    failure => {
                        troubles.push(format!("{endpoint}: {}", failure.text()));
                        silent.push((index, endpoint.clone()));
                        continue;
                    }
                },
                Err(_) => {
                    troubles.push(format!("{endpoint}: no answer"));
                    silent.push((index, endpoint.clone()));
                    continue;
                }
            };
            let found = supported_version(endpoint, status.version())?;
            if !members.is_same_cluster(status.header()) {
                return Err(EtcdOpenError::TwoClusters {
                    first: answered.unwrap_or_default(),
                    second: endpoint.clone(),
                });
            }
            answered.get_or_insert_with(|| endpoint.clone());
            if oldest.as_ref().is_none_or(|(version, _)| found < *version) {
                oldest = Some((found, status.version().to_owned()));
            }
        }
        if let Some((_, version)) = oldest {
            for (index, _) in &silent {
                members.note_failure(*index, "it did not answer at the start");
            }
            return Ok((
                version,
                silent.into_iter().map(|(_, endpoint)| endpoint).collect(),
            ));
        }
        if began.elapsed() >= wait {
            let reason = troubles.join("; ");
            return Err(EtcdOpenError::Unreachable { reason });
        }
        sleep(RETRY).await;
    }
}

const REQUEST: Request<'_> = Request::of_store("get");

/// Whose prefix it is.
async fn check_prefix(members: &Members, keys: &Keyspace, purpose: Purpose) -> Result<Marker, EtcdOpenError> {
    let marker = match purpose {
        Purpose::Serve => Marker::absent(),
        Purpose::Import => Marker::of_import(),
    };
    let call = |mut connection: Connection| async move { connection.kv.get(keys.marker(), None).await };
    let answer = read(members.read(REQUEST, call).await)?;
    if let Some(found) = answer.kvs().first() {
        let at = revision(found.mod_revision());
        return match (marker.learn(keys, found.value(), at), purpose) {
            // It is replaced. Nothing else that an import finds is.
            (Err(EtcdOpenError::ImportUnfinished { .. }), Purpose::Import) => {
                marker.note_written(at);
                Ok(marker)
            }
            (learnt, _) => learnt.map(|()| marker),
        };
    }
    let at = revision_of(&answer);
    for outer in keys.outer() {
        let call = |mut connection: Connection| async move { connection.kv.get(outer, None).await };
        let answer = match members.read(REQUEST, call).await.map_err(refused)? {
            Err(Failure::Refused(reason)) => {
                // A user whose role has the prefix alone.
                tracing::info!(
                    key = outer,
                    reason,
                    "whether another store is around the prefix is not known"
                );
                continue;
            }
            answer => read(Ok(answer))?,
        };
        if answer
            .kvs()
            .iter()
            .any(|found| Marker::is_of_product(found.value()))
        {
            return Err(EtcdOpenError::Nested {
                prefix: keys.prefix().to_owned(),
                outer: outer.to_owned(),
            });
        }
    }
    let range = &keys.range(&KeyRange::all(), "");
    let call = |mut connection: Connection| async move {
        let (start, end) = range
            .as_ref()
            .map(|range| (range.start.clone(), range.end.clone()))
            .unwrap_or_default();
        // At the revision of the get: another server may write the first object just now.
        let options = GetOptions::new()
            .with_range(end)
            .with_limit(1)
            .with_keys_only()
            .with_revision(super::parts::number(at));
        connection.kv.get(start, Some(options)).await
    };
    let answer = read(members.read(REQUEST, call).await)?;
    match answer.kvs().first() {
        None => Ok(marker),
        Some(found) => Err(EtcdOpenError::Foreign {
            prefix: keys.prefix().to_owned(),
            key: String::from_utf8_lossy(found.key()).into_owned(),
        }),
    }
}

fn read<T>(answer: Result<Result<T, Failure>, StoreError>) -> Result<T, EtcdOpenError> {
    answer
        .map_err(refused)?
        .map_err(|failure| refused(failure.text()))
}

/// Whether etcd accepts the largest request this store sends. The bytes are in a condition that never holds, and not in a
/// value: an etcd near its quota would raise its alarm for a value.
async fn check_request_limit(members: &Members, keys: &Keyspace) -> Result<(), EtcdOpenError> {
    let largest = vec![0_u8; REQUEST_BYTES - FRAMES];
    let txn = Txn::new()
        .when([Compare::value(keys.nothing(), CompareOp::Equal, largest)])
        .and_then([TxnOp::delete(keys.nothing(), None)]);
    let txn = &txn;
    let call = |mut connection: Connection| async move { connection.kv.txn(txn.clone()).await };
    match members.write(REQUEST, call).await.map_err(refused)? {
        Ok(_) => Ok(()),
        Err(Failure::TooLarge) => Err(EtcdOpenError::RequestLimit),
        Err(failure) => Err(refused(failure.text())),
    }
}

/// Whether etcd accepts transactions of so many operations. The condition never holds.
async fn check_operation_limit(
    members: &Members,
    keys: &Keyspace,
    needed: usize,
) -> Result<(), EtcdOpenError> {
    let txn = Txn::new()
        .when([Compare::version(keys.nothing(), CompareOp::Greater, 0)])
        .and_then(vec![TxnOp::get(keys.nothing(), None); needed]);
    let txn = &txn;
    let call = |mut connection: Connection| async move { connection.kv.txn(txn.clone()).await };
    match members.read(REQUEST, call).await.map_err(refused)? {
        Ok(_) => Ok(()),
        Err(Failure::Refused(reason)) if reason.contains("too many operations") => {
            Err(EtcdOpenError::OperationLimit { needed })
        }
        Err(failure) => Err(refused(failure.text())),
    }
}
