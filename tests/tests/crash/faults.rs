//! Failures without a crash: a write with an unknown outcome is not served, no other write follows, and a reopen
//! decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drydock_storage::rocks::{OpenError, Progress, RocksStore, recover, restore};
use drydock_storage::{
    At, Durability, Events, Health, Key, KeyRange, Options, Outcome, Revision, Signal, Store, StoreError,
    Transaction,
};
use tempfile::TempDir;
use tokio::sync::{RwLock, RwLockWriteGuard};
use tokio::task::JoinSet;

use crate::journal::{key, value};
use crate::truth::state_at;

/// Failpoints are global: a test that injects a fault takes the write lock, the others the read lock.
pub(crate) static FAILPOINTS: RwLock<()> = RwLock::const_new(());

struct Injected {
    point: &'static str,
    _alone: RwLockWriteGuard<'static, ()>,
}

impl Injected {
    /// Takes the lock; nothing is injected before [`Injected::begin`].
    async fn at(point: &'static str) -> Self {
        Self {
            point,
            _alone: FAILPOINTS.write().await,
        }
    }

    fn begin(&self, actions: &str) {
        fail::cfg(self.point, actions).unwrap();
    }

    fn end(&self) {
        fail::remove(self.point);
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        self.end();
    }
}

fn open(root: &TempDir) -> RocksStore {
    let options = Options {
        background_work: false,
        lock_wait: Duration::from_secs(10),
        ..Options::for_tests(root.path())
    };
    RocksStore::open(options).unwrap().0
}

/// One write succeeds, the outcome of the next is unknown. Returns whether it turns out to have happened.
async fn unknown_outcome(point: &'static str, actions: &str) -> bool {
    let root = TempDir::new().unwrap();
    let injected = Injected::at(point).await;
    let store = open(&root);
    store
        .transact(Transaction::create(key(1), value(1)))
        .await
        .unwrap();
    let mut events = store.watch(&KeyRange::all(), Revision(3)).await.unwrap();
    injected.begin(actions);
    let answer = store.transact(Transaction::create(key(2), value(2))).await;
    assert!(
        matches!(answer, Err(StoreError::Unknown { .. })),
        "{point}: {answer:?}"
    );
    injected.end();

    assert!(matches!(store.health(), Health::Failed(_)), "{point}");
    let refused = store.transact(Transaction::create(key(3), value(3))).await;
    assert!(
        matches!(refused, Err(StoreError::ReadOnly { .. })),
        "{point}: {refused:?}"
    );
    // Published writes are served, the one with the unknown outcome is not.
    assert_eq!(store.current_revision().await.unwrap(), Revision(2));
    assert!(store.get(&key(1)).await.unwrap().entry.is_some());
    assert_eq!(store.get(&key(2)).await.unwrap().entry, None);
    assert_eq!(state_at(&store, At::Latest).await.len(), 1, "{point}");
    store.request_progress();
    let signal = tokio::time::timeout(Duration::from_secs(10), events.next())
        .await
        .unwrap();
    assert_eq!(signal, Some(Signal::Progress(Revision(2))), "{point}");
    store.close(Duration::from_secs(10)).await.unwrap();
    drop(store);

    // The log decides.
    let store = open(&root);
    let happened = store.get(&key(2)).await.unwrap().entry.is_some();
    let current = store.current_revision().await.unwrap();
    assert_eq!(
        current,
        if happened { Revision(3) } else { Revision(2) },
        "{point}"
    );
    let next = store
        .transact(Transaction::create(key(4), value(4)))
        .await
        .unwrap();
    assert_eq!(
        next,
        Outcome::Committed {
            revision: current.next()
        }
    );
    happened
}

/// The engine writes and syncs, then reports an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_that_happened_is_hidden_until_the_store_is_reopened() {
    assert!(unknown_outcome("engine-written", "1*return").await);
}

