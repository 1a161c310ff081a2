//! Stores of every released format open in this build with their content.
//!
//! `storage/tests/fixtures/format-N` is a store written by format N. A new format adds a folder:
//! `cargo test -p drydock-storage --test formats -- --ignored` writes the one of the current format.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drydock_storage::conformance::commit;
use drydock_storage::rocks::RocksStore;
use drydock_storage::{
    At, Events, Key, KeyRange, Options, Page, Revision, Signal, Store, Transaction, Value,
};

/// The format this build writes.
const CURRENT: u32 = 1;

fn fixture(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/format-{format}"))
}

fn options(folder: &Path) -> Options {
    Options {
        clock: Arc::new(|| 1_764_288_000_000_u64),
        background_work: false,
        ..Options::for_tests(folder)
    }
}

fn key(name: &str) -> Key {
    Key::new("example.com", "things", "ns", name).unwrap()
}

fn value(text: &str) -> Value {
    Value {
        bytes: Bytes::from(text.repeat(30)),
        form: "example.com/v1".into(),
        splice_offset: 12,
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for found in std::fs::read_dir(from).unwrap() {
        let found = found.unwrap();
        let target = to.join(found.file_name());
        if found.file_type().unwrap().is_dir() {
            copy(&found.path(), &target);
        } else {
            std::fs::copy(found.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes the fixture of the current format"]
async fn write_the_fixture() {
    let folder = fixture(CURRENT);
    let (store, opened) = RocksStore::open(options(&folder)).unwrap();
    assert!(opened.is_new, "the fixture of a released format must not change");
    let one = commit(&store, Transaction::create(key("one"), value("first "))).await;
    let two = commit(&store, Transaction::create(key("two"), value("second "))).await;
    commit(&store, Transaction::update(key("one"), one, value("third "))).await;
    commit(&store, Transaction::delete(key("two"), two)).await;
    store.close(Duration::from_secs(10)).await.unwrap();
    drop(store);
    // Files with information about this machine, and files that a start creates again.
    std::fs::remove_file(folder.join("lock")).unwrap();
    for found in std::fs::read_dir(folder.join("db")).unwrap() {
        let path = found.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_needed = ["CURRENT", "MANIFEST"]
            .iter()
            .any(|needed| name.starts_with(needed));
        if !is_needed && path.extension().is_none_or(|end| end != "sst") {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_released_format_opens() {
    for format in 1..=CURRENT {
        let root = tempfile::tempdir().unwrap();
        copy(&fixture(format), root.path());
        let (store, opened) = RocksStore::open(options(root.path())).unwrap();
        assert_eq!(
            (opened.revision, opened.history_records, opened.objects),
            (5, 4, 1),
            "format {format}"
        );
        let found = store.get(&key("one")).await.unwrap().entry.unwrap();
        assert_eq!((found.created, found.modified), (Revision(2), Revision(4)));
        assert_eq!(found.value, value("third "));
        let past = store
            .scan(&KeyRange::all(), At::Exactly(Revision(3)), Page::default())
            .await
            .unwrap();
        let past: Vec<Value> = past.entries.into_iter().map(|(_, entry)| entry.value).collect();
        assert_eq!(past, [value("first "), value("second ")]);
        let mut events = store.watch(&KeyRange::all(), Revision(5)).await.unwrap();
        let Some(Signal::Change(deletion)) = events.next().await else {
            panic!("the deletion is due");
        };
        assert_eq!(deletion.old.unwrap().value, value("second "));
        assert_eq!(
            commit(&store, Transaction::create(key("two"), value("new "))).await,
            Revision(6)
        );
    }
}
