//! What does a store owe its users, in the fewest lines that can be believed?
//!
//! The model: every version of every key in a `BTreeMap`, one mutex, no files. It is the oracle the other
//! backends are compared with, and the store of tests that need no disk. Start at [`MemoryStore::new`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::{
    At, Condition, Damaged, Entry, Event, EventKind, Events, Expect, Floors, Found, Health, Key, KeyRange,
    Outcome, Page, Revision, Scan, Signal, Store, StoreError, Transaction, Value, Write,
};

/// A store that lives and dies with its process. Clones share it.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    model: Mutex<Model>,
    /// Ticks whenever a watch may have something to say.
    pulse: watch::Sender<u64>,
}

/// What a key held from one revision until the next version.
#[derive(Debug)]
struct Version {
    at: Revision,
    entry: Option<Entry>,
}

#[derive(Debug)]
struct Model {
    /// Every kept version of every key, oldest first.
    keys: BTreeMap<Key, Vec<Version>>,
    /// Every kept revision's events.
    log: BTreeMap<Revision, Vec<Event>>,
    revision: Revision,
    floors: Floors,
    progress_requests: u64,
    is_closed: bool,
    is_full: bool,
}

/// The watch of a [`MemoryStore`].
#[derive(Debug)]
pub struct MemoryEvents {
    shared: Arc<Shared>,
    pulse: watch::Receiver<u64>,
    range: KeyRange,
    /// Everything up to this revision has been told.
    told: Revision,
    seen_requests: u64,
    has_ended: bool,
}

