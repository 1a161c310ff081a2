//! Leader election by a Lease: of several replicas only the holder of the Lease acts, and it stops before another
//! replica may acquire the Lease.
//!
//! ```text
//! follower ──lease free, or not renewed for its duration──▶ leader ──renewed every retry period──▶ leader
//!    ▲                                                       │
//!    └────────── not renewed within the renew deadline ──────┘
//! ```
//!
//! A follower measures the expiry of the Lease by its own clock, from when it observed the last change: clocks of
//! different machines are never compared.

use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::Clock;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::api::{Error, call};

/// The name of the Lease.
const LEASE: &str = "drydock-controller";

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
}

/// One candidate of the election.
pub struct Election {
    leases: Api<Lease>,
    identity: String,
    timing: ElectionTiming,
    clock: Arc<dyn Clock>,
    /// The last known Lease, and when its last change was observed.
    observed: Option<(Lease, Timestamp)>,
    /// When the last successful renewal began. Other candidates measure from a later time.
    last_renewal: Timestamp,
}

impl Election {
    /// A candidate for the Lease in this namespace of the host cluster. Its identity must be unique among the
    /// replicas.
    #[must_use]
    pub fn new(
        host: Client,
        namespace: &str,
        identity: String,
        timing: ElectionTiming,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            leases: Api::namespaced(host, namespace),
            identity,
            timing,
            clock,
            observed: None,
            last_renewal: Timestamp::MIN,
        }
    }

    /// Reads the Lease and acquires or renews it unless another candidate holds it.
    ///
    /// # Errors
    ///
    /// [`Error`] of a call. Whether the write was executed is then unknown.
    pub async fn try_acquire_or_renew(&mut self) -> Result<Leadership, Error> {
        let begun = self.clock.now();
        let Some(lease) = call(self.leases.get_opt(LEASE)).await? else {
            let created = self.held_lease(None);
            let lease = call(self.leases.create(&PostParams::default(), &created)).await?;
            return Ok(self.record_renewal(lease, begun));
        };
        let now = self.clock.now();
        let changed_at = match &self.observed {
            Some((known, at)) if known.spec == lease.spec => *at,
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
        let is_held = !holder.is_empty() && changed_at.checked_add(duration).is_ok_and(|end| end > now);
        if holder != self.identity && is_held {
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

    fn record_renewal(&mut self, lease: Lease, begun: Timestamp) -> Leadership {
        self.last_renewal = begun;
        self.observed = Some((lease, self.clock.now()));
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
        let Some((lease, _)) = self
            .observed
            .as_ref()
            .filter(|(lease, _)| holder(lease) == self.identity)
        else {
            return;
        };
        let mut released = lease.clone();
        if let Some(spec) = &mut released.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(self.clock.now()));
        }
        match self.replace(&released).await {
            Ok(_) => tracing::info!("released the lease"),
            Err(error) => tracing::debug!(%error, "releasing the lease failed"),
        }
    }

    /// Tries until this candidate holds the Lease; `false` when cancelled before.
    pub async fn acquire(&mut self, cancel: &CancellationToken) -> bool {
        let mut known_leader = None;
        loop {
            let leadership = tokio::select! {
                () = cancel.cancelled() => return false,
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
            let remaining = self.until_renew_deadline();
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
                tracing::error!("the lease was not renewed within the renew deadline");
                return LeadershipEnd::Lost;
            }
        }
    }

    /// The time left until the renew deadline.
    fn until_renew_deadline(&self) -> Duration {
        let elapsed = self.clock.now().duration_since(self.last_renewal);
        let elapsed = Duration::try_from(elapsed).unwrap_or_default();
        self.timing.renew_deadline.saturating_sub(elapsed)
    }
}

