//! When does a part of the embedded host look at its objects again?
//!
//! After a change of what it follows, and when something falls due. Each look decides from everything that is stored,
//! so a missed or a doubled wake-up changes nothing.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use drydock_storage::{Events, KeyRange, Signal, Store};
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::objects::{Kind, Objects};
use crate::error::ApiError;

/// How long changes are gathered before they are looked at together.
const GATHER: Duration = Duration::from_millis(20);

/// How long to wait after a look that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// A part of the embedded host.
pub(super) trait Reconcile: Send + Sync + 'static {
    /// What it is called in the log.
    const NAME: &'static str;

    /// The resources whose changes wake it.
    fn follows(&self) -> &[Kind];

    /// Looks at everything and does what is due. The answer is when to look again though nothing changed.
    ///
    /// # Errors
    /// What a read or write refused; the look is repeated a moment later.
    fn look(&self) -> impl Future<Output = Result<Option<Timestamp>, ApiError>> + Send;
}

/// Runs a part until it is cancelled or the storage is closed.
pub(super) async fn run<S: Store, R: Reconcile>(
    objects: Arc<Objects<S>>,
    part: R,
    cancel: CancellationToken,
) {
    let mut events = None;
    loop {
        // Followed before looking: what changes during the look wakes the next one.
        if events.is_none() {
            match follow(objects.store()).await {
                Ok(followed) => events = Some(followed),
                Err(error) => tracing::warn!(part = R::NAME, %error, "changes cannot be followed"),
            }
        }
        let now = Instant::now();
        let again = match part.look().await {
            Ok(None) => None,
            Ok(Some(at)) => Some(now + until(at, objects.now())),
            Err(error) => {
                tracing::warn!(part = R::NAME, %error, "a look failed");
                Some(now + AFTER_FAILURE)
            }
        };
        let again = if events.is_none() {
            Some(now + AFTER_FAILURE)
        } else {
            again
        };
        let outcome = tokio::select! {
            () = cancel.cancelled() => return,
            outcome = wait(events.as_mut(), part.follows(), again) => outcome,
        };
        match outcome {
            Wake::Look => {}
            Wake::FollowAnew => events = None,
            Wake::Closed => return,
        }
    }
}

enum Wake {
    Look,
    FollowAnew,
    Closed,
}

async fn follow<S: Store>(store: &S) -> Result<S::Events, ApiError> {
    let current = store.current_revision().await?;
    Ok(store.watch(&KeyRange::all(), current.next()).await?)
}

/// Waits for a change of one of `kinds`, gathers what comes with it, and in any case ends at `again`.
async fn wait<E: Events>(mut events: Option<&mut E>, kinds: &[Kind], mut again: Option<Instant>) -> Wake {
    loop {
        let signal = async {
            match events.as_mut() {
                Some(events) => events.next().await,
                None => std::future::pending().await,
            }
        };
        let due = async {
            match again {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let signal = tokio::select! {
            signal = signal => signal,
            () = due => return Wake::Look,
        };
        match signal {
            None => return Wake::Closed,
            Some(Signal::Compacted(_)) => return Wake::FollowAnew,
            Some(Signal::Progress(_)) => {}
            Some(Signal::Change(event)) => {
                if kinds.iter().any(|kind| kind.holds(&event.key)) {
                    let gathered = Instant::now() + GATHER;
                    again = Some(again.map_or(gathered, |at| at.min(gathered)));
                }
            }
        }
    }
}

/// How far a moment is ahead.
fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use drydock_machinery::clock::{Clock, ManualClock};
    use drydock_storage::memory::MemoryStore;
    use drydock_storage::{Key, Transaction, Value};
    use jiff::SignedDuration;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;

    /// Tells of each look. The first one wants another after a minute; one that is told to fails.
    struct Teller {
        looks: mpsc::Sender<()>,
        clock: Arc<ManualClock>,
        wants_another: AtomicBool,
        fails: Arc<AtomicBool>,
    }

    impl Reconcile for Teller {
        const NAME: &'static str = "teller";

        fn follows(&self) -> &[Kind] {
            &[Kind::PODS]
        }

        async fn look(&self) -> Result<Option<Timestamp>, ApiError> {
            self.looks.send(()).await.unwrap();
            if self.fails.swap(false, Ordering::Relaxed) {
                return Err(ApiError::internal("as told"));
            }
            let again = self.wants_another.swap(false, Ordering::Relaxed);
            Ok(again.then(|| self.clock.now() + SignedDuration::from_secs(60)))
        }
    }

    async fn put(store: &MemoryStore, group: &str, resource: &str, name: &str) {
        let value = Value {
            bytes: "{}".into(),
            form: "v1".into(),
            splice_offset: 0,
        };
        let key = Key::new(group, resource, "ns", name).unwrap();
        store.transact(Transaction::create(key, value)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_looks_after_changes_it_follows_and_when_something_is_due() {
        let store = MemoryStore::new();
        let clock = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
        let objects = Arc::new(Objects::new(store.clone(), Vec::new(), clock.clone()));
        let (looks, mut told) = mpsc::channel(8);
        let fails = Arc::new(AtomicBool::new(false));
        let teller = Teller {
            looks,
            clock,
            wants_another: AtomicBool::new(true),
            fails: Arc::clone(&fails),
        };
        let cancel = CancellationToken::new();
        let running = tokio::spawn(run(objects, teller, cancel.clone()));
        let second = Duration::from_secs(1);

        told.recv().await.unwrap();
        assert!(
            timeout(59 * second, told.recv()).await.is_err(),
            "nothing is due yet"
        );
        assert!(
            timeout(2 * second, told.recv()).await.is_ok(),
            "the minute is over"
        );

        put(&store, "apps", "deployments", "d").await;
        assert!(
            timeout(600 * second, told.recv()).await.is_err(),
            "deployments are not followed"
        );
        for name in ["a", "b"] {
            put(&store, "core", "pods", name).await;
        }
        assert!(timeout(second, told.recv()).await.is_ok(), "pods are followed");
        assert!(
            timeout(600 * second, told.recv()).await.is_err(),
            "changes are looked at together"
        );

        fails.store(true, Ordering::Relaxed);
        put(&store, "core", "pods", "c").await;
        assert!(timeout(second, told.recv()).await.is_ok());
        assert!(
            timeout(2 * second, told.recv()).await.is_ok(),
            "a look that failed is repeated"
        );

        cancel.cancel();
        running.await.unwrap();
    }
}
