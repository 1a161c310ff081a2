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

use super::PolicyContext;
use super::definition::{self, Binding, Definition, MutatingPrograms};
use super::evaluation::{self, Conditions};
use super::metrics::Action;
use super::params::Resolved;
use super::{input, prepared};
use crate::admission::PluginName;
use crate::admission::attributes::Attributes;
use crate::admission::compiled::{Compiled, Item};
use crate::admission::plugin::{MutatingPlugin, Mutation, Plugin};
use crate::error::{ApiError, PolicyReason};
use crate::host::{Followed, FollowedKind};
use crate::registry::admission::WriteAttributes;
use crate::registry::endpoint::Endpoint;
use crate::registry::resource::metadata_text;

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
pub struct MutatingPolicies {
    context: Arc<PolicyContext>,
    policies: Compiled<Definition<MutatingPrograms>>,
    bindings: Compiled<Option<Binding>>,
}

impl MutatingPolicies {
    /// Follows the policies of the host; `None` for a host without policies.
    #[must_use]
    pub fn new(context: &Arc<PolicyContext>) -> Option<Self> {
        let policies = context.host.follow(POLICIES)?;
        let bindings = context.host.follow(BINDINGS)?;
        Some(Self {
            context: Arc::clone(context),
            policies: Compiled::new(policies, definition::mutating),
            bindings: Compiled::new(bindings, definition::mutating_binding),
        })
    }
}

impl Plugin for MutatingPolicies {
    fn name(&self) -> &'static str {
        PluginName::MutatingAdmissionPolicy.as_str()
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

type Policy = Item<Definition<MutatingPrograms>>;

/// A policy with one binding and one parameter object.
struct Invocation {
    policy: Arc<Policy>,
    binding: Arc<Item<Option<Binding>>>,
    endpoint: Endpoint,
    params: Option<Arc<Value>>,
}

impl Invocation {
    fn binding(&self) -> &str {
        metadata_text(&self.binding.source, "name")
    }

    /// Tells the invocation from all others in a pass.
    fn id(&self) -> String {
        let params = self.params.as_deref();
        let params = params.map(|object| (metadata_text(object, "namespace"), metadata_text(object, "name")));
        let (namespace, name) = params.unwrap_or_default();
        format!(
            "policy/{}/{}/{namespace}/{name}",
            self.policy.compiled.name(),
            self.binding()
        )
    }
}

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
    fn admit<'a>(&'a self, mutation: &'a mut Mutation<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let mut errors = Errors::default();
            let invocations = self.invocations(&mutation.attributes, &mut errors).await;
            if !invocations.is_empty() {
                let sees = |invocation: &Invocation| invocation.policy.compiled.sees_namespace;
                let namespace = if invocations.iter().any(sees) {
                    prepared::namespace(&self.context, &mutation.attributes).await?
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
    /// The policies that match, with their bindings and parameter objects.
    async fn invocations(&self, attributes: &Attributes<'_>, errors: &mut Errors) -> Vec<Invocation> {
        let (policies, bindings) = (self.policies.items(), self.bindings.items());
        let mut invocations = Vec::new();
        for policy in &policies.items {
            let definition = &policy.compiled;
            let is_bound = |item: &&Arc<Item<Option<Binding>>>| {
                let binding = item.compiled.as_ref();
                binding.is_some_and(|binding| binding.policy == definition.name())
            };
            let bound: Vec<Arc<Item<Option<Binding>>>> =
                bindings.items.iter().filter(is_bound).map(Arc::clone).collect();
            if bound.is_empty() {
                continue;
            }
            let (endpoint, param_kind) = match self.applicable(definition, attributes).await {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    let error = format!("failed to configure policy: {error}");
                    errors.add(definition, None, &error, None);
                    continue;
                }
            };
            for item in bound {
                let Some(binding) = &item.compiled else { continue };
                match self.params(param_kind.as_ref(), binding, attributes).await {
                    Ok(params) => invocations.extend(params.into_iter().map(|params| Invocation {
                        policy: Arc::clone(policy),
                        binding: Arc::clone(&item),
                        endpoint: endpoint.clone(),
                        params,
                    })),
                    Err(error) => {
                        let error = format!("failed to configure binding: {error}");
                        errors.add(definition, Some(&binding.name), &error, None);
                    }
                }
            }
        }
        invocations
    }

    /// The version in which a policy matches, and the kind of its parameters; `None` if it does not match. An unknown kind is
    /// a fault of the policy, also for writes that no binding selects.
    async fn applicable<'a>(
        &self,
        definition: &'a Definition<MutatingPrograms>,
        attributes: &Attributes<'_>,
    ) -> Result<Option<(Endpoint, Option<Resolved<'a>>)>, String> {
        let found = definition.matcher.find(attributes).await;
        let Some(endpoint) = found.map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let param_kind = definition.param_kind.as_ref();
        Ok(Some((endpoint, self.context.params.resolve(param_kind).await?)))
    }

    /// The parameter objects of a binding that matches; none if it does not match.
    async fn params(
        &self,
        param_kind: Option<&Resolved<'_>>,
        binding: &Binding,
        attributes: &Attributes<'_>,
    ) -> Result<Vec<Option<Arc<Value>>>, String> {
        let found = binding.matcher.find(attributes).await;
        if found.map_err(|error| error.to_string())?.is_none() {
            return Ok(Vec::new());
        }
        let namespace = attributes.write().namespace;
        let params = &self.context.params;
        params.of(param_kind, binding.param_ref.as_ref(), namespace).await
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
        let outcome = evaluation::run(&self.context, &user, decisions, move |decisions| {
            job.run(decisions)
        })
        .await?;
        let (name, binding) = (definition.name(), invocation.binding());
        let mutated = |failed: bool| {
            let action = if failed && !definition.ignores_failures {
                Action::Deny
            } else {
                Action::Allow
            };
            self.context.metrics.mutated(name, binding, action, failed);
        };
        let outcome = match outcome {
            Outcome::Skipped => return Ok(()),
            Outcome::NotCompiled(error) => {
                self.context.report(definition.identity(), &error);
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
