//! Logs requests: server errors at level error, slow requests at warn, writes that came without the front proxy at info, with
//! their user, and all others at debug. The host audits what passes its front proxy; the log is the only trace of the rest in
//! a server without an audit policy.

use std::{future::Future, time::Duration};

use http::{HeaderValue, Method, Request, Response, Uri};
use tokio::time::Instant;
use tracing::{Instrument, Span, field};

use super::{audit_id, state::RequestState};
use crate::{
    http::{
        body::{RequestBody, ResponseBody},
        connection::Connection,
        failure::Failure,
    },
    request::info::user_agent,
};

/// Successful requests that took longer than this are logged as slow. Watches are long by nature and are not.
const SLOW: Duration = Duration::from_secs(1);

/// What the log line of a request needs.
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
        let span = tracing::info_span!(
            "request",
            audit_id = audit_id::printable(id),
            remote = %connection.remote,
            agent = user_agent(request.headers()),
            user = field::Empty,
        );
        Self {
            span,
            method: request.method().clone(),
            uri: request.uri().clone(),
            received,
        }
    }

    /// Runs the request inside its span, so that every log line about it carries its id.
    pub(super) fn in_span<F: Future>(&self, request: F) -> impl Future<Output = F::Output> + use<F> {
        request.instrument(self.span.clone())
    }

    /// Writes the log line.
    pub(super) fn write(
        self,
        mut response: Response<ResponseBody>,
        state: &RequestState,
    ) -> Response<ResponseBody> {
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
        } else if state.is_direct_write() {
            tracing::info!(%method, %uri, code, ?took, "direct write");
        } else if took >= SLOW && !response.body().is_stream() {
            tracing::warn!(%method, %uri, code, ?took, "slow request");
        } else {
            tracing::debug!(%method, %uri, code, ?took, "request");
        }
        response
    }
}
