//! Errors of the engine, injected at failpoints.
//!
//! Failpoints are global, so tests run one at a time.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::future::Future;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use drydock_storage::conformance::{thing as key, value};
use drydock_storage::rocks::{OpenError, RocksStore};
use drydock_storage::{Events, KeyRange, Options, Revision, Signal, Store, Transaction, Value};
use tempfile::TempDir;

const GRACE: Duration = Duration::from_secs(10);

fn options(folder: &Path) -> Options {
    Options {
        background_work: false,
        ..Options::for_tests(folder)
    }
}

/// Injects an error when the engine opens; returns the error of the start.
fn refusal(point: &str, folder: &Path) -> OpenError {
    fail::cfg(point, "return(nospace)").unwrap();
    match RocksStore::open(options(folder)) {
        Ok((_, opened)) => panic!("{opened:?}"),
        Err(refused) => refused,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_at_the_start_names_the_ballast_and_is_not_damage() {
    let scenario = fail::FailScenario::setup();
    let root = TempDir::new().unwrap();
    let check = |refused: OpenError| {
        assert!(matches!(refused, OpenError::NoSpace { .. }), "{refused}");
        let text = refused.to_string();
        assert!(
            text.contains("`ballast`") && !text.contains("accept-loss"),
            "{text}"
        );
    };
    check(refusal("engine-open", root.path()));
    fail::remove("engine-open");
    let store = RocksStore::open(options(root.path())).unwrap().0;
    store
        .transact(Transaction::create(key("one"), value("x")))
        .await
        .unwrap();
    store.close(GRACE).await.unwrap();
    check(refusal("engine-open", root.path()));
    fail::remove("engine-open");
    let (_, opened) = RocksStore::open(options(root.path())).unwrap();
    assert_eq!(opened.objects, 1);
    scenario.teardown();
}

/// Compaction does not go on after an error in the background, for example of a full disk: the start waited without end.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_does_not_wait_for_a_stall_that_cannot_end() {
    let scenario = fail::FailScenario::setup();
    let root = TempDir::new().unwrap();
    fail::cfg("engine-write", "return(stalled)").unwrap();
    fail::cfg("engine-background-errors", "return").unwrap();
    let folder = root.path().to_owned();
    let start = tokio::task::spawn_blocking(move || RocksStore::open(options(&folder)).map(drop));
    let refused = tokio::time::timeout(GRACE, start)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(refused.to_string().contains("writes are stalled"), "{refused}");
    scenario.teardown();
}

/// The read of a dropped watch runs to its end, and keeps its permit until then.
#[tokio::test(flavor = "multi_thread")]
async fn at_most_four_reads_of_history_run_even_if_their_watches_are_dropped() {
    let scenario = fail::FailScenario::setup();
    let root = TempDir::new().unwrap();
    let store = RocksStore::open(options(root.path())).unwrap().0;
    // More than the tail in memory holds.
    for number in 0..25 {
        let large = value(&"x".repeat(Value::MAX_BYTES));
        let created = Transaction::create(key(&number.to_string()), large);
        store.transact(created).await.unwrap();
    }
    fail::cfg("history-read", "pause").unwrap();
    let watch = async || store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut events = watch().await;
        readers.push(tokio::spawn(async move { events.next().await }));
    }
    while store.metrics().replays.get() < 4 {
        tokio::task::yield_now().await;
    }
    for reader in readers {
        reader.abort();
        assert!(reader.await.is_err());
    }
    let mut events = watch().await;
    {
        let mut fifth = std::pin::pin!(events.next());
        let polled = std::future::poll_fn(|context| Poll::Ready(fifth.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        assert_eq!(store.metrics().replays.get(), 4, "a fifth read began");
        fail::remove("history-read");
        assert!(matches!(fifth.await, Some(Signal::Change(_))));
    }
    scenario.teardown();
}
