//! Values that the store cannot read, and reads before there is a cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drydock_storage::memory::MemoryStore;
use drydock_storage::rocks::RocksStore;
use drydock_storage::seal::{Seal, SealError, Sealed, Unsealed};
use drydock_storage::{Options, Revision, Store, StoreError};

use super::super::WatchKind::Deleted;
use super::super::*;
use super::faulty::FaultyStore;
use super::fixture::*;

fn thing(serial: u64) -> Thing {
    Thing::new("a", "x", serial)
}

fn query(selection: Selection, limit: usize) -> Query {
    Query {
        selection,
        start: None,
        limit,
    }
}

/// Things `a/1`, `a/2`, `b/1`, of which `a/2` cannot be read.
async fn damaged_store() -> MemoryStore {
    let store = MemoryStore::new();
    for (serial, (namespace, name)) in (1..).zip([("a", "1"), ("a", "2"), ("b", "1")]) {
        write(&store, &key(namespace, name), Some(thing(serial))).await;
    }
    store.damage(&key("a", "2"));
    store
}

fn names_the_key(error: &ReadError) -> bool {
    matches!(error, ReadError::Store(StoreError::Corrupt { key: named, .. }) if *named == key("a", "2").to_string())
}

async fn listed<S: Store>(
    cache: &WatchCache<S>,
    selection: Selection,
    state: impl Into<ListState>,
) -> Vec<String> {
    let page = cache.list(&query(selection, 0), state.into()).await.unwrap();
    names(page.objects)
}

const FRESHNESS: [Freshness; 3] = [
    Freshness::MostRecent,
    Freshness::Any,
    Freshness::NotOlderThan(Revision(4)),
];

/// All of [`FRESHNESS`], and exactly the newest revision.
fn list_states() -> impl Iterator<Item = ListState> {
    let newest = FRESHNESS.map(ListState::Newest);
    newest.into_iter().chain([ListState::Exactly(Revision(4))])
}

/// Reads around `a/2`, which cannot be read; everything else must go on.
async fn check_set_apart(cache: &WatchCache<MemoryStore>) {
    for freshness in FRESHNESS {
        let error = cache.get(&key("a", "2"), freshness).await.unwrap_err();
        assert!(names_the_key(&error), "{freshness:?}: {error}");
        assert!(cache.get(&key("a", "1"), freshness).await.unwrap().is_some());
    }
    for state in list_states() {
        for refused in [
            everything(),
            select(namespace("a"), "", ""),
            select(Scope::All, "app=b", ""),
            select(Scope::All, "", "metadata.name=2"),
        ] {
            let error = cache.list(&query(refused, 0), state).await.unwrap_err();
            assert!(names_the_key(&error), "{state:?}: {error}");
        }
        assert_eq!(listed(cache, select(namespace("b"), "", ""), state).await, ["1"]);
        let by_name = select(Scope::All, "", "metadata.name=1");
        assert_eq!(listed(cache, by_name, state).await, ["1", "1"]);
    }
    let request = |selection, start| WatchRequest {
        selection,
        start,
        bookmarks: false,
        timeout: HOUR,
    };
    let initial = WatchStart::InitialEvents(Freshness::Any);
    let refused = cache.subscribe(request(everything(), initial)).await;
    assert!(refused.is_err_and(|error| names_the_key(&error)));
    let elsewhere = select(namespace("b"), "", "");
    assert!(cache.subscribe(request(elsewhere, initial)).await.is_ok());
    assert!(
        cache
            .subscribe(request(everything(), WatchStart::Now))
            .await
            .is_ok()
    );
}

