//! Moving between the embedded engine and etcd, both ways.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_storage::conformance::sealing::Changing;
use drydock_storage::conformance::{commit, put, thing, value};
use drydock_storage::etcd::{
    self, EtcdImportReport, EtcdOpenError, EtcdOptions, EtcdStore, EtcdTransferError,
};
use drydock_storage::rocks::{self, RocksStore};
use drydock_storage::seal::{Seal, SealError, Sealed};
use drydock_storage::{At, Health, Key, KeyRange, Options, Page, Store, StoreError, Transaction, Value};

use crate::etcd_process::EtcdProcess;

const NOW_MS: u64 = 1_000_000;

fn options(folder: &std::path::Path) -> Options {
    Options {
        clock: std::sync::Arc::new(|| NOW_MS),
        ..Options::for_tests(folder)
    }
}

async fn import(options: EtcdOptions, file: &Path) -> Result<EtcdImportReport, EtcdTransferError> {
    etcd::import(options, file, NOW_MS, &|_, _, _| {}).await
}

/// Whether nothing was written below the prefix, and no marker.
fn is_empty(etcd: &EtcdProcess) -> bool {
    etcd.etcdctl(&["get", "--prefix", "--keys-only", "/registry/drydock"])
        .trim()
        .is_empty()
}

/// An export of these objects, and an etcd that it can be imported into.
async fn export_of(
    root: &Path,
    objects: impl IntoIterator<Item = (String, Value)>,
) -> (PathBuf, EtcdProcess) {
    let source = tempfile::tempdir_in(root).unwrap();
    let (store, _) = RocksStore::open(options(source.path())).unwrap();
    for (name, value) in objects {
        commit(&store, Transaction::create(thing(&name), value)).await;
    }
    let file = source.keep().join("all.export");
    store.export(&file, &|_| {}).unwrap();
    store.close(Duration::from_secs(10)).await.unwrap();
    let mut etcd = EtcdProcess::start().await;
    etcd.raise(1_000_000).await;
    (file, etcd)
}

fn numbered(count: usize) -> impl Iterator<Item = (String, Value)> {
    (0..count).map(|number| (format!("n{number}"), value(&format!("value {number}"))))
}

fn random(bytes: usize) -> Value {
    let mut random = fastrand::Rng::with_seed(5);
    let text: String = std::iter::repeat_with(|| random.alphanumeric())
        .take(bytes)
        .collect();
    value(&text)
}

async fn values<S: Store>(store: &S) -> Vec<(Key, Value)> {
    let scan = store
        .scan(&KeyRange::all(), At::Latest, Page::default())
        .await
        .unwrap();
    scan.entries
        .into_iter()
        .map(|(key, entry)| (key, entry.value))
        .collect()
}

