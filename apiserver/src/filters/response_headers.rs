//! Adds the headers that every response has: warnings, audit id, Cache-Control.

use http::{HeaderValue, Response, header};

use super::{audit_id, state::RequestState};
use crate::http::body::ResponseBody;

pub(super) fn add(mut response: Response<ResponseBody>, state: &RequestState) -> Response<ResponseBody> {
    let headers = response.headers_mut();
    state.warnings.write_headers(headers);
    headers.insert(audit_id::HEADER, state.audit_id.clone());
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-cache, private"),
        );
    }
    response
}
