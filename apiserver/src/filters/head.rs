//! Sends the headers of a response to HEAD without its body.

use bytes::Bytes;
use http::{HeaderValue, Response, header};

use crate::http::body::ResponseBody;

pub(super) fn drop_body(response: Response<ResponseBody>, is_head: bool) -> Response<ResponseBody> {
    if !is_head {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    if let Some(size) = body.size() {
        parts
            .headers
            .insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    Response::from_parts(parts, body.replaced_by(Bytes::new()))
}
