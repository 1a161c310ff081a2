//! When watches must end before their timeout.
//!
//! Two cases. With the server: all watches end, spread over a time, each with a last bookmark. After a reload of the
//! cache after a gap: watches that have missed events expire, spread over [`CacheLimits::stagger`], so that their
//! clients do not all list at once. Each watch has a random offset in these windows, its *stagger*, from 0 to 1.
//!
//! A cache that was found to differ from the store starts a new *generation*: what watches of an older generation
//! have sent may be wrong, so they expire and must not resume.
//!
//! [`CacheLimits::stagger`]: super::CacheLimits::stagger

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::lock::lock;

/// The early ends of all watches of a cache. See the module.
#[derive(Debug)]
pub(super) struct Termination {
    /// When the watches started to end with the server, and over how long.
    shutdown: OnceLock<(Instant, Duration)>,
    /// When the cache was last reloaded after a gap.
    reloaded: Mutex<Option<Instant>>,
    generation: AtomicU64,
    /// The time over which watches expire after a reload.
    window: Duration,
}

impl Termination {
    pub(super) fn new(window: Duration) -> Self {
        Self {
            shutdown: OnceLock::new(),
            reloaded: Mutex::default(),
            generation: AtomicU64::new(0),
            window,
        }
    }

    /// Ends all watches from now on, spread over `window`. Only the first call counts.
    pub(super) fn shut_down(&self, window: Duration) {
        let _later = self.shutdown.set((Instant::now(), window)).is_err();
    }

    /// When the watch at `stagger` ends with the server; none while the server does not end.
    pub(super) fn shutdown_at(&self, stagger: f64) -> Option<Instant> {
        let (from, window) = self.shutdown.get()?;
        Some(*from + window.mul_f64(stagger))
    }

    /// Notes a reload after a gap; none for the first load, which no watch has seen.
    pub(super) fn note_reload(&self, at: Option<Instant>) {
        *lock(&self.reloaded) = at;
    }

    /// When the watch at `stagger` expires: at once, or within the window after a reload.
    pub(super) fn expire_at(&self, stagger: f64) -> Instant {
        let now = Instant::now();
        let reloaded = *lock(&self.reloaded);
        match reloaded.filter(|at| now.duration_since(*at) < self.window) {
            Some(at) => at + self.window.mul_f64(stagger),
            None => now,
        }
    }

    /// Starts a new generation: watches of the one before expire.
    pub(super) fn start_generation(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
}
