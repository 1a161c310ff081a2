//! The states that readers see: the newest root, its revision, and roots of the past.
//!
//! The feeder is the only writer. Readers take a root with one atomic load and then hold no lock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use drydock_storage::Revision;
use tokio::sync::watch;
use tokio::time::Instant;

use super::lock::lock;
use super::past::Past;
use super::root::Root;
use super::snapshot::Snapshot;

/// The published states of a cache. See the module.
#[derive(Debug)]
pub(super) struct Published {
    /// None until the first load.
    newest: ArcSwapOption<Root>,
    /// The revision of `newest`, for those who wait for one. Set after it.
    applied: watch::Sender<Revision>,
    past: Arc<Mutex<Past>>,
}

impl Published {
    /// Nothing yet; past roots are kept for `window`.
    pub(super) fn new(window: Duration) -> Self {
        Self {
            newest: ArcSwapOption::empty(),
            applied: watch::Sender::new(Revision(0)),
            past: Arc::new(Mutex::new(Past::new(window))),
        }
    }

    /// Makes a root the newest one. All its events must be in the logs.
    pub(super) fn publish(&self, root: &Root) {
        let root = Arc::new(root.clone());
        lock(&self.past).retain(&root, Instant::now());
        let revision = root.revision;
        self.newest.store(Some(root));
        self.applied.send_replace(revision);
    }

    pub(super) fn newest(&self) -> Option<Arc<Root>> {
        self.newest.load_full()
    }

    /// The newest root's revision, and the position of the first event after it.
    pub(super) fn head(&self) -> Option<(Revision, u64)> {
        let newest = self.newest.load();
        newest.as_ref().map(|root| (root.revision, root.position))
    }

    /// The newest revision announced to waiting readers; 0 before the first load.
    pub(super) fn applied(&self) -> Revision {
        *self.applied.borrow()
    }

    /// Follows [`Published::applied`].
    pub(super) fn subscribe(&self) -> watch::Receiver<Revision> {
        self.applied.subscribe()
    }

    /// The state of a root.
    pub(super) fn snapshot(&self, root: Arc<Root>) -> Snapshot {
        Snapshot::new(root, Arc::clone(&self.past))
    }

    /// The state at this revision, if it was kept for the next pages of a list.
    pub(super) fn pinned(&self, revision: Revision) -> Option<Snapshot> {
        let root = lock(&self.past).pinned(revision)?;
        Some(self.snapshot(root))
    }

    /// Keeps a state that was read from the store.
    pub(super) fn keep_loaded(&self, root: Root) -> Snapshot {
        let root = Arc::new(root);
        lock(&self.past).keep_loaded(&root);
        self.snapshot(root)
    }

    /// The newest kept root at or before `revision`, and the oldest one after it.
    pub(super) fn around(&self, revision: Revision) -> (Option<Arc<Root>>, Option<Arc<Root>>) {
        let (before, after) = lock(&self.past).around(revision);
        // Read after the past: the newest root may not be kept there.
        (before, after.or_else(|| self.newest()))
    }

    /// Drops past roots that are too close together, too old, or older than the event history. Returns how many are
    /// left.
    pub(super) fn thin(&self, now: Instant, history_floor: Revision) -> usize {
        let mut past = lock(&self.past);
        past.thin(now, history_floor);
        past.count()
    }

    /// Drops all past roots: they lie before a gap, or may be wrong.
    pub(super) fn clear_past(&self) {
        lock(&self.past).clear();
    }
}
