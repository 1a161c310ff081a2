//! Concurrent clients against both backends: what they saw was possible, and every watch delivered what it owes.
//! Planted faults show that the checker sees.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drydock_storage::conformance::history::{Exchange, Operation, Recorder, check};
use drydock_storage::conformance::recorded_watch::{RecordedWatch, check_watch};
use drydock_storage::memory::MemoryStore;
use drydock_storage::rocks::RocksStore;
use drydock_storage::{
    Condition, Event, Events, Expect, Key, KeyRange, Options, Outcome, Revision, Signal, Store, Transaction,
    Value, Write,
};

const CLIENTS: u64 = 8;
const OPERATIONS: u64 = 120;
const KEYS: u64 = 6;

fn key(number: u64) -> Key {
    let namespace = if number.is_multiple_of(2) { "a" } else { "ab" };
    Key::new("g.example", "things", namespace, &format!("k{number}")).unwrap()
}

fn value(unique: u64) -> Value {
    Value {
        bytes: Bytes::from(format!("value {unique}")),
        form: "g.example/v1".into(),
        splice_offset: 0,
    }
}

/// One or two keys, against what was just read, so that some meet a conflict.
async fn write<S: Store>(store: &S, recorder: &Recorder, random: &mut fastrand::Rng, unique: u64) {
    let first = random.u64(..KEYS);
    let mut transaction = Transaction::default();
    for number in [first, (first + 1) % KEYS].into_iter().take(random.usize(1..=2)) {
        let key = key(number);
        let found = recorder.get(store, &key).await.unwrap().entry;
        let is_delete = found.is_some() && random.u8(..4) == 0;
        let expect = found.map_or(Expect::Absent, |entry| Expect::Revision(entry.modified));
        transaction.conditions.push(Condition {
            key: key.clone(),
            expect,
        });
        transaction.writes.push(if is_delete {
            Write::Delete(key)
        } else {
            Write::Put(key, value(unique * 2 + number % 2))
        });
    }
    if random.u8(..8) == 0 {
        transaction.writes.clear();
    }
    recorder.transact(store, transaction).await.unwrap();
}

/// Reads a watch until it has told of `last`.
async fn follow<S: Store>(
    mut events: S::Events,
    range: KeyRange,
    first: Revision,
    last: tokio::sync::watch::Receiver<Option<Revision>>,
) -> RecordedWatch {
    let mut signals = Vec::new();
    let mut last = last;
    loop {
        tokio::select! {
            signal = events.next() => {
                let Some(signal) = signal else { break };
                signals.push(signal);
            }
            Ok(()) = last.changed() => {}
        }
        let told = signals.iter().map(|signal| match signal {
            Signal::Changes { revision, .. } | Signal::Progress(revision) | Signal::Compacted(revision) => {
                *revision
            }
        });
        if let Some(last) = *last.borrow()
            && told.max().is_some_and(|told| told >= last)
        {
            break;
        }
    }
    RecordedWatch {
        range,
        first,
        signals,
    }
}

async fn all_changes<S: Store>(store: &S) -> Vec<(Revision, Vec<Event>)> {
    let current = store.current_revision().await.unwrap();
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    let mut found = Vec::new();
    while found.last().map_or(Revision::INITIAL, |(revision, _)| *revision) < current {
        match tokio::time::timeout(Duration::from_secs(20), events.next())
            .await
            .unwrap()
        {
            Some(Signal::Changes { revision, events }) => found.push((revision, events)),
            other => panic!("{other:?}"),
        }
    }
    found
}

