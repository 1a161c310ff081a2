//! What other tasks ask of the feeder: to check keys whose value may be damaged, and to reload the cache.

use std::collections::BTreeSet;
use std::sync::Mutex;

use drydock_storage::Key;
use tokio::sync::Notify;

use super::lock::lock;

/// Pending requests to the feeder.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    suspects: Mutex<BTreeSet<Key>>,
    suspected: Notify,
    reload: Notify,
}

impl Repairs {
    /// Asks for a check of keys whose value may be damaged.
    pub(super) fn suspect(&self, keys: impl IntoIterator<Item = Key>) {
        lock(&self.suspects).extend(keys);
        self.suspected.notify_one();
    }

    /// Waits until there are suspects. Cancel safe.
    pub(super) async fn suspected(&self) {
        self.suspected.notified().await;
    }

    pub(super) fn take_suspects(&self) -> BTreeSet<Key> {
        std::mem::take(&mut *lock(&self.suspects))
    }

    /// Asks for a reload, because the cache differs from the store.
    pub(super) fn request_reload(&self) {
        self.reload.notify_one();
    }

    /// Waits until a reload is requested. Cancel safe.
    pub(super) async fn reload_requested(&self) {
        self.reload.notified().await;
    }
}