/// An export that had read everything at first would not notice the compaction.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_etcd_reads_while_it_writes_and_begins_again_when_its_state_is_compacted() {
    let root = tempfile::tempdir().unwrap();
    let etcd = EtcdProcess::start().await;
    let store = etcd.store().await;
    for (name, value) in numbered(200) {
        commit(&store, Transaction::create(thing(&name), value)).await;
    }
    let steps = Mutex::new(Vec::new());
    let progress = |_: &str, done: u64, total: u64| {
        let is_first = {
            let mut steps = steps.lock().unwrap();
            steps.push((done, total));
            steps.len() == 1
        };
        if is_first {
            let write = async {
                put(&store, "n99", "changed meanwhile").await;
                put(&store, "new", "made meanwhile").await;
                store.current_revision().await.unwrap()
            };
            let now = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(write));
            etcd.etcdctl(&["compact", &now.to_string()]);
        }
    };
    let file = root.path().join("all.export");
    let report = store.export(&file, NOW_MS, &progress).await.unwrap();
    assert_eq!(*steps.lock().unwrap(), [(64, 200), (64, 201), (201, 201)]);
    assert_eq!(
        (report.objects, report.bytes),
        (201, std::fs::metadata(&file).unwrap().len())
    );
    let target = options(&root.path().join("imported"));
    rocks::import(&file, &target, &|_| {}).unwrap();
    let (imported, _) = RocksStore::open(target).unwrap();
    assert_eq!(values(&imported).await, values(&store).await);
    imported.close(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_move_to_etcd_and_back() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("all.export");
    let (source, _) = RocksStore::open(options(&root.path().join("source"))).unwrap();
    for number in 0..250 {
        let create = Transaction::create(thing(&format!("n{number}")), value(&format!("value {number}")));
        commit(&source, create).await;
    }
    let expected = values(&source).await;
    source.export(&file, &|_| {}).unwrap();
    let newest = source.current_revision().await.unwrap();
    source.close(Duration::from_secs(10)).await.unwrap();

    let etcd = EtcdProcess::start().await;
    let refused = import(etcd.options(), &file).await;
    assert!(
        matches!(&refused, Err(EtcdTransferError::RevisionTooLow { needed, .. }) if *needed == newest),
        "{refused:?}"
    );
    let elsewhere = EtcdOptions {
        prefix: "/elsewhere".to_owned(),
        ..etcd.options()
    };
    let (elsewhere, _) = EtcdStore::open(elsewhere).await.unwrap();
    let idle = etcd.store().await;
    while idle.current_revision().await.unwrap() < newest {
        put(&elsewhere, "one", "raises the revision").await;
    }
    idle.close(Duration::ZERO).await.unwrap();
    let report = import(etcd.options(), &file).await.unwrap();
    let store = etcd.store().await;
    assert_eq!((report.objects, report.source_revision), (250, newest.0));
    assert_eq!(values(&store).await, expected);
    let scan = store
        .scan(&KeyRange::all(), At::Latest, Page::default())
        .await
        .unwrap();
    assert!(scan.entries.iter().all(|(_, entry)| entry.modified > newest));
    assert!(store.floors().listable_from > newest);
    assert_eq!(store.current_revision().await.unwrap().0, report.revision);
    let again = import(etcd.options(), &file).await;
    assert!(
        matches!(
            again,
            Err(EtcdTransferError::Open(EtcdOpenError::NotEmpty { .. }))
        ),
        "{again:?}"
    );

    put(&store, "n1", "changed in etcd").await;
    let expected = values(&store).await;
    let report = store.export(&file, NOW_MS, &|_, _, _| {}).await.unwrap();
    let folder = root.path().join("back");
    let imported = rocks::import(&file, &options(&folder), &|_| {}).unwrap();
    assert_eq!((imported.objects, imported.source), (250, report.store));
    let (back, _) = RocksStore::open(options(&folder)).unwrap();
    assert_eq!(values(&back).await, expected);
    assert!(back.current_revision().await.unwrap().0 > report.revision);
}

