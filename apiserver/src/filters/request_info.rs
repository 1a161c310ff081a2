//! Parses the request line into verb, resource and name, once for all that follows.

use http::{HeaderMap, Request, header};

use crate::{
    error::ApiError,
    http::body::RequestBody,
    request::{Query, RequestInfo},
};

/// The parsed request line, and the 400 if it does not parse: then the info holds the raw path and no resource.
pub(super) fn parse(request: &Request<RequestBody>) -> (RequestInfo, Query, Result<(), ApiError>) {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let path = request.uri().path();
    match RequestInfo::parse(request.method(), path, &query) {
        Ok(info) => {
            let is_apply = is_apply(request.headers());
            (RequestInfo { is_apply, ..info }, query, Ok(()))
        }
        Err(error) => {
            let info = RequestInfo {
                path: path.to_owned(),
                method: request.method().clone(),
                is_apply: false,
                resource: None,
            };
            (info, query, Err(error))
        }
    }
}

fn is_apply(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    content_type.is_some_and(|value| value.starts_with("application/apply-patch+"))
}
