//! Answers `/livez`, `/readyz`, `/healthz` and `/metrics`. [`access`](crate::access) decides who may read what.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::metrics::Metrics;
use crate::stores::Stores;

/// How long a task may wait for its turn before the controllers count as blocked. A relist of a large cluster takes less.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(5);

const TEXT: &str = "text/plain; charset=utf-8";

/// The state that the endpoints report.
#[derive(Debug, Clone)]
pub struct Health {
    stores: Stores,
    metrics: Metrics,
    access: Arc<Access>,
    /// How long the watch of a kind may fail before the process counts as not ready.
    grace: Duration,
    shutdown: CancellationToken,
    controllers: Handle,
}

impl Health {
    /// The health of a process that is ready while the stores are synced and no watch has failed for longer than `grace`,
    /// until `shutdown` is cancelled. It is alive while the runtime of the controllers runs tasks.
    #[must_use]
    pub fn new(
        stores: Stores,
        metrics: Metrics,
        access: Arc<Access>,
        grace: Duration,
        shutdown: CancellationToken,
        controllers: Handle,
    ) -> Self {
        Self {
            stores,
            metrics,
            access,
            grace,
            shutdown,
            controllers,
        }
    }

    /// Status, content type and body of the response.
    fn respond(&self, method: &Method, path: &str) -> (StatusCode, &'static str, String) {
        if method != Method::GET && method != Method::HEAD {
            return (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned());
        }
        match path {
            "/livez" => (StatusCode::OK, TEXT, "ok".to_owned()),
            "/readyz" | "/healthz" => {
                let not_ready = if self.shutdown.is_cancelled() {
                    Some("shutting down".to_owned())
                } else {
                    self.stores.not_ready(self.grace)
                };
                match not_ready {
                    None => (StatusCode::OK, TEXT, "ok".to_owned()),
                    Some(text) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{text}\n")),
                }
            }
            "/metrics" => {
                const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                (StatusCode::OK, OPEN_METRICS, self.metrics.render())
            }
            _ => (StatusCode::NOT_FOUND, TEXT, "not found\n".to_owned()),
        }
    }

    /// Whether the controllers' thread runs a task soon. The process exits when a part of it ends.
    async fn is_alive(&self) -> bool {
        let turn = self.controllers.spawn(async {});
        matches!(tokio::time::timeout(LIVENESS_TIMEOUT, turn).await, Ok(Ok(())))
    }

    /// The response to a request; its body is not read.
    pub async fn handle<B: Sync>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let authorization = request.headers().get(header::AUTHORIZATION);
        let authorization = authorization.and_then(|header| header.to_str().ok());
        let (status, content_type, body) = match self.access.check(path, authorization).await {
            Ok(()) if path == "/livez" && !self.is_alive().await => {
                let text = "the controllers are blocked\n".to_owned();
                (StatusCode::INTERNAL_SERVER_ERROR, TEXT, text)
            }
            Ok(()) => self.respond(request.method(), path),
            Err((status, text)) => (status, TEXT, text),
        };
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static(content_type),
        );
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            header::HeaderValue::from_static("nosniff"),
        );
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tests::host;
    use crate::fixtures::{clock_at, empty_stores};
    use crate::stores::Informers;
    use crate::watch_health::READY_GRACE;
    use crate::watch_metrics::WatchFailures;

    #[tokio::test(start_paused = true)]
    async fn process_whose_watch_fails_is_not_ready_and_names_it() {
        let stores = empty_stores();
        let access = Arc::new(Access::new(host(), Vec::new(), clock_at(0)));
        let metrics = Metrics::default();
        metrics.register_collector(WatchFailures(stores.clone()));
        let health = Health::new(
            stores.clone(),
            metrics,
            access,
            READY_GRACE,
            CancellationToken::new(),
            Handle::current(),
        );
        let ready = || health.respond(&Method::GET, "/readyz");
        assert_eq!(ready().0, StatusCode::OK);
        stores
            .nodes
            .health()
            .failed("nodes is forbidden (403)".to_owned());
        assert_eq!(ready().0, StatusCode::OK, "a server may be restarting");
        tokio::time::advance(Duration::from_secs(12)).await;
        let (status, _, text) = ready();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            text,
            "the watch of nodes has failed for 12 s: nodes is forbidden (403)\n"
        );
        let text = health.respond(&Method::GET, "/metrics").2;
        for line in [
            "drydock_controller_watch_failing_seconds{resource=\"nodes\"} 12.0",
            "drydock_controller_watch_failing_seconds{resource=\"pods\"} 0.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        stores.nodes.health().delivered();
        assert_eq!(ready().0, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn process_with_the_bridge_stays_ready_longer_than_the_bridge_is_patient() {
        let stores = empty_stores();
        let access = Arc::new(Access::new(host(), Vec::new(), clock_at(0)));
        let grace = crate::bridge::READY_GRACE;
        let health = Health::new(
            stores.clone(),
            Metrics::default(),
            access,
            grace,
            CancellationToken::new(),
            Handle::current(),
        );
        stores.requests.health().failed("unavailable (503)".to_owned());
        tokio::time::advance(Duration::from_secs(70)).await;
        assert_eq!(health.respond(&Method::GET, "/readyz").0, StatusCode::OK);
        tokio::time::advance(Duration::from_secs(50)).await;
        assert_eq!(
            health.respond(&Method::GET, "/readyz").0,
            StatusCode::SERVICE_UNAVAILABLE
        );
    }

    #[tokio::test(start_paused = true)]
    async fn process_whose_controllers_are_blocked_is_not_alive() {
        let blocked = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (controllers, code) in [(Handle::current(), 200), (blocked.handle().clone(), 500)] {
            let health = Health::new(
                empty_stores(),
                Metrics::default(),
                Arc::new(Access::new(host(), vec!["/livez".to_owned()], clock_at(0))),
                READY_GRACE,
                CancellationToken::new(),
                controllers,
            );
            let response = health.handle(&Request::get("/livez").body(()).unwrap()).await;
            assert_eq!(response.status(), code);
        }
        blocked.shutdown_background();
    }

    #[tokio::test]
    async fn process_is_ready_from_synced_stores_until_shutdown() {
        let (_informers, stores) = Informers::new();
        let shutdown = CancellationToken::new();
        let clock = clock_at(0);
        let access = Arc::new(Access::new(host(), Vec::new(), clock));
        let health = Health::new(
            stores,
            Metrics::default(),
            access,
            READY_GRACE,
            shutdown.clone(),
            Handle::current(),
        );
        let get = |path| health.respond(&Method::GET, path);
        assert_eq!(get("/livez").0, StatusCode::OK);
        let (status, _, text) = get("/readyz");
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("pods"), "{text}");
        shutdown.cancel();
        assert!(get("/healthz").2.contains("shutting down"));
        assert!(get("/metrics").2.ends_with("# EOF\n"));
        assert_eq!(get("/").0, StatusCode::NOT_FOUND);
        assert_eq!(
            health.respond(&Method::POST, "/livez").0,
            StatusCode::METHOD_NOT_ALLOWED
        );
    }
}