/// `DRYDOCK_MOVED_OBJECTS` says how many, 150,000 in a nightly run, which is what the limit is for.
#[tokio::test(flavor = "multi_thread")]
async fn many_objects_move_within_two_minutes_each_way() {
    const LIMIT: Duration = Duration::from_mins(2);
    let count = std::env::var("DRYDOCK_MOVED_OBJECTS").map_or(3_000, |count| count.parse().unwrap());
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("all.export");
    let (source, _) = RocksStore::open(options(&root.path().join("source"))).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let numbers: Vec<u64> = (0..count).collect();
    for some in numbers.chunks(1_000) {
        let creates = some.iter().map(|number| {
            // Half of it compresses.
            let text: String = std::iter::repeat_with(|| random.alphanumeric())
                .take(1_200)
                .collect();
            Transaction::create(
                thing(&format!("n{number}")),
                value(&format!("{text}{}", "x".repeat(1_200))),
            )
        });
        for outcome in source.transact_many(creates.collect()).await {
            outcome.unwrap();
        }
    }
    source.export(&file, &|_| {}).unwrap();
    let mut etcd = EtcdProcess::start_with(&[]).await;
    etcd.raise(1_000_000_000).await;
    let steps = std::sync::Mutex::new(std::collections::BTreeMap::new());
    let began = tokio::time::Instant::now();
    let progress = |step, done, total| {
        assert!(done <= total && total == count);
        let before = steps.lock().unwrap().insert(step, done);
        assert!(before.is_none_or(|before| before <= done), "progress only grows");
    };
    let imported = etcd::import(etcd.options(), &file, NOW_MS, &progress).await;
    assert_eq!(imported.unwrap().objects, count);
    let to_etcd = began.elapsed();
    let store = etcd.store().await;
    assert_eq!(
        steps.into_inner().unwrap(),
        [("check", count), ("verify", count), ("write", count)].into()
    );
    let began = tokio::time::Instant::now();
    store.export(&file, NOW_MS, &|_, _, _| {}).await.unwrap();
    let folder = root.path().join("back");
    rocks::import(&file, &options(&folder), &|_| {}).unwrap();
    let back = began.elapsed();
    let (back_again, _) = RocksStore::open(options(&folder)).unwrap();
    assert!(values(&back_again).await == values(&source).await);
    eprintln!("{count} objects: to etcd {to_etcd:.1?}, back {back:.1?}");
    assert!(to_etcd < LIMIT && back < LIMIT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_export_is_refused_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("all.export");
    let etcd = EtcdProcess::start().await;
    let store = etcd.store().await;
    put(&store, "one", "a value").await;
    store.export(&file, NOW_MS, &|_, _, _| {}).await.unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let other = EtcdProcess::start().await;
    other.etcdctl(&["put", "/elsewhere", "raises the revision"]);
    let refused = import(other.options(), &file).await;
    assert!(
        matches!(refused, Err(EtcdTransferError::Export(_))),
        "{refused:?}"
    );
    assert!(is_empty(&other));
}

/// What was written was not what was read back. The prefix looked like a store all the same, and a server served it.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_with_an_unfinished_import_does_not_open_and_takes_another_import() {
    let root = tempfile::tempdir().unwrap();
    let (file, etcd) = export_of(root.path(), numbered(250)).await;
    // A server that began while the prefix was empty.
    let server = etcd.store().await;
    let changing = EtcdOptions {
        seal: Arc::new(Changing),
        ..etcd.options()
    };
    import(changing, &file).await.unwrap_err();
    assert!(!is_empty(&etcd));
    let refused = EtcdStore::open(etcd.options()).await.err();
    assert!(
        matches!(refused, Some(EtcdOpenError::ImportUnfinished { .. })),
        "{refused:?}"
    );
    let text = refused.unwrap().to_string();
    assert!(
        text.contains("repeat the import") && text.contains("etcdctl del"),
        "{text}"
    );
    server.current_revision().await.unwrap_err();
    assert!(matches!(server.health(), Health::Failed(_)));
    let write = server
        .transact(Transaction::create(thing("late"), value("x")))
        .await;
    assert!(matches!(write, Err(StoreError::Closed { .. })), "{write:?}");

    // Nothing is left of it after another import, which may be of another file.
    let (other, of_other) = export_of(root.path(), numbered(3)).await;
    let report = import(etcd.options(), &other).await.unwrap();
    assert_eq!(report.objects, 3);
    let store = etcd.store().await;
    let found = values(&store).await;
    assert_eq!(found.len(), 3);
    import(of_other.options(), &other).await.unwrap();
    assert_eq!(found, values(&of_other.store().await).await);
    put(&store, "n1", "changed").await;
}

/// The other remedy that the error names.
#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_import_is_removed_as_its_error_says() {
    let root = tempfile::tempdir().unwrap();
    let (file, etcd) = export_of(root.path(), numbered(3)).await;
    let changing = EtcdOptions {
        seal: Arc::new(Changing),
        ..etcd.options()
    };
    import(changing, &file).await.unwrap_err();
    let text = EtcdStore::open(etcd.options()).await.unwrap_err().to_string();
    let commands: Vec<&str> = text.split("etcdctl ").skip(1).collect();
    assert_eq!(commands.len(), 2, "{text}");
    let page = include_str!("../../../docs/etcd.md");
    for command in commands {
        let written = command.replace(" and ", "");
        assert!(page.contains(&format!("\netcdctl {written}\n")), "{written}");
        let arguments: Vec<&str> = command.split(' ').take_while(|word| *word != "and").collect();
        etcd.etcdctl(&arguments);
    }
    assert!(is_empty(&etcd));
    put(&etcd.store().await, "one", "x").await;
}

