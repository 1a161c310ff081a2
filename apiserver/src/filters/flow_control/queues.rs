//! Seats for requests, and fair queues of those that wait for one.
//!
//! A request goes to the shortest of a few queues that the hash of its user selects (shuffle sharding): two users rarely
//! have the same few, so one that fills all of its own leaves others a free one. A free seat goes to the queue with the
//! fewest requests in seats, and among those to the one that has not been served for longest.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

/// The sizes of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Requests that are handled at a time.
    pub(super) seats: usize,
    /// Number of queues.
    pub(super) queues: usize,
    /// How many queues a user may use; at most `queues`.
    pub(super) hand: usize,
    /// Requests that may wait in a queue.
    pub(super) length: usize,
}

/// Why a request gets no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// Every queue of its user is full.
    QueueFull,
    /// It has waited too long.
    TimeOut,
}

impl Rejection {
    /// As the metrics of the reference have it.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue-full",
            Self::TimeOut => "time-out",
        }
    }
}

/// The seats and queues of a level.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    shape: Shape,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    free: usize,
    queues: Vec<Queue>,
    /// The number of the next request that waits or is seated.
    next: u64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
    /// Requests in seats.
    seated: usize,
    /// When a request was last seated, as a number.
    served: u64,
}

impl Queues {
    pub(super) fn new(shape: Shape) -> Self {
        let mut queues = Vec::new();
        queues.resize_with(shape.queues, Queue::default);
        Self {
            shape,
            state: Arc::new(Mutex::new(State {
                free: shape.seats,
                queues,
                next: 0,
            })),
        }
    }

    /// Waits for a seat until `latest`. `hash` is that of the user.
    pub(super) async fn enter(&self, hash: u64, latest: Instant) -> Result<Seat, Rejection> {
        let mut waiting = match self.arrive(hash)? {
            Arrived::Seated(seat) => return Ok(seat),
            Arrived::Waiting(waiting) => waiting,
        };
        match timeout_at(latest, &mut waiting.seated).await {
            Ok(_) => {
                waiting.is_over = true;
                Ok(Seat {
                    state: Arc::clone(&self.state),
                    queue: waiting.queue,
                })
            }
            Err(_) => Err(Rejection::TimeOut),
        }
    }

    fn arrive(&self, hash: u64) -> Result<Arrived, Rejection> {
        let mut state = lock(&self.state);
        let load = |queue: &usize| {
            let queue = state.queues.get(*queue);
            queue.map_or(usize::MAX, |queue| queue.waiting.len() + queue.seated)
        };
        let chosen = hand(hash, self.shape.queues, self.shape.hand);
        let chosen = chosen.into_iter().min_by_key(load).unwrap_or_default();
        let (is_free, ticket) = (state.free > 0, state.next);
        let queue = state.queues.get_mut(chosen).ok_or(Rejection::QueueFull)?;
        if is_free {
            queue.seated += 1;
            queue.served = ticket;
            state.next += 1;
            state.free -= 1;
            return Ok(Arrived::Seated(Seat {
                state: Arc::clone(&self.state),
                queue: chosen,
            }));
        }
        if queue.waiting.len() >= self.shape.length {
            return Err(Rejection::QueueFull);
        }
        let (sender, seated) = oneshot::channel();
        queue.waiting.push_back((ticket, sender));
        state.next += 1;
        Ok(Arrived::Waiting(Waiting {
            state: Arc::clone(&self.state),
            queue: chosen,
            ticket,
            seated,
            is_over: false,
        }))
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Deals `size` different queues.
fn hand(mut hash: u64, queues: usize, size: usize) -> Vec<usize> {
    let mut dealt: Vec<usize> = Vec::with_capacity(size);
    for left in (0..=queues).rev().take_while(|left| *left > 0).take(size) {
        let of = left as u64;
        // Below `left`, so it fits.
        let mut card = usize::try_from(hash % of).unwrap_or_default();
        hash /= of;
        let mut at = 0;
        // The cards that are left are numbered without those dealt, which are in order.
        while dealt.get(at).is_some_and(|earlier| *earlier <= card) {
            card += 1;
            at += 1;
        }
        dealt.insert(at, card);
    }
    dealt
}

impl State {
    fn leave(&mut self, queue: usize) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.seated = queue.seated.saturating_sub(1);
        }
        self.free += 1;
        self.seat();
    }

    /// Gives free seats to requests that wait.
    fn seat(&mut self) {
        while self.free > 0 {
            let waiting = self.queues.iter_mut().filter(|queue| !queue.waiting.is_empty());
            let next = waiting.min_by_key(|queue| {
                let ticket = queue.waiting.front().map(|(ticket, _)| *ticket);
                (queue.seated, queue.served, ticket)
            });
            let Some(queue) = next else { return };
            // A request that gives up leaves its queue first, so the other end exists.
            if let Some((_, sender)) = queue.waiting.pop_front()
                && sender.send(()).is_ok()
            {
                queue.seated += 1;
                queue.served = self.next;
                self.next += 1;
                self.free -= 1;
            }
        }
    }
}

