//! A work queue as in client-go: keys wait until a worker takes them. A key is queued once however often it is added,
//! and no two workers process the same key at a time.
//!
//! ```text
//! change ──add──▶ ready ──next──▶ processing ──done──▶ removed, scheduled, or ready again if added meanwhile
//!                   ▲                                     │
//!                   └──────────── deadline ───────────────┘
//! ```
//!
//! The queue is bounded by the number of objects, as it contains only their keys. While no worker runs, as in a replica that does
//! not lead, it forgets the keys of objects that are gone. Start at [`run`].

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_machinery::clock::Clock;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::backoff::backoff;
use crate::deadline_queue::DeadlineQueue;
use crate::metrics::QueueMetrics;
use crate::sync::lock;

/// The longest sleep of the timer. It bounds the delay after a jump of the clock.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// The delay after a first failure.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest delay after many failures.
const LONGEST_RETRY: Duration = Duration::from_mins(2);
/// Up to how many ready keys none is forgotten while no worker runs.
const FORGET_FROM: usize = 1024;

/// When a key is reconciled again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// At the next change, or at this time.
    Wait(Option<Timestamp>),
    /// After a delay that grows with each consecutive failure.
    Retry,
}

/// The queue of one controller.
pub struct WorkQueue<K> {
    state: Mutex<State<K>>,
    /// Whether the object of a key is gone.
    is_gone: IsGone<K>,
    ready: Notify,
    timer: Notify,
    clock: Arc<dyn Clock>,
    metrics: QueueMetrics,
}

/// Says of a key whether its object is gone.
type IsGone<K> = Box<dyn Fn(&K) -> bool + Send + Sync>;

impl<K: std::fmt::Debug> std::fmt::Debug for WorkQueue<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkQueue")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State<K> {
    /// Whether workers take keys.
    is_run: bool,
    /// With how many ready keys it is looked next which of them are gone.
    forget_at: usize,
    /// Keys for the next workers, in order.
    ready: VecDeque<K>,
    /// The keys that are ready, that a worker processes, and that have failed.
    keys: HashMap<K, KeyState>,
    deadlines: DeadlineQueue<K>,
}

/// What is known of a key.
#[derive(Debug, Clone, Copy, Default)]
struct KeyState {
    /// Since when it is ready.
    ready_since: Option<Timestamp>,
    /// Since when a worker processes it.
    processed_since: Option<Timestamp>,
    /// Whether it was added while a worker processes it.
    is_dirty: bool,
    /// Consecutive failures.
    failures: u32,
}

