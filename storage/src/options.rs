//! How is a store on disk to behave?

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use rustix::fs::statvfs;
use uuid::Uuid;

use crate::clock::{Clock, SystemClock};
use crate::seal::{Seal, Unsealed};

/// What an answered write means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// It survives a kill of the process and a loss of power.
    #[default]
    Strict,
    /// It survives a kill of the process; a loss of power may take what was written within the last interval.
    Relaxed {
        /// How often the log is synced.
        interval: Duration,
    },
}

/// Room on a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpace {
    /// Free for this process.
    pub free: u64,
    /// Free or not.
    pub total: u64,
}

/// How room is measured.
pub type MeasureDisk = dyn Fn(&Path) -> io::Result<FreeSpace> + Send + Sync;

fn free_space(folder: &Path) -> io::Result<FreeSpace> {
    let found = statvfs(folder)?;
    Ok(FreeSpace {
        free: found.f_bavail.saturating_mul(found.f_frsize),
        total: found.f_blocks.saturating_mul(found.f_frsize),
    })
}

/// Everything that can be chosen about a store on disk. [`Options::new`] gives what a server wants.
#[derive(Clone)]
pub struct Options {
    /// The folder of the store; made when missing.
    pub path: PathBuf,
    /// What an answered write means.
    pub durability: Durability,
    /// How far back exact lists reach. Default 5 min.
    pub window: Duration,
    /// What the window shrinks to when history outgrows [`Options::history_bytes`] or the disk fills. Default 75 s.
    pub minimum_window: Duration,
    /// How many revisions stay watchable beyond the window. Default 10,000.
    pub watchable_revisions: u64,
    /// How large history may grow before the window shrinks. Default 2 GiB.
    pub history_bytes: u64,
    /// How large all values together may grow, uncompressed; 0 = no limit. Above it, nothing that makes the store
    /// larger is taken: each value is kept in memory. Default 1.5 GiB.
    pub object_bytes: u64,
    /// How many writes may wait. Default 4,096.
    pub queue_writes: usize,
    /// How many bytes of writes may wait. Default 64 MiB.
    pub queue_bytes: usize,
    /// How long to wait for another process to let go of the folder. Default 30 s.
    pub lock_wait: Duration,
    /// Take file systems that cannot keep the promises: network mounts, overlays, memory. Default false.
    pub any_file_system: bool,
    /// How many syncs to time at the start, to warn of slow disks; 0 = none. Default 50.
    pub probe_syncs: u32,
    /// Size of a file to be removed by hand when the disk is full; 0 = none. Default 256 MiB.
    pub ballast_bytes: u64,
    /// Run the periodic work (syncing the mark, compaction, watching the disk) on a thread. Default true; tests
    /// that advance time call [`RocksStore::run_housekeeping`](crate::rocks::RocksStore::keep_house) themselves.
    pub background_work: bool,
    /// How often every value is read and compared with its checksums; zero = never. Default 7 days. Needs
    /// [`Options::background_work`].
    pub check_every: Duration,
    /// Tells the free bytes of the disk under a folder. Default: what the file system says.
    pub measure_disk: Arc<MeasureDisk>,
    /// Names this boot of the machine: what one boot wrote without a sync, the next one may not find. Default: what
    /// the system says; nil, where it says nothing, is taken for another boot each time.
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

    /// The defaults for a throw-away store: any file system, no probe, no ballast, no
    /// waiting for the lock, and a disk that never fills up.
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

/// The id of this boot of the machine; all zero where the system has none.
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
