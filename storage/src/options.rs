//! Options of a store on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use rustix::fs::statvfs;
use uuid::Uuid;

use crate::clock::{Clock, SystemClock};
use crate::seal::{Seal, Unsealed};

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// A kill of the process and a loss of power.
    #[default]
    Strict,
    /// A kill of the process; a loss of power may lose the writes of the last interval.
    Relaxed {
        /// How often the log is synced.
        interval: Duration,
    },
}

/// Space on a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpace {
    /// Available to this process.
    pub free: u64,
    /// The size of the file system.
    pub total: u64,
}

/// Measures the space of the disk that holds a folder.
pub type MeasureDisk = dyn Fn(&Path) -> io::Result<FreeSpace> + Send + Sync;

fn free_space(folder: &Path) -> io::Result<FreeSpace> {
    let found = statvfs(folder)?;
    Ok(FreeSpace {
        free: found.f_bavail.saturating_mul(found.f_frsize),
        total: found.f_blocks.saturating_mul(found.f_frsize),
    })
}

/// Options of a store on disk. [`Options::new`] returns the defaults of a server.
#[derive(Clone)]
pub struct Options {
    /// The folder of the store; created if missing.
    pub path: PathBuf,
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// How far back exact lists reach. Default 5 min.
    pub window: Duration,
    /// What the window shrinks to if history exceeds [`Options::history_bytes`] or the disk fills. Default 75 s.
    pub minimum_window: Duration,
    /// How many revisions stay watchable beyond the window. Default 10,000.
    pub watchable_revisions: u64,
    /// How large history may grow before the window shrinks. Default 2 GiB.
    pub history_bytes: u64,
    /// Limit for the uncompressed bytes of all values; 0: none. At the limit, writes that make the store larger are
    /// refused: all values are kept in memory. Default 1.5 GiB.
    pub object_bytes: u64,
    /// How many writes may be queued. Default 4,096.
    pub queue_writes: usize,
    /// How many bytes of writes may be queued. Default 64 MiB.
    pub queue_bytes: usize,
    /// How long to wait for another process to release the folder. Default 30 s.
    pub lock_wait: Duration,
    /// Accept file systems that cannot guarantee durability: network mounts, overlays, memory. Default false.
    pub any_file_system: bool,
    /// How many syncs to time at the start, to warn about slow disks; 0: none. Default 50.
    pub probe_syncs: u32,
    /// Size of a file to be removed by hand if the disk is full; 0: none. Default 256 MiB.
    pub ballast_bytes: u64,
    /// Run the periodic work (syncing the mark, compaction, measuring the disk) on threads. Default true; tests that
    /// advance time call [`RocksStore::run_housekeeping`](crate::rocks::RocksStore::keep_house) themselves.
    pub background_work: bool,
    /// How often every value is read and compared with its checksums; zero: never. Default 7 days. Needs
    /// [`Options::background_work`].
    pub check_every: Duration,
    /// Measures the disk of the folder. Default: what the file system reports.
    pub measure_disk: Arc<MeasureDisk>,
    /// The id of this boot of the machine: after another boot, writes that were not synced may be lost. Default: the id of
    /// the system; nil, if it has none, counts as another boot each time.
    pub boot_id: Uuid,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// Encryption at rest.
    pub seal: Arc<dyn Seal>,
}

impl Options {
    /// The defaults, for a store in the folder `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            durability: Durability::Strict,
            window: Duration::from_mins(5),
            minimum_window: Duration::from_secs(75),
            watchable_revisions: 10_000,
            history_bytes: 2 << 30,
            object_bytes: 3 << 29,
            queue_writes: 4096,
            queue_bytes: 64 << 20,
            lock_wait: Duration::from_secs(30),
            any_file_system: false,
            probe_syncs: 50,
            ballast_bytes: 256 << 20,
            background_work: true,
            check_every: Duration::from_hours(24 * 7),
            measure_disk: Arc::new(free_space),
            boot_id: boot_id(),
            clock: Arc::new(SystemClock),
            seal: Arc::new(Unsealed),
        }
    }

    /// The defaults for tests: any file system, no timed syncs, no ballast, no waiting for the lock, and a disk that never
    /// fills up.
    #[must_use]
    pub fn for_tests(path: impl Into<PathBuf>) -> Self {
        Self {
            any_file_system: true,
            probe_syncs: 0,
            ballast_bytes: 0,
            lock_wait: Duration::ZERO,
            measure_disk: Arc::new(|_| {
                Ok(FreeSpace {
                    free: 1 << 40,
                    total: 1 << 40,
                })
            }),
            ..Self::new(path)
        }
    }
}

/// The id of this boot of the machine; nil if the system has none.
fn boot_id() -> Uuid {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Uuid::parse_str(text.trim()).unwrap_or(Uuid::nil())
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("path", &self.path)
            .field("durability", &self.durability)
            .field("window", &self.window)
            .field("minimum_window", &self.minimum_window)
            .field("watchable_revisions", &self.watchable_revisions)
            .field("history_bytes", &self.history_bytes)
            .field("object_bytes", &self.object_bytes)
            .field("queue_writes", &self.queue_writes)
            .field("queue_bytes", &self.queue_bytes)
            .field("any_file_system", &self.any_file_system)
            .finish_non_exhaustive()
    }
}
