//! Reading one object.

use drydock_storage::{Revision, Store};
use http::{Response, StatusCode};

use super::Call;
use crate::error::ApiError;
use crate::http::body::ResponseBody;
use crate::registry::store::Written;
use crate::request::negotiate::Answer;
use crate::request::options::{GetState, get_state};

pub(super) async fn get<S: Store>(call: &Call<'_, S>) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(Answer::Object)?;
    let cache = &call.store.cache;
    let snapshot = match get_state(&call.context.query)? {
        GetState::MostRecent => cache.fresh().await?,
        GetState::Any => cache.newest()?,
        GetState::NotOlderThan(revision) => cache.not_older_than(Revision(revision)).await?,
    };
    let key = call.store.key(&call.namespace, &call.name)?;
    let object = snapshot
        .get(&key)
        .ok_or_else(|| ApiError::not_found(call.store.resource.group_resource(), &call.name))?;
    let written = Written {
        value: object.value().clone(),
        revision: Some(object.modified()),
    };
    call.form(representation)?.object(StatusCode::OK, &written)
}
