//! Calls to the Kubernetes API. Every call has a deadline, and errors are classified by what the caller does next.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// The deadline of one call. Watches have none.
const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// The clients of the two APIs. They are the same where Drydock's kinds are aggregated into the cluster.
#[derive(Clone)]
pub struct Clients {
    /// The host cluster's API.
    pub host: Client,
    /// The API that serves Drydock's kinds.
    pub drydock: Client,
}

impl Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clients")
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API responded with an error.
    #[error("{} ({})", .0.message, .0.code)]
    Status(Box<Status>),
    /// The API could not be reached, or its response could not be decoded.
    #[error("the API call failed")]
    Client(#[source] Box<kube::Error>),
    /// The API did not respond within this time.
    #[error("no response from the API within {:.1} s", .0.as_secs_f64())]
    Timeout(Duration),
}

impl Error {
    /// The error response, if there was a response.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            Self::Client(_) | Self::Timeout(_) => None,
        }
    }

    /// Whether a write lost against a concurrent one, or the object to create exists already.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.code == 409)
    }

    /// Whether an apply named a value for a field that another manager has given another value.
    #[must_use]
    pub fn is_field_conflict(&self) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        self.is_conflict()
            && details.is_some_and(|details| {
                let mut causes = details.causes.iter();
                causes.any(|cause| cause.reason == "FieldManagerConflict")
            })
    }

    /// Whether this program lacks a right.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.status().is_some_and(|status| status.code == 403)
    }

    /// Whether the API rejected the content of the object.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.status().is_some_and(|status| status.code == 422)
    }

    /// Whether the object does not exist. A 404 that names no object means that its API is not served at the moment,
    /// such as while the `APIService` is registered anew, and says nothing about the object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| {
            let details = status.details.as_ref();
            status.code == 404 && details.is_some_and(|details| !details.name.is_empty())
        })
    }

    /// The source of the error, for the log.
    #[must_use]
    pub fn cause(&self) -> Option<String> {
        std::error::Error::source(self).map(ToString::to_string)
    }
}

/// Waits for the response to one call. Dropping the future cancels the request; the server may have executed it.
///
/// # Errors
///
/// [`Error`].
pub async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    match tokio::time::timeout(CALL_DEADLINE, call).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(kube::Error::Api(status))) => Err(Error::Status(status)),
        Ok(Err(error)) => Err(Error::Client(Box::new(error))),
        Err(_) => Err(Error::Timeout(CALL_DEADLINE)),
    }
}

/// Sends a merge patch of an object.
///
/// # Errors
///
/// [`Error`].
pub async fn merge_patch<K>(api: &Api<K>, name: &str, patch: &Value) -> Result<K, Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    call(api.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await
}

/// Sends a server-side apply of an object, which takes over no field of others.
///
/// # Errors
///
/// [`Error`]; a conflict when others own fields with another value, or the object has another UID than the
/// configuration.
pub async fn apply<K>(api: &Api<K>, name: &str, manager: &str, config: &Value) -> Result<K, Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    call(api.patch(name, &PatchParams::apply(manager), &Patch::Apply(config))).await
}

/// Sends a merge patch of an object's status.
///
/// # Errors
///
/// [`Error`].
pub async fn merge_patch_status<K>(api: &Api<K>, name: &str, patch: &StatusPatch) -> Result<K, Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    call(api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch))).await
}

/// Creates a subresource of an object, such as an eviction. Where the API names a delay in the header `Retry-After`
/// alone, the details of the error contain it.
///
/// # Errors
///
/// [`Error`].
pub async fn create_subresource<K: kube::Resource + Clone>(
    api: &Api<K>,
    subresource: &str,
    name: &str,
    body: &impl Serialize,
) -> Result<(), Error> {
    call(async {
        let body = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
        let request = kube::core::Request::new(api.resource_url())
            .create_subresource(subresource, name, &PostParams::default(), body)
            .map_err(kube::Error::BuildRequest)?;
        let response = api.clone().into_client().send(request.map(Body::from)).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect_bytes().await?;
        if parts.status.is_success() {
            return Ok(());
        }
        let header = parts.headers.get(http::header::RETRY_AFTER);
        let retry_after = header.and_then(|header| header.to_str().ok()?.parse().ok());
        Err(kube::Error::Api(Box::new(error_status(
            parts.status.as_u16(),
            &body,
            retry_after,
        ))))
    })
    .await
}

/// The error in a response. Proxies, and API servers under load, respond with plain text.
fn error_status(code: u16, body: &[u8], retry_after: Option<u32>) -> Status {
    let mut status = serde_json::from_slice(body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(body);
        Status::failure(text.trim(), "").with_code(code)
    });
    status.code = code;
    if let Some(seconds) = retry_after {
        let details = status.details.get_or_insert_with(|| StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
        details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    }
    status
}

/// Deletes an object under preconditions.
///
/// # Errors
///
/// [`Error`]; a conflict when a precondition does not hold.
pub async fn delete<K>(api: &Api<K>, name: &str, preconditions: Preconditions) -> Result<(), Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    call(api.delete(name, &DeleteParams::default().preconditions(preconditions))).await?;
    Ok(())
}

