//! The resource as the store has it: its objects, read entry by entry.

use std::collections::BTreeMap;
use std::sync::Arc;

use drydock_storage::{
    At, Damaged, Entry, Key, KeyRange, Page as ScanPage, Revision, Scan, Store, StoreError,
};

use super::config::CacheConfig;
use super::object::{CachedObject, Extract};
use super::root::Root;
use super::tree::Builder;

/// How many entries of the newest state are read from the store at a time. Each later page has to undo all that was
/// written since the first one, so pages are large.
pub(super) const SCAN_PAGE: usize = 25_000;

/// One resource of a store.
pub(super) struct Source<S> {
    pub(super) store: S,
    /// The plural name of the resource.
    pub(super) resource: String,
    /// The keys of all its objects.
    pub(super) range: KeyRange,
    /// Reads attributes of a payload.
    pub(super) extract: Arc<Extract>,
}

impl<S: Store> Source<S> {
    pub(super) fn new(store: S, config: &CacheConfig) -> Self {
        Self {
            store,
            range: KeyRange::resource(&config.group, &config.resource),
            resource: config.resource.clone(),
            extract: Arc::clone(&config.extract),
        }
    }

    /// The object of an entry.
    pub(super) fn object(&self, key: Key, entry: Entry) -> CachedObject {
        CachedObject::new(key, entry, &*self.extract)
    }

    /// Reads the state of the resource. `object` makes the objects, in key order; `position` then names the position
    /// of the first event after the revision that was read.
    pub(super) async fn root(
        &self,
        at: At,
        mut object: impl FnMut(Key, Entry) -> CachedObject,
        position: impl FnOnce(Revision) -> u64,
    ) -> Result<Root, StoreError> {
        let mut builder = Builder::default();
        let mut damaged = BTreeMap::new();
        let mut scan = self.store.scan(&self.range, at, page(at, String::new())).await?;
        let revision = scan.revision;
        loop {
            let last = scan.entries.last().map(|(key, _)| key.as_str().to_owned());
            for (key, entry) in scan.entries {
                builder.push(Arc::new(object(key, entry)));
            }
            damaged.extend(scan.damaged);
            let Some(last) = last.filter(|_| scan.more) else {
                break;
            };
            scan = self.next_page(at, revision, page(at, last)).await?;
        }
        let mut root = Root::build(revision, position(revision), builder.finish());
        root.damaged = Arc::new(damaged);
        Ok(root)
    }

    /// A further page of a scan that was begun at `at` and found `revision`.
    async fn next_page(&self, at: At, revision: Revision, page: ScanPage) -> Result<Scan, StoreError> {
        let exactly = At::Exactly(revision);
        match self.store.scan(&self.range, exactly, page.clone()).await {
            // The store may keep only its newest state, which is the one wanted if nothing was written since.
            Err(StoreError::Compacted { requested, floor }) if at == At::Latest => {
                let scan = self.store.scan(&self.range, At::Latest, page).await?;
                if scan.revision == revision {
                    Ok(scan)
                } else {
                    Err(StoreError::Compacted { requested, floor })
                }
            }
            scan => scan,
        }
    }
}

/// The newest state is read in pages, a past one at once.
fn page(at: At, after: String) -> ScanPage {
    ScanPage {
        after,
        limit: match at {
            At::Latest => SCAN_PAGE,
            At::Exactly(_) => 0,
        },
        damaged: Damaged::SetApart,
    }
}
