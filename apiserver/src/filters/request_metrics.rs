//! Counts requests: those being handled, and those that got a response.

use http::{Response, StatusCode};

use super::state::RequestState;
use crate::{
    http::body::ResponseBody,
    metrics::{InFlight, Metrics},
    request::RequestInfo,
};

/// Counts a request as being handled until dropped; none for watches, which are counted while they are open.
pub(super) fn handling(metrics: &Metrics, info: &RequestInfo) -> Option<InFlight> {
    (!info.is_long_running()).then(|| metrics.in_flight(info.is_mutating()))
}

/// Counts a response. A watch is counted when it ends.
pub(super) fn count(
    response: Response<ResponseBody>,
    state: &RequestState,
    metrics: &Metrics,
) -> Response<ResponseBody> {
    let code = response.status();
    let is_api_request = state.is_authorized() && code != StatusCode::METHOD_NOT_ALLOWED;
    let Some(labels) = state.labels.as_ref().filter(|_| is_api_request) else {
        return response;
    };
    if state.info.is_long_running() && response.body().is_stream() {
        let open = metrics.long_running(labels.clone(), code.as_u16(), state.received);
        return response.map(|body| body.holding(open));
    }
    let size = response.body().size();
    metrics.responded(labels, code.as_u16(), state.received.elapsed(), size);
    response
}
