//! Rejects requests while the server shuts down, and tracks those in flight so that the shutdown waits for them.

use http::{HeaderMap, Response};

use crate::{
    error::ApiError,
    health,
    http::{
        body::ResponseBody,
        connection::Connection,
        shutdown::{RequestInFlight, Stages},
    },
    request::{RequestInfo, info::user_agent},
};

/// Lets a request pass unless the server shuts down; none for watches, which the shutdown ends itself.
///
/// # Errors
/// 429 once the listener is closed, so that the client tries another server, and 503 once watches end.
pub(super) fn admit(
    stages: &Stages,
    info: &RequestInfo,
    headers: &HeaderMap,
    connection: &Connection,
) -> Result<Option<RequestInFlight>, ApiError> {
    if stages.closed().is_cancelled() && !is_served_until_the_end(info, headers) {
        connection.close();
        return Err(ApiError::shutting_down());
    }
    if info.is_long_running() {
        if stages.ending().is_cancelled() {
            return Err(ApiError::shut_down());
        }
        return Ok(None);
    }
    stages.begin_request().map(Some).ok_or_else(ApiError::shut_down)
}

/// Keeps the request in flight until its response is sent.
pub(super) fn hold(
    response: Response<ResponseBody>,
    in_flight: Option<RequestInFlight>,
) -> Response<ResponseBody> {
    match in_flight {
        Some(in_flight) => response.map(|body| body.holding(in_flight)),
        None => response,
    }
}

fn is_served_until_the_end(info: &RequestInfo, headers: &HeaderMap) -> bool {
    health::is_health_path(&info.path)
        || info.path == "/metrics"
        || user_agent(headers).starts_with("kube-apiserver/")
}
