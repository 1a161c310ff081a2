//! DELETE of one object.

use bytes::Bytes;
use drydock_storage::Store;
use http::{Response, StatusCode};

use super::call::Call;
use super::{body, response};
use crate::error::{ApiError, Status, StatusDetails};
use crate::http::body::{RequestBody, ResponseBody};
use crate::registry::store::{DeleteRequest, Deleted};
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
        let options = body::decode_options(&bytes, media_type)?;
        call.context.audit.sent(&options);
        Some(options)
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
    let (endpoint, namespace, name) = (&call.endpoint, &call.namespace, &call.name);
    let deleted = if options.unsafe_delete {
        call.store
            .delete_unreadable(call.caller(), endpoint, namespace, name)
            .await?
    } else {
        let request = DeleteRequest {
            caller: call.caller(),
            endpoint,
            options: &options,
            of_collection: false,
        };
        call.store.delete(request, namespace, name).await?
    };
    match deleted {
        Deleted::Removed { uid } => {
            let resource = endpoint.group_resource();
            let details = StatusDetails {
                name: call.name.clone(),
                group: resource.group.to_owned(),
                kind: resource.resource.to_owned(),
                uid: endpoint.other_uid(&uid).into_owned(),
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
