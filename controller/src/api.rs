//! How is the API called? Every call has a deadline, and its failures are told apart by what to do next.

use std::future::Future;
use std::time::Duration;

use kube::Client;
use kube::core::Status;
use serde::Serialize;
use serde_json::{Map, Value};

/// How long one call may take. Watches have no deadline.
const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// Who is called: the cluster, and the server of our kinds, which are the same where it is aggregated.
#[derive(Clone)]
pub struct Clients {
    /// The cluster's API.
    pub host: Client,
    /// The API of our kinds.
    pub ours: Client,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clients")
    }
}

/// A call that came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API answered with an error.
    #[error("{} ({})", .0.message, .0.code)]
    Refused(Box<Status>),
    /// The API could not be reached, or its answer not be understood.
    #[error("the API call failed")]
    Failed(#[source] Box<kube::Error>),
    /// There was no answer in time.
    #[error("the API did not answer within {} s", CALL_DEADLINE.as_secs())]
    Deadline,
}

impl Error {
    /// The answer, if there was one.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused(status) => Some(status),
            Self::Failed(_) | Self::Deadline => None,
        }
    }

    /// Whether somebody else changed the object meanwhile, or it exists already.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.code == 409)
    }

    /// Whether the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404)
    }
}

/// Waits for the answer of one call. Dropping it drops the connection's request; the server may have acted on it.
///
/// # Errors
///
/// What became of the call otherwise.
pub async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    match tokio::time::timeout(CALL_DEADLINE, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(Error::Refused(status)),
        Ok(Err(error)) => Err(Error::Failed(Box::new(error))),
        Err(_) => Err(Error::Deadline),
    }
}

/// The merge patch that makes `before` into `after`, member by member, under the condition that nobody changed the
/// object meanwhile; `None` when there is nothing to change.
#[must_use]
pub fn status_patch<S: Serialize>(
    resource_version: Option<&str>,
    before: Option<&S>,
    after: &S,
) -> Option<Value> {
    let object = |value: Option<Value>| match value {
        Some(Value::Object(members)) => members,
        _ => Map::new(),
    };
    let mut before = object(before.and_then(|before| serde_json::to_value(before).ok()));
    let mut changes = Map::new();
    for (name, value) in object(serde_json::to_value(after).ok()) {
        if before.remove(&name).as_ref() != Some(&value) {
            changes.insert(name, value);
        }
    }
    changes.extend(before.into_iter().map(|(name, _)| (name, Value::Null)));
    if changes.is_empty() {
        return None;
    }
    Some(serde_json::json!({
        "metadata": { "resourceVersion": resource_version },
        "status": changes,
    }))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::{Arc, Mutex};

    /// A request an API double has seen.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct Seen {
        pub(crate) method: String,
        pub(crate) path: String,
        pub(crate) query: String,
        pub(crate) body: Value,
    }

    /// A client of an API double that answers by a function and remembers what it saw.
    pub(crate) fn double(
        answer: impl Fn(&Seen) -> (u16, Value) + Send + Sync + 'static,
    ) -> (Client, Arc<Mutex<Vec<Seen>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let answer = Arc::new(answer);
        let service = tower::service_fn({
            let seen = Arc::clone(&seen);
            move |request: http::Request<kube::client::Body>| {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect_bytes().await?;
                    let request = Seen {
                        method: parts.method.to_string(),
                        path: parts.uri.path().to_owned(),
                        query: parts.uri.query().unwrap_or_default().to_owned(),
                        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
                    };
                    let (code, value) = answer(&request);
                    seen.lock().unwrap().push(request);
                    let body = kube::client::Body::from(value.to_string().into_bytes());
                    http::Response::builder()
                        .status(code)
                        .body(body)
                        .map_err(kube::Error::HttpError)
                }
            }
        });
        (Client::new(service, "default"), seen)
    }

    /// A Kubernetes error.
    #[expect(clippy::needless_pass_by_value, reason = "callers write the details in place")]
    pub(crate) fn failure(code: u16, reason: &str, message: &str, details: Value) -> (u16, Value) {
        let body = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "code": code, "reason": reason, "message": message, "details": details,
        });
        (code, body)
    }

    #[test]
    fn a_patch_holds_what_changed_and_nothing_else() {
        let before = json!({"a": 1, "b": [1], "c": "gone"});
        let after = json!({"a": 1, "b": [2], "d": true});
        assert_eq!(
            status_patch(Some("7"), Some(&before), &after),
            Some(json!({"metadata": {"resourceVersion": "7"}, "status": {"b": [2], "c": null, "d": true}}))
        );
        assert_eq!(status_patch(Some("7"), Some(&after), &after), None);
        assert_eq!(status_patch(None, None, &json!({})), None);
    }
}
