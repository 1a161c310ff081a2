//! Incremental backups.

use std::path::Path;
use std::sync::Arc;

use drydock_storage::rocks::{MaintenanceError, RocksStore, restore};
use drydock_storage::{FreeSpace, Options, Revision, Store, StoreError};
use tempfile::TempDir;

use crate::fixture::{JUMP, content, file_of, filled, open, options, put, quiet};

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

    // No backup contains later writes.
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
        assert!(
            least > shown.0 + JUMP - 10,
            "an object has the old revision {least}"
        );
        assert_eq!(new.floors().watchable_from, Revision(most));
    }

    let third = store.backup_incrementally(&folder, 2).unwrap();
    assert_eq!(third.kept, 2);
    assert!(!first.path.exists() && second.path.exists() && third.path.exists());
    let another = filled(&root.path().join("another")).await;
    let refused = another.backup_incrementally(&folder, 2).unwrap_err();
    assert!(matches!(refused, MaintenanceError::Foreign { .. }), "{refused}");
}

/// A batch may be in the files before its revision is published, which is the one in the manifest.
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
async fn a_keep_count_beyond_32_bits_keeps_all() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let folder = root.path().join("copies");
    let report = store.backup_incrementally(&folder, 1 << 32).unwrap();
    assert_eq!(report.kept, 1);
    assert!(report.path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_incremental_backup_is_taken_of_a_nearly_full_disk() {
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
        matches!(refused, MaintenanceError::Store(StoreError::Full { .. })),
        "{refused}"
    );
    assert!(!folder.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_incremental_backup_is_reported_and_not_restored() {
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
    assert!(matches!(refused, MaintenanceError::Damaged { .. }), "{refused}");
    assert!(!target.join("format").exists());
    // The next backup finds the changed file.
    std::fs::write(&table, whole.get(..whole.len() - 1).unwrap()).unwrap();
    put(&store, "late", "late").await;
    let refused = store.backup_incrementally(&folder, 0).unwrap_err();
    assert!(matches!(refused, MaintenanceError::Damaged { .. }), "{refused}");
}
