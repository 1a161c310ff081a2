//! Writing a NodeMaintenance requires permission to delete the selected nodes.
//!
//! Permission to delete all nodes is reviewed first. It is required if the selector matches no node yet. Otherwise permission
//! for each selected node is sufficient.

use std::sync::Arc;

use drydock_machinery::selector::NodeMatcher;
use drydock_proto::kinds::GROUP;
use drydock_proto::kinds::nodemaintenance::{self, NodeSelector};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _};
use serde::Deserialize as _;
use serde_json::Value;

use super::rule::{Access, Rule};
use crate::authorization::Decision;
use crate::error::ApiError;
use crate::host::{Host, NodeMetadata};
use crate::registry::admission::{Operation, WriteAttributes};
use crate::registry::resource::Part;

/// If the selector matches more nodes, permission to delete all nodes is required.
const MAX_REVIEWS: usize = 500;
/// How many reviews run concurrently.
const CONCURRENT_REVIEWS: usize = 16;
/// How many of the denied nodes a message names.
const NODES_NAMED: usize = 3;
/// The label of control-plane nodes.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

pub(super) struct NodeAccess {
    pub(super) access: Access,
    pub(super) host: Arc<dyn Host>,
    pub(super) own_node: Option<String>,
}

fn selector(object: &Value) -> Option<NodeSelector> {
    object
        .pointer("/spec/nodeSelector")
        .and_then(|selector| NodeSelector::deserialize(selector).ok())
}

fn selected(nodes: &[NodeMetadata], selector: &NodeSelector) -> Vec<NodeMetadata> {
    // Validation has rejected selectors that cannot be parsed.
    let matcher = NodeMatcher::try_from(selector).unwrap_or_default();
    let is_selected =
        |node: &&NodeMetadata| matcher.matches(&node.name, |key| node.labels.get(key).map(String::as_str));
    nodes.iter().filter(is_selected).cloned().collect()
}

impl NodeAccess {
    async fn check(&self, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
        let applies = write.resource.group == GROUP && write.resource.plural == nodemaintenance::KIND.plural;
        if !applies || write.part == Part::Status || write.changes_nothing() {
            return Ok(());
        }
        let mut selectors: Vec<NodeSelector> = write
            .old
            .into_iter()
            .chain(write.object)
            // A selector that cannot be parsed matches no node: permission to delete all nodes is required.
            .map(|object| selector(object).unwrap_or_default())
            .collect();
        selectors.dedup();
        if write.operation != Operation::Delete {
            self.warn(write).await;
        }
        if self.access.may_delete(write, "nodes", "", "").await? == Decision::Allow {
            return Ok(());
        }
        let nodes = self.host.nodes().await.map_err(|error| {
            ApiError::internal("the selected nodes could not be looked up").because(error)
        })?;
        for selector in selectors {
            self.check_each(write, selected(&nodes, &selector)).await?;
        }
        Ok(())
    }

    async fn check_each(
        &self,
        write: &WriteAttributes<'_>,
        nodes: Vec<NodeMetadata>,
    ) -> Result<(), ApiError> {
        let user = &write.caller.user.name;
        let refuse = |why: String| {
            Err(ApiError::forbidden(
                write.endpoint.group_resource(),
                &write.shown_name(),
                why,
            ))
        };
        let cannot = format!(
            "User \"{user}\" cannot delete resource \"nodes\" in API group \"\" at the cluster scope"
        );
        if nodes.is_empty() {
            return refuse(format!(
                "{cannot}: the selector matches no node, so permission to delete all nodes is required"
            ));
        }
        if nodes.len() > MAX_REVIEWS {
            return refuse(format!(
                "{cannot}: the selector matches {} nodes; for more than {MAX_REVIEWS} permission to delete all nodes is required",
                nodes.len()
            ));
        }
        let decisions: Vec<(String, Result<Decision, ApiError>)> = stream::iter(nodes)
            .map(|node| async move {
                let decision = self.access.may_delete(write, "nodes", "", &node.name).await;
                (node.name, decision)
            })
            .buffered(CONCURRENT_REVIEWS)
            .collect()
            .await;
        let mut denied = Vec::new();
        for (node, decision) in decisions {
            if decision? != Decision::Allow {
                denied.push(node);
            }
        }
        if denied.is_empty() {
            return Ok(());
        }
        denied.sort_unstable();
        let named: Vec<String> = denied
            .iter()
            .take(NODES_NAMED)
            .map(|node| format!("\"{node}\""))
            .collect();
        let others = denied.len() - named.len();
        let rest = if others > 0 {
            format!(" and {others} more")
        } else {
            String::new()
        };
        refuse(format!("{cannot}: nodes {}{rest}", named.join(", ")))
    }

    /// Warns about selections that are probably mistakes.
    async fn warn(&self, write: &WriteAttributes<'_>) {
        let before = write.old.and_then(selector);
        let Some(selector) = write
            .object
            .and_then(selector)
            .filter(|now| Some(now) != before.as_ref())
        else {
            return;
        };
        // Warnings are optional: if the nodes cannot be listed, there are none.
        let Ok(nodes) = self.host.nodes().await else {
            return;
        };
        let matching = selected(&nodes, &selector);
        if matching.is_empty() {
            return;
        }
        let is_control_plane = |node: &NodeMetadata| node.labels.contains_key(CONTROL_PLANE);
        let warnings = write.caller.warnings;
        let control_plane_nodes = nodes.iter().filter(|node| is_control_plane(node)).count();
        if matching.len() == nodes.len() {
            warnings.add("spec.nodeSelector: matches every node of the cluster");
        } else if control_plane_nodes > 0
            && matching.iter().filter(|node| is_control_plane(node)).count() == control_plane_nodes
        {
            warnings.add("spec.nodeSelector: matches every control-plane node");
        }
        if let Some(own) = &self.own_node
            && matching.iter().any(|node| node.name == *own)
        {
            warnings.add(format!(
                "spec.nodeSelector: matches node {own:?}, which this server runs on"
            ));
        }
    }
}

impl Rule for NodeAccess {
    fn admit<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        self.check(write).boxed()
    }
}
