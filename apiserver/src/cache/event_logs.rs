//! The logs that watches read: the event history, and one log for each class of watches.
//!
//! An event goes into the history first, then into the logs of the classes it concerns, and only then is the root
//! published that contains it. So a reader that sees a revision finds all its events.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::class::{Class, Classes, Member};
use super::history::{CacheEvent, History};
use super::lock::lock;
use super::selection::Selection;

/// The event logs of a cache. See the module.
#[derive(Debug)]
pub(super) struct EventLogs {
    history: History,
    classes: Mutex<Classes>,
}

/// What the logs hold.
pub(super) struct LogSizes {
    pub(super) classes: usize,
    /// With encoded frames and shared buffers.
    pub(super) bytes: u64,
}

impl EventLogs {
    /// Empty logs that hold at most `bytes`, for at most `window`.
    pub(super) fn new(bytes: u64, window: Duration) -> Self {
        // An eighth for the entries of class logs, an eighth for the buffers that classes share.
        let of_classes = bytes / 8;
        Self {
            history: History::new(bytes - 2 * of_classes, window),
            classes: Mutex::new(Classes::new(of_classes)),
        }
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    /// Appends events, in order. Returns the classes whose watches have to be woken.
    pub(super) fn append(&self, events: &[Arc<CacheEvent>]) -> Vec<Arc<Class>> {
        self.history.append(events);
        lock(&self.classes).dispatch(events)
    }

    /// Joins the class of a selection: from here on, events that match it are noted in the class log.
    pub(super) fn join(&self, selection: &Selection) -> Member {
        lock(&self.classes).join(selection)
    }

    /// Starts class logs over after a gap, at `position`, which [`History::restart`] has returned.
    pub(super) fn restart_classes(&self, position: u64) {
        lock(&self.classes).restart(position);
    }

    /// Wakes every watch.
    pub(super) fn wake_all(&self) {
        lock(&self.classes).wake_all();
    }

    /// Drops what is too old, and classes that have had no watches for a while.
    pub(super) fn trim(&self, now: Instant) -> LogSizes {
        self.history.trim(now);
        let mut classes = lock(&self.classes);
        classes.sweep(self.history.first(), now);
        LogSizes {
            classes: classes.count(),
            bytes: self.history.bytes() + classes.bytes(),
        }
    }

    /// Holds up everyone who needs the classes.
    #[cfg(test)]
    pub(super) fn lock_classes(&self) -> std::sync::MutexGuard<'_, Classes> {
        lock(&self.classes)
    }
}
