//! `/metrics`: every registered metric in the Prometheus text format.

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use prometheus_client::registry::Registry;

/// The metrics of the process, as `/metrics` shows them.
#[derive(Debug)]
pub struct Exposition(Registry);

impl Exposition {
    /// The metrics of `registry`.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self(registry)
    }

    /// The response to `GET /metrics`, in the Prometheus text format 0.0.4.
    #[must_use]
    pub fn respond(&self) -> Response<Bytes> {
        let mut text = String::new();
        // Writing into a String cannot fail; a metric that cannot be encoded truncates the text.
        if prometheus_client::encoding::prometheus_text::encode(&mut text, &self.0).is_err() {
            tracing::error!("encoding the metrics failed");
        }
        let mut response = Response::new(Bytes::from(text));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8; escaping=underscores"),
        );
        response
    }
}
