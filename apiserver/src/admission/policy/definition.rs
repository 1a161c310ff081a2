//! Policies and bindings in the form in which they are used.

use std::sync::{Arc, OnceLock};

use drydock_machinery::policy_expression::{Composed, Declarations, Program};
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, MutatingAdmissionPolicyBindingSpec, MutatingAdmissionPolicySpec,
    ParamKind, ParamRef, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Variable,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Identity;
use super::lane::Lane;
use super::metrics::Action;
use crate::admission::matching::Matcher;
use crate::admission::plugin::Reinvocation;
use crate::registry::resource::metadata_text;

/// The variables of all expressions.
const VARIABLES: [&str; 5] = ["object", "oldObject", "request", "namespaceObject", "variables"];

/// A policy.
pub(super) struct Definition<P> {
    kind: &'static str,
    object: Arc<Value>,
    pub(super) matcher: Matcher,
    pub(super) param_kind: Option<ParamKind>,
    pub(super) ignores_failures: bool,
    pub(super) reinvocation: Reinvocation,
    /// Whether an expression may use `namespaceObject`, which has to be looked up.
    pub(super) sees_namespace: bool,
    spec: Result<Arc<dyn Fn() -> Result<P, String> + Send + Sync>, String>,
    /// Where its expressions are compiled and evaluated.
    pub(super) lane: Lane,
    /// Compiled when the policy first matches, since compiling takes milliseconds.
    programs: OnceLock<Result<Arc<P>, String>>,
}

impl<P> Definition<P> {
    /// The name of the policy.
    pub(super) fn name(&self) -> &str {
        metadata_text(&self.object, "name")
    }

    pub(super) fn identity(&self) -> Identity<'_> {
        Identity::of(self.kind, &self.object)
    }

    /// What happens to a write that the policy cannot be applied to.
    pub(super) const fn action_of_failure(&self) -> Action {
        if self.ignores_failures {
            Action::Allow
        } else {
            Action::Deny
        }
    }

    /// The compiled expressions, or why one of them cannot be compiled. Blocks.
    pub(super) fn programs(&self) -> Result<Arc<P>, String> {
        let compile = || match &self.spec {
            Ok(compile) => compile().map(Arc::new),
            Err(error) => Err(error.clone()),
        };
        self.programs.get_or_init(compile).clone()
    }
}

/// The expressions of a `ValidatingAdmissionPolicy`.
pub(super) struct ValidatingPrograms {
    pub(super) composed: Vec<Composed>,
    pub(super) conditions: Vec<Program>,
    pub(super) validations: Vec<Validation>,
    pub(super) annotations: Vec<Annotation>,
}

/// One validation.
pub(super) struct Validation {
    pub(super) program: Program,
    pub(super) message: String,
    pub(super) message_program: Option<Program>,
    pub(super) reason: Option<String>,
}

/// One audit annotation.
pub(super) struct Annotation {
    pub(super) key: String,
    pub(super) program: Program,
}

/// The expressions of a `MutatingAdmissionPolicy`.
pub(super) struct MutatingPrograms {
    pub(super) composed: Vec<Composed>,
    pub(super) conditions: Vec<Program>,
    pub(super) mutations: Vec<MutationProgram>,
}

/// One mutation.
pub(super) struct MutationProgram {
    pub(super) program: Program,
    /// Whether its value is a JSON patch; otherwise it is a configuration.
    pub(super) is_patch: bool,
}

/// Compiles the expressions of one policy.
struct Compiler<'a> {
    composed: Vec<&'a str>,
    has_params: bool,
}

impl Compiler<'_> {
    fn compile(&self, source: &str, with_authorizer: bool, patch_types: bool) -> Result<Program, String> {
        let mut variables = VARIABLES.to_vec();
        if self.has_params {
            variables.push("params");
        }
        if with_authorizer {
            variables.push("authorizer");
        }
        let declarations = Declarations {
            variables: &variables,
            composed: &self.composed,
            patch_types,
        };
        Program::compile(source, &declarations)
            .map_err(|error| format!("compilation error: compilation failed: expression '{source}': {error}"))
    }

    fn conditions(&self, conditions: Option<&Vec<MatchCondition>>) -> Result<Vec<Program>, String> {
        let conditions = conditions.into_iter().flatten();
        conditions
            .map(|condition| self.compile(&condition.expression, true, false))
            .collect()
    }
}