/// Two operators import at once: one store results, of one file.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_another_one_overtakes_fails() {
    let root = tempfile::tempdir().unwrap();
    let (file, etcd) = export_of(root.path(), numbered(1_000)).await;
    let (other, _) = export_of(root.path(), numbered(5)).await;
    let has_begun = AtomicBool::new(false);
    let runtime = tokio::runtime::Handle::current();
    let meanwhile = |step, _, _| {
        if step == "write" && !has_begun.swap(true, Ordering::Relaxed) {
            tokio::task::block_in_place(|| runtime.block_on(import(etcd.options(), &other))).unwrap();
        }
    };
    let overtaken = etcd::import(etcd.options(), &file, NOW_MS, &meanwhile).await;
    assert!(
        matches!(overtaken, Err(EtcdTransferError::Overtaken { .. })),
        "{overtaken:?}"
    );
    assert_eq!(values(&etcd.store().await).await.len(), 5);
}

/// The check of a file takes minutes. A server that began on the empty prefix had its objects deleted.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_leaves_alone_what_was_written_while_it_checked_its_file() {
    let root = tempfile::tempdir().unwrap();
    let (file, etcd) = export_of(root.path(), numbered(10)).await;
    let (other, _) = export_of(root.path(), numbered(5)).await;
    let runtime = tokio::runtime::Handle::current();
    let server = etcd.store().await;
    let first_write = |step, _, _| {
        if step == "check" {
            tokio::task::block_in_place(|| runtime.block_on(put(&server, "live", "a value")));
        }
    };
    let overtaken = etcd::import(etcd.options(), &file, NOW_MS, &first_write).await;
    assert!(
        matches!(overtaken, Err(EtcdTransferError::Overtaken { .. })),
        "{overtaken:?}"
    );
    assert_eq!(
        values(&server).await,
        [(thing("live"), value("a value"))].to_vec()
    );
    put(&server, "live", "changed").await;

    let elsewhere = || EtcdOptions {
        prefix: "/elsewhere".to_owned(),
        ..etcd.options()
    };
    let second = |step, _, _| {
        if step == "check" {
            tokio::task::block_in_place(|| runtime.block_on(import(elsewhere(), &other))).unwrap();
        }
    };
    let overtaken = etcd::import(elsewhere(), &file, NOW_MS, &second).await;
    assert!(
        matches!(overtaken, Err(EtcdTransferError::Overtaken { .. })),
        "{overtaken:?}"
    );
    let (store, _) = EtcdStore::open(elsewhere()).await.unwrap();
    assert_eq!(values(&store).await.len(), 5);
}

/// A look at the marker, on its way while an import wrote its own, ended the import.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_is_not_disturbed_by_the_looks_of_servers() {
    let root = tempfile::tempdir().unwrap();
    let (file, etcd) = export_of(root.path(), numbered(10)).await;
    for number in 0..10 {
        let options = EtcdOptions {
            prefix: format!("/prefix{number}"),
            probe_period: Duration::from_micros(1),
            ..etcd.options()
        };
        assert_eq!(import(options, &file).await.unwrap().objects, 10);
    }
}

/// Adds so many bytes to every value, as an envelope with a wrapped key does.
struct Padding(usize);

impl Seal for Padding {
    fn seal(&self, _: &str, mut plain: Vec<u8>) -> Result<Sealed, SealError> {
        plain.resize(plain.len() + self.0, 7);
        Ok(Sealed {
            key_id: "padded".to_owned(),
            bytes: plain,
        })
    }

    fn open(&self, _: &str, _: &str, mut sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
        sealed.truncate(sealed.len() - self.0);
        Ok(sealed)
    }
}

/// Requests were filled by the bytes of values: 100 values of 4 KiB are few, and as many bodies were too much.
#[tokio::test(flavor = "multi_thread")]
async fn batches_are_as_large_as_what_is_written() {
    let root = tempfile::tempdir().unwrap();
    let objects = (0..300).map(|number| (format!("n{number}"), random(4 << 10)));
    let (file, etcd) = export_of(root.path(), objects).await;
    let padding = EtcdOptions {
        seal: Arc::new(Padding(20 << 10)),
        ..etcd.options()
    };
    assert_eq!(import(padding, &file).await.unwrap().objects, 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_too_large_for_etcd_is_named_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    let largest = random(Value::MAX_BYTES);
    let objects = numbered(300).chain([("too-large".to_owned(), largest)]);
    let (file, etcd) = export_of(root.path(), objects).await;
    let refused = import(etcd.options(), &file).await;
    assert!(
        matches!(&refused, Err(EtcdTransferError::Value { key, .. }) if key.ends_with("/too-large")),
        "{refused:?}"
    );
    assert!(is_empty(&etcd));
}
