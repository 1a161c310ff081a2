//! The store that a server runs on: RocksDB or etcd, whichever the configuration chooses.

use std::path::Path;
use std::time::Duration;

use drydock_storage::etcd::{EtcdEvents, EtcdNotice, EtcdStore};
use drydock_storage::rocks::{RocksEvents, RocksStore};
use drydock_storage::{
    At, Events, Floors, Found, Health, Key, KeyRange, Outcome, Page, Removable, Revision, Scan, Signal,
    Store, StoreError, Transaction,
};
use prometheus_client::registry::Registry;
use tokio::sync::broadcast;

use super::{Backend, BackupError, BackupReport};

/// The store of a server.
#[derive(Clone)]
pub enum ServerStore {
    /// Embedded, in a folder.
    Rocks(RocksStore),
    /// In etcd.
    Etcd(EtcdStore),
}

/// The watch of a [`ServerStore`].
pub enum ServerEvents {
    /// Of RocksDB.
    Rocks(RocksEvents),
    /// Of etcd.
    Etcd(EtcdEvents),
}

/// Calls the store behind.
macro_rules! of {
    ($self:expr, $store:ident => $call:expr) => {
        match $self {
            ServerStore::Rocks($store) => $call,
            ServerStore::Etcd($store) => $call,
        }
    };
}

impl Store for ServerStore {
    type Events = ServerEvents;

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        of!(self, store => store.transact(transaction).await)
    }

    async fn transact_many(&self, transactions: Vec<Transaction>) -> Vec<Result<Outcome, StoreError>> {
        of!(self, store => store.transact_many(transactions).await)
    }

    async fn get(&self, key: &Key) -> Result<Found, StoreError> {
        of!(self, store => store.get(key).await)
    }

    async fn scan(&self, range: &KeyRange, at: At, page: Page) -> Result<Scan, StoreError> {
        of!(self, store => store.scan(range, at, page).await)
    }

    async fn remove_damaged(&self, key: &Key, which: Removable) -> Result<Outcome, StoreError> {
        of!(self, store => store.remove_damaged(key, which).await)
    }

    async fn watch(&self, range: &KeyRange, first: Revision) -> Result<ServerEvents, StoreError> {
        match self {
            Self::Rocks(store) => store.watch(range, first).await.map(ServerEvents::Rocks),
            Self::Etcd(store) => store.watch(range, first).await.map(ServerEvents::Etcd),
        }
    }

    async fn is_stale(&self, key: &Key, at: Revision) -> Result<bool, StoreError> {
        of!(self, store => store.is_stale(key, at).await)
    }

    async fn current_revision(&self) -> Result<Revision, StoreError> {
        of!(self, store => store.current_revision().await)
    }

    fn request_progress(&self) {
        of!(self, store => store.request_progress());
    }

    async fn compact(&self, through: Revision) -> Result<(), StoreError> {
        of!(self, store => store.compact(through).await)
    }

    fn floors(&self) -> Floors {
        of!(self, store => store.floors())
    }

    fn health(&self) -> Health {
        of!(self, store => store.health())
    }

    async fn close(&self, grace: Duration) -> Result<(), StoreError> {
        of!(self, store => store.close(grace).await)
    }
}

impl Events for ServerEvents {
    async fn next(&mut self) -> Option<Signal> {
        match self {
            Self::Rocks(events) => events.next().await,
            Self::Etcd(events) => events.next().await,
        }
    }
}

impl Backend for ServerStore {
    fn register_metrics(&self, registry: &mut Registry) {
        of!(self, store => store.register_metrics(registry));
    }

    fn notices(&self) -> Option<broadcast::Receiver<EtcdNotice>> {
        of!(self, store => Backend::notices(store))
    }

    fn backups_are_elsewhere(&self) -> Option<&'static str> {
        of!(self, store => store.backups_are_elsewhere())
    }

    fn back_up(&self, folder: &Path, keep: usize) -> Result<BackupReport, BackupError> {
        of!(self, store => store.back_up(folder, keep))
    }

    fn back_up_incrementally(&self, folder: &Path, keep: usize) -> Result<BackupReport, BackupError> {
        of!(self, store => store.back_up_incrementally(folder, keep))
    }
}
