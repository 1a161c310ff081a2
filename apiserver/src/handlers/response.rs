//! How does an object, a list's item or a watched object look in the form the client asked for?

use std::fmt::Write as _;

use bytes::{Bytes, BytesMut};
use drydock_machinery::codec;
use drydock_machinery::table::{Cell, Column};
use drydock_storage::Revision;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::{ApiError, Status};
use crate::http::body::ResponseBody;
use crate::registry::metadata::metadata_mut;
use crate::registry::resource::Resource;
use crate::registry::store::{Written, decode};
use crate::request::Query;
use crate::request::negotiate::{MediaType, MetaVersion, Representation, Transform};

/// What a row of a table carries of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum IncludeObject {
    /// Nothing.
    None,
    /// Its metadata.
    Metadata,
    /// All of it.
    Object,
}

impl IncludeObject {
    /// Reads `includeObject`, which only says something about tables.
    ///
    /// # Errors
    /// 400 for any other value.
    pub(super) fn of(query: &Query, representation: Representation) -> Result<Self, ApiError> {
        if !matches!(representation.transform, Transform::Table(_)) {
            return Ok(Self::Metadata);
        }
        match query.first("includeObject").unwrap_or_default() {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(ApiError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', \
                 'Object', 'None', or empty"
            ))),
        }
    }
}

/// Everything that decides how an object is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form<'a> {
    /// What kind of object it is.
    pub(super) resource: &'a Resource,
    /// What the client asked for.
    pub(super) representation: Representation,
    /// What rows carry.
    pub(super) include: IncludeObject,
    /// The moment ages are told at.
    pub(super) now: Timestamp,
}

/// The served JSON of a stored payload: with its resourceVersion, if it has one.
pub(super) fn write_served(out: &mut BytesMut, value: &drydock_storage::Value, revision: Option<Revision>) {
    let at = usize::try_from(value.splice_offset)
        .unwrap_or(usize::MAX)
        .min(value.bytes.len());
    let (head, tail) = value.bytes.split_at(at);
    out.reserve(value.bytes.len() + 48);
    out.extend_from_slice(head);
    if let Some(revision) = revision {
        // Writing into a buffer that grows cannot fail.
        let _ok = write!(out, "\"resourceVersion\":\"{revision}\",");
    }
    out.extend_from_slice(tail);
}

/// The served object as a value.
///
/// # Errors
/// 500 for stored bytes that are not JSON.
pub(super) fn served_value(
    value: &drydock_storage::Value,
    revision: Option<Revision>,
) -> Result<Value, ApiError> {
    let mut object = decode(&value.bytes)
        .map_err(|error| ApiError::storage_read("a stored object cannot be decoded").because(error))?;
    if let Some(revision) = revision {
        metadata_mut(&mut object).insert("resourceVersion".to_owned(), revision.to_string().into());
    }
    Ok(object)
}

/// The object's metadata as an object of its own.
#[must_use]
pub(super) fn partial(object: &Value, version: MetaVersion) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": version.api_version(),
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// One row of a table.
#[must_use]
pub(super) fn row(object: &Value, cells: &[Cell], include: IncludeObject, version: MetaVersion) -> Value {
    let object = match include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => partial(object, version),
        IncludeObject::Object => object.clone(),
    };
    json!({ "cells": cells, "object": object })
}

/// A table of rows. `columns` is none for all but the first event of a watch.
#[must_use]
pub(super) fn table(
    version: MetaVersion,
    metadata: &Value,
    columns: Option<&[Column]>,
    rows: &[Value],
) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": version.api_version(),
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

impl Form<'_> {
    /// The object in the shape the client asked for.
    #[must_use]
    pub(super) fn shape(&self, object: Value) -> Value {
        match self.representation.transform {
            Transform::Table(version) => {
                let strategy = &self.resource.strategy;
                let revision = object.pointer("/metadata/resourceVersion").cloned();
                let metadata =
                    revision.map_or_else(|| json!({}), |revision| json!({ "resourceVersion": revision }));
                let row = row(&object, &strategy.cells(&object, self.now), self.include, version);
                table(version, &metadata, Some(strategy.columns()), &[row])
            }
            Transform::PartialObject(version) => partial(&object, version),
            Transform::None | Transform::PartialObjectList(_) => object,
        }
    }

    /// The answer that carries an object.
    ///
    /// # Errors
    /// 500 for stored bytes that are not JSON.
    pub(super) fn object(
        &self,
        code: StatusCode,
        written: &Written,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let plain = Representation::JSON == self.representation;
        let body = if plain {
            let mut out = BytesMut::new();
            write_served(&mut out, &written.value, written.revision);
            out.extend_from_slice(b"\n");
            out.freeze()
        } else {
            encode(
                &self.shape(served_value(&written.value, written.revision)?),
                self.representation,
            )?
        };
        Ok(respond(code, self.representation.media_type, body))
    }
}

/// A value in the client's encoding.
///
/// # Errors
/// 500 for a value YAML cannot hold.
pub(super) fn encode(value: &Value, representation: Representation) -> Result<Bytes, ApiError> {
    Ok(match (representation.media_type, representation.pretty) {
        (MediaType::Json, false) => {
            let mut bytes = codec::encode(value);
            bytes.push(b'\n');
            bytes.into()
        }
        (MediaType::Json, true) => codec::encode_pretty(value).into(),
        (MediaType::Yaml, _) => serde_saphyr::to_string(value)
            .map_err(|error| ApiError::internal("the answer cannot be written as YAML").because(error))?
            .into(),
    })
}

/// An answer with a body.
#[must_use]
pub(super) fn respond(code: StatusCode, media_type: MediaType, body: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(body));
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type.content_type()));
    response
}

/// The Status that answers a delete.
///
/// # Errors
/// 500 for a value YAML cannot hold.
pub(super) fn status(
    status: &Status,
    representation: Representation,
) -> Result<Response<ResponseBody>, ApiError> {
    let value = serde_json::to_value(status)
        .map_err(|error| ApiError::internal("the status cannot be written").because(error))?;
    Ok(respond(
        StatusCode::OK,
        representation.media_type,
        encode(&value, representation)?,
    ))
}

/// A refusal in the client's encoding; JSON for people where the client's wish cannot be met.
#[must_use]
pub(super) fn refusal(error: ApiError, representation: Option<Representation>) -> Response<ResponseBody> {
    let encoded = match representation {
        Some(representation) if !error.is_text() && representation != Representation::JSON => {
            let value = serde_json::to_value(error.status()).unwrap_or_default();
            encode(&value, representation)
                .ok()
                .map(|body| (representation.media_type, body))
        }
        None if !error.is_text() => Some((MediaType::Json, error.json(true))),
        _ => None,
    };
    match encoded {
        Some((media_type, body)) => error.into_response_with(media_type.content_type(), body),
        None => error.into_response(),
    }
}
