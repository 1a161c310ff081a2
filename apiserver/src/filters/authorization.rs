//! Refuses requests that the user may not make: 403, or 500 if the host cannot be asked.

use std::sync::Arc;

use crate::{
    authorization::{Authorizer, Decision, attributes, denial},
    error::ApiError,
    host::AccessReview,
    request::{Query, RequestInfo, UserInfo},
};

/// Lets an allowed request pass. `uri` is the request's path and query, for the text of a 500.
pub(super) async fn authorize(
    authorizer: &Authorizer,
    info: &RequestInfo,
    query: &Query,
    user: &Arc<UserInfo>,
    uri: &str,
) -> Result<(), ApiError> {
    let review = AccessReview {
        user: Arc::clone(user),
        attributes: attributes(info, query),
    };
    match authorizer.decide(&review).await {
        Ok(Decision::Allow) => Ok(()),
        Ok(Decision::Forbid(reason)) => Err(denial(&review, &reason)),
        Err(error) => Err(ApiError::dependency_failed(uri, &error).because(error)),
    }
}
