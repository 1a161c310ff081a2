//! Decodes and checks request bodies.

use bytes::Bytes;
use drydock_machinery::codec::{self, DecodeError, Decoded, FieldValidation, cbor, protobuf};
use drydock_proto::protobuf::{META_V1_DELETE_OPTIONS, Message};
use drydock_storage::Store;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use super::call::Call;
use crate::error::ApiError;
use crate::registry::catalog::Catalog;
use crate::registry::endpoint::Endpoint;
use crate::request::negotiate::{MediaType, object_types};

/// How many bytes of a body an error quotes.
const QUOTED_BYTES: usize = 30;

/// The media type of a body, without parameters.
fn media_type(headers: &HeaderMap) -> &str {
    let text = headers
        .get(CONTENT_TYPE)
        .map_or(Ok(""), |value| value.to_str())
        .unwrap_or("?");
    text.split(';').next().unwrap_or_default().trim()
}

/// The encoding of the body; JSON if there is no `Content-Type`.
///
/// # Errors
/// 415 for any other type, and for protobuf if it is not read here.
pub(super) fn content_type(headers: &HeaderMap, has_protobuf: bool) -> Result<MediaType, ApiError> {
    MediaType::of_body(media_type(headers))
        .filter(|media_type| has_protobuf || *media_type != MediaType::Protobuf)
        .ok_or_else(|| ApiError::unsupported_media_type(object_types(has_protobuf)))
}

/// Why a body cannot be decoded.
enum Undecodable {
    /// It is not in its encoding.
    Syntax(String),
    /// It is in its encoding, but does not hold such an object.
    Content(String),
}

/// Decodes a body, in protobuf by this message.
fn decode(
    bytes: &[u8],
    media_type: MediaType,
    endpoint: &Endpoint,
    message: Option<&Message>,
) -> Result<Decoded, Undecodable> {
    let syntax = |error: &dyn std::fmt::Display| Undecodable::Syntax(error.to_string());
    let value = match (media_type, message) {
        (MediaType::Json, _) => return codec::json::decode(bytes).map_err(|error| syntax(&error)),
        (MediaType::Yaml, _) => return codec::yaml::decode(bytes).map_err(|error| syntax(&error)),
        (MediaType::Cbor, _) => cbor::decode(bytes).map_err(|error| syntax(&error))?,
        (MediaType::Protobuf, None) => return Err(Undecodable::Syntax("no protobuf message".to_owned())),
        (MediaType::Protobuf, Some(message)) => {
            protobuf::Envelope::parse(bytes).map_err(|error| syntax(&error))?;
            protobuf::decode(bytes, message, Some(&endpoint.face().schema))
                .map_err(|error| Undecodable::Content(error.to_string()))?
        }
    };
    Ok(Decoded {
        value,
        duplicates: Vec::new(),
    })
}

/// Decodes `DeleteOptions`.
///
/// # Errors
/// 400 with the text of the decoder.
pub(super) fn decode_options(bytes: &[u8], media_type: MediaType) -> Result<Value, ApiError> {
    let refuse = |error: &dyn std::fmt::Display| ApiError::bad_request(error.to_string());
    match media_type {
        MediaType::Json => codec::json::decode(bytes)
            .map(|decoded| decoded.value)
            .map_err(|error| {
                refuse(&format_args!(
                    "couldn't get version/kind; json parse error: {error}"
                ))
            }),
        MediaType::Yaml => codec::yaml::decode(bytes)
            .map(|decoded| decoded.value)
            .map_err(|error| refuse(&error)),
        MediaType::Cbor => cbor::decode(bytes).map_err(|error| refuse(&error)),
        MediaType::Protobuf => decode_protobuf(bytes, &META_V1_DELETE_OPTIONS),
    }
}

/// Whether the `Content-Type` is protobuf.
#[must_use]
pub fn is_protobuf(headers: &HeaderMap) -> bool {
    media_type(headers) == protobuf::MEDIA_TYPE
}

/// Decodes a protobuf body to JSON.
///
/// # Errors
/// 400 for bytes that are not such a message.
pub fn decode_protobuf(bytes: &[u8], message: &Message) -> Result<Value, ApiError> {
    protobuf::decode(bytes, message, None).map_err(|error| ApiError::bad_request(error.to_string()))
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
    let decoded = decode(bytes, media_type, endpoint, call.body_message()).map_err(|why| match why {
        Undecodable::Syntax(error) if media_type == MediaType::Json => {
            undecodable(endpoint, bytes, &type_unknown(&error))
        }
        Undecodable::Syntax(error) => undecodable(endpoint, bytes, &error),
        Undecodable::Content(error) => cannot_be_handled(endpoint, &error),
    })?;
    let mut object = decoded.value;
    if object.is_null() {
        object = Value::Object(Map::new());
    }
    check_type(call.catalog, endpoint, &mut object, bytes)?;
    let unknown = endpoint
        .conform(&mut object)
        .map_err(|error| cannot_be_handled(endpoint, &error))?;
    let strict = if media_type == MediaType::Json {
        codec::strict_errors_in(bytes, decoded.duplicates, unknown)
    } else {
        codec::strict_errors(decoded.duplicates, unknown)
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

fn undecodable(endpoint: &Endpoint, bytes: &Bytes, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {error} ({})",
        endpoint.kind(),
        quoted(bytes)
    ))
}

/// The error of a JSON body whose kind and version cannot be read.
fn type_unknown(error: &dyn std::fmt::Display) -> String {
    format!("couldn't get version/kind; json parse error: {error}")
}

/// The type that the reference decodes a body to first, as its errors print it.
const TYPE_META: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// The start of a body as an error shows it: text if it looks like JSON, otherwise hexadecimal digits.
fn quoted(bytes: &[u8]) -> String {
    let start = bytes.get(..QUOTED_BYTES).unwrap_or(bytes);
    let more = if start.len() < bytes.len() { " ..." } else { "" };
    match start.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(start)),
        Some(_) => {
            let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
            let digits = start.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
            digits.chain(more.chars()).collect()
        }
    }
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
        let error = DecodeError::wrong_type(object, "value", TYPE_META);
        return Err(undecodable(endpoint, bytes, &type_unknown(&error)));
    };
    let sent = |member: &str, default: &str| {
        let sent = members.get(member).and_then(Value::as_str).unwrap_or_default();
        if sent.is_empty() { default } else { sent }.to_owned()
    };
    let (sent_kind, sent_version) = (sent("kind", kind), sent("apiVersion", &face.api_version));
    if sent_kind != kind || *sent_version != *face.api_version {
        return Err(wrong_type_meta(catalog, endpoint, &sent_kind, &sent_version));
    }
    members.insert("kind".to_owned(), kind.into());
    members.insert("apiVersion".to_owned(), (*face.api_version).into());
    Ok(())
}

/// The 400 of a body that names another kind or version than the endpoint's.
fn wrong_type_meta(catalog: &Catalog, endpoint: &Endpoint, kind: &str, api_version: &str) -> ApiError {
    let (expected, face) = (endpoint.kind(), endpoint.face());
    let mut faces = catalog.iter().flat_map(|resource| &resource.faces);
    let is_known = faces.any(|face| face.names.kind == kind && *face.api_version == *api_version);
    if is_known && kind == expected {
        return ApiError::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            face.api_version
        ));
    }
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let why = if is_known {
        let group = endpoint.resource().group.split('.').next().unwrap_or_default();
        format!("converting ({version}.{kind}) to ({group}.{expected}): unknown conversion")
    } else {
        format!("no kind \"{kind}\" is registered for version \"{api_version}\"")
    };
    ApiError::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {expected}: {why}"
    ))
}
