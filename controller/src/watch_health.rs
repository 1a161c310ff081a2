//! Whether the watch of a kind works. A watch that was refused or cannot be opened is opened again and again, and nothing
//! that it would have delivered is known meanwhile: a leader in this state would look healthy and do nothing.
//!
//! A server whose store was emptied, or restored from a backup, accepts a watch from a revision that it has not reached,
//! and delivers nothing. So before a watch is resumed the server is asked how far it is; see [`observed_client`].

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::sync::lock;

/// How long a watch may fail before the process counts as not ready, and is no candidate for the Lease. A restart of a server is
/// over sooner.
pub const READY_GRACE: Duration = Duration::from_secs(10);
/// How long a watch must be open without an error to count as working although nothing was delivered.
const STABLE_AFTER: Duration = Duration::from_secs(5);
/// How long a server may take to begin the response to a list or a watch.
const OPEN_DEADLINE: Duration = Duration::from_mins(1);

/// The server did not begin its response to a list or a watch in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no response from the API within {} s", OPEN_DEADLINE.as_secs())]
struct NotOpened;

/// A watch that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchFailure {
    /// For how long.
    pub lasting: Duration,
    /// The last error.
    pub cause: String,
}

/// The state of the watch of one kind.
#[derive(Debug, Default)]
pub struct WatchHealth(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When the first error came after the watch worked last, and the last error.
    failing: Option<(Instant, String)>,
    /// Since when a watch is open without an error.
    open_since: Option<Instant>,
}

impl State {
    fn is_stable(&self, now: Instant) -> bool {
        self.open_since
            .is_some_and(|since| now.duration_since(since) >= STABLE_AFTER)
    }
}

impl WatchHealth {
    /// The server accepted the watch. It may still end it at once.
    pub fn opened(&self) {
        lock(&self.0).open_since = Some(Instant::now());
    }

    /// A change, or a complete list, was delivered.
    pub fn delivered(&self) {
        lock(&self.0).failing = None;
    }

    /// A list or a watch failed.
    pub fn failed(&self, cause: String) {
        let now = Instant::now();
        let mut state = lock(&self.0);
        let since = match &state.failing {
            Some((since, _)) if !state.is_stable(now) => *since,
            _ => now,
        };
        state.failing = Some((since, cause));
        state.open_since = None;
    }

    /// The failure, unless the watch works.
    #[must_use]
    pub fn failure(&self) -> Option<WatchFailure> {
        let now = Instant::now();
        let state = lock(&self.0);
        let (since, cause) = state.failing.as_ref().filter(|_| !state.is_stable(now))?;
        Some(WatchFailure {
            lasting: now.duration_since(*since),
            cause: cause.clone(),
        })
    }
}

/// A client for the lists and watches of one kind. Successful starts of watches are told to `health`, and the head of each
/// response has a deadline: a server that accepts connections and never responds fails like one that is away. A watch
/// from a resource version that the server has not reached ends at once with 410, and so with a new list.
#[must_use]
pub fn observed_client(client: Client, health: Arc<WatchHealth>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, health) = (client.clone(), Arc::clone(&health));
        async move {
            let query = request.uri().query().unwrap_or_default();
            let is_watch = is_watch(query);
            let from = resumed_from(query).filter(|_| is_watch);
            let path = request.uri().path().to_owned();
            let opening = async {
                if let Some(from) = from
                    && is_behind(&client, &path, from).await
                {
                    return Ok(gone());
                }
                client.send(request).await
            };
            let response = match tokio::time::timeout(OPEN_DEADLINE, opening).await {
                Ok(response) => response?,
                Err(_) => return Err(kube::Error::Service(Box::new(NotOpened))),
            };
            if is_watch && response.status().is_success() {
                health.opened();
            }
            Ok(response)
        }
    });
    Client::new(service, "default")
}

/// Whether a request with this query begins a watch.
pub(crate) fn is_watch(query: &str) -> bool {
    query.split('&').any(|parameter| parameter == "watch=true")
}

/// The resource version that a watch resumes from; `None` for one that begins anew.
fn resumed_from(query: &str) -> Option<u64> {
    let version = query
        .split('&')
        .find_map(|parameter| parameter.strip_prefix("resourceVersion="))?;
    version.parse().ok().filter(|version| *version > 0)
}

/// Whether the server says that it has not reached this version. When it does not respond, the watch will tell.
async fn is_behind(client: &Client, path: &str, version: u64) -> bool {
    let Ok(request) = Request::get(format!("{path}?limit=1")).body(Vec::new()) else {
        return false;
    };
    let newest = client.request::<Value>(request).await.ok().and_then(|list| {
        let newest = list.pointer("/metadata/resourceVersion")?.as_str()?;
        newest.parse::<u64>().ok()
    });
    let is_behind = newest.is_some_and(|newest| newest < version);
    if is_behind {
        tracing::warn!(
            path,
            version,
            newest,
            "the server has gone back to an earlier state; listing anew"
        );
    }
    is_behind
}

/// A watch that ends at once because its version is not known.
fn gone() -> Response<Body> {
    let event = json!({"type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired",
        "message": "the server has gone back to an earlier state",
    }});
    Response::new(Body::from(format!("{event}\n").into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::silent_api;

    async fn advance(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    fn lasting(health: &WatchHealth) -> Option<u64> {
        health.failure().map(|failure| failure.lasting.as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn watch_fails_from_its_first_error_until_something_is_delivered() {
        let health = WatchHealth::default();
        assert_eq!(lasting(&health), None);
        health.failed("forbidden (403)".to_owned());
        advance(30).await;
        health.failed("unauthorized (401)".to_owned());
        assert_eq!(lasting(&health), Some(30));
        assert_eq!(health.failure().unwrap().cause, "unauthorized (401)");
        health.delivered();
        assert_eq!(lasting(&health), None);
        health.failed("again".to_owned());
        assert_eq!(lasting(&health), Some(0), "it worked in between");
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_watch_works_when_it_stays_open() {
        let health = WatchHealth::default();
        health.failed("unavailable (503)".to_owned());
        advance(20).await;
        health.opened();
        advance(4).await;
        assert_eq!(lasting(&health), Some(24), "it may end at once");
        advance(1).await;
        assert_eq!(lasting(&health), None);
        health.failed("unavailable (503)".to_owned());
        assert_eq!(lasting(&health), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn watch_that_is_accepted_and_ended_again_and_again_fails() {
        let health = WatchHealth::default();
        for _ in 0..10 {
            health.opened();
            advance(1).await;
            health.failed("cannot be decoded".to_owned());
            advance(4).await;
        }
        assert_eq!(lasting(&health), Some(49));
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_never_responds_fails_after_a_deadline() {
        let (silent, _) = silent_api();
        let health = Arc::new(WatchHealth::default());
        let client = observed_client(silent, Arc::clone(&health));
        let request = Request::get("/api/v1/pods?&watch=true")
            .body(Body::empty())
            .unwrap();
        let error = client.send(request).await.unwrap_err();
        let error = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(error, "no response from the API within 60 s");
    }
}
