//! How often the thread of the controllers wakes.
//!
//! In a drain, servers send something every millisecond. A thread that wakes for each of these messages finds the caches of
//! its core filled by others, and answers each with a write of its own. So the thread wakes at most once an interval. What
//! has arrived by then is read, decided and sent together, in fewer and larger messages, which spares the servers and whoever
//! watches them too. After an idle interval it wakes at once.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use crate::sync::lock;

/// The shortest time between two wakeups. It delays what follows an answer of a server, a few times for each eviction.
const INTERVAL: Duration = Duration::from_millis(75);

/// A runtime of one thread, which wakes at most once an interval.
///
/// # Errors
///
/// The system cannot create sockets.
pub fn runtime() -> io::Result<Runtime> {
    let woke_at = Arc::new(Mutex::new(None));
    let wakes = Arc::clone(&woke_at);
    Builder::new_current_thread()
        .on_thread_unpark(move || *lock(&wakes) = Some(Instant::now()))
        .on_thread_park(move || {
            let woke_at = *lock(&woke_at);
            thread::sleep(remaining(woke_at, Instant::now()));
        })
        .enable_all()
        .build()
}

/// How much of the interval is left.
fn remaining(woke_at: Option<Instant>, now: Instant) -> Duration {
    let passed = woke_at.map_or(INTERVAL, |at| now.saturating_duration_since(at));
    INTERVAL.saturating_sub(passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakeups_are_an_interval_apart_unless_the_thread_was_idle() {
        let now = Instant::now();
        assert_eq!(remaining(None, now), Duration::ZERO);
        assert_eq!(remaining(Some(now), now), INTERVAL);
        assert_eq!(remaining(Some(now), now + INTERVAL / 5), INTERVAL * 4 / 5);
        assert_eq!(remaining(Some(now), now + INTERVAL * 2), Duration::ZERO);
        assert_eq!(remaining(Some(now + INTERVAL), now), INTERVAL);
    }

    /// What arrives while the thread sleeps is not missed.
    #[test]
    fn runtime_handles_what_other_threads_send() {
        let runtime = runtime().unwrap();
        let (sender, mut sent) = tokio::sync::mpsc::channel(1);
        let sending = thread::spawn(move || (0..5).try_for_each(|number| sender.blocking_send(number)));
        let numbers = runtime.block_on(async {
            let mut numbers = Vec::new();
            while let Some(number) = sent.recv().await {
                numbers.push(number);
            }
            numbers
        });
        sending.join().unwrap().unwrap();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    }
}
