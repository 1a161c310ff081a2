//! The policies of a kind with their bindings, and what of them applies to a write.
//!
//! Policies that cannot be applied as the host's objects say are not passed over in silence: each is a [`Fault`], about which
//! its failure policy decides.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::Value;

use super::definition::{Binding, Definition};
use super::params::Resolved;
use super::{PolicyContext, Problem};
use crate::admission::PluginName;
use crate::admission::attributes::Attributes;
use crate::admission::compiled::{Compiled, Item};
use crate::admission::plugin::Plugin;
use crate::host::{Followed, FollowedKind};
use crate::registry::admission::WriteAttributes;
use crate::registry::endpoint::Endpoint;
use crate::registry::resource::metadata_text;

/// What joins the values of an audit annotation, as the reference joins those that policies add.
pub(super) const AND: &str = ", ";
/// The longest value of an audit annotation, in bytes.
const MAX_ANNOTATION_BYTES: usize = 10 * 1024;

/// Cuts what would be too long for an audit annotation.
pub(super) fn cut(text: &mut String) {
    let end = text.floor_char_boundary(MAX_ANNOTATION_BYTES.min(text.len()));
    text.truncate(end);
}

/// A policy of the host.
pub(super) type Policy<P> = Item<Definition<P>>;

/// A policy, and those of its bindings that exist.
type WithBindings<P> = (Arc<Policy<P>>, Vec<Arc<Item<Binding>>>);

/// A kind of object of the host, and how one is read.
pub(super) type Source<T> = (FollowedKind, fn(&Arc<Value>) -> T);

/// The policies of one kind.
pub(super) struct BoundPolicies<P> {
    pub(super) context: Arc<PolicyContext>,
    name: PluginName,
    policies: Compiled<Definition<P>>,
    bindings: Compiled<Binding>,
    index: ArcSwap<Index<P>>,
}

/// The policies with bindings at a time, in the order of their names. Others do nothing.
struct Index<P> {
    /// Of the policies and of the bindings.
    numbers: (u64, u64),
    policies: Vec<WithBindings<P>>,
}

/// A policy with one binding and one parameter object, to be evaluated for a write.
pub(super) struct Invocation<P> {
    pub(super) policy: Arc<Policy<P>>,
    binding: Arc<Item<Binding>>,
    /// The version in which the policy matched.
    pub(super) endpoint: Endpoint,
    pub(super) params: Option<Arc<Value>>,
}

impl<P> Invocation<P> {
    pub(super) fn binding(&self) -> &Binding {
        &self.binding.compiled
    }

    /// Tells the invocation from all others in a pass.
    pub(super) fn id(&self) -> String {
        let params = self.params.as_deref();
        let params = params.map(|object| (metadata_text(object, "namespace"), metadata_text(object, "name")));
        let (namespace, name) = params.unwrap_or_default();
        let (policy, binding) = (self.policy.compiled.name(), self.binding().name());
        format!("policy/{policy}/{binding}/{namespace}/{name}")
    }
}

/// A policy that matches a write and cannot be applied to it.
pub(super) struct Fault<P> {
    pub(super) policy: Arc<Policy<P>>,
    binding: Option<Arc<Item<Binding>>>,
    /// For people.
    error: String,
}

impl<P> Fault<P> {
    /// The name of the binding; `None` if the fault is the policy's.
    pub(super) fn binding(&self) -> Option<&str> {
        self.binding.as_ref().map(|binding| binding.compiled.name())
    }

    /// The reason of a rejection.
    pub(super) fn text(&self) -> String {
        let what = if self.binding.is_some() {
            "binding"
        } else {
            "policy"
        };
        format!("failed to configure {what}: {}", self.error)
    }
}

/// The policies that their failure policies pass over for a write, with all reasons.
pub(super) struct FailedOpen {
    /// What the keys of the audit annotations begin with. Policies of the two kinds may have the same name.
    prefix: &'static str,
    reasons: BTreeMap<String, Vec<String>>,
}

impl FailedOpen {
    pub(super) const fn of_validations() -> Self {
        Self::new("failed-open.validation.policy.drydock.dev/")
    }

    pub(super) const fn of_mutations() -> Self {
        Self::new("failed-open.mutation.policy.drydock.dev/")
    }

    const fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            reasons: BTreeMap::new(),
        }
    }

    pub(super) fn add<P>(&mut self, fault: &Fault<P>) {
        let text = match fault.binding() {
            Some(binding) => format!("{binding}: {}", fault.text()),
            None => fault.text(),
        };
        let name = fault.policy.compiled.name();
        self.reasons.entry(name.to_owned()).or_default().push(text);
    }

    /// Records them in the audit log.
    pub(super) fn annotate(self, attributes: &Attributes<'_>) {
        for (name, reasons) in self.reasons {
            let mut text = reasons.join(AND);
            cut(&mut text);
            attributes
                .audit()
                .annotate(format!("{}{name}", self.prefix), text);
        }
    }
}

