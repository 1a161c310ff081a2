//! Requests to the members of etcd.
//!
//! One member is preferred, until a request to it or a probe of it fails; then the next one that answers is. Every request
//! has a deadline. A read is tried again, at another member, until its deadline; a write only where it did not leave this
//! process. Every answer must come from the same cluster, and no answer may show an older state than an earlier one.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{OnceLock, RwLock};
use std::time::Duration;

use etcd_client::{
    Client, CompactionResponse, ConnectOptions, GetResponse, KvClient, MaintenanceClient, ResponseHeader,
    TxnResponse,
};
use tokio::time::{Instant, sleep, timeout};

use super::error::EtcdOpenError;
use super::failure::Failure;
use super::metrics::EtcdMetrics;
use super::notice::{EtcdMemberChange, Notices};
use super::options::{EtcdOptions, Pem};
use crate::clock::Stopwatch;
use crate::{Key, Revision, StoreError, sync};

/// The largest answer that is accepted: eight times what a request of a scan should return. A larger one is not read, and the
/// scan asks for fewer keys.
const LARGEST_ANSWER: usize = 32 << 20;
/// How long one attempt of a read may take.
const ATTEMPT: Duration = Duration::from_millis(2500);
/// The wait between two attempts.
const BACK_OFF: Duration = Duration::from_millis(50);

/// The clients of one member, over one connection that is made when it is needed.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) kv: KvClient,
    pub(super) maintenance: MaintenanceClient,
}

/// One member.
pub(super) struct Member {
    pub(super) endpoint: String,
    connection: RwLock<Connection>,
    is_down: AtomicBool,
    /// Whether it said that etcd is full.
    pub(super) is_full: AtomicBool,
    /// What it did last that is no good.
    trouble: RwLock<String>,
}

/// All members.
pub(super) struct Members {
    list: Vec<Member>,
    preferred: AtomicUsize,
    connection: RwLock<ConnectOptions>,
    /// The id of the cluster, once a member has told it.
    cluster: OnceLock<u64>,
    /// The newest revision that any answer showed.
    newest: AtomicU64,
    /// Why this store must not be used any more.
    failed: OnceLock<String>,
    read_deadline: Duration,
    write_deadline: Duration,
    metrics: EtcdMetrics,
    pub(super) notices: Notices,
}

/// An answer with the header that every answer of etcd has.
pub(super) trait Answer {
    /// The header.
    fn header(&self) -> Option<&ResponseHeader>;
}

impl Answer for GetResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header()
    }
}

impl Answer for TxnResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header()
    }
}

impl Answer for CompactionResponse {
    fn header(&self) -> Option<&ResponseHeader> {
        self.header()
    }
}

/// A request, for metrics.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    /// What it does: `get`, `list`, `create`, `update`, `delete`, `compact`, `revision`.
    pub(super) operation: &'static str,
    /// The group of the resource; empty if it concerns none.
    pub(super) group: &'a str,
    /// The resource; empty if it concerns none.
    pub(super) resource: &'a str,
}

impl<'a> Request<'a> {
    /// A request for a key.
    pub(super) fn of(operation: &'static str, key: &'a Key) -> Self {
        Self {
            operation,
            group: key.group(),
            resource: key.resource(),
        }
    }

    /// A request that concerns no resource.
    pub(super) const fn of_store(operation: &'static str) -> Self {
        Self {
            operation,
            group: "",
            resource: "",
        }
    }
}

/// The revision in an answer.
pub(super) fn revision_of(answer: &impl Answer) -> Revision {
    let revision = answer.header().map_or(0, ResponseHeader::revision);
    Revision(u64::try_from(revision).unwrap_or_default())
}

/// A new connection to a member, made when it is needed.
pub(super) async fn connect(endpoint: &str, options: &ConnectOptions) -> Result<Client, EtcdOpenError> {
    let connected = Client::connect([endpoint], Some(options.clone())).await;
    connected.map_err(|error| EtcdOpenError::Connection {
        endpoint: endpoint.to_owned(),
        reason: error.to_string(),
    })
}

async fn connection(endpoint: &str, options: &ConnectOptions) -> Result<Connection, EtcdOpenError> {
    let client = connect(endpoint, options).await?;
    Ok(Connection {
        kv: client.kv_client().max_decoding_message_size(LARGEST_ANSWER),
        maintenance: client.maintenance_client(),
    })
}

