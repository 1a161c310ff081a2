//! A full disk: the next start is read-only or names what to free, and never reports damage.
//!
//! `/dev/full` stands for a file that cannot grow: every write to it fails with `ENOSPC`. Where a process may mount, the
//! same is tested on a real file system of 160 MiB.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use drydock_storage::rocks::{MaintenanceError, OpenError, Opened, RocksStore, recover};
use drydock_storage::{
    FreeSpace, Health, Key, Options, Outcome, Revision, Store, StoreError, Transaction, Value,
};
use tempfile::TempDir;

const GRACE: Duration = Duration::from_secs(10);
const PLENTY: u64 = 50 << 30;
/// Holds the folder of the small file system, in the process that has one.
const SMALL_DISK: &str = "DRYDOCK_TEST_SMALL_DISK";

fn key(number: usize) -> Key {
    Key::new("g", "things", "n", &format!("thing-{number:05}")).unwrap()
}

fn value(bytes: usize) -> Value {
    // Incompressible.
    let mut random = fastrand::Rng::with_seed(7);
    Value {
        bytes: std::iter::repeat_with(|| random.u8(..)).take(bytes).collect(),
        form: "g/v1".into(),
        splice_offset: 0,
    }
}

fn options(folder: &Path, free: u64) -> Options {
    Options {
        background_work: false,
        measure_disk: Arc::new(move |_| Ok(FreeSpace { free, total: PLENTY })),
        ..Options::for_tests(folder)
    }
}

/// A closed store with one object.
async fn filled(folder: &Path) {
    let store = RocksStore::open(options(folder, PLENTY)).unwrap().0;
    store
        .transact(Transaction::create(key(1), value(100)))
        .await
        .unwrap();
    store.close(GRACE).await.unwrap();
}

fn check_read_only(store: &RocksStore, folder: &Path) {
    let Health::ReadOnly(reason) = store.health() else {
        panic!("{:?}", store.health());
    };
    let ballast = folder.join("ballast");
    assert!(reason.contains(&*ballast.to_string_lossy()), "{reason}");
}

