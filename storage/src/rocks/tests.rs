//! What takes a look behind the door: damaged values, windows, clocks, and regressions of other stores by name.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use tempfile::TempDir;

use super::column_families::{Access, HISTORY, Recovery, STATE, Step, history_key};
use super::open::engine_folder;
use super::*;
use crate::record::{Committed, Place, finish_change, finish_state};
use crate::seal::Unsealed;
use crate::{Damaged, EventKind, Events, FreeSpace, Signal, Value};

const GRACE: Duration = Duration::from_secs(10);

/// A clock that tests move.
#[derive(Clone, Default)]
struct Hands(Arc<AtomicU64>);

impl Hands {
    fn set(&self, seconds: u64) {
        self.0.store(seconds * 1000, Ordering::Relaxed);
    }
}

fn options(folder: &Path, hands: &Hands) -> Options {
    let hands = Arc::clone(&hands.0);
    Options {
        clock: Arc::new(move || hands.load(Ordering::Relaxed)),
        background_work: false,
        watchable_revisions: 10,
        ..Options::for_tests(folder)
    }
}

fn open(root: &TempDir, hands: &Hands) -> RocksStore {
    RocksStore::open(options(root.path(), hands)).unwrap().0
}

fn key(name: &str) -> Key {
    Key::new("g", "things", "n", name).unwrap()
}

fn value(text: &str) -> Value {
    Value {
        bytes: Bytes::copy_from_slice(text.as_bytes()),
        form: "g/v1".into(),
        splice_offset: 0,
    }
}

async fn put(store: &RocksStore, name: &str, text: &str) -> Revision {
    let transaction = match store.get(&key(name)).await.unwrap().entry {
        None => Transaction::create(key(name), value(text)),
        Some(entry) => Transaction::update(key(name), entry.modified, value(text)),
    };
    match store.transact(transaction).await.unwrap() {
        Outcome::Committed { revision } => revision,
        Outcome::Conflict { current, .. } => panic!("{current:?}"),
    }
}

async fn keep_house(store: &RocksStore) -> Floors {
    let keeper = store.clone();
    tokio::task::spawn_blocking(move || keeper.keep_house())
        .await
        .unwrap();
    store.floors()
}

async fn close(store: RocksStore) {
    store.close(GRACE).await.unwrap();
}

fn floors(listable: u64, watchable: u64) -> Floors {
    Floors {
        listable_from: Revision(listable),
        watchable_from: Revision(watchable),
    }
}

/// Revisions 2 to 30, each at the second of its number.
async fn put_each_second(store: &RocksStore, hands: &Hands) {
    for second in 2..=30 {
        hands.set(second);
        put(store, "one", &second.to_string()).await;
    }
}

/// Changes the engine's content behind the store's back.
fn tamper(root: &TempDir, steps: &[Step]) {
    let engine = Engine::open(&engine_folder(root.path()), Access::Existing, Recovery::Strict).unwrap();
    engine.write(steps, true).unwrap();
}