impl Members {
    /// Prepares connections to all endpoints; sends nothing.
    pub(super) async fn new(
        options: &EtcdOptions,
        pem: &Pem,
        metrics: EtcdMetrics,
    ) -> Result<Self, EtcdOpenError> {
        let connect_options = options.connection(pem);
        let mut list = Vec::new();
        for endpoint in &options.endpoints {
            list.push(Member {
                endpoint: endpoint.clone(),
                connection: RwLock::new(connection(endpoint, &connect_options).await?),
                is_down: AtomicBool::new(false),
                is_full: AtomicBool::new(false),
                trouble: RwLock::new(String::new()),
            });
        }
        Ok(Self {
            list,
            preferred: AtomicUsize::new(0),
            connection: RwLock::new(connect_options),
            cluster: OnceLock::new(),
            newest: AtomicU64::new(0),
            failed: OnceLock::new(),
            read_deadline: options.read_deadline,
            write_deadline: options.write_deadline,
            metrics,
            notices: Notices::default(),
        })
    }

    /// Connects anew with other certificates. Open watches keep their connections until these end.
    pub(super) async fn reconnect(&self, options: &EtcdOptions, pem: &Pem) -> Result<(), EtcdOpenError> {
        let connect_options = options.connection(pem);
        for member in &self.list {
            let renewed = connection(&member.endpoint, &connect_options).await?;
            *sync::write(&member.connection) = renewed;
        }
        *sync::write(&self.connection) = connect_options;
        Ok(())
    }

    /// All members.
    pub(super) fn all(&self) -> &[Member] {
        &self.list
    }

    /// The member at the endpoint that requests go to, with its position.
    fn choose(&self) -> Option<(usize, &Member)> {
        let preferred = self.preferred.load(Ordering::Relaxed);
        let mut from_preferred = self.list.iter().enumerate().cycle().skip(preferred);
        let mut candidates = from_preferred.by_ref().take(self.list.len());
        candidates.find(|(_, member)| !member.is_down.load(Ordering::Relaxed))
    }

    /// As [`Members::choose`], or the preferred one if none is known to answer.
    fn choose_any(&self) -> Option<(usize, &Member)> {
        let preferred = self.preferred.load(Ordering::Relaxed);
        self.choose()
            .or_else(|| Some((preferred, self.list.get(preferred)?)))
    }

    /// A connection of its own for a watch, and the endpoint it goes to.
    pub(super) async fn watch_connection(&self) -> Result<(usize, Client), EtcdOpenError> {
        let (index, member) = self.choose_any().ok_or(EtcdOpenError::NoEndpoint)?;
        let options = sync::read(&self.connection).clone();
        Ok((index, connect(&member.endpoint, &options).await?))
    }

