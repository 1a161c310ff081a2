//! [`Store`] for the embedded engine.

use std::sync::Arc;
use std::time::Duration;

use super::handle::RocksStore;
use super::index::Slot;
use super::lifecycle::closed;
use super::queue::BATCH;
use super::queue::{Refused, Weight};
use super::read;
use super::submit::{unknown, weight};
use super::watch::RocksEvents;
use crate::{
    At, Floors, Found, Health, Key, KeyRange, Outcome, Page, Removable, Revision, Scan, Store, StoreError,
    Transaction,
};

impl Store for RocksStore {
    type Events = RocksEvents;

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        if let Some(conflict) = self.parts.published_conflict(&transaction)? {
            return Ok(conflict);
        }
        let mut results = self.parts.submit(vec![transaction]).await;
        results.pop().unwrap_or_else(|| Err(unknown()))
    }

    async fn transact_many(&self, transactions: Vec<Transaction>) -> Vec<Result<Outcome, StoreError>> {
        let mut results = Vec::with_capacity(transactions.len());
        let mut remaining = transactions.into_iter().peekable();
        while remaining.peek().is_some() {
            let mut part = Vec::new();
            let mut size = Weight::default();
            while let Some(next) = remaining.next_if(|next| {
                size = size.plus(weight(std::slice::from_ref(next)));
                part.is_empty() || size.fits(BATCH)
            }) {
                part.push(next);
            }
            results.extend(self.parts.submit(part).await);
        }
        results
    }

    async fn get(&self, key: &Key) -> Result<Found, StoreError> {
        self.parts.lifecycle.check_readable()?;
        let index = self.parts.published.index();
        Ok(Found {
            revision: index.revision(),
            entry: index.entry(key)?.cloned(),
        })
    }

    async fn scan(&self, range: &KeyRange, at: At, page: Page) -> Result<Scan, StoreError> {
        self.parts.lifecycle.check_readable()?;
        let permit = match at {
            At::Exactly(revision) if revision < self.parts.published.current() => {
                Some(self.parts.past_reads.permit().await?)
            }
            // Little or nothing has to be undone.
            At::Exactly(_) | At::Latest => None,
        };
        let engine = self.parts.lifecycle.engine()?;
        let parts = Arc::clone(&self.parts);
        let range = range.clone();
        let read = tokio::task::spawn_blocking(move || {
            // Held until the read ends, also if its caller is gone.
            let _permit = permit;
            read::scan(&parts, &engine, &range, at, &page)
        });
        read.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn remove_damaged(&self, key: &Key, which: Removable) -> Result<Outcome, StoreError> {
        self.parts.lifecycle.check_writable()?;
        let place = match self.parts.published.index().slot(key) {
            Some(sealed @ Slot::Sealed(..)) if which == Removable::Damaged => return Err(sealed.unread(key)),
            Some(Slot::Damaged(place) | Slot::Sealed(place, _)) => *place,
            _ => return Err(StoreError::NotDamaged),
        };
        let mut prepared = self
            .parts
            .prepare(Transaction::delete(key.clone(), place.modified))?;
        prepared.may_remove_damaged = true;
        let mut results = self.parts.commit(vec![prepared]).await;
        results.pop().unwrap_or_else(|| Err(unknown()))
    }

    async fn watch(&self, range: &KeyRange, first: Revision) -> Result<RocksEvents, StoreError> {
        self.parts.lifecycle.check_readable()?;
        let events = RocksEvents::new(Arc::clone(&self.parts), range.clone(), first);
        self.parts
            .retention
            .floors()
            .check_watchable(first, self.parts.published.current())?;
        Ok(events)
    }

    async fn is_stale(&self, key: &Key, at: Revision) -> Result<bool, StoreError> {
        if !self.parts.records.seal().has_stale() {
            return Ok(false);
        }
        let engine = self.parts.lifecycle.engine()?;
        let (parts, key) = (Arc::clone(&self.parts), key.clone());
        let read = tokio::task::spawn_blocking(move || read::is_stale(&parts, &engine, &key, at));
        read.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn current_revision(&self) -> Result<Revision, StoreError> {
        self.parts.lifecycle.check_readable()?;
        Ok(self.parts.published.current())
    }

    fn request_progress(&self) {
        self.parts.published.request_progress();
    }

    async fn compact(&self, through: Revision) -> Result<(), StoreError> {
        self.parts.lifecycle.check_writable()?;
        let wanted = Floors {
            listable_from: through.next(),
            watchable_from: through.next(),
        };
        match self.parts.queue_compaction(wanted, false) {
            Ok(result) => result.await.unwrap_or_else(|_| Err(unknown())),
            Err(Refused::Full { retry_after }) => Err(StoreError::Busy { retry_after }),
            Err(Refused::Closed) => Err(closed()),
        }
    }

    fn floors(&self) -> Floors {
        self.parts.retention.floors()
    }

    fn health(&self) -> Health {
        self.parts.lifecycle.health()
    }

    async fn close(&self, grace: Duration) -> Result<(), StoreError> {
        let late = || StoreError::Closed {
            reason: "it did not close in time".to_owned(),
        };
        let closing = async {
            let threads = Arc::clone(&self.threads);
            let closed = tokio::task::spawn_blocking(move || threads.close()).await;
            self.threads.engine_closed().await;
            closed.unwrap_or_else(|_| Err(late()))
        };
        tokio::time::timeout(grace, closing).await.unwrap_or_else(|_| {
            self.parts.lifecycle.give_up_on_stalls();
            Err(late())
        })
    }
}