/// What applies to a write.
pub(super) type Found<P> = Result<Invocation<P>, Fault<P>>;

impl<P: 'static> BoundPolicies<P> {
    /// Follows policies and bindings of the host; `None` for a host without policies.
    pub(super) fn new(
        context: &Arc<PolicyContext>,
        name: PluginName,
        (policies, compile): Source<Definition<P>>,
        (bindings, compile_binding): Source<Binding>,
    ) -> Option<Self> {
        let policies = context.host.follow(policies)?;
        let bindings = context.host.follow(bindings)?;
        Some(Self {
            context: Arc::clone(context),
            name,
            policies: Compiled::new(policies, compile),
            bindings: Compiled::new(bindings, compile_binding),
            index: ArcSwap::from_pointee(Index {
                numbers: (0, 0),
                policies: Vec::new(),
            }),
        })
    }

    /// The policies with their bindings as they are now. Rebuilt when one of them changes.
    fn index(&self) -> Arc<Index<P>> {
        let (policies, bindings) = (self.policies.items(), self.bindings.items());
        let numbers = (policies.number(), bindings.number());
        let current = self.index.load();
        if current.numbers == numbers {
            return Arc::clone(&current);
        }
        drop(current);
        let mut by_policy: HashMap<&str, Vec<Arc<Item<Binding>>>> = HashMap::new();
        for item in &bindings.items {
            let binding = &item.compiled;
            if let (Some(error), "") = (&binding.unreadable, binding.policy.as_str()) {
                self.context
                    .report(binding.identity(), Problem::Unreadable, error);
            }
            by_policy
                .entry(&binding.policy)
                .or_default()
                .push(Arc::clone(item));
        }
        let with_bindings = |policy: &Arc<Policy<P>>| {
            let bindings = by_policy.remove(policy.compiled.name())?;
            Some((Arc::clone(policy), bindings))
        };
        let index = Arc::new(Index {
            numbers,
            policies: policies.items.iter().filter_map(with_bindings).collect(),
        });
        self.index.store(Arc::clone(&index));
        index
    }

    /// What applies to a write, in the order of the policies and of their bindings.
    pub(super) async fn of_write(&self, attributes: &Attributes<'_>) -> Vec<Found<P>> {
        let mut found = Vec::new();
        for (policy, bindings) in &self.index().policies {
            let (endpoint, param_kind) = match self.matched(&policy.compiled, attributes).await {
                Ok(Some(matched)) => matched,
                Ok(None) => continue,
                Err(error) => {
                    let policy = Arc::clone(policy);
                    found.push(Err(Fault {
                        policy,
                        binding: None,
                        error,
                    }));
                    continue;
                }
            };
            for binding in bindings {
                let params = self
                    .params(param_kind.as_ref(), &binding.compiled, attributes)
                    .await;
                let (policy, binding) = (|| Arc::clone(policy), || Arc::clone(binding));
                match params {
                    Ok(params) => found.extend(params.into_iter().map(|params| {
                        Ok(Invocation {
                            policy: policy(),
                            binding: binding(),
                            endpoint: endpoint.clone(),
                            params,
                        })
                    })),
                    Err(error) => found.push(Err(Fault {
                        policy: policy(),
                        binding: Some(binding()),
                        error,
                    })),
                }
            }
        }
        found
    }

    /// The version in which a policy matches, and the kind of its parameters; `None` if it does not match. An unknown kind is
    /// a fault of the policy, also for writes that no binding selects.
    async fn matched<'a>(
        &self,
        definition: &'a Definition<P>,
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
        if let Some(error) = &binding.unreadable {
            self.context
                .report(binding.identity(), Problem::Unreadable, error);
            return Err(error.clone());
        }
        let found = binding.matcher.find(attributes).await;
        if found.map_err(|error| error.to_string())?.is_none() {
            return Ok(Vec::new());
        }
        let namespace = attributes.write().namespace;
        let params = &self.context.params;
        params.of(param_kind, binding.param_ref.as_ref(), namespace).await
    }
}

impl<P: Send + Sync + 'static> Plugin for BoundPolicies<P> {
    fn name(&self) -> &'static str {
        self.name.as_str()
    }

    fn sources(&self) -> Vec<&Arc<Followed>> {
        vec![self.policies.followed(), self.bindings.followed()]
    }

    fn concerns(&self, write: &WriteAttributes<'_>) -> bool {
        let policies = &self.index().policies;
        policies
            .iter()
            .any(|(policy, _)| policy.compiled.matcher.may_match(write))
    }
}
