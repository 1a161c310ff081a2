//! Conditions, writes and the revisions they take.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use super::{Backend, commit, create, delete, entry, key, things, update, value};
use crate::{
    At, Condition, Expect, Found, Health, Key, Outcome, Page, Revision, Store, StoreError, Transaction,
    Value, Write,
};

/// What was created is found, at its revision.
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

/// The conflict shows what is there.
pub async fn create_of_an_existing_key_conflicts<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "one");
    let revision = create(&store, &key, "first").await;
    let again = Transaction::create(key.clone(), value("second"));
    let expected = Outcome::Conflict {
        revision,
        current: vec![Some(entry("first", revision, revision))],
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
        current: vec![Some(entry("second", first, second))],
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
        current: vec![None],
    };
    assert_eq!(again, expected);
}

/// A revision of the first life never matches the second.
pub async fn recreation_is_a_new_life<B: Backend>(backend: &B) {
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

/// One condition that does not hold stops every write.
pub async fn a_transaction_is_all_or_nothing<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let (one, two) = (key("a", "one"), key("a", "two"));
    let first = create(&store, &one, "first").await;
    let transaction = Transaction {
        conditions: vec![
            Condition {
                key: one.clone(),
                expect: Expect::Revision(first),
            },
            Condition {
                key: two.clone(),
                expect: Expect::Revision(first),
            },
        ],
        writes: vec![
            Write::Put(one.clone(), value("changed")),
            Write::Put(two.clone(), value("new")),
        ],
        may_grow: false,
    };
    let outcome = store.transact(transaction).await.unwrap();
    assert!(matches!(outcome, Outcome::Conflict { .. }), "{outcome:?}");
    assert_eq!(
        store.get(&one).await.unwrap().entry,
        Some(entry("first", first, first))
    );
    assert_eq!(store.get(&two).await.unwrap().entry, None);
}

/// Puts and deletes of one transaction have one revision, the next one.
pub async fn all_writes_share_one_revision<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let (one, two, three) = (key("a", "one"), key("a", "two"), key("b", "three"));
    let first = create(&store, &one, "first").await;
    let second = create(&store, &two, "first").await;
    let transaction = Transaction {
        conditions: vec![Condition {
            key: one.clone(),
            expect: Expect::Revision(first),
        }],
        writes: vec![
            Write::Put(two.clone(), value("second")),
            Write::Delete(one.clone()),
            Write::Put(three.clone(), value("first")),
        ],
        may_grow: false,
    };
    let third = commit(&store, transaction).await;
    assert_eq!(third, second.next());
    assert_eq!(store.get(&one).await.unwrap().entry, None);
    assert_eq!(
        store.get(&two).await.unwrap().entry,
        Some(entry("second", second, third))
    );
    assert_eq!(
        store.get(&three).await.unwrap().entry,
        Some(entry("first", third, third))
    );
}

/// In the order of the conditions, whether they hold or not.
pub async fn a_conflict_shows_every_condition<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let (one, two, three) = (key("a", "one"), key("a", "two"), key("a", "three"));
    let first = create(&store, &one, "1").await;
    let second = create(&store, &three, "3").await;
    let conditions = [two, three, one].map(|key| Condition {
        key,
        expect: Expect::Absent,
    });
    let transaction = Transaction {
        conditions: conditions.to_vec(),
        writes: Vec::new(),
        may_grow: false,
    };
    let expected = Outcome::Conflict {
        revision: second,
        current: vec![
            None,
            Some(entry("3", second, second)),
            Some(entry("1", first, first)),
        ],
    };
    assert_eq!(store.transact(transaction).await.unwrap(), expected);
}

/// Without writes the answer names the current revision.
pub async fn a_check_takes_no_revision<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "one");
    let first = create(&store, &key, "first").await;
    let revision = commit(&store, Transaction::check(key.clone(), first)).await;
    assert_eq!(revision, first);
    assert_eq!(commit(&store, Transaction::default()).await, first);
    let outcome = store
        .transact(Transaction::check(key, first.next()))
        .await
        .unwrap();
    assert!(matches!(outcome, Outcome::Conflict { .. }), "{outcome:?}");
    assert_eq!(store.current_revision().await.unwrap(), first);
}

/// Over nothing it creates, over something it updates.
pub async fn a_put_without_condition_sets<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("a", "one");
    let put = |text: &str| Transaction {
        conditions: Vec::new(),
        writes: vec![Write::Put(key.clone(), value(text))],
        may_grow: false,
    };
    let first = commit(&store, put("first")).await;
    let second = commit(&store, put("second")).await;
    assert_eq!(
        store.get(&key).await.unwrap().entry,
        Some(entry("second", first, second))
    );
}