impl<K: Ord + Hash + Clone + Send + Sync + 'static> WorkQueue<K> {
    /// An empty queue.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, metrics: QueueMetrics) -> Self {
        Self {
            is_gone: Box::new(|_| false),
            state: Mutex::new(State {
                is_run: false,
                forget_at: FORGET_FROM,
                ready: VecDeque::new(),
                keys: HashMap::new(),
                deadlines: DeadlineQueue::default(),
            }),
            ready: Notify::new(),
            timer: Notify::new(),
            clock,
            metrics,
        }
    }

    /// The same queue, which forgets keys for which `is_gone` holds while no worker runs. `is_gone` must not use the queue.
    #[must_use]
    pub fn forgetting(mut self, is_gone: impl Fn(&K) -> bool + Send + Sync + 'static) -> Self {
        self.is_gone = Box::new(is_gone);
        self
    }

    /// Queues a key.
    pub fn add(&self, key: K) {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        self.enqueue(&mut state, key, now);
    }

    fn enqueue(&self, state: &mut State<K>, key: K, now: Timestamp) {
        if let Some(known) = state.keys.get_mut(&key) {
            if known.processed_since.is_some() {
                known.is_dirty = true;
                return;
            }
            if known.ready_since.is_some() {
                return;
            }
            known.ready_since = Some(now);
        } else {
            let known = KeyState {
                ready_since: Some(now),
                ..KeyState::default()
            };
            state.keys.insert(key.clone(), known);
        }
        state.ready.push_back(key);
        if !state.is_run && state.ready.len() >= state.forget_at {
            self.forget_gone(state);
        }
        self.metrics.added(state.ready.len());
        self.ready.notify_one();
    }

    /// Forgets the ready keys whose objects are gone. Objects that exist are looked at again only when there are twice as many.
    fn forget_gone(&self, state: &mut State<K>) {
        let State { ready, keys, .. } = state;
        ready.retain(|key| {
            let is_gone = (self.is_gone)(key);
            if is_gone {
                keys.remove(key);
            }
            !is_gone
        });
        state.forget_at = FORGET_FROM.max(2 * state.ready.len());
    }

    /// Workers take keys from now on.
    fn begin(&self) {
        let mut state = lock(&self.state);
        state.is_run = true;
        self.forget_gone(&mut state);
    }

    /// How long each key that a worker processes has been processed.
    #[must_use]
    pub fn processing(&self) -> Vec<SignedDuration> {
        let now = self.clock.now();
        let state = lock(&self.state);
        let since = state.keys.values().filter_map(|known| known.processed_since);
        since.map(|since| now.duration_since(since)).collect()
    }

    /// How many keys are ready.
    #[cfg(test)]
    fn len(&self) -> usize {
        lock(&self.state).ready.len()
    }

    /// Takes the next key and waits for one if none is ready. Cancel safe: a key is removed only when it is returned.
    pub async fn next(&self) -> K {
        loop {
            if let Some(key) = self.try_next() {
                return key;
            }
            self.ready.notified().await;
        }
    }

    /// Takes the next key, if one is ready.
    pub(crate) fn try_next(&self) -> Option<K> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let key = state.ready.pop_front()?;
        let ready_since = state.keys.get_mut(&key).and_then(|known| {
            known.processed_since = Some(now);
            known.ready_since.take()
        });
        let remaining = state.ready.len();
        drop(state);
        let waited = ready_since.map(|since| now.duration_since(since));
        self.metrics.taken(remaining, waited);
        if remaining > 0 {
            self.ready.notify_one();
        }
        Some(key)
    }

    /// Ends the processing of a key.
    pub fn done(&self, key: &K, outcome: Outcome) {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let known = state.keys.remove(key).unwrap_or_default();
        let deadline = match outcome {
            Outcome::Wait(at) => at,
            Outcome::Retry => {
                let failures = known.failures.saturating_add(1);
                let failed = KeyState {
                    failures,
                    ..KeyState::default()
                };
                state.keys.insert(key.clone(), failed);
                self.metrics.retried();
                let delay = backoff(failures, FIRST_RETRY, LONGEST_RETRY, fastrand::f64());
                now.checked_add(delay).ok()
            }
        };
        match deadline {
            Some(at) => state.deadlines.set(key.clone(), at),
            None => state.deadlines.clear(key),
        }
        // The timer sleeps until the earliest deadline, so it has to know only of a new one.
        let is_earliest = deadline.is_some() && state.deadlines.next() == deadline;
        // A change during processing may be the cause of a failure and may recur: it does not cut the delay.
        if known.is_dirty && outcome != Outcome::Retry {
            self.enqueue(&mut state, key.clone(), now);
        }
        drop(state);
        if is_earliest {
            self.timer.notify_one();
        }
    }

    /// Queues keys at their deadlines until cancelled.
    async fn run_timer(&self, cancel: &CancellationToken) {
        loop {
            let sleep = self.enqueue_due();
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.timer.notified() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Queues the keys that are due. Returns the time until the next deadline.
    pub(crate) fn enqueue_due(&self) -> Duration {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        while let Some(key) = state.deadlines.pop_due(now) {
            self.enqueue(&mut state, key, now);
        }
        state.deadlines.next().map_or(LONGEST_SLEEP, |at| {
            Duration::try_from(at.duration_since(now)).map_or(LONGEST_SLEEP, |wait| wait.min(LONGEST_SLEEP))
        })
    }
}

/// Runs workers that reconcile keys until `cancel` is cancelled. A reconciliation in progress is dropped at its next
/// await: the next process decides again from the stored objects.
///
/// # Panics
///
/// Resumes the panic of a worker: a bug must end the process, not one of its workers.
pub async fn run<K, F, R>(queue: Arc<WorkQueue<K>>, workers: usize, cancel: CancellationToken, reconcile: F)
where
    K: Ord + Hash + Clone + Send + Sync + 'static,
    F: Fn(K) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Outcome> + Send + 'static,
{
    queue.begin();
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let (queue, cancel, reconcile) = (Arc::clone(&queue), cancel.clone(), reconcile.clone());
        tasks.spawn(async move {
            let work = async {
                loop {
                    let key = queue.next().await;
                    let started = queue.clock.now();
                    let outcome = reconcile(key.clone()).await;
                    queue.metrics.worked(queue.clock.now().duration_since(started));
                    queue.done(&key, outcome);
                }
            };
            tokio::select! {
                () = cancel.cancelled() => {}
                () = work => {}
            }
        });
    }
    tasks.spawn({
        let (queue, cancel) = (Arc::clone(&queue), cancel.clone());
        async move { queue.run_timer(&cancel).await }
    });
    join_all(tasks, &cancel).await;
}

