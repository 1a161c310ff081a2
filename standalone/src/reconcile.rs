//! Runs the controllers of the embedded host.
//!
//! A controller reconciles after changes of the resources it watches, and at the time that it asked for. Each
//! reconciliation decides from the whole stored state, so a missed or an additional one does no harm.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use drydock_apiserver::error::{ApiError, Reason};
use drydock_storage::{Events, KeyRange, Signal, Store};
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::objects::{Kind, Objects};

/// How long changes are collected before one reconciliation handles them.
const BATCH_WINDOW: Duration = Duration::from_millis(20);

/// How long to wait after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A controller of the embedded host.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// Its name in the log.
    const NAME: &'static str;

    /// The resources whose changes trigger it.
    fn watched(&self) -> &[Kind];

    /// Reads the stored state and acts on it. Returns when to run again even without changes.
    ///
    /// # Errors
    /// A read or write failed; the reconciliation is repeated after [`RETRY_AFTER`].
    fn reconcile(&self) -> impl Future<Output = Result<Option<Timestamp>, ApiError>> + Send;
}

/// Runs a controller until it is cancelled or the storage is closed.
pub(crate) async fn run<S: Store, R: Reconcile>(
    objects: Arc<Objects<S>>,
    controller: R,
    cancel: CancellationToken,
) {
    let mut events = None;
    loop {
        // The watch starts first: changes during the reconciliation trigger the next one.
        if events.is_none() {
            match watch(objects.store()).await {
                Ok(watch) => events = Some(watch),
                Err(error) => tracing::warn!(controller = R::NAME, %error, "changes cannot be watched"),
            }
        }
        let now = Instant::now();
        let again = match controller.reconcile().await {
            Ok(None) => None,
            Ok(Some(at)) => Some(now + until(at, objects.now())),
            Err(error) => {
                tracing::warn!(controller = R::NAME, %error, "reconciliation failed");
                Some(now + RETRY_AFTER)
            }
        };
        let again = if events.is_none() {
            Some(now + RETRY_AFTER)
        } else {
            again
        };
        let outcome = tokio::select! {
            () = cancel.cancelled() => return,
            outcome = wait(events.as_mut(), controller.watched(), again) => outcome,
        };
        match outcome {
            Wake::Due => {}
            Wake::WatchLost => events = None,
            Wake::Closed => return,
        }
    }
}

enum Wake {
    /// It is time to reconcile.
    Due,
    /// Changes were missed.
    WatchLost,
    /// The storage is closed.
    Closed,
}

async fn watch<S: Store>(store: &S) -> Result<S::Events, ApiError> {
    let current = store.current_revision().await?;
    Ok(store.watch(&KeyRange::all(), current.next()).await?)
}

/// Waits for a change of one of `kinds` and collects further changes for [`BATCH_WINDOW`], but at most until `again`.
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
            () = due => return Wake::Due,
        };
        match signal {
            None => return Wake::Closed,
            Some(Signal::Compacted(_)) => return Wake::WatchLost,
            Some(Signal::Progress(_)) => {}
            Some(Signal::Change(event)) => {
                if kinds.iter().any(|kind| kind.has(&event.key)) {
                    let batched = Instant::now() + BATCH_WINDOW;
                    again = Some(again.map_or(batched, |at| at.min(batched)));
                }
            }
        }
    }
}

/// Treats errors with one of `reasons` as no result: the object changed or vanished concurrently, and the next
/// reconciliation sees its current state.
pub(crate) fn tolerate<T>(result: Result<T, ApiError>, reasons: &[Reason]) -> Result<Option<T>, ApiError> {
    match result {
        Err(error) if reasons.iter().any(|reason| error.is(*reason)) => Ok(None),
        other => other.map(Some),
    }
}

/// The earlier of two times, if any.
pub(crate) fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// How long from `now` until `at`; zero if `at` is past.
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

    /// Reports each run. The first run asks for another after a minute; a run fails if `fails` is set.
    struct Reporter {
        runs: mpsc::Sender<()>,
        clock: Arc<ManualClock>,
        wants_another: AtomicBool,
        fails: Arc<AtomicBool>,
    }

    impl Reconcile for Reporter {
        const NAME: &'static str = "reporter";

        fn watched(&self) -> &[Kind] {
            &[Kind::PODS]
        }

        async fn reconcile(&self) -> Result<Option<Timestamp>, ApiError> {
            self.runs.send(()).await.unwrap();
            if self.fails.swap(false, Ordering::Relaxed) {
                return Err(ApiError::internal("failed on request"));
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
    async fn a_controller_runs_after_watched_changes_when_due_and_after_a_failure() {
        let store = MemoryStore::new();
        let clock = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
        let objects = Arc::new(Objects::new(store.clone(), Vec::new(), clock.clone()));
        let (runs, mut seen) = mpsc::channel(8);
        let fails = Arc::new(AtomicBool::new(false));
        let reporter = Reporter {
            runs,
            clock,
            wants_another: AtomicBool::new(true),
            fails: Arc::clone(&fails),
        };
        let cancel = CancellationToken::new();
        let running = tokio::spawn(run(objects, reporter, cancel.clone()));
        let second = Duration::from_secs(1);

        seen.recv().await.unwrap();
        assert!(
            timeout(59 * second, seen.recv()).await.is_err(),
            "nothing is due yet"
        );
        assert!(
            timeout(2 * second, seen.recv()).await.is_ok(),
            "the minute is over"
        );

        put(&store, "apps", "deployments", "d").await;
        assert!(
            timeout(600 * second, seen.recv()).await.is_err(),
            "deployments are not watched"
        );
        for name in ["a", "b"] {
            put(&store, "core", "pods", name).await;
        }
        assert!(timeout(second, seen.recv()).await.is_ok(), "pods are watched");
        assert!(
            timeout(600 * second, seen.recv()).await.is_err(),
            "both changes are handled by one run"
        );

        fails.store(true, Ordering::Relaxed);
        put(&store, "core", "pods", "c").await;
        assert!(timeout(second, seen.recv()).await.is_ok());
        assert!(
            timeout(2 * second, seen.recv()).await.is_ok(),
            "a failed run is repeated"
        );

        cancel.cancel();
        running.await.unwrap();
    }
}
