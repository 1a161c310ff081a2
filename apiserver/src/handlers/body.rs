//! Decodes and checks request bodies.

use bytes::Bytes;
use drydock_machinery::codec::protobuf::{self, Message};
use drydock_machinery::codec::{self, DecodeError, Decoded, FieldValidation};
use drydock_storage::Store;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use super::call::Call;
use crate::error::ApiError;
use crate::registry::catalog::Catalog;
use crate::registry::endpoint::Endpoint;
use crate::request::negotiate::MediaType;

/// The media types that a 415 lists.
const BODY_TYPES: &[&str] = &["application/json", "application/yaml"];

/// The encoding of the body; JSON if there is no `Content-Type`.
///
/// # Errors
/// 415 for any other type.
pub(super) fn content_type(headers: &HeaderMap) -> Result<MediaType, ApiError> {
    let text = headers
        .get(CONTENT_TYPE)
        .map_or(Ok(""), |value| value.to_str())
        .unwrap_or("?");
    match text.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" | "*/*" => Ok(MediaType::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(MediaType::Yaml),
        _ => Err(ApiError::unsupported_media_type(BODY_TYPES)),
    }
}

/// Decodes a body as JSON or YAML.
///
/// # Errors
/// The syntax error.
pub(super) fn decode(bytes: &[u8], media_type: MediaType) -> Result<Decoded, DecodeError> {
    match media_type {
        MediaType::Json => codec::json::decode(bytes),
        MediaType::Yaml => codec::yaml::decode(bytes),
    }
}

/// Whether the `Content-Type` is protobuf.
#[must_use]
pub fn is_protobuf(headers: &HeaderMap) -> bool {
    let text = headers
        .get(CONTENT_TYPE)
        .map_or(Ok(""), |value| value.to_str())
        .unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim() == protobuf::MEDIA_TYPE
}

/// Decodes a protobuf body to JSON.
///
/// # Errors
/// 400 for bytes that are not such a message.
pub fn decode_protobuf(bytes: &[u8], message: Message) -> Result<Value, ApiError> {
    protobuf::decode(bytes, message).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// Decodes the body of a create or update into an object in the version of the endpoint that fits its schema, with
/// defaults applied.
///
/// # Errors
/// 400 for a body that cannot be decoded, for another kind or version, and with strict validation for unknown and duplicate
/// fields.
pub(super) fn decode_object<S: Store>(
    call: &Call<'_, S>,
    bytes: &Bytes,
    media_type: MediaType,
    validation: FieldValidation,
) -> Result<Value, ApiError> {
    let endpoint = &call.endpoint;
    let decoded = decode(bytes, media_type).map_err(|error| undecodable(endpoint, bytes, &error))?;
    let mut object = decoded.value;
    if object.is_null() {
        object = Value::Object(Map::new());
    }
    check_type(call.catalog, endpoint, &mut object, bytes)?;
    let unknown = endpoint
        .conform(&mut object)
        .map_err(|error| cannot_be_handled(endpoint, &error))?;
    let strict = match media_type {
        MediaType::Json => codec::strict_errors_in(bytes, decoded.duplicates, unknown),
        MediaType::Yaml => codec::strict_errors(decoded.duplicates, unknown),
    };
    let warnings = validation
        .check(strict)
        .map_err(|error| cannot_be_handled(endpoint, &error))?;
    for warning in &warnings {
        call.context.warnings.add(warning.to_string());
    }
    Ok(object)
}

fn cannot_be_handled(endpoint: &Endpoint, why: &dyn std::fmt::Display) -> ApiError {
    ApiError::bad_request(codec::cannot_be_handled(
        endpoint.kind(),
        endpoint.face().version,
        why,
    ))
}

fn undecodable(endpoint: &Endpoint, bytes: &Bytes, error: &DecodeError) -> ApiError {
    let start: String =
        String::from_utf8_lossy(bytes.get(..30.min(bytes.len())).unwrap_or_default()).into_owned();
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {error} ({start})",
        endpoint.kind()
    ))
}

/// Checks kind and version. If the body has none, those of the endpoint are set.
fn check_type(
    catalog: &Catalog,
    endpoint: &Endpoint,
    object: &mut Value,
    bytes: &Bytes,
) -> Result<(), ApiError> {
    let (kind, face) = (endpoint.kind(), endpoint.face());
    let Some(members) = object.as_object_mut() else {
        let error = DecodeError::wrong_type(object, "value", &format!("{}.{kind}", face.version));
        return Err(undecodable(endpoint, bytes, &error));
    };
    let sent = |member: &str| members.get(member).and_then(Value::as_str).unwrap_or_default();
    let (sent_kind, sent_version) = (sent("kind"), sent("apiVersion"));
    if !sent_kind.is_empty() && sent_kind != kind {
        return Err(cannot_be_handled(
            endpoint,
            &format!(
                "converting ({sent_version}.{sent_kind}) to ({}.{kind}): unknown conversion",
                face.version
            ),
        ));
    }
    if !sent_version.is_empty() && *sent_version != *face.api_version {
        let mut faces = catalog.iter().flat_map(|resource| &resource.faces);
        return Err(
            if faces.any(|face| face.names.kind == kind && *face.api_version == *sent_version) {
                ApiError::bad_request(format!(
                    "the API version in the data ({sent_version}) does not match the expected API version ({})",
                    face.api_version
                ))
            } else {
                let short = sent_version.rsplit('/').next().unwrap_or_default();
                ApiError::bad_request(codec::cannot_be_handled(
                    kind,
                    short,
                    &format!("no kind \"{kind}\" is registered for version \"{sent_version}\""),
                ))
            },
        );
    }
    members.insert("kind".to_owned(), kind.into());
    members.insert("apiVersion".to_owned(), (*face.api_version).into());
    Ok(())
}
