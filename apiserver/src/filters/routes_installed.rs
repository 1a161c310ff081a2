//! Replaces 404 by 503 until every route is installed. A wrong 404 would make the garbage collector delete objects.

use http::{Response, StatusCode};

use crate::{
    error::ApiError,
    health::{Mark, is_health_path},
    http::body::ResponseBody,
    request::RequestInfo,
};

pub(super) fn check(
    response: Response<ResponseBody>,
    installed: &Mark,
    info: &RequestInfo,
) -> Response<ResponseBody> {
    if response.status() == StatusCode::NOT_FOUND && !installed.is_set() && !is_health_path(&info.path) {
        return ApiError::not_ready().into_response();
    }
    response
}
