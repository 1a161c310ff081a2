//! `metav1.Status` on the wire: its members, reasons and causes.

use std::borrow::Cow;

use http::StatusCode;
use serde::{Deserialize, Serialize};

/// Why a request failed, as clients' `apierrors.IsX` read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object, resource or path does not exist.
    NotFound,
    /// An object of that name exists.
    AlreadyExists,
    /// The object changed meanwhile, or a precondition failed.
    Conflict,
    /// The revision or continue token is older than what is kept.
    Expired,
    /// The object breaks a rule of its kind.
    Invalid,
    /// The user may not do this.
    Forbidden,
    /// The user is unknown.
    Unauthorized,
    /// The request makes no sense.
    BadRequest,
    /// No handler for this method.
    MethodNotAllowed,
    /// No acceptable response type.
    NotAcceptable,
    /// Unknown request body type.
    UnsupportedMediaType,
    /// The body exceeds the limit.
    RequestEntityTooLarge,
    /// Back off and retry.
    TooManyRequests,
    /// The time for the request is over; a write may still commit.
    Timeout,
    /// The operation could not be finished in time; retry.
    ServerTimeout,
    /// Not able to serve now.
    ServiceUnavailable,
    /// A fault of the server.
    InternalError,
    /// A stored object cannot be decoded.
    StorageReadError,
}

impl Reason {
    /// The spelling on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Expired => "Expired",
            Self::Invalid => "Invalid",
            Self::Forbidden => "Forbidden",
            Self::Unauthorized => "Unauthorized",
            Self::BadRequest => "BadRequest",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::TooManyRequests => "TooManyRequests",
            Self::Timeout => "Timeout",
            Self::ServerTimeout => "ServerTimeout",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::InternalError => "InternalError",
            Self::StorageReadError => "StorageReadError",
        }
    }

    pub(super) fn code(self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists | Self::Conflict => StatusCode::CONFLICT,
            Self::Expired => StatusCode::GONE,
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::RequestEntityTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::ServerTimeout | Self::InternalError | Self::StorageReadError => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }
}

/// `metav1.Status` on the wire; members in the order Kubernetes prints them, empty ones left out except `metadata`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Always `Status`.
    pub kind: Cow<'static, str>,
    /// Always `v1`.
    pub api_version: Cow<'static, str>,
    /// List metadata; carries the fresh continue token of an expired page.
    pub metadata: StatusMetadata,
    /// `Success` or `Failure`.
    pub status: Cow<'static, str>,
    /// For people, and sadly matched by some programs.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub message: Cow<'static, str>,
    /// For programs: a [`Reason`], or free text in the verdict of a webhook. Empty on unclassified server errors.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub reason: Cow<'static, str>,
    /// What the message speaks of. `Some` of an empty value prints as `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// The HTTP status of the answer; 0 (left out) on a success.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code: u16,
}

/// The list metadata of a [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusMetadata {
    /// Where an expired list can go on, inconsistently.
    #[serde(default, rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
}

/// The object a [`Status`] speaks of and the single faults found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDetails {
    /// Object name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Plural resource; the Kind for `Invalid`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// `metadata.uid` of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// One entry per fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// Seconds to wait before a retry; 0 = not retryable by that promise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// One fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusCause {
    /// Such as `FieldValueRequired`, `NamespaceTerminating`.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub reason: Cow<'static, str>,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field in the object, `spec.requesters[1].name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// Number members are left out when 0, as Go's `omitempty` does.
fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

impl Status {
    /// The Status that answers a delete which removed the object.
    #[must_use]
    pub fn success(details: StatusDetails) -> Self {
        Self {
            kind: Cow::Borrowed("Status"),
            api_version: Cow::Borrowed("v1"),
            metadata: StatusMetadata::default(),
            status: Cow::Borrowed("Success"),
            message: Cow::Borrowed(""),
            reason: Cow::Borrowed(""),
            details: Some(details),
            code: 0,
        }
    }

    pub(super) fn failure(
        code: StatusCode,
        reason: Option<Reason>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            kind: Cow::Borrowed("Status"),
            api_version: Cow::Borrowed("v1"),
            metadata: StatusMetadata::default(),
            status: Cow::Borrowed("Failure"),
            message: message.into(),
            reason: Cow::Borrowed(reason.map_or("", Reason::as_str)),
            details: None,
            code: code.as_u16(),
        }
    }
}
