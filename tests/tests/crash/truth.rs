//! The expected state, and its comparison with a reopened store.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use drydock_storage::rocks::{Opened, RocksStore};
use drydock_storage::{At, Entry, Event, Events, Key, KeyRange, Page, Revision, Signal, Store};

use crate::journal::{Journal, effect};

/// The timeout of anything that should be immediate.
const PATIENCE: Duration = Duration::from_secs(30);

/// All keys and their entries.
pub(crate) type State = BTreeMap<Key, Entry>;

/// The expected state at a revision.
#[derive(Debug, Clone)]
pub(crate) struct Truth {
    pub(crate) revision: Revision,
    pub(crate) state: State,
    /// The state at every revision since the check before the last one.
    pub(crate) past: BTreeMap<Revision, State>,
}

impl Default for Truth {
    fn default() -> Self {
        Self {
            revision: Revision::INITIAL,
            state: State::new(),
            past: BTreeMap::new(),
        }
    }
}

/// The complete state of a store.
pub(crate) async fn state_at(store: &RocksStore, at: At) -> State {
    let scan = store.scan(&KeyRange::all(), at, Page::default()).await.unwrap();
    scan.entries.into_iter().collect()
}

/// Every change from a revision on, up to now.
pub(crate) async fn changes_from(store: &RocksStore, first: Revision) -> Vec<Event> {
    let current = store.current_revision().await.unwrap();
    let mut found: Vec<Event> = Vec::new();
    let mut events = store.watch(&KeyRange::all(), first).await.unwrap();
    while found.last().map_or(first.previous(), |event| event.revision) < current {
        match tokio::time::timeout(PATIENCE, events.next()).await.unwrap() {
            Some(Signal::Change(event)) => found.push(event),
            other => panic!("changes up to {current} are due, not {other:?}"),
        }
    }
    found
}

impl Truth {
    /// Applies the next change, which must have the right value before it.
    pub(crate) fn apply(&mut self, event: &Event) {
        assert_eq!(event.revision, self.revision.next(), "a revision is missing");
        assert_eq!(
            self.state.get(&event.key),
            event.old.as_ref(),
            "the value before {event:?}"
        );
        match &event.new {
            Some(entry) => self.state.insert(event.key.clone(), entry.clone()),
            None => self.state.remove(&event.key),
        };
        self.revision = event.revision;
        self.past.insert(event.revision, self.state.clone());
    }

    /// Takes over everything that a store has, without checks.
    pub(crate) async fn learn(&mut self, store: &RocksStore) {
        for event in changes_from(store, self.revision.next()).await {
            self.apply(&event);
        }
    }

    /// Compares a reopened store with the expected state and the child's lines, and takes over what was written since.
    pub(crate) async fn check(&mut self, store: &RocksStore, opened: &Opened, journal: &Journal) {
        assert!(opened.damaged.is_empty(), "{opened:?}");
        let current = store.current_revision().await.unwrap();
        assert!(
            current.0 >= journal.newest_seen,
            "revision {} was seen, the store is at {current}",
            journal.newest_seen
        );
        self.past = BTreeMap::from([(self.revision, self.state.clone())]);
        let before = self.clone();
        let asked = journal.asked();
        for event in changes_from(store, self.revision.next()).await {
            let found = effect(&event);
            match journal.acks.get(&event.revision.0) {
                Some(id) => assert_eq!(found, journal.calls[id], "acknowledged at {}", event.revision),
                None => assert!(asked.contains(&found), "{found:?} was never sent"),
            }
            self.apply(&event);
        }
        let newest_ack = journal.acks.keys().next_back().copied().unwrap_or_default();
        assert!(
            newest_ack <= self.revision.0,
            "revision {newest_ack} was acknowledged"
        );
        assert_eq!(self.state, state_at(store, At::Latest).await);
        if store.floors().listable_from <= before.revision {
            assert_eq!(before.state, state_at(store, At::Exactly(before.revision)).await);
        }
    }
}

/// Opens a store for a check.
pub(crate) fn open(folder: &Path, is_relaxed: bool) -> (RocksStore, Opened) {
    RocksStore::open(crate::plan::options(folder, is_relaxed)).unwrap()
}
