//! Export and import, and what they share with a restore.

use std::path::Path;
use std::sync::Arc;

use drydock_storage::conformance::sealing::Changing;
use drydock_storage::export::ExportError;
use drydock_storage::rocks::{
    ImportReport, MaintenanceError, OpenError, Progress, RocksStore, import, restore,
};
use drydock_storage::{Options, Store};
use tempfile::TempDir;

use crate::fixture::{GRACE, JUMP, content, expected, filled, key, open, options, quiet, value};

/// Restore or import.
type Fill = fn(&Path, &Options, &dyn Fn(Progress)) -> Result<ImportReport, MaintenanceError>;

/// While a restore waits for the lock, another one may fill the folder.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_waited_for_the_lock_does_not_write_into_a_store() {
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
            matches!(refused, MaintenanceError::Open(OpenError::NotEmpty { .. })),
            "{refused}"
        );
        assert!(!target.join("db").exists());
    }
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
async fn what_is_read_back_with_another_value_is_not_imported() {
    let root = TempDir::new().unwrap();
    let store = filled(&root.path().join("store")).await;
    let path = root.path().join("all.export");
    store.export(&path, &quiet).unwrap();
    let target = root.path().join("imported");
    let changing = Options {
        seal: Arc::new(Changing),
        ..options(&target)
    };
    let refused = import(&path, &changing, &quiet).unwrap_err();
    assert!(matches!(refused, MaintenanceError::Differs { .. }), "{refused}");
    let opened = RocksStore::open(options(&target));
    assert!(opened.is_err(), "it does not open as a store");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_or_truncated_export_is_refused() {
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
        // Nothing was created, or what was created does not open.
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
    *bytes.get_mut(at).unwrap() = 3;
    std::fs::write(&path, bytes).unwrap();
    let refused = import(&path, &options(&root.path().join("new")), &quiet).unwrap_err();
    assert!(
        matches!(
            refused,
            MaintenanceError::Export(ExportError::TooNew { found: 3, .. })
        ),
        "{refused}"
    );
    assert!(!root.path().join("new").exists());
}
