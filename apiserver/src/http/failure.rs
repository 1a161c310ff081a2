//! Turns an [`ApiError`] into an HTTP response: status code, headers and body.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, header};

use super::body::ResponseBody;
use crate::error::{ApiError, Status};

/// The error behind a response, kept in its extensions so that the request log can print the cause.
#[derive(Clone, Debug)]
pub struct Failure(pub Arc<ApiError>);

/// The Status of a response that is a success, kept in its extensions for the audit log.
#[derive(Clone, Debug)]
pub struct Reported(pub Arc<Status>);

impl ApiError {
    /// The response as JSON, or as plain text for errors that always are ([`ApiError::is_text`]).
    #[must_use]
    pub fn into_response(self) -> Response<ResponseBody> {
        if self.is_text() {
            let body = Bytes::from(self.status().message.clone().into_owned());
            return self.into_response_with("text/plain; charset=utf-8", body);
        }
        let body = self.json(false);
        self.into_response_with("application/json", body)
    }

    /// The response with a body that the caller encoded: sets the code, Content-Type, Retry-After and
    /// X-Content-Type-Options.
    #[must_use]
    pub fn into_response_with(self, content_type: &'static str, body: Bytes) -> Response<ResponseBody> {
        let mut response = Response::new(ResponseBody::full(body));
        *response.status_mut() = self.code();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if self.is_nosniff() {
            headers.insert(
                header::X_CONTENT_TYPE_OPTIONS,
                HeaderValue::from_static("nosniff"),
            );
        }
        if let Some(seconds) = self.retry_after_seconds() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Failure(Arc::new(self)));
        response
    }
}