/// A merge patch of a status, with the resource version as a precondition.
#[derive(Debug, Serialize)]
pub struct StatusPatch {
    metadata: Precondition,
    /// Members of the status as JSON; `None` removes one.
    status: BTreeMap<String, Option<Box<RawValue>>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Precondition {
    resource_version: Option<String>,
}

impl StatusPatch {
    fn new(resource_version: Option<&str>, status: BTreeMap<String, Option<Box<RawValue>>>) -> Self {
        let resource_version = resource_version.map(str::to_owned);
        Self {
            metadata: Precondition { resource_version },
            status,
        }
    }

    /// The patch that writes one member of the status.
    #[must_use]
    pub fn of_member(resource_version: Option<&str>, name: &str, value: &impl Serialize) -> Self {
        let value = to_raw_value(value).ok();
        Self::new(resource_version, BTreeMap::from([(name.to_owned(), value)]))
    }
}

/// The merge patch that turns the status `before` into `after`. It replaces whole members of the status; `None` when nothing
/// changes.
#[must_use]
pub fn status_patch<S: Serialize>(
    resource_version: Option<&str>,
    before: Option<&S>,
    after: &S,
) -> Option<StatusPatch> {
    let (before, after) = (before.map(json_of).unwrap_or_default(), json_of(after));
    let mut before = members(&before);
    let mut changes = BTreeMap::new();
    for (name, value) in members(&after) {
        if before
            .remove(&name)
            .is_none_or(|before| before.get() != value.get())
        {
            changes.insert(name, Some(value.to_owned()));
        }
    }
    changes.extend(before.into_keys().map(|name| (name, None)));
    (!changes.is_empty()).then(|| StatusPatch::new(resource_version, changes))
}

/// The text of a status. Equal members have equal texts: structs and maps are written in a fixed order.
fn json_of(status: &impl Serialize) -> String {
    serde_json::to_string(status).unwrap_or_default()
}

/// The members of an object; none of anything else.
fn members(json: &str) -> BTreeMap<String, &RawValue> {
    serde_json::from_str(json).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_timeout_names_the_time_that_was_waited() {
        let text = |waited| Error::Timeout(waited).to_string();
        assert_eq!(text(CALL_DEADLINE), "no response from the API within 15.0 s");
        assert_eq!(
            text(Duration::from_millis(870)),
            "no response from the API within 0.9 s"
        );
    }

    #[test]
    fn status_patch_contains_only_changed_members() {
        let patch = |version, before: Option<&Value>, after| json!(status_patch(version, before, after));
        let before = json!({"a": 1, "b": [1], "c": "gone"});
        let after = json!({"a": 1, "b": [2], "d": true});
        assert_eq!(
            patch(Some("7"), Some(&before), &after),
            json!({"metadata": {"resourceVersion": "7"}, "status": {"b": [2], "c": null, "d": true}})
        );
        assert_eq!(
            patch(None, None, &after),
            json!({"metadata": {"resourceVersion": null}, "status": after})
        );
        assert_eq!(patch(Some("7"), Some(&after), &after), Value::Null);
        assert_eq!(patch(None, None, &json!({})), Value::Null);
        assert_eq!(
            json!(StatusPatch::of_member(Some("7"), "b", &[2])),
            json!({"metadata": {"resourceVersion": "7"}, "status": {"b": [2]}})
        );
    }

    #[test]
    fn missing_api_is_not_a_missing_object() {
        let error = |status: Value| Error::Status(Box::new(serde_json::from_value(status).unwrap()));
        let missing = json!({"code": 404, "reason": "NotFound", "message": "the server could not find the requested resource", "details": {}});
        assert!(!error(missing).is_not_found());
        assert!(!error(json!({"code": 404, "message": "404 page not found"})).is_not_found());
        let object = json!({"code": 404, "reason": "NotFound", "details": {"name": "uid-1", "kind": "evictionrequests"}});
        assert!(error(object).is_not_found());
    }

    #[tokio::test]
    async fn error_of_a_subresource_contains_the_retry_after_header() {
        let details =
            json!({"code": 429, "message": "wait", "details": {"retryAfterSeconds": 9}}).to_string();
        for (header, body, message, seconds) in [
            (
                Some("7"),
                "Too many requests\n".to_owned(),
                "Too many requests",
                7,
            ),
            (Some("7"), details.clone(), "wait", 9),
            (Some("11"), details.clone(), "wait", 11),
            (None, details, "wait", 9),
            (Some("Wed, 21 Oct 2015 07:28:00 GMT"), "no".to_owned(), "no", 0),
        ] {
            let service = tower::service_fn(move |_: http::Request<Body>| {
                let mut response = http::Response::builder().status(429);
                if let Some(header) = header {
                    response = response.header("Retry-After", header);
                }
                let response = response.body(Body::from(body.clone().into_bytes()));
                async move { response }
            });
            let pods: Api<k8s_openapi::api::core::v1::Pod> =
                Api::namespaced(Client::new(service, "default"), "shop");
            let error = create_subresource(&pods, "eviction", "web", &json!({}))
                .await
                .unwrap_err();
            let status = error.status().unwrap();
            assert_eq!((status.code, status.message.as_str()), (429, message));
            let found = status
                .details
                .as_ref()
                .map_or(0, |details| details.retry_after_seconds);
            assert_eq!(found, seconds);
        }
    }
}
