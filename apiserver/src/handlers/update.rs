//! PUT of an object or its status.

use drydock_storage::Store;
use http::{Response, StatusCode};
use serde_json::Value;

use super::body;
use super::call::Call;
use crate::error::ApiError;
use crate::http::body::{RequestBody, ResponseBody};
use crate::registry::store::Change;
use crate::request::negotiate::ResponseKind;
use crate::request::options::WriteOptions;

/// The body of a PUT: the complete new object.
struct Replacement(Value);

impl Change for Replacement {
    fn apply(&mut self, _current: &Value) -> Result<Value, ApiError> {
        Ok(self.0.clone())
    }

    fn uid_is_precondition(&self) -> bool {
        true
    }
}

pub(super) async fn update<S: Store>(
    call: &Call<'_, S>,
    body: RequestBody,
) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(ResponseKind::Object)?;
    let bytes = body.read().await?;
    let options = WriteOptions::parse("UpdateOptions", &call.context.query)?;
    let media_type = body::content_type(&call.headers, call.body_message().is_some())?;
    let format = call.format(representation)?;
    let mut object = body::decode_object(call, &bytes, media_type, options.field_validation)?;
    call.context.audit.sent(&object);
    // Checked before the object is looked up, so that the error does not depend on whether the object exists.
    call.store
        .check_identity(&call.namespace, &call.name, &mut object)?;
    let written = call
        .store
        .update(
            call.write_request(&options),
            &call.namespace,
            &call.name,
            &mut Replacement(object),
        )
        .await?;
    format.object(StatusCode::OK, &written)
}
