//! Who may read what this process serves: health is open, metrics are for clients whose token the host authenticates and who
//! may `get` the path, as with the controllers of Kubernetes.
//!
//! Every request is reviewed by the host. Scrapers ask a few times a minute, so nothing is cached; a limit keeps strangers
//! from making this process flood the host with reviews.

use std::fmt::{self, Debug};
use std::sync::Arc;

use drydock_machinery::clock::Clock;
use drydock_machinery::field_error::quoted;
use http::StatusCode;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::api::call;
use crate::token_bucket::TokenBucket;

/// The paths that need no review by default.
pub const DEFAULT_OPEN_PATHS: &str = "/healthz,/readyz,/livez";
/// Reviewed requests a second, and at once.
const RATE: f64 = 5.0;
const BURST: f64 = 20.0;
/// The longest token that is reviewed, in bytes.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// Reviews requests.
pub struct Access {
    host: Client,
    open_paths: Vec<String>,
    clock: Arc<dyn Clock>,
    reviews: TokenBucket,
}

impl Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("open_paths", &self.open_paths)
            .finish_non_exhaustive()
    }
}

/// Why a request is not answered: the status and the text of the response.
pub type Refusal = (StatusCode, String);

impl Access {
    /// Reviews by this host of all paths but those that are open.
    #[must_use]
    pub fn new(host: Client, open_paths: Vec<String>, clock: Arc<dyn Clock>) -> Self {
        let reviews = TokenBucket::new(RATE, BURST, clock.now());
        Self {
            host,
            open_paths,
            clock,
            reviews,
        }
    }

    /// Allows a GET of the path, or says why not. `authorization` is that header.
    ///
    /// # Errors
    /// 401 without a valid token, 403 for a user who may not, 429 above the limit, 500 if the host cannot be asked.
    pub async fn check(&self, path: &str, authorization: Option<&str>) -> Result<(), Refusal> {
        if self.open_paths.iter().any(|open| open == path) {
            return Ok(());
        }
        let user = self.authenticate(path, authorization).await?;
        let name = user.username.clone().unwrap_or_default();
        let get = NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some("get".to_owned()),
        };
        let spec = SubjectAccessReviewSpec {
            non_resource_attributes: Some(get),
            ..SubjectAccessReviewSpec::default()
        };
        if self
            .allows(&user, spec)
            .await
            .map_err(|error| failed(path, &error))?
        {
            return Ok(());
        }
        let text = format!(
            "forbidden: User {} cannot get path {}\n",
            quoted(&name),
            quoted(path)
        );
        Err((StatusCode::FORBIDDEN, text))
    }

    /// The user of a bearer token. `authorization` is that header, and `path` is asked for.
    ///
    /// # Errors
    /// 401 without a valid token, 429 above the limit, 500 if the host cannot be asked.
    pub async fn authenticate(&self, path: &str, authorization: Option<&str>) -> Result<UserInfo, Refusal> {
        let unauthorized = || (StatusCode::UNAUTHORIZED, "Unauthorized\n".to_owned());
        let token = authorization
            .and_then(bearer)
            .filter(|token| token.len() <= MAX_TOKEN_BYTES)
            .ok_or_else(unauthorized)?;
        if !self.reviews.take(self.clock.now()) {
            let text = "too many requests, please try again later\n";
            return Err((StatusCode::TOO_MANY_REQUESTS, text.to_owned()));
        }
        let user = self.user(token).await.map_err(|error| failed(path, &error))?;
        user.ok_or_else(unauthorized)
    }

    /// Whether a user may evict the pods of a namespace.
    ///
    /// # Errors
    /// 500 if the host cannot be asked.
    pub async fn may_evict(&self, user: &UserInfo, namespace: &str) -> Result<bool, Refusal> {
        let eviction = ResourceAttributes {
            namespace: Some(namespace.to_owned()),
            verb: Some("create".to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("pods".to_owned()),
            subresource: Some("eviction".to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            resource_attributes: Some(eviction),
            ..SubjectAccessReviewSpec::default()
        };
        self.allows(user, spec)
            .await
            .map_err(|error| failed("pods/eviction", &error))
    }

    /// The user of a token; `None` if the host does not authenticate it.
    async fn user(&self, token: &str) -> Result<Option<UserInfo>, crate::api::Error> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.host.clone());
        let status = call(reviews.create(&PostParams::default(), &review))
            .await?
            .status;
        Ok(status
            .filter(|status| status.authenticated == Some(true))
            .and_then(|status| status.user))
    }

    /// The host's answer to a review of what `spec` names, for this user.
    async fn allows(
        &self,
        user: &UserInfo,
        spec: SubjectAccessReviewSpec,
    ) -> Result<bool, crate::api::Error> {
        let user = user.clone();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                ..spec
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.host.clone());
        let status = call(reviews.create(&PostParams::default(), &review))
            .await?
            .status;
        Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

