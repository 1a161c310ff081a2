//! Threads when every core is busy: their priorities, and work that would hold up the workers.
//!
//! A commit waits for the disk and then for a core. Among busy threads of equal priority the latter takes a scheduler tick,
//! many times the time of the disk. So everything that can wait has a lower priority than the commit thread: workers, which
//! read, decode and encode, by [`WORKER_NICENESS`], and the background work of the storage engine by still more. Priorities
//! are niceness values, which any thread may raise and none may lower without privilege, and which a thread inherits from
//! the one that started it. So the commit thread must not be started by a worker: see [`beside_workers`].

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::block_in_place;

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

/// Bodies and objects from this size on are processed beside the workers, see [`Heavy`]: they take some milliseconds.
pub const HEAVY_BYTES: usize = 64 * 1024;
/// How many heavy requests compute at the same time, on any number of cores.
const HEAVY_AT_ONCE: usize = 4;
static HEAVY: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(HEAVY_AT_ONCE)));

thread_local! {
    /// Whether a [`Heavy`] future is being polled on this thread.
    static IS_HEAVY: Cell<bool> = const { Cell::new(false) };
}

/// Marks the thread until dropped, also by a panic.
struct Inside;

impl Inside {
    fn enter() -> Self {
        IS_HEAVY.set(true);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_HEAVY.set(false);
    }
}

/// A future that computes for long between its awaits, such as a write of a large object.
///
/// It is polled beside the workers: tokio starts another worker for the other requests meanwhile, so that health checks
/// and small requests go on however many large ones there are. At most [`HEAVY_AT_ONCE`] compute at the same time, in the
/// order of their arrival; one that awaits something lets the next compute. Inside another one it needs no place of its
/// own: with a place each, requests that hold the outer ones would wait for the inner ones for ever. Within a runtime of a
/// single thread, as in tests, it is polled like any other future.
pub struct Heavy<F> {
    inner: Pin<Box<F>>,
    slots: Arc<Semaphore>,
    waiting: Option<BoxFuture<'static, Result<OwnedSemaphorePermit, AcquireError>>>,
}

impl<F> Heavy<F> {
    /// Computes `inner` beside the workers.
    #[must_use]
    pub fn new(inner: F) -> Self {
        Self::among(inner, &HEAVY)
    }

    fn among(inner: F, slots: &Arc<Semaphore>) -> Self {
        Self {
            inner: Box::pin(inner),
            slots: Arc::clone(slots),
            waiting: None,
        }
    }
}

impl<F: Future> Future for Heavy<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        if IS_HEAVY.get() {
            return this.inner.as_mut().poll(context);
        }
        let slots = &this.slots;
        let waiting = this
            .waiting
            .get_or_insert_with(|| Arc::clone(slots).acquire_owned().boxed());
        // The semaphore is never closed. If it were, the future would run without a place.
        let _place = ready!(waiting.poll_unpin(context)).ok();
        this.waiting = None;
        let inner = this.inner.as_mut();
        let _inside = Inside::enter();
        match Handle::current().runtime_flavor() {
            RuntimeFlavor::MultiThread => block_in_place(|| inner.poll(context)),
            _ => inner.poll(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;
    use std::time::Duration;

    use drydock_storage::{Key, Store, Transaction, Value};

    use super::*;
    use crate::backend;
    use crate::config::{Durability, StorageConfig};
    use crate::encryption::Encryption;

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

    /// Heavy futures compute until they are told to end; a single worker serves others meanwhile, and only as many compute at
    /// once as there are places.
    #[test]
    fn heavy_futures_leave_the_workers_to_others() {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let slots = Arc::new(Semaphore::new(2));
        let (started, starts) = mpsc::sync_channel(3);
        let mut ends = BTreeMap::new();
        let mut tasks = Vec::new();
        for index in 0..3 {
            let (end, told) = mpsc::sync_channel::<()>(1);
            ends.insert(index, end);
            let started = started.clone();
            let work = async move {
                started.send(index).unwrap();
                told.recv().unwrap();
                index
            };
            tasks.push(runtime.spawn(Heavy::among(work, &slots)));
        }
        let computing = [starts.recv().unwrap(), starts.recv().unwrap()];
        // Nothing but this task can have made the worker free: both futures compute, and the third waits for a place.
        assert_eq!(runtime.block_on(runtime.spawn(async { 7 })).unwrap(), 7);
        assert!(starts.try_recv().is_err());
        ends[&computing[0]].send(()).unwrap();
        let third = starts.recv().unwrap();
        assert!(!computing.contains(&third));
        for index in [computing[1], third] {
            ends[&index].send(()).unwrap();
        }
        let all = runtime.block_on(futures_util::future::join_all(tasks));
        assert_eq!(all.into_iter().map(Result::unwrap).sum::<i32>(), 3);
    }

    /// A future that awaits gives its place to another.
    #[tokio::test]
    async fn heavy_futures_inside_others_need_no_place() {
        let slots = Arc::new(Semaphore::new(1));
        let nested = || {
            let inner = Heavy::among(tokio::task::yield_now(), &slots);
            Heavy::among(inner, &slots)
        };
        let all = futures_util::future::join_all((0..8).map(|_| nested()));
        tokio::time::timeout(Duration::from_mins(1), all).await.unwrap();
    }

    #[tokio::test]
    async fn heavy_futures_hold_a_place_only_while_they_compute() {
        let slots = Arc::new(Semaphore::new(1));
        let (teller, told) = oneshot::channel();
        let waits = Heavy::among(told, &slots);
        let tells = Heavy::among(async { teller.send(7) }, &slots);
        assert_eq!(tokio::join!(waits, tells), (Ok(7), Ok(())));
    }

    #[test]
    fn commits_have_priority_over_workers_and_workers_over_the_engine() {
        let root = tempfile::tempdir().unwrap();
        let own = getpriority_process(None).unwrap();
        let runtime = runtime().unwrap();
        let config = StorageConfig {
            etcd: None,
            encryption: None,
            data_dir: root.path().to_owned(),
            durability: Durability::Strict,
            history_window: Duration::from_mins(5),
            object_bytes_limit: 0,
            any_file_system: true,
            incremental_backup_dir: None,
            check_interval: Duration::ZERO,
        };
        let encryption = runtime.block_on(Encryption::load(None)).unwrap();
        let store = runtime.block_on(backend::open(&config, &encryption)).unwrap();
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
