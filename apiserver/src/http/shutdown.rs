//! In which order does a server stop?
//!
//! 1. `/readyz` fails; everything is served as before for the shutdown delay, while endpoints forget us.
//! 2. The listener closes, connections are told to go (GOAWAY, `Connection: close`), idle ones close.
//! 3. Requests in flight finish, for at most 60 s.
//! 4. Watches end cleanly, so that clients resume elsewhere.
//! 5. Connections drain; then storage may close.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// How long requests in flight, and afterwards connections, get to finish.
const DRAIN: Duration = Duration::from_mins(1);
/// How long connections get after the last watch was ended.
const CLOSE: Duration = Duration::from_secs(5);

/// The stages of a stop; clones share them.
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
    /// Nothing stops yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled as soon as the stop begins: readiness fails from then on.
    #[must_use]
    pub fn unready(&self) -> &CancellationToken {
        &self.0.unready
    }

    /// Cancelled when no new connection is taken and old ones should go.
    #[must_use]
    pub fn closed(&self) -> &CancellationToken {
        &self.0.closed
    }

    /// Cancelled when watches have to end.
    #[must_use]
    pub fn ending(&self) -> &CancellationToken {
        &self.0.ending
    }

    /// Cancelled when nothing is served any more: background loops end on it.
    #[must_use]
    pub fn stopped(&self) -> &CancellationToken {
        &self.0.stopped
    }

    /// Counts a request whose end the stop waits for; watches are not counted. None once requests are no longer taken.
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

    /// Runs the stages. Returns when all is quiet, or when the patience for each stage is over.
    pub async fn stop(&self, delay: Duration) {
        tracing::info!(?delay, "stopping: not ready any more");
        self.0.unready.cancel();
        sleep(delay).await;

        tracing::info!("stopping: no new connections");
        self.0.closed.cancel();
        self.0.requests.close();
        if timeout_at(Instant::now() + DRAIN, self.0.requests.wait())
            .await
            .is_err()
        {
            tracing::warn!(left = self.0.requests.len(), "stopping: requests did not finish");
        }

        tracing::info!("stopping: ending watches");
        self.0.ending.cancel();
        self.0.connections.close();
        if timeout_at(Instant::now() + CLOSE, self.0.connections.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                left = self.0.connections.len(),
                "stopping: connections did not close"
            );
        }
        self.0.stopped.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stages_follow_each_other() {
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
    async fn a_request_that_does_not_end_is_waited_for_sixty_seconds() {
        let stages = Stages::new();
        let _request = stages.begin_request().expect("running");
        let before = Instant::now();
        stages.stop(Duration::ZERO).await;
        assert_eq!(before.elapsed().as_secs(), DRAIN.as_secs());
    }
}
