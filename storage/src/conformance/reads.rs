//! Gets and scans of the newest and of past states.

use super::{Backend, create, delete, entry, key, names, scan_all, things, update};
use crate::{At, Key, KeyRange, Page, Revision, Scan, Store, StoreError};

/// The start of the next page.
fn last_key(scan: &Scan) -> String {
    scan.entries
        .last()
        .map(|(key, _)| key.to_string())
        .unwrap_or_default()
}

/// It has no keys, now and at its first revision.
pub async fn an_empty_store_is_at_the_initial_revision<B: Backend>(backend: &B) {
    let store = backend.open().await;
    assert_eq!(store.current_revision().await.unwrap(), Revision::INITIAL);
    let found = store.get(&key("a", "none")).await.unwrap();
    assert_eq!((found.revision, found.entry), (Revision::INITIAL, None));
    for at in [At::Latest, At::Exactly(Revision::INITIAL)] {
        let scan = scan_all(&store, &KeyRange::all(), at).await;
        assert_eq!(
            (scan.revision, scan.entries.len(), scan.more),
            (Revision::INITIAL, 0, false)
        );
    }
}

/// `a` is not `ab`, and cluster-scoped keys are in no namespace.
pub async fn namespaces_do_not_leak<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let other = Key::new(super::GROUP, "thingsandmore", "a", "other").unwrap();
    create(&store, &other, "x").await;
    for (namespace, name) in [
        ("ab", "three"),
        ("a", "two"),
        ("", "zero"),
        ("a", "one"),
        ("a-b", "four"),
    ] {
        create(&store, &key(namespace, name), "x").await;
    }
    for (range, expected) in [
        (
            KeyRange::namespace(super::GROUP, "things", "a"),
            vec!["one", "two"],
        ),
        (KeyRange::namespace(super::GROUP, "things", "ab"), vec!["three"]),
        (KeyRange::namespace(super::GROUP, "things", ""), vec!["zero"]),
        (things(), vec!["zero", "four", "one", "two", "three"]),
        (KeyRange::one(&key("a", "one")), vec!["one"]),
        (
            KeyRange::all(),
            vec!["zero", "four", "one", "two", "three", "other"],
        ),
    ] {
        let scan = scan_all(&store, &range, At::Latest).await;
        assert_eq!(names(&scan), expected, "{range:?}");
    }
}

/// Each page starts after the last key of the previous one.
pub async fn pages_cover_a_range_once<B: Backend>(backend: &B) {
    let store = backend.open().await;
    for index in 0..25 {
        create(&store, &key("a", &format!("n{index:02}")), "x").await;
    }
    let mut page = Page {
        after: String::new(),
        limit: 10,
        ..Page::default()
    };
    let mut found = Vec::new();
    for (size, more) in [(10, true), (10, true), (5, false)] {
        let scan = store.scan(&things(), At::Latest, page.clone()).await.unwrap();
        assert_eq!((scan.entries.len(), scan.more), (size, more));
        found.extend(names(&scan).into_iter().map(str::to_owned));
        page.after = last_key(&scan);
    }
    let expected: Vec<String> = (0..25).map(|index| format!("n{index:02}")).collect();
    assert_eq!(found, expected);
    let scan = store.scan(&things(), At::Latest, page).await.unwrap();
    assert_eq!((scan.entries.len(), scan.more), (0, false));
}

/// Even if the last page is full.
pub async fn a_limit_that_fits_has_no_more<B: Backend>(backend: &B) {
    let store = backend.open().await;
    for name in ["one", "two"] {
        create(&store, &key("a", name), "x").await;
    }
    create(&store, &key("b", "elsewhere"), "x").await;
    let range = KeyRange::namespace(super::GROUP, "things", "a");
    for (limit, more) in [(1, true), (2, false), (3, false), (0, false)] {
        let page = Page {
            after: String::new(),
            limit,
            ..Page::default()
        };
        let scan = store.scan(&range, At::Latest, page).await.unwrap();
        assert_eq!(scan.more, more, "limit {limit}");
    }
}

