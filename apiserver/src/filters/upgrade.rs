//! Rejects protocol upgrades with 400, except those of watches to WebSocket.

use http::{HeaderMap, header};

use crate::{
    error::ApiError,
    http::websocket,
    request::{RequestInfo, Verb},
};

pub(super) fn check(info: &RequestInfo, headers: &HeaderMap) -> Result<(), ApiError> {
    let is_watch = info
        .resource
        .as_ref()
        .is_some_and(|resource| resource.verb == Verb::Watch);
    if headers.contains_key(header::UPGRADE) && !(is_watch && websocket::is_upgrade(headers)) {
        return Err(ApiError::bad_request(
            "protocol upgrades are not supported, except of watches to websocket",
        ));
    }
    Ok(())
}
