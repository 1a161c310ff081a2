//! DELETE of one object.

use bytes::Bytes;
use drydock_storage::Store;
use http::{Response, StatusCode};

use super::call::Call;
use super::{body, response};
use crate::error::{ApiError, Status, StatusDetails};
use crate::http::body::{RequestBody, ResponseBody};
use crate::registry::store::Deleted;
use crate::request::negotiate::ResponseKind;
use crate::request::options::DeleteOptions;

/// Parses `DeleteOptions` from the body, or from the query if there is no body.
pub(super) async fn options<S: Store>(
    call: &Call<'_, S>,
    body: RequestBody,
) -> Result<DeleteOptions, ApiError> {
    let bytes: Bytes = body.read().await?;
    let value = if bytes.is_empty() {
        None
    } else {
        let media_type = body::content_type(&call.headers, true)?;
        Some(body::decode_options(&bytes, media_type)?)
    };
    DeleteOptions::parse(&call.context.query, value, &call.endpoint.face().api_version)
}

pub(super) async fn delete<S: Store>(
    call: &Call<'_, S>,
    body: RequestBody,
) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(ResponseKind::Object)?;
    let options = options(call, body).await?;
    let format = call.format(representation)?;
    let key = call.store.key(&call.namespace, &call.name)?;
    let deleted = if options.unsafe_delete {
        call.store
            .delete_unreadable(call.caller(), &key, call.endpoint.face().version)
            .await?
    } else {
        call.store.delete(call.caller(), &key, &options).await?
    };
    match deleted {
        Deleted::Removed { uid } => {
            let resource = &call.store.resource;
            let details = StatusDetails {
                name: call.name.clone(),
                group: resource.group.to_owned(),
                kind: resource.plural.to_owned(),
                uid,
                ..StatusDetails::default()
            };
            response::status(&Status::success(details), representation)
        }
        Deleted::Marked(written) => {
            let code = if options.explicitly_not_orphaned {
                StatusCode::ACCEPTED
            } else {
                StatusCode::OK
            };
            format.object(code, &written)
        }
    }
}
