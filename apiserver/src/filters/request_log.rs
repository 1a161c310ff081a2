//! Which requests does the log show? Failures of ours as errors, slow ones as warnings, the rest for who wants to debug.

use std::{future::Future, time::Duration};

use http::{HeaderValue, Method, Request, Response, Uri, header};
use tokio::time::Instant;
use tracing::{Instrument, Span, field};

use super::audit_id;
use crate::http::{
    body::{RequestBody, ResponseBody},
    connection::Connection,
    failure::Failure,
};

/// Requests longer than this are logged though they succeeded; watches are not slow, they are long.
const SLOW: Duration = Duration::from_secs(1);

/// The log's view of one request.
pub(super) struct Entry {
    span: Span,
    method: Method,
    uri: Uri,
    received: Instant,
}

impl Entry {
    pub(super) fn new(
        connection: &Connection,
        request: &Request<RequestBody>,
        id: &HeaderValue,
        received: Instant,
    ) -> Self {
        let agent = request
            .headers()
            .get(header::USER_AGENT)
            .and_then(|agent| agent.to_str().ok());
        let span = tracing::info_span!(
            "request",
            audit_id = audit_id::printable(id),
            remote = %connection.remote,
            agent = agent.unwrap_or_default(),
            user = field::Empty,
        );
        Self {
            span,
            method: request.method().clone(),
            uri: request.uri().clone(),
            received,
        }
    }

    /// Runs the request inside its span, so that every line about it carries its id.
    pub(super) fn in_span<F: Future>(&self, answer: F) -> impl Future<Output = F::Output> + use<F> {
        answer.instrument(self.span.clone())
    }

    /// Writes the line.
    pub(super) fn written(self, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
        let _entered = self.span.enter();
        let took = self.received.elapsed();
        let (code, method, uri) = (response.status().as_u16(), &self.method, &self.uri);
        let failure = response.extensions_mut().remove::<Failure>();
        if code >= 500 {
            let error = failure.as_ref().map(|failure| failure.0.to_string());
            let cause = failure
                .as_ref()
                .and_then(|failure| failure.0.cause())
                .map(ToString::to_string);
            tracing::error!(%method, %uri, code, ?took, error, cause, "request failed");
        } else if took >= SLOW && !response.body().is_stream() {
            tracing::warn!(%method, %uri, code, ?took, "slow request");
        } else {
            tracing::debug!(%method, %uri, code, ?took, "request");
        }
        response
    }
}