impl MemoryStore {
    /// An empty store at [`Revision::INITIAL`].
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(Revision::INITIAL)
    }

    /// An empty store whose first transaction takes the revision after `revision`, as after a restore.
    #[must_use]
    pub fn starting_at(revision: Revision) -> Self {
        let model = Model {
            keys: BTreeMap::new(),
            log: BTreeMap::new(),
            revision,
            floors: Floors {
                listable_from: revision,
                watchable_from: revision,
            },
            progress_requests: 0,
            is_closed: false,
            is_full: false,
        };
        let shared = Shared {
            model: Mutex::new(model),
            pulse: watch::Sender::new(0),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Says whether there is room; without, what makes the store larger is [`StoreError::Full`].
    pub fn set_full(&self, is_full: bool) {
        self.shared.lock().is_full = is_full;
    }

    /// From now on the value of `key` cannot be read, as if its bytes had failed a checksum.
    pub fn damage(&self, key: &Key) {
        let mut model = self.shared.lock();
        let newest = model.keys.get_mut(key).and_then(|versions| versions.last_mut());
        if let Some(entry) = newest.and_then(|version| version.entry.as_mut()) {
            entry.value = Value::unreadable();
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Shared {
    /// The model. A panic while it was held left it as it was before the transaction or after it.
    fn lock(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, Model>, StoreError> {
        let model = self.lock();
        if model.is_closed {
            return Err(StoreError::Closed {
                reason: "closed by its owner".to_owned(),
            });
        }
        Ok(model)
    }

    fn tick(&self) {
        self.pulse.send_modify(|tick| *tick = tick.wrapping_add(1));
    }
}

fn damaged(key: &Key) -> StoreError {
    StoreError::Corrupt {
        key: key.to_string(),
        reason: "its value was damaged".to_owned(),
    }
}

impl Model {
    fn current(&self, key: &Key) -> Option<&Entry> {
        self.keys.get(key)?.last()?.entry.as_ref()
    }

    fn holds(&self, condition: &Condition) -> bool {
        let found = self.current(&condition.key).map(|entry| entry.modified);
        match condition.expect {
            Expect::Absent => found.is_none(),
            Expect::Revision(revision) => found == Some(revision),
        }
    }

    fn transact(&mut self, transaction: Transaction) -> Result<Outcome, StoreError> {
        transaction.check_form()?;
        if !transaction
            .conditions
            .iter()
            .all(|condition| self.holds(condition))
        {
            for condition in &transaction.conditions {
                self.check_readable(&condition.key)?;
            }
            let current = transaction.conditions.iter();
            return Ok(Outcome::Conflict {
                revision: self.revision,
                current: current
                    .map(|condition| self.current(&condition.key).cloned())
                    .collect(),
            });
        }
        if transaction.writes.is_empty() {
            return Ok(Outcome::Committed {
                revision: self.revision,
            });
        }
        let before = |write: &Write| self.current(write.key()).map(|entry| entry.value.bytes.len());
        if self.is_full && transaction.needs_room(transaction.writes.iter().map(before)) {
            return Err(StoreError::Full {
                reason: "it was said to be".to_owned(),
            });
        }
        for write in &transaction.writes {
            self.check_readable(write.key())?;
        }
        self.commit(transaction.writes)
    }

    fn is_damaged(&self, key: &Key) -> bool {
        self.current(key).is_some_and(|entry| entry.value.is_unreadable())
    }

    fn check_readable(&self, key: &Key) -> Result<(), StoreError> {
        if self.is_damaged(key) {
            return Err(damaged(key));
        }
        Ok(())
    }

    fn remove_damaged(&mut self, key: &Key) -> Result<Outcome, StoreError> {
        if !self.is_damaged(key) {
            return Err(StoreError::Malformed {
                reason: "the value of the key is not damaged",
            });
        }
        self.commit(vec![Write::Delete(key.clone())])
    }

    fn commit(&mut self, writes: Vec<Write>) -> Result<Outcome, StoreError> {
        let revision = self.revision.next();
        let mut events = Vec::with_capacity(writes.len());
        for write in writes {
            events.push(self.event(write, revision)?);
        }
        for event in &events {
            self.keys.entry(event.key.clone()).or_default().push(Version {
                at: revision,
                entry: event.new.clone(),
            });
        }
        self.log.insert(revision, events);
        self.revision = revision;
        Ok(Outcome::Committed { revision })
    }

    fn event(&self, write: Write, revision: Revision) -> Result<Event, StoreError> {
        let old = self.current(write.key()).cloned();
        let (key, kind, new) = match (write, &old) {
            (Write::Put(key, value), old) => {
                let kind = if old.is_some() {
                    EventKind::Updated
                } else {
                    EventKind::Created
                };
                let entry = Entry {
                    value,
                    created: old.as_ref().map_or(revision, |old| old.created),
                    modified: revision,
                };
                (key, kind, Some(entry))
            }
            (Write::Delete(key), Some(_)) => (key, EventKind::Deleted, None),
            (Write::Delete(_), None) => {
                return Err(StoreError::Malformed {
                    reason: "it removes a key that is absent",
                });
            }
        };
        Ok(Event { key, kind, new, old })
    }

    fn scan(&self, range: &KeyRange, at: At, page: &Page) -> Result<Scan, StoreError> {
        let revision = match at {
            At::Latest => self.revision,
            At::Exactly(revision) => self.floors.check_listable(revision, self.revision)?,
        };
        let mut scan = Scan {
            revision,
            entries: Vec::new(),
            damaged: Vec::new(),
            more: false,
        };
        let Some(bounds) = range.bounds_after(&page.after) else {
            return Ok(scan);
        };
        for (key, versions) in self.keys.range::<str, _>(bounds) {
            let version = versions.iter().rev().find(|version| version.at <= revision);
            let Some(entry) = version.and_then(|version| version.entry.as_ref()) else {
                continue;
            };
            if entry.value.is_unreadable() {
                match page.damaged {
                    Damaged::Refuse => return Err(damaged(key)),
                    Damaged::SetApart => scan.damaged.push(key.clone()),
                }
                continue;
            }
            if page.limit != 0 && scan.entries.len() == page.limit {
                scan.more = true;
                // What is damaged behind the last entry belongs to the next page.
                if let Some((last, _)) = scan.entries.last() {
                    scan.damaged.retain(|key| key < last);
                }
                break;
            }
            scan.entries.push((key.clone(), entry.clone()));
        }
        Ok(scan)
    }

    fn compact(&mut self, through: Revision) -> Result<(), StoreError> {
        if through > self.revision {
            return Err(StoreError::Future {
                requested: through,
                current: self.revision,
            });
        }
        let floor = through.next();
        self.floors.listable_from = self.floors.listable_from.max(floor);
        self.floors.watchable_from = self.floors.watchable_from.max(floor);
        self.log = self.log.split_off(&self.floors.watchable_from);
        let listable_from = self.floors.listable_from;
        self.keys.retain(|_, versions| {
            let kept_from = versions.iter().rposition(|version| version.at <= listable_from);
            versions.drain(..kept_from.unwrap_or(0));
            !matches!(versions.as_slice(), [Version { entry: None, at }] if *at <= listable_from)
        });
        Ok(())
    }
}

impl Store for MemoryStore {
    type Events = MemoryEvents;

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let outcome = self.shared.open()?.transact(transaction);
        self.shared.tick();
        outcome
    }

    async fn get(&self, key: &Key) -> Result<Found, StoreError> {
        let model = self.shared.open()?;
        model.check_readable(key)?;
        Ok(Found {
            revision: model.revision,
            entry: model.current(key).cloned(),
        })
    }

    async fn scan(&self, range: &KeyRange, at: At, page: Page) -> Result<Scan, StoreError> {
        self.shared.open()?.scan(range, at, &page)
    }

    async fn remove_damaged(&self, key: &Key) -> Result<Outcome, StoreError> {
        let outcome = self.shared.open()?.remove_damaged(key);
        self.shared.tick();
        outcome
    }

    async fn watch(&self, range: &KeyRange, first: Revision) -> Result<MemoryEvents, StoreError> {
        let pulse = self.shared.pulse.subscribe();
        let model = self.shared.open()?;
        model.floors.check_watchable(first, model.revision)?;
        Ok(MemoryEvents {
            shared: Arc::clone(&self.shared),
            pulse,
            range: range.clone(),
            told: first.previous(),
            seen_requests: model.progress_requests,
            has_ended: false,
        })
    }

    async fn current_revision(&self) -> Result<Revision, StoreError> {
        Ok(self.shared.open()?.revision)
    }

    fn request_progress(&self) {
        self.shared.lock().progress_requests += 1;
        self.shared.tick();
    }

    async fn compact(&self, through: Revision) -> Result<(), StoreError> {
        self.shared.open()?.compact(through)?;
        self.shared.tick();
        Ok(())
    }

    fn floors(&self) -> Floors {
        self.shared.lock().floors
    }

    fn health(&self) -> Health {
        if self.shared.lock().is_closed {
            Health::Failed("closed by its owner".to_owned())
        } else {
            Health::Ready
        }
    }

    async fn close(&self, _grace: Duration) -> Result<(), StoreError> {
        self.shared.lock().is_closed = true;
        self.shared.tick();
        Ok(())
    }
}

/// What a watch finds when it looks.
enum Look {
    Found(Signal),
    Nothing,
    Closed,
}

impl MemoryEvents {
    fn look(&mut self) -> Look {
        let model = self.shared.lock();
        if model.is_closed {
            return Look::Closed;
        }
        if self.told.next() < model.floors.watchable_from {
            self.has_ended = true;
            return Look::Found(Signal::Compacted(model.floors.watchable_from));
        }
        for (revision, events) in model.log.range(self.told.next()..) {
            let events = events
                .iter()
                .filter(|event| self.range.contains(event.key.as_str()));
            let events: Vec<Event> = events.cloned().collect();
            if !events.is_empty() {
                self.told = *revision;
                return Look::Found(Signal::Changes {
                    revision: *revision,
                    events,
                });
            }
        }
        if self.told < model.revision || self.seen_requests < model.progress_requests {
            self.told = self.told.max(model.revision);
            self.seen_requests = model.progress_requests;
            return Look::Found(Signal::Progress(self.told));
        }
        Look::Nothing
    }
}

impl Events for MemoryEvents {
    async fn next(&mut self) -> Option<Signal> {
        while !self.has_ended {
            self.pulse.borrow_and_update();
            match self.look() {
                Look::Found(signal) => return Some(signal),
                Look::Closed => break,
                Look::Nothing => {}
            }
            if self.pulse.changed().await.is_err() {
                break;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn a_damaged_value_is_refused_set_apart_and_removed() {
        let store = MemoryStore::new();
        let key = |name: &str| Key::new("g", "things", "n", name).unwrap();
        let value = |text: &'static str| Value {
            bytes: Bytes::from_static(text.as_bytes()),
            form: "v1".into(),
            splice_offset: 0,
        };
        for name in ["one", "two"] {
            let create = Transaction::create(key(name), value("x"));
            store.transact(create).await.unwrap();
        }
        store.damage(&key("one"));
        let range = KeyRange::resource("g", "things");
        let refused = [
            store.get(&key("one")).await.map(drop),
            store.scan(&range, At::Latest, Page::default()).await.map(drop),
            store
                .transact(Transaction::create(key("one"), value("y")))
                .await
                .map(drop),
            store
                .transact(Transaction::update(key("one"), Revision(2), value("y")))
                .await
                .map(drop),
            store
                .transact(Transaction::delete(key("one"), Revision(2)))
                .await
                .map(drop),
        ];
        for answer in refused {
            assert!(matches!(answer, Err(StoreError::Corrupt { .. })), "{answer:?}");
        }
        let apart = Page {
            damaged: Damaged::SetApart,
            ..Page::default()
        };
        let scan = store.scan(&range, At::Latest, apart).await.unwrap();
        assert_eq!((scan.entries.len(), scan.damaged), (1, vec![key("one")]));

        for other in ["two", "three"] {
            let answer = store.remove_damaged(&key(other)).await;
            assert!(matches!(answer, Err(StoreError::Malformed { .. })), "{answer:?}");
        }
        store.remove_damaged(&key("one")).await.unwrap();
        assert_eq!(store.get(&key("one")).await.unwrap().entry, None);
        let mut events = store.watch(&range, Revision(4)).await.unwrap();
        let Some(Signal::Changes { events, .. }) = events.next().await else {
            panic!("the removal is told");
        };
        assert!(events[0].old.as_ref().unwrap().value.is_unreadable());
    }
}
