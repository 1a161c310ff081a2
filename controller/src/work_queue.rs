//! What is to be looked at next? Keys wait here until a worker takes them; a key waits once however often it is
//! added, and never in two workers' hands at a time.
//!
//! ```text
//! change ──add──▶ ready ──next──▶ in hand ──done──▶ gone, or a deadline, or ready again if it was added meanwhile
//!                   ▲                                    │
//!                   └────────────── due ─────────────────┘
//! ```
//!
//! The queue is bounded by the number of objects: nothing but their keys is in it. Start at [`run`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drydock_machinery::clock::Clock;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::deadline_queue::DeadlineQueue;
use crate::metrics::QueueMetrics;

/// The longest sleep of the timer, so that a clock that jumps is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// The delay after a first failure.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest delay after many failures.
const LONGEST_RETRY: Duration = Duration::from_mins(2);

/// What a worker has to say when it is done with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something changes, or until the time comes.
    Wait(Option<Timestamp>),
    /// Something failed: look again after a delay that grows with each failure in a row.
    Retry,
}

/// Keys that wait for a worker.
#[derive(Debug)]
pub struct WorkQueue<K> {
    state: Mutex<State<K>>,
    ready: Notify,
    timer: Notify,
    clock: Arc<dyn Clock>,
    metrics: QueueMetrics,
}

#[derive(Debug)]
struct State<K> {
    ready: VecDeque<K>,
    waiting: HashMap<K, Timestamp>,
    in_hand: HashSet<K>,
    again: HashSet<K>,
    failures: HashMap<K, u32>,
    deadlines: DeadlineQueue<K>,
}

/// `base` doubled for every failure after the first, at most `longest`, minus up to a quarter by chance.
#[must_use]
pub fn backoff(failures: u32, base: Duration, longest: Duration, chance: f64) -> Duration {
    let doubled = base.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(20)));
    doubled.min(longest).mul_f64(1.0 - 0.25 * chance.clamp(0.0, 1.0))
}

impl<K: Ord + Hash + Clone + Send + Sync + 'static> WorkQueue<K> {
    /// An empty queue.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, metrics: QueueMetrics) -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                waiting: HashMap::new(),
                in_hand: HashSet::new(),
                again: HashSet::new(),
                failures: HashMap::new(),
                deadlines: DeadlineQueue::default(),
            }),
            ready: Notify::new(),
            timer: Notify::new(),
            clock,
            metrics,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wants the key looked at now.
    pub fn add(&self, key: K) {
        let now = self.clock.now();
        let mut state = self.state();
        self.enqueue(&mut state, key, now);
    }

    fn enqueue(&self, state: &mut State<K>, key: K, now: Timestamp) {
        if state.in_hand.contains(&key) {
            state.again.insert(key);
        } else if !state.waiting.contains_key(&key) {
            state.waiting.insert(key.clone(), now);
            state.ready.push_back(key);
            self.metrics.added(state.ready.len());
            self.ready.notify_one();
        }
    }

    /// How many keys are ready.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state().ready.len()
    }

    /// Whether no key is ready.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next key, waiting for one. Cancel safe: a key is taken only when it is returned.
    pub async fn next(&self) -> K {
        loop {
            if let Some(key) = self.take() {
                return key;
            }
            self.ready.notified().await;
        }
    }

    fn take(&self) -> Option<K> {
        let now = self.clock.now();
        let mut state = self.state();
        let key = state.ready.pop_front()?;
        let since = state.waiting.remove(&key);
        state.in_hand.insert(key.clone());
        let left = state.ready.len();
        drop(state);
        self.metrics
            .taken(left, since.map(|since| now.duration_since(since)));
        if left > 0 {
            self.ready.notify_one();
        }
        Some(key)
    }

    /// Gives a key back.
    pub fn done(&self, key: &K, outcome: Outcome) {
        let now = self.clock.now();
        let mut state = self.state();
        state.in_hand.remove(key);
        let deadline = match outcome {
            Outcome::Wait(at) => {
                state.failures.remove(key);
                at
            }
            Outcome::Retry => {
                let failures = state.failures.entry(key.clone()).or_insert(0);
                *failures = failures.saturating_add(1);
                self.metrics.retried();
                let delay = backoff(*failures, FIRST_RETRY, LONGEST_RETRY, fastrand::f64());
                // A change that came in meanwhile may be why it failed, or may come again and again: the delay holds.
                state.again.remove(key);
                now.checked_add(delay).ok()
            }
        };
        match deadline {
            Some(at) => state.deadlines.set(key.clone(), at),
            None => state.deadlines.clear(key),
        }
        if state.again.remove(key) {
            self.enqueue(&mut state, key.clone(), now);
        }
        drop(state);
        self.timer.notify_one();
    }

    /// Moves keys whose deadline has come, until cancelled.
    async fn keep_time(&self, cancel: &CancellationToken) {
        loop {
            let sleep = self.move_due();
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.timer.notified() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    fn move_due(&self) -> Duration {
        let now = self.clock.now();
        let mut state = self.state();
        while let Some(key) = state.deadlines.pop_due(now) {
            self.enqueue(&mut state, key, now);
        }
        state.deadlines.next().map_or(LONGEST_SLEEP, |at| {
            Duration::try_from(at.duration_since(now)).map_or(LONGEST_SLEEP, |wait| wait.min(LONGEST_SLEEP))
        })
    }
}

/// Lets `workers` workers reconcile keys until `cancel` is cancelled, then waits for none of them: work in hand is
/// dropped at its next await, and whoever comes next decides anew from what is stored.
///
/// # Panics
///
/// Passes on the panic of a worker: a bug must end the process, not one loop of it.
pub async fn run<K, F, R>(queue: Arc<WorkQueue<K>>, workers: usize, cancel: CancellationToken, reconcile: F)
where
    K: Ord + Hash + Clone + Send + Sync + 'static,
    F: Fn(K) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Outcome> + Send + 'static,
{
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
        async move { queue.keep_time(&cancel).await }
    });
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
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    /// A clock that follows tokio's, so that paused time moves it.
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
            QueueMetrics::unregistered("test"),
        ))
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_comes_again_when_added_in_hand() {
        let queue = queue();
        queue.add(1);
        queue.add(1);
        assert_eq!(queue.len(), 1);
        let key = queue.next().await;
        queue.add(1);
        assert!(queue.is_empty(), "a key in hand is not handed out twice");
        queue.done(&key, Outcome::Wait(None));
        assert_eq!(queue.next().await, 1);
        queue.done(&1, Outcome::Wait(None));
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn deadlines_bring_keys_back_at_their_time() {
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

    #[test]
    fn backoff_grows_to_its_limit_and_keeps_three_quarters() {
        let (base, longest) = (Duration::from_secs(1), Duration::from_mins(15));
        assert_eq!(backoff(1, base, longest, 0.0), base);
        assert_eq!(backoff(4, base, longest, 0.0), Duration::from_secs(8));
        assert_eq!(backoff(40, base, longest, 0.0), longest);
        assert_eq!(backoff(40, base, longest, 1.0), Duration::from_secs(675));
    }
}
