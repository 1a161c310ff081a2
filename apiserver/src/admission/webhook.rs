//! Admission webhooks of the cluster: which are called for a write, and what their answers do.
//!
//! Mutating webhooks are called one after another, each with the result of the one before; validating ones all at once, with
//! the final object. Texts and codes are those of the Go library, since people and programs know them. Start at
//! [`MutatingWebhooks`] and [`ValidatingWebhooks`]; [`review`] has the question and the rules for answers.

mod credentials;
mod hook;
pub mod review;

use std::sync::Arc;

use bytes::Bytes;
use drydock_machinery::patch::{self, PatchError};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};
use tokio::time::Instant;

pub use self::credentials::{KubeconfigProblem, UserProblem, WebhookCredentials};
use self::hook::{Hook, HookCompiler};
use self::review::{Answer, AnswerError, ReviewVersion, denial, question};
use super::attributes::Attributes;
use super::compiled::Compiled;
use super::conditions::{ConditionCompiler, Verdict};
use super::enabled::PluginName;
use super::matching::operation;
use super::plugin::{MutatingPlugin, Mutation, Plugin, ValidatingPlugin};
use crate::error::ApiError;
use crate::host::{Followed, FollowedKind};
use crate::http::client::Client;
use crate::metrics::admission::{AdmissionMetrics, Call, RejectedBy};
use crate::registry::admission::WriteAttributes;
use crate::registry::endpoint::Endpoint;
use crate::request::AuditLevel;
use crate::telemetry::spans;

/// The configurations of mutating webhooks.
pub const MUTATING: FollowedKind = FollowedKind::of_admission(
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    &["v1"],
);
/// The configurations of validating webhooks.
pub const VALIDATING: FollowedKind = FollowedKind::of_admission(
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    &["v1"],
);
/// By this name webhooks know API servers.
const USER_AGENT: &str = "kube-apiserver-admission";
/// The largest answer, in bytes: a patch may replace an object of 3 MiB, and is encoded in base64.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// The webhooks of one kind.
struct Webhooks {
    name: PluginName,
    step: &'static str,
    configurations: Compiled<Vec<Hook>>,
    client: Arc<Client>,
    metrics: AdmissionMetrics,
}

/// Calls mutating webhooks.
pub struct MutatingWebhooks(Webhooks);

/// Calls validating webhooks.
pub struct ValidatingWebhooks(Webhooks);

/// Why a webhook does not let a request go on.
enum Failure {
    /// It could not be called: the failure policy decides. The text follows its name.
    Call(String),
    /// It denied the request, with this code.
    Denied(ApiError),
    /// The server cannot use its answer, whatever its failure policy.
    Internal(ApiError),
}

impl Failure {
    fn internal(text: impl std::fmt::Display) -> Self {
        Self::Internal(ApiError::internal(text))
    }
}

/// What webhooks of both kinds need.
#[derive(Clone)]
pub struct WebhookContext {
    /// Calls them.
    pub client: Arc<Client>,
    /// Counts the calls.
    pub metrics: AdmissionMetrics,
    /// Compiles their `matchConditions`.
    pub conditions: Arc<dyn ConditionCompiler>,
    /// What they are shown.
    pub credentials: Arc<WebhookCredentials>,
}

impl MutatingWebhooks {
    /// The webhooks of these configurations.
    #[must_use]
    pub fn new(followed: Arc<Followed>, context: WebhookContext) -> Self {
        let name = PluginName::MutatingAdmissionWebhook;
        Self(Webhooks::new(name, "admit", followed, context))
    }
}

impl ValidatingWebhooks {
    /// The webhooks of these configurations.
    #[must_use]
    pub fn new(followed: Arc<Followed>, context: WebhookContext) -> Self {
        let name = PluginName::ValidatingAdmissionWebhook;
        Self(Webhooks::new(name, "validating", followed, context))
    }
}

impl Webhooks {
    fn new(name: PluginName, step: &'static str, followed: Arc<Followed>, context: WebhookContext) -> Self {
        let compiler = HookCompiler::new(context.conditions, context.credentials);
        Self {
            name,
            step,
            configurations: Compiled::new(followed, move |object| compiler.compile(object)),
            client: context.client,
            metrics: context.metrics,
        }
    }

    fn call_of<'a>(&self, hook: &'a Hook, attributes: &Attributes<'_>) -> Call<'a> {
        Call {
            name: &hook.name,
            step: self.step,
            operation: operation(attributes.operation()),
        }
    }

