//! Submits transactions: encodes them, hands them to the commit thread and waits for the outcomes.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::index::conflict;
use super::lifecycle::closed;
use super::message::{Message, Results};
use super::parts::Parts;
use super::prepare::{Prepared, prepare};
use super::queue::{Refused, Weight};
use crate::clock::Stopwatch;
use crate::{Floors, Outcome, StoreError, Transaction};

/// Transactions larger than this are encoded off the async workers.
const LARGE: Weight = Weight {
    writes: 64,
    bytes: 256 << 10,
};

/// How much encoding transactions take.
pub(crate) fn weight(transactions: &[Transaction]) -> Weight {
    let values = transactions.iter().filter_map(|one| one.write.value());
    Weight {
        writes: transactions.len(),
        bytes: values.map(|value| value.bytes.len()).sum(),
    }
}

pub(crate) fn unknown() -> StoreError {
    StoreError::Unknown { source: None }
}

impl Parts {
    /// The conflict with published state, if there is one: it needs no place in the queue.
    pub(crate) fn published_conflict(
        &self,
        transaction: &Transaction,
    ) -> Result<Option<Outcome>, StoreError> {
        self.lifecycle.check_readable()?;
        transaction.check_size()?;
        let index = self.published.index();
        let Transaction { key, write, .. } = transaction;
        let conflict = conflict(key, write.base(), index.slot(key), index.revision())?;
        if conflict.is_some() {
            self.counters.count("conflict");
            return Ok(conflict);
        }
        self.lifecycle.check_writable()?;
        Ok(None)
    }

    /// Encodes a transaction against the published value of its key.
    pub(crate) fn prepare(&self, transaction: Transaction) -> Result<Prepared, StoreError> {
        transaction.check_size()?;
        let (before, (_, object_bytes)) = {
            let index = self.published.index();
            (index.slot(&transaction.key).cloned(), index.size())
        };
        let cramped = self.capacity.cramped(object_bytes);
        let prepared = prepare(&self.records, transaction, before.as_ref(), cramped);
        if matches!(prepared, Err(StoreError::Full { .. })) {
            self.counters.count("full");
        }
        let prepared = prepared?;
        let (found, limit) = (prepared.weight().bytes, self.queue.limit().bytes);
        if found > limit {
            return Err(StoreError::TooLarge { found, limit });
        }
        Ok(prepared)
    }

    /// Queues encoded transactions as one message and waits for their outcomes.
    pub(crate) async fn commit(&self, prepared: Vec<Prepared>) -> Results {
        let count = prepared.len();
        if count == 0 {
            return Vec::new();
        }
        let weight = prepared
            .iter()
            .map(Prepared::weight)
            .fold(Weight::default(), Weight::plus);
        let (reply, results) = oneshot::channel();
        let message = Message::Transactions {
            prepared,
            queued: Stopwatch::start(),
            reply,
        };
        if let Err(refused) = self.queue.push(message, weight) {
            self.counters.count("busy");
            let refusal = || match refused {
                Refused::Full { retry_after } => StoreError::Busy { retry_after },
                Refused::Closed => self.lifecycle.refusal(),
            };
            return (0..count).map(|_| Err(refusal())).collect();
        }
        results.await.unwrap_or_else(|_| {
            // The thread replies to all of a message or dies with it: then the outcome is unknown, and no write may follow.
            self.lifecycle.poison("the commit thread died");
            Vec::new()
        })
    }

    /// Encodes transactions and commits them as one message. Returns a result for each.
    pub(crate) async fn submit(self: &Arc<Self>, transactions: Vec<Transaction>) -> Results {
        let count = transactions.len();
        let encoded: Vec<_> = if weight(&transactions).fits(LARGE) {
            transactions.into_iter().map(|one| self.prepare(one)).collect()
        } else {
            let parts = Arc::clone(self);
            let encode = move || transactions.into_iter().map(|one| parts.prepare(one)).collect();
            match tokio::task::spawn_blocking(encode).await {
                Ok(encoded) => encoded,
                Err(_) => return (0..count).map(|_| Err(closed())).collect(),
            }
        };
        let mut prepared = Vec::with_capacity(count);
        let mut refusals: Vec<Option<StoreError>> = Vec::with_capacity(count);
        for one in encoded {
            refusals.push(match one {
                Ok(one) => {
                    prepared.push(one);
                    None
                }
                Err(refused) => Some(refused),
            });
        }
        let mut results = self.commit(prepared).await.into_iter();
        let result = |refusal: Option<StoreError>| match refusal {
            Some(refused) => Err(refused),
            None => results.next().unwrap_or_else(|| Err(unknown())),
        };
        refusals.into_iter().map(result).collect()
    }

    /// Queues a compaction. It passes a full queue if `regardless`: then history must be dropped most urgently.
    pub(crate) fn queue_compaction(
        &self,
        wanted: Floors,
        regardless: bool,
    ) -> Result<oneshot::Receiver<Result<(), StoreError>>, Refused> {
        let (reply, result) = oneshot::channel();
        let message = Message::Compact {
            wanted,
            queued: Stopwatch::start(),
            reply,
        };
        let weight = Weight { writes: 1, bytes: 0 };
        if regardless {
            self.queue.push_regardless(message, weight)?;
        } else {
            self.queue.push(message, weight)?;
        }
        Ok(result)
    }
}
