//! What happens to every request before and after its handler?

use std::future::Future;

use http::{Request, Response};

use crate::{
    http::body::{RequestBody, ResponseBody},
    request::RequestContext,
};

/// What stands behind the filters: discovery, OpenAPI and the resources.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request that passed every filter. Errors are answers too (see [`crate::error::ApiError`]).
    /// Dropped when its deadline passes or the client goes: whatever must finish belongs to a task of its own.
    fn handle(
        &self,
        context: RequestContext,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;
}