/// Maintenance fails; earlier acknowledged writes are served, also after a reopen.
async fn failed_sync(point: &'static str, durability: Durability) {
    let root = TempDir::new().unwrap();
    let injected = Injected::at(point).await;
    let options = Options {
        durability,
        background_work: false,
        lock_wait: Duration::from_secs(10),
        ..Options::for_tests(root.path())
    };
    let store = RocksStore::open(options.clone()).unwrap().0;
    for number in 0..10 {
        let create = Transaction::create(key(number), value(1));
        store.transact(create).await.unwrap();
    }
    // The second one fails.
    injected.begin("1*off->1*return");
    store.run_housekeeping();
    assert_eq!(store.health(), Health::Ready, "{point}");
    store.run_housekeeping();
    assert!(matches!(store.health(), Health::Failed(_)), "{point}");
    let refused = store.transact(Transaction::create(key(11), value(1))).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly { .. })), "{refused:?}");
    let shown = state_at(&store, At::Latest).await;
    assert_eq!(shown.len(), 10, "{point}");
    drop(store);
    let (store, opened) = RocksStore::open(options).unwrap();
    assert_eq!(opened.revision, 11, "{point}");
    assert_eq!(state_at(&store, At::Latest).await, shown, "{point}");
    drop(injected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_poisons_the_store() {
    let relaxed = Durability::Relaxed {
        interval: Duration::from_secs(1),
    };
    failed_sync("mark-sync", Durability::Strict).await;
    failed_sync("mark-sync", relaxed).await;
    failed_sync("engine-sync-log", relaxed).await;
}

/// The memtables cannot be flushed: the log still has everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_flush_at_close_loses_nothing() {
    for family in 1..=3 {
        let root = TempDir::new().unwrap();
        let injected = Injected::at("engine-flush").await;
        let store = open(&root);
        let create = Transaction::create(key(1), value(1));
        store.transact(create).await.unwrap();
        injected.begin(["1*return", "1*off->1*return", "2*off->1*return"][family - 1]);
        assert!(store.close(Duration::from_secs(10)).await.is_err());
        injected.end();
        assert_eq!(state_at(&open(&root), At::Latest).await.len(), 1);
    }
}

