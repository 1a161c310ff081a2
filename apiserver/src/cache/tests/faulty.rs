//! A store whose watches omit events, end or fail, on request.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_storage::memory::{MemoryEvents, MemoryStore};
use drydock_storage::{
    At, Events, Floors, Found, Health, Key, KeyRange, Outcome, Page, Removable, Revision, Scan, Signal,
    Store, StoreError, Transaction, Unread,
};

/// The faults of a [`FaultyStore`].
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Watches omit the events of this key.
    pub(super) hide: Mutex<Option<Key>>,
    /// The next watch that has a signal ends instead.
    pub(super) break_off: AtomicBool,
    /// Watches cannot be started.
    pub(super) deaf: AtomicBool,
    /// Damaged values show as sealed, and reads of them wait for ever.
    pub(super) locks: AtomicBool,
    pub(super) watches: AtomicUsize,
    pub(super) scans: AtomicUsize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct FaultyStore {
    pub(super) inner: MemoryStore,
    pub(super) faults: Arc<Faults>,
}

pub(super) struct FaultyEvents {
    inner: MemoryEvents,
    faults: Arc<Faults>,
}

impl Events for FaultyEvents {
    async fn next(&mut self) -> Option<Signal> {
        let signal = self.inner.next().await?;
        if self.faults.break_off.swap(false, Ordering::Relaxed) {
            return None;
        }
        let Signal::Change(event) = &signal else {
            return Some(signal);
        };
        let is_hidden = self.faults.hide.lock().unwrap().as_ref() == Some(&event.key);
        Some(if is_hidden {
            Signal::Progress(event.revision)
        } else {
            signal
        })
    }
}

impl Store for FaultyStore {
    type Events = FaultyEvents;

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.inner.transact(transaction).await
    }

    async fn get(&self, key: &Key) -> Result<Found, StoreError> {
        let found = self.inner.get(key).await;
        if found.is_err() && self.faults.locks.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        found
    }

    async fn scan(&self, range: &KeyRange, at: At, page: Page) -> Result<Scan, StoreError> {
        self.faults.scans.fetch_add(1, Ordering::Relaxed);
        let mut scan = self.inner.scan(range, at, page).await?;
        if self.faults.locks.load(Ordering::Relaxed) {
            for (_, unread) in &mut scan.damaged {
                *unread = Unread::Sealed("no key".into());
            }
        }
        Ok(scan)
    }

    async fn remove_damaged(&self, key: &Key, which: Removable) -> Result<Outcome, StoreError> {
        self.inner.remove_damaged(key, which).await
    }

    async fn watch(&self, range: &KeyRange, first: Revision) -> Result<FaultyEvents, StoreError> {
        if self.faults.deaf.load(Ordering::Relaxed) {
            return Err(StoreError::Busy {
                retry_after: Duration::from_millis(1),
            });
        }
        self.faults.watches.fetch_add(1, Ordering::Relaxed);
        Ok(FaultyEvents {
            inner: self.inner.watch(range, first).await?,
            faults: Arc::clone(&self.faults),
        })
    }

    async fn current_revision(&self) -> Result<Revision, StoreError> {
        self.inner.current_revision().await
    }

    fn request_progress(&self) {
        self.inner.request_progress();
    }

    async fn compact(&self, through: Revision) -> Result<(), StoreError> {
        self.inner.compact(through).await
    }

    fn floors(&self) -> Floors {
        self.inner.floors()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self, grace: Duration) -> Result<(), StoreError> {
        self.inner.close(grace).await
    }
}
