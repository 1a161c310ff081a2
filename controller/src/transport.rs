//! What every call to an API passes: writes are refused unless the Lease is held, and responses of drydock-apiserver
//! teach its time.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::DATE;
use http::{Method, Request, Response};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use crate::lease_fence::LeaseFence;
use crate::metrics::Metrics;
use crate::server_time::ServerClock;

/// The paths that drydock-apiserver serves, also behind the aggregator.
const SERVED_BY_DRYDOCK: &str = "/apis/coordination.k8s.io/v1alpha";

/// Why a call was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not sent: this process may no longer hold the lease")]
pub struct NotLeading;

/// Wraps the service of a client.
#[derive(Debug, Clone)]
pub struct TransportLayer {
    /// The fence of the Lease.
    pub fence: Arc<LeaseFence>,
    /// The clock that learns the server's time.
    pub clock: Arc<ServerClock>,
    /// The metrics that show the skew.
    pub metrics: Metrics,
}

/// A wrapped service.
#[derive(Debug)]
pub struct Transport<S> {
    inner: S,
    layer: TransportLayer,
}

impl<S> Layer<S> for TransportLayer {
    type Service = Transport<S>;

    fn layer(&self, inner: S) -> Transport<S> {
        Transport {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S, B> Service<Request<Body>> for Transport<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if !is_read && !self.layer.fence.is_open() {
            return async { Err(NotLeading.into()) }.boxed();
        }
        let is_drydock = request.uri().path().contains(SERVED_BY_DRYDOCK);
        let sent = self.layer.clock.local();
        let response = self.inner.call(request);
        let layer = self.layer.clone();
        async move {
            let response = response.await.map_err(Into::into)?;
            // Errors may be those of a proxy in between, which has a clock of its own.
            if is_drydock && response.status().is_success() {
                layer.learn(&response, sent);
            }
            Ok(response)
        }
        .boxed()
    }
}

impl TransportLayer {
    fn learn<B>(&self, response: &Response<B>, sent: jiff::Timestamp) {
        let date = response.headers().get(DATE);
        if let Some(date) = date.and_then(|date| date.to_str().ok()) {
            self.clock.learn(date, sent, self.clock.local());
            self.metrics.set_clock_skew(self.clock.offset());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::clock_at;
    use drydock_machinery::clock::Clock;
    use tower::ServiceExt;

    /// The response to a request through a layer; the inner service has the time 00:00:50.
    async fn send(layer: &TransportLayer, method: &str, path: &str, code: u16) -> Result<u16, BoxError> {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let response = Response::builder()
                .status(code)
                .header(DATE, "Thu, 01 Jan 1970 00:00:50 GMT");
            response.body(()).map_err(BoxError::from)
        });
        let request = Request::builder().method(method).uri(path).body(Body::empty())?;
        let response = layer.layer(service).oneshot(request).await?;
        Ok(response.status().as_u16())
    }

    fn layer(fence: LeaseFence) -> TransportLayer {
        TransportLayer {
            fence: Arc::new(fence),
            clock: Arc::new(ServerClock::new(clock_at(10))),
            metrics: Metrics::default(),
        }
    }

    const OURS: &str = "/apis/coordination.k8s.io/v1alpha3/evictionrequests";

    #[tokio::test]
    async fn writes_are_sent_only_while_the_lease_is_held() {
        let layer = layer(LeaseFence::closed());
        assert_eq!(send(&layer, "GET", "/api/v1/pods", 200).await.unwrap(), 200);
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            let error = send(&layer, method, "/api/v1/pods", 200).await.unwrap_err();
            assert!(error.is::<NotLeading>(), "{method}: {error}");
        }
        layer
            .fence
            .open_until(tokio::time::Instant::now() + std::time::Duration::from_mins(1));
        assert_eq!(send(&layer, "POST", "/api/v1/pods", 201).await.unwrap(), 201);
    }

    #[tokio::test]
    async fn only_successful_responses_of_our_server_teach_its_time() {
        let layer = layer(LeaseFence::open());
        send(&layer, "GET", "/api/v1/pods", 200).await.unwrap();
        send(&layer, "GET", OURS, 503).await.unwrap();
        assert_eq!(layer.clock.now().as_second(), 10);
        send(&layer, "GET", OURS, 200).await.unwrap();
        assert_eq!(layer.clock.now().as_second(), 50);
        let text = layer.metrics.render();
        assert!(
            text.contains("drydock_controller_clock_skew_seconds 40"),
            "{text}"
        );
    }
}
