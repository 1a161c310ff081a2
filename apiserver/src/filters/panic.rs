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
    let panic = match AssertUnwindSafe(request).catch_unwind().await {
        Ok(response) => return response,
        Err(panic) => panic,
    };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    state.set_panicked(text.unwrap_or_default());
    if let Some(labels) = &state.labels {
        metrics.aborted(labels);
    }
    ApiError::panicked().into_response()
}
