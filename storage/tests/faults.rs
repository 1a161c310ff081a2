//! Faults at named points: what the engine answers then, and what a store makes of it.
//!
//! Points are shared by the whole process, so the tests take turns.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::future::Future;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use drydock_storage::rocks::{OpenError, RocksStore};
use drydock_storage::{Events, Key, KeyRange, Options, Revision, Signal, Store, Transaction, Value};
use tempfile::TempDir;

const GRACE: Duration = Duration::from_secs(10);

fn options(folder: &Path) -> Options {
    Options {
        background_work: false,
        ..Options::for_tests(folder)
    }
}

fn key(name: &str) -> Key {
    Key::new("g", "things", "n", name).unwrap()
}

fn value(text: &str) -> Value {
    Value {
        bytes: Bytes::copy_from_slice(text.as_bytes()),
        form: "g/v1".into(),
        splice_offset: 0,
    }
}

/// Injects an error of the engine when it opens; how the start answers.
fn refusal(point: &str, folder: &Path) -> OpenError {
    fail::cfg(point, "return(nospace)").unwrap();
    match RocksStore::open(options(folder)) {
        Ok((_, opened)) => panic!("{opened:?}"),
        Err(refused) => refused,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_room_names_the_ballast_and_never_damage() {
    let turn = fail::FailScenario::setup();
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
    turn.teardown();
}

/// A watch that is dropped leaves its read behind; the disk has no more readers for it than it may have.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_four_read_history_from_disk_though_their_watches_are_dropped() {
    let turn = fail::FailScenario::setup();
    let root = TempDir::new().unwrap();
    let store = RocksStore::open(options(root.path())).unwrap().0;
    // More than is kept in memory.
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
    turn.teardown();
}
