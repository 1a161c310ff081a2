//! Isolates panics: a bug in a handler fails its own request with 500, and no other.

use std::{future::Future, panic::AssertUnwindSafe};

use futures_util::FutureExt;
use http::Response;

use super::state::RequestState;
use crate::{error::ApiError, http::body::ResponseBody, metrics::Metrics};

/// Runs the request, with a 500 in place of a panic. Unwinding is safe: state that a panic may leave half-changed is
/// behind locks that are recovered or poisoned.
pub(super) async fn isolate(
    request: impl Future<Output = Response<ResponseBody>>,
    state: &RequestState,
    metrics: &Metrics,
) -> Response<ResponseBody> {
    if let Ok(response) = AssertUnwindSafe(request).catch_unwind().await {
        return response;
    }
    if let Some(labels) = &state.labels {
        metrics.aborted(labels);
    }
    ApiError::panicked().into_response()
}