enum Arrived {
    Seated(Seat),
    Waiting(Waiting),
}

/// A request that waits. Dropping it leaves the queue.
struct Waiting {
    state: Arc<Mutex<State>>,
    queue: usize,
    ticket: u64,
    seated: oneshot::Receiver<()>,
    is_over: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = lock(&self.state);
        // Seats are given under the lock: this one may have come after the request gave up.
        if self.seated.try_recv().is_ok() {
            state.leave(self.queue);
        } else if let Some(queue) = state.queues.get_mut(self.queue) {
            queue.waiting.retain(|(ticket, _)| *ticket != self.ticket);
        }
    }
}

/// A request that is handled, until dropped.
#[derive(Debug)]
pub(super) struct Seat {
    state: Arc<Mutex<State>>,
    queue: usize,
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.state).leave(self.queue);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use futures_util::{FutureExt, future::join_all};

    use super::*;

    const SHAPE: Shape = Shape {
        seats: 2,
        queues: 8,
        hand: 2,
        length: 3,
    };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(15)
    }

    #[test]
    fn hands_are_of_different_queues_and_all_are_dealt() {
        let mut all = BTreeSet::new();
        for hash in 0..1000 {
            let dealt = hand(hash * 7919, 16, 4);
            assert_eq!(dealt.iter().collect::<BTreeSet<_>>().len(), 4, "{dealt:?}");
            all.extend(dealt);
        }
        assert_eq!(all, (0..16).collect());
        assert_eq!(hand(5, 1, 4), [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_a_seat_and_get_it() {
        let queues = Queues::new(SHAPE);
        let first = queues.enter(1, soon()).await.unwrap();
        let _second = queues.enter(1, soon()).await.unwrap();
        let mut third = Box::pin(queues.enter(1, soon()));
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        third.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_and_a_long_wait_are_rejected() {
        let queues = Queues::new(SHAPE);
        let _seats = [queues.enter(1, soon()).await, queues.enter(1, soon()).await];
        let begun = Instant::now();
        let results = join_all((0..10).map(|_| queues.enter(1, soon()))).await;
        let full = results
            .iter()
            .filter(|result| matches!(result, Err(Rejection::QueueFull)));
        assert_eq!(full.count(), 10 - SHAPE.hand * SHAPE.length);
        let late = results
            .iter()
            .filter(|result| matches!(result, Err(Rejection::TimeOut)));
        assert_eq!(late.count(), SHAPE.hand * SHAPE.length);
        assert_eq!(begun.elapsed().as_secs(), 15);
        // Those that gave up are no longer in the queues.
        assert!(
            lock(&queues.state)
                .queues
                .iter()
                .all(|queue| queue.waiting.is_empty())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_with_many_requests_does_not_delay_one_with_few() {
        let queues = Queues::new(Shape { length: 100, ..SHAPE });
        let greedy = (0..100).map(|_| {
            let queues = queues.clone();
            tokio::spawn(async move {
                let seat = queues.enter(0, soon()).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                drop(seat);
            })
        });
        let greedy: Vec<_> = greedy.collect();
        tokio::task::yield_now().await;
        // A hash with other queues.
        let modest = (1..1000).find(|hash| {
            hand(*hash, 8, 2)
                .iter()
                .all(|queue| !hand(0, 8, 2).contains(queue))
        });
        for _ in 0..5 {
            let begun = Instant::now();
            let seat = queues.enter(modest.unwrap(), soon()).await.unwrap();
            assert!(
                begun.elapsed() <= Duration::from_millis(100),
                "{:?}",
                begun.elapsed()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
            drop(seat);
        }
        join_all(greedy).await;
        assert_eq!(lock(&queues.state).free, SHAPE.seats);
    }

    #[tokio::test(start_paused = true)]
    async fn a_seat_that_comes_too_late_is_given_on() {
        let queues = Queues::new(Shape { seats: 1, ..SHAPE });
        let seat = queues.enter(1, soon()).await.unwrap();
        let mut given_up = Box::pin(queues.enter(1, soon()));
        assert!(given_up.as_mut().now_or_never().is_none());
        let mut patient = Box::pin(queues.enter(1, soon()));
        assert!(patient.as_mut().now_or_never().is_none());
        drop(seat);
        drop(given_up);
        patient.await.unwrap();
        assert_eq!(lock(&queues.state).free, 1);
    }
}
