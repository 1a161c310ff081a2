//! GET of one object.

use drydock_storage::Store;
use http::{Response, StatusCode};

use super::call::Call;
use crate::error::ApiError;
use crate::http::body::ResponseBody;
use crate::registry::store::Written;
use crate::request::negotiate::ResponseKind;
use crate::request::options::get_freshness;

pub(super) async fn get<S: Store>(call: &Call<'_, S>) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(ResponseKind::Object)?;
    let freshness = get_freshness(&call.context.query)?;
    let found = call
        .store
        .find(&call.endpoint, &call.namespace, &call.name, freshness);
    let (_, object) = found.await?;
    let written = Written {
        value: object.value().clone(),
        revision: Some(object.modified()),
    };
    call.format(representation)?.object(StatusCode::OK, &written)
}
