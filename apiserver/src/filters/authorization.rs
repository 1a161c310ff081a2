//! May this user do this?
//!
//! `system:masters` may do everything, health paths are open to all, the host decides the rest. No answer is never yes:
//! the request fails with 500. Admission asks through the same chain.

use std::{fmt, sync::Arc};

use tokio::time::Instant;

use super::selectors::{field_requirements, label_requirements};
use crate::{
    error::{ApiError, DeniedResource},
    host::{AccessReview, AccessVerdict, Attributes, HostError, ResourceAttributes, reviews::Reviews},
    metrics::{Metrics, Outcome},
    request::{Query, RequestInfo, UserInfo, Verb, user::MASTERS},
};

/// Paths that need no review unless configured otherwise.
pub const DEFAULT_ALWAYS_ALLOW: [&str; 3] = ["/healthz", "/readyz", "/livez"];

/// The answer of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Go ahead.
    Allow,
    /// Refused, with the authorizer's reason, often empty.
    Forbid(String),
}

/// The authorizer chain of the server.
pub struct Authorizer {
    reviews: Arc<Reviews>,
    always_allow: Vec<String>,
    metrics: Metrics,
}

impl fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorizer")
            .field("always_allow", &self.always_allow)
            .finish_non_exhaustive()
    }
}

impl Authorizer {
    /// A chain that ends at the host. A path in `always_allow` that ends in `*` stands for every path with that start.
    #[must_use]
    pub fn new(reviews: Arc<Reviews>, always_allow: Vec<String>, metrics: Metrics) -> Self {
        Self {
            reviews,
            always_allow,
            metrics,
        }
    }

    /// Decides a review, from the cache where it may.
    ///
    /// # Errors
    /// When the host has no answer: refuse the request, as neither allowed nor forbidden.
    pub async fn decide(&self, review: &AccessReview) -> Result<Decision, Arc<HostError>> {
        let before = Instant::now();
        let (result, outcome) = match self.verdict(review).await {
            Ok(AccessVerdict::Allowed(_)) => (Ok(Decision::Allow), Outcome::Allowed),
            Ok(AccessVerdict::Denied(reason)) => (Ok(Decision::Forbid(reason)), Outcome::Denied),
            Ok(AccessVerdict::NoOpinion(reason)) => (Ok(Decision::Forbid(reason)), Outcome::NoOpinion),
            Err(error) => (Err(error), Outcome::Error),
        };
        self.metrics.authorized(outcome, before.elapsed());
        result
    }

    async fn verdict(&self, review: &AccessReview) -> Result<AccessVerdict, Arc<HostError>> {
        if review.user.in_group(MASTERS) {
            return Ok(AccessVerdict::Allowed(String::new()));
        }
        if let Attributes::Path { path, .. } = &review.attributes
            && self.always_allow.iter().any(|rule| matches_rule(rule, path))
        {
            return Ok(AccessVerdict::Allowed(String::new()));
        }
        let (verdict, _) = self.reviews.access(review).await;
        verdict
    }

    /// The filter: lets an allowed request pass.
    pub(super) async fn check(
        &self,
        info: &RequestInfo,
        query: &Query,
        user: &Arc<UserInfo>,
        uri: &str,
    ) -> Result<(), ApiError> {
        let review = AccessReview {
            user: Arc::clone(user),
            attributes: attributes(info, query),
        };
        match self.decide(&review).await {
            Ok(Decision::Allow) => Ok(()),
            Ok(Decision::Forbid(reason)) => Err(denial(&review, &reason)),
            Err(error) => Err(ApiError::dependency_failed(uri, &error).because(error)),
        }
    }
}

fn matches_rule(rule: &str, path: &str) -> bool {
    match rule.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == rule,
    }
}

/// The 403 of a review that was not allowed.
#[must_use]
pub fn denial(review: &AccessReview, reason: &str) -> ApiError {
    match &review.attributes {
        Attributes::Path { verb, path } => ApiError::denied_path(&review.user.name, verb, path, reason),
        Attributes::Resource(r) => ApiError::denied(
            DeniedResource {
                user: &review.user.name,
                verb: &r.verb,
                group: &r.group,
                resource: &r.resource,
                subresource: &r.subresource,
                namespace: &r.namespace,
                name: &r.name,
            },
            reason,
        ),
    }
}

/// What the review of a request is about.
#[must_use]
pub fn attributes(info: &RequestInfo, query: &Query) -> Attributes {
    let Some(r) = &info.resource else {
        return Attributes::Path {
            verb: info.review_verb(),
            path: info.path.clone(),
        };
    };
    let selects = matches!(r.verb, Verb::List | Verb::Watch | Verb::DeleteCollection) && !r.watch_prefix;
    let requirements = |parameter: &str, parse: fn(&str) -> Vec<_>| {
        if selects {
            query.first(parameter).map(parse).unwrap_or_default()
        } else {
            Vec::new()
        }
    };
    Attributes::Resource(ResourceAttributes {
        verb: r.verb.as_str().to_owned(),
        group: r.group.clone(),
        version: r.version.clone(),
        resource: r.resource.clone(),
        subresource: r.subresource.clone(),
        namespace: r.namespace.clone(),
        name: r.review_name().to_owned(),
        field_selector: requirements("fieldSelector", field_requirements),
        label_selector: requirements("labelSelector", label_requirements),
    })
}
