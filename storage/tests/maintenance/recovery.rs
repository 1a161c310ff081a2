//! Verification, and recovery with loss.

use std::path::Path;
use std::time::Duration;

use drydock_storage::rocks::{MaintenanceError, OpenError, RocksStore, recover, verify};
use drydock_storage::{Durability, Options, Revision, Store};
use tempfile::TempDir;

use crate::fixture::{GRACE, JUMP, content, expected, file_of, filled, open, options, put, quiet};

/// A store whose log ends in the middle of a write that its mark does not cover.
async fn torn_store(folder: &Path, durability: Durability) {
    let store = RocksStore::open(Options {
        durability,
        ..options(folder)
    })
    .unwrap()
    .0;
    put(&store, "one", "one").await;
    store.run_housekeeping();
    let mark = std::fs::read(folder.join("mark")).unwrap();
    let log = file_of(&folder.join("db"), ".log");
    let kept = std::fs::metadata(&log).unwrap().len();
    // Larger than a block of the log, so that it consists of several fragments.
    let mut random = fastrand::Rng::with_seed(1);
    let text: String = std::iter::repeat_with(|| random.alphanumeric())
        .take(200_000)
        .collect();
    put(&store, "two", &text).await;
    drop(store);
    while matches!(
        verify(&options(folder), &quiet),
        Err(MaintenanceError::Open(OpenError::Locked { .. }))
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
async fn verify_finds_what_a_start_finds() {
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
        // No acknowledged write is lost, so there is no loss to accept.
        let left_alone = recover(&options, false, &quiet).unwrap();
        assert_eq!(left_alone.fault, None);
        let (store, opened) = RocksStore::open(options).unwrap();
        assert_eq!((opened.revision, opened.objects), (2, 1));
        assert!(opened.had_torn_tail);
        assert_eq!(store.metrics().recovered_tail.get(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_store_is_not_recovered_as_damaged() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    filled(&folder).await.close(GRACE).await.unwrap();
    let format = std::fs::read_to_string(folder.join("format")).unwrap();
    let newer = format.replace("\"oldestReader\": 1", "\"oldestReader\": 2");
    assert_ne!(format, newer);
    std::fs::write(folder.join("format"), newer).unwrap();
    let refused = recover(&options(&folder), true, &quiet).unwrap_err();
    assert!(
        matches!(refused, MaintenanceError::Open(OpenError::TooNew { .. })),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_store_is_verified_and_not_recovered() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    let missing = verify(&options(&folder), &quiet).unwrap_err();
    assert!(
        matches!(missing, MaintenanceError::Open(OpenError::Missing { .. })),
        "{missing}"
    );
    let store = filled(&folder).await;
    let held = verify(&options(&folder), &quiet).unwrap_err();
    assert!(
        matches!(held, MaintenanceError::Open(OpenError::Locked { .. })),
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

/// A store whose log is cut exactly after its fourth revision: the engine cannot detect it, the mark can.
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
    // Dropped without a close: nothing is flushed, the log stays.
    drop(store);
    while matches!(
        verify(&options(folder), &quiet),
        Err(MaintenanceError::Open(OpenError::Locked { .. }))
    ) {
        tokio::task::yield_now().await;
    }
    let mut cut = std::fs::read(&log).unwrap();
    cut.truncate(kept.len());
    assert_eq!(cut, kept);
    std::fs::write(&log, cut).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn loss_must_be_accepted() {
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
    assert!(
        matches!(refused, MaintenanceError::LossNotAccepted { .. }),
        "{refused}"
    );

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
async fn a_store_without_its_mark_is_damaged_and_recoverable() {
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
async fn a_store_without_its_format_is_damaged_and_recoverable() {
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
async fn of_two_recoveries_the_second_finds_a_store_that_opens() {
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
async fn an_interrupted_recovery_is_completed_by_repeating_it() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    cut_store(&folder).await;
    recover(&options(&folder), true, &quiet).unwrap();
    // The state after a crash in the middle of the swap: the format is not written yet.
    let fresh = folder.join("recovering");
    std::fs::create_dir(&fresh).unwrap();
    std::fs::rename(folder.join("format"), fresh.join("format")).unwrap();
    std::fs::rename(folder.join("mark"), fresh.join("mark")).unwrap();
    let Err(refused) = RocksStore::open(options(&folder)) else {
        panic!("it opened in the middle of a recovery");
    };
    assert!(
        refused.to_string().contains("recovery was interrupted"),
        "{refused}"
    );
    let report = recover(&options(&folder), true, &quiet).unwrap();
    assert_eq!((report.fault, report.objects), (None, 3));
    assert_eq!(content(&open(&folder)).await.0.len(), 3);
}
