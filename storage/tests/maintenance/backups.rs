//! Backups on the volume of the store, and their restore.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use drydock_storage::rocks::{MaintenanceError, OpenError, RocksStore, restore, verify_backup};
use drydock_storage::{At, KeyRange, Options, Page, Revision, Store, StoreError};
use tempfile::TempDir;

use crate::fixture::{GRACE, JUMP, content, expected, file_of, filled, open, options, put, quiet, seal};

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_holds_everything_at_higher_revisions() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let report = store.backup(&root.path().join("backups"), 0, &quiet).unwrap();
    assert_eq!((report.manifest.objects, report.manifest.revision), (2, 6));
    // Written after the backup, so the restore loses it.
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
    assert!(
        least > shown.0 + JUMP - 10,
        "an object has the old revision {least}"
    );
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
async fn restoring_an_older_backup_skips_more_revisions() {
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
async fn a_restore_into_a_store_is_refused() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let report = store.backup(&root.path().join("backups"), 0, &quiet).unwrap();
    store.close(GRACE).await.unwrap();
    let refused = restore(&report.path, &options(&root.path().join("store")), &quiet).unwrap_err();
    assert!(
        matches!(refused, MaintenanceError::Open(OpenError::NotEmpty { .. })),
        "{refused}"
    );
}

/// Why a backup is refused with a changed line in its manifest.
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
async fn a_backup_that_differs_from_its_manifest_is_refused() {
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
    assert!(refused.contains("the manifest lists"), "{refused}");
    verify_backup(&path, &seal(), &quiet).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_of_other_stores_in_the_folder_are_kept() {
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
