//! Decides whether a user may do something. The authorization filter, the impersonation filter and admission ask here.
//!
//! In this order: `system:masters` may do everything, paths in the always-allow list are open to all, and the host's
//! `SubjectAccessReview` decides the rest. If the host cannot be asked, the request fails with 500; it is never allowed.

mod selectors;

use std::{fmt, sync::Arc};

use tokio::time::Instant;

pub(crate) use self::selectors::{field_requirements, label_requirements};
use crate::{
    error::{ApiError, DeniedResource},
    host::{AccessReview, AccessVerdict, Attributes, HostError, ResourceAttributes, reviews::Reviews},
    metrics::{Metrics, Outcome},
    request::{Query, RequestInfo, Verb, user::MASTERS},
};

/// Paths that need no review by default.
pub const DEFAULT_ALWAYS_ALLOW: [&str; 3] = ["/healthz", "/readyz", "/livez"];

/// Selectors above these limits are left out of reviews, which are then about all objects: the host is not sent what
/// strangers may make as large as they like.
const SELECTOR_BYTES: usize = 4096;
const SELECTOR_TERMS: usize = 100;

/// The outcome of an authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed.
    Allow,
    /// Not allowed, with the authorizer's reason, which is often empty.
    Forbid(String),
}

/// The server's authorizer.
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
    /// An authorizer over the host's reviews. A path in `always_allow` that ends in `*` matches every path with that
    /// prefix.
    #[must_use]
    pub fn new(reviews: Arc<Reviews>, always_allow: Vec<String>, metrics: Metrics) -> Self {
        Self {
            reviews,
            always_allow,
            metrics,
        }
    }

    /// Whether a right for an object is always reviewed by its name.
    #[must_use]
    pub fn reviews_every_name(&self) -> bool {
        self.reviews.reviews_every_name()
    }

    /// Decides a review, from the review cache where possible.
    ///
    /// # Errors
    /// The host could not be asked: fail the request, as neither allowed nor forbidden.
    pub async fn decide(&self, review: &AccessReview) -> Result<Decision, Arc<HostError>> {
        let decided = self.decide_with_reason(review).await;
        decided.map(|(decision, _)| decision)
    }

    /// The same with the authorizer's reason, also for what is allowed.
    ///
    /// # Errors
    /// As for [`Self::decide`].
    pub async fn decide_with_reason(
        &self,
        review: &AccessReview,
    ) -> Result<(Decision, String), Arc<HostError>> {
        let before = Instant::now();
        let forbid = |reason: String| (Decision::Forbid(reason.clone()), reason);
        let (result, outcome) = match self.verdict(review).await {
            Ok(AccessVerdict::Allowed(reason)) => (Ok((Decision::Allow, reason)), Outcome::Allowed),
            Ok(AccessVerdict::Denied(reason)) => (Ok(forbid(reason)), Outcome::Denied),
            Ok(AccessVerdict::NoOpinion(reason)) => (Ok(forbid(reason)), Outcome::NoOpinion),
            Err(error) => (Err(error), Outcome::Error),
        };
        self.metrics.authorized(outcome, before.elapsed());
        result
    }

    /// Whether everybody is allowed, without a review.
    #[must_use]
    pub fn is_open(&self, attributes: &Attributes) -> bool {
        match attributes {
            Attributes::Path { path, .. } => self.always_allow.iter().any(|rule| matches_rule(rule, path)),
            Attributes::Resource(_) => false,
        }
    }

    async fn verdict(&self, review: &AccessReview) -> Result<AccessVerdict, Arc<HostError>> {
        if review.user.in_group(MASTERS) {
            return Ok(AccessVerdict::Allowed(String::new()));
        }
        if self.is_open(&review.attributes) {
            return Ok(AccessVerdict::Allowed(String::new()));
        }
        let (verdict, _) = self.reviews.access(review).await;
        verdict
    }
}

fn matches_rule(rule: &str, path: &str) -> bool {
    match rule.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == rule,
    }
}

/// The 403 for a review that was not allowed.
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

/// The review attributes of a request.
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
        let selector = query
            .first(parameter)
            .filter(|text| selects && text.len() <= SELECTOR_BYTES);
        let parsed = selector.map(parse).unwrap_or_default();
        if parsed.len() <= SELECTOR_TERMS {
            parsed
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