/// The compiler of a policy's expressions, and its compiled variables. Each variable may use those before it.
fn with_variables(variables: &[Variable], has_params: bool) -> Result<(Compiler<'_>, Vec<Composed>), String> {
    let mut compiler = Compiler {
        composed: Vec::new(),
        has_params,
    };
    let mut composed = Vec::new();
    for variable in variables {
        composed.push(Composed {
            name: variable.name.clone(),
            program: Ok(compiler.compile(&variable.expression, true, false)?),
        });
        compiler.composed.push(&variable.name);
    }
    Ok((compiler, composed))
}

fn spec<S: DeserializeOwned>(object: &Value) -> Result<S, String> {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    S::deserialize(spec).map_err(|error| format!("the policy cannot be read: {error}"))
}

/// Whether the name of the variable occurs in a text of the policy.
fn sees_namespace(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("namespaceObject"),
        Value::Array(items) => items.iter().any(sees_namespace),
        Value::Object(members) => members.values().any(sees_namespace),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Reads a `ValidatingAdmissionPolicy`.
pub(super) fn validating(object: &Arc<Value>) -> Definition<ValidatingPrograms> {
    let spec: Result<ValidatingAdmissionPolicySpec, String> = spec(object);
    let of_spec = spec.as_ref().ok();
    Definition {
        kind: "ValidatingAdmissionPolicy",
        object: Arc::clone(object),
        matcher: Matcher::of_policy(of_spec.and_then(|spec| spec.match_constraints.as_ref())),
        param_kind: of_spec.and_then(|spec| spec.param_kind.clone()),
        ignores_failures: of_spec.is_some_and(|spec| spec.failure_policy.as_deref() == Some("Ignore")),
        reinvocation: Reinvocation::Never,
        sees_namespace: sees_namespace(object),
        spec: spec
            .map(|spec| -> Arc<dyn Fn() -> _ + Send + Sync> { Arc::new(move || validating_programs(&spec)) }),
        lane: Lane::of_one(),
        programs: OnceLock::new(),
    }
}

fn validating_programs(spec: &ValidatingAdmissionPolicySpec) -> Result<ValidatingPrograms, String> {
    let variables = spec.variables.as_deref().unwrap_or_default();
    let (compiler, composed) = with_variables(variables, spec.param_kind.is_some())?;
    let validations = spec.validations.iter().flatten();
    let annotations = spec.audit_annotations.iter().flatten();
    Ok(ValidatingPrograms {
        composed,
        conditions: compiler.conditions(spec.match_conditions.as_ref())?,
        validations: validations
            .map(|validation| {
                let message = validation.message_expression.as_deref().unwrap_or_default();
                Ok(Validation {
                    program: compiler.compile(&validation.expression, true, false)?,
                    message: validation.message.clone().unwrap_or_default(),
                    message_program: (!message.is_empty())
                        .then(|| compiler.compile(message, false, false))
                        .transpose()?,
                    reason: validation.reason.clone(),
                })
            })
            .collect::<Result<_, String>>()?,
        annotations: annotations
            .map(|annotation| {
                Ok(Annotation {
                    key: annotation.key.clone(),
                    program: compiler.compile(&annotation.value_expression, false, false)?,
                })
            })
            .collect::<Result<_, String>>()?,
    })
}

/// Reads a `MutatingAdmissionPolicy`.
pub(super) fn mutating(object: &Arc<Value>) -> Definition<MutatingPrograms> {
    let spec: Result<MutatingAdmissionPolicySpec, String> = spec(object);
    let of_spec = spec.as_ref().ok();
    let again = of_spec.and_then(|spec| spec.reinvocation_policy.as_deref());
    Definition {
        kind: "MutatingAdmissionPolicy",
        object: Arc::clone(object),
        matcher: Matcher::of_policy(of_spec.and_then(|spec| spec.match_constraints.as_ref())),
        param_kind: of_spec.and_then(|spec| spec.param_kind.clone()),
        ignores_failures: of_spec.is_some_and(|spec| spec.failure_policy.as_deref() == Some("Ignore")),
        reinvocation: if again == Some("IfNeeded") {
            Reinvocation::IfNeeded
        } else {
            Reinvocation::Never
        },
        sees_namespace: sees_namespace(object),
        spec: spec
            .map(|spec| -> Arc<dyn Fn() -> _ + Send + Sync> { Arc::new(move || mutating_programs(&spec)) }),
        lane: Lane::of_one(),
        programs: OnceLock::new(),
    }
}

fn mutating_programs(spec: &MutatingAdmissionPolicySpec) -> Result<MutatingPrograms, String> {
    let variables = spec.variables.as_deref().unwrap_or_default();
    let (compiler, composed) = with_variables(variables, spec.param_kind.is_some())?;
    let mutations = spec.mutations.iter().flatten();
    Ok(MutatingPrograms {
        composed,
        conditions: compiler.conditions(spec.match_conditions.as_ref())?,
        mutations: mutations
            .map(|mutation| {
                let is_patch = mutation.patch_type == "JSONPatch";
                let source = if is_patch {
                    mutation
                        .json_patch
                        .as_ref()
                        .and_then(|patch| patch.expression.as_deref())
                } else {
                    let configuration = mutation.apply_configuration.as_ref();
                    configuration.and_then(|configuration| configuration.expression.as_deref())
                };
                Ok(MutationProgram {
                    program: compiler.compile(source.unwrap_or_default(), true, true)?,
                    is_patch,
                })
            })
            .collect::<Result<_, String>>()?,
    })
}

/// Compiles the match conditions of a webhook.
pub(super) fn webhook_conditions(conditions: &[MatchCondition]) -> Result<Vec<Program>, String> {
    let compiler = Compiler {
        composed: Vec::new(),
        has_params: false,
    };
    conditions
        .iter()
        .map(|condition| compiler.compile(&condition.expression, true, false))
        .collect()
}

/// A binding of a policy.
pub(super) struct Binding {
    kind: &'static str,
    object: Arc<Value>,
    /// The name of the policy. Read apart from the rest, so that a binding that cannot be read is known to be one of it.
    pub(super) policy: String,
    /// Why it cannot be read: the failure policy of its policy decides then.
    pub(super) unreadable: Option<String>,
    pub(super) matcher: Matcher,
    pub(super) param_ref: Option<ParamRef>,
    /// `Deny`, `Warn`, `Audit`; of validating policies.
    pub(super) actions: Vec<String>,
}

/// The parts of a binding's spec.
#[derive(Default)]
struct BindingParts {
    match_resources: Option<MatchResources>,
    param_ref: Option<ParamRef>,
    actions: Vec<String>,
}

impl Binding {
    fn new<S: DeserializeOwned>(
        kind: &'static str,
        object: &Arc<Value>,
        parts: impl FnOnce(S) -> BindingParts,
    ) -> Self {
        let policy = object.pointer("/spec/policyName").and_then(Value::as_str);
        let (parts, unreadable) = match spec(object) {
            Ok(spec) => (parts(spec), None),
            Err(error) => (BindingParts::default(), Some(error)),
        };
        Self {
            kind,
            object: Arc::clone(object),
            policy: policy.unwrap_or_default().to_owned(),
            unreadable,
            matcher: Matcher::of_policy(parts.match_resources.as_ref()),
            param_ref: parts.param_ref,
            actions: parts.actions,
        }
    }

    /// The name of the binding.
    pub(super) fn name(&self) -> &str {
        metadata_text(&self.object, "name")
    }

    pub(super) fn identity(&self) -> Identity<'_> {
        Identity::of(self.kind, &self.object)
    }
}

/// Reads a `ValidatingAdmissionPolicyBinding`.
pub(super) fn validating_binding(object: &Arc<Value>) -> Binding {
    let parts = |spec: ValidatingAdmissionPolicyBindingSpec| BindingParts {
        match_resources: spec.match_resources,
        param_ref: spec.param_ref,
        actions: spec.validation_actions,
    };
    Binding::new("ValidatingAdmissionPolicyBinding", object, parts)
}

/// Reads a `MutatingAdmissionPolicyBinding`.
pub(super) fn mutating_binding(object: &Arc<Value>) -> Binding {
    let parts = |spec: MutatingAdmissionPolicyBindingSpec| BindingParts {
        match_resources: spec.match_resources,
        param_ref: spec.param_ref,
        actions: Vec::new(),
    };
    Binding::new("MutatingAdmissionPolicyBinding", object, parts)
}
