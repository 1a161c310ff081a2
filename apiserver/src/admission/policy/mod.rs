//! `ValidatingAdmissionPolicy` and `MutatingAdmissionPolicy` of the host, and `matchConditions` of webhooks.
//!
//! ```text
//! policy ──► definition ─┐
//! binding ─► definition ─┼─► bound ──► validating, mutating ──► evaluation (threads with large stacks) ──► 403, 422, warnings
//! params ──► params ─────┘                              ▲            │
//!                                         authorizer ───┴── the next authorization check that is not known
//! ```
//!
//! [`definition`] compiles policies, [`params`] finds the objects that bindings refer to, [`bound`] what applies to a write,
//! [`input`] makes the variables of expressions, [`evaluation`] runs them. A policy that cannot be compiled here is not skipped,
//! nor one with a binding that cannot be read: the failure policy decides, the metric
//! `drydock_admission_policies_not_compiled` counts the requests, and an event on the object has the error.

mod bound;
pub mod conditions;
mod definition;
mod evaluation;
mod input;
mod lane;
mod metrics;
pub mod mutating;
mod params;
mod prepared;
pub mod validating;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use self::lane::Lane;
use self::metrics::PolicyMetrics;
use self::params::Params;
use crate::authorization::Authorizer;
use crate::host::{Host, HostEvent};
use crate::registry::resource::metadata_text;

/// Policies about which an event was recorded, at most: an event is recorded once for each state of a policy.
const MAX_REPORTED: usize = 4_096;

/// What all policies use.
pub struct PolicyContext {
    host: Arc<dyn Host>,
    authorizer: Arc<Authorizer>,
    params: Params,
    metrics: PolicyMetrics,
    /// All evaluations, of whichever policy.
    evaluations: Lane,
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
            evaluations: Lane::of_all(),
            host,
            authorizer,
            reported: Mutex::default(),
        })
    }

    /// Counts a request that met a policy or binding that cannot be used, and records an event for each state of it.
    fn report(&self, object: Identity<'_>, problem: Problem, error: &str) {
        self.metrics.not_compiled(object.kind, object.name);
        let state = format!("{}/{}/{}", object.kind, object.name, object.version);
        {
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            if reported.len() >= MAX_REPORTED {
                reported.clear();
            }
            if !reported.insert(state) {
                return;
            }
        }
        let (reason, action) = match problem {
            Problem::NotCompiled => ("PolicyNotCompiled", "compile"),
            Problem::Unreadable => ("PolicyBindingNotRead", "read"),
        };
        tracing::error!(kind = object.kind, name = object.name, error, "{reason}");
        let note = format!("Drydock cannot {action} this object, so the failure policy decides: {error}");
        self.host.record_event(HostEvent {
            api_version: "admissionregistration.k8s.io/v1".to_owned(),
            kind: object.kind.to_owned(),
            namespace: String::new(),
            name: object.name.to_owned(),
            uid: object.uid.to_owned(),
            warning: true,
            reason: reason.to_owned(),
            action: action.to_owned(),
            note: note.chars().take(1_000).collect(),
        });
    }
}

/// Why a policy or binding cannot be used.
#[derive(Debug, Clone, Copy)]
enum Problem {
    /// An expression of a policy, or all of it.
    NotCompiled,
    /// A binding.
    Unreadable,
}

/// A policy or binding in reports.
#[derive(Clone, Copy)]
struct Identity<'a> {
    kind: &'static str,
    name: &'a str,
    uid: &'a str,
    /// Its resourceVersion.
    version: &'a str,
}

impl<'a> Identity<'a> {
    fn of(kind: &'static str, object: &'a Value) -> Self {
        Self {
            kind,
            name: metadata_text(object, "name"),
            uid: metadata_text(object, "uid"),
            version: metadata_text(object, "resourceVersion"),
        }
    }
}

#[cfg(test)]
mod tests;
