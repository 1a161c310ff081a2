//! Damage found by a start: refused if it is structural, else set apart.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tempfile::TempDir;

use super::fixture::{
    TestClock, close, key, open, options, put, spoiled_change, spoiled_state, tamper, value,
};
use crate::record::{Committed, Place, Records, finish_change, finish_state};
use crate::rocks::column_families::{Access, Engine, Meta, Recovery, Step};
use crate::rocks::folder::engine_folder;
use crate::rocks::housekeeping::Stop;
use crate::rocks::{MaintenanceError, OpenError, RocksStore, recover, restore, verify, verify_backup};
use crate::seal::{Seal, SealError, Sealed, Unsealed};
use crate::{
    At, Damaged, EventKind, Events, Key, KeyRange, Options, Outcome, Page, Removable, Revision, Scan, Signal,
    Store, StoreError, Transaction,
};

/// A page of a scan that sets damaged keys apart.
fn apart(after: &str, limit: usize) -> Page {
    Page {
        after: after.to_owned(),
        limit,
        damaged: Damaged::SetApart,
    }
}

/// The keys of a scan, its damaged keys, and whether there are more.
fn listed(scan: Scan) -> (Vec<Key>, Vec<Key>, bool) {
    let keys = scan.entries.into_iter().map(|(key, _)| key);
    let damaged = scan.damaged.into_iter().map(|(key, _)| key);
    (keys.collect(), damaged.collect(), scan.more)
}

fn assert_names<T: std::fmt::Debug>(name: &str, result: Result<T, StoreError>) {
    match result {
        Err(StoreError::Corrupt { key: named, .. }) => assert_eq!(named, key(name).to_string()),
        other => panic!("{other:?}"),
    }
}

