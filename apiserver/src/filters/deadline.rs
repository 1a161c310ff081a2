//! Enforces time limits: of the whole request, body included, and a shorter one of a write inside its handler.

use std::{future::Future, time::Duration};

use http::{Response, StatusCode};
use tokio::time::{Instant, timeout_at};

use super::state::RequestState;
use crate::{
    error::ApiError,
    http::body::ResponseBody,
    metrics::Metrics,
    request::{RequestInfo, Verb},
};

/// Time limit of a create, update, patch or delete inside its handler.
const WRITE_TIMEOUT: Duration = Duration::from_secs(34);

/// The time limits of one request.
#[derive(Clone, Copy)]
pub(super) struct Deadlines {
    /// None for watches.
    request: Option<Instant>,
    /// None for everything but writes.
    handler: Option<Instant>,
}

impl Deadlines {
    /// The limits of a request: `limit`, or the shorter time that the client asks for.
    ///
    /// # Errors
    /// 400 when the client's `timeout` is not a duration.
    pub(super) fn of(state: &RequestState, limit: Duration) -> Result<Self, ApiError> {
        let received = state.received;
        let request = if state.info.is_long_running() {
            None
        } else {
            Some(received + state.query.timeout(limit)?)
        };
        Ok(Self {
            request,
            handler: is_bounded_write(&state.info).then(|| received + WRITE_TIMEOUT),
        })
    }

    /// When the handler has to be done.
    pub(super) fn earliest(self) -> Option<Instant> {
        [self.request, self.handler].into_iter().flatten().min()
    }

    /// Runs the inner filters within the limit of the request: 504 when it passes before there is a response, and a
    /// reset of the body when it passes after that.
    pub(super) async fn limit_request(
        self,
        inner: impl Future<Output = Result<Response<ResponseBody>, ApiError>>,
        state: &RequestState,
        metrics: &Metrics,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let Some(deadline) = self.request else {
            return inner.await;
        };
        if let Ok(response) = timeout_at(deadline, inner).await {
            return response.map(|response| response.map(|body| body.cut_at(deadline)));
        }
        if let Some(labels) = &state.labels {
            metrics.terminated(labels, StatusCode::GATEWAY_TIMEOUT.as_u16());
        }
        Err(ApiError::request_timeout())
    }

    /// Runs the handler within the limit of a write: 504 when it passes, and the write may still commit.
    pub(super) async fn limit_handler(
        self,
        handled: impl Future<Output = Response<ResponseBody>>,
    ) -> Result<Response<ResponseBody>, ApiError> {
        match self.handler {
            Some(deadline) => timeout_at(deadline, handled)
                .await
                .map_err(|_| ApiError::deadline_exceeded()),
            None => Ok(handled.await),
        }
    }
}

fn is_bounded_write(info: &RequestInfo) -> bool {
    info.resource
        .as_ref()
        .is_some_and(|r| matches!(r.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete))
}
