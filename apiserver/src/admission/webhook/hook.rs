//! A webhook of a configuration, in the form in which it is used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::Uri;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, WebhookClientConfig};
use serde_json::Value;

use super::credentials::WebhookCredentials;
use super::review::ReviewVersion;
use crate::admission::conditions::{ConditionCompiler, Conditions};
use crate::admission::matching::Matcher;
use crate::admission::plugin::Reinvocation;
use crate::http::client::{ClientCertificate, Target, Trust, TrustProblem};

/// `timeoutSeconds` of a webhook that has none: the default of the host.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The port of a Service that names none.
const DEFAULT_PORT: u16 = 443;

/// Where a webhook is called.
pub(super) struct Address {
    pub(super) target: Target,
    /// `host:port` as the configuration names it, for messages.
    authority: String,
    /// Begins with a slash.
    path: String,
}

impl Address {
    /// The path with the time limit, which tells the webhook how long its answer is waited for.
    pub(super) fn path(&self, timeout: Duration) -> String {
        format!("{}?timeout={}s", self.path, timeout.as_secs())
    }

    /// The URL that is called, for messages.
    pub(super) fn url(&self, timeout: Duration) -> String {
        format!("https://{}{}", self.authority, self.path(timeout))
    }
}

/// A webhook.
pub(super) struct Hook {
    /// The name of its configuration.
    pub(super) configuration: String,
    /// Its own name.
    pub(super) name: String,
    /// Tells it from all others of its kind.
    pub(super) id: String,
    /// Where it is called, or why it cannot be.
    pub(super) address: Result<Address, String>,
    /// The version of the review; `None` if this server knows none of those that it accepts.
    pub(super) version: Option<ReviewVersion>,
    /// Whether the request goes on if it cannot be called.
    pub(super) fails_open: bool,
    pub(super) timeout: Duration,
    /// Whether it may be called for a dry run.
    pub(super) allows_dry_run: bool,
    pub(super) reinvocation: Reinvocation,
    pub(super) matcher: Matcher,
    pub(super) conditions: Option<Box<dyn Conditions>>,
}

/// A bundle, and the id of a client certificate.
type TrustKey = (Vec<u8>, Option<u64>);

/// Compiles configurations.
pub(super) struct HookCompiler {
    conditions: Arc<dyn ConditionCompiler>,
    credentials: Arc<WebhookCredentials>,
    /// By bundle and client certificate, so that webhooks with the same ones and the same address share connections.
    trusts: Mutex<HashMap<TrustKey, Weak<Trust>>>,
}

impl HookCompiler {
    pub(super) fn new(conditions: Arc<dyn ConditionCompiler>, credentials: Arc<WebhookCredentials>) -> Self {
        Self {
            conditions,
            credentials,
            trusts: Mutex::default(),
        }
    }

    /// The webhooks of a configuration, in order.
    pub(super) fn compile(&self, configuration: &Value) -> Vec<Hook> {
        let name = configuration.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.unwrap_or_default();
        let webhooks = configuration.get("webhooks").and_then(Value::as_array);
        let webhooks = webhooks.into_iter().flatten().enumerate();
        webhooks
            .map(|(index, webhook)| self.hook(name, index, webhook))
            .collect()
    }

    /// One webhook. A validating one has the members of a mutating one, except `reinvocationPolicy`.
    fn hook(&self, configuration: &str, index: usize, webhook: &Value) -> Hook {
        let decoded: MutatingWebhook = match serde_json::from_value(webhook.clone()) {
            Ok(decoded) => decoded,
            Err(error) => return unreadable(configuration, index, webhook, &error),
        };
        let conditions = decoded
            .match_conditions
            .filter(|conditions| !conditions.is_empty());
        let seconds = decoded
            .timeout_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        Hook {
            configuration: configuration.to_owned(),
            id: format!("{configuration}/{}/{index}", decoded.name),
            address: self.address(&decoded.client_config),
            version: ReviewVersion::first_known(&decoded.admission_review_versions),
            fails_open: decoded.failure_policy.as_deref() == Some("Ignore"),
            timeout: seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
            allows_dry_run: matches!(decoded.side_effects.as_str(), "None" | "NoneOnDryRun"),
            reinvocation: match decoded.reinvocation_policy.as_deref() {
                Some("IfNeeded") => Reinvocation::IfNeeded,
                _ => Reinvocation::Never,
            },
            matcher: Matcher::of_webhook(
                decoded.rules.as_ref(),
                decoded.namespace_selector.as_ref(),
                decoded.object_selector.as_ref(),
                decoded.match_policy.as_deref(),
            ),
            conditions: conditions.map(|conditions| self.conditions.compile(&conditions)),
            name: decoded.name,
        }
    }

