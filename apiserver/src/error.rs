//! What does a client read when a request fails, and with which HTTP code?
//!
//! [`ApiError`] carries the answer for the client (a `metav1.Status`, or for a few outer filters plain text) apart from
//! the cause that only the log may see. It is the only place that chooses HTTP codes; clients match reasons, codes and
//! many of the texts, so every constructor spells one row of Kubernetes' own vocabulary. Start at the constructors.

use std::{borrow::Cow, fmt};

use bytes::Bytes;
use drydock_machinery::field_error::{ErrorList, quoted};
use http::StatusCode;
use serde::{Deserialize, Serialize};

/// The largest accepted request body in bytes: 3 MiB.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// A plural resource with its group: prints as `evictionrequests.coordination.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupResource<'a> {
    /// API group; empty for core.
    pub group: &'a str,
    /// Plural resource name (or the kind, where a message speaks of kinds).
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

    fn code(self) -> StatusCode {
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

    fn failure(code: StatusCode, reason: Option<Reason>, message: impl Into<Cow<'static, str>>) -> Self {
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

/// How the answer is written: most failures are a Status, those of a few outer filters plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Status,
    Text,
}

/// A failed request: what the client may read, and the cause for the log.
#[derive(thiserror::Error)]
#[error("{}", .0.status.message)]
pub struct ApiError(Box<Inner>);

struct Inner {
    status: Status,
    form: Form,
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

/// `&`, `<`, `>` as HTML entities: 403 texts are made safe for browsers that sniff.
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

/// What a refused resource request wanted to do, for the text of its 403.
#[derive(Clone, Copy, Debug)]
pub struct DeniedResource<'a> {
    /// The user's name.
    pub user: &'a str,
    /// Authorization verb; may be empty.
    pub verb: &'a str,
    /// API group.
    pub group: &'a str,
    /// Plural resource.
    pub resource: &'a str,
    /// Subresource, or empty.
    pub subresource: &'a str,
    /// Namespace, or empty for cluster scope.
    pub namespace: &'a str,
    /// Object name, or empty.
    pub name: &'a str,
}

impl ApiError {
    fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self::from_status(Status::failure(reason.code(), Some(reason), message))
    }

    fn from_status(status: Status) -> Self {
        Self(Box::new(Inner {
            status,
            form: Form::Status,
            nosniff: false,
            cause: None,
        }))
    }

    fn text(code: StatusCode, reason: Option<Reason>, message: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Self::from_status(Status::failure(code, reason, message));
        error.0.form = Form::Text;
        error.0.nosniff = true;
        error
    }

    fn about(mut self, object: GroupResource<'_>, name: &str) -> Self {
        let details = self.0.status.details.get_or_insert_default();
        name.clone_into(&mut details.name);
        object.group.clone_into(&mut details.group);
        object.resource.clone_into(&mut details.kind);
        self
    }

    // === object errors

    /// 404: no such object.
    #[must_use]
    pub fn not_found(resource: GroupResource<'_>, name: &str) -> Self {
        Self::new(Reason::NotFound, format!("{resource} {} not found", quoted(name))).about(resource, name)
    }

    /// 409: an object of that name exists.
    #[must_use]
    pub fn already_exists(resource: GroupResource<'_>, name: &str) -> Self {
        Self::new(
            Reason::AlreadyExists,
            format!("{resource} {} already exists", quoted(name)),
        )
        .about(resource, name)
    }

    /// 409: an object of that name exists and is on its way out.
    #[must_use]
    pub fn already_exists_deleting(resource: GroupResource<'_>, name: &str) -> Self {
        Self::new(
            Reason::AlreadyExists,
            format!(
                "object is being deleted: {resource} {} already exists",
                quoted(name)
            ),
        )
        .about(resource, name)
    }

    /// 409, retry after 1 s: every generated name was taken.
    #[must_use]
    pub fn generated_name_taken(resource: GroupResource<'_>, name: &str) -> Self {
        Self::new(
            Reason::AlreadyExists,
            format!(
                "{resource} {} already exists, the server was not able to generate a unique name for the object",
                quoted(name)
            ),
        )
        .about(resource, name)
        .retry_after(1)
    }

    /// 409: the object changed meanwhile or a precondition failed; `why` completes the sentence.
    #[must_use]
    pub fn conflict(resource: GroupResource<'_>, name: &str, why: impl fmt::Display) -> Self {
        Self::new(
            Reason::Conflict,
            format!(
                "Operation cannot be fulfilled on {resource} {}: {why}",
                quoted(name)
            ),
        )
        .about(resource, name)
    }

    /// 409: fields have other owners. Details hold the causes alone.
    #[must_use]
    pub fn apply_conflict(message: String, causes: Vec<StatusCause>) -> Self {
        Self::new(Reason::Conflict, message).causes(causes)
    }

    /// 410: the revision or continue token is gone; `continue_token` lets a client go on inconsistently, or is empty.
    #[must_use]
    pub fn expired(message: impl Into<Cow<'static, str>>, continue_token: String) -> Self {
        let mut error = Self::new(Reason::Expired, message);
        error.0.status.metadata.continue_token = continue_token;
        error
    }

    /// 422 from faults that are already texts: `body` is `field: fault` of each. Duplicates print once.
    #[must_use]
    pub fn invalid(kind: GroupResource<'_>, name: &str, causes: Vec<StatusCause>) -> Self {
        let mut bodies: Vec<String> = Vec::with_capacity(causes.len());
        for cause in &causes {
            let body = if cause.field.is_empty() {
                cause.message.clone()
            } else {
                format!("{}: {}", cause.field, cause.message)
            };
            if !bodies.contains(&body) {
                bodies.push(body);
            }
        }
        let list = match bodies.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Self::new(
            Reason::Invalid,
            format!("{kind} {} is invalid: {list}", quoted(name)),
        )
        .about(kind, name)
        .causes(causes)
    }

    /// 422 from the faults a validation found; `kind` carries the Kind, not the plural.
    #[must_use]
    pub fn invalid_fields(kind: GroupResource<'_>, name: &str, faults: &ErrorList) -> Self {
        let causes = faults.iter().map(|fault| StatusCause {
            reason: Cow::Borrowed(fault.reason()),
            message: fault.body().to_owned(),
            field: fault.field().to_owned(),
        });
        Self::new(Reason::Invalid, faults.invalid_message(&kind.to_string(), name))
            .about(kind, name)
            .causes(causes.collect())
    }

    /// 403 of an admission rule: `why` is the rule's own text. `name` may be empty.
    #[must_use]
    pub fn forbidden(resource: GroupResource<'_>, name: &str, why: impl fmt::Display) -> Self {
        let message = if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} {} is forbidden: {why}", quoted(name))
        };
        Self::new(Reason::Forbidden, message).about(resource, name)
    }

    /// 403: nothing new in a namespace that is being deleted. Clients match the cause.
    #[must_use]
    pub fn namespace_terminating(resource: GroupResource<'_>, name: &str, namespace: &str) -> Self {
        Self::forbidden(
            resource,
            name,
            format_args!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            ),
        )
        .causes(vec![StatusCause {
            reason: Cow::Borrowed("NamespaceTerminating"),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        }])
    }

    /// 404: the namespace of a create does not exist.
    #[must_use]
    pub fn namespace_not_found(namespace: &str) -> Self {
        Self::not_found(
            GroupResource {
                group: "",
                resource: "namespaces",
            },
            namespace,
        )
    }

    /// 403 of the authorizer for a resource; `reason` is the authorizer's own, or empty.
    #[must_use]
    pub fn denied(denied: DeniedResource<'_>, reason: &str) -> Self {
        let resource = GroupResource {
            group: denied.group,
            resource: denied.resource,
        };
        Self::forbidden(resource, denied.name, denial_text(denied, reason))
            .escaped()
            .nosniff()
    }

    /// 403 of the authorizer for a path, `verb` being the lower-case HTTP method.
    #[must_use]
    pub fn denied_path(user: &str, verb: &str, path: &str, reason: &str) -> Self {
        let mut message = format!(
            "forbidden: User {} cannot {verb} path {}",
            quoted(user),
            quoted(path)
        );
        append_reason(&mut message, reason);
        Self::new(Reason::Forbidden, message)
            .empty_details()
            .escaped()
            .nosniff()
    }

    // === request errors

    /// 401. Reveals nothing about the cause.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(Reason::Unauthorized, "Unauthorized")
    }

    /// 400.
    #[must_use]
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 422 of a patch whose operations do not fit the object; clients look at the code alone.
    #[must_use]
    pub fn unprocessable() -> Self {
        Self::new(
            Reason::Invalid,
            "the server rejected our request due to an error in our request",
        )
        .empty_details()
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

    /// 405 of a handler: `action` is a verb such as `list`.
    #[must_use]
    pub fn not_supported(resource: GroupResource<'_>, action: &str) -> Self {
        Self::new(
            Reason::MethodNotAllowed,
            format!("{action} is not supported on resources of kind \"{resource}\""),
        )
        .about(resource, "")
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

    /// 406: the media types fit, the transform asked for does not. `target` is `Kind, group/version`.
    #[must_use]
    pub fn not_acceptable_transform(target: &str, available: &[&str]) -> Self {
        Self::new(
            Reason::NotAcceptable,
            format!(
                "only the following media types are accepted when converting to {target}: {}",
                available.join(", ")
            ),
        )
    }

    /// 406 with a free text.
    #[must_use]
    pub fn not_acceptable_because(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::NotAcceptable, message)
    }

    /// 406 of the router: no produced type fits at all.
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

    /// 413 with a free text: too many patch operations, an object above the store's limit.
    #[must_use]
    pub fn too_large(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::RequestEntityTooLarge, message)
    }

    // === load and time

    /// 429 as a Status, for instance `storage is (re)initializing`.
    #[must_use]
    pub fn too_many_requests(message: impl Into<Cow<'static, str>>, retry_after_seconds: u32) -> Self {
        Self::new(Reason::TooManyRequests, message).retry_after(retry_after_seconds)
    }

    /// 429 as text: more requests in flight than the server takes.
    #[must_use]
    pub fn overloaded() -> Self {
        Self::text(
            StatusCode::TOO_MANY_REQUESTS,
            Some(Reason::TooManyRequests),
            "Too many requests, please try again later.\n",
        )
        .retry_after(1)
    }

    /// 429 as text: the listener is closed and this connection should go elsewhere.
    #[must_use]
    pub fn shutting_down() -> Self {
        Self::text(
            StatusCode::TOO_MANY_REQUESTS,
            Some(Reason::TooManyRequests),
            "The apiserver is shutting down, please try again later.\n",
        )
        .retry_after(5)
    }

    /// 503 as text: the server no longer takes requests at all.
    #[must_use]
    pub fn shut_down() -> Self {
        Self::text(
            StatusCode::SERVICE_UNAVAILABLE,
            Some(Reason::ServiceUnavailable),
            "apiserver is shutting down.\n",
        )
        .retry_after(5)
    }

    /// 504 of a handler whose own bound passed: [`ApiError::deadline_exceeded`] is the usual text.
    #[must_use]
    pub fn timeout(text: impl fmt::Display) -> Self {
        Self::new(Reason::Timeout, format!("Timeout: {text}"))
    }

    /// 504: the 34 s of a write are over. It may still commit.
    #[must_use]
    pub fn deadline_exceeded() -> Self {
        Self::timeout("request did not complete within requested timeout - context deadline exceeded")
            .empty_details()
    }

    /// 504 of the outer filter: the request's whole time is over.
    #[must_use]
    pub fn request_timeout() -> Self {
        Self::timeout("request did not complete within the allotted timeout")
    }

    /// 504: the asked resource version lies in the future. The reference retries after 1 s.
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

    /// 500 with reason `ServerTimeout`: the operation did not finish; retry after 2 s.
    #[must_use]
    pub fn server_timeout(resource: GroupResource<'_>, operation: &str) -> Self {
        let mut error = Self::new(
            Reason::ServerTimeout,
            format!(
                "The {operation} operation against {resource} could not be completed at this time, please try again."
            ),
        )
        .about(resource, operation)
        .retry_after(2);
        if let Some(details) = &mut error.0.status.details {
            details.group.clear();
            details.kind = resource.to_string();
        }
        error
    }

    /// 503 as a Status.
    #[must_use]
    pub fn service_unavailable(message: impl Into<Cow<'static, str>>, retry_after_seconds: u32) -> Self {
        Self::new(Reason::ServiceUnavailable, message).retry_after(retry_after_seconds)
    }

    /// 503 in place of a 404 while not every path is installed: a false 404 would make the garbage collector delete.
    #[must_use]
    pub fn not_ready() -> Self {
        Self::service_unavailable(
            "the request has been made before all known HTTP paths have been installed, please try again",
            5,
        )
    }

    // === faults of the server

    /// 500 `Internal error occurred: …`. The text goes to the client; see [`ApiError::because`] for the cause.
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

    /// 500 with an empty reason: what the reference answers for errors it does not classify.
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

    /// The verdict of somebody else, such as an admission webhook's own Status; `code` outside 400..=599 becomes 500.
    #[must_use]
    pub fn foreign(mut status: Status, code: u16) -> Self {
        status.code = if (400..600).contains(&code) { code } else { 500 };
        status.status = Cow::Borrowed("Failure");
        Self::from_status(status)
    }

    // === additions

    /// Keeps what happened for the log; the client does not see it.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// Sets `details.retryAfterSeconds` and so the Retry-After header.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.0.status.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// Sets the causes.
    #[must_use]
    pub fn causes(mut self, causes: Vec<StatusCause>) -> Self {
        self.0.status.details.get_or_insert_default().causes = causes;
        self
    }

    /// Sets `details.uid`.
    #[must_use]
    pub fn uid(mut self, uid: &str) -> Self {
        uid.clone_into(&mut self.0.status.details.get_or_insert_default().uid);
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
        }
        self
    }

    // === what callers ask

    /// The HTTP code of the answer.
    #[must_use]
    pub fn code(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Whether this is the reason clients read.
    #[must_use]
    pub fn is(&self, reason: Reason) -> bool {
        self.0.status.reason == reason.as_str()
    }

    /// The Status to encode in another media type.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.0.status
    }

    /// Whether the answer is plain text whatever the client accepts.
    #[must_use]
    pub fn is_text(&self) -> bool {
        self.0.form == Form::Text
    }

    /// Whether the response tells browsers not to guess its media type.
    #[must_use]
    pub fn is_nosniff(&self) -> bool {
        self.0.nosniff
    }

    /// Seconds after which the client should retry; none when it should not.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u32> {
        let details = self.0.status.details.as_ref()?;
        (details.retry_after_seconds > 0).then_some(details.retry_after_seconds)
    }

    /// What happened, for the log.
    #[must_use]
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.0.cause.as_deref()
    }

    /// The Status as JSON with a newline at its end; `pretty` indents by two spaces.
    #[must_use]
    pub fn json(&self, pretty: bool) -> Bytes {
        let encoded = if pretty {
            serde_json::to_vec_pretty(self.status())
        } else {
            serde_json::to_vec(self.status())
        };
        // A Status holds only text and numbers, so encoding cannot fail; an empty body is a safe answer anyway.
        let mut body = encoded.unwrap_or_default();
        body.push(b'\n');
        body.into()
    }
}

/// `User "u" cannot delete resource "pods" in API group "" in the namespace "ns"`, with `: reason` where there is one.
#[must_use]
pub fn denial_text(denied: DeniedResource<'_>, reason: &str) -> String {
    let mut text = format!(
        "User {} cannot {} resource \"{}",
        quoted(denied.user),
        denied.verb,
        denied.resource
    );
    if !denied.subresource.is_empty() {
        text.push('/');
        text.push_str(denied.subresource);
    }
    text.push_str("\" in API group \"");
    text.push_str(denied.group);
    text.push('"');
    if denied.namespace.is_empty() {
        text.push_str(" at the cluster scope");
    } else {
        text.push_str(" in the namespace \"");
        text.push_str(denied.namespace);
        text.push('"');
    }
    append_reason(&mut text, reason);
    text
}

fn append_reason(text: &mut String, reason: &str) {
    if !reason.is_empty() {
        text.push_str(": ");
        text.push_str(reason);
    }
}

#[cfg(test)]
mod tests;
