//! `ValidatingAdmissionPolicy`.

use std::collections::BTreeMap;
use std::sync::Arc;

use drydock_machinery::policy_expression::{AccessCheck, Decisions, Input, Value as Cel};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::PolicyContext;
use super::definition::{self, Binding, Definition, ValidatingPrograms};
use super::evaluation::{self, Conditions, Finding, Findings};
use super::metrics::Action;
use super::prepared::Prepared;
use crate::admission::PluginName;
use crate::admission::attributes::Attributes;
use crate::admission::compiled::{Compiled, Item};
use crate::admission::plugin::{Plugin, ValidatingPlugin};
use crate::error::{ApiError, PolicyReason};
use crate::host::{Followed, FollowedKind};
use crate::registry::admission::WriteAttributes;

const POLICIES: FollowedKind = FollowedKind::of_admission(
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    &["v1"],
);
const BINDINGS: FollowedKind = FollowedKind::of_admission(
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    &["v1"],
);
/// How many failures an audit annotation lists.
const MAX_AUDITED: usize = 50;
/// The longest value of an audit annotation, in bytes.
const MAX_ANNOTATION_BYTES: usize = 10 * 1024;

/// The policies of the host.
pub struct ValidatingPolicies {
    context: Arc<PolicyContext>,
    policies: Compiled<Definition<ValidatingPrograms>>,
    bindings: Compiled<Option<Binding>>,
}

impl ValidatingPolicies {
    /// Follows the policies of the host; `None` for a host without policies.
    #[must_use]
    pub fn new(context: &Arc<PolicyContext>) -> Option<Self> {
        let policies = context.host.follow(POLICIES)?;
        let bindings = context.host.follow(BINDINGS)?;
        Some(Self {
            context: Arc::clone(context),
            policies: Compiled::new(policies, definition::validating),
            bindings: Compiled::new(bindings, definition::validating_binding),
        })
    }
}

impl Plugin for ValidatingPolicies {
    fn name(&self) -> &'static str {
        PluginName::ValidatingAdmissionPolicy.as_str()
    }

    fn sources(&self) -> Vec<&Arc<Followed>> {
        vec![self.policies.followed(), self.bindings.followed()]
    }

    fn concerns(&self, write: &WriteAttributes<'_>) -> bool {
        let policies = self.policies.items();
        policies
            .items
            .iter()
            .any(|policy| policy.compiled.matcher.may_match(write))
    }
}

impl ValidatingPlugin for ValidatingPolicies {
    fn validate<'a>(&'a self, attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let policies = self.policies.items();
            let bindings = self.bindings.items();
            let mut dispatch = Dispatch {
                context: &self.context,
                attributes,
                prepared: Prepared::new(&self.context, attributes),
                decisions: Arc::default(),
                denied: None,
                audited: Vec::new(),
            };
            for policy in &policies.items {
                let bound: Vec<&Binding> = bindings
                    .items
                    .iter()
                    .filter_map(|item| item.compiled.as_ref())
                    .filter(|binding| binding.policy == policy.compiled.name())
                    .collect();
                // A policy without bindings does nothing.
                if !bound.is_empty() {
                    dispatch.policy(policy, &bound).await?;
                }
            }
            dispatch.finish()
        }
        .boxed()
    }
}

/// The evaluation of all policies for one write.
struct Dispatch<'a> {
    context: &'a PolicyContext,
    attributes: &'a Attributes<'a>,
    prepared: Prepared<'a>,
    decisions: Arc<Decisions>,
    /// The first rejection.
    denied: Option<ApiError>,
    audited: Vec<AuditedFailure>,
}

/// A failure in the audit annotation.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditedFailure {
    message: String,
    policy: String,
    binding: String,
    expression_index: usize,
    validation_actions: Vec<String>,
}

type Policy = Item<Definition<ValidatingPrograms>>;

