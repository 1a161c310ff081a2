//! The eviction bridge: evictions by programs that know nothing of EvictionRequests become requests, so that the
//! interceptors of a pod act before it is evicted. Start at [`Bridge::respond`]; the rules are in [`decide`].
//!
//! ```text
//! kubectl drain ──eviction──▶ kube-apiserver ──review──▶ decide ──▶ passes: no interceptors, or all are done
//!       ▲                                                   │
//!       └─────────────── 429, Retry-After ◀─── request ◀────┘ waits
//! ```
//!
//! It is a validating webhook, served by every replica. What it cannot decide it answers with an error, and the
//! `failurePolicy` of the webhook says what then happens: as shipped, evictions go on as without the bridge.
//! [`temporary_requests`](crate::temporary_requests) withdraws requests for which nobody asks any more.

pub mod decide;
pub mod outages;
pub mod review;
pub mod shares;
pub mod stall;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictionrequest::{
    EVICTION_BRIDGE_ANNOTATION, EVICTION_BRIDGE_REQUESTER, EvictionRequest,
};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Body;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use crate::api::{Clients, Error, call};
use crate::context::Context;
use crate::evictioninterceptor::rules::{Matching, Rules};
use crate::evictionrequest::interceptors;
use crate::listener::Peer;
use crate::pod::Pod;
use crate::request_labels::BRIDGE_MANAGER;
use crate::temporary_requests::{Asked, Party, Target};
use crate::token_bucket::TokenBucket;

use decide::{Declared, Pass, Verdict, Wait, by_declaration, by_request, passes_anyway};
use outages::Outages;
use review::{Answer, Review};
use shares::Shares;
use stall::Stall;

/// Under which names the bridge requests evictions.
pub const PARTY: Party = Party {
    requester: EVICTION_BRIDGE_REQUESTER,
    manager: BRIDGE_MANAGER,
    annotation: EVICTION_BRIDGE_ANNOTATION,
};
/// The path that the webhook configuration names.
pub const PATH: &str = "/admit/evictions";
/// The deadline of a review: a little less than the two seconds that kube-apiserver waits.
const DEADLINE: Duration = Duration::from_millis(1800);
/// The largest review, in bytes. That of an eviction has some thousand, and more for a user of very many groups.
const MAX_BODY_BYTES: usize = 128 * 1024;
/// How many bodies are received at a time. Others wait for their turn until their deadline.
const MAX_BODIES: usize = 512;
/// The most time for the write of a request.
const WRITE_DEADLINE: Duration = Duration::from_secs(1);
/// The time before the deadline of a review in which nothing is written any more, to answer that it was not.
const ANSWER_TIME: Duration = Duration::from_millis(100);
/// How many reviews are answered at a time; others wait likewise.
const MAX_REVIEWS: usize = 512;
/// Writes of requests a second, and at once. Beyond that clients are told to try again.
const WRITES_PER_SECOND: f64 = 100.0;
const WRITES_AT_ONCE: f64 = 1000.0;
/// How long the evictions of a pod are refused while its request cannot be written. After that the webhook fails.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// How long watches may fail before a process with the bridge counts as not ready, so that the Service leaves it out. Longer
/// than its patience: who is asked first late in an outage is to find it as well.
pub const READY_GRACE: Duration = Duration::from_mins(2);
/// After which a client tries again when it could not be helped now.
const RETRY_SECONDS: u32 = 1;

/// What the bridge is configured with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The reserved names that interceptors may have.
    pub allowed: AllowedNames,
    /// The common names of client certificates that may post reviews; empty allows all that the client authority signed.
    /// `None` allows clients without a certificate.
    pub clients: Option<Vec<String>>,
    /// How long a request lives after somebody asked last.
    pub lifetime: Duration,
    /// How long a request lives after the descheduler asked, which does not ask again while the eviction is in progress.
    pub descheduler_lifetime: Duration,
}

/// The bridge.
pub struct Bridge {
    context: Arc<Context>,
    /// Clients that need no Lease.
    clients: Clients,
    rules: Arc<Rules>,
    options: Options,
    bodies: Shares,
    places: Shares,
    writes: TokenBucket,
    outages: Outages,
    stall: Stall,
    own_name: OnceCell<String>,
}

