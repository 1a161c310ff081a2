//! Reads before the cache has been filled.

use drydock_storage::memory::MemoryStore;
use drydock_storage::{Revision, Store};

use super::super::*;
use super::fixture::*;

/// A store with five things, and a cache over it that has not been filled.
async fn unfilled() -> (MemoryStore, WatchCache<MemoryStore>, Feeder<MemoryStore>) {
    let store = MemoryStore::new();
    for serial in 0..5 {
        write(&store, &key("n", &serial.to_string()), Some(thing("a", serial))).await;
    }
    let (cache, feeder) = WatchCache::new(store.clone(), config(CacheLimits::default()));
    (store, cache, feeder)
}

#[tokio::test(start_paused = true)]
async fn an_unfilled_cache_serves_gets_from_the_store_and_refuses_unlimited_lists_and_watches() {
    let (_store, cache, _feeder) = unfilled().await;
    let not_ready = |result: Result<Page, ReadError>| matches!(result, Err(ReadError::NotReady { .. }));
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
}

/// All pages have the revision of the first one.
#[tokio::test(start_paused = true)]
async fn an_unfilled_cache_serves_pages_of_lists_from_the_store() {
    let (store, cache, feeder) = unfilled().await;
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

    tokio::spawn(feeder.run(tokio_util::sync::CancellationToken::new()));
    cache.ready().await;
    assert_eq!(
        listed(&cache, everything(), Freshness::MostRecent).await,
        ["0", "1", "3", "4"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_unfilled_cache_refuses_future_and_expired_revisions() {
    let (store, cache, _feeder) = unfilled().await;
    let too_large = |error: ReadError| matches!(error, ReadError::TooLargeResourceVersion { .. });
    let later = Freshness::NotOlderThan(Revision(9));
    for state in [later.into(), ListState::Exactly(Revision(9))] {
        assert!(too_large(
            cache.list(&query(everything(), 1), state).await.unwrap_err()
        ));
    }
    assert!(too_large(cache.get(&key("n", "1"), later).await.unwrap_err()));
    store.compact(Revision(6)).await.unwrap();
    let expired = cache
        .list(&query(everything(), 2), ListState::Continued(Revision(5)))
        .await
        .unwrap_err();
    assert!(matches!(expired, ReadError::Expired { .. }), "{expired}");
}
