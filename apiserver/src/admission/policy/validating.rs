//! `ValidatingAdmissionPolicy`.

use std::collections::BTreeMap;
use std::sync::Arc;

use drydock_machinery::policy_expression::{AccessCheck, Decisions, Input, Value as Cel};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::bound::{self, AND, BoundPolicies, FailedOpen, Fault, Invocation};
use super::definition::{self, Binding, Definition, ValidatingPrograms};
use super::evaluation::{self, Conditions, Finding, Findings};
use super::metrics::Action;
use super::prepared::Prepared;
use super::{PolicyContext, Problem};
use crate::admission::PluginName;
use crate::admission::attributes::Attributes;
use crate::admission::plugin::{Plugin, ValidatingPlugin};
use crate::error::{ApiError, PolicyReason};
use crate::host::FollowedKind;

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

/// The policies of the host.
pub struct ValidatingPolicies(BoundPolicies<ValidatingPrograms>);

impl ValidatingPolicies {
    /// Follows the policies of the host; `None` for a host without policies.
    #[must_use]
    pub fn new(context: &Arc<PolicyContext>) -> Option<Self> {
        let (policies, bindings) = (
            (POLICIES, definition::validating as fn(&_) -> _),
            (BINDINGS, definition::validating_binding as fn(&_) -> _),
        );
        BoundPolicies::new(context, PluginName::ValidatingAdmissionPolicy, policies, bindings).map(Self)
    }
}

impl ValidatingPlugin for ValidatingPolicies {
    fn plugin(&self) -> &dyn Plugin {
        &self.0
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let context = &*self.0.context;
            let mut dispatch = Dispatch {
                context,
                attributes,
                prepared: Prepared::new(context, attributes),
                decisions: Arc::default(),
                denied: None,
                annotations: BTreeMap::new(),
                audited: Vec::new(),
                failed_open: FailedOpen::of_validations(),
            };
            for found in self.0.of_write(attributes).await {
                match found {
                    Ok(invocation) => dispatch.invoke(&invocation).await?,
                    Err(fault) => dispatch.misconfigured(&fault),
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
    /// The values of audit annotations, by key.
    annotations: BTreeMap<String, Vec<String>>,
    audited: Vec<AuditedFailure>,
    failed_open: FailedOpen,
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

type Policy = bound::Policy<ValidatingPrograms>;

impl Dispatch<'_> {
    async fn invoke(&mut self, invocation: &Invocation<ValidatingPrograms>) -> Result<(), ApiError> {
        let policy = &invocation.policy;
        let sees_namespace = policy.compiled.sees_namespace;
        let mut input = self.prepared.input(&invocation.endpoint, sees_namespace).await?;
        let params = invocation.params.as_deref();
        input.set("params", params.map_or(Cel::Null, Cel::from_json));
        let findings = self.evaluate(policy, input).await?;
        self.take(&policy.compiled, invocation.binding(), findings);
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
        let lane = &policy.compiled.lane;
        let outcome = evaluation::run(self.context, lane, user, &mut self.decisions, work).await?;
        Ok(match outcome {
            Ok(findings) => findings,
            Err(error) => {
                let identity = policy.compiled.identity();
                self.context.report(identity, Problem::NotCompiled, &error);
                Findings {
                    validations: vec![Finding::Failed(error)],
                    annotations: Vec::new(),
                }
            }
        })
    }

    /// Does what the actions of a binding say.
    fn take(&mut self, policy: &Definition<ValidatingPrograms>, binding: &Binding, findings: Findings) {
        let (name, bound) = (policy.name(), binding.name());
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
                        self.deny(policy, Some(bound), &message, reason.as_deref());
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
                    bound::cut(&mut value);
                    let values = self.annotations.entry(format!("{name}/{key}")).or_default();
                    if !values.contains(&value) {
                        values.push(value);
                    }
                }
                Err(_) if policy.ignores_failures => {}
                Err(error) => self.deny(policy, Some(bound), &error, None),
            }
        }
    }

    fn misconfigured(&mut self, fault: &Fault<ValidatingPrograms>) {
        let policy = &fault.policy.compiled;
        let binding = fault.binding();
        let action = policy.action_of_failure();
        let metrics = &self.context.metrics;
        metrics.validated(policy.name(), binding.unwrap_or_default(), action, true);
        match action {
            Action::Deny => self.deny(policy, binding, &fault.text(), None),
            _ => self.failed_open.add(fault),
        }
    }

    /// Rejects the write, unless it is rejected already: the client gets the first rejection.
    fn deny(
        &mut self,
        policy: &Definition<ValidatingPrograms>,
        binding: Option<&str>,
        message: &str,
        reason: Option<&str>,
    ) {
        if self.denied.is_some() {
            return;
        }
        let name = policy.name();
        let message = match binding {
            Some(binding) => {
                format!(
                    "ValidatingAdmissionPolicy '{name}' with binding '{binding}' denied request: {message}"
                )
            }
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
        for (key, values) in self.annotations {
            self.attributes.audit().annotate(key, values.join(AND));
        }
        self.failed_open.annotate(self.attributes);
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
