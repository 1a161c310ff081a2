//! How does the body of a request become an object of a kind?

use bytes::Bytes;
use drydock_machinery::codec::{self, DecodeError, Decoded, FieldValidation, StrictError};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::registry::resource::{Catalog, Resource, ServedVersion, api_version};
use crate::request::RequestContext;
use crate::request::negotiate::MediaType;

/// What a body may be.
const BODY_TYPES: &[&str] = &["application/json", "application/yaml"];

/// The encoding of the body; JSON when nothing is said.
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

/// The bytes as a value.
///
/// # Errors
/// Text that is not of the type.
pub(super) fn decode(bytes: &[u8], media_type: MediaType) -> Result<Decoded, DecodeError> {
    match media_type {
        MediaType::Json => codec::json::decode(bytes),
        MediaType::Yaml => codec::yaml::decode(bytes),
    }
}

/// A kind in a version, for the texts of errors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    /// What is served.
    pub(super) resource: &'a Resource,
    /// In which version.
    pub(super) version: &'a ServedVersion,
}

impl Target<'_> {
    fn refuse(&self, why: &dyn std::fmt::Display) -> ApiError {
        ApiError::bad_request(codec::cannot_be_handled(
            self.resource.kind,
            self.version.name,
            why,
        ))
    }

    /// Decodes the body of a create or update into an object that fits the schema, defaults applied.
    ///
    /// # Errors
    /// 400 for text that cannot be decoded, for another kind or version, and for strict faults where they are fatal.
    pub(super) fn decode_object(
        &self,
        catalog: &Catalog,
        bytes: &Bytes,
        media_type: MediaType,
        validation: FieldValidation,
        context: &RequestContext,
    ) -> Result<Value, ApiError> {
        let decoded = decode(bytes, media_type).map_err(|error| self.undecodable(bytes, &error))?;
        let mut object = decoded.value;
        if object.is_null() {
            object = Value::Object(Map::new());
        }
        self.check_type(catalog, &mut object, bytes)?;
        let unknown = self.fit(&mut object).map_err(|error| self.refuse(&error))?;
        let strict = match media_type {
            MediaType::Json => codec::strict_errors_in(bytes, decoded.duplicates, unknown),
            MediaType::Yaml => codec::strict_errors(decoded.duplicates, unknown),
        };
        match validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => strict
                .iter()
                .for_each(|error| context.warnings.add(error.to_string())),
            FieldValidation::Strict if strict.is_empty() => {}
            FieldValidation::Strict => return Err(self.refuse(&codec::strict_decoding_error(&strict))),
        }
        Ok(object)
    }

    /// Fits a value to the schema and applies defaults; the unknown fields that were dropped are returned.
    ///
    /// # Errors
    /// A member of another type than the schema's.
    pub(super) fn fit(&self, object: &mut Value) -> Result<Vec<StrictError>, DecodeError> {
        let unknown = self.version.schema.conform(object)?;
        self.version.schema.default(object);
        Ok(unknown)
    }

    fn undecodable(&self, bytes: &Bytes, error: &DecodeError) -> ApiError {
        let start: String =
            String::from_utf8_lossy(bytes.get(..30.min(bytes.len())).unwrap_or_default()).into_owned();
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({start})",
            self.resource.kind
        ))
    }

    /// Checks kind and version; where the body names none, they are those of the URL.
    fn check_type(&self, catalog: &Catalog, object: &mut Value, bytes: &Bytes) -> Result<(), ApiError> {
        let Some(members) = object.as_object_mut() else {
            let error = DecodeError::Type {
                found: json_type(object).to_owned(),
                place: "value".to_owned(),
                expected: format!("{}.{}", self.version.name, self.resource.kind),
            };
            return Err(self.undecodable(bytes, &error));
        };
        let expected = api_version(self.resource.group, self.version.name);
        let said = |member: &str| {
            members
                .get(member)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (kind, version) = (said("kind"), said("apiVersion"));
        if !kind.is_empty() && kind != self.resource.kind {
            return Err(self.refuse(&format!(
                "converting ({version}.{kind}) to ({}.{}): unknown conversion",
                self.version.name, self.resource.kind
            )));
        }
        if !version.is_empty() && version != expected {
            let served = catalog
                .iter()
                .filter(|resource| resource.kind == self.resource.kind)
                .any(|resource| {
                    resource
                        .versions
                        .iter()
                        .any(|served| *served.api_version == *version)
                });
            return Err(if served {
                ApiError::bad_request(format!(
                    "the API version in the data ({version}) does not match the expected API version ({expected})"
                ))
            } else {
                let short = version.rsplit('/').next().unwrap_or_default();
                ApiError::bad_request(codec::cannot_be_handled(
                    self.resource.kind,
                    short,
                    &format!(
                        "no kind \"{}\" is registered for version \"{version}\"",
                        self.resource.kind
                    ),
                ))
            });
        }
        members.insert("kind".to_owned(), self.resource.kind.into());
        members.insert("apiVersion".to_owned(), expected.into());
        Ok(())
    }
}

/// How Go's decoder names the type of a JSON value.
fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
