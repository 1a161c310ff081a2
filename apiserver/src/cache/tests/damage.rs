//! Values that the store cannot read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drydock_storage::memory::MemoryStore;
use drydock_storage::rocks::RocksStore;
use drydock_storage::seal::{Seal, SealError, Sealed, Unsealed};
use drydock_storage::{Options, Removable, Revision, Store, StoreError};

use super::super::WatchKind::Deleted;
use super::super::*;
use super::faulty::FaultyStore;
use super::fixture::*;

/// Things `a/1`, `a/2`, `b/1`; the value of `a/2` is damaged.
async fn damaged_store() -> MemoryStore {
    let store = MemoryStore::new();
    for (serial, (namespace, name)) in (1..).zip([("a", "1"), ("a", "2"), ("b", "1")]) {
        write(&store, &key(namespace, name), Some(thing("a", serial))).await;
    }
    store.damage(&key("a", "2"));
    store
}

fn names_the_key(error: &ReadError) -> bool {
    matches!(error, ReadError::Store(StoreError::Corrupt { key: named, .. }) if *named == key("a", "2").to_string())
}

/// Reads that cover `a/2` are refused; all others succeed.
async fn check_damage_is_isolated(cache: &WatchCache<MemoryStore>) {
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

/// One damaged value once made the whole resource unreadable.
#[tokio::test(start_paused = true)]
async fn a_damaged_value_fails_only_reads_that_cover_it() {
    let fixture = Fixture::over(damaged_store().await, CacheLimits::default()).await;
    check_damage_is_isolated(&fixture.cache).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.cache.parts().metrics.damaged.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn damage_found_later_fails_only_reads_that_cover_it() {
    for by_a_write in [true, false] {
        let fixture = Fixture::new().await;
        for (serial, (namespace, name)) in (1..).zip([("a", "1"), ("a", "2"), ("b", "1")]) {
            fixture.put(&key(namespace, name), &thing("a", serial)).await;
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
            // A suspect that is not damaged stays readable.
            fixture.cache.suspect(key("a", "1").as_str());
            fixture.cache.suspect(key("a", "2").as_str());
            tokio::time::sleep(Duration::from_secs(1)).await;
        } else {
            tokio::time::sleep(Duration::from_mins(8)).await;
        }
        if by_a_write {
            check_damage_is_isolated(&fixture.cache).await;
        } else {
            let error = fixture
                .cache
                .get(&key("a", "2"), Freshness::Any)
                .await
                .unwrap_err();
            assert!(names_the_key(&error), "{error}");
        }
        // The cache still has the object, so watches can be sent its deletion.
        fixture
            .store
            .remove_damaged(&key("a", "2"), Removable::Damaged)
            .await
            .unwrap();
        assert_eq!(
            drain(&mut watcher).await,
            [event(Deleted, &key("a", "2"), 5, thing("a", 2))]
        );
        assert_eq!(
            listed(&fixture.cache, everything(), Freshness::MostRecent).await,
            ["1", "1"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn removal_of_an_object_the_cache_never_read_expires_watches() {
    for limits in [
        CacheLimits::default(),
        CacheLimits {
            history_bytes: 0,
            ..CacheLimits::default()
        },
    ] {
        let fixture = Fixture::over(damaged_store().await, limits).await;
        let mut live = fixture.watch(everything(), WatchStart::Now).await;
        fixture
            .store
            .remove_damaged(&key("a", "2"), Removable::Damaged)
            .await
            .unwrap();
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
        fixture.put(&key("a", "2"), &thing("a", 9)).await;
        fixture.put(&key("b", "1"), &thing("a", 10)).await;
        assert_eq!(drain(&mut elsewhere).await.len(), 1);
        assert_eq!(
            listed(&fixture.cache, everything(), Freshness::Any).await,
            ["1", "2", "1"]
        );
    }
}

/// The removal once caused a reload, and nothing could be read meanwhile.
#[tokio::test(start_paused = true)]
async fn removal_of_an_object_the_cache_never_read_causes_no_reload() {
    let store = FaultyStore {
        inner: damaged_store().await,
        ..FaultyStore::default()
    };
    let fixture = Fixture::over(store, CacheLimits::default()).await;
    let scans = || fixture.store.faults.scans.load(Ordering::Relaxed);
    let before = scans();
    fixture.put(&key("a", "1"), &thing("a", 8)).await;
    fixture
        .store
        .remove_damaged(&key("a", "2"), Removable::Damaged)
        .await
        .unwrap();
    fixture.put(&key("b", "1"), &thing("a", 9)).await;
    for freshness in [
        Freshness::MostRecent,
        Freshness::Any,
        Freshness::NotOlderThan(Revision(7)),
    ] {
        assert_eq!(listed(&fixture.cache, everything(), freshness).await, ["1", "1"]);
    }
    assert_eq!(scans(), before);
    let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
    fixture.put(&key("a", "2"), &thing("a", 10)).await;
    assert_eq!(drain(&mut watcher).await.len(), 1);
}

/// Reading a sealed value may wait for a key service, which once held up every event.
#[tokio::test(start_paused = true)]
async fn events_are_applied_while_sealed_values_are_tried() {
    let store = FaultyStore {
        inner: damaged_store().await,
        ..FaultyStore::default()
    };
    store.faults.locks.store(true, Ordering::Relaxed);
    let fixture = Fixture::over(store, CacheLimits::default()).await;
    let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
    // Longer than the pause before sealed values are tried.
    tokio::time::sleep(Duration::from_secs(5)).await;
    fixture.put(&key("b", "1"), &thing("a", 9)).await;
    assert_eq!(drain(&mut watcher).await.len(), 1);
}

/// Damages the next payload that goes to disk while `spoils` is set: the value of an object, not its history.
#[derive(Default)]
struct Spoiling {
    spoils: AtomicBool,
}

impl Seal for Spoiling {
    fn seal(&self, key: &str, mut plain: Vec<u8>) -> Result<Sealed, SealError> {
        if self.spoils.swap(false, Ordering::Relaxed)
            && let Some(first) = plain.first_mut()
        {
            *first ^= 1;
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
        fixture.put(&key(namespace, name), &thing("a", serial)).await;
    }
    seal.spoils.store(false, Ordering::Relaxed);
    let check = || {
        let store = store.clone();
        tokio::task::spawn_blocking(move || store.check_values().unwrap().damaged)
    };
    assert_eq!(check().await.unwrap(), [key("a", "2").to_string()]);
    for freshness in [Freshness::MostRecent, Freshness::Any] {
        let found = fixture.cache.get(&key("a", "2"), freshness).await.unwrap();
        assert_eq!(Thing::read(&found.unwrap().value().bytes), thing("a", 2));
        assert_eq!(
            listed(&fixture.cache, everything(), freshness).await,
            ["1", "2", "1"]
        );
    }
    fixture.put(&key("a", "2"), &thing("a", 4)).await;
    assert_eq!(check().await.unwrap(), [""; 0]);
    drop(fixture);
    store.close(Duration::from_secs(10)).await.unwrap();
}
