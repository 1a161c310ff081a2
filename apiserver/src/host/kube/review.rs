//! Token and access reviews as the host's API has them: requests with retries, and what their status means.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Request;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::error::host_error;
use crate::{
    host::{AccessReview, AccessVerdict, Attributes, HostError, SelectorRequirement, TokenVerdict},
    request::UserInfo,
    telemetry::spans::propagate,
};

/// Time limit of a review, retries included.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts of a review, and the first pause between them.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

fn is_retryable(error: &HostError) -> bool {
    match error {
        HostError::Status { code, .. } => matches!(code, 429 | 500 | 504),
        HostError::Unreachable(_) => true,
        HostError::Timeout | HostError::Overloaded | HostError::NotSynced(_) | HostError::Unavailable(_) => {
            false
        }
    }
}

/// Posts a review, with retries until [`REVIEW_TIMEOUT`].
pub(super) async fn post_review(
    client: &Client,
    path: &str,
    review: &Value,
    counted: impl Fn(Option<u16>, Duration),
) -> Result<Value, HostError> {
    let body = review.to_string().into_bytes();
    let attempts = async {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let mut request = Request::post(path)
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(body.clone())
                .map_err(|error| HostError::Unreachable(Arc::new(error)))?;
            propagate(request.headers_mut());
            let before = Instant::now();
            let result = client.request::<Value>(request).await.map_err(host_error);
            let code = match &result {
                Ok(_) => Some(201),
                Err(HostError::Status { code, .. }) => Some(*code),
                Err(_) => None,
            };
            counted(code, before.elapsed());
            match result {
                Err(error) if attempt < ATTEMPTS && is_retryable(&error) => {
                    tracing::debug!(%error, path, attempt, "retrying the review");
                    sleep(pause.mul_f64(1.0 + 0.2 * fastrand::f64())).await;
                    pause = pause.mul_f64(1.5);
                    attempt += 1;
                }
                result => return result,
            }
        }
    };
    timeout(REVIEW_TIMEOUT, attempts)
        .await
        .unwrap_or(Err(HostError::Timeout))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    error: String,
    user: ReviewedUser,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedUser {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
    reason: String,
}

fn status<T: for<'de> Deserialize<'de>>(mut review: Value) -> Result<T, HostError> {
    let status = review.get_mut("status").map(Value::take).unwrap_or_default();
    serde_json::from_value(status).map_err(|error| HostError::Unreachable(Arc::new(error)))
}

pub(super) fn token_verdict(review: Value) -> Result<TokenVerdict, HostError> {
    let status: TokenStatus = status(review)?;
    Ok(match (status.authenticated, status.error.is_empty()) {
        (true, _) if !status.user.username.is_empty() => {
            let ReviewedUser {
                username: name,
                uid,
                groups,
                extra,
            } = status.user;
            TokenVerdict::Authenticated(Arc::new(UserInfo {
                name,
                uid,
                groups,
                extra,
            }))
        }
        (_, false) => TokenVerdict::Refused(status.error),
        (_, true) => TokenVerdict::Unknown,
    })
}

pub(super) fn access_verdict(review: Value) -> Result<AccessVerdict, HostError> {
    let status: AccessStatus = status(review)?;
    Ok(match (status.denied, status.allowed) {
        (true, _) => AccessVerdict::Denied(status.reason),
        (false, true) => AccessVerdict::Allowed(status.reason),
        (false, false) => AccessVerdict::NoOpinion(status.reason),
    })
}

/// A `SubjectAccessReview`; empty members are left out.
pub(super) fn subject_access_review(review: &AccessReview) -> Value {
    let mut spec = serde_json::Map::new();
    let user = &review.user;
    let mut put = |key: &str, value: Value| {
        let empty = match &value {
            Value::String(text) => text.is_empty(),
            Value::Array(values) => values.is_empty(),
            Value::Object(members) => members.is_empty(),
            _ => false,
        };
        if !empty {
            spec.insert(key.to_owned(), value);
        }
    };
    put("user", json!(user.name));
    put("uid", json!(user.uid));
    put("groups", json!(user.groups));
    put("extra", json!(user.extra));
    match &review.attributes {
        Attributes::Path { verb, path } => {
            put("nonResourceAttributes", json!({"path": path, "verb": verb}));
        }
        Attributes::Resource(r) => {
            let mut attributes = serde_json::Map::new();
            for (key, text) in [
                ("namespace", &r.namespace),
                ("verb", &r.verb),
                ("group", &r.group),
                ("version", &r.version),
                ("resource", &r.resource),
                ("subresource", &r.subresource),
                ("name", &r.name),
            ] {
                if !text.is_empty() {
                    attributes.insert(key.to_owned(), json!(text));
                }
            }
            for (key, requirements) in [
                ("fieldSelector", &r.field_selector),
                ("labelSelector", &r.label_selector),
            ] {
                if !requirements.is_empty() {
                    let requirements: Vec<Value> = requirements.iter().map(requirement).collect();
                    attributes.insert(key.to_owned(), json!({"requirements": requirements}));
                }
            }
            spec.insert("resourceAttributes".to_owned(), Value::Object(attributes));
        }
    }
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
}

