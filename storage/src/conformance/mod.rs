//! The test suite for the contract of [`Store`].
//!
//! Every case is an async function over a [`Backend`], named after the rule it checks; a backend runs all of them with
//! [`conformance_suite!`](crate::conformance_suite). A case panics when the rule is broken.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test suite reports failures as panics"
)]

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::{
    At, Entry, Event, EventKind, Events, Key, KeyRange, Outcome, Page, Revision, Scan, Signal, Store,
    Transaction, Value,
};

pub mod compaction;
pub mod history;
pub mod reads;
pub mod recorded_watch;
pub mod sealing;
pub mod transactions;
pub mod watch_checker;
pub mod watches;

/// Makes the stores a suite runs on.
pub trait Backend: Send + Sync + 'static {
    /// The backend under test.
    type Store: Store;

    /// Whether a watch that is behind a compaction ends with its next signal, or may first deliver events that were
    /// already on their way.
    const ENDS_AT_ONCE: bool = true;

    /// A new and empty store.
    fn open(&self) -> impl Future<Output = Self::Store> + Send;
}

/// How long a case waits for something that must come at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// The group of every key of the suite.
const GROUP: &str = "example.com";

/// The key of a namespaced thing.
#[must_use]
pub fn key(namespace: &str, name: &str) -> Key {
    Key::new(GROUP, "things", namespace, name).unwrap()
}

/// The key of the thing with this name in the namespace `a`.
#[must_use]
pub fn thing(name: &str) -> Key {
    key("a", name)
}

/// All things.
pub(crate) fn things() -> KeyRange {
    KeyRange::resource(GROUP, "things")
}

/// A value with `text` as its payload.
#[must_use]
pub fn value(text: &str) -> Value {
    Value {
        bytes: Bytes::copy_from_slice(text.as_bytes()),
        form: "example.com/v1".into(),
        splice_offset: 7,
    }
}

/// Runs a transaction that must commit.
pub async fn commit<S: Store>(store: &S, transaction: Transaction) -> Revision {
    match store.transact(transaction).await.unwrap() {
        Outcome::Committed { revision } => revision,
        Outcome::Conflict { current, .. } => panic!("conflict with {current:?}"),
    }
}

/// Sets the value of [`thing`] `name`, whatever it was.
pub async fn put<S: Store>(store: &S, name: &str, text: &str) -> Revision {
    let transaction = match store.get(&thing(name)).await.unwrap().entry {
        None => Transaction::create(thing(name), value(text)),
        Some(entry) => Transaction::update(thing(name), entry.modified, value(text)),
    };
    commit(store, transaction).await
}

/// Creates a key that must be absent.
pub(crate) async fn create<S: Store>(store: &S, key: &Key, text: &str) -> Revision {
    commit(store, Transaction::create(key.clone(), value(text))).await
}

/// Replaces a value that must be at `base`.
pub(crate) async fn update<S: Store>(store: &S, key: &Key, base: Revision, text: &str) -> Revision {
    commit(store, Transaction::update(key.clone(), base, value(text))).await
}

/// Removes a key that must be at `base`.
pub(crate) async fn delete<S: Store>(store: &S, key: &Key, base: Revision) -> Revision {
    commit(store, Transaction::delete(key.clone(), base)).await
}

/// The entry with this value and these revisions.
pub(crate) fn entry(text: &str, created: Revision, modified: Revision) -> Entry {
    Entry {
        value: value(text),
        created,
        modified,
    }
}

/// All of a range at a revision.
pub(crate) async fn scan_all<S: Store>(store: &S, range: &KeyRange, at: At) -> Scan {
    store.scan(range, at, Page::default()).await.unwrap()
}

/// The names in a scan.
pub(crate) fn names(scan: &Scan) -> Vec<&str> {
    scan.entries.iter().map(|(key, _)| key.name()).collect()
}

/// The next signal, which must come at once.
pub(crate) async fn next<E: Events>(events: &mut E) -> Option<Signal> {
    tokio::time::timeout(PATIENCE, events.next())
        .await
        .expect("a signal is due")
}

/// The next change; progress signals before it are skipped.
pub(crate) async fn change<E: Events>(events: &mut E) -> Event {
    loop {
        match next(events).await {
            Some(Signal::Change(event)) => return event,
            Some(Signal::Progress(_)) => {}
            other => panic!("a change is due, not {other:?}"),
        }
    }
}

/// The next signal, which must be progress.
pub(crate) async fn progress<E: Events>(events: &mut E) -> Revision {
    match next(events).await {
        Some(Signal::Progress(revision)) => revision,
        other => panic!("progress is due, not {other:?}"),
    }
}

/// Kind, name and revision of the next change.
pub(crate) async fn change_summary<E: Events>(events: &mut E) -> (EventKind, String, Revision) {
    let event = change(events).await;
    (event.kind, event.key.name().to_owned(), event.revision)
}

/// Declares one test for every case of the suite, run on the stores the given backend makes.
#[macro_export]
macro_rules! conformance_suite {
    ($backend:expr) => {
        $crate::conformance_suite! { $backend;
            transactions: create_is_read_back, create_of_an_existing_key_conflicts,
                update_needs_the_newest_revision, delete_needs_the_newest_revision,
                recreation_starts_anew, an_absent_key_is_not_updated_or_deleted,
                a_readable_value_is_not_removed_as_damaged,
                too_large_values_are_refused, empty_values_are_values, concurrent_creates_take_dense_revisions,
                of_concurrent_creates_one_wins, many_transactions_take_a_revision_each,
                one_refusal_among_many_stops_no_other, a_closed_store_refuses_everything;
            reads: an_empty_store_is_at_the_initial_revision, namespaces_do_not_leak,
                pages_cover_a_range_once, a_limit_that_fits_has_no_more, a_past_is_exact,
                pages_of_the_past_ignore_the_present, a_past_before_a_deletion_shows_the_key,
                the_future_is_refused, an_update_keeps_the_creation_revision, ranges_may_be_empty;
            watches: a_watch_from_the_start_sees_everything, a_watch_from_now_sees_what_follows,
                the_future_is_not_watched, events_hold_both_sides,
                a_watch_sees_only_its_range, progress_follows_foreign_writes, progress_comes_when_asked_for,
                a_watch_resumes_without_gap, a_slow_reader_misses_nothing, closing_ends_watches,
                many_watches_see_the_same;
            compaction: floors_rise_and_never_fall, the_past_below_the_floor_is_gone,
                the_record_at_the_floor_is_watched, a_deletion_at_the_floor_is_watched,
                compaction_keeps_live_keys, compaction_takes_no_revision,
                compaction_of_a_deletion_keeps_the_revision, compaction_of_the_future_is_refused,
                a_watch_left_behind_ends;
        }
    };
    ($backend:expr; $($module:ident: $($case:ident),+;)+) => {
        $(mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::conformance::$module::$case(&$backend).await;
            })+
        })+
    };
}
