//! DELETE of a collection: deletes the objects of a list.

use std::sync::Arc;

use drydock_storage::Store;
use http::Response;

use super::call::Call;
use super::page::Page;
use super::{delete, list};
use crate::cache::CachedObject;
use crate::error::ApiError;
use crate::http::body::{RequestBody, ResponseBody};
use crate::registry::store::DeleteRequest;
use crate::request::negotiate::ResponseKind;
use crate::request::projection::IncludeObject;

/// How many objects are deleted together. Bounds the memory of a request besides the snapshot.
const BATCH: usize = 1_000;

pub(super) async fn delete_collection<S: Store>(
    call: &Call<'_, S>,
    body: RequestBody,
) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(ResponseKind::List)?;
    let options = delete::options(call, body).await?;
    options.check_for_collection()?;
    let include = IncludeObject::parse(&call.context.query, representation)?;
    let page = list::page(call).await?;
    let found: Vec<Arc<CachedObject>> = page.objects.collect();
    let request = DeleteRequest {
        caller: call.caller(),
        endpoint: &call.endpoint,
        options: &options,
        of_collection: true,
    };
    for batch in found.chunks(BATCH) {
        call.store.delete_many(request, batch).await?;
    }
    let page = Page {
        head: page.head,
        objects: Box::new(found.into_iter()),
    };
    list::render(call, representation, include, page).await
}
