//! `AdmissionReview`s of evictions: what is read from them, and what is answered. Pure functions.
//!
//! The form is `admission.k8s.io/v1`, as kube-apiserver posts it to a validating webhook on `pods/eviction`.

use serde::Deserialize;
use serde_json::json;

/// The version of reviews that is understood.
const API_VERSION: &str = "admission.k8s.io/v1";
/// The annotation of an eviction by which the descheduler says that it asks.
const REQUESTED_BY: &str = "requested-by";
/// Its value.
const DESCHEDULER: &str = "sigs.k8s.io/descheduler";
/// The longest message of an answer, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;

/// An eviction that the host asks about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Review {
    /// The identifier of the review, which the answer repeats.
    pub uid: String,
    /// Who evicts. The host has authenticated and authorized this user.
    pub user: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The UID that the pod must have, if the eviction names one.
    pub precondition: Option<String>,
    /// Whether nothing is to be changed.
    pub is_dry_run: bool,
    /// Whether the descheduler asks, which does not ask again about a pod whose eviction is in progress.
    pub is_by_descheduler: bool,
}

/// Why a body is not a review of an eviction.
#[derive(Debug, thiserror::Error)]
pub enum InvalidReview {
    /// It is not the JSON of a review.
    #[error("the body is not an AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    /// It is of another version.
    #[error("the AdmissionReview has apiVersion {0:?} and not {API_VERSION}")]
    Version(String),
    /// It is about something else: the webhook is registered for more than evictions.
    #[error("the AdmissionReview is about {0} and not about creating pods/eviction")]
    Subject(String),
}

