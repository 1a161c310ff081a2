//! Storing a new object.

use drydock_machinery::codec;
use drydock_storage::Store;
use http::{Response, StatusCode};

use super::{Call, body, protobuf};
use crate::error::ApiError;
use crate::http::body::{RequestBody, ResponseBody};
use crate::registry::store::WriteRequest;
use crate::request::negotiate::{Answer, MediaType};
use crate::request::options::WriteOptions;

pub(super) async fn create<S: Store>(
    call: &Call<'_, S>,
    body: RequestBody,
) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(Answer::Object)?;
    let message =
        protobuf::message_of(&call.store.resource).filter(|_| protobuf::is_content_type(&call.headers));
    let media_type = match message {
        Some(_) => MediaType::Json,
        None => body::content_type(&call.headers)?,
    };
    let bytes = body.read().await?;
    // What came in protobuf goes on as the JSON it stands for.
    let bytes = match message {
        Some(message) => codec::encode(&protobuf::decode(&bytes, message)?).into(),
        None => bytes,
    };
    let options = WriteOptions::parse("CreateOptions", &call.context.query)?;
    let form = call.form(representation)?;
    let object = call.target().decode_object(
        call.catalog,
        &bytes,
        media_type,
        options.field_validation,
        &call.context,
    )?;
    let request = WriteRequest {
        context: &call.context,
        options: &options,
        version: &call.version,
        part: call.part,
    };
    let written = call.store.create(request, &call.namespace, object).await?;
    form.object(StatusCode::CREATED, &written)
}
