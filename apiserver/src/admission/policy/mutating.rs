//! `MutatingAdmissionPolicy`.

use std::sync::Arc;

use drydock_machinery::apply::configuration::merge_configuration;
use drydock_machinery::patch::{OperationError, PatchError, json as json_patch};
use drydock_machinery::policy_expression::{
    AccessCheck, Decisions, Input, POLICY_BUDGET, Scope, Stop, Value as Cel,
};
use drydock_machinery::schema::Structural;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::bound::{self, BoundPolicies, FailedOpen, Fault};
use super::definition::{self, Definition, MutatingPrograms};
use super::evaluation::{self, Conditions};
use super::metrics::Action;
use super::{PolicyContext, Problem, input, prepared};
use crate::admission::PluginName;
use crate::admission::plugin::{MutatingPlugin, Mutation, Plugin};
use crate::error::{ApiError, PolicyReason};
use crate::host::FollowedKind;

/// The versions in the order of preference; hosts before 1.36 have only the older ones.
const VERSIONS: &[&str] = &["v1", "v1beta1", "v1alpha1"];
const POLICIES: FollowedKind =
    FollowedKind::of_admission("mutatingadmissionpolicies", "MutatingAdmissionPolicy", VERSIONS);
const BINDINGS: FollowedKind = FollowedKind::of_admission(
    "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding",
    VERSIONS,
);

/// The policies of the host.
pub struct MutatingPolicies(BoundPolicies<MutatingPrograms>);

impl MutatingPolicies {
    /// Follows the policies of the host; `None` for a host without policies.
    #[must_use]
    pub fn new(context: &Arc<PolicyContext>) -> Option<Self> {
        let (policies, bindings) = (
            (POLICIES, definition::mutating as fn(&_) -> _),
            (BINDINGS, definition::mutating_binding as fn(&_) -> _),
        );
        BoundPolicies::new(context, PluginName::MutatingAdmissionPolicy, policies, bindings).map(Self)
    }
}

type Policy = bound::Policy<MutatingPrograms>;
type Invocation = bound::Invocation<MutatingPrograms>;

/// The errors of policies that the failure policy lets reject the write.
#[derive(Default)]
struct Errors {
    messages: Vec<(String, Option<PolicyReason>)>,
}

impl Errors {
    fn add(
        &mut self,
        policy: &Definition<MutatingPrograms>,
        binding: Option<&str>,
        error: &str,
        reason: Option<PolicyReason>,
    ) {
        if policy.ignores_failures {
            return;
        }
        let name = policy.name();
        let message = match binding {
            Some(binding) => format!("policy '{name}' with binding '{binding}' denied request: {error}"),
            None => format!("policy \"{name}\" denied request: {error}"),
        };
        self.messages.push((message, reason));
    }
}

impl MutatingPlugin for MutatingPolicies {
    fn plugin(&self) -> &dyn Plugin {
        &self.0
    }

    fn admit<'a>(&'a self, mutation: &'a mut Mutation<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let mut errors = Errors::default();
            let mut invocations = Vec::new();
            let mut failed_open = FailedOpen::of_mutations();
            for found in self.0.of_write(&mutation.attributes).await {
                match found {
                    Ok(invocation) => invocations.push(invocation),
                    Err(fault) => self.misconfigured(&fault, &mut failed_open, &mut errors),
                }
            }
            failed_open.annotate(&mutation.attributes);
            if !invocations.is_empty() {
                let sees = |invocation: &Invocation| invocation.policy.compiled.sees_namespace;
                let namespace = if invocations.iter().any(sees) {
                    prepared::namespace(&self.0.context, &mutation.attributes).await?
                } else {
                    Cel::Null
                };
                let mut decisions = Arc::default();
                for invocation in &invocations {
                    self.invoke(invocation, mutation, &namespace, &mut decisions, &mut errors)
                        .await?;
                }
            }
            match errors.messages.first() {
                None => Ok(()),
                Some((_, reason)) => {
                    let messages: Vec<String> = errors
                        .messages
                        .iter()
                        .map(|(message, _)| message.clone())
                        .collect();
                    let denied = mutation
                        .attributes
                        .forbidden("admission request denied by policy");
                    Err(denied.failed_by_policies(*reason, messages))
                }
            }
        }
        .boxed()
    }
}

