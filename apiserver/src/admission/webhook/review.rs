//! `AdmissionReview`: the question to a webhook, and the rules for its answer. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::admission::attributes::Attributes;
use crate::admission::matching::operation;
use crate::error::{ApiError, StatusDetails};
use crate::registry::endpoint::Endpoint;
use crate::request::UserInfo;

/// A version of the review that this server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewVersion {
    /// `v1`.
    V1,
    /// `v1beta1`.
    V1Beta1,
}

impl ReviewVersion {
    /// The first version of a webhook's list that this server knows.
    pub fn first_known(listed: &[String]) -> Option<Self> {
        listed.iter().find_map(|version| match version.as_str() {
            "v1" => Some(Self::V1),
            "v1beta1" => Some(Self::V1Beta1),
            _ => None,
        })
    }

    const fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "admission.k8s.io/v1",
            Self::V1Beta1 => "admission.k8s.io/v1beta1",
        }
    }

    const fn short(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}

#[derive(Serialize)]
struct Kind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

#[derive(Serialize)]
struct Resource<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
}

#[derive(Serialize)]
struct User<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: &'a str,
    kind: Kind<'a>,
    resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: Kind<'a>,
    request_resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'static str,
    user_info: User<'a>,
    object: Option<&'a Value>,
    old_object: Option<&'a Value>,
    dry_run: bool,
    options: Value,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    kind: &'static str,
    api_version: &'static str,
    request: Request<'a>,
}

fn kind(endpoint: &Endpoint) -> Kind<'_> {
    Kind {
        group: endpoint.resource().group,
        version: endpoint.face().version,
        kind: endpoint.kind(),
    }
}

fn resource(endpoint: &Endpoint) -> Resource<'_> {
    Resource {
        group: endpoint.resource().group,
        version: endpoint.face().version,
        resource: endpoint.face().names.plural,
    }
}

fn user(user: &UserInfo) -> User<'_> {
    User {
        username: &user.name,
        uid: &user.uid,
        groups: &user.groups,
        extra: &user.extra,
    }
}

/// The review of a write, with its objects in the version in which the webhook matched. `uid` identifies the call.
///
/// # Errors
/// 500 for a bug in a conversion.
pub fn question(
    attributes: &Attributes<'_>,
    endpoint: &Endpoint,
    version: ReviewVersion,
    uid: &str,
) -> Result<Bytes, ApiError> {
    let write = attributes.write();
    let question = Question {
        kind: "AdmissionReview",
        api_version: version.api_version(),
        request: Request {
            uid,
            kind: kind(endpoint),
            resource: resource(endpoint),
            sub_resource: attributes.subresource(),
            request_kind: kind(write.endpoint),
            request_resource: resource(write.endpoint),
            request_sub_resource: attributes.subresource(),
            name: attributes.name(),
            namespace: write.namespace,
            operation: operation(write.operation),
            user_info: user(write.caller.user),
            object: attributes.object(endpoint)?,
            old_object: attributes.old_object(endpoint)?,
            dry_run: write.dry_run,
            options: attributes.options(),
        },
    };
    let encoded = serde_json::to_vec(&question).map_err(ApiError::internal)?;
    Ok(encoded.into())
}

/// Null is the default, as in Go.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct AnswerWire {
    #[serde(deserialize_with = "or_default")]
    api_version: String,
    #[serde(deserialize_with = "or_default")]
    kind: String,
    response: Option<ResponseWire>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ResponseWire {
    #[serde(deserialize_with = "or_default")]
    uid: String,
    #[serde(deserialize_with = "or_default")]
    allowed: bool,
    status: Option<StatusWire>,
    #[serde(deserialize_with = "or_default")]
    patch: String,
    patch_type: Option<String>,
    #[serde(deserialize_with = "or_default")]
    audit_annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    warnings: Vec<String>,
}

