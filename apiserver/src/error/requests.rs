//! Errors about the request: its path, method, headers and body.

use std::borrow::Cow;

use http::StatusCode;

use super::{ApiError, Reason, Status};

/// The largest accepted request body in bytes: 3 MiB.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

impl ApiError {
    /// 401. Does not reveal the cause.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(Reason::Unauthorized, "Unauthorized")
    }

    /// 400.
    #[must_use]
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 422 for a patch whose operations cannot be applied to the object. Clients match only the code.
    #[must_use]
    pub fn unprocessable() -> Self {
        Self::new(
            Reason::Invalid,
            "the server rejected our request due to an error in our request",
        )
        .empty_details()
    }

    /// 403: a WebSocket handshake without an `Origin` that is a URL.
    #[must_use]
    pub fn forbidden_origin() -> Self {
        Self::new(Reason::Forbidden, "the Origin header is missing or not a URL")
    }

    /// 404 as text: a path outside all groups and versions that are served.
    #[must_use]
    pub fn no_page() -> Self {
        Self::text(
            StatusCode::NOT_FOUND,
            Some(Reason::NotFound),
            "404 page not found\n",
        )
    }

    /// 404 of the router: unknown resource, version, subresource or scope.
    #[must_use]
    pub fn no_route() -> Self {
        Self::new(
            Reason::NotFound,
            "the server could not find the requested resource",
        )
        .empty_details()
    }

    /// 405 of the router.
    #[must_use]
    pub fn method_not_allowed() -> Self {
        Self::new(
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        )
        .empty_details()
    }

    /// 406 of a handler. `available` lists media types.
    #[must_use]
    pub fn not_acceptable(available: &[&str]) -> Self {
        Self::new(
            Reason::NotAcceptable,
            format!(
                "only the following media types are accepted: {}",
                available.join(", ")
            ),
        )
    }

    /// 406 with the given message.
    #[must_use]
    pub fn not_acceptable_because(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::NotAcceptable, message)
    }

    /// 406 of the router: the client accepts none of the media types.
    #[must_use]
    pub fn not_acceptable_route(available: &[&str]) -> Self {
        Self::new(
            Reason::NotAcceptable,
            format!(
                "406: Not Acceptable\n\nAvailable representations: {}",
                available.join(", ")
            ),
        )
        .empty_details()
    }

    /// 415 of a handler. `accepted` lists media types.
    #[must_use]
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        Self::new(
            Reason::UnsupportedMediaType,
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
        )
    }

    /// 415 of the router, used for patches.
    #[must_use]
    pub fn unsupported_media_type_route() -> Self {
        Self::new(Reason::UnsupportedMediaType, "415: Unsupported Media Type").empty_details()
    }

    /// 413: the body exceeds [`BODY_LIMIT`].
    #[must_use]
    pub fn body_too_large() -> Self {
        Self::too_large(format!("Request entity too large: limit is {BODY_LIMIT}"))
    }

    /// 414: path and query together may have `most` bytes.
    #[must_use]
    pub fn target_too_long(most: usize) -> Self {
        let message = format!("the request URI is too long: at most {most} bytes are allowed");
        Self::from_status(Status::failure(StatusCode::URI_TOO_LONG, None, message))
    }

    /// 413 with the given message: too many patch operations, an object above the store's limit.
    #[must_use]
    pub fn too_large(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::RequestEntityTooLarge, message)
    }
}
