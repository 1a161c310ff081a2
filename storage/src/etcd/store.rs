//! [`Store`] for etcd.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::sync::broadcast;

use super::error::EtcdOpenError;
use super::metrics::EtcdMetrics;
use super::notice::EtcdNotice;
use super::open::{self, EtcdOpened, Purpose};
use super::options::EtcdOptions;
use super::parts::Shared;
use super::watch::EtcdEvents;
use super::{compactor, revision, scan};
use crate::{
    At, Floors, Found, Health, Key, KeyRange, Outcome, Page, Removable, Revision, Scan, Store, StoreError,
    Transaction,
};

/// How many writes of one call are under way at once.
const CONCURRENT: usize = 64;

/// A store in etcd. Clones share it.
#[derive(Clone)]
pub struct EtcdStore {
    parts: Shared,
}

impl EtcdStore {
    /// Connects to etcd and checks that the prefix can be used. Writes nothing.
    ///
    /// # Errors
    /// [`EtcdOpenError`].
    pub async fn open(options: EtcdOptions) -> Result<(Self, EtcdOpened), EtcdOpenError> {
        let (parts, opened) = open::open(options, Purpose::Serve).await?;
        Ok((Self { parts }, opened))
    }

    pub(super) fn parts(&self) -> &Shared {
        &self.parts
    }

    /// Changes of members from now on, for people. A reader that lags misses some.
    #[must_use]
    pub fn notices(&self) -> broadcast::Receiver<EtcdNotice> {
        self.parts.members.notices.receive()
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> &EtcdMetrics {
        &self.parts.metrics
    }
}

impl std::fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdStore")
            .field("options", &self.parts.options)
            .finish_non_exhaustive()
    }
}

/// The transactions of one key, with their positions.
type OfOneKey = Vec<(usize, Transaction)>;

impl Store for EtcdStore {
    type Events = EtcdEvents;

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.parts.transact(transaction).await
    }

    async fn transact_many(&self, transactions: Vec<Transaction>) -> Vec<Result<Outcome, StoreError>> {
        let mut positions = HashMap::new();
        let mut by_key: Vec<OfOneKey> = Vec::new();
        for (position, transaction) in transactions.into_iter().enumerate() {
            let group = *positions.entry(transaction.key.clone()).or_insert(by_key.len());
            match by_key.get_mut(group) {
                Some(group) => group.push((position, transaction)),
                None => by_key.push(vec![(position, transaction)]),
            }
        }
        let run = |group: OfOneKey| async move {
            let mut outcomes = Vec::with_capacity(group.len());
            for (position, transaction) in group {
                outcomes.push((position, self.parts.transact(transaction).await));
            }
            outcomes
        };
        let groups = stream::iter(by_key.into_iter().map(run)).buffer_unordered(CONCURRENT);
        let mut outcomes: Vec<_> = groups.collect::<Vec<_>>().await.into_iter().flatten().collect();
        outcomes.sort_by_key(|(position, _)| *position);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    async fn get(&self, key: &Key) -> Result<Found, StoreError> {
        self.parts.get(key).await
    }

    async fn scan(&self, range: &KeyRange, at: At, page: Page) -> Result<Scan, StoreError> {
        scan::scan(&self.parts, range, at, &page).await
    }

    async fn remove_damaged(&self, key: &Key, which: Removable) -> Result<Outcome, StoreError> {
        self.parts.remove_damaged(key, which).await
    }

    async fn watch(&self, range: &KeyRange, first: Revision) -> Result<EtcdEvents, StoreError> {
        let current = revision::current(&self.parts).await?;
        self.parts.floors.floors().check_watchable(first, current)?;
        Ok(EtcdEvents::begin(&self.parts, range, first))
    }

    async fn is_stale(&self, key: &Key, at: Revision) -> Result<bool, StoreError> {
        self.parts.is_stale(key, at).await
    }

    async fn current_revision(&self) -> Result<Revision, StoreError> {
        revision::current(&self.parts).await
    }

    fn request_progress(&self) {
        self.parts.request_progress();
    }

    async fn compact(&self, through: Revision) -> Result<(), StoreError> {
        compactor::compact(&self.parts, through).await
    }

    fn floors(&self) -> Floors {
        self.parts.floors.floors()
    }

    fn health(&self) -> Health {
        self.parts.health()
    }

    /// Everything acknowledged is durable in etcd, so there is nothing to wait for.
    async fn close(&self, _grace: Duration) -> Result<(), StoreError> {
        self.parts.closed.cancel();
        Ok(())
    }
}