/// The answer to a review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The eviction goes on.
    Allow {
        /// A warning for the client.
        warning: Option<String>,
    },
    /// The eviction is refused with 429.
    Later {
        /// Why, for the client.
        message: String,
        /// When the client should try again; zero does not say.
        retry_after_seconds: u32,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Wire {
    api_version: String,
    request: WireRequest,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireRequest {
    uid: String,
    resource: WireResource,
    sub_resource: String,
    operation: String,
    name: String,
    namespace: String,
    user_info: WireUser,
    dry_run: bool,
    object: Option<WireEviction>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireResource {
    group: String,
    resource: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireUser {
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireEviction {
    metadata: WireMeta,
    delete_options: Option<WireDeleteOptions>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireMeta {
    name: String,
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireDeleteOptions {
    dry_run: Option<Vec<String>>,
    preconditions: Option<WirePreconditions>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WirePreconditions {
    uid: Option<String>,
}

/// Reads a review.
///
/// # Errors
///
/// [`InvalidReview`].
pub fn decode(body: &[u8]) -> Result<Review, InvalidReview> {
    let Wire { api_version, request } = serde_json::from_slice(body)?;
    if api_version != API_VERSION {
        return Err(InvalidReview::Version(api_version.chars().take(64).collect()));
    }
    let resource = &request.resource;
    if (resource.group.as_str(), resource.resource.as_str()) != ("", "pods")
        || request.sub_resource != "eviction"
        || request.operation != "CREATE"
    {
        let WireRequest {
            operation,
            sub_resource,
            ..
        } = &request;
        let subject = format!("{operation} {}/{sub_resource}", resource.resource);
        return Err(InvalidReview::Subject(subject.chars().take(128).collect()));
    }
    let eviction = request.object.unwrap_or_default();
    let options = eviction.delete_options.unwrap_or_default();
    let annotations = eviction.metadata.annotations.unwrap_or_default();
    let name = if request.name.is_empty() {
        eviction.metadata.name
    } else {
        request.name
    };
    Ok(Review {
        uid: request.uid,
        user: request.user_info.username,
        namespace: request.namespace,
        pod: name,
        precondition: options.preconditions.and_then(|preconditions| preconditions.uid),
        // kubectl asks for a dry run in the body of the eviction.
        is_dry_run: request.dry_run || options.dry_run.is_some_and(|stages| !stages.is_empty()),
        is_by_descheduler: annotations.get(REQUESTED_BY).is_some_and(|by| by == DESCHEDULER),
    })
}

/// Writes the answer to the review with this identifier.
#[must_use]
pub fn encode(uid: &str, answer: &Answer) -> String {
    let response = match answer {
        Answer::Allow { warning: None } => json!({ "uid": uid, "allowed": true }),
        Answer::Allow {
            warning: Some(warning),
        } => {
            json!({ "uid": uid, "allowed": true, "warnings": [cut(warning)] })
        }
        Answer::Later {
            message,
            retry_after_seconds,
        } => {
            // kube-apiserver makes the header Retry-After of it.
            let details = match retry_after_seconds {
                0 => json!({}),
                seconds => json!({ "retryAfterSeconds": seconds }),
            };
            let status = json!({
                "status": "Failure", "code": 429, "reason": "TooManyRequests", "message": cut(message),
                "details": details,
            });
            json!({ "uid": uid, "allowed": false, "status": status })
        }
    };
    json!({ "apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response }).to_string()
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_MESSAGE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    use super::*;
    use crate::fixtures::merge;

    /// A review as kube-apiserver 1.37 posts it, changed by a merge patch.
    pub(crate) fn body(patch: &Value) -> Vec<u8> {
        let mut review = json!({
            "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "review-1",
                "kind": {"group": "policy", "version": "v1", "kind": "Eviction"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "subResource": "eviction",
                "requestKind": {"group": "policy", "version": "v1", "kind": "Eviction"},
                "requestResource": {"group": "", "version": "v1", "resource": "pods"},
                "requestSubResource": "eviction",
                "name": "web", "namespace": "shop", "operation": "CREATE",
                "userInfo": {"username": "admin", "groups": ["system:masters"]},
                "object": {
                    "kind": "Eviction", "apiVersion": "policy/v1",
                    "metadata": {"name": "web", "namespace": "shop", "creationTimestamp": null},
                    "deleteOptions": {},
                },
                "oldObject": null, "dryRun": false,
                "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            },
        });
        merge(&mut review, patch);
        review.to_string().into_bytes()
    }

    fn review() -> Review {
        Review {
            uid: "review-1".to_owned(),
            user: "admin".to_owned(),
            namespace: "shop".to_owned(),
            pod: "web".to_owned(),
            ..Review::default()
        }
    }

    #[test]
    fn reviews_are_read() {
        assert_eq!(decode(&body(&json!({}))).unwrap(), review());
        let dry = Review {
            is_dry_run: true,
            ..review()
        };
        let of_the_query = json!({"request": {"dryRun": true}});
        let of_the_body = json!({"request": {"object": {"deleteOptions": {"dryRun": ["All"]}}}});
        for patch in [of_the_query, of_the_body] {
            assert_eq!(decode(&body(&patch)).unwrap(), dry);
        }
        let patch = json!({"request": {"name": "", "object": {
            "metadata": {"annotations": {"requested-by": "sigs.k8s.io/descheduler", "reason": "x"}},
            "deleteOptions": {"preconditions": {"uid": "uid-1"}},
        }}});
        let expected = Review {
            precondition: Some("uid-1".to_owned()),
            is_by_descheduler: true,
            ..review()
        };
        assert_eq!(decode(&body(&patch)).unwrap(), expected);
    }

    #[test]
    fn other_bodies_are_refused() {
        for (patch, expected) in [
            (json!({"apiVersion": "admission.k8s.io/v1beta1"}), "v1beta1"),
            (
                json!({"request": {"operation": "DELETE"}}),
                "DELETE pods/eviction",
            ),
            (
                json!({"request": {"subResource": "binding"}}),
                "CREATE pods/binding",
            ),
            (
                json!({"request": {"resource": {"group": "x"}}}),
                "not about creating",
            ),
            (json!({"request": {"name": 7}}), "not an AdmissionReview"),
        ] {
            let message = decode(&body(&patch)).unwrap_err().to_string();
            assert!(message.contains(expected), "{patch}: {message}");
        }
        for body in ["", "{", "[]", "null"] {
            assert!(decode(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn answers_are_written() {
        let written =
            |answer: &Answer| serde_json::from_str::<Value>(&encode("u", answer)).unwrap()["response"].take();
        let allow = |warning: Option<&str>| Answer::Allow {
            warning: warning.map(str::to_owned),
        };
        assert_eq!(written(&allow(None)), json!({"uid": "u", "allowed": true}));
        assert_eq!(
            written(&allow(Some("careful"))),
            json!({"uid": "u", "allowed": true, "warnings": ["careful"]})
        );
        let later = written(&Answer::Later {
            message: "ä".repeat(1000),
            retry_after_seconds: 3,
        });
        assert_eq!(
            (
                &later["allowed"],
                &later["status"]["code"],
                &later["status"]["reason"]
            ),
            (&json!(false), &json!(429), &json!("TooManyRequests"))
        );
        assert_eq!(later["status"]["details"], json!({"retryAfterSeconds": 3}));
        assert_eq!(later["status"]["message"], json!("ä".repeat(512)));
        let whenever = written(&Answer::Later {
            message: "no".to_owned(),
            retry_after_seconds: 0,
        });
        assert_eq!(whenever["status"]["details"], json!({}));
    }
}
