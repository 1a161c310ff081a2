//! The webhook: events are posted in lists to the server that a kubeconfig names.
//!
//! Each attempt has 30 s, and an event list is tried five times with growing pauses, whatever the error, as in the reference:
//! hardly any error is a reason to give up events.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Uri};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::AuditError;
use super::settings::WebhookSettings;
use super::sink::{Encoded, Output};

const ATTEMPTS: u32 = 5;
const BACKOFF_FACTOR: f64 = 1.5;
/// The share of a pause that is added at random.
const JITTER: f64 = 0.2;
/// Time limit of an attempt.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The webhook as an output of events.
pub(super) struct WebhookOutput {
    client: Client,
    target: PathAndQuery,
    initial_backoff: Duration,
}

impl WebhookOutput {
    /// A webhook from its kubeconfig. No connection is opened before there are events.
    pub(super) async fn start(settings: &WebhookSettings) -> Result<Self, AuditError> {
        let unusable = |source: Box<dyn std::error::Error + Send + Sync>| AuditError::Webhook {
            path: settings.config.clone(),
            source,
        };
        let mut config = config(&settings.config).await.map_err(unusable)?;
        // The client joins the path of the server with that of a request, and always leaves a slash between them.
        let target = config
            .cluster_url
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut server = config.cluster_url.clone().into_parts();
        server.path_and_query = Some(PathAndQuery::from_static("/"));
        config.cluster_url = Uri::from_parts(server).map_err(|error| unusable(Box::new(error)))?;
        config.default_retry = false;
        let agent = HeaderValue::from_static(concat!("drydock-apiserver/", env!("CARGO_PKG_VERSION")));
        config.headers.push((USER_AGENT, agent));
        Ok(Self {
            client: Client::try_from(config).map_err(|error| unusable(Box::new(error)))?,
            target,
            initial_backoff: settings.initial_backoff,
        })
    }

    async fn post(&self, list: Vec<u8>) -> Result<(), String> {
        let request = Request::post(self.target.as_str())
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(list))
            .map_err(|error| error.to_string())?;
        let response = tokio::time::timeout(TIMEOUT, self.client.send(request)).await;
        let response = response
            .map_err(|_| "the webhook did not respond within 30 s".to_owned())?
            .map_err(|error| chain(&error))?;
        if response.status().is_success() {
            Ok(())
        } else {
            Err(format!("the webhook responded with {}", response.status()))
        }
    }

    async fn post_with_retries(&self, list: Vec<u8>) -> Result<(), String> {
        let mut pause = self.initial_backoff;
        let mut attempt = 1;
        loop {
            let error = match self.post(list.clone()).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if attempt == ATTEMPTS {
                return Err(error);
            }
            attempt += 1;
            tracing::warn!(
                error,
                attempt,
                "audit events were not delivered and will be sent again"
            );
            tokio::time::sleep(pause.mul_f64(1.0 + JITTER * fastrand::f64())).await;
            pause = pause.mul_f64(BACKOFF_FACTOR);
        }
    }
}

async fn config(path: &Path) -> Result<Config, Box<dyn std::error::Error + Send + Sync>> {
    let file = Kubeconfig::read_from(path)?;
    Ok(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

impl Output for WebhookOutput {
    fn deliver(&self, events: &[Arc<Encoded>]) -> BoxFuture<'_, Result<(), String>> {
        let list = list(events);
        self.post_with_retries(list).boxed()
    }
}

/// An `EventList`.
fn list(events: &[Arc<Encoded>]) -> Vec<u8> {
    let mut list = br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#.to_vec();
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            list.push(b',');
        }
        list.extend_from_slice(&event.json);
    }
    list.extend_from_slice(b"]}");
    list
}

/// The error with its sources, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
