//! Moving between the embedded engine and etcd, both ways.

use std::time::Duration;

use drydock_storage::conformance::{commit, put, thing, value};
use drydock_storage::etcd::{EtcdOpenError, EtcdOptions, EtcdStore, EtcdTransferError};
use drydock_storage::rocks::{self, RocksStore};
use drydock_storage::{At, Key, KeyRange, Options, Page, Store, Transaction, Value};

use crate::etcd_process::EtcdProcess;

const NOW_MS: u64 = 1_000_000;

fn options(folder: &std::path::Path) -> Options {
    Options {
        clock: std::sync::Arc::new(|| NOW_MS),
        ..Options::for_tests(folder)
    }
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
    let store = etcd.store().await;
    let refused = store.import(&file, NOW_MS, &|_, _, _| {}).await;
    assert!(
        matches!(&refused, Err(EtcdTransferError::RevisionTooLow { needed, .. }) if *needed == newest),
        "{refused:?}"
    );
    let elsewhere = EtcdOptions {
        prefix: "/elsewhere".to_owned(),
        ..etcd.options()
    };
    let (elsewhere, _) = EtcdStore::open(elsewhere).await.unwrap();
    while store.current_revision().await.unwrap() < newest {
        put(&elsewhere, "one", "raises the revision").await;
    }
    let report = store.import(&file, NOW_MS, &|_, _, _| {}).await.unwrap();
    assert_eq!((report.objects, report.source_revision), (250, newest.0));
    assert_eq!(values(&store).await, expected);
    let scan = store
        .scan(&KeyRange::all(), At::Latest, Page::default())
        .await
        .unwrap();
    assert!(scan.entries.iter().all(|(_, entry)| entry.modified > newest));
    assert!(store.floors().listable_from > newest);
    let again = etcd.store().await.import(&file, NOW_MS, &|_, _, _| {}).await;
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
    let store = etcd.store().await;
    let steps = std::sync::Mutex::new(std::collections::BTreeMap::new());
    let began = std::time::Instant::now();
    let progress = |step, done, total| {
        assert!(done <= total && total == count);
        let before = steps.lock().unwrap().insert(step, done);
        assert!(before.is_none_or(|before| before <= done), "progress only grows");
    };
    let report = store.import(&file, NOW_MS, &progress).await.unwrap();
    assert_eq!(report.objects, count);
    let to_etcd = began.elapsed();
    assert_eq!(
        steps.into_inner().unwrap(),
        [("verify", count), ("write", count)].into()
    );
    let began = std::time::Instant::now();
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
    let target = other.store().await;
    other.etcdctl(&["put", "/elsewhere", "raises the revision"]);
    let refused = target.import(&file, NOW_MS, &|_, _, _| {}).await;
    assert!(
        matches!(refused, Err(EtcdTransferError::Export(_))),
        "{refused:?}"
    );
    assert!(values(&target).await.is_empty());
}