impl MutatingPolicies {
    fn misconfigured(
        &self,
        fault: &Fault<MutatingPrograms>,
        failed_open: &mut FailedOpen,
        errors: &mut Errors,
    ) {
        let policy = &fault.policy.compiled;
        let binding = fault.binding();
        let action = policy.action_of_failure();
        let metrics = &self.0.context.metrics;
        metrics.mutated(policy.name(), binding.unwrap_or_default(), action, true);
        match action {
            Action::Deny => errors.add(policy, binding, &fault.text(), None),
            _ => failed_open.add(fault),
        }
    }

    async fn invoke(
        &self,
        invocation: &Invocation,
        mutation: &mut Mutation<'_>,
        namespace: &Cel,
        decisions: &mut Arc<Decisions>,
        errors: &mut Errors,
    ) -> Result<(), ApiError> {
        let definition = &invocation.policy.compiled;
        let endpoint = &invocation.endpoint;
        let id = invocation.id();
        // Without an object there is nothing to change.
        let Some(object) = mutation.attributes.object(endpoint)?.cloned() else {
            return Ok(());
        };
        let mut input = input::of(&mutation.attributes, endpoint)?;
        input.set(
            "params",
            invocation.params.as_deref().map_or(Cel::Null, Cel::from_json),
        );
        let job = Job {
            policy: Arc::clone(&invocation.policy),
            input: with(&input, "namespaceObject", namespace.clone()),
            without_namespace: input,
            object,
            schema: Arc::clone(&endpoint.face().schema),
            runs: mutation.runs(&id, definition.reinvocation),
        };
        let user = Arc::clone(mutation.attributes.write().caller.user);
        let context = &self.0.context;
        let work = move |decisions: &Decisions| job.run(decisions);
        let outcome = evaluation::run(context, &definition.lane, &user, decisions, work).await?;
        let (name, binding) = (definition.name(), invocation.binding().name());
        let mutated = |failed: bool| {
            let action = if failed {
                definition.action_of_failure()
            } else {
                Action::Allow
            };
            context.metrics.mutated(name, binding, action, failed);
        };
        let outcome = match outcome {
            Outcome::Skipped => return Ok(()),
            Outcome::NotCompiled(error) => {
                context.report(definition.identity(), Problem::NotCompiled, &error);
                mutated(true);
                errors.add(definition, Some(binding), &error, Some(PolicyReason::Invalid));
                return Ok(());
            }
            Outcome::ConditionsFailed(error) => {
                mutated(true);
                errors.add(definition, Some(binding), &error, Some(PolicyReason::Invalid));
                return Ok(());
            }
            Outcome::Ran(outcome) => outcome,
        };
        for error in &outcome.errors {
            errors.add(definition, Some(binding), error, Some(PolicyReason::Invalid));
        }
        mutated(!outcome.errors.is_empty());
        let changed = match outcome.object {
            Some(object) => mutation.attributes.change(endpoint, object)?,
            None => false,
        };
        mutation.ran(&id, changed);
        Ok(())
    }
}

fn with(input: &Input, name: &str, value: Cel) -> Input {
    let mut input = input.clone();
    input.set(name, value);
    input
}

/// The evaluation of a policy, apart from the authorization checks.
struct Job {
    policy: Arc<Policy>,
    input: Input,
    without_namespace: Input,
    object: Value,
    schema: Arc<Structural>,
    /// Whether the policy runs in this round if its conditions are met.
    runs: bool,
}

enum Outcome {
    Skipped,
    NotCompiled(String),
    ConditionsFailed(String),
    Ran(Ran),
}

/// What the mutations of a policy did.
struct Ran {
    /// The changed object, if it was changed.
    object: Option<Value>,
    errors: Vec<String>,
}

