//! Backup, restore, export, import, recovery: nothing is lost unsaid, and no time runs backwards.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use drydock_storage::rocks::{
    self, LifeError, OpenError, Progress, RocksStore, import, recover, restore, verify, verify_backup,
};
use drydock_storage::seal::{Seal, Unsealed};
use drydock_storage::{
    At, Durability, FreeSpace, Key, KeyRange, Options, Outcome, Page, Revision, Store, StoreError,
    Transaction, Value,
};
use tempfile::TempDir;

const GRACE: Duration = Duration::from_secs(10);
/// Far beyond what any test writes.
const JUMP: u64 = 1_000_000_000;

fn quiet(_: Progress) {}

fn seal() -> Arc<dyn Seal> {
    Arc::new(Unsealed)
}

fn options(folder: &Path) -> Options {
    Options {
        clock: Arc::new(|| 1_000_000_u64),
        background_work: false,
        ..Options::for_tests(folder)
    }
}

fn key(name: &str) -> Key {
    Key::new("example.com", "things", "a", name).unwrap()
}

fn value(text: &str) -> Value {
    Value {
        bytes: Bytes::copy_from_slice(text.as_bytes()),
        form: "example.com/v1".into(),
        splice_offset: 2,
    }
}

fn open(folder: &Path) -> RocksStore {
    RocksStore::open(options(folder)).unwrap().0
}

async fn put(store: &RocksStore, name: &str, text: &str) -> Revision {
    let found = store.get(&key(name)).await.unwrap().entry;
    let transaction = match found {
        None => Transaction::create(key(name), value(text)),
        Some(entry) => Transaction::update(key(name), entry.modified, value(text)),
    };
    match store.transact(transaction).await.unwrap() {
        Outcome::Committed { revision } => revision,
        Outcome::Conflict { current, .. } => panic!("{current:?}"),
    }
}

async fn delete(store: &RocksStore, name: &str) {
    let entry = store.get(&key(name)).await.unwrap().entry.unwrap();
    store
        .transact(Transaction::delete(key(name), entry.modified))
        .await
        .unwrap();
}

/// Names and values, and the least and greatest revision of a value.
async fn content(store: &RocksStore) -> (Vec<(String, String)>, u64, u64) {
    let scan = store
        .scan(&KeyRange::all(), At::Latest, Page::default())
        .await
        .unwrap();
    let revisions = || scan.entries.iter().map(|(_, entry)| entry.modified.0);
    let (least, most) = (revisions().min().unwrap_or(0), revisions().max().unwrap_or(0));
    let text = |value: &Value| String::from_utf8(value.bytes.to_vec()).unwrap();
    let entries = scan
        .entries
        .iter()
        .map(|(key, entry)| (key.name().to_owned(), text(&entry.value)));
    (entries.collect(), least, most)
}

async fn filled(folder: &Path) -> RocksStore {
    let store = open(folder);
    for name in ["one", "two", "three"] {
        put(&store, name, &format!("{name} of the first kind")).await;
    }
    put(&store, "two", "two again").await;
    delete(&store, "three").await;
    store
}

fn expected() -> Vec<(String, String)> {
    [("one", "one of the first kind"), ("two", "two again")]
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .to_vec()
}

