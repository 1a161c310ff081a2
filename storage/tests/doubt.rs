//! Failures while a store runs: no write of unknown outcome is shown, nothing waits forever, every failure is visible.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use drydock_storage::conformance::{thing as key, value};
use drydock_storage::rocks::{self, RocksStore};
use drydock_storage::{Durability, Health, Options, Outcome, Revision, Store, StoreError, Transaction};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;

/// The limit for everything that must end.
const LONGEST: Duration = Duration::from_secs(30);

/// Failpoints are global, so tests run one at a time.
static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

struct Faults {
    _exclusive: MutexGuard<'static, ()>,
}

impl Faults {
    async fn exclusively() -> Self {
        Self {
            _exclusive: EXCLUSIVE.lock().await,
        }
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        for (point, _) in fail::list() {
            fail::remove(point);
        }
    }
}

fn inject(point: &str, actions: &str) {
    fail::cfg(point, actions).unwrap();
}

fn options(root: &TempDir) -> Options {
    Options {
        background_work: false,
        lock_wait: Duration::from_secs(10),
        ..Options::for_tests(root.path())
    }
}

fn open(root: &TempDir) -> RocksStore {
    RocksStore::open(options(root)).unwrap().0
}

type Committed = Result<Outcome, StoreError>;

fn send(store: &RocksStore, transaction: Transaction) -> JoinHandle<Committed> {
    let store = store.clone();
    tokio::spawn(async move { store.transact(transaction).await })
}

fn create(name: &str) -> Transaction {
    Transaction::create(key(name), value("value"))
}

async fn until(mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONGEST, waiting).await.unwrap();
}

/// A write that a stalled engine does not accept.
async fn stall(store: &RocksStore) -> JoinHandle<Committed> {
    inject("engine-write", "return(stalled)");
    let first = send(store, create("first"));
    until(|| store.metrics().stalls_seconds.get() > 0.0).await;
    first
}

/// How many writes are queued behind the running one.
fn queued(store: &RocksStore) -> i64 {
    let unit = drydock_storage::metrics::Unit { unit: "writes" };
    store.metrics().commit_queue.get_or_create(&unit).get()
}

fn ended(store: &RocksStore, outcome: &'static str) -> u64 {
    let outcome = drydock_storage::metrics::EndedAs { outcome };
    store.metrics().commits.get_or_create(&outcome).get()
}

