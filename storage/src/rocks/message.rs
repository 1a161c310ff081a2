//! Messages to the commit thread, and its replies.

use tokio::sync::oneshot;

use super::prepare::Prepared;
use crate::clock::Stopwatch;
use crate::{Floors, Outcome, StoreError};

/// The results of the transactions of one message, in their order.
pub(crate) type Results = Vec<Result<Outcome, StoreError>>;

/// A request to the commit thread.
pub(crate) enum Message {
    /// Independent transactions, each at a revision of its own.
    Transactions {
        prepared: Vec<Prepared>,
        queued: Stopwatch,
        reply: oneshot::Sender<Results>,
    },
    /// Raise the floors and drop history below them.
    Compact {
        wanted: Floors,
        queued: Stopwatch,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
}

/// The reply to a message, held back until its batch is durable.
pub(crate) enum Reply {
    Transactions(oneshot::Sender<Results>, Results),
    Compact(oneshot::Sender<Result<(), StoreError>>, Result<(), StoreError>),
}

impl Reply {
    pub(crate) fn send(self) {
        // The receiver may be gone; the outcome is final all the same.
        match self {
            Self::Transactions(reply, results) => drop(reply.send(results)),
            Self::Compact(reply, result) => drop(reply.send(result)),
        }
    }

    /// The reply if the batch is not durable: nothing of it is shown. Not even a conflict, since its entry may be a change
    /// of the same batch.
    pub(crate) fn withheld(self, error: impl Fn() -> StoreError) -> Self {
        match self {
            Self::Transactions(reply, mut results) => {
                for result in results.iter_mut().filter(|result| result.is_ok()) {
                    *result = Err(error());
                }
                Self::Transactions(reply, results)
            }
            Self::Compact(reply, _) => Self::Compact(reply, Err(error())),
        }
    }

    /// The labels its transactions are counted under.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &'static str> {
        let results = match self {
            Self::Transactions(_, results) => results.as_slice(),
            Self::Compact(..) => &[],
        };
        results.iter().map(|result| match result {
            Ok(Outcome::Committed { .. }) => "committed",
            Ok(Outcome::Conflict { .. }) => "conflict",
            Err(StoreError::Unknown { .. }) => "unknown",
            Err(_) => "refused",
        })
    }
}
