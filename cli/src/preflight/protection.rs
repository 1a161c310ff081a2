//! What protects pods: budgets, groups and interceptors.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Facts, Finding, FoundPod, Severity, finding};
use crate::budgets::{self, Verdict};
use crate::interceptors::{self, Heard};
use crate::pods;
use crate::times::ago;

/// Budgets that hold pods of the node, and pods with more than one.
pub(super) fn budgets(facts: &Facts, node: &str, leaving: &[&FoundPod], findings: &mut Vec<Finding>) {
    let mut by_budget: BTreeMap<(&str, &str), Vec<&FoundPod>> = BTreeMap::new();
    for found in leaving {
        let own = budgets::of_pod(&found.pod, &facts.budgets);
        let namespace = pods::namespace(&found.pod);
        if own.len() > 1 {
            let names: Vec<&str> = own.iter().map(|budget| budgets::name(budget)).collect();
            let message = format!(
                "More than one budget selects the pod, and Kubernetes evicts no such pod: {}.",
                names.join(", ")
            );
            findings.push(
                finding(Severity::Blocks, "MultipleBudgets", node, &[found], message)
                    .with_command(format!("kubectl get pdb {} -n {namespace}", names.join(" "))),
            );
            continue;
        }
        for budget in own {
            by_budget
                .entry((namespace, budgets::name(budget)))
                .or_default()
                .push(found);
        }
    }
    for ((namespace, name), held) in by_budget {
        let budget = facts.budgets.iter().find(|budget| {
            budgets::name(budget) == name && budget.metadata.namespace.as_deref() == Some(namespace)
        });
        let Some(budget) = budget else { continue };
        let (severity, check) = match budgets::verdict(budget) {
            Verdict::Allows(_) => continue,
            Verdict::Never { .. } => (Severity::Blocks, "BudgetNever"),
            Verdict::NotComputable(_) => (Severity::Blocks, "BudgetNotComputable"),
            Verdict::Exhausted { .. } => (Severity::Warns, "BudgetExhausted"),
            Verdict::NotObserved => (Severity::Warns, "BudgetNotObserved"),
        };
        findings.push(
            finding(severity, check, node, &held, budgets::describe(budget))
                .with_command(format!("kubectl describe pdb {name} -n {namespace}")),
        );
    }
}

/// Pods of a group of pods that are scheduled together: requests for one of them are canceled.
pub(super) fn groups(node: &str, leaving: &[&FoundPod], findings: &mut Vec<Finding>) {
    let is_set = |found: &FoundPod, field: &str| {
        found
            .object
            .pointer(&format!("/spec/{field}"))
            .is_some_and(|value| !value.is_null())
    };
    let grouped: Vec<&FoundPod> = leaving
        .iter()
        .copied()
        .filter(|found| is_set(found, "workloadRef") || is_set(found, "schedulingGroup"))
        .collect();
    if !grouped.is_empty() {
        let message =
            "The pods belong to a group that is scheduled together, and are not evicted one by one.";
        findings.push(finding(
            Severity::Blocks,
            "PodGroup",
            node,
            &grouped,
            message.to_owned(),
        ));
    }
}

/// Interceptors that had a turn and never answered, and those that have never been heard of.
pub(super) fn interceptors(
    facts: &Facts,
    node: &str,
    leaving: &[&FoundPod],
    now: Timestamp,
    findings: &mut Vec<Finding>,
) {
    let mut by_name: BTreeMap<String, Vec<&FoundPod>> = BTreeMap::new();
    for found in leaving {
        let namespace = facts
            .namespaces
            .iter()
            .find(|namespace| namespace.metadata.name.as_deref() == Some(pods::namespace(&found.pod)));
        let declared = interceptors::declared(&found.pod, &found.object, &facts.rules, namespace);
        for interceptor in declared.interceptors {
            by_name.entry(interceptor.name).or_default().push(found);
        }
        if !declared.skipped.is_empty() {
            let message = format!(
                "Some declarations of interceptors are skipped: {}.",
                declared.skipped.join("; ")
            );
            findings.push(finding(
                Severity::Warns,
                "InterceptorSkipped",
                node,
                &[found],
                message,
            ));
        }
    }
    for (name, waiting) in by_name {
        let (severity, check, message) = match interceptors::heard(&name, &facts.requests, now) {
            Heard::BuiltIn | Heard::Last(_) => continue,
            Heard::Silent(since, requests) => (
                Severity::Warns,
                "InterceptorSilent",
                format!(
                    "{name} does not seem to run: since {} ago it had {requests} turns and never reported. Each turn \
                     lasts until its deadline.",
                    ago(Some(since), now)
                ),
            ),
            Heard::NeverAsked => (
                Severity::Notes,
                "InterceptorUnknown",
                format!("{name} comes first, and has never been heard of: make sure that its program runs."),
            ),
        };
        findings.push(
            finding(severity, check, node, &waiting, message)
                .with_command("kubectl get evictioninterceptors".to_owned()),
        );
    }
}
