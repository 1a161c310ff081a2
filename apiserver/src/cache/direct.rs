//! What can be read while the cache has not been filled?
//!
//! What costs the store little: one object, and a page of a list that selects nothing. Both are as consistent as
//! from the cache. Everything else has to wait for it.

use std::sync::Arc;

use drydock_storage::{At, Damaged, Key, KeyRange, Page as ScanPage, Store, StoreError};

use super::error::ReadError;
use super::freshness::{Freshness, ListState};
use super::object::CachedObject;
use super::snapshot::{Objects, Page, Query};
use super::watch_cache::Shared;

/// The most objects of a page; a client that wants more is given a token for the rest.
const MOST: usize = 1_000;

impl<S: Store> Shared<S> {
    /// One object from the store, whatever moment is asked for: its newest state is as new as any.
    pub(super) async fn get_directly(
        &self,
        key: &Key,
        freshness: Freshness,
    ) -> Result<Option<Arc<CachedObject>>, ReadError> {
        let found = self.store.get(key).await?;
        if let Freshness::NotOlderThan(requested) = freshness
            && found.revision < requested
        {
            return Err(ReadError::TooLargeResourceVersion {
                requested,
                current: found.revision,
            });
        }
        let read = |entry| Arc::new(CachedObject::new(key.clone(), entry, &*self.config.extract));
        Ok(found.entry.map(read))
    }

    /// A page of a list from the store.
    ///
    /// # Errors
    /// [`ReadError::NotReady`] for a list without a limit or with selectors, else as from the cache.
    pub(super) async fn list_directly(&self, query: &Query, state: ListState) -> Result<Page, ReadError> {
        let selection = &query.selection;
        if query.limit == 0 || selection.has_selectors() {
            return Err(self.not_ready());
        }
        let (at, at_least) = match state {
            ListState::Newest(Freshness::MostRecent | Freshness::Any) => (At::Latest, None),
            ListState::Newest(Freshness::NotOlderThan(revision)) => (At::Latest, Some(revision)),
            ListState::Exactly(revision) | ListState::Continued(revision) => {
                (At::Exactly(revision), Some(revision))
            }
        };
        let range = selection.range();
        let start = query.start.as_ref();
        let start = start.map(|start| format!("{}{start}", selection.prefix()));
        let start = start.filter(|start| *start > range.start);
        let range = KeyRange {
            start: start.unwrap_or_else(|| range.start.clone()),
            end: range.end.clone(),
        };
        let page = ScanPage {
            after: String::new(),
            limit: query.limit.min(MOST),
            damaged: Damaged::Refuse,
        };
        let scan = self
            .store
            .scan(&range, at, page)
            .await
            .map_err(|error| match error {
                StoreError::Future { requested, current } => {
                    ReadError::TooLargeResourceVersion { requested, current }
                }
                StoreError::Compacted { requested, floor } => self.expired(requested, floor),
                error => error.into(),
            })?;
        if let Some(requested) = at_least.filter(|revision| scan.revision < *revision) {
            return Err(ReadError::TooLargeResourceVersion {
                requested,
                current: scan.revision,
            });
        }
        let extract = &*self.config.extract;
        let last = scan.entries.last().map(|(key, _)| key.as_str());
        let last = last.filter(|_| scan.more);
        let next = last.and_then(|last| last.strip_prefix(selection.prefix()));
        let next = next.map(|relative| format!("{relative}\0"));
        let objects = scan.entries.into_iter();
        let objects = objects.map(|(key, entry)| Arc::new(CachedObject::new(key, entry, extract)));
        Ok(Page {
            revision: scan.revision,
            objects: Objects::collected(objects.collect()),
            next,
            // Counting them would take as long as filling the cache.
            remaining: None,
        })
    }
}
