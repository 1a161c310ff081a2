//! What would block or hurt a drain, found before it begins. Pure functions over objects.
//!
//! [`findings`] runs every check; `text` prints them.

mod pods_alone;
mod protection;
pub mod text;

use drydock_proto::kinds::evictioninterceptor::EvictionInterceptor;
use drydock_proto::kinds::evictionrequest::EvictionRequest;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::Serialize;
use serde_json::Value;

use crate::pods;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// A drain does not end until somebody does something.
    Blocks,
    /// A drain ends, and something suffers or takes long.
    Warns,
    /// Good to know.
    Notes,
}

/// Something that a drain will meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// One word for the check, such as `BudgetNever`.
    pub check: &'static str,
    /// The node that it is about.
    pub node: String,
    /// The pods that it is about, as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
    /// A sentence.
    pub message: String,
    /// A command that shows more or helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// A pod with all its fields, also those that typed clients do not know.
#[derive(Debug, Clone)]
pub struct FoundPod {
    /// The pod.
    pub pod: Pod,
    /// The same as JSON.
    pub object: Value,
}

/// What the checks look at.
#[derive(Debug, Default)]
pub struct Facts {
    /// The names of the nodes to drain.
    pub nodes: Vec<String>,
    /// Every pod on these nodes.
    pub pods: Vec<FoundPod>,
    /// Every pod in the namespaces of those pods.
    pub neighbours: Vec<Pod>,
    /// The budgets of these namespaces.
    pub budgets: Vec<PodDisruptionBudget>,
    /// The claims of these namespaces.
    pub claims: Vec<PersistentVolumeClaim>,
    /// All volumes.
    pub volumes: Vec<PersistentVolume>,
    /// The namespaces.
    pub namespaces: Vec<Namespace>,
    /// All rules that register interceptors.
    pub rules: Vec<EvictionInterceptor>,
    /// All eviction requests.
    pub requests: Vec<EvictionRequest>,
    /// What could not be read, and so is not checked.
    pub unread: Vec<String>,
}

impl Facts {
    /// The pods of a node that are not finished.
    fn on_node<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a FoundPod> {
        self.pods
            .iter()
            .filter(move |found| pods::node(&found.pod) == node && !pods::is_terminal(&found.pod))
    }
}

/// The findings of all checks: by node, those that block first.
#[must_use]
pub fn findings(facts: &Facts, now: Timestamp) -> Vec<Finding> {
    let mut findings = Vec::new();
    for node in &facts.nodes {
        let leaving: Vec<&FoundPod> = facts
            .on_node(node)
            .filter(|found| pods::has_to_leave(&found.pod))
            .collect();
        protection::budgets(facts, node, &leaving, &mut findings);
        protection::groups(node, &leaving, &mut findings);
        protection::interceptors(facts, node, &leaving, now, &mut findings);
        pods_alone::own_server(node, &leaving, &mut findings);
        pods_alone::volumes(facts, node, &leaving, &mut findings);
        pods_alone::replicas(facts, node, &leaving, &mut findings);
        pods_alone::tolerations(node, &leaving, &mut findings);
        pods_alone::habits(node, &leaving, &mut findings);
        let staying: Vec<&FoundPod> = facts
            .on_node(node)
            .filter(|found| !pods::has_to_leave(&found.pod))
            .collect();
        pods_alone::left_alone(node, &staying, &mut findings);
    }
    let order = |node: &str| facts.nodes.iter().position(|known| known == node);
    findings.sort_by(|a, b| {
        (order(&a.node), a.severity)
            .cmp(&(order(&b.node), b.severity))
            .then_with(|| a.check.cmp(b.check))
    });
    findings
}

/// A finding about some pods of a node.
fn finding(
    severity: Severity,
    check: &'static str,
    node: &str,
    pods: &[&FoundPod],
    message: String,
) -> Finding {
    Finding {
        severity,
        check,
        node: node.to_owned(),
        pods: pods.iter().map(|found| pods::full_name(&found.pod)).collect(),
        message,
        command: None,
    }
}

impl Finding {
    fn with_command(mut self, command: String) -> Self {
        self.command = Some(command);
        self
    }
}

#[cfg(test)]
mod tests;