    /// Notes that a request to a member failed.
    pub(super) fn note_failure(&self, index: usize, reason: &str) {
        if let Some(member) = self.list.get(index) {
            if !member.is_down.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    endpoint = member.endpoint,
                    reason,
                    "a member of etcd does not serve"
                );
                let reason = reason.to_owned();
                self.notices
                    .send(&member.endpoint, EtcdMemberChange::Gone { reason });
            }
            reason.clone_into(&mut sync::write(&member.trouble));
            self.metrics.member_up(&member.endpoint, false);
        }
        if let Some((next, _)) = self.choose() {
            self.preferred.store(next, Ordering::Relaxed);
        }
    }

    /// Notes that a member serves.
    pub(super) fn note_success(&self, index: usize) {
        if let Some(member) = self.list.get(index) {
            if member.is_down.swap(false, Ordering::Relaxed) {
                tracing::info!(endpoint = member.endpoint, "a member of etcd serves again");
                self.notices.send(&member.endpoint, EtcdMemberChange::Serves);
            }
            self.metrics.member_up(&member.endpoint, true);
        }
    }

    /// Notes what a member says about its database.
    pub(super) fn note_size(&self, endpoint: &str, bytes: i64, is_full: bool) {
        self.metrics.member_size(endpoint, bytes, is_full);
    }

    /// What keeps all members from serving; none if one serves.
    pub(super) fn outage(&self) -> Option<String> {
        if self.choose().is_some() {
            return None;
        }
        let troubles = self.list.iter().map(|member| {
            let trouble = sync::read(&member.trouble);
            format!("{}: {trouble}", member.endpoint)
        });
        Some(troubles.collect::<Vec<_>>().join("; "))
    }

    /// Why the store must not be used any more, if so.
    pub(super) fn failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Gives the store up: it must not be used any more.
    pub(super) fn fail(&self, reason: &str) {
        if self.failed.set(reason.to_owned()).is_ok() {
            tracing::error!(reason, "the store in etcd must not be used any more");
        }
    }

    fn check_usable(&self) -> Result<(), StoreError> {
        match self.failed() {
            None => Ok(()),
            Some(reason) => Err(StoreError::Closed {
                reason: reason.to_owned(),
            }),
        }
    }

    /// Checks which cluster an answer comes from.
    pub(super) fn check_cluster(
        &self,
        endpoint: &str,
        header: Option<&ResponseHeader>,
    ) -> Result<(), StoreError> {
        let found = header.map_or(0, ResponseHeader::cluster_id);
        if *self.cluster.get_or_init(|| found) != found {
            self.fail(&format!("{endpoint} now is a member of another etcd cluster"));
        }
        self.check_usable()
    }

    /// As [`Members::check_cluster`], for the member with this position.
    pub(super) fn check_member(
        &self,
        index: usize,
        header: Option<&ResponseHeader>,
    ) -> Result<(), StoreError> {
        match self.list.get(index) {
            Some(member) => self.check_cluster(&member.endpoint, header),
            None => self.check_usable(),
        }
    }

    /// Whether a watch at this member should continue at another one.
    pub(super) fn should_leave(&self, index: usize) -> bool {
        let member = self.list.get(index);
        member.is_some_and(|member| member.is_down.load(Ordering::Relaxed)) && self.choose().is_some()
    }

    /// Whether a member belongs to the cluster of the first one that answered.
    pub(super) fn is_same_cluster(&self, header: Option<&ResponseHeader>) -> bool {
        let found = header.map_or(0, ResponseHeader::cluster_id);
        *self.cluster.get_or_init(|| found) == found
    }

    /// Checks an answer to a request that was sent when `before` was the newest known revision.
    fn check_answer(&self, endpoint: &str, answer: &impl Answer, before: u64) -> Result<(), StoreError> {
        self.check_cluster(endpoint, answer.header())?;
        let revision = revision_of(answer).0;
        if revision < before {
            self.fail(&format!(
                "etcd went back from revision {before} to {revision}: was an old snapshot restored without raising revisions?"
            ));
        }
        self.newest.fetch_max(revision, Ordering::AcqRel);
        self.check_usable()
    }

    /// Sends a linearizable read, again if it fails and time is left.
    pub(super) async fn read<T: Answer, F: Future<Output = Result<T, etcd_client::Error>> + Send>(
        &self,
        request: Request<'_>,
        call: impl Fn(Connection) -> F + Send + Sync,
    ) -> Result<Result<T, Failure>, StoreError> {
        let began = Instant::now();
        loop {
            self.check_usable()?;
            let Some((index, member)) = self.choose_any() else {
                return Ok(Err(Failure::NotSent("there is no member".to_owned())));
            };
            let before = self.newest.load(Ordering::Acquire);
            let left = self.read_deadline.saturating_sub(began.elapsed());
            let connection = sync::read(&member.connection).clone();
            let failure = match self.attempt(request, ATTEMPT.min(left), call(connection)).await {
                Ok(answer) => {
                    self.check_answer(&member.endpoint, &answer, before)?;
                    return Ok(Ok(answer));
                }
                Err(failure) => failure,
            };
            if !failure.is_transient() {
                return Ok(Err(failure));
            }
            if failure != Failure::Busy {
                self.note_failure(index, &failure.text());
            }
            if began.elapsed() + BACK_OFF >= self.read_deadline {
                return Ok(Err(failure));
            }
            sleep(BACK_OFF).await;
        }
    }

    /// Sends a write once; again only if it did not leave this process.
    pub(super) async fn write<T: Answer, F: Future<Output = Result<T, etcd_client::Error>> + Send>(
        &self,
        request: Request<'_>,
        call: impl Fn(Connection) -> F + Send + Sync,
    ) -> Result<Result<T, Failure>, StoreError> {
        let mut not_sent = Failure::NotSent("there is no member".to_owned());
        for _ in &self.list {
            self.check_usable()?;
            let Some((index, member)) = self.choose() else {
                let reason = self.outage().unwrap_or_else(|| not_sent.text());
                return Ok(Err(Failure::NotSent(reason)));
            };
            let before = self.newest.load(Ordering::Acquire);
            let connection = sync::read(&member.connection).clone();
            match self.attempt(request, self.write_deadline, call(connection)).await {
                Ok(answer) => {
                    self.check_answer(&member.endpoint, &answer, before)?;
                    return Ok(Ok(answer));
                }
                Err(failure @ Failure::NotSent(_)) => {
                    self.note_failure(index, &failure.text());
                    not_sent = failure;
                }
                Err(failure) => {
                    if let Failure::Doubtful(reason) = &failure {
                        self.note_failure(index, reason);
                    }
                    return Ok(Err(failure));
                }
            }
        }
        Ok(Err(not_sent))
    }

    async fn attempt<T>(
        &self,
        request: Request<'_>,
        limit: Duration,
        call: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Failure> {
        let watch = Stopwatch::start();
        let result = match timeout(limit, call).await {
            Ok(result) => result.map_err(|error| Failure::of(&error)),
            Err(_) => Err(Failure::Doubtful(format!("no answer within {limit:?}"))),
        };
        let Request {
            operation,
            group,
            resource,
        } = request;
        self.metrics
            .observe(operation, group, resource, watch.elapsed(), result.is_ok());
        result
    }
}

impl Member {
    /// Its connection for probes.
    pub(super) fn maintenance(&self) -> MaintenanceClient {
        sync::read(&self.connection).maintenance.clone()
    }
}