fn requirement(requirement: &SelectorRequirement) -> Value {
    let SelectorRequirement {
        key,
        operator,
        values,
    } = requirement;
    if values.is_empty() {
        json!({"key": key, "operator": operator.as_str()})
    } else {
        json!({"key": key, "operator": operator.as_str(), "values": values})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{ResourceAttributes, SelectorOperator};

    fn user() -> Arc<UserInfo> {
        Arc::new(UserInfo {
            name: "u".to_owned(),
            groups: vec!["g".to_owned()],
            extra: BTreeMap::from([("k".to_owned(), vec!["v".to_owned()])]),
            ..UserInfo::default()
        })
    }

    #[test]
    fn reviews_leave_empty_members_out() {
        let attributes = Attributes::Resource(ResourceAttributes {
            verb: "list".to_owned(),
            group: "coordination.k8s.io".to_owned(),
            version: "v1alpha3".to_owned(),
            resource: "evictionrequests".to_owned(),
            label_selector: vec![
                SelectorRequirement {
                    key: "a".to_owned(),
                    operator: SelectorOperator::In,
                    values: vec!["b".to_owned()],
                },
                SelectorRequirement {
                    key: "c".to_owned(),
                    operator: SelectorOperator::Exists,
                    values: Vec::new(),
                },
            ],
            ..ResourceAttributes::default()
        });
        assert_eq!(
            subject_access_review(&AccessReview {
                user: user(),
                attributes
            }),
            json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {
                    "user": "u", "groups": ["g"], "extra": {"k": ["v"]},
                    "resourceAttributes": {
                        "verb": "list", "group": "coordination.k8s.io", "version": "v1alpha3",
                        "resource": "evictionrequests",
                        "labelSelector": {"requirements": [
                            {"key": "a", "operator": "In", "values": ["b"]}, {"key": "c", "operator": "Exists"},
                        ]},
                    },
                },
            })
        );
        let attributes = Attributes::Path {
            verb: "get".to_owned(),
            path: "/metrics".to_owned(),
        };
        let review = subject_access_review(&AccessReview {
            user: user(),
            attributes,
        });
        assert_eq!(
            review["spec"]["nonResourceAttributes"],
            json!({"path": "/metrics", "verb": "get"})
        );
        assert_eq!(review["spec"].get("resourceAttributes"), None);
    }

    #[test]
    fn denied_takes_precedence_over_allowed_and_neither_is_no_opinion() {
        for (status, verdict) in [
            (json!({"allowed": true}), AccessVerdict::Allowed(String::new())),
            (
                json!({"allowed": true, "denied": true, "reason": "r"}),
                AccessVerdict::Denied("r".to_owned()),
            ),
            (
                json!({"allowed": false, "reason": "r"}),
                AccessVerdict::NoOpinion("r".to_owned()),
            ),
            (
                json!({"evaluationError": "e"}),
                AccessVerdict::NoOpinion(String::new()),
            ),
        ] {
            assert_eq!(access_verdict(json!({ "status": status })).unwrap(), verdict);
        }
    }

    #[test]
    fn a_token_is_good_only_with_a_user_name() {
        let good =
            json!({"authenticated": true, "user": {"username": "u", "groups": ["g"], "extra": {"k": ["v"]}}});
        assert_eq!(
            token_verdict(json!({ "status": good })).unwrap(),
            TokenVerdict::Authenticated(Arc::new(UserInfo {
                uid: String::new(),
                ..UserInfo::clone(&user())
            }))
        );
        for (status, verdict) in [
            (json!({"authenticated": true, "user": {}}), TokenVerdict::Unknown),
            (
                json!({"authenticated": false, "error": "bad"}),
                TokenVerdict::Refused("bad".to_owned()),
            ),
            (json!({}), TokenVerdict::Unknown),
        ] {
            assert_eq!(token_verdict(json!({ "status": status })).unwrap(), verdict);
        }
        assert!(
            token_verdict(json!({})).is_err(),
            "a review without a status is an error"
        );
    }
}
