//! Replacing an object, or its status.

use drydock_storage::Store;
use http::{Response, StatusCode};
use serde_json::Value;

use super::{Call, body};
use crate::error::ApiError;
use crate::http::body::{RequestBody, ResponseBody};
use crate::registry::store::{Change, WriteRequest};
use crate::request::negotiate::Answer;
use crate::request::options::WriteOptions;

/// The body of a PUT: the whole object as the client wants it.
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
    let representation = call.negotiate(Answer::Object)?;
    let bytes = body.read().await?;
    let options = WriteOptions::parse("UpdateOptions", &call.context.query)?;
    let media_type = body::content_type(&call.headers)?;
    let form = call.form(representation)?;
    let mut object = call.target().decode_object(
        call.catalog,
        &bytes,
        media_type,
        options.field_validation,
        &call.context,
    )?;
    // Before the object is looked up: a body that names another one is wrong whether or not there is one.
    call.store
        .settle_identity(&call.namespace, &call.name, &mut object)?;
    let request = WriteRequest {
        context: &call.context,
        options: &options,
        version: &call.version,
        part: call.part,
    };
    let written = call
        .store
        .update(request, &call.namespace, &call.name, &mut Replacement(object))
        .await?;
    form.object(StatusCode::OK, &written)
}