/// Waits for all tasks.
///
/// # Panics
///
/// Cancels the others and resumes the panic of a task.
pub async fn join_all(mut tasks: JoinSet<()>, cancel: &CancellationToken) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            cancel.cancel();
            std::panic::resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use std::collections::HashSet;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    /// A clock that shows tokio's time, which tests pause.
    #[derive(Debug)]
    struct TokioClock(Instant);

    impl Clock for TokioClock {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH.checked_add(self.0.elapsed()).unwrap()
        }
    }

    fn queue() -> Arc<WorkQueue<u32>> {
        Arc::new(WorkQueue::new(
            Arc::new(TokioClock(Instant::now())),
            Metrics::default().queue("test"),
        ))
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_queued_once_and_again_when_added_while_processed() {
        let queue = queue();
        queue.add(1);
        let added = queue.clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        queue.add(1);
        assert_eq!(queue.len(), 1);
        assert_eq!(lock(&queue.state).keys[&1].ready_since, Some(added));
        let key = queue.next().await;
        queue.add(1);
        assert_eq!(queue.len(), 0, "no second worker gets a key that is processed");
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(queue.processing(), [SignedDuration::from_secs(7)]);
        queue.done(&key, Outcome::Wait(None));
        assert_eq!(queue.next().await, 1);
        queue.done(&1, Outcome::Wait(None));
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_of_objects_that_are_gone_are_forgotten_while_nobody_works() {
        let present: Arc<Mutex<HashSet<u32>>> = Arc::default();
        let clock = Arc::new(TokioClock(Instant::now()));
        let queue = WorkQueue::new(clock, Metrics::default().queue("test")).forgetting({
            let present = Arc::clone(&present);
            move |key| !lock(&present).contains(key)
        });
        for key in 0..100_000 {
            lock(&present).insert(key);
            queue.add(key);
            // Ten at a time exist.
            lock(&present).remove(&key.saturating_sub(10));
        }
        let waiting = queue.len();
        assert!(waiting <= FORGET_FROM, "{waiting}");
        assert_eq!(lock(&queue.state).keys.len(), waiting);
        queue.begin();
        assert_eq!(queue.len(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_queued_at_their_deadlines() {
        let queue = queue();
        let cancel = CancellationToken::new();
        let (seen, mut order) = mpsc::channel(16);
        let start = Instant::now();
        for key in 1..=3 {
            queue.add(key);
        }
        let running = tokio::spawn(run(Arc::clone(&queue), 2, cancel.clone(), {
            let clock = Arc::clone(&queue.clock);
            move |key: u32| {
                let (seen, clock) = (seen.clone(), Arc::clone(&clock));
                async move {
                    let first = clock.now().as_second() < 60;
                    seen.send((key, start.elapsed().as_secs())).await.unwrap();
                    Outcome::Wait(first.then(|| Timestamp::from_second(i64::from(400 - 100 * key)).unwrap()))
                }
            }
        }));
        let mut got = Vec::new();
        for _ in 0..6 {
            got.push(order.recv().await.unwrap());
        }
        assert_eq!(got[3..], [(3, 100), (2, 200), (1, 300)]);
        cancel.cancel();
        running.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_with_growing_delays() {
        let queue = queue();
        let cancel = CancellationToken::new();
        let (seen, mut order) = mpsc::channel(16);
        let start = Instant::now();
        queue.add(1);
        let running = tokio::spawn(run(Arc::clone(&queue), 1, cancel.clone(), move |_| {
            let seen = seen.clone();
            async move {
                seen.send(start.elapsed()).await.unwrap();
                Outcome::Retry
            }
        }));
        let mut last = Duration::ZERO;
        let mut gaps = Vec::new();
        for _ in 0..5 {
            let at = order.recv().await.unwrap();
            gaps.push(at.checked_sub(last).unwrap());
            last = at;
        }
        assert!(
            gaps[1] <= Duration::from_millis(510) && gaps[4] >= Duration::from_secs(2),
            "{gaps:?}"
        );
        cancel.cancel();
        running.await.unwrap();
    }
}
