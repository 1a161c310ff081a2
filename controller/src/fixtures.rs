//! Test fixtures: a recording API double, filled stores, clocks and objects.

use std::sync::{Arc, Mutex};

use drydock_machinery::clock::{Clock, ManualClock};
use http::{Request, Response};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::BoxError;

use crate::api::Clients;
use crate::context::Context;
use crate::events::EventRecorder;
use crate::informer::Store;
use crate::metrics::Metrics;
use crate::pod::Pod;
use crate::request_labels::RequestLabels;
use crate::stores::Stores;

/// A request that the API double received.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

impl ReceivedRequest {
    /// The last segment of the path: the name of the object, or the subresource.
    pub(crate) fn last_segment(&self) -> &str {
        self.path.rsplit('/').next().unwrap()
    }
}

/// The requests that an API double received, in order.
pub(crate) type Received = Arc<Mutex<Vec<ReceivedRequest>>>;

/// When the calls to an API double began, in order.
pub(crate) type Begun = Arc<Mutex<Vec<Instant>>>;

/// A client of an API that never responds.
pub(crate) fn silent_api() -> (Client, Begun) {
    let begun = Begun::default();
    let calls = Arc::clone(&begun);
    let service = tower::service_fn(move |_: Request<Body>| {
        calls.lock().unwrap().push(Instant::now());
        std::future::pending::<Result<Response<Body>, BoxError>>()
    });
    (Client::new(service, "default"), begun)
}

/// Clients of one API double that responds by a function of the request and records what it receives.
pub(crate) fn api_double(
    respond: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
) -> (Clients, Received) {
    let received = Received::default();
    let respond = Arc::new(respond);
    let service = tower::service_fn({
        let received = Arc::clone(&received);
        move |request: http::Request<kube::client::Body>| {
            let (received, respond) = (Arc::clone(&received), Arc::clone(&respond));
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let request = ReceivedRequest {
                    method: parts.method.to_string(),
                    path: parts.uri.path().to_owned(),
                    query: parts.uri.query().unwrap_or_default().to_owned(),
                    body: serde_json::from_slice(&body).unwrap_or(Value::Null),
                };
                let (code, value) = respond(&request);
                received.lock().unwrap().push(request);
                let body = kube::client::Body::from(value.to_string().into_bytes());
                http::Response::builder()
                    .status(code)
                    .body(body)
                    .map_err(kube::Error::HttpError)
            }
        }
    });
    let client = Client::new(service, "default");
    let clients = Clients {
        host: client.clone(),
        drydock: client,
    };
    (clients, received)
}

/// The response to a request for an object that does not exist.
pub(crate) fn not_found() -> (u16, Value) {
    failure(404, "NotFound", "\"web\" not found", json!({"name": "web"}))
}

/// An error response.
#[expect(clippy::needless_pass_by_value, reason = "callers write the details in place")]
pub(crate) fn failure(code: u16, reason: &str, message: &str, details: Value) -> (u16, Value) {
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": details,
    });
    (code, body)
}

/// Synced stores without objects.
pub(crate) fn empty_stores() -> Stores {
    Stores {
        requests: Store::synced_with(Vec::new()),
        maintenances: Store::synced_with(Vec::new()),
        interceptors: Store::synced_with(Vec::new()),
        pods: Store::synced_with(Vec::new()),
        nodes: Store::synced_with(Vec::new()),
        namespaces: Store::synced_with(Vec::new()),
        budgets: Store::synced_with(Vec::new()),
    }
}

/// An object from its JSON.
pub(crate) fn typed<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// A clock that shows this second until it is moved.
pub(crate) fn clock_at(second: i64) -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_second(second).unwrap()))
}

/// A context whose Events are dropped.
pub(crate) fn context(stores: Stores, clients: Clients, clock: &Arc<ManualClock>) -> Arc<Context> {
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    Arc::new(Context {
        stores,
        clients,
        events: EventRecorder::new(Arc::clone(&clock), "test").0,
        metrics: Metrics::default(),
        labels: RequestLabels::default(),
        clock,
    })
}

/// A running pod `web` with UID `uid-1` on node `one`, changed by a merge patch.
pub(crate) fn pod(patch: &Value) -> Pod {
    let mut value = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "uid-1"},
        "spec": {"nodeName": "one"},
        "status": {"phase": "Running"},
    });
    merge(&mut value, patch);
    typed(value)
}

/// Applies a merge patch.
pub(crate) fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let into = into.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            into.remove(key);
        } else {
            merge(into.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