/// Each sync takes 50 ms: batches grow, writes beyond the queue are rejected at once, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_disk_makes_large_batches_and_a_full_queue_rejects() {
    let root = TempDir::new().unwrap();
    let injected = Injected::at("commit-before-sync").await;
    let options = Options {
        background_work: false,
        queue_writes: 32,
        lock_wait: Duration::from_secs(10),
        ..Options::for_tests(root.path())
    };
    let store = RocksStore::open(options.clone()).unwrap().0;
    let batches = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&batches);
    fail::cfg_callback("commit-before-sync", move || {
        counted.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(50));
    })
    .unwrap();
    let mut clients: JoinSet<_> = JoinSet::new();
    for client in 0..64 {
        let store = store.clone();
        clients.spawn(async move {
            let (mut committed, mut refused) = (BTreeSet::new(), 0);
            for number in 0..6 {
                let number = client * 6 + number;
                match store
                    .transact(Transaction::create(key(number), value(number as u64)))
                    .await
                {
                    Ok(Outcome::Committed { .. }) => drop(committed.insert(key(number))),
                    Err(StoreError::Busy { retry_after }) => {
                        assert!(retry_after >= Duration::from_secs(1));
                        refused += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            (committed, refused)
        });
    }
    let (mut committed, mut refused) = (BTreeSet::new(), 0);
    while let Some(ended) = clients.join_next().await {
        let (more, others) = ended.unwrap();
        committed.extend(more);
        refused += others;
    }
    let batches = batches.load(Ordering::Relaxed);
    assert!(refused > 0, "64 clients fit into a queue of 32");
    assert!(
        committed.len() > batches * 4,
        "{} writes in {batches} batches",
        committed.len()
    );
    assert_eq!(store.health(), Health::Ready);
    injected.end();
    drop(store);
    let store = RocksStore::open(options).unwrap().0;
    let found: BTreeSet<Key> = state_at(&store, At::Latest).await.into_keys().collect();
    assert_eq!(found, committed);
    drop(injected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_poisons_the_store() {
    unknown_outcome("engine-write", "1*return(failed)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_cannot_be_written_poisons_the_store() {
    unknown_outcome("mark-write", "1*return").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_commit_thread_poisons_the_store() {
    for point in ["commit-before-sync", "commit-after-sync", "commit-before-publish"] {
        unknown_outcome(point, "1*panic(injected)").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_write_is_retried() {
    let root = TempDir::new().unwrap();
    let injected = Injected::at("engine-write").await;
    let store = open(&root);
    injected.begin("5*return(stalled)");
    let answer = store
        .transact(Transaction::create(key(1), value(1)))
        .await
        .unwrap();
    assert_eq!(
        answer,
        Outcome::Committed {
            revision: Revision(2)
        }
    );
    assert_eq!(store.health(), Health::Ready);
    assert!(store.metrics().stalls_seconds.get() > 0.02);
    drop(injected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_rejects_with_a_retry_time() {
    let root = TempDir::new().unwrap();
    let injected = Injected::at("engine-write").await;
    let options = Options {
        background_work: false,
        queue_writes: 4,
        ..Options::for_tests(root.path())
    };
    let store = RocksStore::open(options).unwrap().0;
    injected.begin("return(stalled)");
    let create = |number: usize| {
        let store = store.clone();
        tokio::spawn(async move { store.transact(Transaction::create(key(number), value(1))).await })
    };
    let in_progress = create(0);
    while store.metrics().stalls_seconds.get() == 0.0 {
        tokio::task::yield_now().await;
    }
    // The first one is in progress, four wait, the rest is rejected.
    let mut others: JoinSet<_> = JoinSet::new();
    for number in 1..12 {
        let answer = create(number);
        others.spawn(async move { answer.await.unwrap() });
    }
    for _ in 0..7 {
        match others.join_next().await.unwrap().unwrap() {
            Err(StoreError::Busy { retry_after }) => assert!(retry_after >= Duration::from_secs(1)),
            other => panic!("{other:?}"),
        }
    }
    injected.end();
    while let Some(answer) = others.join_next().await {
        assert!(matches!(answer.unwrap(), Ok(Outcome::Committed { .. })));
    }
    in_progress.await.unwrap().unwrap();
    assert_eq!(store.current_revision().await.unwrap(), Revision(6));
    drop(injected);
}

/// Runs a function that panics at an injected fault, as if the process was killed there.
fn dies(run: impl FnOnce()) {
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    assert!(ended.is_err(), "the fault was not reached");
}

fn quiet(_: Progress) {}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_restore_is_not_a_store() {
    let root = TempDir::new().unwrap();
    let injected = Injected::at("restore-before-finish").await;
    let store = RocksStore::open(Options::for_tests(root.path().join("store")))
        .unwrap()
        .0;
    store
        .transact(Transaction::create(key(1), value(1)))
        .await
        .unwrap();
    let backup = store.backup(&root.path().join("backups"), 0, &quiet).unwrap();
    let target = Options::for_tests(root.path().join("new"));
    injected.begin("1*panic(injected)");
    dies(|| drop(restore(&backup.path, &target, &quiet)));
    let Err(refused) = RocksStore::open(target.clone()) else {
        panic!("an incomplete restore opened as a store");
    };
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    std::fs::remove_dir_all(&target.path).unwrap();
    restore(&backup.path, &target, &quiet).unwrap();
    assert_eq!(
        state_at(&RocksStore::open(target).unwrap().0, At::Latest)
            .await
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_recovery_can_be_repeated() {
    for step in 1..=2 {
        let root = TempDir::new().unwrap();
        let injected = Injected::at("recover-between-moves").await;
        let options = Options::for_tests(root.path());
        let store = RocksStore::open(options.clone()).unwrap().0;
        store
            .transact(Transaction::create(key(1), value(1)))
            .await
            .unwrap();
        store.close(Duration::from_secs(10)).await.unwrap();
        std::fs::write(root.path().join("mark"), b"").unwrap();
        injected.begin(&format!("{}*off->1*panic(injected)", step - 1));
        dies(|| drop(recover(&options, true, &quiet)));
        let Err(refused) = RocksStore::open(options.clone()) else {
            panic!("the store opened during a recovery");
        };
        assert!(
            refused.to_string().contains("recovery was interrupted"),
            "{refused}"
        );
        let report = recover(&options, true, &quiet).unwrap();
        assert_eq!((report.fault, report.objects), (None, 1));
        let (store, opened) = RocksStore::open(options).unwrap();
        assert!(opened.revision > 1_000_000_000);
        assert_eq!(state_at(&store, At::Latest).await.len(), 1);
    }
}
