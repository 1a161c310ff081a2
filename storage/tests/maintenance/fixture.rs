//! What the tests share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use drydock_storage::conformance::{put, thing as key, value};
use drydock_storage::rocks::{Progress, RocksStore};
use drydock_storage::seal::{Seal, Unsealed};
use drydock_storage::{At, KeyRange, Options, Page, Store, Transaction, Value};

pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// Far above what any test writes.
pub(crate) const JUMP: u64 = 1_000_000_000;

pub(crate) fn quiet(_: Progress) {}

pub(crate) fn seal() -> Arc<dyn Seal> {
    Arc::new(Unsealed)
}

pub(crate) fn options(folder: &Path) -> Options {
    Options {
        clock: Arc::new(|| 1_000_000_u64),
        background_work: false,
        ..Options::for_tests(folder)
    }
}

pub(crate) fn open(folder: &Path) -> RocksStore {
    RocksStore::open(options(folder)).unwrap().0
}

pub(crate) async fn delete(store: &RocksStore, name: &str) {
    let entry = store.get(&key(name)).await.unwrap().entry.unwrap();
    store
        .transact(Transaction::delete(key(name), entry.modified))
        .await
        .unwrap();
}

/// Names and values, and the least and greatest revision of a value.
pub(crate) async fn content(store: &RocksStore) -> (Vec<(String, String)>, u64, u64) {
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

pub(crate) async fn filled(folder: &Path) -> RocksStore {
    let store = open(folder);
    for name in ["one", "two", "three"] {
        put(&store, name, &format!("{name} of the first kind")).await;
    }
    put(&store, "two", "two again").await;
    delete(&store, "three").await;
    store
}

pub(crate) fn expected() -> Vec<(String, String)> {
    [("one", "one of the first kind"), ("two", "two again")]
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .to_vec()
}

pub(crate) fn file_of(folder: &Path, suffix: &str) -> PathBuf {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    found.sort();
    found.pop().expect("there is such a file")
}
