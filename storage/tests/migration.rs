//! Stale values are rewritten, at a rate, across restarts, and nobody's write is lost to it.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use drydock_storage::memory::MemoryStore;
use drydock_storage::migrate::{Migrated, Migration, Verdict};
use drydock_storage::rocks::RocksStore;
use drydock_storage::{
    At, Entry, Key, KeyRange, Options, Outcome, Page, Revision, Store, Transaction, Value,
};

/// More than two pages.
const COUNT: u64 = 1203;

fn key(number: u64) -> Key {
    Key::new("example.com", "things", "a", &format!("{number:05}")).unwrap()
}

fn value(form: &str) -> Value {
    Value {
        bytes: Bytes::from_static(b"{}"),
        form: form.into(),
        splice_offset: 1,
    }
}

/// Every third value is stale, one of them for good.
async fn fill(store: &impl Store) {
    let created = (0..COUNT).map(|number| {
        let form = match number {
            999 => "v0",
            number if number % 3 == 0 => "v1",
            _ => "v2",
        };
        Transaction::create(key(number), value(form))
    });
    for answer in store.transact_many(created.collect()).await {
        assert!(matches!(answer, Ok(Outcome::Committed { .. })), "{answer:?}");
    }
}

fn migration() -> Migration {
    Migration::new("v2", things())
        .unwrap()
        .at_rate(NonZeroU32::new(1_000_000).unwrap())
}

fn things() -> KeyRange {
    KeyRange::resource("example.com", "things")
}

fn judge(_: &Key, entry: &Entry) -> Verdict {
    match &*entry.value.form {
        "v2" => Verdict::Fresh,
        "v1" => Verdict::Stale(value("v2")),
        other => Verdict::Stuck(format!("nobody knows {other}")),
    }
}

async fn entries(store: &impl Store, range: &KeyRange) -> Vec<(Key, Entry)> {
    let scan = store.scan(range, At::Latest, Page::default()).await;
    scan.unwrap().entries
}

async fn check_whole_walk(store: impl Store) {
    fill(&store).await;
    let before = entries(&store, &things()).await;
    let migration = migration();
    let migrated = migration.run(&store, judge).await.unwrap();
    let expected = Migrated {
        seen: COUNT,
        rewritten: COUNT / 3 - 1,
        overtaken: 0,
        stuck: 1,
    };
    assert_eq!(migrated, expected);
    assert_eq!(migration.metrics().rewritten.get(), expected.rewritten);
    let after = entries(&store, &things()).await;
    for ((number, (_, before)), (_, after)) in (0..).zip(before).zip(&after) {
        let is_rewritten = number % 3 == 0 && number != 999;
        assert_eq!(after.modified != before.modified, is_rewritten, "{number}");
        assert_eq!(after.created, before.created);
        assert_eq!(&*after.value.form == "v2", number != 999);
    }
    // The position goes with the end.
    assert_eq!(entries(&store, &KeyRange::all()).await.len(), after.len());
    let again = migration.run(&store, judge).await.unwrap();
    assert_eq!((again.seen, again.rewritten, again.stuck), (COUNT, 0, 1));
}

#[tokio::test]
async fn what_is_stale_is_rewritten_and_nothing_else_in_memory() {
    check_whole_walk(MemoryStore::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stale_is_rewritten_and_nothing_else_on_disk() {
    let root = tempfile::tempdir().unwrap();
    check_whole_walk(RocksStore::open(Options::for_tests(root.path())).unwrap().0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_walk_goes_on_where_it_was_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let open = || RocksStore::open(Options::for_tests(root.path())).unwrap().0;
    let store = open();
    fill(&store).await;
    let seen = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&seen);
    // Broken off in the second page, as when the process dies.
    let runner = store.clone();
    let broken = tokio::spawn(async move {
        let judge = |key: &Key, entry: &Entry| {
            assert!(counting.fetch_add(1, Ordering::Relaxed) < 700, "the process dies");
            judge(key, entry)
        };
        migration().run(&runner, judge).await
    });
    assert!(broken.await.unwrap_err().is_panic());
    store.close(Duration::from_secs(10)).await.unwrap();
    let store = open();
    let migrated = migration().run(&store, judge).await.unwrap();
    assert_eq!(migrated.seen, COUNT - 500, "the first page was noted");
    let stale = |(_, entry): &&(Key, Entry)| &*entry.value.form == "v1";
    assert_eq!(entries(&store, &things()).await.iter().find(stale), None);
}

#[tokio::test]
async fn whoever_writes_in_between_wins() {
    let store = MemoryStore::new();
    fill(&store).await;
    let writer = store.clone();
    // What the walk has seen is replaced before it comes to write.
    let judge = move |key: &Key, entry: &Entry| {
        if *key == self::key(3) {
            let replaced = Transaction::update(key.clone(), entry.modified, value("mine"));
            let done = futures_util::FutureExt::now_or_never(writer.transact(replaced));
            assert!(matches!(done, Some(Ok(Outcome::Committed { .. }))));
        }
        judge(key, entry)
    };
    let migrated = migration().run(&store, judge).await.unwrap();
    assert_eq!((migrated.overtaken, migrated.rewritten), (1, COUNT / 3 - 2));
    let found = store.get(&key(3)).await.unwrap().entry.unwrap();
    assert_eq!(&*found.value.form, "mine");
}

#[tokio::test]
async fn no_more_is_rewritten_in_a_second_than_was_said() {
    let store = MemoryStore::new();
    for number in 0..21 {
        store
            .transact(Transaction::create(key(number), value("v1")))
            .await
            .unwrap();
    }
    let since = tokio::time::Instant::now();
    let slowly = Migration::new("v2", things())
        .unwrap()
        .at_rate(NonZeroU32::new(200).unwrap());
    slowly.run(&store, judge).await.unwrap();
    assert!(
        since.elapsed() >= Duration::from_millis(100),
        "{:?}",
        since.elapsed()
    );
    assert_eq!(store.current_revision().await.unwrap(), Revision(43));
}