/// Unless a condition answers first.
pub async fn a_delete_of_nothing_is_malformed<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let blind = Transaction {
        conditions: Vec::new(),
        writes: vec![
            Write::Put(key("a", "one"), value("x")),
            Write::Delete(key("a", "two")),
        ],
        may_grow: false,
    };
    let refused = store.transact(blind).await;
    assert!(
        matches!(refused, Err(StoreError::Malformed { .. })),
        "{refused:?}"
    );
    assert_eq!(store.get(&key("a", "one")).await.unwrap().entry, None);
    let guarded = store
        .transact(Transaction::delete(key("a", "two"), Revision(1)))
        .await;
    assert!(matches!(guarded, Ok(Outcome::Conflict { .. })), "{guarded:?}");
    assert_eq!(store.current_revision().await.unwrap(), Revision::INITIAL);
}

/// Two writes of one key, or too many keys.
pub async fn malformed_transactions_change_nothing<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let twice = vec![
        Write::Put(key("a", "one"), value("1")),
        Write::Put(key("a", "one"), value("2")),
    ];
    let many =
        (0..=Transaction::MAX_KEYS).map(|index| Write::Put(key("a", &format!("n{index}")), value("x")));
    for writes in [twice, many.collect()] {
        let conditions = Vec::new();
        let refused = store
            .transact(Transaction {
                conditions,
                writes,
                may_grow: false,
            })
            .await;
        assert!(
            matches!(refused, Err(StoreError::Malformed { .. })),
            "{refused:?}"
        );
    }
    let conditions = (0..=Transaction::MAX_KEYS).map(|index| Condition {
        key: key("a", &format!("n{index}")),
        expect: Expect::Absent,
    });
    let transaction = Transaction {
        conditions: conditions.collect(),
        writes: Vec::new(),
        may_grow: false,
    };
    let refused = store.transact(transaction).await;
    assert!(
        matches!(refused, Err(StoreError::Malformed { .. })),
        "{refused:?}"
    );
    assert_eq!(store.current_revision().await.unwrap(), Revision::INITIAL);
}

/// [`Transaction::MAX_KEYS`] keys at one revision.
pub async fn the_largest_transaction_fits<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let keys: Vec<Key> = (0..Transaction::MAX_KEYS)
        .map(|index| key("a", &format!("n{index:04}")))
        .collect();
    let transaction = Transaction {
        conditions: keys
            .iter()
            .map(|key| Condition {
                key: key.clone(),
                expect: Expect::Absent,
            })
            .collect(),
        writes: keys
            .iter()
            .map(|key| Write::Put(key.clone(), value("x")))
            .collect(),
        may_grow: false,
    };
    let revision = commit(&store, transaction).await;
    let scan = store.scan(&things(), At::Latest, Page::default()).await.unwrap();
    let found: Vec<Key> = scan.entries.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(found, keys);
    assert!(scan.entries.iter().all(|(_, entry)| entry.modified == revision));
}

/// Beyond the limit an error, at the limit a value.
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

/// An empty payload is not an absent key.
pub async fn empty_values_are_values<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let key = key("", "cluster");
    let first = create(&store, &key, "").await;
    assert_eq!(
        store.get(&key).await.unwrap().entry,
        Some(entry("", first, first))
    );
}

/// No revision is skipped or handed out twice.
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

/// The others conflict, with a durable winner.
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
                seen.extend(current);
            }
        }
    }
    assert_eq!(winners, 1);
    let winner = store.get(&key("a", "one")).await.unwrap().entry;
    assert_eq!(seen, vec![winner; 31]);
}

/// In their order, so that a reader who stops between two of them resumes there.
pub async fn many_transactions_take_a_revision_each<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let transactions = (0..3000).map(|index| Transaction::create(key("a", &format!("n{index}")), value("x")));
    let outcomes = store.transact_many(transactions.collect()).await;
    let revisions = outcomes.into_iter().map(|outcome| match outcome.unwrap() {
        Outcome::Committed { revision } => revision.0,
        Outcome::Conflict { current, .. } => panic!("conflict with {current:?}"),
    });
    assert_eq!(revisions.collect::<Vec<_>>(), (2..3002).collect::<Vec<_>>());
    assert!(store.transact_many(Vec::new()).await.is_empty());
}

/// Each is answered for itself.
pub async fn one_refusal_among_many_stops_no_other<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let malformed = Transaction {
        conditions: Vec::new(),
        writes: vec![Write::Delete(key("a", "none"))],
        may_grow: false,
    };
    let transactions = vec![
        Transaction::create(one.clone(), value("first")),
        Transaction::create(one.clone(), value("second")),
        malformed,
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
    assert_eq!(*current, [Some(entry("first", Revision(2), Revision(2)))]);
    assert!(matches!(third, StoreError::Malformed { .. }), "{third:?}");
    assert_eq!(
        *fourth,
        Outcome::Committed {
            revision: Revision(3)
        }
    );
}

/// And closing twice is closing once.
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
