//! Which state a read gets: the newest one, one that is recent enough, or one of the past.
//!
//! A past state is rebuilt from the nearest kept root and the events between, or else read from the store.

use std::sync::Arc;
use std::time::Duration;

use drydock_storage::{At, Revision, Store, StoreError};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::error::ReadError;
use super::parts::CacheParts;
use super::root::Root;
use super::snapshot::Snapshot;
use crate::request::freshness::Freshness;

/// How often the store is asked for its progress while a read waits for a revision.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// When to retry a read that found the cache busy.
const BUSY_RETRY: Duration = Duration::from_secs(1);

/// The reads of one cache. See the module.
pub(super) struct Reads<S: Store> {
    parts: Arc<CacheParts<S>>,
    /// One permit for each past state that is being read from the store.
    loads: Semaphore,
    started: Instant,
}

impl<S: Store> Reads<S> {
    pub(super) fn new(parts: Arc<CacheParts<S>>) -> Self {
        Self {
            loads: Semaphore::new(parts.limits.past_reads),
            started: Instant::now(),
            parts,
        }
    }

    pub(super) fn parts(&self) -> &Arc<CacheParts<S>> {
        &self.parts
    }

    /// The error before the first load. The time to wait grows from 1 to 30 s with the time that has passed.
    pub(super) fn not_ready(&self) -> ReadError {
        let waited = self.started.elapsed().as_secs();
        ReadError::NotReady {
            retry_after: Duration::from_secs(waited.clamp(1, 30)),
        }
    }

    /// The newest state, once it is as recent as required.
    ///
    /// # Errors
    /// [`ReadError::NotReady`]; those of [`Reads::fresh`] and [`Reads::not_older_than`].
    pub(super) async fn current(&self, freshness: Freshness) -> Result<Snapshot, ReadError> {
        match freshness {
            Freshness::MostRecent => self.fresh().await,
            Freshness::Any => self.newest(),
            Freshness::NotOlderThan(revision) => self.not_older_than(revision).await,
        }
    }

    /// The newest state.
    ///
    /// # Errors
    /// [`ReadError::NotReady`].
    pub(super) fn newest(&self) -> Result<Snapshot, ReadError> {
        match self.parts.published.newest() {
            Some(root) => Ok(self.parts.published.snapshot(root)),
            None => Err(self.not_ready()),
        }
    }

    /// A state that contains every write acknowledged before this call.
    ///
    /// # Errors
    /// [`ReadError::NotReady`]; [`ReadError::Busy`] when the cache does not catch up in time; the store's errors.
    pub(super) async fn fresh(&self) -> Result<Snapshot, ReadError> {
        self.newest()?;
        let current = self.parts.source.store.current_revision().await?;
        if self.reach(current).await {
            self.newest()
        } else {
            Err(ReadError::Busy {
                retry_after: BUSY_RETRY,
            })
        }
    }

    /// A state of `revision` or later.
    ///
    /// # Errors
    /// [`ReadError::NotReady`]; [`ReadError::TooLargeResourceVersion`] when the revision is not reached in time.
    pub(super) async fn not_older_than(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        self.newest()?;
        if self.reach(revision).await {
            return self.newest();
        }
        Err(ReadError::TooLargeResourceVersion {
            requested: revision,
            current: self.newest()?.revision(),
        })
    }

    /// Waits until `revision` can be read; returns whether it can.
    async fn reach(&self, revision: Revision) -> bool {
        let parts = &self.parts;
        if parts.published.applied() >= revision {
            return true;
        }
        let since = Instant::now();
        let mut applied = parts.published.subscribe();
        let reached = tokio::time::timeout(parts.limits.read_wait, async {
            loop {
                tokio::select! {
                    _ = applied.wait_for(|applied| *applied >= revision) => break,
                    () = tokio::time::sleep(PROGRESS_PERIOD) => parts.source.store.request_progress(),
                }
            }
        });
        let reached = reached.await.is_ok();
        let waited = since.elapsed().as_secs_f64();
        parts.metrics.read_wait_seconds.observe(waited);
        reached
    }

    /// The state right after `revision`.
    ///
    /// # Errors
    /// As [`Reads::not_older_than`]; [`ReadError::Expired`] when the state is not kept any more;
    /// [`ReadError::Busy`] when too many past states are being read from the store.
    pub(super) async fn exactly(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        let newest = self.not_older_than(revision).await?;
        let oldest = self.parts.source.store.floors().listable_from;
        if revision < oldest {
            return Err(self.parts.expired(revision, oldest));
        }
        if newest.revision() == revision {
            return Ok(newest);
        }
        match self.rebuild(revision) {
            Some(root) => Ok(self.parts.published.snapshot(Arc::new(root))),
            None => self.load(revision).await,
        }
    }

    /// The state at `revision` that the first page of a list was read from. It may be kept a little longer than
    /// [`Reads::exactly`] allows.
    ///
    /// # Errors
    /// As [`Reads::exactly`].
    pub(super) async fn continued(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        match self.parts.published.pinned(revision) {
            Some(snapshot) => Ok(snapshot),
            None => self.exactly(revision).await,
        }
    }

    /// The state at `revision`, from the nearest kept root and the events between; none when some of these are gone.
    fn rebuild(&self, revision: Revision) -> Option<Root> {
        let history = self.parts.logs.history();
        let (before, after) = self.parts.published.around(revision);
        let after = after?;
        let forward = before.and_then(|root| Some((history.count_between(root.revision, revision)?, root)));
        match (forward, history.count_between(revision, after.revision)) {
            (Some((forth, root)), back) if back.is_none_or(|back| forth <= back) => {
                let events = history.between(root.revision, revision)?;
                let changes = events.iter().map(|event| (event.object(), &event.new));
                Some(root.changed(revision, changes))
            }
            (_, Some(_)) => {
                let events = history.between(revision, after.revision)?;
                let changes = events.iter().rev().map(|event| (event.object(), &event.old));
                Some(after.changed(revision, changes))
            }
            _ => None,
        }
    }

    /// The state at `revision`, from the store.
    async fn load(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        let parts = &self.parts;
        let permit = tokio::time::timeout(parts.limits.read_wait, self.loads.acquire());
        let _permit = permit.await.ok().and_then(Result::ok).ok_or(ReadError::Busy {
            retry_after: BUSY_RETRY,
        })?;
        // Another request may have loaded it meanwhile.
        if let Some(snapshot) = parts.published.pinned(revision) {
            return Ok(snapshot);
        }
        let source = &parts.source;
        let object = |key, entry| source.object(key, entry);
        let root = source.root(At::Exactly(revision), object, |_| 0).await;
        let root = root.map_err(|error| match error {
            StoreError::Compacted { requested, floor } => parts.expired(requested, floor),
            error => error.into(),
        })?;
        Ok(parts.published.keep_loaded(root))
    }
}
