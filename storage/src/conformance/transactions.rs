//! Transactions: conditions, outcomes and the revisions they take.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use super::{Backend, commit, create, delete, entry, key, things, update, value};
use crate::{At, Found, Health, Outcome, Page, Removable, Revision, Store, StoreError, Transaction, Value};

/// A created value is returned by a get, at its revision.
pub async fn create_is_read_back<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "one");
    let revision = create(&store, &key, "first").await;
    assert_eq!(revision, Revision(2));
    let found = store.get(&key).await.unwrap();
    let expected = Found {
        revision,
        entry: Some(entry("first", revision, revision)),
    };
    assert_eq!(found, expected);
    assert_eq!(store.health(), Health::Ready);
}

/// The conflict returns the current entry.
pub async fn create_of_an_existing_key_conflicts<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "one");
    let revision = create(&store, &key, "first").await;
    let again = Transaction::create(key.clone(), value("second"));
    let expected = Outcome::Conflict {
        revision,
        current: Some(entry("first", revision, revision)),
    };
    assert_eq!(store.transact(again).await.unwrap(), expected);
    assert_eq!(store.current_revision().await.unwrap(), revision);
}

/// An update of an older base changes nothing.
pub async fn update_needs_the_newest_revision<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "one");
    let first = create(&store, &key, "first").await;
    let second = update(&store, &key, first, "second").await;
    assert_eq!(second, first.next());
    let late = Transaction::update(key.clone(), first, value("late"));
    let expected = Outcome::Conflict {
        revision: second,
        current: Some(entry("second", first, second)),
    };
    assert_eq!(store.transact(late).await.unwrap(), expected);
    assert_eq!(
        store.get(&key).await.unwrap().entry,
        Some(entry("second", first, second))
    );
}

/// A delete of an older base changes nothing; one of the newest removes the key.
pub async fn delete_needs_the_newest_revision<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "one");
    let first = create(&store, &key, "first").await;
    let second = update(&store, &key, first, "second").await;
    let late = store
        .transact(Transaction::delete(key.clone(), first))
        .await
        .unwrap();
    assert!(matches!(late, Outcome::Conflict { .. }), "{late:?}");
    let third = delete(&store, &key, second).await;
    let expected = Found {
        revision: third,
        entry: None,
    };
    assert_eq!(store.get(&key).await.unwrap(), expected);
    let again = store
        .transact(Transaction::delete(key.clone(), second))
        .await
        .unwrap();
    let expected = Outcome::Conflict {
        revision: third,
        current: None,
    };
    assert_eq!(again, expected);
}

/// A revision from before a deletion never matches the recreated key.
pub async fn recreation_starts_anew<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "one");
    let first = create(&store, &key, "same").await;
    delete(&store, &key, first).await;
    let third = create(&store, &key, "same").await;
    assert_eq!(
        store.get(&key).await.unwrap().entry,
        Some(entry("same", third, third))
    );
    let late = Transaction::update(key, first, value("late"));
    let late = store.transact(late).await.unwrap();
    assert!(matches!(late, Outcome::Conflict { .. }), "{late:?}");
}

/// An update and a delete of an absent key are conflicts that change nothing.
pub async fn an_absent_key_is_not_updated_or_deleted<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "one");
    for transaction in [
        Transaction::update(key.clone(), Revision(1), value("x")),
        Transaction::delete(key.clone(), Revision(1)),
    ] {
        let expected = Outcome::Conflict {
            revision: Revision::INITIAL,
            current: None,
        };
        assert_eq!(store.transact(transaction).await.unwrap(), expected);
    }
    assert_eq!(store.current_revision().await.unwrap(), Revision::INITIAL);
}

/// Only an unreadable value may be removed without a condition.
pub async fn a_readable_value_is_not_removed_as_damaged<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let first = create(&store, &one, "first").await;
    for key in [one.clone(), key("a", "none")] {
        for which in [Removable::Damaged, Removable::DamagedOrSealed] {
            let refused = store.remove_damaged(&key, which).await;
            assert!(matches!(refused, Err(StoreError::NotDamaged)), "{refused:?}");
        }
    }
    assert_eq!(
        store.get(&one).await.unwrap().entry,
        Some(entry("first", first, first))
    );
}

/// A value of exactly the limit is accepted.
pub async fn too_large_values_are_refused<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "big");
    let large = |bytes: usize| Value {
        bytes: Bytes::from(vec![b'x'; bytes]),
        ..value("")
    };
    let refused = store
        .transact(Transaction::create(key.clone(), large(Value::MAX_BYTES + 1)))
        .await;
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    commit(&store, Transaction::create(key.clone(), large(Value::MAX_BYTES))).await;
    let found = store.get(&key).await.unwrap().entry.unwrap();
    assert_eq!(found.value, large(Value::MAX_BYTES));
}

