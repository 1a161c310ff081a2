//! The metrics of policies. Their names are labels: only cluster administrators create policies.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::metrics::register::new;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CheckLabels {
    policy: String,
    policy_binding: String,
    enforcement_action: &'static str,
    error_type: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CompileLabels {
    kind: &'static str,
    policy: String,
}

/// Counters of policies.
pub(super) struct PolicyMetrics {
    validations: Family<CheckLabels, Counter>,
    mutations: Family<CheckLabels, Counter>,
    not_compiled: Family<CompileLabels, Counter>,
}

/// What a policy did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Allow,
    Deny,
    Warn,
    Audit,
}

impl Action {
    const fn label(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Warn => "warn",
            Self::Audit => "audit",
        }
    }
}

impl PolicyMetrics {
    #[rustfmt::skip] // A table with a row per metric.
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            validations: new(r, "apiserver_validating_admission_policy_check", "Validations by policy, binding, action and kind of error"),
            mutations: new(r, "apiserver_mutating_admission_policy_check", "Mutations by policy, binding, action and kind of error"),
            not_compiled: new(r, "drydock_admission_policies_not_compiled", "Requests that met a policy that cannot be compiled here"),
        }
    }

    pub(super) fn validated(&self, policy: &str, binding: &str, action: Action, failed: bool) {
        self.validations
            .get_or_create(&labels(policy, binding, action, failed))
            .inc();
    }

    pub(super) fn mutated(&self, policy: &str, binding: &str, action: Action, failed: bool) {
        self.mutations
            .get_or_create(&labels(policy, binding, action, failed))
            .inc();
    }

    pub(super) fn not_compiled(&self, kind: &'static str, policy: &str) {
        let labels = CompileLabels {
            kind,
            policy: policy.to_owned(),
        };
        self.not_compiled.get_or_create(&labels).inc();
    }
}

fn labels(policy: &str, binding: &str, action: Action, failed: bool) -> CheckLabels {
    CheckLabels {
        policy: policy.to_owned(),
        policy_binding: binding.to_owned(),
        enforcement_action: action.label(),
        error_type: if failed { "invalid_error" } else { "no_error" },
    }
}
