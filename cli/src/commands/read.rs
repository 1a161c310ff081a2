//! Reads that several commands need.

use std::collections::BTreeSet;

use drydock_machinery::selector::NodeMatcher;
use drydock_proto::kinds::nodemaintenance::{NodeMaintenance, NodeSelector};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::de::DeserializeOwned;

use crate::api::{Resource, Session};
use crate::error::Error;

/// Up to this many nodes, their pods are read node by node; above it, all pods at once.
pub(super) const FEW_NODES: usize = 20;

/// A node.
pub(super) async fn node(session: &Session, name: &str) -> Result<Node, Error> {
    session.get(Resource::Nodes, None, name).await
}

/// The nodes that a selector selects.
pub(super) async fn selected_nodes(session: &Session, selector: &NodeSelector) -> Result<Vec<Node>, Error> {
    if let Some(names) = names_only(selector)
        && names.len() <= FEW_NODES
    {
        let mut nodes = Vec::new();
        for name in names {
            // A node that is gone is no longer selected.
            nodes.extend(session.find(Resource::Nodes, None, name).await?);
        }
        return Ok(nodes);
    }
    let matcher = NodeMatcher::try_from(selector).map_err(|errors| Error::Decode(errors.to_string()))?;
    let nodes: Vec<Node> = session.list(Resource::Nodes, None, &[]).await?;
    Ok(nodes.into_iter().filter(|node| matches(&matcher, node)).collect())
}

/// Whether a node is selected.
pub(super) fn matches(matcher: &NodeMatcher, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    matcher.matches(node.metadata.name.as_deref().unwrap_or_default(), |key| {
        labels?.get(key).map(String::as_str)
    })
}

/// The names in a selector that names nodes and nothing else.
fn names_only(selector: &NodeSelector) -> Option<BTreeSet<&str>> {
    let mut names = BTreeSet::new();
    for term in &selector.node_selector_terms {
        match term.match_fields.as_slice() {
            [field] if term.match_expressions.is_empty() && field.operator == "In" => {
                names.extend(field.values.iter().map(String::as_str));
            }
            _ => return None,
        }
    }
    Some(names)
}

/// The pods on nodes.
pub(super) async fn pods_on<T: DeserializeOwned>(
    session: &Session,
    nodes: &[String],
) -> Result<Vec<T>, Error> {
    if nodes.len() > FEW_NODES {
        return session.list(Resource::Pods, None, &[]).await;
    }
    let mut pods = Vec::new();
    for name in nodes {
        let selector = format!("spec.nodeName={name}");
        let query = [("fieldSelector", selector.as_str())];
        pods.extend(session.list(Resource::Pods, None, &query).await?);
    }
    Ok(pods)
}

/// The maintenances that select a node, and are neither idle nor complete.
pub(super) async fn maintenances_of(session: &Session, node: &Node) -> Result<Vec<NodeMaintenance>, Error> {
    let all: Vec<NodeMaintenance> = session.list(Resource::NodeMaintenances, None, &[]).await?;
    Ok(all
        .into_iter()
        .filter(|maintenance| is_active_on(maintenance, node))
        .collect())
}

/// Whether a maintenance is in effect on a node.
pub(super) fn is_active_on(maintenance: &NodeMaintenance, node: &Node) -> bool {
    use drydock_proto::kinds::nodemaintenance::Stage;
    let selector = maintenance.spec.node_selector.as_ref();
    matches!(maintenance.spec.stage, Stage::Cordon | Stage::Drain)
        && selector
            .and_then(|selector| NodeMatcher::try_from(selector).ok())
            .is_some_and(|matcher| matches(&matcher, node))
}

/// The budgets of the namespaces of pods. Who may not read them is told nothing about them.
pub(super) async fn budgets_of(session: &Session, pods: &[Pod]) -> Result<Vec<PodDisruptionBudget>, Error> {
    let namespaces: BTreeSet<&str> = pods.iter().map(crate::pods::namespace).collect();
    let mut budgets = Vec::new();
    for namespace in namespaces {
        match session.list(Resource::Budgets, Some(namespace), &[]).await {
            Ok(found) => budgets.extend(found),
            Err(error) if error.is_forbidden() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(budgets)
}
