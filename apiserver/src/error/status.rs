//! `metav1.Status` on the wire: its members, reasons and causes.

use std::borrow::Cow;

use http::StatusCode;
use serde::{Deserialize, Serialize};

/// Why a request failed. Clients match it with `apierrors.IsNotFound` and the like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object, resource or path does not exist.
    NotFound,
    /// An object with this name exists.
    AlreadyExists,
    /// A concurrent write changed the object, or a precondition failed.
    Conflict,
    /// The revision or the continue token is older than the retained history.
    Expired,
    /// The object is not valid.
    Invalid,
    /// The user does not have permission.
    Forbidden,
    /// The client is not authenticated.
    Unauthorized,
    /// The request is malformed.
    BadRequest,
    /// The path does not support the method.
    MethodNotAllowed,
    /// The client accepts no available media type.
    NotAcceptable,
    /// The media type of the body is not supported.
    UnsupportedMediaType,
    /// The body exceeds the limit.
    RequestEntityTooLarge,
    /// The server is overloaded; retry later.
    TooManyRequests,
    /// The request timed out; a write may still commit.
    Timeout,
    /// The operation did not finish in time; retry.
    ServerTimeout,
    /// The server is temporarily unavailable.
    ServiceUnavailable,
    /// An error of the server.
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

/// `metav1.Status` on the wire. Members are in the order of Kubernetes; empty ones except `metadata` are omitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Always `Status`.
    pub kind: Cow<'static, str>,
    /// Always `v1`.
    pub api_version: Cow<'static, str>,
    /// List metadata: the new continue token of an expired page.
    pub metadata: StatusMetadata,
    /// `Success` or `Failure`.
    pub status: Cow<'static, str>,
    /// For people. Some programs match it nevertheless.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub message: Cow<'static, str>,
    /// For programs: a [`Reason`]. Empty for unclassified server errors.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub reason: Cow<'static, str>,
    /// The object and the causes. `Some` of an empty value is encoded as `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// The HTTP code; 0 (omitted) for a success.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code: u16,
}

/// The list metadata of a [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusMetadata {
    /// The token with which an expired list can be continued inconsistently.
    #[serde(default, rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
}

/// The object of a [`Status`], and the causes of the error.
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
    /// One entry for each error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// Seconds to wait before a retry; 0 (omitted) if the client should not retry.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// One cause of an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusCause {
    /// For programs: `FieldValueRequired`, `NamespaceTerminating`.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub reason: Cow<'static, str>,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The path of the field in the object: `spec.requesters[1].name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// Numbers are omitted when 0, as by Go's `omitempty`.
fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

impl Status {
    /// The Status of a successful request, such as a delete that has removed the object.
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
