//! What happens when a handler has a bug? That request is answered 500, and no other one notices.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use http::Response;

use crate::{error::ApiError, http::body::ResponseBody};

/// The response, and whether the handler panicked. State that a panic may leave half-changed lives behind locks that
/// recover or poison themselves, so unwinding past it is safe.
pub(super) async fn isolated(
    answer: impl Future<Output = Response<ResponseBody>>,
) -> (Response<ResponseBody>, bool) {
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(response) => (response, false),
        Err(_) => (ApiError::panicked().into_response(), true),
    }
}