impl Dispatch<'_> {
    async fn policy(&mut self, policy: &Arc<Policy>, bindings: &[&Binding]) -> Result<(), ApiError> {
        let definition = &policy.compiled;
        let endpoint = match definition.matcher.find(self.attributes).await {
            Ok(Some(endpoint)) => endpoint,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.misconfigured(definition, None, &error.to_string());
                return Ok(());
            }
        };
        // An unknown kind is a fault of the policy, also for writes that no binding selects.
        let param_kind = match self.context.params.resolve(definition.param_kind.as_ref()).await {
            Ok(kind) => kind,
            Err(error) => {
                self.misconfigured(definition, None, &error);
                return Ok(());
            }
        };
        let mut annotations = BTreeMap::<String, Vec<String>>::new();
        for binding in bindings.iter().copied() {
            match binding.matcher.find(self.attributes).await {
                Ok(Some(_)) => {}
                Ok(None) => continue,
                Err(error) => {
                    self.misconfigured(definition, Some(binding), &error.to_string());
                    continue;
                }
            }
            let namespace = self.attributes.write().namespace;
            let (known, reference) = (&self.context.params, binding.param_ref.as_ref());
            let params = match known.of(param_kind.as_ref(), reference, namespace).await {
                Ok(params) => params,
                Err(error) => {
                    self.misconfigured(definition, Some(binding), &error);
                    continue;
                }
            };
            for params in params {
                let mut input = self.prepared.input(&endpoint, definition.sees_namespace).await?;
                input.set("params", params.as_deref().map_or(Cel::Null, Cel::from_json));
                let findings = self.evaluate(policy, input).await?;
                self.take(definition, binding, findings, &mut annotations);
            }
        }
        for (key, values) in annotations {
            let key = format!("{}/{key}", definition.name());
            self.attributes.audit().annotate(key, values.join(", "));
        }
        Ok(())
    }

    async fn evaluate(&mut self, policy: &Arc<Policy>, input: Input) -> Result<Findings, ApiError> {
        let own = Arc::clone(policy);
        let without_namespace = {
            let mut input = input.clone();
            input.set("namespaceObject", Cel::Null);
            input
        };
        let work =
            move |decisions: &Decisions| evaluate(&own.compiled, &input, &without_namespace, decisions);
        let user = self.attributes.write().caller.user;
        let outcome = evaluation::run(self.context, user, &mut self.decisions, work).await?;
        Ok(match outcome {
            Ok(findings) => findings,
            Err(error) => {
                self.context.report(policy.compiled.identity(), &error);
                Findings {
                    validations: vec![Finding::Failed(error)],
                    annotations: Vec::new(),
                }
            }
        })
    }

    /// Does what the actions of a binding say.
    fn take(
        &mut self,
        policy: &Definition<ValidatingPrograms>,
        binding: &Binding,
        findings: Findings,
        annotations: &mut BTreeMap<String, Vec<String>>,
    ) {
        let (name, bound) = (policy.name(), binding.name.as_str());
        for (index, finding) in findings.validations.into_iter().enumerate() {
            let (message, reason, failed) = match finding {
                Finding::Passed => {
                    self.context.metrics.validated(name, bound, Action::Allow, false);
                    continue;
                }
                Finding::Failed(_) if policy.ignores_failures => {
                    self.context.metrics.validated(name, bound, Action::Allow, true);
                    continue;
                }
                Finding::Failed(message) => (message, None, true),
                Finding::Denied(message, reason) => (message, reason, false),
            };
            for action in &binding.actions {
                let action = match action.as_str() {
                    "Deny" => {
                        self.deny(policy, Some(binding), &message, reason.as_deref());
                        Action::Deny
                    }
                    "Warn" => {
                        self.attributes.warn(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{name}' with binding '{bound}': {message}"
                        ));
                        Action::Warn
                    }
                    "Audit" => {
                        self.audited.push(AuditedFailure {
                            message: message.clone(),
                            policy: name.to_owned(),
                            binding: bound.to_owned(),
                            expression_index: index,
                            validation_actions: binding.actions.clone(),
                        });
                        Action::Audit
                    }
                    _ => continue,
                };
                self.context.metrics.validated(name, bound, action, failed);
            }
        }
        for (key, value) in findings.annotations {
            match value {
                Ok(mut value) => {
                    let end = value.floor_char_boundary(MAX_ANNOTATION_BYTES.min(value.len()));
                    value.truncate(end);
                    let values = annotations.entry(key).or_default();
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                Err(_) if policy.ignores_failures => {}
                Err(error) => self.deny(policy, Some(binding), &error, None),
            }
        }
    }

    fn misconfigured(
        &mut self,
        policy: &Definition<ValidatingPrograms>,
        binding: Option<&Binding>,
        error: &str,
    ) {
        if policy.ignores_failures {
            return;
        }
        let what = if binding.is_some() { "binding" } else { "policy" };
        self.deny(
            policy,
            binding,
            &format!("failed to configure {what}: {error}"),
            None,
        );
    }

    /// Rejects the write, unless it is rejected already: the client gets the first rejection.
    fn deny(
        &mut self,
        policy: &Definition<ValidatingPrograms>,
        binding: Option<&Binding>,
        message: &str,
        reason: Option<&str>,
    ) {
        if self.denied.is_some() {
            return;
        }
        let name = policy.name();
        let message = match binding {
            Some(binding) => format!(
                "ValidatingAdmissionPolicy '{name}' with binding '{}' denied request: {message}",
                binding.name
            ),
            None => format!("ValidatingAdmissionPolicy '{name}' denied request: {message}"),
        };
        let reason = PolicyReason::of(reason);
        self.denied = Some(
            self.attributes
                .forbidden(&message)
                .denied_by_policy(reason, message),
        );
    }

    fn finish(mut self) -> Result<(), ApiError> {
        if !self.audited.is_empty() {
            self.audited.truncate(MAX_AUDITED);
            let text = serde_json::to_string(&self.audited).map_err(ApiError::internal)?;
            let key = "validation.policy.admission.k8s.io/validation_failure";
            self.attributes.audit().annotate(key, text);
        }
        self.denied.map_or(Ok(()), Err)
    }
}

/// Evaluates a policy. The middle error is why it cannot be compiled.
fn evaluate(
    definition: &Definition<ValidatingPrograms>,
    input: &Input,
    without_namespace: &Input,
    decisions: &Decisions,
) -> Result<Result<Findings, String>, Box<AccessCheck>> {
    let programs = match definition.programs() {
        Ok(programs) => programs,
        Err(error) => return Ok(Err(error)),
    };
    let conditions = evaluation::conditions(
        &programs.conditions,
        &programs.composed,
        without_namespace,
        decisions,
    )?;
    Ok(Ok(match conditions {
        Conditions::Met => evaluation::validate(&programs, input, decisions)?,
        Conditions::NotMet => Findings::default(),
        Conditions::Failed(_) if definition.ignores_failures => Findings::default(),
        Conditions::Failed(error) => Findings {
            validations: vec![Finding::Failed(error)],
            annotations: Vec::new(),
        },
    }))
}