/// Sends transactions so that they form one batch, whose write fails with an unknown outcome.
async fn one_failing_batch(store: &RocksStore, transactions: Vec<Transaction>) -> Vec<Committed> {
    let first = stall(store).await;
    let mut sent = Vec::new();
    for transaction in transactions {
        sent.push(send(store, transaction));
        until(|| queued(store) == i64::try_from(sent.len()).unwrap()).await;
    }
    inject("engine-write", "1*off->1*return(failed)");
    first.await.unwrap().unwrap();
    let mut results = Vec::new();
    for result in sent {
        results.push(result.await.unwrap());
    }
    results
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_with_a_write_of_unknown_outcome_is_unknown() {
    let _faults = Faults::exclusively().await;
    let root = TempDir::new().unwrap();
    let store = open(&root);
    let results = one_failing_batch(&store, vec![create("one"), create("one")]).await;
    for result in results {
        assert!(matches!(result, Err(StoreError::Unknown { .. })), "{result:?}");
    }
    assert_eq!((ended(&store, "committed"), ended(&store, "unknown")), (1, 2));
    assert_eq!(ended(&store, "conflict"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_delete_after_one_of_unknown_outcome_is_unknown() {
    let _faults = Faults::exclusively().await;
    let root = TempDir::new().unwrap();
    let store = open(&root);
    store.transact(create("one")).await.unwrap();
    let transactions = vec![Transaction::delete(key("one"), Revision(2)); 2];
    for result in one_failing_batch(&store, transactions).await {
        assert!(matches!(result, Err(StoreError::Unknown { .. })), "{result:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_of_unknown_outcome_leaves_a_store_that_opens() {
    let _faults = Faults::exclusively().await;
    let root = TempDir::new().unwrap();
    let store = open(&root);
    for name in ["one", "two", "three"] {
        store.transact(create(name)).await.unwrap();
    }
    inject("engine-write", "1*return(failed)");
    let result = store.compact(Revision(3)).await;
    assert!(matches!(result, Err(StoreError::Unknown { .. })), "{result:?}");
    let keeper = store.clone();
    tokio::task::spawn_blocking(move || keeper.run_housekeeping())
        .await
        .unwrap();
    store.close(LONGEST).await.unwrap();
    drop(store);
    let (_, opened) = RocksStore::open(options(&root)).unwrap();
    assert_eq!((opened.watchable_from, opened.history_records), (1, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_closes_while_the_engine_is_stalled() {
    let faults = Faults::exclusively().await;
    let root = TempDir::new().unwrap();
    let store = open(&root);
    let first = stall(&store).await;
    let waits = send(&store, create("waits"));
    until(|| queued(&store) == 1).await;
    let late = store.close(Duration::from_millis(50)).await;
    assert!(matches!(late, Err(StoreError::Closed { .. })), "{late:?}");
    for result in [first, waits] {
        let result = tokio::time::timeout(LONGEST, result).await.unwrap().unwrap();
        assert!(matches!(result, Err(StoreError::Closed { .. })), "{result:?}");
    }
    let dropped = tokio::task::spawn_blocking(move || drop(store));
    tokio::time::timeout(LONGEST, dropped).await.unwrap().unwrap();
    drop(faults);
    let (_, opened) = RocksStore::open(options(&root)).unwrap();
    assert_eq!((opened.revision, opened.objects), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_sync_thread_poisons_the_store_and_ends_a_stall() {
    let _faults = Faults::exclusively().await;
    let root = TempDir::new().unwrap();
    let options = Options {
        background_work: true,
        durability: Durability::Relaxed {
            interval: Duration::from_millis(1),
        },
        ..options(&root)
    };
    let store = RocksStore::open(options).unwrap().0;
    let first = stall(&store).await;
    inject("sync-round", "1*panic(injected)");
    let result = tokio::time::timeout(LONGEST, first).await.unwrap().unwrap();
    assert!(matches!(result, Err(StoreError::ReadOnly { .. })), "{result:?}");
    assert!(matches!(store.health(), Health::Failed(_)));
    assert_eq!(store.current_revision().await.unwrap(), Revision(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_housekeeping_poisons_the_store() {
    let _faults = Faults::exclusively().await;
    let root = TempDir::new().unwrap();
    inject("housekeeping-round", "1*panic(injected)");
    let options = Options {
        background_work: true,
        ..options(&root)
    };
    let store = RocksStore::open(options).unwrap().0;
    until(|| matches!(store.health(), Health::Failed(_))).await;
}

/// A server that starts, and a restore or an import, have nobody who would try again.
#[tokio::test(flavor = "multi_thread")]
async fn opening_restoring_and_importing_wait_for_a_stalled_engine() {
    const FOR_A_WHILE: &str = "3*return(stalled)->off";
    let _faults = Faults::exclusively().await;
    let root = TempDir::new().unwrap();
    let (data, backups) = (root.path().join("data"), root.path().join("backups"));
    let at = |folder: &Path| Options {
        path: folder.to_owned(),
        ..options(&root)
    };
    inject("engine-write", FOR_A_WHILE);
    let (store, _) = RocksStore::open(at(&data)).unwrap();
    send(&store, create("one")).await.unwrap().unwrap();
    let export = root.path().join("export");
    store.export(&export, &|_| {}).unwrap();
    let backup = store.backup(&backups, 0, &|_| {}).unwrap().path;
    drop(store);
    for stalled in [FOR_A_WHILE, "1*off->3*return(stalled)->off"] {
        inject("engine-write", stalled);
        let folder = root.path().join(format!("imported {stalled}"));
        let imported = rocks::import(&export, &at(&folder), &|_| {}).unwrap();
        assert_eq!(imported.objects, 1);
        inject("engine-write", stalled);
        let folder = root.path().join(format!("restored {stalled}"));
        rocks::restore(&backup, &at(&folder), &|_| {}).unwrap();
    }
}
