//! Random programs, run on the embedded engine, on etcd and on the in-memory store: all results and errors must be equal,
//! across compactions, reopenings and failures of the engine.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "support/etcd_process.rs"]
mod etcd_process;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drydock_storage::memory::MemoryStore;
use drydock_storage::rocks::RocksStore;
use drydock_storage::{
    At, Events, Key, KeyRange, Options, Page, Revision, Signal, Store, StoreError, Transaction, Value,
};
use etcd_process::EtcdProcess;
use proptest::prelude::*;
use tempfile::TempDir;

/// Keys of two namespaces with a common prefix, and cluster-scoped ones.
const KEYS: [(&str, &str); 8] = [
    ("a", "x"),
    ("a", "y"),
    ("a", "z"),
    ("ab", "x"),
    ("ab", "y"),
    ("", "x"),
    ("", "y"),
    ("b", "x"),
];

/// A number of revisions before the current one; beyond the start it means revision zero.
type Back = u64;

#[derive(Debug, Clone)]
enum Guard {
    Absent,
    /// What the key holds now.
    Current,
    /// Any revision, mostly a wrong one.
    Revision(Back),
}

#[derive(Debug, Clone)]
enum Step {
    Transact(Part),
    Many(Vec<Part>),
    Get(usize),
    Scan {
        range: usize,
        back: Option<i64>,
        after: Option<usize>,
        limit: usize,
    },
    /// A watch from that many revisions ago, read until now.
    Watch(usize, Back),
    Compact(Back),
    /// A transaction during which the engine fails, and a reopening.
    Fail(Part, usize),
    Reopen,
}

/// Key, guard, and the size of the new value or a delete.
type Part = (usize, Guard, Option<usize>);

/// Where the engine fails, and whether the transaction is on disk all the same.
const FAULTS: [(&str, bool); 3] = [
    ("engine-write", false),
    ("engine-written", true),
    ("mark-write", true),
];

fn writes() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![3 => (0_usize..200).prop_map(Some), 1 => Just(None)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let guard = prop_oneof![
        2 => Just(Guard::Absent),
        5 => Just(Guard::Current),
        1 => (0_u64..20).prop_map(Guard::Revision),
    ];
    let part = (0..KEYS.len(), guard, writes()).boxed();
    let step = prop_oneof![
        10 => part.clone().prop_map(Step::Transact),
        4 => prop::collection::vec(part.clone(), 1..6).prop_map(Step::Many),
        2 => (0..KEYS.len()).prop_map(Step::Get),
        4 => (0_usize..6, prop::option::of(-2_i64..40), prop::option::of(0..KEYS.len()), 0_usize..4)
            .prop_map(|(range, back, after, limit)| Step::Scan { range, back, after, limit }),
        3 => (0_usize..6, 0_u64..40).prop_map(|(range, back)| Step::Watch(range, back)),
        1 => (0_u64..20).prop_map(Step::Compact),
        1 => (part, 0..FAULTS.len()).prop_map(|(part, fault)| Step::Fail(part, fault)),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

fn key(number: usize) -> Key {
    let (namespace, name) = KEYS[number];
    Key::new("g.example", "things", namespace, name).unwrap()
}

fn range(number: usize) -> KeyRange {
    match number {
        0 => KeyRange::all(),
        1 => KeyRange::resource("g.example", "things"),
        2 => KeyRange::namespace("g.example", "things", "a"),
        3 => KeyRange::namespace("g.example", "things", "ab"),
        4 => KeyRange::namespace("g.example", "things", ""),
        _ => KeyRange::one(&key(3)),
    }
}

fn value(size: usize, unique: u64) -> Value {
    let mut text = format!("{unique}:");
    text.extend(std::iter::repeat_n('v', size));
    Value {
        bytes: Bytes::from(text),
        form: "g.example/v1".into(),
        splice_offset: u32::try_from(size).unwrap(),
    }
}

fn options(root: &TempDir) -> Options {
    Options {
        clock: Arc::new(|| 1_000_u64),
        background_work: false,
        // What reads may end a moment after the store was closed.
        lock_wait: Duration::from_secs(10),
        ..Options::for_tests(root.path())
    }
}

/// A result as text: errors have no equality, and their texts must be equal too.
fn text_of<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Ok(result) => format!("{result:?}"),
        Err(error) => format!("error: {error}"),
    }
}

