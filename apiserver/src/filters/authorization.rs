//! Rejects requests that the user is not allowed to make: 403, or 500 if the host cannot be asked.

use std::sync::Arc;

use http::Uri;
use tokio::time::Instant;

use super::state::RequestState;
use crate::{
    authorization::{Authorizer, Decision, attributes, denial},
    error::ApiError,
    health::is_health_path,
    host::{AccessReview, HostError},
    metrics::Metrics,
    request::{UserInfo, audit},
};

/// Refuses the request of a client without a credential, unless its path is open to everybody.
///
/// # Errors
/// 403, as if the host did not allow it.
pub(super) fn refuse_stranger(
    authorizer: &Authorizer,
    state: &RequestState,
    user: &Arc<UserInfo>,
) -> Result<(), ApiError> {
    let review = AccessReview {
        user: Arc::clone(user),
        attributes: attributes(&state.info, &state.query),
    };
    let is_public = state.info.resource.is_none()
        && (is_health_path(&state.info.path) || matches!(state.info.path.as_str(), "/version" | "/version/"));
    if is_public || authorizer.is_open(&review.attributes) {
        return Ok(());
    }
    record(state, "forbid", "");
    Err(denial(&review, ""))
}

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
    let decided = authorizer.decide_with_reason(&review).await;
    metrics.filtered("authorization", before.elapsed());
    match decided {
        Ok((Decision::Allow, reason)) => {
            record(state, "allow", &reason);
            Ok(())
        }
        Ok((Decision::Forbid(_), reason)) => {
            record(state, "forbid", &reason);
            Err(denial(&review, &reason))
        }
        Err(error) => {
            state.audit().annotate(audit::REASON, "internal error");
            if matches!(*error, HostError::Overloaded) {
                return Err(ApiError::overloaded().because(error));
            }
            let target = uri.path_and_query().map_or("/", |target| target.as_str());
            Err(ApiError::dependency_failed(target, &error).because(error))
        }
    }
}

/// Tells the audit log how the authorization has ended.
fn record(state: &RequestState, decision: &str, reason: &str) {
    let record = state.audit();
    record.annotate(audit::DECISION, decision);
    record.annotate(audit::REASON, reason);
}
