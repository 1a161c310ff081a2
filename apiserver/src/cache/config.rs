//! What one cache holds, and its bounds in memory and time.

use std::sync::Arc;
use std::time::Duration;

use super::metrics::CacheMetrics;
use super::object::Extract;

/// What a cache holds, and how.
#[derive(Clone)]
pub struct CacheConfig {
    /// The API group of the stored objects.
    pub group: String,
    /// Their plural resource.
    pub resource: String,
    /// Reads labels and fields of a payload.
    pub extract: Arc<Extract>,
    /// Bounds in memory and time.
    pub limits: CacheLimits,
    /// The metrics, shared by all caches of the process.
    pub metrics: CacheMetrics,
    /// The seed of all jitter.
    pub seed: u64,
}

/// Bounds of a cache in memory and time.
#[derive(Debug, Clone)]
pub struct CacheLimits {
    /// The memory for the event history in bytes: old values, encoded frames, class logs and shared buffers.
    pub history_bytes: u64,
    /// How long events and past states are kept at most.
    pub window: Duration,
    /// How long a read waits for a revision.
    pub read_wait: Duration,
    /// How many watches may read the store's history at the same time, each for one buffer. The same number of
    /// streams is kept open for watches whose clients are slow.
    pub replays: usize,
    /// How many past states may be read from the store at the same time. Each holds all its objects.
    pub past_reads: usize,
    /// The time over which the ends of watches are spread when all of them must end at once.
    pub stagger: Duration,
    /// The time between two comparisons with the store; up to half of it is added at random.
    pub check_period: Duration,
    /// Whether the process aborts when the cache differs from the store, instead of reloading it: for tests.
    pub abort_on_difference: bool,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            history_bytes: 256 << 20,
            window: Duration::from_mins(5),
            read_wait: Duration::from_secs(3),
            replays: 8,
            past_reads: 2,
            stagger: Duration::from_secs(10),
            check_period: Duration::from_mins(5),
            abort_on_difference: false,
        }
    }
}
