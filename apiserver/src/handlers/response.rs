//! Responses in the negotiated representation: whole objects, tables, metadata, and errors.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use drydock_machinery::codec::{self, cbor, protobuf};
use drydock_machinery::table::{Cell, Column};
use drydock_proto::protobuf::{META_V1_PARTIAL_OBJECT_METADATA, META_V1_STATUS, Message};
use drydock_storage::Revision;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::{ApiError, Status};
use crate::http::body::ResponseBody;
use crate::http::failure::Reported;
use crate::registry::endpoint::Endpoint;
use crate::registry::store::Written;
use crate::request::audit::ResponseMessage;
use crate::request::negotiate::{MediaType, MetaVersion, Representation, Transform};
use crate::request::projection::IncludeObject;
use crate::telemetry::spans;

/// The format of a response with one object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format<'a> {
    /// The version of the object.
    pub(super) endpoint: &'a Endpoint,
    /// The negotiated representation.
    pub(super) representation: Representation,
    /// What the rows of a table contain besides cells.
    pub(super) include: IncludeObject,
    /// The current time, for columns with an age.
    pub(super) now: Timestamp,
}

/// The object's metadata as `PartialObjectMetadata`.
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

/// A table of rows. `columns` is `None` for all events of a watch but the first.
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

/// The shape of objects in a binary encoding, where there are no tables.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// The version of the objects.
    pub(super) endpoint: Endpoint,
    /// The negotiated representation.
    pub(super) representation: Representation,
}

impl Shape {
    /// An object, or its metadata.
    ///
    /// # Errors
    /// 500 for a stored value that cannot be decoded or converted.
    pub(super) fn of(
        &self,
        value: &drydock_storage::Value,
        revision: Option<Revision>,
    ) -> Result<Value, ApiError> {
        let object = self.endpoint.served(value, revision)?;
        Ok(match self.metadata_version() {
            Some(version) => partial(&object, version),
            None => object,
        })
    }

    /// The version of `meta.k8s.io`, if only metadata is shown.
    pub(super) const fn metadata_version(&self) -> Option<MetaVersion> {
        match self.representation.transform {
            Transform::PartialObject(version) | Transform::PartialObjectList(version) => Some(version),
            Transform::None | Transform::Table(_) => None,
        }
    }

    /// The protobuf message of the objects.
    pub(super) fn message(&self) -> Option<&'static Message> {
        match self.metadata_version() {
            Some(_) => Some(&META_V1_PARTIAL_OBJECT_METADATA),
            None => self.endpoint.face().message,
        }
    }
}

impl Format<'_> {
    /// Converts an object to a table or to its metadata, if the client asked for that.
    #[must_use]
    fn transform(&self, object: Value) -> Value {
        match self.representation.transform {
            Transform::Table(version) => {
                let columns = &self.endpoint.face().table;
                let revision = object.pointer("/metadata/resourceVersion").cloned();
                let metadata =
                    revision.map_or_else(|| json!({}), |revision| json!({ "resourceVersion": revision }));
                let row = row(
                    &object,
                    &(columns.cells)(&object, self.now),
                    self.include,
                    version,
                );
                table(version, &metadata, Some(columns.columns), &[row])
            }
            Transform::PartialObject(version) => partial(&object, version),
            Transform::None | Transform::PartialObjectList(_) => object,
        }
    }

    /// A response with an object.
    ///
    /// # Errors
    /// 500 for a stored value that cannot be decoded or converted.
    pub(super) fn object(
        &self,
        code: StatusCode,
        written: &Written,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let _span = spans::open(SERIALIZE);
        let mut message = None;
        let body = if self.representation == Representation::JSON {
            let mut out = BytesMut::new();
            self.endpoint
                .write_served(&written.value, written.revision, &mut out)?;
            out.extend_from_slice(b"\n");
            out.freeze()
        } else {
            let shape = Shape {
                endpoint: self.endpoint.clone(),
                representation: self.representation,
            };
            message = shape.message();
            encode(
                &self.transform(self.endpoint.served(&written.value, written.revision)?),
                self.representation,
                message,
            )?
        };
        let mut response = with_body(code, self.representation.media_type, body);
        if let Some(message) = message {
            response.extensions_mut().insert(ResponseMessage(message));
        }
        Ok(response)
    }
}

/// The span in which a response is encoded.
pub(super) const SERIALIZE: &str = "SerializeObject";

/// Encodes a value, in protobuf as this message.
///
/// # Errors
/// 500 for a value that its encoding cannot represent.
pub(super) fn encode(
    value: &Value,
    representation: Representation,
    message: Option<&Message>,
) -> Result<Bytes, ApiError> {
    Ok(match (representation.media_type, representation.pretty) {
        (MediaType::Json, false) => {
            let mut bytes = codec::encode(value);
            bytes.push(b'\n');
            bytes.into()
        }
        (MediaType::Json, true) => codec::encode_pretty(value).into(),
        (MediaType::Yaml, _) => serde_saphyr::to_string(value)
            .map_err(|error| ApiError::internal("the response cannot be written as YAML").because(error))?
            .into(),
        (MediaType::Cbor, _) => cbor::encode(value).into(),
        (MediaType::Protobuf, _) => protobuf::encode(value, message.ok_or_else(no_message)?)
            .map_err(not_protobuf)?
            .into(),
    })
}

/// 500 for a kind without a protobuf message, which negotiation rules out.
pub(super) fn no_message() -> ApiError {
    ApiError::internal("the kind has no protobuf message")
}

/// 500 for an object that does not fit its message.
pub(super) fn not_protobuf(error: protobuf::EncodeError) -> ApiError {
    ApiError::internal("the response cannot be written as protobuf").because(error)
}

/// A response with a body.
#[must_use]
pub(super) fn with_body(code: StatusCode, media_type: MediaType, body: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(body));
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type.content_type()));
    response
}

/// The response to a delete that has removed the object.
///
/// # Errors
/// 500 for a value that YAML cannot represent.
pub(super) fn status(
    status: &Status,
    representation: Representation,
) -> Result<Response<ResponseBody>, ApiError> {
    let value = serde_json::to_value(status)
        .map_err(|error| ApiError::internal("the status cannot be written").because(error))?;
    let body = encode(&value, representation, Some(&META_V1_STATUS))?;
    let mut response = with_body(StatusCode::OK, representation.media_type, body);
    let extensions = response.extensions_mut();
    extensions.insert(Reported(Arc::new(status.clone())));
    extensions.insert(ResponseMessage(&META_V1_STATUS));
    Ok(response)
}

/// The response for an error, in the negotiated encoding; indented JSON if the client accepts none.
#[must_use]
pub(super) fn error(error: ApiError, representation: Option<Representation>) -> Response<ResponseBody> {
    let encoded = match representation {
        Some(representation) if !error.is_text() && representation != Representation::JSON => {
            let value = serde_json::to_value(error.status()).unwrap_or_default();
            encode(&value, representation, Some(&META_V1_STATUS))
                .ok()
                .map(|body| (representation.media_type, body))
        }
        None if !error.is_text() => Some((MediaType::Json, error.json(true))),
        _ => None,
    };
    match encoded {
        Some((media_type, body)) => {
            let mut response = error.into_response_with(media_type.content_type(), body);
            response.extensions_mut().insert(ResponseMessage(&META_V1_STATUS));
            response
        }
        None => error.into_response(),
    }
}
