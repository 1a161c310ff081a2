//! Limits of the streams of an HTTP/2 connection: what a burst of cancelled requests may be, and what is a flood.
//!
//! An aggregator sends the requests of all its users over one or two connections, so a limit that one user can reach ends
//! the watches of everybody. The limits of a verified front proxy are therefore far above what users do, and only bound
//! memory. A connection of anybody else carries one user, and its limits are lower.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Who is at the other end of a connection, by its client certificate. It decides on limits alone: the user of a request is
/// established per request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerKind {
    /// A front proxy, which carries the requests of many users.
    FrontProxy,
    /// A client with a certificate of a trusted authority.
    Client,
    /// Anybody else: clients with tokens, probes, strangers.
    #[default]
    Stranger,
}

/// The limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamLimits {
    /// Streams that the client reset before this server saw them: they wait in memory, header block included. As many come
    /// at once as arrive while the server has no processor.
    pub(super) pending_resets: usize,
    /// Streams that the HTTP/2 library reset because of errors of the client. The count never falls, so it must not be
    /// reached by anything that a user of a front proxy can cause: see [`super::discard`] for bodies.
    pub(super) local_resets: usize,
    cancelled_at_once: u32,
    cancelled_per_second: u32,
}

impl StreamLimits {
    /// The limits of a peer.
    pub(super) const fn of(peer: PeerKind) -> Self {
        match peer {
            PeerKind::FrontProxy => Self {
                pending_resets: 10_000,
                local_resets: 1_000_000,
                cancelled_at_once: 100_000,
                cancelled_per_second: 5_000,
            },
            PeerKind::Client | PeerKind::Stranger => Self {
                pending_resets: 4_000,
                local_resets: 1_024,
                cancelled_at_once: 10_000,
                cancelled_per_second: 500,
            },
        }
    }
}

/// Counts the requests of a connection that were cancelled before their response began.
#[derive(Debug)]
pub(super) struct Cancellations {
    limits: StreamLimits,
    bucket: Mutex<Bucket>,
    flooded: CancellationToken,
}

#[derive(Debug)]
struct Bucket {
    left: u32,
    filled_at: Instant,
}

impl Cancellations {
    pub(super) fn new(limits: StreamLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            bucket: Mutex::new(Bucket {
                left: limits.cancelled_at_once,
                filled_at: Instant::now(),
            }),
            flooded: CancellationToken::new(),
        })
    }

    /// Cancelled once there were more cancellations than the limits allow.
    pub(super) fn flooded(&self) -> &CancellationToken {
        &self.flooded
    }

    /// Begins a request, which counts as cancelled when it is dropped before [`Unanswered::answered`].
    pub(super) fn begin(self: &Arc<Self>) -> Unanswered {
        Unanswered(Some(Arc::clone(self)))
    }

    fn count(&self) {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = Duration::from_secs(1) / self.limits.cancelled_per_second.max(1);
        let refill = bucket.filled_at.elapsed().as_nanos() / pause.as_nanos().max(1);
        if refill > 0 {
            let refill = u32::try_from(refill).unwrap_or(u32::MAX);
            bucket.left = bucket
                .left
                .saturating_add(refill)
                .min(self.limits.cancelled_at_once);
            bucket.filled_at = Instant::now();
        }
        match bucket.left.checked_sub(1) {
            Some(left) => bucket.left = left,
            None => self.flooded.cancel(),
        }
    }
}

/// A request without a response.
pub(super) struct Unanswered(Option<Arc<Cancellations>>);

impl Unanswered {
    /// The response begins: what the client does from now on is no cancellation.
    pub(super) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(cancellations) = self.0.take() {
            cancellations.count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bursts_pass_and_floods_do_not() {
        for peer in [PeerKind::FrontProxy, PeerKind::Client, PeerKind::Stranger] {
            let limits = StreamLimits::of(peer);
            let cancellations = Cancellations::new(limits);
            for _ in 0..limits.cancelled_at_once {
                cancellations.begin().answered();
                drop(cancellations.begin());
            }
            assert!(!cancellations.flooded().is_cancelled(), "{peer:?}");
            // The rate that is allowed can go on for ever.
            for _ in 0..10 {
                tokio::time::advance(Duration::from_secs(1)).await;
                for _ in 0..limits.cancelled_per_second {
                    drop(cancellations.begin());
                }
            }
            assert!(!cancellations.flooded().is_cancelled(), "{peer:?}");
            drop(cancellations.begin());
            assert!(cancellations.flooded().is_cancelled(), "{peer:?}");
        }
    }
}
