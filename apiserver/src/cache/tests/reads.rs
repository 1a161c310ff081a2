//! Lists and gets at different revisions.

use std::time::Duration;

use drydock_storage::memory::MemoryStore;
use drydock_storage::{Revision, Store};
use tokio::time::Instant;

use super::super::*;
use super::fixture::*;

fn query_from(selection: Selection, start: Option<&str>, limit: usize) -> Query {
    Query {
        selection,
        start: start.map(str::to_owned),
        limit,
    }
}

async fn fixture_of(names: &[(&str, &str)]) -> Fixture {
    let fixture = Fixture::new().await;
    for (serial, (namespace, name)) in (0..).zip(names) {
        fixture
            .put(&key(namespace, name), &Thing::new("a", "x", serial))
            .await;
    }
    fixture
}

#[tokio::test(start_paused = true)]
async fn lists_are_ordered_by_key_and_exclude_namespaces_with_the_same_prefix() {
    let fixture = fixture_of(&[("a", "2"), ("a-b", "1"), ("ab", "3"), ("a", "1"), ("", "cluster")]).await;
    let snapshot = fixture.cache.reads.newest().unwrap();
    assert_eq!(
        names(snapshot.matches(&everything())),
        ["cluster", "1", "1", "2", "3"]
    );
    assert_eq!(
        names(snapshot.matches(&select(namespace("a"), "", ""))),
        ["1", "2"]
    );
    let by_field = select(Scope::All, "", "metadata.namespace=a");
    assert_eq!(names(snapshot.matches(&by_field)), ["1", "2"]);
    let one = select(namespace("a"), "", "metadata.name=2");
    assert_eq!(names(snapshot.matches(&one)), ["2"]);
    let contradiction = select(namespace("ab"), "", "metadata.namespace=a");
    assert_eq!(names(snapshot.matches(&contradiction)), [""; 0]);
    // Cluster-scoped objects are in the empty namespace.
    assert_eq!(
        names(snapshot.matches(&select(namespace(""), "", ""))),
        ["cluster"]
    );
}

#[tokio::test(start_paused = true)]
async fn pages_have_one_revision_and_count_the_remaining_objects() {
    let fixture = fixture_of(&[("n", "1"), ("n", "2"), ("n", "3"), ("n", "4"), ("o", "5")]).await;
    let in_n = || select(namespace("n"), "", "");
    let first = fixture
        .cache
        .reads
        .fresh()
        .await
        .unwrap()
        .select(&query_from(in_n(), None, 2));
    assert_eq!((first.next.as_deref(), first.remaining), (Some("2\0"), Some(2)));
    assert_eq!(names(first.objects), ["1", "2"]);

    fixture.delete(&key("n", "3")).await;
    fixture.put(&key("n", "25"), &Thing::new("a", "x", 9)).await;
    let snapshot = fixture.cache.reads.continued(first.revision).await.unwrap();
    let second = snapshot.select(&query_from(in_n(), first.next.as_deref(), 2));
    assert_eq!(second.revision, first.revision);
    assert_eq!((second.next, second.remaining), (None, None));
    assert_eq!(names(second.objects), ["3", "4"]);

    // The same page of the newest state.
    let newest = fixture
        .cache
        .reads
        .newest()
        .unwrap()
        .select(&query_from(in_n(), first.next.as_deref(), 0));
    assert_eq!(names(newest.objects), ["25", "4"]);
}

