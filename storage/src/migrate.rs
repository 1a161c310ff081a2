//! How do stored values come into the newest form without anybody writing them?
//!
//! Reading converts, so nothing is wrong with a value in an old form (an old API version, another codec, a retired
//! encryption key); but the form cannot be given up before the last one is rewritten. A migration walks a range in key
//! order, asks for each value whether it is stale, and puts what it is told to at the revision it saw, at so many a
//! second. Whoever writes in between wins: what he wrote is new.
//!
//! How far it is lies in the store itself, under a key of its own, so that a migration goes on where it was after a
//! restart, on every backend. One process at a time should run it; two do no harm but to the rate.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::{
    At, Damaged, Entry, Key, KeyError, KeyRange, Outcome, Page, Store, StoreError, Transaction, Value, Write,
};

/// How many values are looked at between two notes of the position.
const PAGE: usize = 500;
/// How often the design lets values be rewritten.
const A_SECOND: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// What a value is to a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is in the newest form.
    Fresh,
    /// It is not: this is to be stored instead.
    Stale(Value),
    /// It cannot be converted, and why. It stays as it is, and the old form must be kept.
    Stuck(String),
}

/// What a migration did, for the registry of metrics.
#[derive(Debug, Clone, Default)]
pub struct MigrationMetrics {
    /// Values that were looked at.
    pub seen: Counter,
    /// Values that were rewritten.
    pub rewritten: Counter,
    /// Values that somebody else wrote first.
    pub overtaken: Counter,
    /// Values that cannot be converted.
    pub stuck: Counter,
}

impl MigrationMetrics {
    /// Makes the metrics readable under `drydock_storage_migration_`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("drydock_storage_migration");
        for (name, help, counter) in [
            ("seen", "Values that a migration looked at", &self.seen),
            ("rewritten", "Values that a migration rewrote", &self.rewritten),
            (
                "overtaken",
                "Stale values that somebody else wrote first",
                &self.overtaken,
            ),
            ("stuck", "Stale values that cannot be converted", &self.stuck),
        ] {
            registry.register(name, help, counter.clone());
        }
    }
}

/// A whole walk over a range, across restarts.
#[derive(Debug, Clone)]
pub struct Migration {
    range: KeyRange,
    position: Key,
    a_second: NonZeroU32,
    metrics: MigrationMetrics,
}

/// How a walk ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Values that were looked at by this process.
    pub seen: u64,
    /// Values that were rewritten by this process.
    pub rewritten: u64,
    /// Values that somebody else wrote first.
    pub overtaken: u64,
    /// Values that cannot be converted, or are damaged: the old form is still needed.
    pub stuck: u64,
}

impl Migration {
    /// A migration of a range. Its name tells it from others of the same store, and a new one begins at the start.
    ///
    /// # Errors
    /// A name that cannot be part of a key.
    pub fn new(name: &str, range: KeyRange) -> Result<Self, KeyError> {
        Ok(Self {
            range,
            position: Key::new("storage.drydock.dev", "migrations", "", name)?,
            a_second: A_SECOND,
            metrics: MigrationMetrics::default(),
        })
    }

    /// Rewrites at most so many values a second; 100 otherwise.
    #[must_use]
    pub fn at_rate(self, a_second: NonZeroU32) -> Self {
        Self { a_second, ..self }
    }

    /// What it did so far.
    #[must_use]
    pub fn metrics(&self) -> &MigrationMetrics {
        &self.metrics
    }

    /// Walks from where the last run was to the end. Cancel safe: what was rewritten stays, and the next run goes on.
    ///
    /// # Errors
    /// What the store refuses, such as all writes. The position stays.
    pub async fn run<S: Store>(
        &self,
        store: &S,
        judge: impl Fn(&Key, &Entry) -> Verdict + Send + Sync,
    ) -> Result<Migrated, StoreError> {
        let mut migrated = Migrated::default();
        let pause = Duration::from_secs(1) / self.a_second.get();
        let mut turns = interval_at(Instant::now(), pause);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut after = self.position(store).await?;
        loop {
            let page = Page {
                after: after.clone(),
                limit: PAGE,
                damaged: Damaged::SetApart,
            };
            let scan = store.scan(&self.range, At::Latest, page).await?;
            for key in &scan.damaged {
                tracing::warn!(%key, "a damaged value cannot be brought into the newest form");
                migrated.stuck += 1;
                self.metrics.stuck.inc();
            }
            let Some((last, _)) = scan.entries.last() else {
                break;
            };
            last.as_str().clone_into(&mut after);
            let before = migrated.rewritten;
            for (key, entry) in &scan.entries {
                migrated.seen += 1;
                self.metrics.seen.inc();
                match judge(key, entry) {
                    Verdict::Fresh => {}
                    Verdict::Stale(value) => {
                        turns.tick().await;
                        if self.rewrite(store, key, entry, value).await? {
                            migrated.rewritten += 1;
                            self.metrics.rewritten.inc();
                        } else {
                            migrated.overtaken += 1;
                            self.metrics.overtaken.inc();
                        }
                    }
                    Verdict::Stuck(reason) => {
                        tracing::warn!(%key, reason, "a stored value cannot be brought into the newest form");
                        migrated.stuck += 1;
                        self.metrics.stuck.inc();
                    }
                }
            }
            if !scan.more {
                break;
            }
            // Looking again at what was fresh costs less than to note that it is.
            if migrated.rewritten > before {
                self.note(store, &after).await;
            }
        }
        self.forget(store).await?;
        Ok(migrated)
    }

    /// Puts the newest form in place of what was seen; false if that is not there any more.
    async fn rewrite<S: Store>(
        &self,
        store: &S,
        key: &Key,
        seen: &Entry,
        value: Value,
    ) -> Result<bool, StoreError> {
        loop {
            // It is what is there already, whatever its length in the new form.
            let transaction = Transaction::update(key.clone(), seen.modified, value.clone()).growing(true);
            match store.transact(transaction).await {
                Ok(Outcome::Committed { .. }) => return Ok(true),
                Ok(Outcome::Conflict { .. }) => return Ok(false),
                Err(StoreError::Busy { retry_after }) => tokio::time::sleep(retry_after).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// The last key that was dealt with; empty at the start.
    async fn position<S: Store>(&self, store: &S) -> Result<String, StoreError> {
        let found = store.get(&self.position).await?.entry;
        Ok(found.map_or_else(String::new, |entry| {
            String::from_utf8_lossy(&entry.value.bytes).into_owned()
        }))
    }

    async fn note<S: Store>(&self, store: &S, after: &str) {
        let value = Value {
            bytes: Bytes::copy_from_slice(after.as_bytes()),
            form: "position".into(),
            splice_offset: 0,
        };
        let noted = store
            .transact(Transaction {
                writes: vec![Write::Put(self.position.clone(), value)],
                may_grow: true,
                ..Transaction::default()
            })
            .await;
        if let Err(error) = noted {
            tracing::warn!(%error, "how far a migration is was not noted");
        }
    }

    async fn forget<S: Store>(&self, store: &S) -> Result<(), StoreError> {
        if let Some(entry) = store.get(&self.position).await?.entry {
            store
                .transact(Transaction::delete(self.position.clone(), entry.modified))
                .await?;
        }
        Ok(())
    }
}
