//! How do the routes of standalone mode read and answer?

use drydock_apiserver::error::ApiError;
use drydock_apiserver::http::body::{RequestBody, ResponseBody};
use drydock_machinery::codec;
use drydock_machinery::codec::protobuf::Message;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

use drydock_apiserver::handlers::{decode_protobuf, is_protobuf};

/// What a body may be.
const BODY_TYPES: &[&str] = &["application/json", "application/vnd.kubernetes.protobuf"];

/// Reads a body that is JSON, or protobuf of a message. An empty one is an empty object.
///
/// # Errors
/// 400, 413 and 415.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: RequestBody,
    message: Message,
) -> Result<Value, ApiError> {
    let text = headers
        .get(CONTENT_TYPE)
        .map_or(Ok(""), HeaderValue::to_str)
        .unwrap_or("?");
    let is_json = matches!(
        text.split(';').next().unwrap_or_default().trim(),
        "" | "*/*" | "application/json"
    );
    if !is_json && !is_protobuf(headers) {
        return Err(ApiError::unsupported_media_type(BODY_TYPES));
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

/// 201 with a value.
///
/// # Errors
/// 500 for a value that cannot be written.
pub(crate) fn created(value: &impl Serialize) -> Result<Response<ResponseBody>, ApiError> {
    let body = serde_json::to_vec(value)
        .map_err(|error| ApiError::internal("the answer cannot be written").because(error))?;
    let mut response = Response::new(ResponseBody::full(body));
    *response.status_mut() = StatusCode::CREATED;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
