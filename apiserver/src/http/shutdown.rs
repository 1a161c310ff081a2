//! The stages of a graceful shutdown, in order.
//!
//! 1. `/readyz` fails. Everything is served as before for the shutdown delay, while the server is removed from endpoints.
//! 2. The listener closes. Connections are asked to close (GOAWAY, `Connection: close`); idle ones close.
//! 3. Requests in flight finish, within 60 s.
//! 4. Watches end cleanly, so that clients resume them on another server.
//! 5. Connections drain. Then the storage may close.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// Time limit for requests in flight to finish.
const REQUESTS_TIMEOUT: Duration = Duration::from_mins(1);
/// Time limit for connections to close after watches were ended.
const CONNECTIONS_TIMEOUT: Duration = Duration::from_secs(5);

/// The stages of the shutdown; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Stages(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    unready: CancellationToken,
    closed: CancellationToken,
    ending: CancellationToken,
    stopped: CancellationToken,
    requests: TaskTracker,
    connections: TaskTracker,
}

/// A request in flight, until dropped.
#[derive(Debug)]
pub struct RequestInFlight {
    _token: TaskTrackerToken,
}

impl Stages {
    /// Before the shutdown.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when the shutdown begins: readiness fails from then on.
    #[must_use]
    pub fn unready(&self) -> &CancellationToken {
        &self.0.unready
    }

    /// Cancelled when the listener closes and connections are asked to close.
    #[must_use]
    pub fn closed(&self) -> &CancellationToken {
        &self.0.closed
    }

    /// Cancelled when watches have to end.
    #[must_use]
    pub fn ending(&self) -> &CancellationToken {
        &self.0.ending
    }

    /// Cancelled when serving has ended: background loops end on it.
    #[must_use]
    pub fn stopped(&self) -> &CancellationToken {
        &self.0.stopped
    }

    /// Counts a request that the shutdown waits for; watches are not counted. None once requests are not accepted any more.
    #[must_use]
    pub fn begin_request(&self) -> Option<RequestInFlight> {
        if self.0.ending.is_cancelled() {
            return None;
        }
        Some(RequestInFlight {
            _token: self.0.requests.token(),
        })
    }

    /// The tasks of open connections.
    #[must_use]
    pub fn connections(&self) -> &TaskTracker {
        &self.0.connections
    }

    /// Runs the stages. Returns when everything has finished or the time limits have passed.
    pub async fn stop(&self, delay: Duration) {
        tracing::info!(?delay, "shutting down: readiness fails from now on");
        self.0.unready.cancel();
        sleep(delay).await;

        tracing::info!("shutting down: closing the listener");
        self.0.closed.cancel();
        self.0.requests.close();
        if timeout_at(Instant::now() + REQUESTS_TIMEOUT, self.0.requests.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                left = self.0.requests.len(),
                "shutting down: requests did not finish in time"
            );
        }

        tracing::info!("shutting down: ending watches");
        self.0.ending.cancel();
        self.0.connections.close();
        if timeout_at(Instant::now() + CONNECTIONS_TIMEOUT, self.0.connections.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                left = self.0.connections.len(),
                "shutting down: connections did not close in time"
            );
        }
        self.0.stopped.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stages_run_in_order() {
        let stages = Stages::new();
        let request = stages.begin_request().expect("running");
        let stopping = tokio::spawn({
            let stages = stages.clone();
            async move { stages.stop(Duration::from_secs(5)).await }
        });

        stages.unready().cancelled().await;
        assert!(!stages.closed().is_cancelled());
        tokio::time::advance(Duration::from_secs(5)).await;
        stages.closed().cancelled().await;
        assert!(!stages.ending().is_cancelled(), "a request is still in flight");

        drop(request);
        stages.ending().cancelled().await;
        assert!(stages.begin_request().is_none());
        stopping.await.unwrap();
        assert!(stages.stopped().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn the_shutdown_waits_sixty_seconds_for_requests() {
        let stages = Stages::new();
        let _request = stages.begin_request().expect("running");
        let before = Instant::now();
        stages.stop(Duration::ZERO).await;
        assert_eq!(before.elapsed().as_secs(), REQUESTS_TIMEOUT.as_secs());
    }
}