/// After any number of updates, deletes and recreations.
pub async fn a_past_is_exact<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let (one, two) = (key("a", "one"), key("a", "two"));
    let r2 = create(&store, &one, "1a").await;
    let r3 = create(&store, &two, "2a").await;
    let r4 = update(&store, &one, r2, "1b").await;
    let r5 = delete(&store, &two, r3).await;
    let r6 = update(&store, &one, r4, "1c").await;
    let r7 = create(&store, &two, "2b").await;
    let (first, second) = (
        |text, modified| (one.clone(), entry(text, r2, modified)),
        |text, at| (two.clone(), entry(text, at, at)),
    );
    for (at, expected) in [
        (Revision::INITIAL, vec![]),
        (r2, vec![first("1a", r2)]),
        (r3, vec![first("1a", r2), second("2a", r3)]),
        (r4, vec![first("1b", r4), second("2a", r3)]),
        (r5, vec![first("1b", r4)]),
        (r6, vec![first("1c", r6)]),
        (r7, vec![first("1c", r6), second("2b", r7)]),
    ] {
        let scan = scan_all(&store, &things(), At::Exactly(at)).await;
        assert_eq!((scan.revision, scan.entries), (at, expected));
    }
}

/// Writes between two pages of a revision do not affect it.
pub async fn pages_of_the_past_ignore_the_present<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let mut last = Revision::INITIAL;
    for index in 0..6 {
        last = create(&store, &key("a", &format!("n{index}")), "then").await;
    }
    let mut page = Page {
        after: String::new(),
        limit: 2,
        ..Page::default()
    };
    let mut found = Vec::new();
    for round in 0..3_u64 {
        let scan = store
            .scan(&things(), At::Exactly(last), page.clone())
            .await
            .unwrap();
        assert_eq!((scan.revision, scan.more), (last, round < 2));
        page.after = last_key(&scan);
        found.extend(scan.entries);
        create(&store, &key("a", &format!("n{}x", 2 * round + 1)), "now").await;
        let gone = key("a", &format!("n{}", 2 * round + 3));
        if let Some(entry) = store.get(&gone).await.unwrap().entry {
            delete(&store, &gone, entry.modified).await;
        }
    }
    let expected = (0..6).map(|index| {
        let at = Revision(index + 2);
        (key("a", &format!("n{index}")), entry("then", at, at))
    });
    assert_eq!(found, expected.collect::<Vec<_>>());
}

/// Although it is absent from the newest state.
pub async fn a_past_before_a_deletion_shows_the_key<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let created = create(&store, &one, "x").await;
    delete(&store, &one, created).await;
    let scan = scan_all(&store, &things(), At::Exactly(created)).await;
    assert_eq!(scan.entries, [(one, entry("x", created, created))]);
    assert!(scan_all(&store, &things(), At::Latest).await.entries.is_empty());
}

/// The error names both revisions.
pub async fn the_future_is_refused<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let current = create(&store, &key("a", "one"), "x").await;
    let refused = store
        .scan(&things(), At::Exactly(current.next()), Page::default())
        .await;
    let Err(StoreError::Future {
        requested,
        current: at,
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((requested, at), (current.next(), current));
}

/// Only recreation changes it.
pub async fn an_update_keeps_the_creation_revision<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let created = create(&store, &one, "0").await;
    let mut last = created;
    for text in ["1", "2", "3"] {
        last = update(&store, &one, last, text).await;
    }
    assert_eq!(
        store.get(&one).await.unwrap().entry,
        Some(entry("3", created, last))
    );
    let scan = scan_all(&store, &things(), At::Latest).await;
    assert_eq!(scan.entries, [(one, entry("3", created, last))]);
}

/// A range with reversed bounds, and a page that starts after the range.
pub async fn ranges_may_be_empty<B: Backend>(backend: &B) {
    let store = backend.open().await;
    create(&store, &key("a", "one"), "x").await;
    let upside_down = KeyRange {
        start: "z".to_owned(),
        end: "a".to_owned(),
    };
    assert!(
        scan_all(&store, &upside_down, At::Latest)
            .await
            .entries
            .is_empty()
    );
    let page = Page {
        after: "zzz".to_owned(),
        limit: 1,
        ..Page::default()
    };
    let scan = store.scan(&things(), At::Latest, page).await.unwrap();
    assert_eq!((scan.entries.len(), scan.more), (0, false));
    let page = Page {
        after: "a".to_owned(),
        limit: 0,
        ..Page::default()
    };
    let scan = store.scan(&things(), At::Latest, page).await.unwrap();
    assert_eq!(scan.entries.len(), 1);
}