    /// The version in which a webhook is called for a write; `None` if it is not.
    async fn matched(&self, hook: &Hook, attributes: &Attributes<'_>) -> Result<Option<Endpoint>, ApiError> {
        let Some(endpoint) = hook.matcher.find(attributes).await? else {
            return Ok(None);
        };
        let Some(conditions) = &hook.conditions else {
            return Ok(Some(endpoint));
        };
        let started = Instant::now();
        let verdict = conditions.evaluate(attributes, &endpoint).await;
        let (excluded, failed) = (verdict == Verdict::NotMet, matches!(verdict, Verdict::Failed(_)));
        let call = self.call_of(hook, attributes);
        self.metrics
            .conditions(call, "webhook", excluded, failed, started.elapsed());
        match verdict {
            Verdict::Met => Ok(Some(endpoint)),
            Verdict::NotMet => Ok(None),
            Verdict::Failed(text) if hook.fails_open => {
                tracing::warn!(webhook = hook.name, text, "match conditions failed: not called");
                Ok(None)
            }
            Verdict::Failed(text) => Err(attributes.forbidden(text)),
        }
    }

    /// Calls a webhook. Adds its warnings and audit annotations.
    async fn ask(
        &self,
        hook: &Hook,
        attributes: &Attributes<'_>,
        endpoint: &Endpoint,
        is_mutating: bool,
    ) -> Result<Answer, Failure> {
        if attributes.write().dry_run && !hook.allows_dry_run {
            return Err(Failure::Internal(ApiError::bad_request(format!(
                "admission webhook {:?} does not support dry run",
                hook.name
            ))));
        }
        let version = hook.version.ok_or_else(|| {
            let text = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
            Failure::Call(format!("could not create admission objects: {text}"))
        })?;
        let uid = uuid::Uuid::new_v4().to_string();
        let body = question(attributes, endpoint, version, &uid).map_err(Failure::Internal)?;
        let name = if is_mutating {
            "Call mutating webhook"
        } else {
            "Call validating webhook"
        };
        let exchange = self.exchange(hook, body, version, &uid, is_mutating);
        let answer = spans::within(name, exchange).await;
        let answer = answer.map_err(|error| Failure::Call(error.to_string()))?;
        for (key, value) in &answer.audit_annotations {
            attributes
                .audit()
                .annotate(format!("{}/{key}", hook.name), value.as_str());
        }
        for warning in &answer.warnings {
            attributes.warn(warning.as_str());
        }
        if answer.allowed {
            Ok(answer)
        } else {
            Err(Failure::Denied(denial(&hook.name, answer.status)))
        }
    }

    async fn exchange(
        &self,
        hook: &Hook,
        body: Bytes,
        version: ReviewVersion,
        uid: &str,
        is_mutating: bool,
    ) -> Result<Answer, AnswerError> {
        let address = hook
            .address
            .as_ref()
            .map_err(|problem| AnswerError::Call(format!("could not get REST client: {problem}")))?;
        let deadline = Instant::now() + hook.timeout;
        let path = address.path(hook.timeout);
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        spans::propagate(&mut headers);
        let response = self
            .client
            .post(&address.target, &path, &headers, body, MAX_ANSWER_BYTES, deadline)
            .await
            .map_err(|error| AnswerError::Call(format!("Post \"{}\": {error}", address.url(hook.timeout))))?;
        review::read(
            response.code,
            &response.headers,
            &response.body,
            version,
            uid,
            is_mutating,
        )
    }

    /// Counts a call and what came of it. Decides by the failure policy: `Ok(None)` lets the request go on without the
    /// webhook.
    fn settle<T>(
        &self,
        hook: &Hook,
        attributes: &Attributes<'_>,
        started: Instant,
        result: Result<T, Failure>,
    ) -> Result<Option<T>, ApiError> {
        let call = self.call_of(hook, attributes);
        let (code, by) = match &result {
            Ok(_) => (200, None),
            Err(Failure::Call(_)) => (500, Some(RejectedBy::Call)),
            Err(Failure::Denied(error)) => (error.status().code, Some(RejectedBy::Webhook)),
            Err(Failure::Internal(_)) => (500, Some(RejectedBy::Internal)),
        };
        let goes_on = result.is_ok() || matches!(result, Err(Failure::Call(_))) && hook.fails_open;
        self.metrics.called(call, code, !goes_on, started.elapsed());
        if let Some(by) = by.filter(|_| !goes_on) {
            let code = if by == RejectedBy::Internal { 0 } else { code };
            self.metrics.rejected(call, by, code);
        }
        match result {
            Ok(answer) => Ok(Some(answer)),
            Err(Failure::Call(text)) => {
                tracing::warn!(
                    webhook = hook.name,
                    configuration = hook.configuration,
                    fails_open = hook.fails_open,
                    text,
                    "calling a webhook failed"
                );
                if hook.fails_open {
                    self.metrics.failed_open(call);
                    return Ok(None);
                }
                Err(ApiError::internal(format_args!(
                    "failed calling webhook {:?}: {text}",
                    hook.name
                )))
            }
            Err(Failure::Denied(error) | Failure::Internal(error)) => Err(error),
        }
    }

