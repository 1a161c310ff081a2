//! Errors about the state of the server: load, deadlines, shutdown, internal errors.

use std::borrow::Cow;
use std::fmt;

use drydock_machinery::field_error::quoted;
use http::StatusCode;

use super::{ApiError, Reason, Status, StatusCause, StatusDetails, escape_html, limits};

impl ApiError {
    /// 429 as a Status, for example `storage is (re)initializing`.
    #[must_use]
    pub fn too_many_requests(message: impl Into<Cow<'static, str>>, retry_after_seconds: u32) -> Self {
        Self::new(Reason::TooManyRequests, message).retry_after(retry_after_seconds)
    }

    /// 429 as text: the limit of requests in flight is reached.
    #[must_use]
    pub fn overloaded() -> Self {
        Self::text(
            StatusCode::TOO_MANY_REQUESTS,
            Some(Reason::TooManyRequests),
            "Too many requests, please try again later.\n",
        )
        .retry_after(1)
    }

    /// 429 as text: the server is shutting down, and the client should connect to another one.
    #[must_use]
    pub fn shutting_down() -> Self {
        Self::text(
            StatusCode::TOO_MANY_REQUESTS,
            Some(Reason::TooManyRequests),
            "The apiserver is shutting down, please try again later.\n",
        )
        .retry_after(5)
    }

    /// 503 as text: the server accepts no more requests.
    #[must_use]
    pub fn shut_down() -> Self {
        Self::text(
            StatusCode::SERVICE_UNAVAILABLE,
            Some(Reason::ServiceUnavailable),
            "apiserver is shutting down.\n",
        )
        .retry_after(5)
    }

    /// 504 with the given text; see [`ApiError::deadline_exceeded`] for the usual one.
    #[must_use]
    pub fn timeout(text: impl fmt::Display) -> Self {
        Self::new(Reason::Timeout, format!("Timeout: {text}"))
    }

    /// 504: the 34 s timeout of a write has passed. The write may still commit.
    #[must_use]
    pub fn deadline_exceeded() -> Self {
        Self::timeout("request did not complete within requested timeout - context deadline exceeded")
            .empty_details()
    }

    /// 504 of the outer filter: the request timeout has passed.
    #[must_use]
    pub fn request_timeout() -> Self {
        Self::timeout("request did not complete within the allotted timeout")
    }

    /// 504: the requested resourceVersion is in the future. Retry after 1 s, as in kube-apiserver.
    #[must_use]
    pub fn future_resource_version(requested: u64, current: u64) -> Self {
        Self::timeout(format_args!(
            "Too large resource version: {requested}, current: {current}"
        ))
        .causes(vec![StatusCause {
            reason: Cow::Borrowed("ResourceVersionTooLarge"),
            message: "Too large resource version".to_owned(),
            field: String::new(),
        }])
        .retry_after(1)
    }

    /// 503 as a Status.
    #[must_use]
    pub fn service_unavailable(message: impl Into<Cow<'static, str>>, retry_after_seconds: u32) -> Self {
        Self::new(Reason::ServiceUnavailable, message).retry_after(retry_after_seconds)
    }

    /// 503 instead of 404 while not every path is installed: the garbage collector would delete objects after a wrong 404.
    #[must_use]
    pub fn not_ready() -> Self {
        Self::service_unavailable(
            "the request has been made before all known HTTP paths have been installed, please try again",
            5,
        )
    }

    /// 500 `Internal error occurred: …`. The text is sent to the client; [`ApiError::because`] adds a cause for the log.
    #[must_use]
    pub fn internal(text: impl fmt::Display) -> Self {
        let text = text.to_string();
        Self::new(Reason::InternalError, format!("Internal error occurred: {text}")).causes(vec![
            StatusCause {
                message: text,
                ..StatusCause::default()
            },
        ])
    }

    /// The response that an admission webhook or a policy chose, with any code, reason and details.
    #[must_use]
    pub fn rejected(code: u16, reason: String, message: String, details: Option<StatusDetails>) -> Self {
        let mut status = Status::failure(StatusCode::BAD_REQUEST, None, message);
        status.code = code;
        status.reason = Cow::Owned(limits::cut_name(&reason).into_owned());
        status.details = details.map(|details| StatusDetails {
            name: limits::cut_name(&details.name).into_owned(),
            group: limits::cut_name(&details.group).into_owned(),
            kind: limits::cut_name(&details.kind).into_owned(),
            uid: limits::cut_name(&details.uid).into_owned(),
            causes: limits::first_causes(details.causes),
            retry_after_seconds: details.retry_after_seconds,
        });
        Self::from_status(status)
    }

    /// 500 with an empty reason, as kube-apiserver sends for errors that have no reason.
    #[must_use]
    pub fn unclassified(message: impl Into<Cow<'static, str>>) -> Self {
        Self::from_status(Status::failure(StatusCode::INTERNAL_SERVER_ERROR, None, message))
    }

    /// 500: a stored object cannot be decoded.
    #[must_use]
    pub fn storage_read(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::StorageReadError, message)
    }

    /// 500 as text: an authorization or authentication dependency failed. `uri` is the request's path and query.
    #[must_use]
    pub fn dependency_failed(uri: &str, error: impl fmt::Display) -> Self {
        let message = format!("Internal Server Error: {}: {error}\n", quoted(uri));
        let message = escape_html(&message).into_owned();
        Self::text(
            StatusCode::INTERNAL_SERVER_ERROR,
            Some(Reason::InternalError),
            message,
        )
    }

    /// 500 as text: a handler panicked.
    #[must_use]
    pub fn panicked() -> Self {
        Self::text(
            StatusCode::INTERNAL_SERVER_ERROR,
            Some(Reason::InternalError),
            "This request caused apiserver to panic. Look in the logs for details.\n",
        )
    }
}
