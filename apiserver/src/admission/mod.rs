//! Admission: the policy of the cluster, and rules for writes that depend on the user or on other objects of the cluster.
//!
//! kube-apiserver runs no admission for resources of an aggregated server, so this server does, again for each attempt to
//! commit an object, and for dry runs too:
//!
//! ```text
//! namespace_lifecycle ─► mutating phase ─► strategy and validation ─► validating phase ─► store
//!                        plugins of                                    rules below, then
//!                        cluster_policy                                plugins of cluster_policy
//! ```
//!
//! [`cluster_policy`] runs the plugins ([`plugin`]) that carry out the policy of the cluster. They see a write as
//! [`attributes`], find out by [`matching`] whether it concerns them, and are configured by objects of the host, which
//! [`compiled`] keeps in the form in which they are used: [`policy`] for policies in CEL, [`webhook`] for webhooks. The rules of
//! this server run on the final object:
//!
//! - [`namespace_lifecycle`]: no new objects in a namespace that is missing or being deleted;
//! - [`target_access`]: writing an EvictionRequest requires permission to delete its pod;
//! - [`status_access`]: writing its status requires the right to act as an interceptor, or to coordinate;
//! - [`owner_references`], if it is switched on: owners that the user may not block or have the object deleted by;
//! - [`node_access`]: changing the spec of a NodeMaintenance requires permission to maintain nodes;
//! - [`target_lookup`], last: an EvictionRequest or Evacuation that is created in `v1alpha1` names an existing pod, and gets
//!   its interceptors ([`pod_interceptors`], from [`stored_rules`]).

pub mod attributes;
pub mod cluster_policy;
pub mod compiled;
pub mod conditions;
mod configuration;
#[cfg(test)]
mod creation;
mod enabled;
pub mod matching;
mod namespace_lifecycle;
mod node_access;
mod owner_references;
pub mod plugin;
mod pod_interceptors;
pub mod policy;
mod rule;
mod status_access;
mod stored_rules;
mod target_access;
mod target_lookup;
pub mod webhook;

use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;

use self::cluster_policy::ClusterPolicy;
pub use self::configuration::{AdmissionFileError, AdmissionSettings};
pub use self::enabled::{EnabledPlugins, PluginName};
pub use self::pod_interceptors::InterceptorRules;
use self::rule::{Access, Rule};
pub use self::stored_rules::StoredRules;
use crate::authorization::{Authorizer, Decision, denial};
use crate::error::ApiError;
use crate::host::{AccessReview, Attributes, Host, Namespace, ResourceAttributes};
use crate::registry::admission::{Admission, WriteAttributes};
use crate::registry::caller::Caller;
use crate::registry::endpoint::Endpoint;

/// The verb that permits removing objects that cannot be read, as in kube-apiserver.
const UNSAFE_DELETE_VERB: &str = "unsafe-delete-ignore-read-errors";

/// The admission rules and the policy of the cluster, in the order in which they run.
pub struct Chain {
    host: Arc<dyn Host>,
    rules: Vec<Box<dyn Rule>>,
    lookup: target_lookup::TargetLookup,
    authorizer: Arc<Authorizer>,
    checks_namespaces: bool,
    policy: Option<ClusterPolicy>,
}

impl Chain {
    /// The rules of a server. `own_node` is the node that the server runs on, if any: maintenances that select it get a
    /// warning.
    #[must_use]
    pub fn new(host: Arc<dyn Host>, authorizer: Arc<Authorizer>, own_node: Option<String>) -> Self {
        let access = Access::new(Arc::clone(&authorizer));
        let rules: Vec<Box<dyn Rule>> = vec![
            Box::new(target_access::TargetAccess {
                access: access.clone(),
            }),
            Box::new(status_access::StatusAccess {
                access: access.clone(),
            }),
            Box::new(node_access::NodeAccess {
                access,
                host: Arc::clone(&host),
                own_node,
            }),
        ];
        Self {
            lookup: target_lookup::TargetLookup {
                host: Arc::clone(&host),
                rules: OnceLock::new(),
            },
            host,
            rules,
            authorizer,
            checks_namespaces: true,
            policy: None,
        }
    }