    /// Calls a mutating webhook and applies its patch. Returns whether the object changed.
    async fn mutate(
        &self,
        hook: &Hook,
        mutation: &mut Mutation<'_>,
        endpoint: &Endpoint,
        suffix: &str,
    ) -> Result<bool, Failure> {
        let answer = self.ask(hook, &mutation.attributes, endpoint, true).await?;
        let is_empty = |patch: &[u8]| match serde_json::from_slice::<Value>(patch) {
            Ok(Value::Array(operations)) => Ok(operations.is_empty()),
            Ok(Value::Null) => Ok(true),
            Ok(_) => Err("it is not a list".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let undecodable =
            |text: String| Failure::Call(format!("received undecodable patch in webhook response: {text}"));
        if answer.patch.is_empty() || is_empty(&answer.patch).map_err(undecodable)? {
            return Ok(false);
        }
        let Some(object) = mutation.attributes.object(endpoint).map_err(Failure::Internal)? else {
            return Err(Failure::internal(format_args!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                hook.name
            )));
        };
        if answer.patch_type != "JSONPatch" {
            return Err(Failure::Call(format!(
                "unsupported patch type {:?}",
                answer.patch_type
            )));
        }
        let patched = match patch::json::apply(object, &answer.patch) {
            Ok(patched) => patched.value,
            Err(PatchError::Operation { source, .. }) => return Err(Failure::internal(source)),
            Err(error @ PatchError::TooManyOperations { .. }) => return Err(Failure::internal(error)),
            Err(error) => return Err(undecodable(error.to_string())),
        };
        let audit = mutation.attributes.audit();
        if audit.includes(AuditLevel::Request) {
            let patch: Value = serde_json::from_slice(&answer.patch).unwrap_or_default();
            let value = json!({"configuration": hook.configuration, "webhook": hook.name, "patch": patch,
                "patchType": answer.patch_type});
            let key = format!("patch.webhook.admission.k8s.io/{suffix}");
            audit.annotate_at(AuditLevel::Request, key, value.to_string());
        }
        mutation
            .attributes
            .change(endpoint, patched)
            .map_err(Failure::Internal)
    }
}

impl Plugin for Webhooks {
    fn name(&self) -> &'static str {
        self.name.as_str()
    }

    fn sources(&self) -> Vec<&Arc<Followed>> {
        vec![self.configurations.followed()]
    }

    fn concerns(&self, write: &WriteAttributes<'_>) -> bool {
        let configurations = self.configurations.items();
        let mut hooks = configurations.items.iter().flat_map(|item| &item.compiled);
        hooks.any(|hook| hook.matcher.may_match(write))
    }
}

impl MutatingPlugin for MutatingWebhooks {
    fn plugin(&self) -> &dyn Plugin {
        &self.0
    }

    fn admit<'a>(&'a self, mutation: &'a mut Mutation<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let configurations = self.0.configurations.items();
            let hooks = configurations.items.iter().flat_map(|item| &item.compiled);
            for (index, hook) in hooks.enumerate() {
                if !mutation.runs(&hook.id, hook.reinvocation) {
                    continue;
                }
                let Some(endpoint) = self.0.matched(hook, &mutation.attributes).await? else {
                    continue;
                };
                let suffix = format!("round_{}_index_{index}", mutation.round());
                let started = Instant::now();
                let result = self.0.mutate(hook, mutation, &endpoint, &suffix).await;
                let changed = matches!(result, Ok(true));
                let attributes = &mutation.attributes;
                annotate_mutation(hook, attributes, &suffix, changed);
                if self.0.settle(hook, attributes, started, result)?.is_none() {
                    let key = format!("failed-open.mutation.webhook.admission.k8s.io/{suffix}");
                    attributes.audit().annotate(key, hook.name.as_str());
                }
                mutation.ran(&hook.id, changed);
            }
            Ok(())
        }
        .boxed()
    }
}

fn annotate_mutation(hook: &Hook, attributes: &Attributes<'_>, suffix: &str, changed: bool) {
    let audit = attributes.audit();
    if !audit.includes(AuditLevel::Metadata) {
        return;
    }
    let value = json!({"configuration": hook.configuration, "webhook": hook.name, "mutated": changed});
    audit.annotate(
        format!("mutation.webhook.admission.k8s.io/{suffix}"),
        value.to_string(),
    );
}

impl ValidatingPlugin for ValidatingWebhooks {
    fn plugin(&self) -> &dyn Plugin {
        &self.0
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let configurations = self.0.configurations.items();
            let hooks = configurations.items.iter().flat_map(|item| &item.compiled);
            let mut calls = Vec::new();
            for hook in hooks {
                if let Some(endpoint) = self.0.matched(hook, attributes).await? {
                    // In the audit log they are counted among those that are called, other than mutating ones.
                    calls.push(self.validate_by(hook, attributes, endpoint, calls.len()));
                }
            }
            join_all(calls).await.into_iter().collect()
        }
        .boxed()
    }
}

impl ValidatingWebhooks {
    async fn validate_by(
        &self,
        hook: &Hook,
        attributes: &Attributes<'_>,
        endpoint: Endpoint,
        index: usize,
    ) -> Result<(), ApiError> {
        let started = Instant::now();
        let result = self.0.ask(hook, attributes, &endpoint, false).await;
        if self.0.settle(hook, attributes, started, result)?.is_none() {
            let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
            attributes.audit().annotate(key, hook.name.as_str());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
