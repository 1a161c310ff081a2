//! Reads from the store, for the time before the cache has been filled.
//!
//! Only what costs the store little: one object, or a page of a list without selectors. Both are as consistent as
//! reads from the cache. Everything else has to wait.

use std::sync::Arc;

use drydock_storage::{At, Damaged, Key, KeyRange, Page as ScanPage, Store, StoreError};

use super::error::ReadError;
use super::object::CachedObject;
use super::parts::CacheParts;
use super::snapshot::{Objects, Page, Query};
use crate::request::freshness::{Freshness, ListState};

/// The most objects of a page. A client that asks for more gets a continue token for the rest.
const MAX_PAGE: usize = 1_000;

/// One object. The store's newest state satisfies any freshness, unless its revision is still too low.
pub(super) async fn get<S: Store>(
    cache: &CacheParts<S>,
    key: &Key,
    freshness: Freshness,
) -> Result<Option<Arc<CachedObject>>, ReadError> {
    let found = cache.source.store.get(key).await?;
    if let Freshness::NotOlderThan(requested) = freshness
        && found.revision < requested
    {
        return Err(ReadError::TooLargeResourceVersion {
            requested,
            current: found.revision,
        });
    }
    let object = |entry| Arc::new(cache.source.object(key.clone(), entry));
    Ok(found.entry.map(object))
}

/// Whether [`list`] serves such a list: it has a limit and no selectors.
pub(super) fn can_list(query: &Query) -> bool {
    query.limit > 0 && !query.selection.has_selectors()
}

/// A page of a list.
///
/// # Errors
/// As from the cache.
pub(super) async fn list<S: Store>(
    cache: &CacheParts<S>,
    query: &Query,
    state: ListState,
) -> Result<Page, ReadError> {
    let (at, at_least) = match state {
        ListState::Newest(Freshness::MostRecent | Freshness::Any) => (At::Latest, None),
        ListState::Newest(Freshness::NotOlderThan(revision)) => (At::Latest, Some(revision)),
        ListState::Exactly(revision) | ListState::Continued(revision) => {
            (At::Exactly(revision), Some(revision))
        }
    };
    let range = KeyRange {
        start: query.first_key().into_owned(),
        end: query.selection.range().end.clone(),
    };
    let page = ScanPage {
        after: String::new(),
        limit: query.limit.min(MAX_PAGE),
        damaged: Damaged::Refuse,
    };
    let scan = cache.source.store.scan(&range, at, page).await;
    let scan = scan.map_err(|error| match error {
        StoreError::Future { requested, current } => {
            ReadError::TooLargeResourceVersion { requested, current }
        }
        StoreError::Compacted { requested, floor } => cache.expired(requested, floor),
        StoreError::Sealed { key, reason } => match Key::parse(&key) {
            Ok(key) => ReadError::Sealed(vec![(key, reason.into())]),
            Err(_) => StoreError::Sealed { key, reason }.into(),
        },
        error => error.into(),
    })?;
    if let Some(requested) = at_least.filter(|revision| scan.revision < *revision) {
        return Err(ReadError::TooLargeResourceVersion {
            requested,
            current: scan.revision,
        });
    }
    let last = scan.entries.last().filter(|_| scan.more);
    let next = last.and_then(|(key, _)| query.start_after(key.as_str()));
    let objects = scan.entries.into_iter();
    let objects = objects.map(|(key, entry)| Arc::new(cache.source.object(key, entry)));
    Ok(Page {
        revision: scan.revision,
        objects: Objects::collected(objects.collect()),
        next,
        // Counting them would take as long as filling the cache.
        remaining: None,
    })
}
