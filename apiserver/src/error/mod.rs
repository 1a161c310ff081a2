//! API errors: the response for the client, and the cause for the log.
//!
//! [`ApiError`] contains a `metav1.Status` (or, for a few outer filters, plain text). It is the only place that chooses HTTP
//! codes. Clients match reasons, codes and many of the messages, so there is a constructor for each error that Kubernetes
//! knows: errors about objects and permissions in `objects`, about the request in `requests`, about the state of the server
//! in `server`. The cause is logged and never sent.
//!
//! Whatever a client sent, a response has at most 100 causes and about 64 KiB: longer messages, names and causes are cut
//! here. Code that prints many or long values cuts them earlier, so that they are never built.

mod limits;
mod objects;
mod policies;
mod requests;
mod server;
mod status;

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use http::StatusCode;

pub use self::objects::DeniedResource;
pub use self::policies::PolicyReason;
pub use self::requests::BODY_LIMIT;
pub use self::status::{Reason, Status, StatusCause, StatusDetails, StatusMetadata};

/// A plural resource with its group: prints as `evictionrequests.coordination.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupResource<'a> {
    /// API group; empty for core.
    pub group: &'a str,
    /// Plural resource name, or the kind in messages about kinds.
    pub resource: &'a str,
}

impl fmt::Display for GroupResource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(self.resource)
        } else {
            write!(f, "{}.{}", self.resource, self.group)
        }
    }
}

/// The encoding of the response: plain text for the errors of a few outer filters, otherwise a Status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Status,
    Text,
}

/// A failed request: the response for the client, and the cause for the log.
#[derive(thiserror::Error)]
#[error("{}", .0.status.message)]
pub struct ApiError(Box<Inner>);

struct Inner {
    status: Status,
    encoding: Encoding,
    nosniff: bool,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl fmt::Debug for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiError")
            .field("status", &self.0.status)
            .field("cause", &self.0.cause)
            .finish_non_exhaustive()
    }
}

impl ApiError {
    fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self::from_status(Status::failure(reason.code(), Some(reason), message))
    }

    fn from_status(mut status: Status) -> Self {
        limits::cut_message(&mut status.message);
        Self(Box::new(Inner {
            status,
            encoding: Encoding::Status,
            nosniff: false,
            cause: None,
        }))
    }

    fn text(code: StatusCode, reason: Option<Reason>, message: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Self::from_status(Status::failure(code, reason, message));
        error.0.encoding = Encoding::Text;
        error.0.nosniff = true;
        error
    }

    fn about(mut self, object: GroupResource<'_>, name: &str) -> Self {
        let details = self.0.status.details.get_or_insert_default();
        details.name = limits::cut_name(name).into_owned();
        object.group.clone_into(&mut details.group);
        object.resource.clone_into(&mut details.kind);
        self
    }

    /// Adds the cause, which is logged and never sent.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// Sets `details.retryAfterSeconds`, which is also the Retry-After header.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.0.status.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// Sets the causes. What exceeds the limits of a response is dropped; an iterator is not read further.
    #[must_use]
    pub fn causes(mut self, causes: impl IntoIterator<Item = StatusCause>) -> Self {
        self.0.status.details.get_or_insert_default().causes = limits::first_causes(causes);
        self
    }

    fn empty_details(mut self) -> Self {
        self.0.status.details.get_or_insert_default();
        self
    }

    fn nosniff(mut self) -> Self {
        self.0.nosniff = true;
        self
    }

    fn escaped(mut self) -> Self {
        if let Cow::Owned(escaped) = escape_html(&self.0.status.message) {
            self.0.status.message = Cow::Owned(escaped);
            limits::cut_message(&mut self.0.status.message);
        }
        self
    }

    /// The HTTP code of the response.
    #[must_use]
    pub fn code(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Whether the Status has this reason.
    #[must_use]
    pub fn is(&self, reason: Reason) -> bool {
        self.0.status.reason == reason.as_str()
    }

    /// The Status.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.0.status
    }

    /// Whether the response is plain text, regardless of what the client accepts.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.0.encoding == Encoding::Text
    }

    /// Whether the response has `X-Content-Type-Options: nosniff`.
    #[must_use]
    pub fn is_nosniff(&self) -> bool {
        self.0.nosniff
    }

    /// Seconds after which the client should retry; `None` if it should not.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u32> {
        let details = self.0.status.details.as_ref()?;
        (details.retry_after_seconds > 0).then_some(details.retry_after_seconds)
    }

    /// The cause, for the log.
    #[must_use]
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.0.cause.as_deref()
    }

    /// The Status as JSON with a final newline; `pretty` indents by two spaces.
    #[must_use]
    pub fn json(&self, pretty: bool) -> Bytes {
        let encoded = if pretty {
            serde_json::to_vec_pretty(self.status())
        } else {
            serde_json::to_vec(self.status())
        };
        // A Status contains only strings and numbers, so encoding cannot fail.
        let mut body = encoded.unwrap_or_default();
        body.push(b'\n');
        body.into()
    }
}

/// Escapes `&`, `<`, `>` as HTML entities, so that a browser that guesses the media type does not run scripts in an error text.
fn escape_html(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;"),
    )
}

#[cfg(test)]
mod tests;
