//! Thread priorities, for when every core is busy.
//!
//! A commit waits for the disk and then for a core. Among busy threads of equal priority the latter takes a scheduler tick,
//! many times the time of the disk. So everything that can wait has a lower priority than the commit thread: workers, which
//! read, decode and encode, by [`WORKER_NICENESS`], and the background work of the storage engine by still more. Priorities
//! are niceness values, which any thread may raise and none may lower without privilege, and which a thread inherits from
//! the one that started it. So the commit thread must not be started by a worker: see [`beside_workers`].

use std::io;

use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// Niceness of workers above the thread that creates the runtime: they get a third of its share of a core.
const WORKER_NICENESS: i32 = 5;
/// Name of the workers, blocking ones included.
const WORKER: &str = "drydock-worker";

/// A runtime whose workers have a lower priority than the calling thread.
///
/// # Errors
/// The system cannot create threads or sockets.
pub fn runtime() -> io::Result<Runtime> {
    // A worker may start another: computed here, since what that one inherits is already raised.
    let niceness = getpriority_process(None)? + WORKER_NICENESS;
    Builder::new_multi_thread()
        .enable_all()
        .thread_name(WORKER)
        .on_thread_start(move || {
            if let Err(error) = setpriority_process(None, niceness) {
                tracing::warn!(%error, "cannot lower the priority of a worker below that of commits");
            }
        })
        .build()
}

/// Runs blocking work on a new thread with the priority of the calling thread, which is not that of a worker if it is the
/// main thread. Threads that the work starts have this priority too. None if the work panicked.
///
/// # Errors
/// The system cannot create a thread.
pub async fn beside_workers<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("drydock-start".to_owned())
        .spawn(move || drop(sender.send(work())))?;
    Ok(receiver.await.ok())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use drydock_storage::{Key, Store, Transaction, Value};

    use super::*;
    use crate::backend;
    use crate::config::{Durability, StorageConfig};

    /// The niceness of the threads of this process, by name.
    fn niceness_by_name() -> BTreeMap<String, Vec<i32>> {
        let mut ranks = BTreeMap::<String, Vec<i32>>::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            // A thread may have ended meanwhile.
            let Ok(stat) = std::fs::read_to_string(task.unwrap().path().join("stat")) else {
                continue;
            };
            let (head, tail) = stat.rsplit_once(") ").unwrap();
            let name = head.split_once('(').unwrap().1.to_owned();
            let nice = tail.split(' ').nth(16).unwrap().parse().unwrap();
            ranks.entry(name).or_default().push(nice);
        }
        ranks
    }

    #[test]
    fn commits_have_priority_over_workers_and_workers_over_the_engine() {
        let root = tempfile::tempdir().unwrap();
        let own = getpriority_process(None).unwrap();
        let runtime = runtime().unwrap();
        let config = StorageConfig {
            etcd: None,
            data_dir: root.path().to_owned(),
            durability: Durability::Strict,
            history_window: Duration::from_mins(5),
            object_bytes_limit: 0,
            any_file_system: true,
            incremental_backup_dir: None,
            check_interval: Duration::ZERO,
        };
        let store = runtime.block_on(backend::open(&config)).unwrap();
        let write = async {
            let key = Key::new("g", "r", "", "n").unwrap();
            let value = Value {
                bytes: "x".into(),
                form: "g/v1".into(),
                splice_offset: 0,
            };
            store.transact(Transaction::create(key, value)).await.unwrap();
            // A worker for blocking work that a worker starts.
            let work = tokio::spawn(async { tokio::task::spawn_blocking(|| ()).await });
            work.await.unwrap().unwrap();
        };
        runtime.block_on(write);
        let ranks = niceness_by_name();
        for (name, expected) in [
            ("storage-commit", own),
            ("drydock-worker", own + WORKER_NICENESS),
            ("rocksdb:high", own + 10),
            ("rocksdb:low", own + 10),
        ] {
            let found = ranks.get(name).map(Vec::as_slice).unwrap_or_default();
            assert!(!found.is_empty(), "{name} is not among {ranks:?}");
            assert!(found.iter().all(|rank| *rank == expected), "{name}: {ranks:?}");
        }
    }
}
