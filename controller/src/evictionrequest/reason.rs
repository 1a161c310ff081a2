//! The reasons of the condition `Blocked`.

use drydock_proto::kinds::evictionrequest::INTERCEPTOR_SILENT;

/// The reason of the condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A disruption budget allows no disruption.
    Budget,
    /// Several budgets select the pod, which the eviction API does not support.
    MultipleBudgets,
    /// The budget's controller has not observed its last change.
    BudgetNotObserved,
    /// The budget's controller cannot compute it.
    BudgetNotComputable,
    /// An admission webhook or policy of the host refuses, or cannot be called.
    Webhook,
    /// The host has too many requests.
    Throttled,
    /// The namespace is terminating.
    NamespaceTerminating,
    /// The pod is deleted and its finalizers hold it.
    Finalizers,
    /// The eviction was accepted and the pod is not being deleted.
    NotDeleting,
    /// The pod is deleted and its node is not ready.
    NodeUnreachable,
    /// The active interceptor has sent no heartbeat since its activation.
    InterceptorSilent,
    /// Only the kubelet can end the pod.
    StaticPod,
    /// Pods of DaemonSets are not evicted.
    DaemonSetPod,
    /// The server rejects the times of this program.
    ClockSkew,
    /// It is unknown whether a rule registers an interceptor for the pod.
    InterceptorRule,
    /// The call of the eviction API failed for another reason.
    EvictionFailed,
}

impl Reason {
    /// The reason as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Budget => "Budget",
            Self::MultipleBudgets => "MultipleBudgets",
            Self::BudgetNotObserved => "BudgetNotObserved",
            Self::BudgetNotComputable => "BudgetNotComputable",
            Self::Webhook => "Webhook",
            Self::Throttled => "Throttled",
            Self::NamespaceTerminating => "NamespaceTerminating",
            Self::Finalizers => "Finalizers",
            Self::NotDeleting => "NotDeleting",
            Self::NodeUnreachable => "NodeUnreachable",
            Self::InterceptorSilent => INTERCEPTOR_SILENT,
            Self::StaticPod => "StaticPod",
            Self::DaemonSetPod => "DaemonSetPod",
            Self::ClockSkew => "ClockSkew",
            Self::InterceptorRule => "InterceptorRule",
            Self::EvictionFailed => "EvictionFailed",
        }
    }

    /// Whether a stored reason is one of budgets.
    #[must_use]
    pub fn is_by_budget(stored: &str) -> bool {
        [
            Self::Budget,
            Self::MultipleBudgets,
            Self::BudgetNotObserved,
            Self::BudgetNotComputable,
        ]
        .into_iter()
        .any(|reason| reason.as_str() == stored)
    }
}