/// An empty payload differs from an absent key.
pub async fn empty_values_are_values<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("", "cluster");
    let first = create(&store, &key, "").await;
    assert_eq!(
        store.get(&key).await.unwrap().entry,
        Some(entry("", first, first))
    );
}

/// No revision is skipped or assigned twice.
pub async fn concurrent_creates_take_dense_revisions<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let tasks = (0..64).map(|index| {
        let store = store.clone();
        tokio::spawn(async move { create(&store, &key("a", &format!("n{index}")), "x").await })
    });
    let mut revisions = BTreeSet::new();
    for task in tasks.collect::<Vec<_>>() {
        revisions.insert(task.await.unwrap());
    }
    assert_eq!(revisions, (2..66).map(Revision).collect());
}

/// The others conflict with the durable value of the winner.
pub async fn of_concurrent_creates_one_wins<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let tasks = (0..32).map(|index| {
        let store = store.clone();
        let transaction = Transaction::create(key("a", "one"), value(&format!("by {index}")));
        tokio::spawn(async move { store.transact(transaction).await.unwrap() })
    });
    let mut winners = 0;
    let mut seen = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        match task.await.unwrap() {
            Outcome::Committed { revision } => {
                assert_eq!(revision, Revision(2));
                winners += 1;
            }
            Outcome::Conflict { revision, current } => {
                assert_eq!(revision, Revision(2));
                seen.push(current);
            }
        }
    }
    assert_eq!(winners, 1);
    let winner = store.get(&key("a", "one")).await.unwrap().entry;
    assert_eq!(seen, vec![winner; 31]);
}

/// So that a watch can resume between any two of them.
pub async fn many_transactions_take_a_revision_each<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let transactions = (0..3000).map(|index| Transaction::create(key("a", &format!("n{index}")), value("x")));
    let outcomes = store.transact_many(transactions.collect()).await;
    let revisions = outcomes.into_iter().map(|outcome| match outcome.unwrap() {
        Outcome::Committed { revision } => revision.0,
        Outcome::Conflict { current, .. } => panic!("conflict with {current:?}"),
    });
    assert_eq!(
        revisions.collect::<BTreeSet<_>>(),
        (2..3002).collect::<BTreeSet<_>>()
    );
    assert!(store.transact_many(Vec::new()).await.is_empty());
}

/// Each transaction has an outcome of its own.
pub async fn one_refusal_among_many_stops_no_other<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let too_large = Value {
        bytes: Bytes::from(vec![b'x'; Value::MAX_BYTES + 1]),
        ..value("")
    };
    let transactions = vec![
        Transaction::create(one.clone(), value("first")),
        Transaction::create(one.clone(), value("second")),
        Transaction::create(key("a", "none"), too_large),
        Transaction::update(one.clone(), Revision(2), value("third")),
    ];
    let outcomes = store.transact_many(transactions).await;
    let [Ok(first), Ok(second), Err(third), Ok(fourth)] = outcomes.as_slice() else {
        panic!("{outcomes:?}");
    };
    assert_eq!(
        *first,
        Outcome::Committed {
            revision: Revision(2)
        }
    );
    let Outcome::Conflict { current, .. } = second else {
        panic!("{second:?}");
    };
    assert_eq!(*current, Some(entry("first", Revision(2), Revision(2))));
    assert!(matches!(third, StoreError::TooLarge { .. }), "{third:?}");
    assert_eq!(
        *fourth,
        Outcome::Committed {
            revision: Revision(3)
        }
    );
}

/// Closing twice succeeds.
pub async fn a_closed_store_refuses_everything<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "one");
    let first = create(&store, &key, "first").await;
    store.close(Duration::from_secs(5)).await.unwrap();
    store.close(Duration::from_secs(5)).await.unwrap();
    let refused = store.transact(Transaction::delete(key.clone(), first)).await;
    assert!(matches!(refused, Err(StoreError::Closed { .. })), "{refused:?}");
    let refused = store.get(&key).await;
    assert!(matches!(refused, Err(StoreError::Closed { .. })), "{refused:?}");
    let refused = store.scan(&things(), At::Latest, Page::default()).await;
    assert!(matches!(refused, Err(StoreError::Closed { .. })), "{refused:?}");
    let refused = store.watch(&things(), first).await.map(|_| ());
    assert!(matches!(refused, Err(StoreError::Closed { .. })), "{refused:?}");
    assert_ne!(store.health(), Health::Ready);
}
