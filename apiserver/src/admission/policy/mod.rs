//! `ValidatingAdmissionPolicy` and `MutatingAdmissionPolicy` of the host, and `matchConditions` of webhooks.
//!
//! ```text
//! policy ──► definition ─┐
//! binding ─► binding ────┼─► validating, mutating ──► evaluation (threads with large stacks) ──► 403, 422, warnings
//! params ──► params ─────┘                      ▲            │
//!                                 authorizer ───┴── the next authorization check that is not known
//! ```
//!
//! [`definition`] compiles policies, [`params`] finds the objects that bindings refer to, [`input`] makes the variables of
//! expressions, [`evaluation`] runs them. A policy that cannot be compiled here is not skipped: its failure policy decides,
//! the metric `drydock_admission_policies_not_compiled` counts its requests, and an event on the policy has the error.

pub mod conditions;
mod definition;
mod evaluation;
mod input;
mod metrics;
pub mod mutating;
mod params;
mod prepared;
pub mod validating;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use self::metrics::PolicyMetrics;
use self::params::Params;
use crate::authorization::Authorizer;
use crate::host::{Host, HostEvent};

/// Policies about which an event was recorded, at most: an event is recorded once for each state of a policy.
const MAX_REPORTED: usize = 4_096;

/// What all policies use.
pub struct PolicyContext {
    host: Arc<dyn Host>,
    authorizer: Arc<Authorizer>,
    params: Params,
    metrics: PolicyMetrics,
    reported: Mutex<HashSet<String>>,
}

impl PolicyContext {
    /// Registers the metrics of policies.
    #[must_use]
    pub fn new(
        host: Arc<dyn Host>,
        authorizer: Arc<Authorizer>,
        registry: &mut prometheus_client::registry::Registry,
    ) -> Arc<Self> {
        Arc::new(Self {
            params: Params::new(Arc::clone(&host)),
            metrics: PolicyMetrics::register(registry),
            host,
            authorizer,
            reported: Mutex::default(),
        })
    }

    /// Counts a request that met a policy that cannot be compiled, and records an event for each state of the policy.
    fn report(&self, policy: PolicyName<'_>, error: &str) {
        self.metrics.not_compiled(policy.kind, policy.name);
        let state = format!("{}/{}/{}", policy.kind, policy.name, policy.version);
        {
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            if reported.len() >= MAX_REPORTED {
                reported.clear();
            }
            if !reported.insert(state) {
                return;
            }
        }
        tracing::error!(
            kind = policy.kind,
            policy = policy.name,
            error,
            "a policy cannot be compiled"
        );
        let note = format!("Drydock cannot compile this policy, so its failure policy decides: {error}");
        self.host.record_event(HostEvent {
            api_version: "admissionregistration.k8s.io/v1".to_owned(),
            kind: policy.kind.to_owned(),
            namespace: String::new(),
            name: policy.name.to_owned(),
            uid: policy.uid.to_owned(),
            warning: true,
            reason: "PolicyNotCompiled".to_owned(),
            action: "Compile".to_owned(),
            note: note.chars().take(1_000).collect(),
        });
    }
}

/// A policy in reports.
#[derive(Clone, Copy)]
struct PolicyName<'a> {
    kind: &'static str,
    name: &'a str,
    uid: &'a str,
    /// Its resourceVersion.
    version: &'a str,
}

#[cfg(test)]
mod tests;
