//! What fails while a store runs: nothing in doubt is shown, nothing waits without end, nobody fails unseen.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use drydock_storage::rocks::RocksStore;
use drydock_storage::{
    Durability, Health, Key, Options, Outcome, Revision, Store, StoreError, Transaction, Value,
};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;

/// What must not last for ever lasts no longer.
const LONGEST: Duration = Duration::from_secs(30);

/// Failpoints are global: one test at a time.
static TURN: Mutex<()> = Mutex::const_new(());

struct Faults {
    _turn: MutexGuard<'static, ()>,
}

impl Faults {
    async fn turn() -> Self {
        Self {
            _turn: TURN.lock().await,
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

fn key(name: &str) -> Key {
    Key::new("g", "things", "n", name).unwrap()
}

fn value() -> Value {
    Value {
        bytes: "value".into(),
        form: "g/v1".into(),
        splice_offset: 0,
    }
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

type Answer = Result<Outcome, StoreError>;

fn send(store: &RocksStore, transaction: Transaction) -> JoinHandle<Answer> {
    let store = store.clone();
    tokio::spawn(async move { store.transact(transaction).await })
}

fn create(name: &str) -> Transaction {
    Transaction::create(key(name), value())
}

async fn until(mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONGEST, waiting).await.unwrap();
}

/// A write that the engine does not take for now.
async fn stall(store: &RocksStore) -> JoinHandle<Answer> {
    inject("engine-write", "return(stalled)");
    let at_work = send(store, create("at work"));
    until(|| store.metrics().stalls_seconds.get() > 0.0).await;
    at_work
}

/// How many writes wait behind the one at work.
fn waiting(store: &RocksStore) -> i64 {
    let unit = drydock_storage::metrics::Unit { unit: "writes" };
    store.metrics().commit_queue.get_or_create(&unit).get()
}

fn ended(store: &RocksStore, outcome: &'static str) -> u64 {
    let outcome = drydock_storage::metrics::EndedAs { outcome };
    store.metrics().commits.get_or_create(&outcome).get()
}

/// Sends transactions so that they make one batch, whose write fails in doubt.
async fn one_doubtful_batch(store: &RocksStore, transactions: Vec<Transaction>) -> Vec<Answer> {
    let at_work = stall(store).await;
    let mut sent = Vec::new();
    for transaction in transactions {
        sent.push(send(store, transaction));
        until(|| waiting(store) == i64::try_from(sent.len()).unwrap()).await;
    }
    inject("engine-write", "1*off->1*return(failed)");
    at_work.await.unwrap().unwrap();
    let mut answers = Vec::new();
    for answer in sent {
        answers.push(answer.await.unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_with_a_change_in_doubt_is_in_doubt() {
    let _turn = Faults::turn().await;
    let root = TempDir::new().unwrap();
    let store = open(&root);
    let answers = one_doubtful_batch(&store, vec![create("one"), create("one")]).await;
    for answer in answers {
        assert!(matches!(answer, Err(StoreError::Unknown { .. })), "{answer:?}");
    }
    assert_eq!((ended(&store, "committed"), ended(&store, "unknown")), (1, 2));
    assert_eq!(ended(&store, "conflict"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_removal_of_a_key_whose_first_is_in_doubt_is_in_doubt() {
    let _turn = Faults::turn().await;
    let root = TempDir::new().unwrap();
    let store = open(&root);
    store.transact(create("one")).await.unwrap();
    let transactions = vec![Transaction::delete(key("one"), Revision(2)); 2];
    for answer in one_doubtful_batch(&store, transactions).await {
        assert!(matches!(answer, Err(StoreError::Unknown { .. })), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_in_doubt_leaves_a_store_that_opens() {
    let _turn = Faults::turn().await;
    let root = TempDir::new().unwrap();
    let store = open(&root);
    for name in ["one", "two", "three"] {
        store.transact(create(name)).await.unwrap();
    }
    inject("engine-write", "1*return(failed)");
    let answer = store.compact(Revision(3)).await;
    assert!(matches!(answer, Err(StoreError::Unknown { .. })), "{answer:?}");
    let keeper = store.clone();
    tokio::task::spawn_blocking(move || keeper.keep_house())
        .await
        .unwrap();
    store.close(LONGEST).await.unwrap();
    drop(store);
    let (_, opened) = RocksStore::open(options(&root)).unwrap();
    assert_eq!((opened.watchable_from, opened.history_records), (1, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_closes_though_the_engine_stalls() {
    let turn = Faults::turn().await;
    let root = TempDir::new().unwrap();
    let store = open(&root);
    let at_work = stall(&store).await;
    let waits = send(&store, create("waits"));
    until(|| waiting(&store) == 1).await;
    let late = store.close(Duration::from_millis(50)).await;
    assert!(matches!(late, Err(StoreError::Closed { .. })), "{late:?}");
    for answer in [at_work, waits] {
        let answer = tokio::time::timeout(LONGEST, answer).await.unwrap().unwrap();
        assert!(matches!(answer, Err(StoreError::Closed { .. })), "{answer:?}");
    }
    let dropped = tokio::task::spawn_blocking(move || drop(store));
    tokio::time::timeout(LONGEST, dropped).await.unwrap().unwrap();
    drop(turn);
    let (_, opened) = RocksStore::open(options(&root)).unwrap();
    assert_eq!((opened.revision, opened.objects), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_sync_thread_poisons_the_store_and_ends_a_stall() {
    let _turn = Faults::turn().await;
    let root = TempDir::new().unwrap();
    let options = Options {
        background_work: true,
        durability: Durability::Relaxed {
            interval: Duration::from_millis(1),
        },
        ..options(&root)
    };
    let store = RocksStore::open(options).unwrap().0;
    let at_work = stall(&store).await;
    inject("sync-round", "1*panic(injected)");
    let answer = tokio::time::timeout(LONGEST, at_work).await.unwrap().unwrap();
    assert!(matches!(answer, Err(StoreError::ReadOnly { .. })), "{answer:?}");
    assert!(matches!(store.health(), Health::Failed(_)));
    assert_eq!(store.current_revision().await.unwrap(), Revision(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_housekeeping_poisons_the_store() {
    let _turn = Faults::turn().await;
    let root = TempDir::new().unwrap();
    inject("housekeeping-round", "1*panic(injected)");
    let options = Options {
        background_work: true,
        ..options(&root)
    };
    let store = RocksStore::open(options).unwrap().0;
    until(|| matches!(store.health(), Health::Failed(_))).await;
}