fn file_of(folder: &Path, suffix: &str) -> std::path::PathBuf {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    found.sort();
    found.pop().expect("there is such a file")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_holds_everything_at_higher_revisions() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let report = store.backup(&root.path().join("backups"), 0, &quiet).unwrap();
    assert_eq!((report.manifest.objects, report.manifest.revision), (2, 6));
    // Written after the backup, and lost by restoring it.
    let shown = put(&store, "late", "x").await;
    assert_eq!(
        verify_backup(&report.path, &seal(), &quiet).unwrap(),
        report.manifest
    );

    let target = root.path().join("restored");
    let restored = restore(&report.path, &options(&target), &quiet).unwrap();
    assert_eq!((restored.objects, restored.source), (2, store.uuid()));
    let new = open(&target);
    assert_ne!(new.uuid(), store.uuid());
    let (entries, least, most) = content(&new).await;
    assert_eq!(entries, expected());
    assert!(least > shown.0 + JUMP - 10, "an object went back to {least}");
    assert_eq!(
        (most, restored.revision),
        (new.current_revision().await.unwrap().0, most)
    );
    let resumed = new.watch(&KeyRange::all(), shown.next()).await.map(|_| ());
    assert!(
        matches!(resumed, Err(StoreError::Compacted { .. })),
        "{resumed:?}"
    );
    let past = new
        .scan(&KeyRange::all(), At::Exactly(Revision(most)), Page::default())
        .await
        .unwrap();
    assert_eq!(past.entries.len(), 2);
    assert_eq!(put(&new, "next", "x").await, Revision(most + 1));
    new.close(GRACE).await.unwrap();
    let (reopened, opened) = RocksStore::open(options(&target)).unwrap();
    assert_eq!((opened.revision, opened.objects), (most + 1, 3));
    reopened.close(GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_backup_jumps_further() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let report = store.backup(&root.path().join("backups"), 0, &quiet).unwrap();
    let target = root.path().join("restored");
    let month_ms = 30 * 24 * 3600 * 1000;
    let later = Options {
        clock: Arc::new(move || 1_000_000 + month_ms),
        ..options(&target)
    };
    let restored = restore(&report.path, &later, &quiet).unwrap();
    assert!(
        restored.revision > 6 + month_ms / 1000 * 20_000,
        "{}",
        restored.revision
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_backup_is_refused() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let report = store.backup(&root.path().join("backups"), 0, &quiet).unwrap();
    let table = file_of(&report.path.join("db"), ".sst");
    let mut bytes = std::fs::read(&table).unwrap();
    let middle = bytes.len() / 2;
    *bytes.get_mut(middle).unwrap() ^= 1;
    std::fs::write(&table, bytes).unwrap();
    let refused = restore(&report.path, &options(&root.path().join("new")), &quiet).unwrap_err();
    assert!(refused.to_string().contains("has changed"), "{refused}");
    std::fs::remove_file(&table).unwrap();
    let refused = verify_backup(&report.path, &seal(), &quiet).unwrap_err();
    assert!(refused.to_string().contains("is missing"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_restored_over_something() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let report = store.backup(&root.path().join("backups"), 0, &quiet).unwrap();
    store.close(GRACE).await.unwrap();
    let refused = restore(&report.path, &options(&root.path().join("store")), &quiet).unwrap_err();
    assert!(
        matches!(refused, LifeError::Open(OpenError::NotEmpty { .. })),
        "{refused}"
    );
}

/// Rewrites a line of a backup's manifest; why the backup is refused then.
fn refused_with(backup: &Path, from: &str, to: &str) -> String {
    let path = backup.join("manifest.json");
    let whole = std::fs::read_to_string(&path).unwrap();
    let changed = whole.replace(from, to);
    assert_ne!(whole, changed, "{whole}");
    std::fs::write(&path, changed).unwrap();
    let refused = verify_backup(backup, &seal(), &quiet).unwrap_err().to_string();
    std::fs::write(&path, whole).unwrap();
    refused
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_says_something_else_is_refused() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let path = store
        .backup(&root.path().join("backups"), 0, &quiet)
        .unwrap()
        .path;
    let uuid = store.uuid().to_string();
    for (from, to) in [
        ("\"objects\": 2", "\"objects\": 3"),
        ("\"revision\": 6", "\"revision\": 5"),
        (uuid.as_str(), "00000000-0000-0000-0000-000000000001"),
    ] {
        let refused = refused_with(&path, from, to);
        assert!(refused.contains("not what the manifest says"), "{refused}");
    }
    let refused = refused_with(&path, "\"content\"", "\"damaged\": [\"a/b/c/d\"], \"content\"");
    assert!(refused.contains("the manifest says so of"), "{refused}");
    verify_backup(&path, &seal(), &quiet).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_of_other_stores_in_the_same_folder_are_left_alone() {
    let root = TempDir::new().unwrap();
    let backups = root.path().join("backups");
    let (one, two) = (
        filled(&root.path().join("one")).await,
        filled(&root.path().join("two")).await,
    );
    put(&two, "more", "x").await;
    let others = [one.backup(&backups, 1, &quiet).unwrap().path];
    let odd = backups.join("backup-of-my-own");
    std::fs::create_dir(&odd).unwrap();
    let first = two.backup(&backups, 1, &quiet).unwrap().path;
    put(&two, "more", "y").await;
    let second = two.backup(&backups, 1, &quiet).unwrap();
    assert_eq!(second.removed, [first]);
    assert!(others[0].exists() && odd.exists() && second.path.exists());
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|found| found.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn incremental_backups_share_files_and_each_of_them_is_restored() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let folder = root.path().join("copies");
    let first = store.backup_incrementally(&folder, 2).unwrap();
    assert_eq!((first.store, first.revision, first.kept), (store.uuid(), 6, 1));
    let shared = folder.join("engine/shared_checksum");
    let before = names(&shared);
    put(&store, "late", "late").await;
    let second = store.backup_incrementally(&folder, 2).unwrap();
    let after = names(&shared);
    assert!(
        before.iter().all(|name| after.contains(name)),
        "{before:?} {after:?}"
    );
    assert!(before.len() < after.len());

    // What comes later is seen by none of them.
    let shown = put(&store, "one", "later").await;
    for (path, objects) in [(&first.path, 2), (&second.path, 3), (&folder, 3)] {
        let target = root.path().join(format!("restored-{}", uuid::Uuid::new_v4()));
        let restored = restore(path, &options(&target), &quiet).unwrap();
        assert_eq!((restored.objects, restored.source), (objects, store.uuid()));
        assert!(!target.join("restoring").exists());
        let new = open(&target);
        let (entries, least, most) = content(&new).await;
        assert_eq!(entries.len() as u64, objects);
        assert!(entries.contains(&("two".to_owned(), "two again".to_owned())));
        assert!(least > shown.0 + JUMP - 10, "an object went back to {least}");
        assert_eq!(new.floors().watchable_from, Revision(most));
    }

    let third = store.backup_incrementally(&folder, 2).unwrap();
    assert_eq!(third.kept, 2);
    assert!(!first.path.exists() && second.path.exists() && third.path.exists());
    let another = filled(&root.path().join("another")).await;
    let refused = another.backup_incrementally(&folder, 2).unwrap_err();
    assert!(matches!(refused, LifeError::Foreign { .. }), "{refused}");
}

/// A batch is in the files before its revision is published, which is what the manifest says.
#[tokio::test(flavor = "multi_thread")]
async fn an_incremental_backup_that_is_ahead_of_its_manifest_is_restored() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let folder = root.path().join("copies");
    let path = store.backup_incrementally(&folder, 0).unwrap().path;
    let whole = std::fs::read_to_string(&path).unwrap();
    let behind = whole.replace("\"revision\": 6", "\"revision\": 5");
    assert_ne!(whole, behind);
    std::fs::write(&path, behind).unwrap();
    let restored = restore(&folder, &options(&root.path().join("restored")), &quiet).unwrap();
    assert_eq!((restored.objects, restored.source_revision), (2, 6));
    assert!(restored.revision > 6 + JUMP);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_backups_that_is_too_large_keeps_all() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let folder = root.path().join("copies");
    let report = store.backup_incrementally(&folder, 1 << 32).unwrap();
    assert_eq!(report.kept, 1);
    assert!(report.path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_is_not_copied() {
    let root = TempDir::new().unwrap();
    let free = 1 << 30;
    let store = RocksStore::open(Options {
        measure_disk: Arc::new(move |_| Ok(FreeSpace { free, total: 1 << 40 })),
        ..options(&root.path().join("store"))
    })
    .unwrap()
    .0;
    let folder = root.path().join("copies");
    let refused = store.backup_incrementally(&folder, 2).unwrap_err();
    assert!(
        matches!(refused, LifeError::Store(StoreError::Full { .. })),
        "{refused}"
    );
    assert!(!folder.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_into_one_folder_wait_for_each_other() {
    let root = TempDir::new().unwrap();
    let time_ms = AtomicU64::new(0);
    let ticking = Options {
        clock: Arc::new(move || time_ms.fetch_add(1, Ordering::Relaxed)),
        ..options(&root.path().join("store"))
    };
    let store = RocksStore::open(ticking).unwrap().0;
    put(&store, "one", "one").await;
    let folder = root.path().join("backups");
    let take = || {
        let (store, folder) = (store.clone(), folder.clone());
        std::thread::spawn(move || store.backup(&folder, 0, &quiet).map(|report| report.path))
    };
    for taken in [take(), take(), take()] {
        let path = taken.join().unwrap().unwrap();
        verify_backup(&path, &seal(), &quiet).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_incremental_backup_is_told_and_not_restored() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let folder = root.path().join("copies");
    store.backup_incrementally(&folder, 0).unwrap();
    let table = file_of(&folder.join("engine/shared_checksum"), ".sst");
    let whole = std::fs::read(&table).unwrap();
    let mut bytes = whole.clone();
    *bytes.get_mut(whole.len() / 2).unwrap() ^= 1;
    std::fs::write(&table, &bytes).unwrap();
    let target = root.path().join("restored");
    let refused = restore(&folder, &options(&target), &quiet).unwrap_err();
    assert!(matches!(refused, LifeError::Damaged { .. }), "{refused}");
    assert!(!target.join("format").exists());
    // The next backup finds what is not there as it was.
    std::fs::write(&table, whole.get(..whole.len() - 1).unwrap()).unwrap();
    put(&store, "late", "late").await;
    let refused = store.backup_incrementally(&folder, 0).unwrap_err();
    assert!(matches!(refused, LifeError::Damaged { .. }), "{refused}");
}

/// Restore or import.
type Fill = fn(&Path, &Options, &dyn Fn(Progress)) -> Result<rocks::ImportReport, LifeError>;

/// Whoever waits for the folder finds it filled by the one before.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_waited_for_the_folder_does_not_write_into_it() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let report = store.backup(&root.path().join("backups"), 0, &quiet).unwrap();
    let export = root.path().join("all.export");
    store.export(&export, &quiet).unwrap();
    for (name, fill, from) in [
        ("restored", restore as Fill, &report.path),
        ("imported", import, &export),
    ] {
        let target = root.path().join(name);
        std::fs::create_dir(&target).unwrap();
        let lock = std::fs::File::create(target.join("lock")).unwrap();
        lock.lock().unwrap();
        let waiting = Options {
            lock_wait: GRACE,
            ..options(&target)
        };
        let from = from.clone();
        let second = std::thread::spawn(move || fill(&from, &waiting, &quiet));
        std::fs::write(target.join("format"), b"of the first").unwrap();
        drop(lock);
        let refused = second.join().unwrap().unwrap_err();
        assert!(
            matches!(refused, LifeError::Open(OpenError::NotEmpty { .. })),
            "{refused}"
        );
        assert!(!target.join("db").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_backups_are_kept() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let backups = root.path().join("backups");
    let mut paths = Vec::new();
    for round in 0..4 {
        put(&store, "one", &round.to_string()).await;
        paths.push(store.backup(&backups, 2, &quiet).unwrap().path);
    }
    let exist: Vec<bool> = paths.iter().map(|path| path.exists()).collect();
    assert_eq!(exist, [false, false, true, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_imported_whole() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let path = root.path().join("all.export");
    let report = store.export(&path, &quiet).unwrap();
    assert_eq!(
        (report.objects, report.bytes),
        (2, std::fs::metadata(&path).unwrap().len())
    );
    let target = root.path().join("imported");
    import(&path, &options(&target), &quiet).unwrap();
    let new = open(&target);
    let (entries, least, _) = content(&new).await;
    assert_eq!(entries, expected());
    assert!(least > JUMP);
    let found = new.get(&key("one")).await.unwrap().entry.unwrap();
    assert_eq!(found.value, value("one of the first kind"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_was_changed_or_cut_is_refused() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let path = root.path().join("all.export");
    store.export(&path, &quiet).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        *bytes.get_mut(at).unwrap() ^= 4;
        bytes
    };
    let cut = whole.get(..whole.len() - 7).unwrap().to_vec();
    let inside_a_value = whole.windows(5).position(|window| window == b"again").unwrap();
    for (number, bytes) in [changed(3), changed(inside_a_value), cut].into_iter().enumerate() {
        std::fs::write(&path, bytes).unwrap();
        let target = root.path().join(format!("imported-{number}"));
        import(&path, &options(&target), &quiet).unwrap_err();
        let opened = RocksStore::open(options(&target));
        // Nothing was begun, or what was begun is no store.
        if let Ok((store, opened)) = opened {
            assert!(opened.is_new);
            store.close(GRACE).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_a_newer_format_is_refused_with_both_numbers() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let path = root.path().join("all.export");
    store.export(&path, &quiet).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // Magic, length of the header, tag of its first field, the format.
    let at = b"drydock-export 1\n".len() + 2;
    assert_eq!(bytes.get(at - 1..=at), Some(&[8, 1][..]));
    *bytes.get_mut(at).unwrap() = 2;
    std::fs::write(&path, bytes).unwrap();
    let refused = import(&path, &options(&root.path().join("new")), &quiet).unwrap_err();
    assert!(
        matches!(
            refused,
            LifeError::Open(OpenError::TooNew {
                found: 2,
                supported: 1,
                ..
            })
        ),
        "{refused}"
    );
    assert!(!root.path().join("new").exists());
}

/// The files of a store whose log ends in a write that was cut in its middle, and whose mark does not know it.
async fn torn_store(folder: &Path, durability: Durability) {
    let store = RocksStore::open(Options {
        durability,
        ..options(folder)
    })
    .unwrap()
    .0;
    put(&store, "one", "one").await;
    store.keep_house();
    let mark = std::fs::read(folder.join("mark")).unwrap();
    let log = file_of(&folder.join("db"), ".log");
    let kept = std::fs::metadata(&log).unwrap().len();
    // Larger than a block of the log, so that it is more than one piece there.
    let mut random = fastrand::Rng::with_seed(1);
    let text: String = std::iter::repeat_with(|| random.alphanumeric())
        .take(200_000)
        .collect();
    put(&store, "two", &text).await;
    drop(store);
    while matches!(
        verify(&options(folder), &quiet),
        Err(LifeError::Open(OpenError::Locked { .. }))
    ) {
        tokio::task::yield_now().await;
    }
    std::fs::write(folder.join("mark"), mark).unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    let torn = usize::try_from(kept).unwrap() + 300;
    bytes.get_mut(torn..torn + 4096).unwrap().fill(0);
    std::fs::write(&log, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn verifying_finds_what_a_start_finds() {
    let relaxed = Durability::Relaxed {
        interval: Duration::from_hours(1),
    };
    for durability in [Durability::Strict, relaxed] {
        let root = TempDir::new().unwrap();
        torn_store(root.path(), durability).await;
        let options = Options {
            durability,
            ..options(root.path())
        };
        let verified = verify(&options, &quiet).unwrap();
        assert_eq!((verified.revision, verified.objects), (2, 1), "{durability:?}");
        assert!(verified.had_torn_tail);
        let again = verify(&options, &quiet).unwrap();
        assert!(again.had_torn_tail, "it changed something");
        // Nothing acknowledged is lost, so there is nothing to accept.
        let left_alone = recover(&options, false, &quiet).unwrap();
        assert_eq!(left_alone.fault, None);
        let (store, opened) = RocksStore::open(options).unwrap();
        assert_eq!((opened.revision, opened.objects), (2, 1));
        assert!(opened.had_torn_tail);
        assert_eq!(store.metrics().recovered_tail.get(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_store_is_never_recovered_as_if_it_were_damaged() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    filled(&folder).await.close(GRACE).await.unwrap();
    let format = std::fs::read_to_string(folder.join("format")).unwrap();
    let newer = format.replace("\"oldestReader\": 1", "\"oldestReader\": 2");
    assert_ne!(format, newer);
    std::fs::write(folder.join("format"), newer).unwrap();
    let refused = recover(&options(&folder), true, &quiet).unwrap_err();
    assert!(
        matches!(refused, LifeError::Open(OpenError::TooNew { .. })),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_store_is_verified_and_not_recovered() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    let missing = verify(&options(&folder), &quiet).unwrap_err();
    assert!(
        matches!(missing, LifeError::Open(OpenError::Missing { .. })),
        "{missing}"
    );
    let store = filled(&folder).await;
    let held = verify(&options(&folder), &quiet).unwrap_err();
    assert!(
        matches!(held, LifeError::Open(OpenError::Locked { .. })),
        "{held}"
    );
    store.close(GRACE).await.unwrap();
    let report = verify(&options(&folder), &quiet).unwrap();
    assert_eq!((report.revision, report.acknowledged, report.objects), (6, 6, 2));
    assert_eq!(report.history_records, 5);
    let report = recover(&options(&folder), true, &quiet).unwrap();
    assert_eq!(
        (report.fault, report.revision, report.kept_aside),
        (None, 6, None)
    );
}

/// A store whose log was cut exactly after its fourth revision: no engine can tell, the mark can.
async fn cut_store(folder: &Path) {
    let store = open(folder);
    for name in ["one", "two", "three"] {
        put(&store, name, name).await;
    }
    let log = file_of(&folder.join("db"), ".log");
    let kept = std::fs::read(&log).unwrap();
    for name in ["four", "five"] {
        put(&store, name, name).await;
    }
    // Dropped without closing: nothing is flushed, the log stays.
    drop(store);
    while matches!(
        verify(&options(folder), &quiet),
        Err(LifeError::Open(OpenError::Locked { .. }))
    ) {
        tokio::task::yield_now().await;
    }
    let mut cut = std::fs::read(&log).unwrap();
    cut.truncate(kept.len());
    assert_eq!(cut, kept);
    std::fs::write(&log, cut).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn loss_is_refused_until_it_is_accepted() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    cut_store(&folder).await;
    let Err(refused) = RocksStore::open(options(&folder)) else {
        panic!("it opened without two acknowledged writes");
    };
    assert!(
        matches!(
            refused,
            OpenError::AcknowledgedLost {
                recovered: Revision(4),
                ..
            }
        ),
        "{refused}"
    );
    let text = refused.to_string();
    assert!(text.contains("storage recover --accept-loss"), "{text}");
    assert!(text.contains(".log of "), "{text}");
    let refused = recover(&options(&folder), false, &quiet).unwrap_err();
    assert!(matches!(refused, LifeError::LossNotAccepted { .. }), "{refused}");

    let report = recover(&options(&folder), true, &quiet).unwrap();
    assert_eq!(
        (report.recovered, report.missing_revisions, report.objects),
        (4, report.acknowledged.unwrap() - 4, 3)
    );
    assert!(report.kept_aside.unwrap().join("db").exists());
    let (store, opened) = RocksStore::open(options(&folder)).unwrap();
    let (entries, least, most) = content(&store).await;
    assert_eq!(entries.len(), 3);
    assert!(least > 6 + JUMP - 10, "{least}");
    assert_eq!(opened.revision, most);
    assert_eq!(opened.listable_from, most);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_mark_is_damage_and_what_is_there_can_be_taken() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    filled(&folder).await.close(GRACE).await.unwrap();
    std::fs::remove_file(folder.join("mark")).unwrap();
    let Err(refused) = RocksStore::open(options(&folder)) else {
        panic!("it opened without its mark");
    };
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    let verified = verify(&options(&folder), &quiet).unwrap_err();
    assert_eq!(verified.to_string(), refused.to_string());
    let report = recover(&options(&folder), true, &quiet).unwrap();
    assert_eq!((report.acknowledged, report.objects), (None, 2));
    assert_eq!(content(&open(&folder)).await.0, expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_format_is_damage_and_what_is_there_can_be_taken() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    filled(&folder).await.close(GRACE).await.unwrap();
    std::fs::remove_file(folder.join("format")).unwrap();
    let Err(refused) = RocksStore::open(options(&folder)) else {
        panic!("it opened without its format");
    };
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    let verified = verify(&options(&folder), &quiet).unwrap_err();
    assert_eq!(verified.to_string(), refused.to_string());
    let report = recover(&options(&folder), true, &quiet).unwrap();
    assert_eq!(report.objects, 2);
    assert_eq!(content(&open(&folder)).await.0, expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_recoveries_the_second_finds_a_whole_store() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    cut_store(&folder).await;
    let recoveries = [(), ()].map(|()| {
        let options = Options {
            lock_wait: GRACE,
            ..options(&folder)
        };
        std::thread::spawn(move || recover(&options, true, &quiet).unwrap())
    });
    let mut reports = recoveries.map(|recovery| recovery.join().unwrap());
    reports.sort_by_key(|report| report.fault.is_none());
    let [first, second] = reports;
    assert!(first.fault.is_some() && second.fault.is_none(), "{second:?}");
    assert_eq!(first.revision, second.revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_that_was_cut_short_is_repeated_never_an_empty_store() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    cut_store(&folder).await;
    recover(&options(&folder), true, &quiet).unwrap();
    // As after a crash in the middle of the swap: the format has not come back yet.
    let fresh = folder.join("recovering");
    std::fs::create_dir(&fresh).unwrap();
    std::fs::rename(folder.join("format"), fresh.join("format")).unwrap();
    std::fs::rename(folder.join("mark"), fresh.join("mark")).unwrap();
    let Err(refused) = RocksStore::open(options(&folder)) else {
        panic!("it opened in the middle of a recovery");
    };
    assert!(
        refused.to_string().contains("recovery was cut short"),
        "{refused}"
    );
    let report = recover(&options(&folder), true, &quiet).unwrap();
    assert_eq!((report.fault, report.objects), (None, 3));
    assert_eq!(content(&open(&folder)).await.0.len(), 3);
}