    /// Applies the policy of the cluster too.
    #[must_use]
    pub fn with_policy(self, policy: ClusterPolicy) -> Self {
        Self {
            policy: Some(policy),
            ..self
        }
    }

    /// Whether new objects in namespaces that are missing or being deleted are rejected. They are unless this is called.
    #[must_use]
    pub fn checking_namespaces(self, checks_namespaces: bool) -> Self {
        Self {
            checks_namespaces,
            ..self
        }
    }

    /// Where the rules that register interceptors are read. Without them, the controller alone determines the interceptors of
    /// requests. Only the first call counts.
    pub fn read_interceptors(&self, rules: Arc<dyn InterceptorRules>) {
        self.lookup.rules.get_or_init(|| rules);
    }

    /// The objects of the host that configure the policy of the cluster and are not loaded yet.
    #[must_use]
    pub fn not_loaded(&self) -> Vec<String> {
        self.policy
            .as_ref()
            .map(ClusterPolicy::not_loaded)
            .unwrap_or_default()
    }

    async fn review_unsafe_delete(
        &self,
        caller: Caller<'_>,
        endpoint: &Endpoint,
        namespace: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        let review = review(caller, UNSAFE_DELETE_VERB, endpoint, namespace, name);
        let forbid = |why: String| ApiError::forbidden(endpoint.group_resource(), name, why);
        match self.authorizer.decide(&review).await {
            Ok(Decision::Allow) => Ok(()),
            Ok(Decision::Forbid(reason)) => Err(forbid(format!(
                "not permitted to do \"{UNSAFE_DELETE_VERB}\", reason: {reason}"
            ))),
            Err(error) => Err(forbid(format!(
                "error while checking permission for \"{UNSAFE_DELETE_VERB}\""
            ))
            .because(error)),
        }
    }
}

/// A review of a verb on an object of ours.
fn review(caller: Caller<'_>, verb: &str, endpoint: &Endpoint, namespace: &str, name: &str) -> AccessReview {
    AccessReview {
        user: Arc::clone(caller.user),
        attributes: Attributes::Resource(ResourceAttributes {
            verb: verb.to_owned(),
            group: endpoint.resource().group.to_owned(),
            version: endpoint.face().version.to_owned(),
            resource: endpoint.face().names.plural.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..ResourceAttributes::default()
        }),
    }
}

impl Admission for Chain {
    fn check_namespace<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            if !self.checks_namespaces {
                return Ok(());
            }
            namespace_lifecycle::check(&*self.host, write).await
        }
        .boxed()
    }

    fn mutates(&self, write: &WriteAttributes<'_>) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.mutates(write))
    }

    fn mutate<'a>(
        &'a self,
        write: &'a WriteAttributes<'a>,
    ) -> BoxFuture<'a, Result<Option<Value>, ApiError>> {
        async move {
            match &self.policy {
                Some(policy) => policy.mutate(write).await,
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn check<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<Option<Value>, ApiError>> {
        async move {
            for rule in &self.rules {
                rule.admit(write).await?;
            }
            self.lookup.complete(write).await
        }
        .boxed()
    }

    fn validate<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            match &self.policy {
                Some(policy) => policy.validate(write).await,
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn check_create<'a>(
        &'a self,
        caller: Caller<'a>,
        endpoint: &'a Endpoint,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let review = review(caller, "create", endpoint, namespace, name);
        async move {
            match self.authorizer.decide(&review).await {
                Ok(Decision::Allow) => Ok(()),
                Ok(Decision::Forbid(reason)) => Err(denial(&review, &reason)),
                Err(error) => {
                    Err(ApiError::internal("the permission to create could not be reviewed").because(error))
                }
            }
        }
        .boxed()
    }

    fn check_unsafe_delete<'a>(
        &'a self,
        caller: Caller<'a>,
        endpoint: &'a Endpoint,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        self.review_unsafe_delete(caller, endpoint, namespace, name)
            .boxed()
    }

    fn is_namespace_terminating<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, bool> {
        async move {
            !namespace.is_empty()
                && matches!(
                    self.host.namespace(namespace).await,
                    Ok(Namespace::Terminating(_) | Namespace::Missing)
                )
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
