//! Request and response bodies of the routes of standalone mode.

use drydock_apiserver::error::ApiError;
use drydock_apiserver::handlers::{decode_protobuf, is_protobuf};
use drydock_apiserver::http::body::{RequestBody, ResponseBody};
use drydock_machinery::codec;
use drydock_proto::protobuf::Message;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

/// The accepted content types.
const CONTENT_TYPES: &[&str] = &["application/json", "application/vnd.kubernetes.protobuf"];

/// Reads a body that is JSON, or protobuf of `message`. An empty body is an empty object.
///
/// # Errors
/// 400, 413 and 415.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: RequestBody,
    message: &Message,
) -> Result<Value, ApiError> {
    let content_type = headers
        .get(CONTENT_TYPE)
        .map_or(Ok(""), HeaderValue::to_str)
        .unwrap_or("?");
    let is_json = matches!(
        content_type.split(';').next().unwrap_or_default().trim(),
        "" | "*/*" | "application/json"
    );
    if !is_json && !is_protobuf(headers) {
        return Err(ApiError::unsupported_media_type(CONTENT_TYPES));
    }
    let bytes = body.read().await?;
    if bytes.is_empty() {
        return Ok(json!({}));
    }
    if !is_json {
        return decode_protobuf(&bytes, message);
    }
    let decoded = codec::json::decode(&bytes).map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok(decoded.value)
}

/// A response with status 201 and `value` as JSON.
///
/// # Errors
/// 500 for a value that cannot be serialized.
pub(crate) fn created(value: &impl Serialize) -> Result<Response<ResponseBody>, ApiError> {
    let body = serde_json::to_vec(value)
        .map_err(|error| ApiError::internal("the response cannot be serialized").because(error))?;
    let mut response = Response::new(ResponseBody::full(body));
    *response.status_mut() = StatusCode::CREATED;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