impl std::fmt::Debug for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bridge")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Why a review is not answered.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("a client certificate is required")]
    Unauthenticated,
    #[error("the client certificate has another name")]
    Forbidden,
    #[error("the body could not be read")]
    Body,
    #[error(transparent)]
    Invalid(#[from] review::InvalidReview),
    #[error("the initial lists are not complete")]
    NotReady,
    #[error("no answer within {} ms", DEADLINE.as_millis())]
    Late,
    #[error("the host could not be asked: {0}")]
    Host(#[source] Error),
    #[error("the eviction request could not be written: {0}")]
    Write(#[source] Error),
    #[error("the eviction request is deleted, and has been held by its finalizers for {} s", PATIENCE.as_secs())]
    Held,
}

impl Failure {
    /// Whether the client has sent what cannot be answered. Strangers must not fill the log.
    const fn is_by_client(&self) -> bool {
        matches!(
            self,
            Self::Unauthenticated | Self::Forbidden | Self::Body | Self::Invalid(_)
        )
    }

    const fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Body | Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::NotReady => StatusCode::SERVICE_UNAVAILABLE,
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
            Self::Host(_) | Self::Write(_) | Self::Held => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl Bridge {
    /// A bridge. `clients` need no Lease.
    #[must_use]
    pub fn new(context: Arc<Context>, clients: Clients, rules: Arc<Rules>, options: Options) -> Self {
        Self {
            writes: TokenBucket::new(WRITES_PER_SECOND, WRITES_AT_ONCE, context.clock.now()),
            context,
            clients,
            rules,
            options,
            bodies: Shares::new(MAX_BODIES),
            places: Shares::new(MAX_REVIEWS),
            outages: Outages::new(PATIENCE),
            stall: Stall::default(),
            own_name: OnceCell::new(),
        }
    }

    /// Answers a request for [`PATH`].
    pub async fn respond<B>(&self, request: Request<B>, peer: &Peer) -> Response<Full<Bytes>>
    where
        B: Body<Data: Send, Error: std::error::Error + Send + Sync + 'static> + Send,
    {
        if request.method() != Method::POST {
            return response(StatusCode::METHOD_NOT_ALLOWED, "only POST\n".to_owned());
        }
        let began = Instant::now();
        let answered = match self.admits(peer) {
            Ok(()) => {
                let deadline = began + DEADLINE;
                self.read_and_answer(request.into_body(), peer.address, deadline)
                    .await
            }
            Err(failure) => Err(failure),
        };
        let metrics = &self.context.metrics;
        match answered {
            Ok((outcome, text)) => {
                metrics.count_review(outcome, began.elapsed());
                response(StatusCode::OK, text)
            }
            Err(failure) => {
                metrics.count_review("failed", began.elapsed());
                if failure.is_by_client() {
                    tracing::debug!(error = %failure, "a review was refused");
                } else {
                    tracing::warn!(error = %failure, "an eviction could not be reviewed");
                }
                response(failure.status(), format!("{failure}\n"))
            }
        }
    }

    /// Whether the client may post reviews.
    fn admits(&self, peer: &Peer) -> Result<(), Failure> {
        let Some(names) = &self.options.clients else {
            return Ok(());
        };
        match &peer.certificate_name {
            None => Err(Failure::Unauthenticated),
            Some(name) if names.is_empty() || names.contains(name) => Ok(()),
            Some(_) => Err(Failure::Forbidden),
        }
    }

    /// A client that sends slowly takes a place among those that send, and none among those that are answered.
    async fn read_and_answer<B>(
        &self,
        body: B,
        address: IpAddr,
        deadline: Instant,
    ) -> Result<(&'static str, String), Failure>
    where
        B: Body<Data: Send, Error: std::error::Error + Send + Sync + 'static> + Send,
    {
        let read = async {
            let _reading = self.bodies.take(address).await;
            let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
            let body = body.map_err(|_| Failure::Body)?.to_bytes();
            Ok::<_, Failure>(review::decode(&body)?)
        };
        let review = timeout_at(deadline, read).await.unwrap_or(Err(Failure::Late))?;
        let answered = async {
            let _place = self.places.take(address).await;
            self.answer_until(deadline, &review).await
        };
        let answered = timeout_at(deadline, answered).await;
        let (outcome, answer) = answered.unwrap_or_else(|_| self.answer_late(&review))?;
        Ok((outcome, review::encode(&review.uid, &answer)))
    }

    /// The answer to a review whose deadline has come. The pod may have interceptors, so that its eviction is refused as long as
    /// it is while its request cannot be written.
    fn answer_late(&self, review: &Review) -> Result<(&'static str, Answer), Failure> {
        let pod = self.context.stores.pods.get(&review.namespace, &review.pod);
        let pod = pod.filter(|pod| passes_anyway(pod, review.precondition.as_deref()).is_none());
        let now = self.context.clock.now();
        if review.is_dry_run || !pod.is_some_and(|pod| self.outages.is_bearable(pod.uid(), now)) {
            return Err(Failure::Late);
        }
        let message = format!(
            "whether pod {}/{} can be evicted was not found out in time",
            review.namespace, review.pod
        );
        Ok(("refused", later(message)))
    }

    /// The outcome, for metrics, and the answer to one review. Its write ends before the deadline; the caller ends the rest.
    async fn answer_until(
        &self,
        deadline: Instant,
        review: &Review,
    ) -> Result<(&'static str, Answer), Failure> {
        if !self.context.stores.unsynced().is_empty() {
            return Err(Failure::NotReady);
        }
        let passed = |pass: Pass| Ok((pass.outcome(), Answer::Allow { warning: None }));
        if self.own_name().await.is_some_and(|own| *own == review.user) {
            return passed(Pass::Own);
        }
        let Some(pod) = self.pod(review).await? else {
            return passed(Pass::Absent);
        };
        if let Some(pass) = passes_anyway(&pod, review.precondition.as_deref()) {
            return passed(pass);
        }
        let request = self.context.stores.requests.get(pod.namespace(), pod.uid());
        let verdict = match request.as_deref().and_then(by_request) {
            Some(verdict) => verdict,
            None => by_declaration(self.declared(&pod).await?),
        };
        match verdict {
            Verdict::Pass(pass) => {
                self.outages.over(pod.uid());
                passed(pass)
            }
            Verdict::Refuse(excess) => {
                let message = format!(
                    "pod {}/{} cannot be requested to leave, since {excess}",
                    pod.namespace(),
                    pod.name()
                );
                Ok(("refused", later(message)))
            }
            Verdict::Wait(wait) if review.is_dry_run => {
                let names = wait.pending.join(", ");
                let warning = format!("interceptors act before the pod is evicted: {names}");
                let warning = Some(warning);
                Ok(("dry_run", Answer::Allow { warning }))
            }
            Verdict::Wait(wait) => self.wait(deadline, review, &pod, request.as_deref(), &wait).await,
        }
    }

    /// The user that this process is for the host. Where that is unknown, its evictions are judged like those of others:
    /// they come when the interceptors are done.
    async fn own_name(&self) -> Option<&String> {
        let ask = async || {
            let reviews: Api<SelfSubjectReview> = Api::all(self.clients.host.clone());
            let review = SelfSubjectReview::default();
            let review = call(reviews.create(&PostParams::default(), &review)).await?;
            let user = review.status.and_then(|status| status.user_info);
            Ok::<_, Error>(user.and_then(|user| user.username).unwrap_or_default())
        };
        let name = self.own_name.get_or_try_init(ask).await;
        name.inspect_err(|error| tracing::debug!(%error, "the own name is unknown"))
            .ok()
    }

    /// The pod of a review. The host is asked where the watch may be behind it.
    async fn pod(&self, review: &Review) -> Result<Option<Arc<Pod>>, Failure> {
        let known = self.context.stores.pods.get(&review.namespace, &review.pod);
        if let Some(pod) = &known
            && passes_anyway(pod, review.precondition.as_deref()).is_none()
        {
            return Ok(known);
        }
        let pods: Api<Pod> = Api::namespaced(self.clients.host.clone(), &review.namespace);
        let found = call(pods.get_opt(&review.pod)).await.map_err(Failure::Host)?;
        Ok(found.map(Arc::new))
    }

    /// The interceptors of a pod whose request has not ordered them.
    async fn declared(&self, pod: &Pod) -> Result<Declared, Failure> {
        let matching = self
            .rules
            .matching(&self.context.stores, &self.clients.host, pod)
            .await
            .map_err(Failure::Host)?;
        Ok(match matching {
            Matching::Known(rules) => match interceptors::order(pod, &rules, &self.options.allowed) {
                Ok(order) => Declared::Known(order.names),
                Err(excess) => Declared::TooMany(excess),
            },
            Matching::Unknown(_) => Declared::Unknown,
        })
    }

    /// Makes sure that the pod is requested to leave, and answers that it will.
    async fn wait(
        &self,
        deadline: Instant,
        review: &Review,
        pod: &Pod,
        request: Option<&EvictionRequest>,
        wait: &Wait,
    ) -> Result<(&'static str, Answer), Failure> {
        let now = self.context.clock.now();
        let name = format!("{}/{}", pod.namespace(), pod.name());
        let lifetime = self.options.lifetime_of(review);
        if needs_write(request, now, lifetime) {
            let deleted = request.and_then(|request| request.metadata.deletion_timestamp.as_ref());
            if let Some(deleted) = deleted {
                // Nobody can create the next one before it is gone, and a finalizer may hold it for ever.
                if now.duration_since(deleted.0) >= PATIENCE {
                    return Err(Failure::Held);
                }
                let message = format!("the eviction request of pod {name} is being deleted");
                return Ok(("refused", later(message)));
            }
            let is_stalled = self.stall.is_on();
            if !is_stalled && !self.writes.take(now) {
                let message = format!("too many evictions begin at a time, among them that of pod {name}");
                return Ok(("throttled", later(message)));
            }
            let asked = Asked::now(&review.user, now, lifetime);
            let ended = request.filter(|request| request.is_finished());
            let target = Target::of(pod, &self.context.labels);
            let write = PARTY.request(&self.clients.drydock, &target, &asked, ended);
            let written = if is_stalled {
                // So long the write that began the stall was waited for.
                Err(Error::Timeout(WRITE_DEADLINE))
            } else {
                self.write_until(deadline, write).await
            };
            if let Err(error) = self.note(written, pod.uid(), now)? {
                let message =
                    format!("the eviction of pod {name} cannot be requested at the moment: {error}");
                return Ok(("refused", later(message)));
            }
            let write = match (request, ended) {
                (None, _) => "created",
                (Some(_), Some(_)) => "replaced",
                (Some(_), None) => "renewed",
            };
            self.context.metrics.count_bridge_request(write);
            if write != "renewed" {
                self.context.metrics.count_evacuation(PARTY.requester);
            }
        } else {
            self.outages.over(pod.uid());
        }
        let answer = Answer::Later {
            message: wait.message(&name),
            // Clients of Kubernetes repeat a call that names a delay ten times before they return its error. The
            // descheduler evicts one pod after the other, and takes this answer for a beginning.
            retry_after_seconds: if review.is_by_descheduler {
                0
            } else {
                wait.retry_after_seconds(now)
            },
        };
        Ok(("waiting", answer))
    }

    /// Writes, unless no time is left for it.
    async fn write_until(
        &self,
        deadline: Instant,
        write: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let now = Instant::now();
        let until = deadline.checked_sub(ANSWER_TIME).unwrap_or(now);
        if until <= now {
            return Err(Error::Timeout(Duration::ZERO));
        }
        let until = until.min(now + WRITE_DEADLINE);
        if let Ok(written) = timeout_at(until, write).await {
            self.stall.end();
            return written;
        }
        let waited = until.duration_since(now);
        if waited == WRITE_DEADLINE {
            self.stall.begin();
        }
        Err(Error::Timeout(waited))
    }

    /// Judges a write: done, or refused for now. While writes fail, evictions are refused for a minute, so that a moment
    /// without the server skips no interceptor; after that the webhook fails, so that nothing is held up for ever.
    fn note(
        &self,
        written: Result<(), Error>,
        uid: &str,
        now: Timestamp,
    ) -> Result<Result<(), Error>, Failure> {
        let Err(error) = written else {
            self.outages.over(uid);
            return Ok(Ok(()));
        };
        let is_answer = error.is_conflict() || error.status().is_some_and(|status| status.code == 429);
        if is_answer || self.outages.is_bearable(uid, now) {
            return Ok(Err(error));
        }
        Err(Failure::Write(error))
    }
}

impl Options {
    fn lifetime_of(&self, review: &Review) -> Duration {
        if review.is_by_descheduler {
            self.descheduler_lifetime
        } else {
            self.lifetime
        }
    }
}

/// Whether the request must be created, replaced, joined or renewed. Nobody can join while its cancellation is forbidden,
/// and nobody needs to.
fn needs_write(request: Option<&EvictionRequest>, now: Timestamp, lifetime: Duration) -> bool {
    let Some(request) = request else { return true };
    if request.is_finished() {
        return true;
    }
    let asked = Asked::of(request, PARTY).filter(|_| PARTY.is_requester(request));
    let is_fresh = asked.is_some_and(|asked| asked.is_fresh(now, lifetime));
    !is_fresh && !request.is_cancellation_forbidden()
}

fn later(message: String) -> Answer {
    Answer::Later {
        message,
        retry_after_seconds: RETRY_SECONDS,
    }
}

fn response(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let content_type = if status == StatusCode::OK {
        "application/json"
    } else {
        "text/plain; charset=utf-8"
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let content_type = header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests;
