//! Who acts? Of several processes the one that holds the Lease. It stops acting before another may begin.
//!
//! ```text
//! follow ──lease free, or not renewed for its duration──▶ lead ──renewed every retry period──▶ lead
//!    ▲                                                     │
//!    └──────── not renewed within the renew deadline ──────┘
//! ```
//!
//! Whether another's lease has run out is measured by the own clock, from when its last change was seen: clocks of
//! different machines are never compared.

use std::future::Future;
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
pub const LEASE: &str = "drydock-controller";

/// How patient leaders and followers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long followers wait before they take over.
    pub lease_duration: Duration,
    /// How long a leader that cannot renew goes on. Shorter than the lease.
    pub renew_deadline: Duration,
    /// How often both try. Shorter than the renew deadline.
    pub retry_period: Duration,
}

/// Where the Lease is kept.
pub trait LeaseStore: Send + Sync {
    /// The Lease, if there is one.
    fn get(&self) -> impl Future<Output = Result<Option<Lease>, Error>> + Send;
    /// Makes it. Fails with a conflict if it exists.
    fn create(&self, lease: &Lease) -> impl Future<Output = Result<Lease, Error>> + Send;
    /// Replaces it. Fails with a conflict if it is not as it was seen.
    fn replace(&self, lease: &Lease) -> impl Future<Output = Result<Lease, Error>> + Send;
}

/// The Lease on the host.
pub struct HostLease(Api<Lease>);

impl std::fmt::Debug for HostLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostLease")
    }
}

impl HostLease {
    /// The Lease in that namespace.
    #[must_use]
    pub fn new(host: Client, namespace: &str) -> Self {
        Self(Api::namespaced(host, namespace))
    }
}

impl LeaseStore for HostLease {
    async fn get(&self) -> Result<Option<Lease>, Error> {
        call(self.0.get_opt(LEASE)).await
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, Error> {
        call(self.0.create(&PostParams::default(), lease)).await
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, Error> {
        call(self.0.replace(LEASE, &PostParams::default(), lease)).await
    }
}

/// What one look at the Lease came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The Lease is ours until somebody else may take it.
    Leading,
    /// Somebody else leads.
    Following {
        /// Who.
        leader: String,
    },
}

/// One candidate.
#[derive(Debug)]
pub struct Election<S> {
    store: S,
    identity: String,
    timing: Timing,
    clock: Arc<dyn Clock>,
    observed: Option<(Lease, Timestamp)>,
    /// When the last renewal that succeeded was begun: others measure from later.
    renewed: Timestamp,
}

impl<S: LeaseStore> Election<S> {
    /// A candidate of that name, which must be its own.
    #[must_use]
    pub fn new(store: S, identity: String, timing: Timing, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            identity,
            timing,
            clock,
            observed: None,
            renewed: Timestamp::MIN,
        }
    }

