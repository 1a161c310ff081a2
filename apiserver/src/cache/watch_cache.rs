//! The cache of one resource: gets, lists and watches from memory, without asking the store each time.
//!
//! ```text
//! store.scan, store.watch ──► Feeder ──► trees ──► root ──► gets, lists (Snapshot)
//!                               │                    └────► initial events ─┐
//!                               ├──► event history ───────► replays ────────┤
//!                               └──► class logs ──────────► cursors ────────┴──► Watcher
//! ```
//!
//! The [`Feeder`] is the only writer. Readers see what it has published. Start at [`WatchCache::new`].

use std::sync::Arc;
use std::time::Duration;

use drydock_storage::{Key, Store};

use super::config::CacheConfig;
use super::direct;
use super::error::ReadError;
use super::feed::Feeder;
use super::object::CachedObject;
use super::parts::CacheParts;
use super::reads::Reads;
use super::snapshot::{Page, Query};
use super::watcher::{WatchRequest, Watcher};
use crate::request::freshness::{Freshness, ListState};

/// The cache of one resource. Clones share it.
pub struct WatchCache<S: Store> {
    pub(super) reads: Arc<Reads<S>>,
}

impl<S: Store> Clone for WatchCache<S> {
    fn clone(&self) -> Self {
        Self {
            reads: Arc::clone(&self.reads),
        }
    }
}

impl<S: Store> WatchCache<S> {
    /// A cache over `store`, empty until its feeder runs.
    #[must_use]
    pub fn new(store: S, config: CacheConfig) -> (Self, Feeder<S>) {
        let mut random = fastrand::Rng::with_seed(config.seed);
        let parts = Arc::new(CacheParts::new(store, config, random.fork()));
        let reads = Arc::new(Reads::new(Arc::clone(&parts)));
        (Self { reads }, Feeder::new(parts, random))
    }

    pub(super) fn parts(&self) -> &CacheParts<S> {
        self.reads.parts()
    }

    /// Whether the cache has been filled.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.parts().published.head().is_some()
    }

    /// Waits until the cache has been filled.
    pub async fn ready(&self) {
        let mut applied = self.parts().published.subscribe();
        // The sender lives as long as the cache.
        let _closed = applied.wait_for(|revision| revision.0 > 0).await.is_err();
    }

    /// The object under `key`; read from the store while the cache has not been filled.
    ///
    /// # Errors
    /// [`ReadError::Store`] with [`drydock_storage::StoreError::Corrupt`] when the value is damaged, else as
    /// [`WatchCache::list`].
    pub async fn get(&self, key: &Key, freshness: Freshness) -> Result<Option<Arc<CachedObject>>, ReadError> {
        if self.is_ready() {
            Ok(self.reads.current(freshness).await?.get(key)?)
        } else {
            direct::get(self.parts(), key, freshness).await
        }
    }

    /// A page of a list; all of it for [`Freshness::Any`], as with kube-apiserver's cache. When another page follows,
    /// the state is kept for a while, so that the next page has the same revision. While the cache has not been
    /// filled, limited lists without selectors are read from the store.
    ///
    /// # Errors
    /// - [`ReadError::Store`] with [`drydock_storage::StoreError::Corrupt`] when the value of a key that may match is
    ///   damaged;
    /// - [`ReadError::NotReady`] for other lists while the cache has not been filled;
    /// - [`ReadError::TooLargeResourceVersion`] when the revision is not reached in time;
    /// - [`ReadError::Expired`] when the state is not kept any more;
    /// - [`ReadError::Busy`] when the cache does not catch up, or too many past states are being read.
    pub async fn list(&self, query: &Query, state: ListState) -> Result<Page, ReadError> {
        if !self.is_ready() {
            return if direct::can_list(query) {
                direct::list(self.parts(), query, state).await
            } else {
                Err(self.reads.not_ready())
            };
        }
        let snapshot = match state {
            ListState::Newest(freshness) => self.reads.current(freshness).await?,
            ListState::Exactly(revision) => self.reads.exactly(revision).await?,
            ListState::Continued(revision) => self.reads.continued(revision).await?,
        };
        snapshot.check_readable(&query.selection)?;
        let is_any = state == ListState::Newest(Freshness::Any);
        Ok(snapshot.select(&Query {
            limit: if is_any { 0 } else { query.limit },
            ..query.clone()
        }))
    }

    /// Begins a watch.
    ///
    /// # Errors
    /// Only errors that replace the stream: [`ReadError::NotReady`], [`ReadError::Busy`] and the store's errors.
    /// Errors that belong into the stream are returned by the watcher.
    pub async fn subscribe(&self, request: WatchRequest) -> Result<Watcher<S>, ReadError> {
        Watcher::begin(&self.reads, request).await
    }

    /// Ends all watches, spread over `window`, each with a last bookmark. Watches that begin later end too.
    pub fn end_watches(&self, window: Duration) {
        self.parts().end_watches(window);
    }

    /// Reports that the store could not read the value of this key. The feeder checks it and marks it as damaged.
    pub fn suspect(&self, key: &str) {
        if let Ok(key) = Key::parse(key)
            && self.parts().source.range.contains(key.as_str())
        {
            self.parts().repairs.suspect([key]);
        }
    }
}
