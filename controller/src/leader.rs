//! Leader election by a Lease: of several replicas only the holder of the Lease acts, and it stops before another
//! replica may acquire the Lease.
//!
//! ```text
//! follower ──lease free, or not renewed for its duration──▶ leader ──renewed every retry period──▶ leader
//!    ▲                                                       │
//!    └────────── not renewed within the renew deadline ──────┘
//! ```
//!
//! A process that cannot act is no candidate, and a leader that can act no more gives the Lease up.
//!
//! A follower measures the expiry of the Lease from when it observed the last change: clocks of different machines are
//! never compared. All durations are monotonic, so setting a clock changes nothing. Each renewal opens the
//! [`LeaseFence`] for the renew deadline, counted from before the renewal was sent.

use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::Clock;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{Error, call};
use crate::lease_fence::LeaseFence;

/// The name of the Lease.
const LEASE: &str = "drydock-controller";
/// How long an attempt to acquire the Lease may go on after shutdown was requested.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The durations of leader election, named as in client-go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElectionTiming {
    /// How long followers wait without a renewal before they acquire the Lease.
    pub lease_duration: Duration,
    /// How long a leader acts without a renewal. Shorter than the lease duration.
    pub renew_deadline: Duration,
    /// The interval between attempts to acquire or renew. Shorter than the renew deadline.
    pub retry_period: Duration,
}

/// The result of one attempt to acquire or renew the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leadership {
    /// This candidate holds the Lease.
    Leading,
    /// Another candidate holds it.
    Following {
        /// The identity of the holder.
        leader: String,
    },
}

/// Why leadership ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeadershipEnd {
    /// Shutdown was requested.
    Cancelled,
    /// The Lease could not be renewed in time, or another candidate acquired it.
    Lost,
    /// This process cannot act any more, and gives up the Lease.
    GivenUp,
}

/// One candidate of the election.
pub struct Election {
    leases: Api<Lease>,
    identity: String,
    timing: ElectionTiming,
    /// For the times in the Lease, which are only shown.
    clock: Arc<dyn Clock>,
    fence: Arc<LeaseFence>,
    /// The last known Lease, and when its last change was observed.
    observed: Option<(Lease, Instant)>,
    /// When the last successful renewal began. Other candidates measure from a later time.
    last_renewal: Option<Instant>,
}

impl Election {
    /// A candidate for the Lease in this namespace of the host cluster. Its identity must be unique among the
    /// replicas. `fence` is open while it holds the Lease; the client must not be subject to it.
    #[must_use]
    pub fn new(
        host: Client,
        namespace: &str,
        identity: String,
        timing: ElectionTiming,
        clock: Arc<dyn Clock>,
        fence: Arc<LeaseFence>,
    ) -> Self {
        Self {
            leases: Api::namespaced(host, namespace),
            identity,
            timing,
            clock,
            fence,
            observed: None,
            last_renewal: None,
        }
    }

    /// Reads the Lease and acquires or renews it unless another candidate holds it.
    ///
    /// # Errors
    ///
    /// [`Error`] of a call. Whether the write was executed is then unknown.
    pub async fn try_acquire_or_renew(&mut self) -> Result<Leadership, Error> {
        let begun = Instant::now();
        let Some(lease) = call(self.leases.get_opt(LEASE)).await? else {
            let created = self.held_lease(None);
            let lease = call(self.leases.create(&PostParams::default(), &created)).await?;
            return Ok(self.record_renewal(lease, begun));
        };
        let now = Instant::now();
        let changed_at = match &self.observed {
            Some((known, at)) if known.metadata.resource_version == lease.metadata.resource_version => *at,
            _ => now,
        };
        self.observed = Some((lease.clone(), changed_at));
        let holder = holder(&lease);
        let duration = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(self.timing.lease_duration, Duration::from_secs);
        let is_held = !holder.is_empty() && now.duration_since(changed_at) < duration;
        if holder != self.identity && is_held {
            self.fence.close();
            return Ok(Leadership::Following {
                leader: holder.to_owned(),
            });
        }
        let lease = self.replace(&self.held_lease(Some(&lease))).await?;
        Ok(self.record_renewal(lease, begun))
    }

