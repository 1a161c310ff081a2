//! What the tests of the embedded engine share.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::clock::Clock;
pub(super) use crate::conformance::{put, thing as key, value};
use crate::record::{Committed, Place, Records, finish_change, finish_state};
use crate::rocks::column_families::{Access, Engine, Recovery, Step};
use crate::rocks::folder::engine_folder;
use crate::rocks::{CheckReport, RocksStore};
use crate::seal::Unsealed;
use crate::{EventKind, Floors, FreeSpace, Key, Options, Revision, Store};

pub(super) const GRACE: Duration = Duration::from_secs(10);

/// A clock that tests set.
#[derive(Clone, Default)]
pub(super) struct TestClock(pub(super) Arc<AtomicU64>);

impl TestClock {
    pub(super) fn set(&self, seconds: u64) {
        self.0.store(seconds * 1000, Ordering::Relaxed);
    }
}

/// A clock whose wall time tests set apart from its uptime.
#[derive(Clone, Default)]
pub(super) struct SplitClock {
    pub(super) wall: TestClock,
    pub(super) uptime: TestClock,
}

impl Clock for SplitClock {
    fn now_ms(&self) -> u64 {
        self.wall.0.load(Ordering::Relaxed)
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(self.uptime.0.load(Ordering::Relaxed))
    }
}

pub(super) fn options(folder: &Path, clock: &TestClock) -> Options {
    let time_ms = Arc::clone(&clock.0);
    Options {
        clock: Arc::new(move || time_ms.load(Ordering::Relaxed)),
        background_work: false,
        watchable_revisions: 10,
        ..Options::for_tests(folder)
    }
}

pub(super) fn open(root: &TempDir, clock: &TestClock) -> RocksStore {
    RocksStore::open(options(root.path(), clock)).unwrap().0
}

/// A disk whose free space tests set, of 100 GiB.
pub(super) fn with_free(root: &TempDir, clock: &TestClock, free: &Arc<AtomicU64>) -> RocksStore {
    let free = Arc::clone(free);
    let space = move |_: &Path| {
        Ok(FreeSpace {
            free: free.load(Ordering::Relaxed),
            total: 100 << 30,
        })
    };
    let options = Options {
        measure_disk: Arc::new(space),
        ..options(root.path(), clock)
    };
    RocksStore::open(options).unwrap().0
}

pub(super) async fn run_housekeeping(store: &RocksStore) -> Floors {
    let keeper = store.clone();
    tokio::task::spawn_blocking(move || keeper.run_housekeeping())
        .await
        .unwrap();
    store.floors()
}

pub(super) async fn close(store: RocksStore) {
    store.close(GRACE).await.unwrap();
}

pub(super) fn floors(listable: u64, watchable: u64) -> Floors {
    Floors {
        listable_from: Revision(listable),
        watchable_from: Revision(watchable),
    }
}

/// Revisions 2 to 30, each at the second of its number.
pub(super) async fn put_each_second(store: &RocksStore, clock: &TestClock) {
    for second in 2..=30 {
        clock.set(second);
        put(store, "one", &second.to_string()).await;
    }
}

/// Changes the engine's content while the store is closed.
pub(super) fn tamper(root: &TempDir, steps: &[Step]) {
    let engine = Engine::open(&engine_folder(root.path()), Access::Existing, Recovery::Strict).unwrap();
    engine.write(steps, true).unwrap();
}

/// The state record of a value whose bytes do not match its checksum.
pub(super) fn spoiled_state(key: &Key, text: &str, at: Revision) -> Vec<u8> {
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

/// Damages the record of a value on disk, under a running store.
pub(super) fn spoil_record(store: &RocksStore, name: &str, text: &str, revision: Revision) {
    let spoiled = spoiled_state(&key(name), text, revision);
    let engine = store.parts.lifecycle.engine().unwrap();
    engine.write(&[Step::PutState(key(name), spoiled)], true).unwrap();
}

pub(super) async fn text_of(store: &RocksStore, name: &str) -> Option<String> {
    let entry = store.get(&key(name)).await.unwrap().entry?;
    Some(String::from_utf8(entry.value.bytes.to_vec()).unwrap())
}

/// The value of a metric.
pub(super) fn series(store: &RocksStore, name: &str) -> f64 {
    let mut registry = prometheus_client::registry::Registry::default();
    store.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("drydock_storage_")?.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

/// A text that does not compress, different for each number.
pub(super) fn incompressible(number: u64) -> String {
    let mut random = fastrand::Rng::with_seed(number);
    std::iter::repeat_with(|| random.alphanumeric())
        .take(3000)
        .collect()
}

/// Flips a bit in the newest table that holds `text`, under a running store.
pub(super) fn spoil_table(root: &TempDir, text: &[u8]) {
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

pub(super) async fn check_values(store: &RocksStore) -> CheckReport {
    let store = store.clone();
    tokio::task::spawn_blocking(move || store.check_values().unwrap())
        .await
        .unwrap()
}

/// The history record of the creation of `name` with the value "payload", whose bytes do not match its checksum.
pub(super) fn spoiled_change(name: &str, revision: Revision) -> Vec<u8> {
    let records = Records::new(Arc::new(Unsealed));
    let body = records.history_body(&key(name), None, Some(&value("payload")));
    let committed = Committed { revision, at_ms: 0 };
    let mut record = finish_change(
        body.unwrap(),
        &key(name),
        EventKind::Created,
        revision,
        None,
        committed,
    );
    let at = record.windows(7).position(|window| window == b"payload").unwrap();
    record[at] ^= 1;
    record
}