async fn record<S: Store>(store: &S, seed: u64) -> (Vec<Operation>, Vec<(Revision, Vec<Event>)>) {
    let recorder = Arc::new(Recorder::default());
    let (end, last) = tokio::sync::watch::channel(None);
    let mut watches = Vec::new();
    for range in [
        KeyRange::all(),
        KeyRange::namespace("g.example", "things", "a"),
        KeyRange::one(&key(3)),
    ] {
        let events = store.watch(&range, Revision(2)).await.unwrap();
        watches.push(tokio::spawn(follow::<S>(
            events,
            range,
            Revision(2),
            last.clone(),
        )));
    }
    let clients = (0..CLIENTS).map(|client| {
        let (store, recorder) = (store.clone(), Arc::clone(&recorder));
        let mut random = fastrand::Rng::with_seed(seed * 100 + client);
        tokio::spawn(async move {
            for operation in 0..OPERATIONS {
                match random.u8(..6) {
                    0 => recorder
                        .scan(&store, &KeyRange::namespace("g.example", "things", "ab"))
                        .await
                        .unwrap(),
                    1 => drop(recorder.get(&store, &key(random.u64(..KEYS))).await.unwrap()),
                    _ => write(&store, &recorder, &mut random, client * OPERATIONS + operation).await,
                }
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    end.send(Some(store.current_revision().await.unwrap())).unwrap();
    store.request_progress();
    let truth = all_changes(store).await;
    for watch in watches {
        let watch = tokio::time::timeout(Duration::from_secs(20), watch)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(check_watch(&watch, &truth), Ok(()));
    }
    (recorder.operations(), truth)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_engine_is_strictly_serializable() {
    let root = tempfile::tempdir().unwrap();
    let store = RocksStore::open(Options::for_tests(root.path())).unwrap().0;
    let (operations, truth) = record(&store, 1).await;
    assert_eq!(check(&operations, &truth), Ok(()));
    let is_conflict = |one: &&Operation| {
        matches!(
            one.exchange,
            Exchange::Transact(_, Some(Outcome::Conflict { .. }))
        )
    };
    assert!(
        operations.iter().filter(is_conflict).count() > 10,
        "the clients hardly met"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_model_is_strictly_serializable() {
    let (operations, truth) = record(&MemoryStore::new(), 2).await;
    assert_eq!(check(&operations, &truth), Ok(()));
}

/// The rule that `spoil` breaks.
fn broken(
    (operations, truth): &(Vec<Operation>, Vec<(Revision, Vec<Event>)>),
    spoil: impl FnOnce(&mut Vec<Operation>, &mut Vec<(Revision, Vec<Event>)>),
) -> &'static str {
    let (mut operations, mut truth) = (operations.clone(), truth.clone());
    spoil(&mut operations, &mut truth);
    check(&operations, &truth).map_or_else(|fault| fault.rule, |()| "none")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_planted_fault_is_told_by_its_rule() {
    let recorded = record(&MemoryStore::new(), 3).await;
    assert_eq!(broken(&recorded, |_, _| {}), "none");
    // A read that shows an older state than one that was answered before.
    let stale = broken(&recorded, |operations, _| {
        let found = operations
            .iter_mut()
            .rev()
            .find_map(|one| match &mut one.exchange {
                Exchange::Get(_, found) => Some(found),
                _ => None,
            });
        found.unwrap().revision = Revision(2);
    });
    assert_eq!(stale, "nothing stale");
    // A write that is acknowledged and lost.
    let lost = broken(&recorded, |_, truth| drop(truth.remove(3)));
    assert_eq!(lost, "every write is shown");
    // A value of another time under a right revision.
    let wrong = broken(&recorded, |operations, _| {
        let found = operations
            .iter_mut()
            .rev()
            .find_map(|one| match &mut one.exchange {
                Exchange::Get(_, found) => found.entry.as_mut(),
                _ => None,
            });
        found.unwrap().value = value(9_999_999);
    });
    assert_eq!(wrong, "gets show the state");
    // A transaction that happened though its condition did not hold.
    let forced = broken(&recorded, |operations, _| {
        let conditions = operations.iter_mut().find_map(|one| match &mut one.exchange {
            Exchange::Transact(transaction, Some(Outcome::Committed { .. }))
                if !transaction.writes.is_empty() =>
            {
                transaction.conditions.first_mut()
            }
            _ => None,
        });
        conditions.unwrap().expect = Expect::Revision(Revision(1));
    });
    assert_eq!(forced, "conditions hold");
    // Two writes whose revisions go against real time.
    let swapped = broken(&recorded, |operations, _| {
        let writes = operations.iter_mut().filter(|one| {
            matches!(&one.exchange, Exchange::Transact(transaction, Some(Outcome::Committed { .. }))
                if !transaction.writes.is_empty())
        });
        let first = writes.min_by_key(|one| one.called).unwrap();
        (first.called, first.answered) = (u64::MAX - 2, u64::MAX - 1);
    });
    assert_eq!(swapped, "real time");
    // A change nobody asked for.
    let invented = broken(&recorded, |operations, _| {
        operations.retain(|one| {
            !matches!(one.exchange, Exchange::Transact(_, Some(Outcome::Committed { revision })) if revision.0 == 5)
        });
    });
    assert_eq!(invented, "nothing from nowhere");
    // An answer that never came, to a write that happened: the events settle it.
    let unknown = broken(&recorded, |operations, _| {
        for one in operations {
            if let Exchange::Transact(
                transaction,
                outcome @ Some(Outcome::Committed {
                    revision: Revision(5),
                }),
            ) = &mut one.exchange
                && !transaction.writes.is_empty()
            {
                *outcome = None;
                one.answered = u64::MAX;
            }
        }
    });
    assert_eq!(unknown, "none");
}