/// All changes of a watch up to the current revision.
async fn watched<S: Store>(store: &S, range: &KeyRange, first: Revision) -> String {
    let mut events = match store.watch(range, first).await {
        Ok(events) => events,
        Err(error) => return text_of::<()>(Err(error)),
    };
    let current = store.current_revision().await.unwrap();
    let mut changes = Vec::new();
    store.request_progress();
    loop {
        let signal = tokio::time::timeout(Duration::from_secs(20), events.next()).await;
        match signal.unwrap() {
            Some(Signal::Change(event)) => changes.push(event),
            Some(Signal::Progress(revision)) if revision < current => {}
            Some(Signal::Progress(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    format!("{changes:?}")
}

/// The transaction of a part, given the state of the model.
async fn transaction((number, guard, size): &Part, model: &MemoryStore, unique: u64) -> Transaction {
    let key = key(*number);
    let current = model.current_revision().await.unwrap();
    let found = model.get(&key).await.unwrap().entry.map(|entry| entry.modified);
    let base = match guard {
        Guard::Absent => None,
        Guard::Current => found,
        Guard::Revision(back) => Some(Revision(current.0.saturating_sub(*back))),
    };
    match (base, size) {
        (None, size) => Transaction::create(key, value(size.unwrap_or_default(), unique)),
        (Some(base), Some(size)) => Transaction::update(key, base, value(*size, unique)),
        (Some(base), None) => Transaction::delete(key, base),
    }
}

/// Runs a step, with references resolved against the model.
async fn run_step<S: Store>(store: &S, step: &Step, model: &MemoryStore, unique: u64) -> String {
    let current = model.current_revision().await.unwrap();
    let ago = |back: u64| Revision(current.0.saturating_sub(back));
    match step {
        Step::Transact(part) | Step::Fail(part, _) => {
            let transaction = transaction(part, model, unique * 10).await;
            text_of(store.transact(transaction).await)
        }
        Step::Many(parts) => {
            let mut transactions = Vec::new();
            for (part, unique) in parts.iter().zip(unique * 10..) {
                transactions.push(transaction(part, model, unique).await);
            }
            let outcomes = store.transact_many(transactions).await;
            outcomes.into_iter().map(text_of).collect::<Vec<_>>().join(" | ")
        }
        Step::Get(number) => text_of(store.get(&key(*number)).await),
        Step::Scan {
            range: number,
            back,
            after,
            limit,
        } => {
            let at = back.map_or(At::Latest, |back| {
                At::Exactly(Revision(current.0.saturating_add_signed(-back)))
            });
            let page = Page {
                after: after.map(|number| key(number).to_string()).unwrap_or_default(),
                limit: *limit,
                ..Page::default()
            };
            text_of(store.scan(&range(*number), at, page).await)
        }
        Step::Watch(number, back) => watched(store, &range(*number), ago(*back).next()).await,
        Step::Compact(back) => {
            let result = text_of(store.compact(ago(*back)).await);
            format!("{result} {:?}", store.floors())
        }
        Step::Reopen => String::new(),
    }
}

/// Opens the store again; it must be at the revision of the model.
async fn reopen(store: RocksStore, root: &TempDir, model: &MemoryStore) -> Result<RocksStore, TestCaseError> {
    store.close(Duration::from_secs(10)).await.unwrap();
    drop(store);
    let (store, opened) = RocksStore::open(options(root)).unwrap();
    prop_assert_eq!(opened.revision, model.current_revision().await.unwrap().0);
    Ok(store)
}

async fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let root = TempDir::new().unwrap();
    let model = MemoryStore::new();
    let mut store = RocksStore::open(options(&root)).unwrap().0;
    let unknown = text_of::<()>(Err(StoreError::Unknown { source: None }));
    for (position, step) in steps.iter().enumerate() {
        let unique = position as u64;
        // The engine first: references are resolved against the model before the step.
        match step {
            Step::Reopen => {
                store = reopen(store, &root, &model).await?;
                continue;
            }
            Step::Fail(_, fault) => {
                let (point, happens) = FAULTS[*fault];
                fail::cfg(point, "1*return").unwrap();
                let found = run_step(&store, step, &model, unique).await;
                fail::remove(point);
                if found == unknown {
                    if happens {
                        run_step(&model, step, &model, unique).await;
                    }
                } else {
                    // It needed no write.
                    let expected = run_step(&model, step, &model, unique).await;
                    prop_assert_eq!(found, expected, "step {} {:?}", position, step);
                }
                store = reopen(store, &root, &model).await?;
                continue;
            }
            _ => {}
        }
        let found = run_step(&store, step, &model, unique).await;
        let expected = run_step(&model, step, &model, unique).await;
        prop_assert_eq!(found, expected, "step {} {:?}", position, step);
    }
    check_everything(&store, &model).await
}

/// The newest state and the floors are those of the model.
async fn check_everything<S: Store>(store: &S, model: &MemoryStore) -> Result<(), TestCaseError> {
    let everything = (
        text_of(store.scan(&KeyRange::all(), At::Latest, Page::default()).await),
        store.floors(),
    );
    let expected = (
        text_of(model.scan(&KeyRange::all(), At::Latest, Page::default()).await),
        model.floors(),
    );
    prop_assert_eq!(everything, expected);
    Ok(())
}

/// A run on an empty etcd. A reopening is another handle, as another server has it; every second one comes after a kill.
async fn run_on_etcd(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut etcd = EtcdProcess::start().await;
    let model = MemoryStore::new();
    let mut store = etcd.store().await;
    for (position, step) in steps.iter().enumerate() {
        if matches!(step, Step::Reopen | Step::Fail(..)) {
            store.close(Duration::ZERO).await.unwrap();
            if matches!(step, Step::Fail(..)) {
                etcd.restart().await;
            }
            store = etcd.store().await;
            if model.floors().listable_from == Revision::INITIAL.next() {
                // etcd does not tell whether just the first revision is compacted: nothing was written at it.
                store.compact(Revision::INITIAL).await.unwrap();
            }
            prop_assert_eq!(store.floors(), model.floors());
            continue;
        }
        let unique = position as u64;
        let found = match step {
            // The outcomes of different keys come in any order: one by one they have the model's revisions.
            Step::Many(parts) => one_by_one(&store, parts, &model, unique).await,
            step => run_step(&store, step, &model, unique).await,
        };
        let expected = run_step(&model, step, &model, unique).await;
        prop_assert_eq!(found, expected, "step {} {:?}", position, step);
    }
    check_everything(&store, &model).await
}

async fn one_by_one<S: Store>(store: &S, parts: &[Part], model: &MemoryStore, unique: u64) -> String {
    let mut transactions = Vec::new();
    for (part, unique) in parts.iter().zip(unique * 10..) {
        transactions.push(transaction(part, model, unique).await);
    }
    let mut outcomes = Vec::new();
    for transaction in transactions {
        outcomes.push(text_of(store.transact(transaction).await));
    }
    outcomes.join(" | ")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_behaves_like_the_model(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(run(steps))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 8, ..ProptestConfig::default() })]

    #[test]
    fn etcd_behaves_like_the_model(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(run_on_etcd(steps))?;
    }
}