/// The refusal of a request that the host could not review.
fn failed(what: &str, error: &crate::api::Error) -> Refusal {
    tracing::warn!(%error, what, "a request cannot be reviewed");
    let text = "the request cannot be reviewed\n";
    (StatusCode::INTERNAL_SERVER_ERROR, text.to_owned())
}

/// The token of the header, if it is one.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::clock_at;
    use drydock_machinery::clock::ManualClock;

    /// A host that authenticates the tokens `reader` and `other` as users of those names, and lets `reader` get `/metrics` and
    /// evict.
    pub(crate) fn host() -> Client {
        let service = tower::service_fn(|request: Request<Body>| async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect_bytes().await?;
            let mut review: Value = serde_json::from_slice(&body)?;
            review["status"] = if path.ends_with("tokenreviews") {
                let token = review["spec"]["token"].as_str().unwrap_or_default().to_owned();
                match token.as_str() {
                    "reader" | "other" => json!({"authenticated": true, "user": {"username": token}}),
                    _ => json!({"authenticated": false, "error": "unknown"}),
                }
            } else {
                let spec = &review["spec"];
                let is_metrics = spec["nonResourceAttributes"] == json!({"path": "/metrics", "verb": "get"});
                let evicted = &spec["resourceAttributes"];
                let is_eviction = evicted["verb"] == "create" && evicted["subresource"] == "eviction";
                let allowed = spec["user"] == "reader" && (is_metrics || is_eviction);
                json!({ "allowed": allowed })
            };
            let response = Response::builder()
                .status(201)
                .body(Body::from(review.to_string().into_bytes()));
            response.map_err(Box::<dyn std::error::Error + Send + Sync>::from)
        });
        Client::new(service, "default")
    }

    fn access(clock: &Arc<ManualClock>) -> Access {
        let open = DEFAULT_OPEN_PATHS.split(',').map(str::to_owned).collect();
        Access::new(host(), open, Arc::clone(clock) as Arc<dyn Clock>)
    }

    #[tokio::test]
    async fn metrics_need_a_token_of_a_user_who_may_get_them() {
        let clock = clock_at(0);
        let access = access(&clock);
        for (path, header, expected) in [
            ("/livez", None, None),
            ("/healthz", Some("Bearer nonsense"), None),
            ("/metrics", None, Some(401)),
            ("/metrics", Some("Basic reader"), Some(401)),
            ("/metrics", Some("Bearer nonsense"), Some(401)),
            ("/metrics", Some("Bearer other"), Some(403)),
            ("/metrics", Some("bearer reader"), None),
            ("/other", Some("Bearer reader"), Some(403)),
        ] {
            let refused = access.check(path, header).await.err();
            assert_eq!(
                refused.map(|(status, _)| status.as_u16()),
                expected,
                "{path} {header:?}"
            );
        }
        let (_, text) = access.check("/metrics", Some("Bearer other")).await.unwrap_err();
        assert_eq!(text, "forbidden: User \"other\" cannot get path \"/metrics\"\n");
    }

    #[tokio::test]
    async fn reviews_are_limited() {
        let clock = clock_at(0);
        let access = access(&clock);
        let mut allowed = 0;
        let limited = loop {
            match access.check("/metrics", Some("Bearer reader")).await {
                Ok(()) => allowed += 1,
                Err((status, _)) => break status,
            }
        };
        assert_eq!((allowed, limited.as_u16()), (20, 429));
        clock.advance(Duration::from_secs(1));
        assert!(access.check("/metrics", Some("Bearer reader")).await.is_ok());
    }
}
