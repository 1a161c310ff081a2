//! Rejects requests that the user is not allowed to make: 403, or 500 if the host cannot be asked.

use std::sync::Arc;

use http::Uri;
use tokio::time::Instant;

use super::state::RequestState;
use crate::{
    authorization::{Authorizer, Decision, attributes, denial},
    error::ApiError,
    host::AccessReview,
    metrics::Metrics,
    request::UserInfo,
};

/// Lets an allowed request pass.
pub(super) async fn filter(
    authorizer: &Authorizer,
    state: &RequestState,
    user: &Arc<UserInfo>,
    uri: &Uri,
    metrics: &Metrics,
) -> Result<(), ApiError> {
    let before = Instant::now();
    let review = AccessReview {
        user: Arc::clone(user),
        attributes: attributes(&state.info, &state.query),
    };
    let decided = authorizer.decide(&review).await;
    metrics.filtered("authorization", before.elapsed());
    match decided {
        Ok(Decision::Allow) => Ok(()),
        Ok(Decision::Forbid(reason)) => Err(denial(&review, &reason)),
        Err(error) => {
            let target = uri.path_and_query().map_or("/", |target| target.as_str());
            Err(ApiError::dependency_failed(target, &error).because(error))
        }
    }
}
