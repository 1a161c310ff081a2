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
    /// Every reason.
    pub const ALL: [Self; 16] = [
        Self::Budget,
        Self::MultipleBudgets,
        Self::BudgetNotObserved,
        Self::BudgetNotComputable,
        Self::Webhook,
        Self::Throttled,
        Self::NamespaceTerminating,
        Self::Finalizers,
        Self::NotDeleting,
        Self::NodeUnreachable,
        Self::InterceptorSilent,
        Self::StaticPod,
        Self::DaemonSetPod,
        Self::ClockSkew,
        Self::InterceptorRule,
        Self::EvictionFailed,
    ];

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The names in the first cells of the table below this head.
    fn first_cells(page: &str, head: &str) -> BTreeSet<String> {
        let (_, table) = page.split_once(head).unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        rows.flat_map(|row| {
            let cell = row.split('|').nth(1).unwrap().to_owned();
            let names = cell.split('`').skip(1).step_by(2).map(str::to_owned);
            names.collect::<Vec<_>>()
        })
        .collect()
    }

    #[test]
    fn the_pages_have_every_reason_and_no_other() {
        let written: BTreeSet<String> = Reason::ALL
            .iter()
            .map(|reason| reason.as_str().to_owned())
            .collect();
        assert_eq!(written.len(), Reason::ALL.len());
        let page = include_str!("../../../docs/kinds/evictionrequest.md");
        let head = "| reason of `Blocked` | what holds the pod | what you can do |";
        assert_eq!(first_cells(page, head), written);
        let readme = include_str!("../../../README.md");
        assert_eq!(first_cells(readme, "| reason | what holds the pod |"), written);
    }
}
