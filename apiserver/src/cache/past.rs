//! Past snapshots, sampled more sparsely with age; the event history fills the gaps.
//!
//! Also kept: roots that a limited list was read from, so that its next pages show the same revision, and roots that
//! were read from the store. A kept root keeps all objects alive that were replaced since, so a root is dropped when
//! it is older than the event history, whose memory is bounded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use drydock_storage::Revision;
use tokio::time::Instant;

use super::root::Root;

/// The distance between kept roots, by their age.
const SPACING: [(Duration, Duration); 3] = [
    (Duration::from_secs(15), Duration::from_secs(1)),
    (Duration::from_secs(75), Duration::from_secs(5)),
    (Duration::MAX, Duration::from_secs(15)),
];

/// The most roots kept for the next pages of lists.
const MOST_PINNED: usize = 64;

/// The most roots kept that were read from the store. Such a root shares no objects with others.
const MOST_LOADED: usize = 2;

/// Roots of the past. See the module.
#[derive(Debug)]
pub(super) struct Past {
    window: Duration,
    /// Oldest first.
    roots: VecDeque<(Instant, Arc<Root>)>,
    /// In the order they were pinned.
    pinned: VecDeque<(Instant, Arc<Root>)>,
    loaded: VecDeque<(Instant, Arc<Root>)>,
}

impl Past {
    pub(super) fn new(window: Duration) -> Self {
        Self {
            window,
            roots: VecDeque::new(),
            pinned: VecDeque::new(),
            loaded: VecDeque::new(),
        }
    }

    /// Keeps a root that was just published, unless the last one kept is closer than the smallest spacing.
    pub(super) fn retain(&mut self, root: &Arc<Root>, now: Instant) {
        let [(_, closest), ..] = SPACING;
        let is_due = self
            .roots
            .back()
            .is_none_or(|(at, _)| now.duration_since(*at) >= closest);
        if is_due {
            self.roots.push_back((now, Arc::clone(root)));
        }
    }

    /// Keeps a root for the next pages of a list.
    pub(super) fn pin(&mut self, root: Arc<Root>) {
        let is_loaded = self.loaded.iter().any(|(_, loaded)| Arc::ptr_eq(loaded, &root));
        if is_loaded
            || self
                .pinned
                .iter()
                .any(|(_, pinned)| pinned.revision == root.revision)
        {
            return;
        }
        if self.pinned.len() >= MOST_PINNED {
            self.pinned.pop_front();
        }
        self.pinned.push_back((Instant::now(), root));
    }

    /// Keeps a root that was read from the store.
    pub(super) fn keep_loaded(&mut self, root: &Arc<Root>) {
        if self.loaded.len() >= MOST_LOADED {
            self.loaded.pop_front();
        }
        self.loaded.push_back((Instant::now(), Arc::clone(root)));
    }

    /// The root pinned at exactly this revision.
    pub(super) fn pinned(&self, revision: Revision) -> Option<Arc<Root>> {
        let mut roots = self.pinned.iter().chain(&self.loaded);
        roots
            .find(|(_, root)| root.revision == revision)
            .map(|(_, root)| Arc::clone(root))
    }

    /// The newest root at or before `revision`, and the oldest after it.
    pub(super) fn around(&self, revision: Revision) -> (Option<Arc<Root>>, Option<Arc<Root>>) {
        let all = || self.roots.iter().chain(&self.pinned).map(|(_, root)| root);
        let before = all()
            .filter(|root| root.revision <= revision)
            .max_by_key(|root| root.revision);
        let after = all()
            .filter(|root| root.revision > revision)
            .min_by_key(|root| root.revision);
        (before.cloned(), after.cloned())
    }

    /// Drops roots that are too close together, too old, or older than the event history.
    pub(super) fn thin(&mut self, now: Instant, history_floor: Revision) {
        let window = self.window;
        let is_kept =
            |at: Instant, root: &Root| now.duration_since(at) < window && root.revision >= history_floor;
        self.pinned.retain(|(at, root)| is_kept(*at, root));
        self.loaded.retain(|(at, _)| now.duration_since(*at) < window);
        // Oldest first: whether a root stays depends only on older ones, whose own spacing is at least as large.
        let mut older: Option<Instant> = None;
        self.roots.retain(|(at, root)| {
            let spacing = spacing(now.duration_since(*at));
            let is_apart = older.is_none_or(|older| at.duration_since(older) >= spacing);
            let stays = is_apart && is_kept(*at, root);
            if stays {
                older = Some(*at);
            }
            stays
        });
    }

    /// Drops everything: the roots lie before a gap, or may be wrong.
    pub(super) fn clear(&mut self) {
        self.roots.clear();
        self.pinned.clear();
        self.loaded.clear();
    }

    pub(super) fn count(&self) -> usize {
        self.roots.len() + self.pinned.len() + self.loaded.len()
    }
}

fn spacing(age: Duration) -> Duration {
    let mut spacings = SPACING.iter();
    spacings
        .find(|(until, _)| age <= *until)
        .map_or(Duration::ZERO, |(_, spacing)| *spacing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(revision: u64) -> Arc<Root> {
        Arc::new(Root::empty(Revision(revision)))
    }

    #[tokio::test(start_paused = true)]
    async fn kept_roots_are_spaced_further_apart_with_age() {
        let mut past = Past::new(Duration::from_mins(5));
        for second in 0..600 {
            past.retain(&root(second), Instant::now());
            past.thin(Instant::now(), Revision(0));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let ages: Vec<u64> = past
            .roots
            .iter()
            .rev()
            .map(|(_, root)| 599 - root.revision.0)
            .collect();
        assert_eq!(ages[..15], (0..15).collect::<Vec<_>>());
        assert!(
            *ages.last().unwrap() < 300 && *ages.last().unwrap() >= 270,
            "{ages:?}"
        );
        // 15 of 1 s, 12 of 5 s, 15 of 15 s.
        assert!((38..=46).contains(&ages.len()), "{} roots", ages.len());
        for pair in ages.windows(2) {
            assert!(pair[1] - pair[0] <= 20, "too far apart: {ages:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pinned_roots_are_bounded_by_number_age_and_history() {
        let mut past = Past::new(Duration::from_mins(5));
        for revision in 0..100 {
            past.pin(root(revision));
            past.pin(root(revision));
        }
        assert_eq!(past.pinned.len(), MOST_PINNED);
        assert!(past.pinned(Revision(99)).is_some());
        assert!(past.pinned(Revision(3)).is_none());
        past.thin(Instant::now(), Revision(99));
        assert_eq!(past.pinned.len(), 1);
        tokio::time::advance(Duration::from_mins(5)).await;
        past.thin(Instant::now(), Revision(99));
        assert_eq!(past.count(), 0);
    }
}