impl Job {
    fn run(&self, decisions: &Decisions) -> Result<Outcome, Box<AccessCheck>> {
        let definition = &self.policy.compiled;
        let programs = match definition.programs() {
            Ok(programs) => programs,
            Err(error) => return Ok(Outcome::NotCompiled(error)),
        };
        let without = &self.without_namespace;
        match evaluation::conditions(&programs.conditions, &programs.composed, without, decisions)? {
            Conditions::Met => {}
            Conditions::NotMet => return Ok(Outcome::Skipped),
            Conditions::Failed(_) if definition.ignores_failures => return Ok(Outcome::Skipped),
            Conditions::Failed(error) => return Ok(Outcome::ConditionsFailed(error)),
        }
        if !self.runs {
            return Ok(Outcome::Skipped);
        }
        let mut object = self.object.clone();
        let mut input = self.input.clone();
        let mut errors = Vec::new();
        for mutation in &programs.mutations {
            let mut budget = POLICY_BUDGET;
            let mut scope = Scope::new(&input, &programs.composed, decisions);
            let value = match scope.evaluate(&mutation.program, &mut budget) {
                Ok(value) => value,
                Err(Stop::Undecided(check)) => return Err(check),
                Err(stop) => Err(stop.to_string()),
            };
            let changed = value.and_then(|value| {
                if mutation.is_patch {
                    patched(&object, &value)
                } else {
                    configured(&self.schema, &object, &value)
                }
            });
            match changed {
                Err(error) => errors.push(error),
                Ok(changed) => {
                    object = changed;
                    // The next mutation sees what this one made.
                    self.schema.default(&mut object);
                    input.set("object", Cel::from_json(&object));
                }
            }
        }
        Ok(Outcome::Ran(Ran {
            object: (object != self.object).then_some(object),
            errors,
        }))
    }
}

/// The object with the configuration that a value is.
fn configured(schema: &Structural, object: &Value, value: &Cel) -> Result<Value, String> {
    match value {
        Cel::Struct(message) if message.type_name == "Object" => {}
        other => {
            return Err(format!(
                "unsupported return type from ApplyConfiguration expression: {}",
                other.type_name()
            ));
        }
    }
    check_types(value, "Object").map_err(|error| format!("type mismatch: {error}"))?;
    let mut config = value
        .to_json()
        .map_err(|error| format!("invalid return type: {error}"))?;
    for member in ["apiVersion", "kind"] {
        if let (Some(own), Some(members)) = (object.get(member), config.as_object_mut()) {
            members.insert(member.to_owned(), own.clone());
        }
    }
    let mut merged = object.clone();
    merge_configuration(schema, &mut merged, &config)
        .map_err(|error| format!("error applying patch: {error}"))?;
    Ok(merged)
}

/// Checks that the names of constructed types are the paths of their fields: `Object.spec{}` in the field `spec`.
fn check_types(value: &Cel, path: &str) -> Result<(), String> {
    match value {
        Cel::Struct(message) => {
            if message.type_name != path {
                return Err(format!(
                    "unexpected type name \"{}\", expected \"{path}\", which matches field name path from root Object type",
                    message.type_name
                ));
            }
            message
                .fields
                .iter()
                .try_for_each(|(name, field)| check_types(field, &format!("{path}.{name}")))
        }
        Cel::List(items) => items.iter().try_for_each(|item| check_types(item, path)),
        Cel::Map(map) => map.values().try_for_each(|value| check_types(value, path)),
        _ => Ok(()),
    }
}