/// One damaged value kept the whole resource from being read, for ever.
#[tokio::test(start_paused = true)]
async fn a_damaged_value_is_set_apart_and_the_rest_is_read() {
    let fixture = Fixture::over(damaged_store().await, CacheLimits::default()).await;
    check_set_apart(&fixture.cache).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.cache.parts().metrics.damaged.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn damage_that_is_found_later_is_set_apart_when_it_is_noticed() {
    for by_a_write in [true, false] {
        let fixture = Fixture::new().await;
        for (serial, (namespace, name)) in (1..).zip([("a", "1"), ("a", "2"), ("b", "1")]) {
            fixture.put(&key(namespace, name), &thing(serial)).await;
        }
        let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
        fixture.store.damage(&key("a", "2"));
        assert!(
            fixture
                .cache
                .get(&key("a", "2"), Freshness::Any)
                .await
                .unwrap()
                .is_some()
        );
        if by_a_write {
            // Only what is damaged in truth is set apart.
            fixture.cache.suspect(key("a", "1").as_str());
            fixture.cache.suspect(key("a", "2").as_str());
            tokio::time::sleep(Duration::from_secs(1)).await;
        } else {
            tokio::time::sleep(Duration::from_mins(8)).await;
        }
        if by_a_write {
            check_set_apart(&fixture.cache).await;
        } else {
            let error = fixture
                .cache
                .get(&key("a", "2"), Freshness::Any)
                .await
                .unwrap_err();
            assert!(names_the_key(&error), "{error}");
        }
        // The cache knows what it was, so watches can be told of its end.
        fixture.store.remove_damaged(&key("a", "2")).await.unwrap();
        assert_eq!(
            drain(&mut watcher).await,
            [event(Deleted, &key("a", "2"), 5, thing(2))]
        );
        assert_eq!(
            listed(&fixture.cache, everything(), Freshness::MostRecent).await,
            ["1", "1"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn when_a_value_goes_that_nobody_could_read_clients_list_anew() {
    for limits in [
        CacheLimits::default(),
        CacheLimits {
            history_bytes: 0,
            ..CacheLimits::default()
        },
    ] {
        let fixture = Fixture::over(damaged_store().await, limits).await;
        let mut live = fixture.watch(everything(), WatchStart::Now).await;
        fixture.store.remove_damaged(&key("a", "2")).await.unwrap();
        assert_eq!(
            listed(&fixture.cache, everything(), Freshness::MostRecent).await,
            ["1", "1"]
        );
        let mut late = fixture.watch(everything(), WatchStart::After(Revision(4))).await;
        let mut elsewhere = fixture
            .watch(select(namespace("b"), "", ""), WatchStart::After(Revision(4)))
            .await;
        for watcher in [&mut live, &mut late] {
            let end = watcher.next_buffer(&Lines::default()).await.unwrap().unwrap_err();
            assert!(matches!(end, WatchEnd::Expired { .. }), "{end}");
        }
        fixture.put(&key("a", "2"), &thing(9)).await;
        fixture.put(&key("b", "1"), &thing(10)).await;
        assert_eq!(drain(&mut elsewhere).await.len(), 1);
        assert_eq!(
            listed(&fixture.cache, everything(), Freshness::Any).await,
            ["1", "2", "1"]
        );
    }
}

/// Everything was read anew then, and nothing could be read meanwhile.
#[tokio::test(start_paused = true)]
async fn the_others_stay_when_a_value_goes_that_nobody_could_read() {
    let store = FaultyStore {
        inner: damaged_store().await,
        ..FaultyStore::default()
    };
    let fixture = Fixture::over(store, CacheLimits::default()).await;
    let scans = || fixture.store.faults.scans.load(Ordering::Relaxed);
    let before = scans();
    fixture.put(&key("a", "1"), &thing(8)).await;
    fixture.store.remove_damaged(&key("a", "2")).await.unwrap();
    fixture.put(&key("b", "1"), &thing(9)).await;
    for freshness in [
        Freshness::MostRecent,
        Freshness::Any,
        Freshness::NotOlderThan(Revision(7)),
    ] {
        assert_eq!(listed(&fixture.cache, everything(), freshness).await, ["1", "1"]);
    }
    assert_eq!(scans(), before);
    let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
    fixture.put(&key("a", "2"), &thing(10)).await;
    assert_eq!(drain(&mut watcher).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn before_the_cache_is_filled_the_store_answers_what_costs_little() {
    let store = MemoryStore::new();
    for serial in 0..5 {
        write(&store, &key("n", &serial.to_string()), Some(thing(serial))).await;
    }
    let (cache, feeder) = WatchCache::new(store.clone(), config(CacheLimits::default()));
    let not_ready = |answer: Result<Page, ReadError>| matches!(answer, Err(ReadError::NotReady { .. }));
    for freshness in FRESHNESS {
        let found = cache.get(&key("n", "3"), freshness).await.unwrap().unwrap();
        assert_eq!(found.modified(), Revision(5));
        assert!(cache.get(&key("n", "9"), freshness).await.unwrap().is_none());
    }
    for state in list_states() {
        assert!(
            not_ready(cache.list(&query(everything(), 0), state).await),
            "{state:?}"
        );
        let selective = select(Scope::All, "app=a", "");
        assert!(
            not_ready(cache.list(&query(selective, 2), state).await),
            "{state:?}"
        );
    }
    let watch = WatchRequest {
        selection: everything(),
        start: WatchStart::Now,
        bookmarks: false,
        timeout: HOUR,
    };
    assert!(matches!(
        cache.subscribe(watch).await.err(),
        Some(ReadError::NotReady { .. })
    ));

    // Pages are of one revision, and go on from the cache once it is there.
    let first = cache
        .list(&query(everything(), 2), Freshness::MostRecent.into())
        .await
        .unwrap();
    assert_eq!(
        (first.revision, first.next.as_deref(), first.remaining),
        (Revision(6), Some("n/1\0"), None)
    );
    assert_eq!(names(first.objects), ["0", "1"]);
    write(&store, &key("n", "2"), None).await;
    let rest = |limit| Query {
        start: Some("n/1\0".to_owned()),
        ..query(everything(), limit)
    };
    let second = cache
        .list(&rest(2), ListState::Continued(Revision(6)))
        .await
        .unwrap();
    assert_eq!(
        (second.revision, second.next.as_deref()),
        (Revision(6), Some("n/3\0"))
    );
    assert_eq!(names(second.objects), ["2", "3"]);
    let newest = cache.list(&rest(9), Freshness::MostRecent.into()).await.unwrap();
    assert_eq!((newest.revision, newest.next), (Revision(7), None));
    assert_eq!(names(newest.objects), ["3", "4"]);

    let too_large = |answer: ReadError| matches!(answer, ReadError::TooLargeResourceVersion { .. });
    let later = Freshness::NotOlderThan(Revision(9));
    for state in [later.into(), ListState::Exactly(Revision(9))] {
        assert!(too_large(
            cache.list(&query(everything(), 1), state).await.unwrap_err()
        ));
    }
    assert!(too_large(cache.get(&key("n", "1"), later).await.unwrap_err()));
    store.compact(Revision(6)).await.unwrap();
    let expired = cache
        .list(&rest(2), ListState::Continued(Revision(6)))
        .await
        .unwrap_err();
    assert!(matches!(expired, ReadError::Expired { .. }), "{expired}");

    tokio::spawn(feeder.run(tokio_util::sync::CancellationToken::new()));
    cache.ready().await;
    assert_eq!(
        listed(&cache, everything(), Freshness::MostRecent).await,
        ["0", "1", "3", "4"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_of_any_state_is_whole_whatever_its_limit() {
    let fixture = Fixture::new().await;
    for serial in 0..5 {
        fixture.put(&key("n", &serial.to_string()), &thing(serial)).await;
    }
    for (freshness, count) in [
        (Freshness::Any, 5),
        (Freshness::MostRecent, 2),
        (Freshness::NotOlderThan(Revision(1)), 2),
    ] {
        let page = fixture
            .cache
            .list(&query(everything(), 2), freshness.into())
            .await
            .unwrap();
        assert_eq!(page.next.is_none(), count == 5, "{freshness:?}");
        assert_eq!(names(page.objects).len(), count, "{freshness:?}");
    }
}

/// Damages the next payload that goes to disk while `spoils` is set: the value of an object, not its history.
#[derive(Default)]
struct Spoiling {
    spoils: AtomicBool,
}

impl Seal for Spoiling {
    fn seal(&self, key: &str, mut plain: Vec<u8>) -> Result<Sealed, SealError> {
        if self.spoils.swap(false, Ordering::Relaxed)
            && let Some(last) = plain.last_mut()
        {
            *last ^= 1;
        }
        Unsealed.seal(key, plain)
    }

    fn open(&self, key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
        Unsealed.open(key, key_id, sealed)
    }
}

/// The record on disk is damaged; the value in memory is right.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_damaged_on_disk_is_served_from_memory_until_it_is_written_again() {
    let folder = tempfile::TempDir::new().unwrap();
    let seal = Arc::new(Spoiling::default());
    let options = Options {
        seal: Arc::clone(&seal) as _,
        ..Options::for_tests(folder.path())
    };
    let (store, _) = RocksStore::open(options).unwrap();
    let fixture = Fixture::over(store.clone(), CacheLimits::default()).await;
    for (serial, (namespace, name)) in (1..).zip([("a", "1"), ("a", "2"), ("b", "1")]) {
        seal.spoils.store(serial == 2, Ordering::Relaxed);
        fixture.put(&key(namespace, name), &thing(serial)).await;
    }
    seal.spoils.store(false, Ordering::Relaxed);
    let check = || {
        let store = store.clone();
        tokio::task::spawn_blocking(move || store.check_values().unwrap().damaged)
    };
    assert_eq!(check().await.unwrap(), [key("a", "2").to_string()]);
    for freshness in [Freshness::MostRecent, Freshness::Any] {
        let found = fixture.cache.get(&key("a", "2"), freshness).await.unwrap();
        assert_eq!(Thing::read(&found.unwrap().value().bytes), thing(2));
        assert_eq!(
            listed(&fixture.cache, everything(), freshness).await,
            ["1", "2", "1"]
        );
    }
    fixture.put(&key("a", "2"), &thing(4)).await;
    assert_eq!(check().await.unwrap(), [""; 0]);
    drop(fixture);
    store.close(Duration::from_secs(10)).await.unwrap();
}