fn holder(lease: &Lease) -> &str {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{api_double, clock_at, failure, typed};
    use drydock_machinery::clock::ManualClock;
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

        fn candidate(&self, name: &str, clock: &Arc<ManualClock>) -> Election {
            Election::new(
                self.host.clone(),
                "drydock-system",
                name.to_owned(),
                TIMING,
                Arc::clone(clock) as Arc<dyn Clock>,
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

    #[tokio::test]
    async fn lease_is_acquired_only_after_it_was_not_renewed_for_its_duration() {
        let (api, clock) = (LeaseApi::new(), clock_at(0));
        let (mut a, mut b) = (api.candidate("a", &clock), api.candidate("b", &clock));
        assert_eq!(a.try_acquire_or_renew().await.unwrap(), Leadership::Leading);
        assert_eq!(b.try_acquire_or_renew().await.unwrap(), following("a"));
        clock.advance(Duration::from_secs(14));
        assert_eq!(b.try_acquire_or_renew().await.unwrap(), following("a"));
        assert_eq!(a.try_acquire_or_renew().await.unwrap(), Leadership::Leading);
        clock.advance(Duration::from_secs(14));
        assert_eq!(
            b.try_acquire_or_renew().await.unwrap(),
            following("a"),
            "a renewed"
        );
        clock.advance(Duration::from_secs(15));
        assert_eq!(b.try_acquire_or_renew().await.unwrap(), Leadership::Leading);
        assert_eq!(a.try_acquire_or_renew().await.unwrap(), following("b"));
        assert_eq!(api.stored().spec.unwrap().lease_transitions, Some(1));
    }

    #[tokio::test]
    async fn expiry_is_measured_by_the_followers_clock() {
        let (api, late) = (LeaseApi::new(), clock_at(0));
        let early = clock_at(1_000_000);
        let (mut a, mut b) = (api.candidate("a", &late), api.candidate("b", &early));
        a.try_acquire_or_renew().await.unwrap();
        assert_eq!(
            b.try_acquire_or_renew().await.unwrap(),
            following("a"),
            "its change was observed just now, whatever its renew time is"
        );
    }

    #[tokio::test]
    async fn replacing_a_changed_lease_is_a_conflict() {
        let (api, clock) = (LeaseApi::new(), clock_at(0));
        let mut a = api.candidate("a", &clock);
        a.try_acquire_or_renew().await.unwrap();
        let stale = a.observed.clone().unwrap().0;
        a.try_acquire_or_renew().await.unwrap();
        let error = a.replace(&stale).await.unwrap_err();
        assert!(error.is_conflict());
    }

    #[tokio::test]
    async fn released_lease_is_acquired_without_waiting() {
        let (api, clock) = (LeaseApi::new(), clock_at(0));
        let (mut a, mut b) = (api.candidate("a", &clock), api.candidate("b", &clock));
        a.try_acquire_or_renew().await.unwrap();
        b.try_acquire_or_renew().await.unwrap();
        a.release().await;
        assert_eq!(holder(&api.stored()), "");
        assert_eq!(b.try_acquire_or_renew().await.unwrap(), Leadership::Leading);
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_ends_before_the_lease_expires() {
        let (api, clock) = (LeaseApi::new(), clock_at(0));
        let mut a = api.candidate("a", &clock);
        let cancel = CancellationToken::new();
        assert!(a.acquire(&cancel).await);
        let start = tokio::time::Instant::now();
        api.state.lock().unwrap().is_unavailable = true;
        // Advances the clock together with the runtime's paused time.
        let follow = {
            let clock = Arc::clone(&clock);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    clock.advance(Duration::from_millis(500));
                }
            })
        };
        assert_eq!(a.renew_until_lost(&cancel).await, LeadershipEnd::Lost);
        let after = start.elapsed();
        assert!(
            after >= TIMING.renew_deadline && after < TIMING.lease_duration,
            "{after:?}"
        );
        follow.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn cancellation_ends_leadership_and_candidacy() {
        let (api, clock) = (LeaseApi::new(), clock_at(0));
        let mut a = api.candidate("a", &clock);
        let cancel = CancellationToken::new();
        assert!(a.acquire(&cancel).await);
        cancel.cancel();
        assert_eq!(a.renew_until_lost(&cancel).await, LeadershipEnd::Cancelled);
        let mut b = api.candidate("b", &clock);
        assert!(!b.acquire(&cancel).await);
    }
}