fn refusal(opened: Result<(RocksStore, Opened), OpenError>) -> OpenError {
    match opened {
        Ok((_, opened)) => panic!("{opened:?}"),
        Err(refused) => refused,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_times_syncs_and_creates_complete_ballast() {
    let root = TempDir::new().unwrap();
    // Left by an interrupted start.
    std::fs::write(root.path().join("ballast.new"), b"half").unwrap();
    let open = || {
        RocksStore::open(Options {
            probe_syncs: 3,
            ballast_bytes: (3 << 20) + 17,
            ..options(root.path(), PLENTY)
        })
        .unwrap()
    };
    let (store, opened) = open();
    assert!(opened.sync_micros.is_some());
    assert_eq!(store.health(), Health::Ready);
    let ballast = root.path().join("ballast");
    assert_eq!(std::fs::metadata(&ballast).unwrap().len(), (3 << 20) + 17);
    assert!(!root.path().join("ballast.new").exists() && !root.path().join("probe").exists());
    store.close(GRACE).await.unwrap();
    drop(store);
    // Ballast that was removed by hand is created again once there is space.
    std::fs::remove_file(&ballast).unwrap();
    drop(open());
    assert!(ballast.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk_times_no_syncs_and_creates_no_ballast() {
    let root = TempDir::new().unwrap();
    filled(root.path()).await;
    symlink("/dev/full", root.path().join("probe")).unwrap();
    symlink("/dev/full", root.path().join("ballast.new")).unwrap();
    let (store, opened) = RocksStore::open(Options {
        probe_syncs: 50,
        ballast_bytes: 256 << 20,
        ..options(root.path(), 1 << 20)
    })
    .unwrap();
    assert_eq!(opened.sync_micros, None);
    check_read_only(&store, root.path());
    assert!(store.get(&key(1)).await.unwrap().entry.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_or_ballast_that_finds_the_disk_full_makes_the_store_read_only() {
    for full in ["probe", "ballast.new"] {
        let root = TempDir::new().unwrap();
        filled(root.path()).await;
        symlink("/dev/full", root.path().join(full)).unwrap();
        let (store, _) = RocksStore::open(Options {
            probe_syncs: 3,
            ballast_bytes: 1 << 20,
            ..options(root.path(), PLENTY)
        })
        .unwrap();
        check_read_only(&store, root.path());
        assert!(!root.path().join(full).exists(), "{full} is left behind");
        // A used-up quota: the disk shows free space all the time.
        symlink("/dev/full", root.path().join("probe")).unwrap();
        store.run_housekeeping();
        check_read_only(&store, root.path());
        // The next measurement finds space.
        store.run_housekeeping();
        assert_eq!(store.health(), Health::Ready);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_file_that_cannot_be_written_does_not_stop_a_start() {
    let root = TempDir::new().unwrap();
    filled(root.path()).await;
    std::fs::remove_file(root.path().join("lock")).unwrap();
    symlink("/dev/full", root.path().join("lock")).unwrap();
    let (store, _) = RocksStore::open(options(root.path(), PLENTY)).unwrap();
    assert!(store.get(&key(1)).await.unwrap().entry.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_say_nothing_about_the_data_are_not_damage() {
    let root = TempDir::new().unwrap();
    filled(root.path()).await;
    // The engine's own lock cannot be taken.
    let lock = root.path().join("db/LOCK");
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    let refused = refusal(RocksStore::open(options(root.path(), PLENTY)));
    assert!(matches!(refused, OpenError::Engine { .. }), "{refused}");
    std::fs::remove_dir(&lock).unwrap();
    // A table cannot be opened.
    let table = std::fs::read_dir(root.path().join("db"))
        .unwrap()
        .map(|found| found.unwrap().path())
        .find(|path| path.extension().is_some_and(|end| end == "sst"))
        .unwrap();
    let kept = table.with_extension("kept");
    std::fs::rename(&table, &kept).unwrap();
    symlink(&table, &table).unwrap();
    let refused = refusal(RocksStore::open(options(root.path(), PLENTY)));
    assert!(!refused.to_string().contains("accept-loss"), "{refused}");
    let refused = recover(&options(root.path(), PLENTY), true, &|_| {}).unwrap_err();
    assert!(
        matches!(refused, MaintenanceError::Open(OpenError::Engine { .. })),
        "{refused}"
    );
    std::fs::rename(&kept, &table).unwrap();
    let (_, opened) = RocksStore::open(options(root.path(), PLENTY)).unwrap();
    assert_eq!(opened.objects, 1);
}

/// Runs `on_the_small_disk` with a file system of its own; does nothing where a process may not mount.
#[test]
fn a_real_disk_fills_up() {
    let root = TempDir::new().unwrap();
    let script =
        "mount -t tmpfs -o size=160m none \"$1\" || exit 99; exec \"$2\" --exact on_the_small_disk --ignored";
    let ran = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(root.path())
        .arg(std::env::current_exe().unwrap())
        .env(SMALL_DISK, root.path())
        .output();
    match ran {
        Ok(ran) if ran.status.success() => {
            let text = String::from_utf8_lossy(&ran.stdout).into_owned();
            assert!(text.contains("1 passed"), "{text}");
        }
        Ok(ran) if ran.status.code() == Some(101) => {
            panic!(
                "{}{}",
                String::from_utf8_lossy(&ran.stdout),
                String::from_utf8_lossy(&ran.stderr)
            );
        }
        // This user may not create namespaces or mounts: only the other tests run.
        Ok(_) | Err(_) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a small file system of its own: a_real_disk_fills_up runs it"]
async fn on_the_small_disk() {
    let disk = std::env::var(SMALL_DISK).unwrap();
    let folder = Path::new(&disk).join("store");
    let measured = Options::new(&folder).measure_disk;
    let options = || Options {
        background_work: false,
        probe_syncs: 50,
        ballast_bytes: 7 << 20,
        measure_disk: Arc::clone(&measured),
        ..Options::for_tests(&folder)
    };
    // With the real size it would refuse creates on so small a disk.
    let unaware = Options {
        measure_disk: Options::for_tests(&folder).measure_disk,
        ..options()
    };
    let store = RocksStore::open(unaware).unwrap().0;
    assert_eq!(store.health(), Health::Ready);
    // Another file fills the disk, except for a few MiB.
    let filler = Path::new(&disk).join("filler");
    let free = measured(Path::new(&disk)).unwrap().free;
    let mut file = std::fs::File::create(&filler).unwrap();
    let block = vec![0x42; 1 << 20];
    for _ in 0..(free >> 20).saturating_sub(3) {
        file.write_all(&block).unwrap();
    }
    let mut acknowledged = 0;
    let failed = loop {
        match store
            .transact(Transaction::create(key(acknowledged), value(100_000)))
            .await
        {
            Ok(Outcome::Committed { .. }) => acknowledged += 1,
            Ok(conflict) => panic!("{conflict:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(failed, StoreError::Unknown { .. }), "{failed}");
    drop(store);
    while file.write_all(&block[..4096]).is_ok() {}
    let mut ballast_is_there = true;
    let store = loop {
        match RocksStore::open(options()) {
            Ok((store, _)) => break store,
            Err(OpenError::NoSpace { .. }) if ballast_is_there => {
                std::fs::remove_file(folder.join("ballast")).unwrap();
                ballast_is_there = false;
            }
            Err(refused) => panic!("{refused}"),
        }
    };
    check_read_only(&store, &folder);
    for number in 0..acknowledged {
        assert!(
            store.get(&key(number)).await.unwrap().entry.is_some(),
            "{number} is lost"
        );
    }
    let refused = store.transact(Transaction::delete(key(0), Revision(2))).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly { .. })), "{refused:?}");
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    store.run_housekeeping();
    assert_eq!(store.health(), Health::Ready);
    // Deletes are accepted at once; for creates the disk is too small.
    let deleted = store.transact(Transaction::delete(key(0), Revision(2))).await;
    assert!(matches!(deleted, Ok(Outcome::Committed { .. })), "{deleted:?}");
    store.close(GRACE).await.unwrap();
    let (_, opened) = RocksStore::open(options()).unwrap();
    assert!(opened.objects + 1 >= acknowledged as u64);
    let refused = refusal(RocksStore::open(Options {
        any_file_system: false,
        path: Path::new(&disk).join("another"),
        ..options()
    }));
    assert!(
        matches!(refused, OpenError::FileSystem { kind: "tmpfs", .. }),
        "{refused}"
    );
}