    /// Looks at the Lease, and takes or renews it where it may.
    ///
    /// # Errors
    ///
    /// What became of the calls. The standing is unknown then.
    pub async fn stand(&mut self) -> Result<Standing, Error> {
        let begun = self.clock.now();
        let Some(lease) = self.store.get().await? else {
            let lease = self.store.create(&self.lease(None)).await?;
            return Ok(self.lead(lease, begun));
        };
        let now = self.clock.now();
        let seen = match &self.observed {
            Some((known, at)) if known.spec == lease.spec => *at,
            _ => now,
        };
        self.observed = Some((lease.clone(), seen));
        let holder = holder(&lease);
        let duration = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds)
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(self.timing.lease_duration, Duration::from_secs);
        let is_held = !holder.is_empty() && seen.checked_add(duration).is_ok_and(|end| end > now);
        if holder != self.identity && is_held {
            return Ok(Standing::Following {
                leader: holder.to_owned(),
            });
        }
        let lease = self.store.replace(&self.lease(Some(&lease))).await?;
        Ok(self.lead(lease, begun))
    }

    fn lead(&mut self, lease: Lease, begun: Timestamp) -> Standing {
        self.renewed = begun;
        self.observed = Some((lease, self.clock.now()));
        Standing::Leading
    }

    /// The Lease as it is when it is ours.
    fn lease(&self, before: Option<&Lease>) -> Lease {
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

    /// Gives the Lease up, so that another need not wait.
    async fn release(&self) {
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
        match self.store.replace(&released).await {
            Ok(_) => tracing::info!("gave up the lease"),
            Err(error) => tracing::debug!(%error, "the lease was not given up"),
        }
    }

    /// Tries until this candidate leads; `false` when cancelled before.
    pub async fn acquire(&mut self, cancel: &CancellationToken) -> bool {
        let mut known = None;
        loop {
            let standing = tokio::select! {
                () = cancel.cancelled() => return false,
                standing = self.stand() => standing,
            };
            match standing {
                Ok(Standing::Leading) => return true,
                Ok(Standing::Following { leader }) => {
                    if known.as_ref() != Some(&leader) {
                        tracing::info!(leader, "another process leads");
                        known = Some(leader);
                    }
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => tracing::warn!(%error, "the lease was not looked at"),
            }
            // Candidates that started together should not keep colliding.
            let pause = self.timing.retry_period.mul_f64(1.0 + 0.2 * fastrand::f64());
            tokio::select! {
                () = cancel.cancelled() => return false,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Renews until leadership is lost or `cancel` is cancelled. After a loss work must stop at once: another may
    /// take over when what is left of the lease is over.
    pub async fn keep(&mut self, cancel: &CancellationToken) -> Kept {
        loop {
            tokio::select! {
                () = cancel.cancelled() => return Kept::Cancelled,
                () = tokio::time::sleep(self.timing.retry_period) => {}
            }
            let left = self.left();
            let standing = tokio::select! {
                () = cancel.cancelled() => return Kept::Cancelled,
                standing = tokio::time::timeout(left, self.stand()) => standing,
            };
            match standing {
                Ok(Ok(Standing::Leading)) | Err(_) => {}
                Ok(Ok(Standing::Following { leader })) => {
                    tracing::error!(leader, "another process took the lease");
                    return Kept::Lost;
                }
                Ok(Err(error)) => tracing::warn!(%error, "the lease was not renewed"),
            }
            if self.left().is_zero() {
                tracing::error!("the lease was not renewed in time");
                return Kept::Lost;
            }
        }
    }

    /// What is left of the renew deadline.
    fn left(&self) -> Duration {
        let passed = Duration::try_from(self.clock.now().duration_since(self.renewed)).unwrap_or_default();
        self.timing.renew_deadline.saturating_sub(passed)
    }

    /// Ends the candidacy: the Lease is given up if it is held.
    pub async fn resign(self) {
        self.release().await;
    }
}

/// Why leading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It was asked to.
    Cancelled,
    /// The Lease could not be kept.
    Lost,
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
    use drydock_machinery::clock::ManualClock;
    use std::sync::Mutex;

    /// A Lease that exists once, with optimistic locking.
    #[derive(Debug, Clone, Default)]
    struct Fake(Arc<Mutex<FakeState>>);

    #[derive(Debug, Default)]
    struct FakeState {
        lease: Option<Lease>,
        version: u64,
        is_down: bool,
    }

    impl Fake {
        fn answer(&self, write: Option<&Lease>) -> Result<Option<Lease>, Error> {
            let mut state = self.0.lock().unwrap();
            if state.is_down {
                return Err(Error::Deadline);
            }
            if let Some(lease) = write {
                let current = state
                    .lease
                    .as_ref()
                    .and_then(|lease| lease.metadata.resource_version.clone());
                if current != lease.metadata.resource_version {
                    let status = kube::core::Status::failure("conflict", "Conflict").with_code(409);
                    return Err(Error::Refused(status.boxed()));
                }
                state.version += 1;
                let mut lease = lease.clone();
                lease.metadata.resource_version = Some(state.version.to_string());
                state.lease = Some(lease);
            }
            Ok(state.lease.clone())
        }

        fn holder(&self) -> String {
            self.0
                .lock()
                .unwrap()
                .lease
                .as_ref()
                .map(|lease| holder(lease).to_owned())
                .unwrap_or_default()
        }
    }

    impl LeaseStore for Fake {
        async fn get(&self) -> Result<Option<Lease>, Error> {
            self.answer(None)
        }

        async fn create(&self, lease: &Lease) -> Result<Lease, Error> {
            self.replace(lease).await
        }

        async fn replace(&self, lease: &Lease) -> Result<Lease, Error> {
            self.answer(Some(lease)).map(Option::unwrap)
        }
    }

    const TIMING: Timing = Timing {
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };

    fn candidate(store: &Fake, name: &str, clock: &Arc<ManualClock>) -> Election<Fake> {
        Election::new(
            store.clone(),
            name.to_owned(),
            TIMING,
            Arc::clone(clock) as Arc<dyn Clock>,
        )
    }

    fn clock() -> Arc<ManualClock> {
        Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH))
    }

    fn following(leader: &str) -> Standing {
        Standing::Following {
            leader: leader.to_owned(),
        }
    }

    #[tokio::test]
    async fn one_leads_and_the_other_takes_over_only_after_the_lease() {
        let (store, clock) = (Fake::default(), clock());
        let (mut a, mut b) = (candidate(&store, "a", &clock), candidate(&store, "b", &clock));
        assert_eq!(a.stand().await.unwrap(), Standing::Leading);
        assert_eq!(b.stand().await.unwrap(), following("a"));
        clock.advance(Duration::from_secs(14));
        assert_eq!(b.stand().await.unwrap(), following("a"));
        assert_eq!(a.stand().await.unwrap(), Standing::Leading);
        clock.advance(Duration::from_secs(14));
        assert_eq!(b.stand().await.unwrap(), following("a"), "a renewed");
        clock.advance(Duration::from_secs(15));
        assert_eq!(b.stand().await.unwrap(), Standing::Leading);
        assert_eq!(a.stand().await.unwrap(), following("b"));
        let lease = store.0.lock().unwrap().lease.clone().unwrap();
        assert_eq!(lease.spec.unwrap().lease_transitions, Some(1));
    }

    #[tokio::test]
    async fn clocks_of_others_do_not_matter() {
        let (store, late) = (Fake::default(), clock());
        let early = Arc::new(ManualClock::new(Timestamp::from_second(1_000_000).unwrap()));
        let (mut a, mut b) = (candidate(&store, "a", &late), candidate(&store, "b", &early));
        a.stand().await.unwrap();
        assert_eq!(
            b.stand().await.unwrap(),
            following("a"),
            "seen just now, whatever its time says"
        );
    }

    #[tokio::test]
    async fn a_collision_is_a_conflict() {
        let (store, clock) = (Fake::default(), clock());
        let mut a = candidate(&store, "a", &clock);
        a.stand().await.unwrap();
        let stale = a.observed.clone().unwrap().0;
        a.stand().await.unwrap();
        let error = store.replace(&stale).await.unwrap_err();
        assert!(error.is_conflict());
    }

    #[tokio::test]
    async fn resigning_lets_another_lead_soon() {
        let (store, clock) = (Fake::default(), clock());
        let (mut a, mut b) = (candidate(&store, "a", &clock), candidate(&store, "b", &clock));
        a.stand().await.unwrap();
        b.stand().await.unwrap();
        a.resign().await;
        assert_eq!(store.holder(), "");
        assert_eq!(b.stand().await.unwrap(), Standing::Leading);
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_ends_before_the_lease_may_be_taken() {
        let (store, clock) = (Fake::default(), clock());
        let mut a = candidate(&store, "a", &clock);
        let cancel = CancellationToken::new();
        assert!(a.acquire(&cancel).await);
        let start = tokio::time::Instant::now();
        store.0.lock().unwrap().is_down = true;
        // The clock follows the runtime's while the leader tries.
        let follow = {
            let clock = Arc::clone(&clock);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    clock.advance(Duration::from_millis(500));
                }
            })
        };
        assert_eq!(a.keep(&cancel).await, Kept::Lost);
        let after = start.elapsed();
        assert!(
            after >= TIMING.renew_deadline && after < TIMING.lease_duration,
            "{after:?}"
        );
        follow.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_told_to_stop_stops() {
        let (store, clock) = (Fake::default(), clock());
        let mut a = candidate(&store, "a", &clock);
        let cancel = CancellationToken::new();
        assert!(a.acquire(&cancel).await);
        cancel.cancel();
        assert_eq!(a.keep(&cancel).await, Kept::Cancelled);
        let mut b = candidate(&store, "b", &clock);
        assert!(!b.acquire(&cancel).await);
    }
}