/// `metav1.Status` as a webhook sends it.
#[derive(Debug, Clone, Deserialize, Default, PartialEq, Eq)]
#[serde(default)]
pub struct StatusWire {
    /// For people.
    #[serde(deserialize_with = "or_default")]
    pub message: String,
    /// For programs.
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    /// The object and the causes.
    pub details: Option<StatusDetails>,
    /// The HTTP code.
    #[serde(deserialize_with = "or_default")]
    pub code: i64,
    #[serde(deserialize_with = "or_default")]
    status: String,
}

/// An answer that keeps the rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Whether the request may go on.
    pub allowed: bool,
    /// Why not.
    pub status: Option<StatusWire>,
    /// A JSON patch; empty if there is none.
    pub patch: Vec<u8>,
    /// The type of the patch; empty if there is none.
    pub patch_type: String,
    /// Annotations for the audit event.
    pub audit_annotations: BTreeMap<String, String>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}

/// Why an answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// It is no review, or an HTTP error.
    #[error("failed to call webhook: {0}")]
    Call(String),
    /// It breaks a rule of reviews.
    #[error("received invalid webhook response: {0}")]
    Invalid(String),
}

fn media_type(headers: &HeaderMap) -> &str {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Reads an HTTP response.
///
/// # Errors
/// [`AnswerError`].
pub fn read(
    code: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    version: ReviewVersion,
    uid: &str,
    is_mutating: bool,
) -> Result<Answer, AnswerError> {
    let media_type = media_type(headers);
    if !(200..=206).contains(&code.as_u16()) {
        return Err(AnswerError::Call(http_error(code, media_type, body)));
    }
    if body.is_empty() {
        return Err(AnswerError::Call(format!(
            "0-length response with status code: {} and content type: {media_type}",
            code.as_u16()
        )));
    }
    let plain = media_type.split(';').next().unwrap_or_default().trim();
    if !matches!(plain, "" | "application/json") {
        return Err(AnswerError::Call(format!(
            "serializer for {media_type} doesn't exist"
        )));
    }
    check(body, version, uid, is_mutating)
}

/// What the Go client says about a response that is an error.
fn http_error(code: StatusCode, media_type: &str, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Failure {
        kind: String,
        #[serde(default)]
        message: String,
    }
    if let Ok(failure) = serde_json::from_slice::<Failure>(body)
        && failure.kind == "Status"
        && !failure.message.is_empty()
    {
        return failure.message;
    }
    let is_text = media_type.is_empty() || media_type.starts_with("text/");
    let said = if is_text {
        let text = String::from_utf8_lossy(body);
        drydock_machinery::excerpt::cut(text.trim(), 2048).into_owned()
    } else {
        "unknown".to_owned()
    };
    match code.as_u16() {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 | 415 => said,
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        406 if said.is_empty() || said == "unknown" => {
            "the server was unable to respond with a content type that the client supports".to_owned()
        }
        406 => said,
        409 => "the server reported a conflict".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the \
                request"
            .to_owned(),
        500.. => format!("an error on the server ({said:?}) has prevented the request from succeeding"),
        code => format!("the server responded with the status code {code} but did not return more information"),
    }
}

/// Reads the body of a response and checks it against the rules of its version.
fn check(body: &[u8], version: ReviewVersion, uid: &str, is_mutating: bool) -> Result<Answer, AnswerError> {
    let invalid = |text: String| Err(AnswerError::Invalid(text));
    let decoded: AnswerWire =
        serde_json::from_slice(body).map_err(|error| AnswerError::Call(decode_text(body, &error)))?;
    let is_other_kind = !decoded.kind.is_empty() && decoded.kind != "AdmissionReview";
    let is_other_group =
        !decoded.api_version.is_empty() && !decoded.api_version.starts_with("admission.k8s.io/v1");
    if is_other_kind || is_other_group {
        return Err(AnswerError::Call(format!(
            "no kind \"{}\" is registered for version \"{}\" in scheme \"pkg/runtime/scheme.go:110\"",
            decoded.kind, decoded.api_version
        )));
    }
    let is_other_version = !decoded.api_version.is_empty() && decoded.api_version != version.api_version();
    if is_other_version {
        let found = decoded.api_version.rsplit('/').next().unwrap_or_default();
        let wanted = version.short();
        return Err(AnswerError::Call(format!(
            "converting ({found}.AdmissionReview) to ({wanted}.AdmissionReview): unknown conversion"
        )));
    }
    let Some(response) = decoded.response else {
        return invalid("webhook response was absent".to_owned());
    };
    let patch = STANDARD
        .decode(response.patch.as_bytes())
        .map_err(|error| AnswerError::Call(format!("illegal base64 data in response.patch: {error}")))?;
    let mut patch_type = response.patch_type.clone().unwrap_or_default();
    match version {
        ReviewVersion::V1 => {
            if response.uid != uid {
                return invalid(format!("expected response.uid={uid:?}, got {:?}", response.uid));
            }
            if decoded.kind.is_empty() || decoded.api_version.is_empty() {
                let (group, version_found) = decoded.api_version.split_once('/').unwrap_or_default();
                return invalid(format!(
                    "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {group}/{version_found}, \
                     Kind={}",
                    decoded.kind
                ));
            }
            match (is_mutating, patch.is_empty(), &response.patch_type) {
                (true, false, None) => {
                    return invalid("webhook returned response.patch but not response.patchType".to_owned());
                }
                (true, true, Some(_)) => {
                    return invalid("webhook returned response.patchType but not response.patch".to_owned());
                }
                (true, _, Some(type_)) if type_.is_empty() => {
                    return invalid(format!(
                        "webhook returned invalid response.patchType of {type_:?}"
                    ));
                }
                (false, false, _) => {
                    return invalid("validating webhook may not return response.patch".to_owned());
                }
                (false, _, Some(_)) => {
                    return invalid("validating webhook may not return response.patchType".to_owned());
                }
                _ => {}
            }
        }
        ReviewVersion::V1Beta1 => patch_type = "JSONPatch".to_owned(),
    }
    Ok(Answer {
        allowed: response.allowed,
        status: response.status,
        patch: if is_mutating { patch } else { Vec::new() },
        patch_type,
        audit_annotations: response.audit_annotations,
        warnings: response.warnings,
    })
}

/// What the Go client says about a body that does not decode.
fn decode_text(body: &[u8], error: &serde_json::Error) -> String {
    match drydock_machinery::codec::json::decode(body) {
        Err(syntax) => format!("couldn't get version/kind; json parse error: {syntax}"),
        Ok(_) => error.to_string(),
    }
}

/// The response to the client for a denied request.
#[must_use]
pub fn denial(webhook: &str, status: Option<StatusWire>) -> ApiError {
    let status = status.unwrap_or_default();
    let denied_by = format!("admission webhook {webhook:?} denied the request");
    let message = match (status.message.as_str(), status.reason.as_str()) {
        ("", "") => format!("{denied_by} without explanation"),
        ("", reason) => format!("{denied_by}: {reason}"),
        (message, _) => format!("{denied_by}: {message}"),
    };
    let code = u16::try_from(status.code).unwrap_or_default().max(400);
    ApiError::rejected(code, status.reason, message, status.details)
}

/// Reads arbitrary answers, for the fuzzer: whatever it is, reading ends, and a denial is a response that can be sent.
pub fn fuzz_read(bytes: &[u8]) {
    for is_mutating in [false, true] {
        for version in [ReviewVersion::V1, ReviewVersion::V1Beta1] {
            let answer = read(
                StatusCode::OK,
                &HeaderMap::new(),
                bytes,
                version,
                "u",
                is_mutating,
            );
            if let Ok(answer) = answer {
                let error = denial("w", answer.status);
                assert!(error.code().as_u16() >= 400);
                assert!(error.json(false).len() <= 200 * 1024);
                let document = serde_json::json!({"metadata": {"name": "n"}, "spec": {"list": [1, 2]}});
                drop(drydock_machinery::patch::json::apply(&document, &answer.patch));
            }
        }
    }
    drop(read(
        StatusCode::BAD_GATEWAY,
        &HeaderMap::new(),
        bytes,
        ReviewVersion::V1,
        "u",
        false,
    ));
}

#[cfg(test)]
mod tests;
