//! Whose turn is it when every core is busy?
//!
//! A commit waits for the disk, and then for a core: beside busy threads of equal rank that is a tick of the scheduler,
//! many times what the disk takes. So everything that can wait ranks lower than the commit thread: workers, which read,
//! decode and encode, by [`WORKERS_YIELD`], and the engine's background work, which the storage ranks lower still.
//! Ranks are niceness, which any thread may raise and none may lower without privilege, and which a thread has from the
//! one that started it. So the commit thread must not descend from a worker: see [`beside_workers`].

use std::io;

use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// How much nicer workers are than the thread that makes their runtime: a third of its share of a core.
const WORKERS_YIELD: i32 = 5;
/// Name of the workers, also of those for blocking work.
const WORKER: &str = "drydock-worker";

/// A runtime whose workers yield to threads that do not descend from them.
///
/// # Errors
/// The system has no threads or sockets to give.
pub fn runtime() -> io::Result<Runtime> {
    // A worker may be started by a worker: what it inherits is no base to count from.
    let rank = getpriority_process(None)? + WORKERS_YIELD;
    Builder::new_multi_thread()
        .enable_all()
        .thread_name(WORKER)
        .on_thread_start(move || {
            if let Err(error) = setpriority_process(None, rank) {
                tracing::warn!(%error, "a worker does not yield to commits");
            }
        })
        .build()
}

/// Runs what blocks on a thread of the rank of the one that asks: no worker's, if that is the main thread. Threads that
/// are started in there have that rank too. None if it panicked.
///
/// # Errors
/// The system has no thread to give.
pub async fn beside_workers<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new()
        .name("drydock-start".to_owned())
        .spawn(move || drop(tell.send(work())))?;
    Ok(told.await.ok())
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
    fn ranks() -> BTreeMap<String, Vec<i32>> {
        let mut ranks = BTreeMap::<String, Vec<i32>>::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            // Threads end while this looks.
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
    fn commits_go_before_workers_and_workers_before_the_work_of_the_engine() {
        let root = tempfile::tempdir().unwrap();
        let own = getpriority_process(None).unwrap();
        let runtime = runtime().unwrap();
        let config = StorageConfig {
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
        let ranks = ranks();
        for (name, expected) in [
            ("storage-commit", own),
            ("drydock-worker", own + WORKERS_YIELD),
            ("rocksdb:high", own + 10),
            ("rocksdb:low", own + 10),
        ] {
            let found = ranks.get(name).map(Vec::as_slice).unwrap_or_default();
            assert!(!found.is_empty(), "{name} is not among {ranks:?}");
            assert!(found.iter().all(|rank| *rank == expected), "{name}: {ranks:?}");
        }
    }
}