/// The state record of a value whose bytes say something else than its checksum.
fn spoiled_state(key: &Key, text: &str, at: Revision) -> Vec<u8> {
    let body = Records::new(Arc::new(Unsealed))
        .state_body(key, &value(text))
        .unwrap();
    let place = Place {
        created: at,
        modified: at,
    };
    let mut record = finish_state(body, key, place);
    let at = record
        .windows(text.len())
        .position(|window| window == text.as_bytes())
        .unwrap();
    record[at] ^= 1;
    record
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "told in one piece")]
async fn a_damaged_value_is_set_apart_and_the_rest_is_served() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    let one = put(&store, "one", "first").await;
    put(&store, "two", "second").await;
    close(store).await;
    tamper(
        &root,
        &[Step::PutState(
            key("one"),
            spoiled_state(&key("one"), "first", one),
        )],
    );

    let (store, opened) = RocksStore::open(options(root.path(), &hands)).unwrap();
    assert_eq!(opened.damaged, [key("one").to_string()]);
    assert_eq!(store.damaged(), [key("one")]);
    let names_it = |answer: StoreError| match answer {
        StoreError::Corrupt { key: named, .. } => assert_eq!(named, key("one").to_string()),
        other => panic!("{other:?}"),
    };
    names_it(store.get(&key("one")).await.unwrap_err());
    names_it(
        store
            .scan(&KeyRange::all(), At::Latest, Page::default())
            .await
            .unwrap_err(),
    );
    names_it(
        store
            .transact(Transaction::delete(key("one"), one))
            .await
            .unwrap_err(),
    );
    names_it(
        store
            .transact(Transaction::update(key("one"), one, value("x")))
            .await
            .unwrap_err(),
    );
    names_it(
        store
            .transact(Transaction::create(key("one"), value("x")))
            .await
            .unwrap_err(),
    );
    assert!(store.get(&key("two")).await.unwrap().entry.is_some());
    let again = put(&store, "two", "again").await;
    // Those who ask for it are told the rest, at any revision, on the page on which the damage lies.
    let apart = |after: &str, limit| Page {
        after: after.to_owned(),
        limit,
        damaged: Damaged::SetApart,
    };
    let listed = |scan: crate::Scan| {
        let keys = scan.entries.into_iter().map(|(key, _)| key);
        (keys.collect::<Vec<_>>(), scan.damaged, scan.more)
    };
    for at in [At::Latest, At::Exactly(again), At::Exactly(again.previous())] {
        let scan = store.scan(&KeyRange::all(), at, apart("", 1)).await.unwrap();
        assert_eq!(
            listed(scan),
            (vec![key("two")], vec![key("one")], false),
            "{at:?}"
        );
        let behind = key("one").to_string();
        let scan = store.scan(&KeyRange::all(), at, apart(&behind, 0)).await.unwrap();
        assert_eq!(listed(scan), (vec![key("two")], vec![], false), "{at:?}");
    }
    let scan = store
        .scan(&KeyRange::all(), At::Exactly(one), apart("", 0))
        .await
        .unwrap();
    assert_eq!(
        listed(scan),
        (vec![], vec![key("one")], false),
        "before the other was written"
    );

    assert!(matches!(
        store.remove_damaged(&key("two")).await,
        Err(StoreError::NotDamaged)
    ));
    let removed = store.remove_damaged(&key("one")).await.unwrap();
    assert_eq!(
        removed,
        Outcome::Committed {
            revision: Revision(5)
        }
    );
    assert_eq!(
        store
            .scan(&KeyRange::all(), At::Latest, Page::default())
            .await
            .unwrap()
            .entries
            .len(),
        1
    );
    // Gone now, but no past state may be shown without it.
    let (everything, then) = (KeyRange::all(), At::Exactly(again));
    names_it(store.scan(&everything, then, Page::default()).await.unwrap_err());
    let scan = store.scan(&everything, then, apart("", 0)).await.unwrap();
    assert_eq!(listed(scan), (vec![key("two")], vec![key("one")], false));
    let mut events = store.watch(&KeyRange::all(), Revision(5)).await.unwrap();
    let Some(Signal::Change(removal)) = events.next().await else {
        panic!("the removal is delivered");
    };
    assert!(removal.old.unwrap().value.is_unreadable());
    put(&store, "one", "anew").await;
    close(store).await;
    let (_, opened) = RocksStore::open(options(root.path(), &hands)).unwrap();
    assert!(opened.damaged.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_key_is_set_apart_on_one_page_only() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    put(&store, "a", "whole").await;
    let at = put(&store, "b", "spoiled").await;
    put(&store, "c", "whole").await;
    let last = put(&store, "d", "spoiled").await;
    close(store).await;
    let spoil = |name, at| Step::PutState(key(name), spoiled_state(&key(name), "spoiled", at));
    tamper(&root, &[spoil("b", at), spoil("d", last)]);
    let store = open(&root, &hands);
    let mut page = Page {
        limit: 1,
        damaged: Damaged::SetApart,
        ..Page::default()
    };
    let first = store
        .scan(&KeyRange::all(), At::Latest, page.clone())
        .await
        .unwrap();
    assert!(first.more);
    assert_eq!(first.damaged, []);
    page.after = first.entries.last().unwrap().0.to_string();
    let second = store.scan(&KeyRange::all(), At::Latest, page).await.unwrap();
    assert!(!second.more);
    assert_eq!(second.damaged, [key("b"), key("d")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_names_damaged_values_and_a_restore_leaves_them_out() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let folder = root.path().join("store");
    let at = |folder: &Path| RocksStore::open(options(folder, &hands)).unwrap().0;
    let store = at(&folder);
    let one = put(&store, "one", "first").await;
    put(&store, "two", "second").await;
    let backups = root.path().join("backups");
    let whole = store.backup(&backups, 1, &|_| {}).unwrap();
    assert!(whole.manifest.damaged.is_empty());
    close(store).await;
    let engine = Engine::open(&engine_folder(&folder), Access::Existing, Recovery::Strict).unwrap();
    let spoiled = spoiled_state(&key("one"), "first", one);
    engine
        .write(&[Step::PutState(key("one"), spoiled)], true)
        .unwrap();
    drop(engine);

    let store = at(&folder);
    let named = [key("one").to_string()];
    hands.set(1);
    let report = store.backup(&backups, 1, &|_| {}).unwrap();
    assert_eq!(
        (&report.manifest.damaged[..], report.manifest.objects),
        (&named[..], 2)
    );
    assert!(whole.path.exists(), "the last backup of the damaged value went");
    let seal: Arc<dyn crate::seal::Seal> = Arc::new(Unsealed);
    assert_eq!(
        verify_backup(&report.path, &seal, &|_| {}).unwrap(),
        report.manifest
    );
    let copies = root.path().join("copies");
    for kept in 1..=2 {
        let report = store.backup_incrementally(&copies, 1).unwrap();
        assert_eq!((&report.damaged[..], report.kept), (&named[..], kept));
    }
    for (name, from) in [("restored", &report.path), ("copied", &copies)] {
        let target = options(&root.path().join(name), &hands);
        let restored = restore(from, &target, &|_| {}).unwrap();
        assert_eq!((&restored.skipped[..], restored.objects), (&named[..], 1));
        let new = at(&target.path);
        assert!(new.get(&key("two")).await.unwrap().entry.is_some());
        assert!(new.get(&key("one")).await.unwrap().entry.is_none());
    }
    // Once a newer backup is whole, the older ones go.
    store.remove_damaged(&key("one")).await.unwrap();
    let report = store.backup(&backups, 1, &|_| {}).unwrap();
    assert_eq!(report.removed.len(), 2);
}

/// Why a tampered store is refused, in part.
async fn check_refused(steps: &[Step], expected: &str) {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    put(&store, "one", "first").await;
    put(&store, "two", "second").await;
    put(&store, "one", "third").await;
    close(store).await;
    tamper(&root, steps);
    let verified = verify(&options(root.path(), &hands), &|_| {}).unwrap_err();
    let refused = RocksStore::open(options(root.path(), &hands))
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert_eq!(verified.to_string(), refused);
    assert!(refused.contains(expected), "{refused}");
    assert!(refused.contains("recover --accept-loss"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn contradictions_refuse_the_start() {
    let records = Records::new(Arc::new(Unsealed));
    let place = |at: u64| Place {
        created: Revision(2),
        modified: Revision(at),
    };
    let one = key("one");
    let state = |at: u64| {
        finish_state(
            records.state_body(&one, &value("first")).unwrap(),
            &one,
            place(at),
        )
    };
    let change = |at: u64, previous: u64| {
        let body = records
            .history_body(&one, Some(&value("a")), Some(&value("b")))
            .unwrap();
        let committed = Committed {
            revision: Revision(at),
            at_ms: 0,
        };
        let (created, previous) = (Revision(2), Some(Revision(previous)));
        finish_change(body, &one, EventKind::Updated, created, previous, committed)
    };
    let cases = [
        (Step::DeleteState(key("two")), "state and history disagree"),
        (
            Step::PutState(one.clone(), state(2)),
            "state and history disagree",
        ),
        (Step::PutState(one.clone(), state(9)), "beyond that of the store"),
        (Step::PutState(key("two"), state(3)), "fail their checksum"),
        (
            Step::PutHistory(Revision(4), change(4, 3)),
            "does not follow the record before",
        ),
        (
            Step::PutHistory(Revision(4), change(3, 2)),
            "revision 4: its revisions fail their checksum",
        ),
        (
            Step::PutHistory(Revision(5), change(5, 4)),
            "newest history record is of revision 5",
        ),
        (
            Step::PutMeta(column_families::Meta::Revision, 5),
            "newest history record is of revision 4",
        ),
        (
            Step::PutMeta(column_families::Meta::WatchableFrom, 9),
            "contradict each other",
        ),
        (Step::DropHistory(Revision(4)), "revision 2: it is missing"),
        (
            Step::PutMeta(column_families::Meta::Format, 2),
            "the file format says 1, the engine 2",
        ),
        (
            Step::PutStore(uuid::Uuid::nil()),
            "the engine belongs to the store 00000000-0000-0000-0000-000000000000",
        ),
    ];
    for (step, expected) in cases {
        check_refused(&[step], expected).await;
    }
}

/// An encryption whose key comes and goes, and that knows what it sealed.
struct Vault(std::sync::atomic::AtomicBool);

impl crate::seal::Seal for Vault {
    fn seal(&self, key: &str, plain: Vec<u8>) -> Result<crate::seal::Sealed, crate::seal::SealError> {
        let mut bytes: Vec<u8> = plain.into_iter().map(|byte| !byte).collect();
        bytes.extend_from_slice(&crc32fast::hash(key.as_bytes()).to_le_bytes());
        let key_id = "k".to_owned();
        Ok(crate::seal::Sealed { key_id, bytes })
    }

    fn open(&self, key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, crate::seal::SealError> {
        let key_id = key_id.to_owned();
        if !self.0.load(Ordering::Relaxed) {
            let reason = "the key service sleeps".to_owned();
            return Err(crate::seal::SealError::Unavailable { key_id, reason });
        }
        match sealed.split_last_chunk::<4>() {
            Some((body, tag)) if *tag == crc32fast::hash(key.as_bytes()).to_le_bytes() => {
                Ok(body.iter().map(|byte| !byte).collect())
            }
            _ => Err(crate::seal::SealError::Rejected { key_id }),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_sealed_value_is_set_apart_and_a_missing_key_is_no_damage() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let vault = Arc::new(Vault(true.into()));
    let options = || Options {
        seal: Arc::clone(&vault) as Arc<dyn crate::seal::Seal>,
        ..options(root.path(), &hands)
    };
    let records = Records::new(options().seal);
    let store = RocksStore::open(options()).unwrap().0;
    let one = put(&store, "one", "first").await;
    let two = put(&store, "two", "second").await;
    put(&store, "three", "third").await;
    close(store).await;
    let place = |at: Revision| Place {
        created: at,
        modified: at,
    };
    // A bit of the first; of the second a whole payload that was sealed for the third.
    let body = records.state_body(&key("one"), &value("first")).unwrap();
    let mut spoiled = finish_state(body, &key("one"), place(one));
    let sealed: Vec<u8> = b"first".iter().map(|byte| !byte).collect();
    let at = spoiled.windows(5).position(|window| window == sealed).unwrap();
    spoiled[at] ^= 1;
    let moved = records.state_body(&key("three"), &value("third")).unwrap();
    let moved = finish_state(moved, &key("two"), place(two));
    tamper(
        &root,
        &[
            Step::PutState(key("one"), spoiled),
            Step::PutState(key("two"), moved),
        ],
    );
    let (store, opened) = RocksStore::open(options()).unwrap();
    assert_eq!(opened.damaged, [key("one").to_string(), key("two").to_string()]);
    let backup = store.backup(&root.path().join("backups"), 0, &|_| {}).unwrap();
    assert_eq!(backup.manifest.damaged, opened.damaged);
    close(store).await;

    vault.0.store(false, Ordering::Relaxed);
    let refused = RocksStore::open(options()).map(|_| ()).unwrap_err();
    assert!(matches!(refused, OpenError::Sealed { .. }), "{refused}");
    assert!(!refused.to_string().contains("accept-loss"), "{refused}");
    let refused = recover(&options(), true, &|_| {}).unwrap_err();
    assert!(
        matches!(refused, LifeError::Open(OpenError::Sealed { .. })),
        "{refused}"
    );
    vault.0.store(true, Ordering::Relaxed);
    let recovered = recover(&options(), true, &|_| {}).unwrap();
    assert_eq!((recovered.lost, recovered.objects), (opened.damaged, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_never_passes_over_damaged_history() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    for name in ["one", "two", "three"] {
        put(&store, name, "payload").await;
    }
    close(store).await;
    // The place is whole, the value is not: the start does not look into values of history.
    let body = Records::new(Arc::new(Unsealed)).history_body(&key("two"), None, Some(&value("payload")));
    let committed = Committed {
        revision: Revision(3),
        at_ms: 0,
    };
    let mut record = finish_change(
        body.unwrap(),
        &key("two"),
        EventKind::Created,
        Revision(3),
        None,
        committed,
    );
    let at = record.windows(7).position(|window| window == b"payload").unwrap();
    record[at] ^= 1;
    tamper(&root, &[Step::PutHistory(Revision(3), record)]);
    let verified = verify(&options(root.path(), &hands), &|_| {}).unwrap();
    assert_eq!((verified.damaged_history, verified.damaged.len()), (vec![3], 0));
    let store = open(&root, &hands);
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    assert_eq!(events.next().await, Some(Signal::Compacted(Revision(5))));
    assert_eq!(events.next().await, None);
    assert_eq!(store.metrics().checksum_failures.get(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_follow_the_window_and_survive_a_restart() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    put_each_second(&store, &hands).await;
    assert_eq!(keep_house(&store).await, floors(1, 1));
    hands.set(320);
    assert_eq!(keep_house(&store).await, floors(19, 19));
    close(store).await;

    let store = open(&root, &hands);
    assert_eq!(store.floors(), floors(19, 19));
    assert!(
        store
            .scan(&KeyRange::all(), At::Exactly(Revision(19)), Page::default())
            .await
            .is_ok()
    );
    hands.set(5000);
    // A quiet night: the newest state stays listable, the newest ten revisions watchable.
    assert_eq!(keep_house(&store).await, floors(30, 21));
    assert!(store.watch(&KeyRange::all(), Revision(21)).await.is_ok());
    let refused = store
        .scan(&KeyRange::all(), At::Exactly(Revision(29)), Page::default())
        .await;
    assert!(
        matches!(refused, Err(StoreError::Compacted { .. })),
        "{refused:?}"
    );
    close(store).await;
    let (_, opened) = RocksStore::open(options(root.path(), &hands)).unwrap();
    assert_eq!(
        (
            opened.listable_from,
            opened.watchable_from,
            opened.history_records
        ),
        (30, 21, 10)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_does_not_reorder_history() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    hands.set(1000);
    put(&store, "one", "1").await;
    hands.set(10);
    put(&store, "one", "2").await;
    hands.set(1299);
    assert_eq!(keep_house(&store).await, floors(1, 1));
    hands.set(1302);
    assert_eq!(keep_house(&store).await, floors(3, 1));
}

/// The newest record is a deletion, compaction removes it, and the process dies (etcd#17780).
#[tokio::test(flavor = "multi_thread")]
async fn etcd_17780_revision_does_not_decrease_after_compaction_of_a_tombstone() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    let created = put(&store, "one", "1").await;
    store
        .transact(Transaction::delete(key("one"), created))
        .await
        .unwrap();
    store.compact(Revision(3)).await.unwrap();
    close(store).await;
    let (store, opened) = RocksStore::open(options(root.path(), &hands)).unwrap();
    assert_eq!((opened.revision, opened.history_records), (3, 0));
    assert_eq!(put(&store, "one", "2").await, Revision(4));
}

/// Compaction at a deletion, a restart, then a watch from there (etcd#18089, etcd#19179).
#[tokio::test(flavor = "multi_thread")]
async fn etcd_19179_a_deletion_at_the_floor_is_delivered_after_a_restart() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    let created = put(&store, "one", "1").await;
    store
        .transact(Transaction::delete(key("one"), created))
        .await
        .unwrap();
    store.compact(created).await.unwrap();
    close(store).await;
    let store = open(&root, &hands);
    let mut events = store.watch(&KeyRange::all(), Revision(3)).await.unwrap();
    let Some(Signal::Change(event)) = events.next().await else {
        panic!("the deletion is due");
    };
    assert_eq!((event.revision, event.kind), (Revision(3), EventKind::Deleted));
}

/// A watch that resumes across a restart never goes back in time (etcd#15271).
#[tokio::test(flavor = "multi_thread")]
async fn etcd_15271_a_resumed_watch_does_not_travel_back() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let mut seen = Revision::INITIAL;
    for _ in 0..4 {
        let store = open(&root, &hands);
        let mut events = store.watch(&KeyRange::all(), seen.next()).await.unwrap();
        let last = {
            put(&store, "one", "1").await;
            put(&store, "two", "1").await
        };
        while seen < last {
            match events.next().await {
                Some(Signal::Change(event)) => {
                    assert_eq!(event.revision, seen.next());
                    seen = event.revision;
                }
                other => panic!("{other:?}"),
            }
        }
        close(store).await;
    }
}

/// A transaction is delivered once, also after a conflict in the same batch (etcd#17247).
#[tokio::test(flavor = "multi_thread")]
async fn etcd_17247_a_transaction_is_not_delivered_twice() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    let transactions = ["a", "a", "b"].map(|name| Transaction::create(key(name), value("x")));
    let outcomes = store.transact_many(transactions.to_vec()).await;
    assert!(matches!(
        outcomes[..],
        [
            Ok(Outcome::Committed { .. }),
            Ok(Outcome::Conflict { .. }),
            Ok(Outcome::Committed { .. })
        ]
    ));
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    for (revision, name) in [(2, "a"), (3, "b")] {
        let Some(Signal::Change(event)) = events.next().await else {
            panic!("a change is due");
        };
        assert_eq!((event.revision, event.key), (Revision(revision), key(name)));
    }
    store.request_progress();
    assert_eq!(events.next().await, Some(Signal::Progress(Revision(3))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_is_refused_and_told_who_holds_the_store() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    let refused = RocksStore::open(options(root.path(), &hands))
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    close(store).await;
    close(open(&root, &hands)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_files_of_old_history_go() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    for name in ["one", "two"] {
        put(&store, name, "x").await;
    }
    let engine = store.shared.engine().unwrap();
    engine.flush().unwrap();
    store.compact(Revision(3)).await.unwrap();
    engine.drop_history_files(Revision(4)).unwrap();
    let view = engine.view();
    assert!(
        view.history(Revision(0), Revision(9))
            .unwrap()
            .next()
            .unwrap()
            .is_none()
    );
    assert_eq!(history_key(Revision(4)).len(), 10);
    assert_eq!(
        store.get(&key("one")).await.unwrap().entry.unwrap().modified,
        Revision(2)
    );
}

/// The batch that raises the floors fails in doubt, and files below them go: the start then found a hole.
#[tokio::test(flavor = "multi_thread")]
async fn files_below_floors_that_may_not_be_on_disk_stay() {
    for is_poisoned in [false, true] {
        let (root, hands) = (TempDir::new().unwrap(), Hands::default());
        let store = open(&root, &hands);
        for name in ["one", "two"] {
            put(&store, name, "x").await;
        }
        store.shared.engine().unwrap().settle(HISTORY);
        for name in ["three", "four"] {
            put(&store, name, "x").await;
        }
        // As far as a compaction comes whose batch then fails.
        store.shared.raise_floors(floors(4, 4));
        if is_poisoned {
            store.shared.poison.poison("injected");
        }
        assert_eq!(keep_house(&store).await, floors(4, 4));
        close(store).await;
        let (_, opened) = RocksStore::open(options(root.path(), &hands)).unwrap();
        assert_eq!((opened.watchable_from, opened.history_records), (1, 4));
    }
}

/// The value of a series.
fn series(store: &RocksStore, name: &str) -> f64 {
    let mut registry = prometheus_client::registry::Registry::default();
    store.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("drydock_storage_")?.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

/// The files of a store as a loss of power leaves them whose newest log was synced so far.
fn after_power_loss(root: &TempDir, synced: u64) -> TempDir {
    let left = TempDir::new().unwrap();
    let (from, to) = (root.path(), left.path());
    std::fs::create_dir(engine_folder(to)).unwrap();
    for name in ["format", "mark"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
    for found in std::fs::read_dir(engine_folder(from)).unwrap() {
        let found = found.unwrap();
        std::fs::copy(found.path(), engine_folder(to).join(found.file_name())).unwrap();
    }
    let (log, _) = newest_log(&left);
    let file = std::fs::OpenOptions::new().write(true).open(log).unwrap();
    file.set_len(synced).unwrap();
    left
}

fn newest_log(root: &TempDir) -> (std::path::PathBuf, u64) {
    let files = std::fs::read_dir(engine_folder(root.path())).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let logs = paths.filter(|path| path.extension().is_some_and(|end| end == "log"));
    let newest = logs.max().unwrap();
    let length = std::fs::metadata(&newest).unwrap().len();
    (newest, length)
}

/// In relaxed mode nothing was synced before files of history went: power took the floors back, not the files, and the
/// next start found a hole.
#[tokio::test(flavor = "multi_thread")]
async fn floors_outlive_a_loss_of_power_in_relaxed_mode_too() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let relaxed = |folder: &Path| Options {
        durability: Durability::Relaxed {
            interval: Duration::from_hours(1),
        },
        ..options(folder, &hands)
    };
    let store = RocksStore::open(relaxed(root.path())).unwrap().0;
    for name in ["one", "two"] {
        put(&store, name, "x").await;
    }
    store.shared.engine().unwrap().settle(HISTORY);
    let syncs = || series(&store, "sync_seconds_count");
    let before = syncs();
    for name in ["three", "four"] {
        put(&store, name, "x").await;
    }
    assert!((syncs() - before).abs() < 0.1, "writes are not synced");
    store.compact(Revision(3)).await.unwrap();
    store.owner.housekeeping().drop_files();
    let synced = if syncs() > before + 0.5 {
        newest_log(&root).1
    } else {
        0
    };
    let left = after_power_loss(&root, synced);
    let next_boot = Options {
        boot_id: uuid::Uuid::from_u128(1),
        ..relaxed(left.path())
    };
    let (_, opened) = RocksStore::open(next_boot).unwrap();
    assert!(opened.resumed_at_ceiling);
    assert_eq!(opened.objects, 4);
}

/// The log was opened for writing first: what could be read was flushed, and the torn rest was gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_in_relaxed_mode_that_is_refused_leaves_the_evidence() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let relaxed = |folder: &Path| Options {
        durability: Durability::Relaxed {
            interval: Duration::from_hours(1),
        },
        ..options(folder, &hands)
    };
    let store = RocksStore::open(relaxed(root.path())).unwrap().0;
    for name in ["one", "two", "three"] {
        put(&store, name, "x").await;
    }
    keep_house(&store).await;
    let left = after_power_loss(&root, newest_log(&root).1 - 1);
    let logs = || {
        let files = std::fs::read_dir(engine_folder(left.path())).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let mut logs: Vec<_> = paths
            .filter(|path| path.extension().is_some_and(|end| end == "log" || end == "sst"))
            .map(|path| (std::fs::read(&path).unwrap(), path))
            .collect();
        logs.sort();
        logs
    };
    let before = logs();
    let refused = RocksStore::open(relaxed(left.path())).map(|_| ());
    assert!(
        matches!(refused, Err(OpenError::AcknowledgedLost { .. })),
        "{refused:?}"
    );
    assert!(logs() == before, "the start changed the log");
}

/// A clock whose wall time tests set forward and back.
#[derive(Clone, Default)]
struct TwoHands {
    wall: Hands,
    uptime: Hands,
}

impl Clock for TwoHands {
    fn now_ms(&self) -> u64 {
        self.wall.0.load(Ordering::Relaxed)
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(self.uptime.0.load(Ordering::Relaxed))
    }
}

/// The wall clock was ahead for a while: everything written since looked new until it had caught up again.
#[tokio::test(flavor = "multi_thread")]
async fn history_ages_though_the_wall_clock_went_forward_and_back() {
    let (root, clock) = (TempDir::new().unwrap(), TwoHands::default());
    let open = || {
        let options = Options {
            clock: Arc::new(clock.clone()),
            ..options(root.path(), &clock.wall)
        };
        RocksStore::open(options).unwrap().0
    };
    let store = open();
    clock.wall.set(1000);
    put(&store, "one", "1").await;
    clock.wall.set(900_000);
    put(&store, "one", "2").await;
    clock.wall.set(1000);
    for second in 1..=30 {
        clock.uptime.set(second);
        put(&store, "one", &second.to_string()).await;
    }
    clock.uptime.set(315);
    // Revision 18 is of second 15, the newest 10 of 33 stay watchable.
    assert_eq!(keep_house(&store).await, floors(17, 17));
    close(store).await;
    // A process that begins anew counts from its start.
    clock.uptime.set(7);
    let store = open();
    assert_eq!(keep_house(&store).await, floors(17, 17));
    clock.uptime.set(308);
    assert_eq!(keep_house(&store).await, floors(33, 24));
}

/// A disk whose free space tests set, of 100 GiB.
fn with_free(root: &TempDir, hands: &Hands, free: &Arc<AtomicU64>) -> RocksStore {
    let free = Arc::clone(free);
    let space = move |_: &Path| {
        Ok(FreeSpace {
            free: free.load(Ordering::Relaxed),
            total: 100 << 30,
        })
    };
    let options = Options {
        measure_disk: Arc::new(space),
        ..options(root.path(), hands)
    };
    RocksStore::open(options).unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_takes_deletes_but_no_creates() {
    let (root, hands, free) = (
        TempDir::new().unwrap(),
        Hands::default(),
        Arc::new(AtomicU64::new(50 << 30)),
    );
    let store = with_free(&root, &hands, &free);
    let created = put(&store, "one", "some text").await;
    free.store((1 << 30) - 1, Ordering::Relaxed);
    keep_house(&store).await;
    let refused = store.transact(Transaction::create(key("two"), value("x"))).await;
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    let longer = Transaction::update(key("one"), created, value("some longer text"));
    let refused = store.transact(longer.clone()).await;
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    let marked = store.transact(longer.growing(true)).await.unwrap();
    assert!(matches!(marked, Outcome::Committed { .. }), "{marked:?}");
    let created = created.next();
    let shorter = put(&store, "one", "text").await;
    assert_eq!(shorter, created.next());
    let deleted = store
        .transact(Transaction::delete(key("one"), shorter))
        .await
        .unwrap();
    assert!(matches!(deleted, Outcome::Committed { .. }), "{deleted:?}");
    free.store(50 << 30, Ordering::Relaxed);
    keep_house(&store).await;
    put(&store, "two", "x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_reached_their_limit_may_shrink_and_go() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let open = || {
        let options = Options {
            object_bytes: 20,
            ..options(root.path(), &hands)
        };
        RocksStore::open(options).unwrap().0
    };
    let store = open();
    assert_eq!(store.metrics().object_bytes_limit.get(), 20);
    put(&store, "one", "0123456789").await;
    put(&store, "two", "0123456789").await;
    close(store).await;
    let store = open();
    let create = || store.transact(Transaction::create(key("three"), value("x")));
    let Err(StoreError::Full { reason }) = create().await else {
        panic!("it grows beyond its limit");
    };
    assert!(
        reason.contains("objects have 20 bytes and the limit is 20"),
        "{reason}"
    );
    let full = crate::metrics::EndedAs { outcome: "full" };
    assert_eq!(store.metrics().commits.get_or_create(&full).get(), 1);
    let grows = Transaction::update(key("one"), Revision(2), value("0123456789a"));
    let many = store
        .transact_many(vec![grows.clone(), grows.growing(true)])
        .await;
    assert!(matches!(
        many[..],
        [Err(StoreError::Full { .. }), Ok(Outcome::Committed { .. })]
    ));
    put(&store, "one", "0").await;
    assert!(matches!(create().await, Ok(Outcome::Committed { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_runs_short_shortens_the_window() {
    let (root, hands, free) = (
        TempDir::new().unwrap(),
        Hands::default(),
        Arc::new(AtomicU64::new(10 << 30)),
    );
    let store = with_free(&root, &hands, &free);
    put_each_second(&store, &hands).await;
    hands.set(95);
    assert_eq!(keep_house(&store).await, floors(19, 19));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_knows_the_room_and_a_short_window_stays_short() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let with = |free: u64| {
        let options = Options {
            measure_disk: Arc::new(move |_| {
                Ok(FreeSpace {
                    free,
                    total: 100 << 30,
                })
            }),
            window: Duration::from_secs(20),
            ..options(root.path(), &hands)
        };
        RocksStore::open(options).unwrap().0
    };
    let store = with(10 << 30);
    assert_eq!(store.metrics().disk_free_bytes.get(), 10 << 30);
    put_each_second(&store, &hands).await;
    hands.set(40);
    assert_eq!(keep_house(&store).await, floors(19, 19));
    close(store).await;
    let store = with((1 << 30) - 1);
    let refused = store.transact(Transaction::create(key("two"), value("x"))).await;
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_short_disk_lets_go_at_once() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    put_each_second(&store, &hands).await;
    close(store).await;
    hands.set(95);
    let options = Options {
        background_work: true,
        measure_disk: Arc::new(|_| {
            Ok(FreeSpace {
                free: 10 << 30,
                total: 100 << 30,
            })
        }),
        ..options(root.path(), &hands)
    };
    let store = RocksStore::open(options).unwrap().0;
    let rises = async {
        while store.floors() != floors(19, 19) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(GRACE, rises).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_window_is_told_from_the_start_on() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    hands.set(10);
    put(&store, "one", "x").await;
    close(store).await;
    hands.set(50);
    let store = open(&root, &hands);
    assert_eq!(store.metrics().window_seconds.get(), 40);
}

/// A queue that is full kept compaction out, so that history grew while it was needed most.
#[tokio::test(flavor = "multi_thread")]
async fn history_is_let_go_of_whatever_waits() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    put_each_second(&store, &hands).await;
    close(store).await;
    hands.set(320);
    let full = Options {
        queue_writes: 0,
        ..options(root.path(), &hands)
    };
    let store = RocksStore::open(full).unwrap().0;
    let refused = store.transact(Transaction::create(key("two"), value("x"))).await;
    assert!(matches!(refused, Err(StoreError::Busy { .. })), "{refused:?}");
    assert_eq!(keep_house(&store).await, floors(19, 19));
    assert_eq!(store.metrics().compactions_skipped.get(), 0);
    store.shared.poison.poison("injected");
    hands.set(325);
    assert_eq!(keep_house(&store).await, floors(19, 19));
    assert_eq!(store.metrics().compactions_skipped.get(), 1);
    assert!((series(&store, "compaction_seconds_count") - 1.0).abs() < 0.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_room_is_read_only_until_there_is_some() {
    let (root, hands, free) = (
        TempDir::new().unwrap(),
        Hands::default(),
        Arc::new(AtomicU64::new(50 << 30)),
    );
    let store = with_free(&root, &hands, &free);
    put(&store, "one", "x").await;
    close(store).await;
    free.store(1 << 20, Ordering::Relaxed);
    let store = with_free(&root, &hands, &free);
    assert!(matches!(store.health(), Health::ReadOnly(_)));
    assert!(store.get(&key("one")).await.unwrap().entry.is_some());
    let refused = store.transact(Transaction::delete(key("one"), Revision(2))).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly { .. })), "{refused:?}");
    free.store(50 << 30, Ordering::Relaxed);
    keep_house(&store).await;
    assert_eq!(store.health(), Health::Ready);
    put(&store, "one", "y").await;
}

/// Files of history go whatever snapshots there are: a read that comes upon the gap is late, nothing is damaged.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_history_is_dropped_under_is_overtaken_and_finds_no_damage() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    for round in 2..=9 {
        put(&store, "one", &round.to_string()).await;
    }
    let engine = store.shared.engine().unwrap();
    engine.settle(HISTORY);
    let view = engine.view();
    let read = || {
        read::attempt(
            &store.shared,
            &view,
            &KeyRange::all(),
            Revision(3),
            &Page::default(),
        )
    };
    assert!(matches!(read(), Ok(read::Attempt::Done(_))));
    store.compact(Revision(9)).await.unwrap();
    engine.drop_history_files(Revision(10)).unwrap();
    let late = read();
    assert!(matches!(late, Ok(read::Attempt::Overtaken)), "{late:?}");
    assert_eq!(store.metrics().checksum_failures.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_of_a_past_state_undo_each_change_once() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        put(&store, name, "then").await;
    }
    let at = Revision(7);
    for name in ["b", "d"] {
        put(&store, name, "later").await;
    }
    let mut seen = Vec::new();
    let mut page = Page {
        after: String::new(),
        limit: 2,
        ..Page::default()
    };
    loop {
        let scan = store
            .scan(&KeyRange::all(), At::Exactly(at), page.clone())
            .await
            .unwrap();
        seen.extend(scan.entries.iter().map(|(key, entry)| {
            assert_eq!(entry.value, value("then"));
            key.name().to_owned()
        }));
        if !scan.more {
            break;
        }
        page.after = scan.entries.last().unwrap().0.to_string();
        // What changes between two pages is undone too, before and behind the page.
        put(&store, "a", "between").await;
        put(&store, "f", "between").await;
        let walked = store.shared.undone().as_ref().map(read::Undone::walked);
        assert_eq!(walked, Some(seen.len()), "two changes before each page");
    }
    assert_eq!(seen, names);
    // Given up in the middle, it goes with the floor.
    page.after = String::new();
    store.scan(&KeyRange::all(), At::Exactly(at), page).await.unwrap();
    assert!(store.shared.undone().is_some());
    store.compact(at).await.unwrap();
    keep_house(&store).await;
    assert!(store.shared.undone().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_page_undid_is_not_kept_for_ever() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    put(&store, "a", "then").await;
    let at = put(&store, "b", "then").await;
    put(&store, "a", "later").await;
    let page = Page {
        limit: 1,
        ..Page::default()
    };
    let scan = store.scan(&KeyRange::all(), At::Exactly(at), page).await.unwrap();
    assert!(scan.more);
    hands.set(29);
    keep_house(&store).await;
    assert!(store.shared.undone().is_some());
    hands.set(30);
    keep_house(&store).await;
    assert!(store.shared.undone().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_the_past_take_turns_and_the_newest_state_needs_none() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    let at = put(&store, "a", "then").await;
    let now = put(&store, "a", "later").await;
    let all = u32::try_from(MAX_PAST_READS).unwrap();
    let turns = store.shared.past_reads.try_acquire_many(all).unwrap();
    let reader = store.clone();
    let read = |at| {
        let store = reader.clone();
        async move { store.scan(&KeyRange::all(), at, Page::default()).await }
    };
    for at in [At::Latest, At::Exactly(now)] {
        assert_eq!(read(at).await.unwrap().entries.len(), 1);
    }
    let refused = read(At::Exactly(at)).await.map(|_| ());
    assert!(matches!(refused, Err(StoreError::Busy { .. })), "{refused:?}");
    drop(turns);
    assert_eq!(read(At::Exactly(at)).await.unwrap().entries.len(), 1);
    assert_eq!(store.shared.past_reads.available_permits(), MAX_PAST_READS);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_of_history_is_bounded_by_its_size_in_memory() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    // A hundredth of that on disk.
    let large = "x".repeat(Value::MAX_BYTES);
    for number in 0..45 {
        put(&store, &number.to_string(), &large).await;
    }
    let at = store.current_revision().await.unwrap();
    let engine = store.shared.engine().unwrap();
    let read = |from: Revision| {
        history::read_after(&engine, &store.shared.records, from, store.shared.current()).unwrap()
    };
    assert_eq!(
        read(Revision(1)).len(),
        3,
        "4 MiB hold no more than three of them"
    );
    for number in 0..45 {
        put(&store, &number.to_string(), &large).await;
    }
    assert_eq!(read(at).len(), 2);
    let refused = store
        .scan(&KeyRange::all(), At::Exactly(at), Page::default())
        .await
        .map(|_| ());
    assert!(
        matches!(refused, Err(StoreError::Compacted { .. })),
        "{refused:?}"
    );
    let nearer = Revision(at.0 + 10);
    let scan = store
        .scan(&KeyRange::all(), At::Exactly(nearer), Page::default())
        .await
        .unwrap();
    assert_eq!(scan.entries.len(), 45);
}

async fn check_values(store: &RocksStore) -> CheckReport {
    let store = store.clone();
    tokio::task::spawn_blocking(move || store.check_values().unwrap())
        .await
        .unwrap()
}

/// Flips a bit in the middle of the newest table that holds `text`, below a running store.
fn spoil_table(root: &TempDir, text: &[u8]) {
    let tables = std::fs::read_dir(engine_folder(root.path())).unwrap();
    let mut tables: Vec<_> = tables.map(|found| found.unwrap().path()).collect();
    tables.retain(|path| path.extension().is_some_and(|end| end == "sst"));
    tables.sort();
    let found = tables.iter().rev().find_map(|path| {
        let bytes = std::fs::read(path).unwrap();
        let at = bytes.windows(text.len()).position(|window| window == text)?;
        Some((path, at))
    });
    let (path, at) = found.unwrap();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, at as u64).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[byte[0] ^ 1], at as u64).unwrap();
}

fn unlike(number: u64) -> String {
    let mut random = fastrand::Rng::with_seed(number);
    std::iter::repeat_with(|| random.alphanumeric())
        .take(3000)
        .collect()
}

/// Writes a record whose value is damaged below a running store.
fn spoil_record(store: &RocksStore, name: &str, text: &str, revision: Revision) {
    let spoiled = spoiled_state(&key(name), text, revision);
    let engine = store.shared.engine().unwrap();
    engine.write(&[Step::PutState(key(name), spoiled)], true).unwrap();
}

async fn text_of(store: &RocksStore, name: &str) -> Option<String> {
    let entry = store.get(&key(name)).await.unwrap().entry?;
    Some(String::from_utf8(entry.value.bytes.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_damaged_on_disk_is_reported_and_served_from_memory_until_the_next_start() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    let one = put(&store, "one", "first").await;
    put(&store, "two", "second").await;
    hands.set(77);
    let whole = check_values(&store).await;
    assert_eq!((whole.objects, whole.history_records), (2, 2));
    assert!(whole.damaged.is_empty() && whole.damaged_history.is_empty());
    assert_eq!(store.metrics().values_checked_seconds.get(), 77);
    spoil_record(&store, "one", "first", one);
    for failures in 1..=2 {
        assert_eq!(check_values(&store).await.damaged, [key("one").to_string()]);
        assert_eq!(store.metrics().value_check_failures.get(), failures);
        assert_eq!(store.metrics().checksum_failures.get(), failures);
    }
    assert_eq!(text_of(&store, "one").await.unwrap(), "first");
    assert!(store.damaged().is_empty(), "what is served is whole");
    close(store).await;

    let (store, opened) = RocksStore::open(options(root.path(), &hands)).unwrap();
    assert_eq!(opened.damaged, [key("one").to_string()]);
    assert!(matches!(
        store.get(&key("one")).await,
        Err(StoreError::Corrupt { .. })
    ));
    assert_eq!(text_of(&store, "two").await.unwrap(), "second");
    assert!(check_values(&store).await.damaged.is_empty(), "it is known");
    store.remove_damaged(&key("one")).await.unwrap();
    put(&store, "one", "anew").await;
    assert_eq!(text_of(&store, "one").await.unwrap(), "anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_makes_a_value_damaged_on_disk_whole_again() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    let one = put(&store, "one", "first").await;
    spoil_record(&store, "one", "first", one);
    assert_eq!(check_values(&store).await.damaged.len(), 1);
    put(&store, "one", "second").await;
    assert!(check_values(&store).await.damaged.is_empty());
    close(store).await;
    let (_, opened) = RocksStore::open(options(root.path(), &hands)).unwrap();
    assert!(opened.damaged.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_is_reported_by_key_and_needs_a_backup_of_another_volume() {
    for spoiled in [0, 30, 59] {
        let (root, hands) = (TempDir::new().unwrap(), Hands::default());
        let store = open(&root, &hands);
        for number in 0..60 {
            put(&store, &format!("{number:03}"), &unlike(number)).await;
        }
        // History has a table of its own, and goes first: then the value is found in the table of the state.
        store.compact(Revision(61)).await.unwrap();
        for family in [HISTORY, STATE] {
            store.shared.engine().unwrap().settle(family);
        }
        let [links, copies] = ["links", "copies"].map(|name| root.path().join(name));
        let linked = store.backup(&links, 0, &|_| ()).unwrap();
        store.backup_incrementally(&copies, 0).unwrap();
        spoil_table(&root, &unlike(spoiled).as_bytes()[1000..1100]);
        let name = format!("{spoiled:03}");
        let report = check_values(&store).await;
        assert!(report.damaged.contains(&key(&name).to_string()), "{report:?}");
        assert!(report.damaged.len() < 10, "{report:?}");
        assert_eq!(report.objects, 60 - report.damaged.len() as u64);
        for number in 0..60 {
            let found = text_of(&store, &format!("{number:03}")).await;
            assert_eq!(found, Some(unlike(number)), "{number}");
        }
        let refused = store.backup(&links, 0, &|_| ()).unwrap_err();
        assert!(
            matches!(refused, LifeError::Open(OpenError::Damaged { .. })),
            "{refused}"
        );
        close(store).await;
        let refused = RocksStore::open(options(root.path(), &hands)).map(|_| ());
        assert!(matches!(refused, Err(OpenError::Damaged { .. })), "{refused:?}");
        let verified = verify(&options(root.path(), &hands), &|_| {}).map(|_| ());
        assert!(
            matches!(verified, Err(LifeError::Open(OpenError::Damaged { .. }))),
            "{verified:?}"
        );
        // A backup of links has the damaged file too, and says so.
        let target = options(&root.path().join("restored"), &hands);
        let refused = restore(&linked.path, &target, &|_| {}).unwrap_err();
        assert!(matches!(refused, LifeError::Damaged { .. }), "{refused}");
        let restored = restore(&copies, &target, &|_| {}).unwrap();
        assert_eq!((restored.objects, restored.skipped.len()), (60, 0));
    }
}

/// A row that belongs to no key was taken for one that went meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_belongs_to_no_key_fails_the_check() {
    for family in [STATE, HISTORY] {
        let (root, hands) = (TempDir::new().unwrap(), Hands::default());
        hands.set(5);
        let store = open(&root, &hands);
        put(&store, "one", "first").await;
        store.shared.engine().unwrap().put_raw(family, b"\xffodd", b"x");
        let checking = store.clone();
        let checked = tokio::task::spawn_blocking(move || checking.check_values())
            .await
            .unwrap();
        assert!(matches!(checked, Err(StoreError::Corrupt { .. })), "{checked:?}");
        assert_eq!(store.metrics().value_check_failures.get(), 1);
        assert_eq!(store.metrics().values_checked_seconds.get(), 0);
        assert_eq!(store.floors().watchable_from, Revision(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_ends_when_the_disk_fills_up_and_runs_alone() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    for number in 0..200 {
        put(&store, &number.to_string(), &unlike(number)).await;
    }
    let shared = Arc::clone(&store.shared);
    let checked = tokio::task::spawn_blocking(move || {
        let pause = |_| {
            let second = check::check(&shared, &|_| false);
            assert!(
                matches!(second, Err(StoreError::Unavailable { .. })),
                "{second:?}"
            );
            assert!(
                shared.folder.join("check").exists(),
                "the files of the first are there"
            );
            shared.set_room(Room::Short);
            false
        };
        check::check(&shared, &pause)
    });
    let checked = checked.await.unwrap();
    assert!(matches!(checked, Err(StoreError::Full { .. })), "{checked:?}");
    assert!(!root.path().join("check").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_removes_what_a_check_left_behind() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    for name in ["check", "check.tmp"] {
        std::fs::create_dir_all(root.path().join(name)).unwrap();
        std::fs::write(root.path().join(name).join("1.sst"), b"old").unwrap();
    }
    let _store = open(&root, &hands);
    assert!(!root.path().join("check").exists() && !root.path().join("check.tmp").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_whose_last_time_lies_in_the_future_is_due() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    hands.set(7);
    std::fs::write(root.path().join("checked"), "99999999").unwrap();
    let options = Options {
        background_work: true,
        check_every: Duration::from_millis(5),
        ..options(root.path(), &hands)
    };
    let store = RocksStore::open(options).unwrap().0;
    while store.metrics().values_checked_seconds.get() == 0 {
        tokio::task::yield_now().await;
    }
    close(store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_history_start_over_above_a_damaged_record() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    for name in ["one", "two", "three", "four"] {
        put(&store, name, "payload").await;
    }
    let body = Records::new(Arc::new(Unsealed)).history_body(&key("two"), None, Some(&value("payload")));
    let committed = Committed {
        revision: Revision(3),
        at_ms: 0,
    };
    let (kind, created) = (EventKind::Created, Revision(3));
    let mut record = finish_change(body.unwrap(), &key("two"), kind, created, None, committed);
    let at = record.windows(7).position(|window| window == b"payload").unwrap();
    record[at] ^= 1;
    let engine = store.shared.engine().unwrap();
    engine
        .write(&[Step::PutHistory(Revision(3), record)], true)
        .unwrap();
    drop(engine);
    let report = check_values(&store).await;
    assert_eq!(
        (report.history_records, &report.damaged_history[..]),
        (4, &[3][..])
    );
    assert_eq!(store.floors(), floors(4, 4));
    let watched = store.watch(&KeyRange::all(), Revision(3)).await.map(|_| ());
    assert!(
        matches!(watched, Err(StoreError::Compacted { .. })),
        "{watched:?}"
    );
    let scanned = store
        .scan(&KeyRange::all(), At::Exactly(Revision(2)), Page::default())
        .await;
    assert!(
        matches!(scanned, Err(StoreError::Compacted { .. })),
        "{scanned:?}"
    );
    assert!(check_values(&store).await.damaged_history.is_empty());
    close(store).await;
    assert_eq!(open(&root, &hands).floors(), floors(4, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_of_history_is_passed_over() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    for number in 0..60 {
        put(&store, "one", &unlike(number)).await;
    }
    // Over and over, so that the state holds the last one alone.
    let engine = store.shared.engine().unwrap();
    engine.settle(HISTORY);
    drop(engine);
    spoil_table(&root, &unlike(30).as_bytes()[1000..1100]);
    let report = check_values(&store).await;
    assert!(report.damaged.is_empty(), "{report:?}");
    let floor = store.floors().watchable_from;
    assert_eq!(report.damaged_history, [floor.0 - 1]);
    // The thirty-first change is at revision 32, and blocks hold a handful of changes.
    assert!((32..45).contains(&floor.0), "{floor}");
    let mut events = store.watch(&KeyRange::all(), floor).await.unwrap();
    assert!(matches!(events.next().await, Some(Signal::Change(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_runs_when_it_is_due_and_not_before() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    hands.set(1);
    let options = || Options {
        background_work: true,
        check_every: Duration::from_millis(500),
        ..options(root.path(), &hands)
    };
    let store = RocksStore::open(options()).unwrap().0;
    let checked = root.path().join("checked");
    while !checked.exists() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.metrics().values_checked_seconds.get(), 0);
    hands.set(3);
    while store.metrics().values_checked_seconds.get() == 0 {
        tokio::task::yield_now().await;
    }
    close(store).await;
    assert_eq!(std::fs::read_to_string(&checked).unwrap(), "3000");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_come_back_after_a_restart_need_no_disk() {
    let (root, hands) = (TempDir::new().unwrap(), Hands::default());
    let store = open(&root, &hands);
    for text in ["1", "2", "3"] {
        put(&store, "one", text).await;
    }
    close(store).await;
    let store = open(&root, &hands);
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    let mut next = async || match events.next().await {
        Some(Signal::Change(event)) => event.revision.0,
        other => panic!("a change is due, not {other:?}"),
    };
    for expected in 2..=4 {
        assert_eq!(next().await, expected);
    }
    put(&store, "one", "5").await;
    assert_eq!(next().await, 5);
    assert_eq!(store.metrics().replays.get(), 0);
    drop(events);
    // What the tail cannot hold is on disk only.
    let large = "x".repeat(Value::MAX_BYTES);
    for number in 0..25 {
        put(&store, &number.to_string(), &large).await;
    }
    close(store).await;
    let store = open(&root, &hands);
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    for expected in 2..=30 {
        let next = events.next().await;
        assert!(
            matches!(&next, Some(Signal::Change(event)) if event.revision == Revision(expected)),
            "{expected}"
        );
    }
    let replays = store.metrics().replays.get();
    assert!((1..10).contains(&replays), "{replays}");
    drop(events);
    // Who stops waiting for the disk finds what it read.
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    let first = loop {
        match events.next().now_or_never() {
            Some(first) => break first,
            None => tokio::task::yield_now().await,
        }
    };
    assert!(matches!(first, Some(Signal::Change(event)) if event.revision == Revision(2)));
    assert_eq!(store.metrics().replays.get(), replays + 1);
}
