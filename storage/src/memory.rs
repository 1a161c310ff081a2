//! The reference implementation of [`Store`]: every version of every key in a `BTreeMap`, one mutex, no files.
//!
//! Other backends are compared with it, and tests that need no disk run on it. Start at [`MemoryStore::new`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use crate::sync::lock;
use crate::{
    At, Damaged, Entry, Event, EventKind, Events, Floors, Found, Health, Key, KeyRange, Outcome, Page,
    Removable, Revision, Scan, Signal, Store, StoreError, Transaction, Unread, Value,
};

/// A store without persistence. Clones share it.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    model: Mutex<Model>,
    /// Changes whenever a watch may have something to deliver.
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
    /// The event of every kept revision.
    log: BTreeMap<Revision, Event>,
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
    /// Everything up to this revision has been delivered.
    delivered: Revision,
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

    /// Sets whether the store is full: then writes that make it larger fail with [`StoreError::Full`].
    pub fn set_full(&self, is_full: bool) {
        self.shared.lock().is_full = is_full;
    }

    /// Makes the value of `key` unreadable, as if its bytes had failed a checksum.
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
    fn lock(&self) -> MutexGuard<'_, Model> {
        lock(&self.model)
    }

    /// The model, unless the store is closed.
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

    fn transact(&mut self, transaction: Transaction) -> Result<Outcome, StoreError> {
        transaction.check_size()?;
        let Transaction { key, write, .. } = &transaction;
        let current = self.current(key);
        if current.map(|entry| entry.modified) != write.base() {
            self.check_readable(key)?;
            return Ok(Outcome::Conflict {
                revision: self.revision,
                current: current.cloned(),
            });
        }
        let before = current.map(|entry| entry.value.bytes.len());
        if self.is_full && transaction.needs_room(before, true) {
            return Err(StoreError::Full {
                reason: "set to full".to_owned(),
            });
        }
        self.check_readable(key)?;
        let Transaction { key, write, .. } = transaction;
        Ok(self.commit(key, write.into_value()))
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
            return Err(StoreError::NotDamaged);
        }
        Ok(self.commit(key.clone(), None))
    }

    /// Sets or removes a key at the next revision.
    fn commit(&mut self, key: Key, value: Option<Value>) -> Outcome {
        let revision = self.revision.next();
        let old = self.current(&key).cloned();
        let new = value.map(|value| Entry {
            value,
            created: old.as_ref().map_or(revision, |old| old.created),
            modified: revision,
        });
        let kind = match (&old, &new) {
            (_, None) => EventKind::Deleted,
            (None, Some(_)) => EventKind::Created,
            (Some(_), Some(_)) => EventKind::Updated,
        };
        self.keys.entry(key.clone()).or_default().push(Version {
            at: revision,
            entry: new.clone(),
        });
        let event = Event {
            revision,
            key,
            kind,
            new,
            old,
        };
        self.log.insert(revision, event);
        self.revision = revision;
        Outcome::Committed { revision }
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
                    Damaged::SetApart => scan.damaged.push((key.clone(), Unread::Damaged)),
                }
                continue;
            }
            if page.limit != 0 && scan.entries.len() == page.limit {
                scan.more = true;
                // Damaged keys after the last entry belong to the next page.
                if let Some((last, _)) = scan.entries.last() {
                    scan.damaged.retain(|(key, _)| key < last);
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

    async fn remove_damaged(&self, key: &Key, _: Removable) -> Result<Outcome, StoreError> {
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
            delivered: first.previous(),
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

/// The state of a watch.
enum Poll {
    Ready(Signal),
    Pending,
    Closed,
}

impl MemoryEvents {
    fn poll(&mut self) -> Poll {
        let model = self.shared.lock();
        if model.is_closed {
            return Poll::Closed;
        }
        if self.delivered.next() < model.floors.watchable_from {
            self.has_ended = true;
            return Poll::Ready(Signal::Compacted(model.floors.watchable_from));
        }
        let mut following = model.log.range(self.delivered.next()..);
        if let Some((revision, event)) = following.find(|(_, event)| self.range.contains(event.key.as_str()))
        {
            self.delivered = *revision;
            return Poll::Ready(Signal::Change(event.clone()));
        }
        if self.delivered < model.revision || self.seen_requests < model.progress_requests {
            self.delivered = self.delivered.max(model.revision);
            self.seen_requests = model.progress_requests;
            return Poll::Ready(Signal::Progress(self.delivered));
        }
        Poll::Pending
    }
}

impl Events for MemoryEvents {
    async fn next(&mut self) -> Option<Signal> {
        while !self.has_ended {
            self.pulse.borrow_and_update();
            match self.poll() {
                Poll::Ready(signal) => return Some(signal),
                Poll::Closed => break,
                Poll::Pending => {}
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
        for result in refused {
            assert!(matches!(result, Err(StoreError::Corrupt { .. })), "{result:?}");
        }
        let apart = Page {
            damaged: Damaged::SetApart,
            ..Page::default()
        };
        let scan = store.scan(&range, At::Latest, apart).await.unwrap();
        assert_eq!(
            (scan.entries.len(), scan.damaged),
            (1, vec![(key("one"), Unread::Damaged)])
        );

        for other in ["two", "three"] {
            let result = store.remove_damaged(&key(other), Removable::Damaged).await;
            assert!(matches!(result, Err(StoreError::NotDamaged)), "{result:?}");
        }
        store
            .remove_damaged(&key("one"), Removable::Damaged)
            .await
            .unwrap();
        assert_eq!(store.get(&key("one")).await.unwrap().entry, None);
        let mut events = store.watch(&range, Revision(4)).await.unwrap();
        let Some(Signal::Change(event)) = events.next().await else {
            panic!("the removal is delivered");
        };
        assert!(event.old.unwrap().value.is_unreadable());
    }
}