/// The object after the JSON patch that a value is.
fn patched(object: &Value, value: &Cel) -> Result<Value, String> {
    let Cel::List(operations) = value else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let mut patch = Vec::new();
    for operation in operations.iter() {
        let Cel::Struct(message) = operation else {
            return Err(format!(
                "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of {}",
                operation.type_name()
            ));
        };
        let mut members = Map::new();
        for (name, field) in &message.fields {
            let json = match (name.as_str(), field) {
                ("value", field) => {
                    if let Cel::Struct(message) = field {
                        check_types(field, &message.type_name)
                            .map_err(|error| format!("type mismatch: {error}"))?;
                    }
                    field.to_json().map_err(|error| {
                        format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {error}")
                    })?
                }
                ("from", Cel::String(text)) if text.is_empty() => continue,
                (_, Cel::String(text)) => json!(text.as_ref()),
                (name, other) => {
                    return Err(format!(
                        "unexpected type {} for JSONPatchType '{name}' field",
                        other.type_name()
                    ));
                }
            };
            members.insert(name.clone(), json);
        }
        patch.push(Value::Object(members));
    }
    let bytes = serde_json::to_vec(&patch).map_err(|error| error.to_string())?;
    match json_patch::apply(object, &bytes) {
        Ok(patched) => Ok(patched.value),
        // A patch whose test fails is not applied.
        Err(PatchError::Operation {
            source: OperationError::Test(_),
            ..
        }) => Ok(object.clone()),
        Err(PatchError::Operation { source, .. }) => Err(format!("JSON Patch: {source}")),
        Err(error) => Err(format!("JSON Patch: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::compiled::Item;

    /// Runs mutations over an object with a list of numbers and a map of labels.
    fn run(mutations: &Value) -> Ran {
        let spec = json!({"type": "object", "properties": {
            "size": {"type": "integer"}, "list": {"type": "array", "items": {"type": "integer"}},
        }});
        let schema = Structural::for_kind("Thing", "v1", "", &[("spec", &spec)]).unwrap();
        let object = json!({"apiVersion": "g/v1", "kind": "Thing", "metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {"size": 1}});
        let source = Arc::new(json!({"metadata": {"name": "p"}, "spec": {"mutations": mutations}}));
        let policy = Arc::new(Item {
            compiled: definition::mutating(&source),
            source,
        });
        let mut input = Input::default();
        input.set("object", Cel::from_json(&object));
        let job = Job {
            policy,
            without_namespace: input.clone(),
            input,
            object,
            schema: Arc::new(schema),
            runs: true,
        };
        match job.run(&Decisions::new()).unwrap() {
            Outcome::Ran(ran) => ran,
            Outcome::NotCompiled(error) | Outcome::ConditionsFailed(error) => panic!("{error}"),
            Outcome::Skipped => panic!("skipped"),
        }
    }

    fn apply(expression: &str) -> Value {
        json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
    }

    fn patch(expression: &str) -> Value {
        json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
    }

    #[test]
    fn each_mutation_sees_what_the_one_before_made() {
        let ran = run(&json!([
            apply(
                "Object{metadata: Object.metadata{labels: {'c': object.metadata.labels['a']}}, spec: Object.spec{size: 2}}"
            ),
            patch(
                "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('x/y'), value: string(object.spec.size)}]"
            ),
            patch(
                "[JSONPatch{op: 'test', path: '/spec/size', value: 7}, JSONPatch{op: 'remove', path: '/spec/size'}]"
            ),
        ]));
        assert!(ran.errors.is_empty(), "{:?}", ran.errors);
        assert_eq!(
            ran.object.unwrap(),
            json!({"apiVersion": "g/v1", "kind": "Thing", "metadata": {"name": "n", "labels": {"a": "b", "c": "b", "x/y": "2"}}, "spec": {"size": 2}})
        );
        assert_eq!(run(&json!([patch("[]")])).object, None);
    }

    #[test]
    fn mutations_that_fail_change_nothing_and_say_why() {
        let ran = run(&json!([
            apply("Object{spec: Object.other{}}"),
            apply("Object{spec: Object.spec{list: [1]}}"),
            apply("object.spec.absent"),
            patch("[JSONPatch{op: 'remove', path: '/spec/absent'}]"),
            patch("object.spec.size"),
        ]));
        assert_eq!(ran.object, None);
        assert_eq!(
            ran.errors,
            [
                "type mismatch: unexpected type name \"Object.other\", expected \"Object.spec\", which matches field name path \
                 from root Object type",
                "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.list",
                "expression 'object.spec.absent' resulted in error: no such key: absent",
                "JSON Patch: doc is missing path: \"/spec/absent\"",
                "type mismatch: JSONPatchType.expression should evaluate to array",
            ]
        );
    }
}