#[tokio::test(start_paused = true)]
async fn limits_count_matches_and_selectors_omit_the_remaining_count() {
    let fixture = Fixture::new().await;
    for (serial, app) in (0..).zip(["a", "b", "a", "b", "a", "b"]) {
        fixture
            .put(&key("n", &serial.to_string()), &Thing::new(app, "x", serial))
            .await;
    }
    let snapshot = fixture.cache.reads.newest().unwrap();
    for labels in ["app=b", "app!=a"] {
        let page = snapshot.select(&query_from(select(Scope::All, labels, ""), None, 2));
        assert_eq!((page.next.as_deref(), page.remaining), (Some("n/3\0"), None));
        assert_eq!(names(page.objects), ["1", "3"]);
        let rest = snapshot.select(&query_from(
            select(Scope::All, labels, ""),
            page.next.as_deref(),
            2,
        ));
        assert_eq!(rest.next, None, "exactly one match is left");
        assert_eq!(names(rest.objects), ["5"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_selector_finds_the_object_in_each_namespace() {
    let fixture = fixture_of(&[
        ("a", "1"),
        ("a", "2"),
        ("a-b", "2"),
        ("ab", "1"),
        ("b", "2"),
        ("c", "3"),
    ])
    .await;
    let named = |labels| select(Scope::All, labels, "metadata.name=2");
    let keys = |page: Page| things(page.objects).into_keys().collect::<Vec<_>>();
    let snapshot = fixture.cache.reads.newest().unwrap();
    let all = ["g/things/a-b/2", "g/things/a/2", "g/things/b/2"];
    assert_eq!(keys(snapshot.select(&query_from(named(""), None, 0))), all);
    assert_eq!(
        keys(snapshot.select(&query_from(named("app=b"), None, 0))),
        [""; 0]
    );
    assert_eq!(keys(snapshot.select(&query_from(named("app=a"), None, 0))), all);
    let first = snapshot.select(&query_from(named(""), None, 2));
    assert_eq!(first.next.as_deref(), Some("a/2\0"));
    assert_eq!(
        keys(snapshot.select(&query_from(named(""), Some("a/2\0"), 2))),
        all[2..]
    );
}

#[tokio::test(start_paused = true)]
async fn a_start_cannot_leave_its_scope() {
    let fixture = fixture_of(&[("a", "1"), ("b", "2"), ("c", "3")]).await;
    let snapshot = fixture.cache.reads.newest().unwrap();
    for start in ["", "0", "zzz", "/b/2\0"] {
        let page = snapshot.select(&query_from(select(namespace("b"), "", ""), Some(start), 0));
        assert!(names(page.objects).iter().all(|name| name == "2"), "{start:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn selectors_follow_changes_of_labels_and_fields() {
    let fixture = fixture_of(&[("n", "1"), ("n", "2")]).await;
    fixture.put(&key("n", "1"), &Thing::new("b", "y", 7)).await;
    fixture.delete(&key("n", "2")).await;
    let snapshot = fixture.cache.reads.newest().unwrap();
    let of = |labels, fields| names(snapshot.matches(&select(Scope::All, labels, fields)));
    assert_eq!(of("app=a", ""), [""; 0]);
    assert_eq!(of("app=b", ""), ["1"]);
    assert_eq!(of("app=b", "status.phase=y"), ["1"]);
    assert_eq!(of("app=b", "status.phase=x"), [""; 0]);
    assert_eq!(of("", "status.phase=y"), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn reads_wait_three_seconds_for_a_future_revision() {
    let fixture = fixture_of(&[("n", "1")]).await;
    let start = Instant::now();
    let error = fixture.cache.reads.not_older_than(Revision(9)).await.unwrap_err();
    assert_eq!(error.to_string(), "Too large resource version: 9, current: 2");
    assert_eq!(start.elapsed().as_secs(), 3);
    let error = fixture.cache.reads.exactly(Revision(9)).await.unwrap_err();
    assert!(matches!(error, ReadError::TooLargeResourceVersion { .. }));

    let cache = fixture.cache.clone();
    let waiting = tokio::spawn(async move { cache.reads.not_older_than(Revision(3)).await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    fixture.put(&key("n", "2"), &Thing::new("a", "x", 1)).await;
    assert_eq!(waiting.await.unwrap().unwrap().revision(), Revision(3));
}

#[tokio::test(start_paused = true)]
async fn revisions_of_other_resources_advance_the_cache() {
    let fixture = Fixture::new().await;
    let other = drydock_storage::Key::new(GROUP, "others", "n", "1").unwrap();
    let revision = write(&fixture.store, &other, Some(Thing::new("a", "x", 1))).await;
    let snapshot = fixture.cache.reads.fresh().await.unwrap();
    assert_eq!((snapshot.revision(), snapshot.count()), (revision, 0));
}

#[tokio::test(start_paused = true)]
async fn an_unfilled_cache_refuses_reads_with_growing_retry_after() {
    let store = MemoryStore::new();
    let (cache, _feeder) = WatchCache::new(store, config(CacheLimits::default()));
    assert!(!cache.is_ready());
    let retry_after = |error| match error {
        ReadError::NotReady { retry_after } => retry_after.as_secs(),
        other => panic!("{other}"),
    };
    assert_eq!(retry_after(cache.reads.newest().unwrap_err()), 1);
    tokio::time::advance(Duration::from_secs(12)).await;
    assert_eq!(retry_after(cache.reads.fresh().await.unwrap_err()), 12);
    tokio::time::advance(Duration::from_secs(90)).await;
    assert_eq!(retry_after(cache.reads.newest().unwrap_err()), 30);
}

#[tokio::test(start_paused = true)]
async fn past_states_are_exact_from_memory_and_from_the_store_and_expire() {
    let limits = CacheLimits {
        history_bytes: 0,
        ..CacheLimits::default()
    };
    for limits in [CacheLimits::default(), limits] {
        let fixture = Fixture::with(limits).await;
        for serial in 0..10 {
            let key = key("n", &(serial % 3).to_string());
            fixture.put(&key, &Thing::new("a", "x", serial)).await;
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        for back in 0..10 {
            let revision = Revision(11 - back);
            let snapshot = fixture.cache.reads.exactly(revision).await.unwrap();
            assert_eq!(snapshot.revision(), revision);
            let serials: Vec<u64> = things(snapshot.matches(&everything()))
                .values()
                .map(|(_, thing)| thing.serial)
                .collect();
            let mut expected: Vec<u64> = (0..10 - back).collect();
            expected = expected.split_off(expected.len().saturating_sub(3));
            expected.sort_by_key(|serial| serial % 3);
            assert_eq!(serials, expected, "at {revision}");
        }
        fixture.store.compact(Revision(6)).await.unwrap();
        assert!(fixture.cache.reads.exactly(Revision(7)).await.is_ok());
        let error = fixture.cache.reads.exactly(Revision(6)).await.unwrap_err();
        assert!(
            matches!(
                error,
                ReadError::Expired {
                    oldest: Revision(7),
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_state_of_a_page_survives_compaction_for_the_window_only() {
    let fixture = fixture_of(&[("n", "1"), ("n", "2"), ("n", "3")]).await;
    let page = fixture
        .cache
        .reads
        .newest()
        .unwrap()
        .select(&query_from(everything(), None, 1));
    fixture.put(&key("n", "2"), &Thing::new("b", "x", 9)).await;
    fixture.store.compact(Revision(5)).await.unwrap();
    let snapshot = fixture.cache.reads.continued(page.revision).await.unwrap();
    assert_eq!(
        things(snapshot.matches(&select(Scope::All, "app=b", ""))).len(),
        0
    );
    tokio::time::sleep(Duration::from_secs(301)).await;
    let error = fixture.cache.reads.continued(page.revision).await.unwrap_err();
    assert!(matches!(error, ReadError::Expired { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_cache_loads_what_its_store_holds() {
    let store = MemoryStore::new();
    for serial in 0..2500 {
        let key = key("n", &format!("{serial:05}"));
        write(&store, &key, Some(Thing::new("a", "x", serial))).await;
    }
    // Even when the store holds nothing but its newest state.
    store.compact(Revision(2501)).await.unwrap();
    let fixture = Fixture::over(store, CacheLimits::default()).await;
    let snapshot = fixture.cache.reads.newest().unwrap();
    assert_eq!((snapshot.count(), snapshot.revision()), (2500, Revision(2501)));
    assert_eq!(names(snapshot.matches(&everything())).len(), 2500);
    let page = snapshot.select(&query_from(everything(), None, 1000));
    assert_eq!(page.remaining, Some(1500));
}

/// The age of the oldest event is no measure: a quiet resource has none, and every watch can be resumed.
#[tokio::test(start_paused = true)]
async fn the_window_metric_is_how_far_back_watches_can_resume() {
    let limits = CacheLimits {
        window: Duration::from_mins(1),
        ..CacheLimits::default()
    };
    let fixture = Fixture::with(limits).await;
    let window = || fixture.cache.parts().metrics.history_seconds.get();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!((99..=101).contains(&window()), "{}", window());
    for serial in 0..200 {
        fixture.put(&key("n", "1"), &Thing::new("a", "x", serial)).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!((59..=62).contains(&window()), "{}", window());
}

#[tokio::test(start_paused = true)]
async fn a_list_of_any_state_ignores_its_limit() {
    let fixture = Fixture::new().await;
    for serial in 0..5 {
        fixture
            .put(&key("n", &serial.to_string()), &thing("a", serial))
            .await;
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