    fn address(&self, config: &WebhookClientConfig) -> Result<Address, String> {
        let bundle = config.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0);
        let (host, port, authority, path) = match (&config.service, &config.url) {
            (Some(service), _) => {
                let host = format!("{}.{}.svc", service.name, service.namespace);
                let port = service.port.and_then(|port| u16::try_from(port).ok());
                let port = port.unwrap_or(DEFAULT_PORT);
                let path = service.path.clone().unwrap_or_default();
                (host.clone(), port, format!("{host}:{port}"), path)
            }
            (None, Some(url)) => {
                let wrong = || format!("the url {url:?} is not one of https");
                let uri: Uri = url.parse().map_err(|_| wrong())?;
                let authority = uri.authority().ok_or_else(wrong)?;
                if uri.scheme_str() != Some("https") || uri.query().is_some() {
                    return Err(wrong());
                }
                let host = authority.host().trim_matches(['[', ']']).to_owned();
                let port = authority.port_u16().unwrap_or(DEFAULT_PORT);
                (host, port, authority.to_string(), uri.path().to_owned())
            }
            (None, None) => return Err("it has neither a service nor a url".to_owned()),
        };
        let slash = if path.starts_with('/') { "" } else { "/" };
        let credential = self.credentials.of(&authority);
        let certificate = credential.and_then(|credential| credential.certificate.as_ref());
        let trust = self.trust(bundle, certificate);
        Ok(Address {
            target: Target {
                host,
                port,
                trust: trust.map_err(|problem| problem.to_string())?,
                authorization: credential.and_then(|credential| credential.authorization.clone()),
            },
            authority,
            path: format!("{slash}{path}"),
        })
    }

    fn trust(
        &self,
        bundle: &[u8],
        certificate: Option<&ClientCertificate>,
    ) -> Result<Arc<Trust>, TrustProblem> {
        let mut trusts = self.trusts.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (bundle.to_owned(), certificate.map(ClientCertificate::id));
        if let Some(trust) = trusts.get(&key).and_then(Weak::upgrade) {
            return Ok(trust);
        }
        trusts.retain(|_, trust| trust.strong_count() > 0);
        let trust = Arc::new(Trust::new(bundle, certificate)?);
        trusts.insert(key, Arc::downgrade(&trust));
        Ok(trust)
    }
}

/// A webhook that this server cannot read, for example of a later release: its failure policy decides about every write.
fn unreadable(configuration: &str, index: usize, webhook: &Value, error: &serde_json::Error) -> Hook {
    tracing::error!(configuration, index, %error, "a webhook cannot be read: its failure policy applies to every write");
    let text = |member: &str| webhook.get(member).and_then(Value::as_str).unwrap_or_default();
    Hook {
        configuration: configuration.to_owned(),
        name: text("name").to_owned(),
        id: format!("{configuration}/{}/{index}", text("name")),
        address: Err(format!("its configuration cannot be read: {error}")),
        version: Some(ReviewVersion::V1),
        fails_open: text("failurePolicy") == "Ignore",
        timeout: DEFAULT_TIMEOUT,
        allows_dry_run: true,
        reinvocation: Reinvocation::Never,
        matcher: Matcher::of_policy(None),
        conditions: None,
    }
}
