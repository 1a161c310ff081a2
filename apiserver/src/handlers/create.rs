//! POST of a new object.

use drydock_storage::Store;
use http::{Response, StatusCode};

use super::body;
use super::call::Call;
use crate::error::ApiError;
use crate::http::body::{RequestBody, ResponseBody};
use crate::request::negotiate::ResponseKind;
use crate::request::options::WriteOptions;

pub(super) async fn create<S: Store>(
    call: &Call<'_, S>,
    body: RequestBody,
) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(ResponseKind::Object)?;
    let media_type = body::content_type(&call.headers, call.body_message().is_some())?;
    let bytes = body.read().await?;
    let options = WriteOptions::parse("CreateOptions", &call.context.query)?;
    let format = call.format(representation)?;
    let object = body::decode_object(call, &bytes, media_type, options.field_validation)?;
    call.context.audit.sent(&object);
    let written = call
        .store
        .create(call.write_request(&options), &call.namespace, object)
        .await?;
    format.object(StatusCode::CREATED, &written)
}
