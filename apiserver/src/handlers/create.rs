//! POST of a new object.

use drydock_machinery::codec;
use drydock_storage::Store;
use http::{Response, StatusCode};

use super::body;
use super::call::Call;
use crate::error::ApiError;
use crate::http::body::{RequestBody, ResponseBody};
use crate::request::negotiate::{MediaType, ResponseKind};
use crate::request::options::WriteOptions;

pub(super) async fn create<S: Store>(
    call: &Call<'_, S>,
    body: RequestBody,
) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(ResponseKind::Object)?;
    let capabilities = &call.store.resource.capabilities;
    let message = capabilities.message.filter(|_| body::is_protobuf(&call.headers));
    let media_type = match message {
        Some(_) => MediaType::Json,
        None => body::content_type(&call.headers)?,
    };
    let bytes = body.read().await?;
    // A protobuf body is converted to JSON first.
    let bytes = match message {
        Some(message) => codec::encode(&body::decode_protobuf(&bytes, message)?).into(),
        None => bytes,
    };
    let options = WriteOptions::parse("CreateOptions", &call.context.query)?;
    let format = call.format(representation)?;
    let object = body::decode_object(call, &bytes, media_type, options.field_validation)?;
    let written = call
        .store
        .create(call.write_request(&options), &call.namespace, object)
        .await?;
    format.object(StatusCode::CREATED, &written)
}
