//! Parses the request line into verb, resource and name, once for all that follows.

use http::{HeaderMap, Request, header};

use crate::{
    error::ApiError,
    http::{body::RequestBody, target::TARGET_BYTES},
    request::{Query, RequestInfo},
};

/// The parsed request line, and the 400 if it does not parse: then the info holds the raw path and no resource.
pub(super) fn parse(request: &Request<RequestBody>) -> (RequestInfo, Query, Result<(), ApiError>) {
    let path = request.uri().path();
    let target = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    if target > TARGET_BYTES {
        return (
            unparsed(request, ""),
            Query::parse(""),
            Err(ApiError::target_too_long(TARGET_BYTES)),
        );
    }
    let query = Query::parse(request.uri().query().unwrap_or_default());
    match RequestInfo::parse(request.method(), path, &query) {
        Ok(info) => {
            let is_apply = is_apply(request.headers());
            (RequestInfo { is_apply, ..info }, query, Ok(()))
        }
        Err(error) => (unparsed(request, path), query, Err(error)),
    }
}

fn unparsed(request: &Request<RequestBody>, path: &str) -> RequestInfo {
    RequestInfo {
        path: path.to_owned(),
        method: request.method().clone(),
        is_apply: false,
        resource: None,
    }
}

fn is_apply(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| value.starts_with("application/apply-patch+"))
}