/// A store with `one`, whose value is damaged, and `two`, whose value is not; and the revision of `one`.
async fn with_damaged_value(root: &TempDir, clock: &TestClock) -> (RocksStore, Revision) {
    let store = open(root, clock);
    let one = put(&store, "one", "first").await;
    put(&store, "two", "second").await;
    close(store).await;
    let spoiled = spoiled_state(&key("one"), "first", one);
    tamper(root, &[Step::PutState(key("one"), spoiled)]);
    let (store, opened) = RocksStore::open(options(root.path(), clock)).unwrap();
    assert_eq!(opened.damaged, [key("one").to_string()]);
    assert_eq!(store.damaged(), [key("one")]);
    (store, one)
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_on_a_damaged_value_name_it_and_the_rest_is_served() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let (store, one) = with_damaged_value(&root, &clock).await;
    let everything = KeyRange::all();
    assert_names("one", store.get(&key("one")).await);
    assert_names("one", store.scan(&everything, At::Latest, Page::default()).await);
    for transaction in [
        Transaction::create(key("one"), value("x")),
        Transaction::update(key("one"), one, value("x")),
        Transaction::delete(key("one"), one),
    ] {
        assert_names("one", store.transact(transaction).await);
    }
    assert!(store.get(&key("two")).await.unwrap().entry.is_some());
    let again = put(&store, "two", "again").await;
    for at in [At::Latest, At::Exactly(again), At::Exactly(again.previous())] {
        let scan = store.scan(&everything, at, apart("", 1)).await.unwrap();
        let expected = (vec![key("two")], vec![key("one")], false);
        assert_eq!(listed(scan), expected, "{at:?}");
        let after = key("one").to_string();
        let scan = store.scan(&everything, at, apart(&after, 0)).await.unwrap();
        assert_eq!(listed(scan), (vec![key("two")], vec![], false), "{at:?}");
    }
    let before_two = store.scan(&everything, At::Exactly(one), apart("", 0)).await;
    assert_eq!(listed(before_two.unwrap()), (vec![], vec![key("one")], false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_value_can_be_removed_and_stays_damaged_in_the_past() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let (store, _) = with_damaged_value(&root, &clock).await;
    let everything = KeyRange::all();
    let again = put(&store, "two", "again").await;
    let refused = store.remove_damaged(&key("two"), Removable::Damaged).await;
    assert!(matches!(refused, Err(StoreError::NotDamaged)), "{refused:?}");
    let removed = store
        .remove_damaged(&key("one"), Removable::Damaged)
        .await
        .unwrap();
    let revision = again.next();
    assert_eq!(removed, Outcome::Committed { revision });
    let scan = store
        .scan(&everything, At::Latest, Page::default())
        .await
        .unwrap();
    assert_eq!(scan.entries.len(), 1);
    let then = At::Exactly(again);
    assert_names("one", store.scan(&everything, then, Page::default()).await);
    let scan = store.scan(&everything, then, apart("", 0)).await.unwrap();
    assert_eq!(listed(scan), (vec![key("two")], vec![key("one")], false));
    let mut events = store.watch(&everything, revision).await.unwrap();
    let Some(Signal::Change(removal)) = events.next().await else {
        panic!("the removal is delivered");
    };
    assert!(removal.old.unwrap().value.is_unreadable());
    put(&store, "one", "anew").await;
    close(store).await;
    let (_, opened) = RocksStore::open(options(root.path(), &clock)).unwrap();
    assert!(opened.damaged.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_key_is_set_apart_on_one_page_only() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    put(&store, "a", "whole").await;
    let at = put(&store, "b", "spoiled").await;
    put(&store, "c", "whole").await;
    let last = put(&store, "d", "spoiled").await;
    close(store).await;
    let spoil = |name, at| Step::PutState(key(name), spoiled_state(&key(name), "spoiled", at));
    tamper(&root, &[spoil("b", at), spoil("d", last)]);
    let store = open(&root, &clock);
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
    assert_eq!(listed(second).1, [key("b"), key("d")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_names_damaged_values_and_a_restore_leaves_them_out() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let folder = root.path().join("store");
    let at = |folder: &Path| RocksStore::open(options(folder, &clock)).unwrap().0;
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
    clock.set(1);
    let report = store.backup(&backups, 1, &|_| {}).unwrap();
    assert_eq!(
        (&report.manifest.damaged[..], report.manifest.objects),
        (&named[..], 2)
    );
    assert!(
        whole.path.exists(),
        "the last good backup of the damaged value was removed"
    );
    let seal: Arc<dyn Seal> = Arc::new(Unsealed);
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
        let target = options(&root.path().join(name), &clock);
        let restored = restore(from, &target, &|_| {}).unwrap();
        assert_eq!((&restored.skipped[..], restored.objects), (&named[..], 1));
        let new = at(&target.path);
        assert!(new.get(&key("two")).await.unwrap().entry.is_some());
        assert!(new.get(&key("one")).await.unwrap().entry.is_none());
    }
    // Once a newer backup has no damage, the older ones are removed.
    store
        .remove_damaged(&key("one"), Removable::Damaged)
        .await
        .unwrap();
    let report = store.backup(&backups, 1, &|_| {}).unwrap();
    assert_eq!(report.removed.len(), 2);
}

/// Checks that a tampered store is refused for a reason that contains `expected`.
async fn check_refused(steps: &[Step], expected: &str) {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    put(&store, "one", "first").await;
    put(&store, "two", "second").await;
    put(&store, "one", "third").await;
    close(store).await;
    tamper(&root, steps);
    let verified = verify(&options(root.path(), &clock), &|_| {}).unwrap_err();
    let refused = RocksStore::open(options(root.path(), &clock))
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
        (Step::PutState(one.clone(), state(9)), "above that of the store"),
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
            Step::PutMeta(Meta::Revision, 5),
            "newest history record is of revision 4",
        ),
        (Step::PutMeta(Meta::WatchableFrom, 9), "contradict each other"),
        (Step::DropHistory(Revision(4)), "revision 2: it is missing"),
        (
            Step::PutMeta(Meta::Format, 2),
            "the file format has version 1, the engine 2",
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

/// An encryption whose key can become unavailable, and that authenticates what it sealed.
struct Vault(AtomicBool);

impl Seal for Vault {
    fn seal(&self, key: &str, plain: Vec<u8>) -> Result<Sealed, SealError> {
        let mut bytes: Vec<u8> = plain.into_iter().map(|byte| !byte).collect();
        bytes.extend_from_slice(&crc32fast::hash(key.as_bytes()).to_le_bytes());
        let key_id = "k".to_owned();
        Ok(Sealed { key_id, bytes })
    }

    fn open(&self, key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
        assert_eq!(key_id, "k");
        if !self.0.load(Ordering::Relaxed) {
            return Err(SealError::new("the key service does not answer"));
        }
        match sealed.split_last_chunk::<4>() {
            Some((body, tag)) if *tag == crc32fast::hash(key.as_bytes()).to_le_bytes() => {
                Ok(body.iter().map(|byte| !byte).collect())
            }
            _ => Err(SealError::new("it does not authenticate")),
        }
    }

    fn generation(&self) -> u64 {
        self.0.load(Ordering::Relaxed).into()
    }
}

/// An encryption that opens nothing, counts attempts, and closes the store in the middle of one.
#[derive(Default)]
struct Closing {
    stop: OnceLock<Arc<Stop>>,
    attempts: AtomicU64,
}

impl Seal for Closing {
    fn seal(&self, _: &str, bytes: Vec<u8>) -> Result<Sealed, SealError> {
        let key_id = "k".to_owned();
        Ok(Sealed { key_id, bytes })
    }

    fn open(&self, _: &str, _: &str, _: Vec<u8>) -> Result<Vec<u8>, SealError> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if let Some(stop) = self.stop.get() {
            stop.set();
        }
        Err(SealError::new("the key service does not answer"))
    }
}

/// A key service may be well and not yet be asked again for a seed that it refused.
#[tokio::test(flavor = "multi_thread")]
async fn values_are_opened_again_soon_and_then_ever_more_rarely() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let seal = Arc::new(Closing::default());
    let options = || Options {
        seal: Arc::clone(&seal) as Arc<dyn Seal>,
        ..options(root.path(), &clock)
    };
    let store = RocksStore::open(options()).unwrap().0;
    put(&store, "one", "text").await;
    close(store).await;
    let store = RocksStore::open(options()).unwrap().0;
    let mut attempts = Vec::new();
    for round in 1..=250 {
        let before = seal.attempts.load(Ordering::Relaxed);
        store.parts.reopen(&Stop::default()).unwrap();
        if seal.attempts.load(Ordering::Relaxed) > before {
            attempts.push(round);
        }
    }
    assert_eq!(attempts, [1, 3, 7, 15, 31, 63, 123, 183, 243]);
    close(store).await;
}

/// Each attempt may wait for a key service, and a store that closes waits for housekeeping.
#[tokio::test(flavor = "multi_thread")]
async fn values_are_not_opened_again_once_the_store_closes() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let seal = Arc::new(Closing::default());
    let options = || Options {
        seal: Arc::clone(&seal) as Arc<dyn Seal>,
        ..options(root.path(), &clock)
    };
    let store = RocksStore::open(options()).unwrap().0;
    for name in ["one", "two", "three"] {
        put(&store, name, "text").await;
    }
    close(store).await;
    let store = RocksStore::open(options()).unwrap().0;
    assert_eq!(store.unopened(), 3);
    let stop = Arc::new(Stop::default());
    assert!(seal.stop.set(Arc::clone(&stop)).is_ok());
    let before = seal.attempts.load(Ordering::Relaxed);
    store.parts.reopen(&stop).unwrap();
    assert_eq!(seal.attempts.load(Ordering::Relaxed) - before, 1);
    close(store).await;
}

/// The value of a key, or why it cannot be read.
async fn get(store: &RocksStore, name: &str) -> String {
    match store.get(&key(name)).await {
        Ok(found) => String::from_utf8(found.entry.unwrap().value.bytes.to_vec()).unwrap(),
        Err(error) => error.to_string(),
    }
}

/// Nothing is absent: reads, lists, writes and watches from the past fail.
async fn check_nothing_opens(store: &RocksStore) {
    let closed = format!(
        "stored data of {} does not open: the key service does not answer",
        key("three")
    );
    assert_eq!(get(store, "three").await, closed);
    let all = KeyRange::all();
    store.scan(&all, At::Latest, Page::default()).await.unwrap_err();
    let apart = Page {
        damaged: Damaged::SetApart,
        ..Page::default()
    };
    let scan = store.scan(&all, At::Latest, apart).await.unwrap();
    assert_eq!((scan.entries.len(), scan.damaged.len()), (0, 3));
    let update = Transaction::update(key("three"), Revision(4), value("other"));
    assert!(matches!(
        store.transact(update).await,
        Err(StoreError::Sealed { .. })
    ));
    let mut events = store.watch(&all, Revision(2)).await.unwrap();
    assert!(matches!(events.next().await, Some(Signal::Compacted(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_sealed_value_is_set_apart_and_a_missing_key_is_no_damage_and_may_come_back() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let vault = Arc::new(Vault(true.into()));
    let options = || Options {
        seal: Arc::clone(&vault) as Arc<dyn Seal>,
        ..options(root.path(), &clock)
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
    // A flipped bit in the first; the second has a payload that was sealed for the third.
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
    assert_eq!(
        (&opened.damaged[..], opened.unopened),
        (&[key("one").to_string()][..], 1)
    );
    let backup = store.backup(&root.path().join("backups"), 0, &|_| {}).unwrap();
    assert_eq!(backup.manifest.damaged, opened.damaged);
    assert!(get(&store, "one").await.contains("is damaged"));
    let not_for_it = format!(
        "stored data of {} does not open: it does not authenticate",
        key("two")
    );
    assert_eq!(get(&store, "two").await, not_for_it);
    assert_eq!(get(&store, "three").await, "third");
    close(store).await;

    // Without the key the store starts.
    vault.0.store(false, Ordering::Relaxed);
    let (store, opened) = RocksStore::open(options()).unwrap();
    assert_eq!(opened.unopened, 2);
    check_nothing_opens(&store).await;
    let elsewhere = root.path().join("backups-without-key");
    store.backup(&elsewhere, 0, &|_| {}).unwrap();
    // It answers again.
    vault.0.store(true, Ordering::Relaxed);
    let housekeeping = store.clone();
    tokio::task::spawn_blocking(move || housekeeping.run_housekeeping())
        .await
        .unwrap();
    assert_eq!(get(&store, "three").await, "third");
    assert_eq!((get(&store, "two").await, store.unopened()), (not_for_it, 1));
    let refused = store.remove_damaged(&key("two"), Removable::Damaged).await;
    assert!(matches!(refused, Err(StoreError::Sealed { .. })), "{refused:?}");
    let removed = store
        .remove_damaged(&key("two"), Removable::DamagedOrSealed)
        .await;
    assert!(matches!(removed, Ok(Outcome::Committed { .. })), "{removed:?}");
    close(store).await;

    vault.0.store(false, Ordering::Relaxed);
    let report = verify(&options(), &|_| {}).unwrap();
    assert_eq!(
        (&report.damaged[..], report.unopened > 0),
        (&[key("one").to_string()][..], true)
    );
    let refused = recover(&options(), true, &|_| {}).unwrap_err();
    assert!(
        matches!(refused, MaintenanceError::Open(OpenError::Sealed { .. })),
        "{refused}"
    );
    vault.0.store(true, Ordering::Relaxed);
    let recovered = recover(&options(), true, &|_| {}).unwrap();
    assert_eq!((recovered.lost, recovered.objects), (report.damaged, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_never_skips_damaged_history() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    for name in ["one", "two", "three"] {
        put(&store, name, "payload").await;
    }
    close(store).await;
    // The start does not read values of history.
    let spoiled = spoiled_change("two", Revision(3));
    tamper(&root, &[Step::PutHistory(Revision(3), spoiled)]);
    let verified = verify(&options(root.path(), &clock), &|_| {}).unwrap();
    assert_eq!((verified.damaged_history, verified.damaged.len()), (vec![3], 0));
    let store = open(&root, &clock);
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    assert_eq!(events.next().await, Some(Signal::Compacted(Revision(5))));
    assert_eq!(events.next().await, None);
    assert_eq!(store.metrics().checksum_failures.get(), 1);
}