    /// Replaces the Lease. Fails with a conflict if its resource version has changed.
    async fn replace(&self, lease: &Lease) -> Result<Lease, Error> {
        call(self.leases.replace(LEASE, &PostParams::default(), lease)).await
    }

    fn record_renewal(&mut self, lease: Lease, begun: Instant) -> Leadership {
        self.last_renewal = Some(begun);
        self.fence.open_until(begun + self.timing.renew_deadline);
        self.observed = Some((lease, Instant::now()));
        Leadership::Leading
    }

    /// The Lease as this candidate writes it, from the stored one.
    fn held_lease(&self, before: Option<&Lease>) -> Lease {
        let now = MicroTime(self.clock.now());
        let old = before.and_then(|lease| lease.spec.as_ref());
        let is_renewal = old.is_some_and(|spec| spec.holder_identity.as_deref() == Some(&self.identity));
        let transitions = old.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        Lease {
            metadata: before.map_or_else(
                || ObjectMeta {
                    name: Some(LEASE.to_owned()),
                    ..ObjectMeta::default()
                },
                |lease| lease.metadata.clone(),
            ),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(self.timing.lease_duration.as_secs()).ok(),
                acquire_time: old
                    .and_then(|spec| spec.acquire_time.clone())
                    .filter(|_| is_renewal)
                    .or(Some(now.clone())),
                renew_time: Some(now),
                lease_transitions: Some(
                    transitions.saturating_add(i32::from(before.is_some() && !is_renewal)),
                ),
                ..old.cloned().unwrap_or_default()
            }),
        }
    }

    /// Clears the holder of the Lease, if it is this candidate, so that others need not wait for its expiry.
    pub async fn release(self) {
        self.fence.close();
        let Some((lease, _)) = &self.observed else { return };
        match self.clear_holder(lease.clone()).await {
            // A renewal that was dropped on the way may have been written.
            Err(error) if error.is_conflict() => {}
            ended => return log_release(ended),
        }
        log_release(match call(self.leases.get(LEASE)).await {
            Ok(lease) => self.clear_holder(lease).await,
            Err(error) => Err(error),
        });
    }

    /// Clears the holder of the Lease if it is this candidate; returns whether it was.
    async fn clear_holder(&self, mut lease: Lease) -> Result<bool, Error> {
        if holder(&lease) != self.identity {
            return Ok(false);
        }
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(self.clock.now()));
        }
        self.replace(&lease).await.map(|_| true)
    }

    /// Tries until this candidate holds the Lease; `false` when cancelled before. It does not try while `why_not` names a
    /// reason why this process could not act. An attempt is not dropped on the way: if it has written the Lease, others would
    /// wait until that expires, since nobody would release it.
    pub async fn acquire(
        &mut self,
        why_not: impl Fn() -> Option<String>,
        cancel: &CancellationToken,
    ) -> bool {
        let mut known_leader = None;
        let mut is_candidate = true;
        loop {
            let reason = why_not();
            let is_able = reason.is_none();
            match (reason, is_candidate) {
                (Some(reason), true) => tracing::warn!(reason, "not a candidate for the lease"),
                (None, false) => tracing::info!("a candidate for the lease again"),
                _ => {}
            }
            is_candidate = is_able;
            if !is_able {
                tokio::select! {
                    () = cancel.cancelled() => return false,
                    () = tokio::time::sleep(self.timing.retry_period) => continue,
                }
            }
            if cancel.is_cancelled() {
                return false;
            }
            let given_up = async {
                cancel.cancelled().await;
                tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
            };
            let leadership = tokio::select! {
                () = given_up => return false,
                leadership = self.try_acquire_or_renew() => leadership,
            };
            match leadership {
                Ok(Leadership::Leading) => return true,
                Ok(Leadership::Following { leader }) => {
                    if known_leader.as_ref() != Some(&leader) {
                        tracing::info!(leader, "another replica is the leader");
                        known_leader = Some(leader);
                    }
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => tracing::warn!(%error, "acquiring the lease failed"),
            }
            // Jitter keeps candidates that started together from conflicting at every attempt.
            let pause = self.timing.retry_period.mul_f64(1.0 + 0.2 * fastrand::f64());
            tokio::select! {
                () = cancel.cancelled() => return false,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Renews the Lease until leadership is lost or `cancel` is cancelled. After a loss all work must stop at once:
    /// another candidate may acquire the Lease as soon as its duration has passed.
    pub async fn renew_until_lost(&mut self, cancel: &CancellationToken) -> LeadershipEnd {
        loop {
            tokio::select! {
                () = cancel.cancelled() => return LeadershipEnd::Cancelled,
                () = tokio::time::sleep(self.timing.retry_period) => {}
            }
            // Zero after the process was stopped for long: another candidate may act already.
            let remaining = self.until_renew_deadline();
            if remaining.is_zero() {
                return self.lose();
            }
            let leadership = tokio::select! {
                () = cancel.cancelled() => return LeadershipEnd::Cancelled,
                leadership = tokio::time::timeout(remaining, self.try_acquire_or_renew()) => leadership,
            };
            match leadership {
                Ok(Ok(Leadership::Leading)) | Err(_) => {}
                Ok(Ok(Leadership::Following { leader })) => {
                    tracing::error!(leader, "another replica acquired the lease");
                    return LeadershipEnd::Lost;
                }
                Ok(Err(error)) => tracing::warn!(%error, "renewing the lease failed"),
            }
            if self.until_renew_deadline().is_zero() {
                return self.lose();
            }
        }
    }

    fn lose(&self) -> LeadershipEnd {
        self.fence.close();
        tracing::error!("the lease was not renewed within the renew deadline");
        LeadershipEnd::Lost
    }

    /// The time left until the renew deadline.
    fn until_renew_deadline(&self) -> Duration {
        let elapsed = self.last_renewal.map(|renewal| renewal.elapsed());
        elapsed.map_or(Duration::ZERO, |elapsed| {
            self.timing.renew_deadline.saturating_sub(elapsed)
        })
    }
}

fn holder(lease: &Lease) -> &str {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref())
        .unwrap_or_default()
}

fn log_release(released: Result<bool, Error>) {
    match released {
        Ok(true) => tracing::info!("released the lease"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, "releasing the lease failed: others wait until it expires"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{api_double, clock_at, failure, silent_api, typed};
    use serde_json::{Value, json};
    use std::sync::Mutex;

    /// An API that stores one Lease, with optimistic locking.
    #[derive(Clone)]
    struct LeaseApi {
        host: Client,
        state: Arc<Mutex<LeaseApiState>>,
    }

    #[derive(Default)]
    struct LeaseApiState {
        lease: Option<Value>,
        version: u64,
        is_unavailable: bool,
    }

    impl LeaseApi {
        fn new() -> Self {
            let state = Arc::new(Mutex::new(LeaseApiState::default()));
            let shared = Arc::clone(&state);
            let (clients, _) = api_double(move |request| {
                let mut state = shared.lock().unwrap();
                if state.is_unavailable {
                    return failure(503, "ServiceUnavailable", "unavailable", json!({}));
                }
                if request.method != "GET" {
                    let stored = state
                        .lease
                        .as_ref()
                        .map(|lease| &lease["metadata"]["resourceVersion"]);
                    if stored.unwrap_or(&Value::Null) != &request.body["metadata"]["resourceVersion"] {
                        return failure(409, "Conflict", "modified", json!({}));
                    }
                    state.version += 1;
                    let mut lease = request.body.clone();
                    lease["metadata"]["resourceVersion"] = json!(state.version.to_string());
                    state.lease = Some(lease);
                }
                match &state.lease {
                    Some(lease) => (200, lease.clone()),
                    None => failure(404, "NotFound", "not found", json!({})),
                }
            });
            Self {
                host: clients.host,
                state,
            }
        }

        fn stored(&self) -> Lease {
            typed(self.state.lock().unwrap().lease.clone().unwrap())
        }

        /// A candidate; its wall clock stands still, since only the times shown in the Lease come from it.
        fn candidate(&self, name: &str) -> Election {
            Election::new(
                self.host.clone(),
                "drydock-system",
                name.to_owned(),
                TIMING,
                clock_at(0),
                Arc::new(LeaseFence::closed()),
            )
        }
    }

    const TIMING: ElectionTiming = ElectionTiming {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };

    fn following(leader: &str) -> Leadership {
        Leadership::Following {
            leader: leader.to_owned(),
        }
    }

    async fn advance(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn lease_is_acquired_only_after_it_was_not_renewed_for_its_duration() {
        let api = LeaseApi::new();
        let (mut a, mut b) = (api.candidate("a"), api.candidate("b"));
        assert_eq!(a.try_acquire_or_renew().await.unwrap(), Leadership::Leading);
        assert_eq!(b.try_acquire_or_renew().await.unwrap(), following("a"));
        advance(14).await;
        assert_eq!(b.try_acquire_or_renew().await.unwrap(), following("a"));
        assert_eq!(a.try_acquire_or_renew().await.unwrap(), Leadership::Leading);
        advance(14).await;
        assert_eq!(
            b.try_acquire_or_renew().await.unwrap(),
            following("a"),
            "a renewed, which b observes now"
        );
        advance(15).await;
        assert!(!a.fence.is_open());
        assert_eq!(b.try_acquire_or_renew().await.unwrap(), Leadership::Leading);
        assert_eq!(a.try_acquire_or_renew().await.unwrap(), following("b"));
        assert_eq!(api.stored().spec.unwrap().lease_transitions, Some(1));
    }

    #[tokio::test]
    async fn replacing_a_changed_lease_is_a_conflict() {
        let api = LeaseApi::new();
        let mut a = api.candidate("a");
        a.try_acquire_or_renew().await.unwrap();
        let stale = a.observed.clone().unwrap().0;
        api.candidate("a").try_acquire_or_renew().await.unwrap();
        let error = a.replace(&stale).await.unwrap_err();
        assert!(error.is_conflict());
    }

    #[tokio::test]
    async fn released_lease_is_acquired_without_waiting() {
        let api = LeaseApi::new();
        let (mut a, mut b) = (api.candidate("a"), api.candidate("b"));
        a.try_acquire_or_renew().await.unwrap();
        b.try_acquire_or_renew().await.unwrap();
        let fence = Arc::clone(&a.fence);
        assert!(fence.is_open());
        a.release().await;
        assert!(!fence.is_open());
        assert_eq!(holder(&api.stored()), "");
        assert_eq!(b.try_acquire_or_renew().await.unwrap(), Leadership::Leading);
    }

    #[tokio::test]
    async fn lease_is_released_although_a_renewal_was_dropped_on_the_way() {
        let api = LeaseApi::new();
        let mut a = api.candidate("a");
        a.try_acquire_or_renew().await.unwrap();
        // What `a` has not heard of.
        api.candidate("a").try_acquire_or_renew().await.unwrap();
        a.release().await;
        assert_eq!(holder(&api.stored()), "");
    }

    #[tokio::test(start_paused = true)]
    async fn lease_that_is_acquired_during_shutdown_is_released() {
        let api = LeaseApi::new();
        let mut a = api.candidate("a");
        let cancel = CancellationToken::new();
        {
            let acquiring = a.acquire(|| None, &cancel);
            tokio::pin!(acquiring);
            assert!(futures_util::poll!(&mut acquiring).is_pending());
            cancel.cancel();
            assert!(acquiring.await);
        }
        assert_eq!(a.renew_until_lost(&cancel).await, LeadershipEnd::Cancelled);
        a.release().await;
        assert_eq!(holder(&api.stored()), "");
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_does_not_wait_long_for_an_api_that_does_not_answer() {
        let (host, _) = silent_api();
        let mut a = LeaseApi {
            host,
            state: Arc::default(),
        }
        .candidate("a");
        let cancel = CancellationToken::new();
        let started = Instant::now();
        let acquiring = a.acquire(|| None, &cancel);
        tokio::pin!(acquiring);
        assert!(futures_util::poll!(&mut acquiring).is_pending());
        cancel.cancel();
        assert!(!acquiring.await);
        assert_eq!(started.elapsed(), SHUTDOWN_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_ends_before_the_lease_expires() {
        let api = LeaseApi::new();
        let mut a = api.candidate("a");
        let cancel = CancellationToken::new();
        assert!(a.acquire(|| None, &cancel).await);
        let start = Instant::now();
        api.state.lock().unwrap().is_unavailable = true;
        assert_eq!(a.renew_until_lost(&cancel).await, LeadershipEnd::Lost);
        let after = start.elapsed();
        assert!(
            after >= TIMING.renew_deadline && after < TIMING.lease_duration,
            "{after:?}"
        );
        assert!(!a.fence.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_was_stopped_for_longer_than_the_lease_neither_writes_nor_renews() {
        let api = LeaseApi::new();
        let (mut a, mut b) = (api.candidate("a"), api.candidate("b"));
        let cancel = CancellationToken::new();
        assert!(a.acquire(|| None, &cancel).await);
        assert_eq!(b.try_acquire_or_renew().await.unwrap(), following("a"));
        let fence = Arc::clone(&a.fence);
        let stopped = {
            let renewing = a.renew_until_lost(&cancel);
            tokio::pin!(renewing);
            // Starts the pause between renewals; then the process is stopped, and `renewing` is not polled.
            assert!(futures_util::poll!(&mut renewing).is_pending());
            advance(20).await;
            assert!(!fence.is_open(), "nothing is written before the loss is noticed");
            assert_eq!(b.try_acquire_or_renew().await.unwrap(), Leadership::Leading);
            assert!(b.fence.is_open());
            renewing.await
        };
        assert_eq!(stopped, LeadershipEnd::Lost);
        assert_eq!(holder(&api.stored()), "b");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_renewals_count_from_when_they_were_sent() {
        let api = LeaseApi::new();
        let mut a = api.candidate("a");
        let fence = Arc::clone(&a.fence);
        let renewing = a.try_acquire_or_renew();
        tokio::pin!(renewing);
        assert!(futures_util::poll!(&mut renewing).is_pending());
        advance(9).await;
        assert_eq!(renewing.await.unwrap(), Leadership::Leading);
        assert!(fence.is_open());
        advance(1).await;
        assert!(!fence.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_cannot_act_is_no_candidate() {
        let api = LeaseApi::new();
        let mut a = api.candidate("a");
        let cancel = CancellationToken::new();
        let able_from = Instant::now() + Duration::from_mins(1);
        let why_not = || (Instant::now() < able_from).then(|| "a watch fails".to_owned());
        assert!(a.acquire(why_not, &cancel).await);
        assert!(Instant::now() >= able_from);
        cancel.cancel();
        let mut b = api.candidate("b");
        assert!(!b.acquire(|| Some("a watch fails".to_owned()), &cancel).await);
    }

    #[tokio::test(start_paused = true)]
    async fn cancellation_ends_leadership_and_candidacy() {
        let api = LeaseApi::new();
        let mut a = api.candidate("a");
        let cancel = CancellationToken::new();
        assert!(a.acquire(|| None, &cancel).await);
        cancel.cancel();
        assert_eq!(a.renew_until_lost(&cancel).await, LeadershipEnd::Cancelled);
        let mut b = api.candidate("b");
        assert!(!b.acquire(|| None, &cancel).await);
    }
}
