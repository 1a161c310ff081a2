//! Changing the spec of a NodeMaintenance requires the verb `maintain` (or `delete`) on nodes.
//!
//! A selector that lists nodes by name (`matchFields` on `metadata.name` with `In`, and nothing else) requires the right for
//! each of them. Every other selector can come to match any node, so it requires the right for all nodes. What the selector
//! matches now does not matter, and nobody without rights learns it: neither a rejection nor a warning depends on it.
//!
//! Labels, annotations and finalizers require no such right, nor does ending a maintenance that is being deleted: its
//! deletion was reviewed, and the controller, which carries it out, has no right to maintain nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use drydock_machinery::field_error::quoted;
use drydock_machinery::selector::NodeMatcher;
use drydock_proto::kinds::GROUP;
use drydock_proto::kinds::nodemaintenance::{self, NodeSelector, NodeSelectorTerm, Stage};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::Deserialize as _;
use serde_json::Value;

use super::rule::{Access, Right, Rule};
use crate::authorization::Decision;
use crate::error::ApiError;
use crate::host::{Host, NodeMetadata};
use crate::registry::admission::{Operation, WriteAttributes};
use crate::registry::metadata::is_terminating;
use crate::registry::part::Part;

/// The verbs of which one is required.
const VERBS: [&str; 2] = ["maintain", "delete"];
/// If the selector names more nodes, the right for all nodes is required.
const MAX_REVIEWS: usize = 500;
/// How many reviews run concurrently.
const CONCURRENT_REVIEWS: usize = 16;
/// How many of the denied nodes a message names.
const NODES_NAMED: usize = 3;
/// How many terms are compared with nodes for a warning, over all nodes. A selector above that gets none.
const MAX_COMPARISONS: usize = 1_000_000;
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

/// The nodes that a selector lists by name; `None` for any other selector.
fn listed(selector: &NodeSelector) -> Option<BTreeSet<&str>> {
    let is_by_name = |term: &NodeSelectorTerm| {
        let mut fields = term.match_fields.iter();
        term.match_expressions.is_empty()
            && !term.match_fields.is_empty()
            && fields.all(|field| field.key == "metadata.name" && field.operator == "In")
    };
    let terms = &selector.node_selector_terms;
    if terms.is_empty() || !terms.iter().all(is_by_name) {
        return None;
    }
    let fields = terms.iter().flat_map(|term| &term.match_fields);
    Some(
        fields
            .flat_map(|field| field.values.iter().map(String::as_str))
            .collect(),
    )
}

/// Whether the write changes the spec, or deletes the object.
fn needs_right(write: &WriteAttributes<'_>) -> bool {
    let (Some(new), Some(old)) = (write.object, write.old) else {
        return true;
    };
    if new.get("spec") == old.get("spec") {
        return false;
    }
    !(is_terminating(old) && only_ends(new, old))
}

/// Whether the stage becomes `Complete` and nothing else of the spec changes.
fn only_ends(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(mut ended)) = (new.get("spec"), old.get("spec").cloned()) else {
        return false;
    };
    if let Some(members) = ended.as_object_mut() {
        members.insert("stage".to_owned(), Stage::Complete.as_str().into());
    }
    *new == ended
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
        if !applies || write.part == Part::Status || !needs_right(write) {
            return Ok(());
        }
        write.record_target_authorization(self.check_rights(write).await)?;
        if write.operation != Operation::Delete {
            self.warn(write).await;
        }
        Ok(())
    }

    async fn check_rights(&self, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
        if self.may_maintain(write, "").await? {
            return Ok(());
        }
        // A selector that cannot be read could be any.
        let selectors: Vec<NodeSelector> = write
            .old
            .into_iter()
            .chain(write.object)
            .map(|object| selector(object).unwrap_or_default())
            .collect();
        let mut names = BTreeSet::new();
        for selector in &selectors {
            let listed = listed(selector).ok_or_else(|| {
                missing(
                    write,
                    "a selector other than matchFields of metadata.name with In requires the right for all nodes",
                )
            })?;
            names.extend(listed);
        }
        if names.len() > MAX_REVIEWS {
            return Err(missing(
                write,
                &format!("a selector of more than {MAX_REVIEWS} names requires the right for all nodes"),
            ));
        }
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let denied: Vec<String> = stream::iter(names)
            .map(|name| async move {
                let allowed = self.may_maintain(write, &name).await?;
                Ok::<_, ApiError>((!allowed).then_some(name))
            })
            .buffered(CONCURRENT_REVIEWS)
            .try_filter_map(async |denied| Ok(denied))
            .try_collect()
            .await?;
        if denied.is_empty() {
            return Ok(());
        }
        let shown: Vec<String> = denied.iter().take(NODES_NAMED).map(|name| quoted(name)).collect();
        let others = denied.len() - shown.len();
        let rest = if others > 0 {
            format!(" and {others} more")
        } else {
            String::new()
        };
        Err(missing(write, &format!("nodes {}{rest}", shown.join(", "))))
    }

    /// Whether the user has one of the verbs on a node; an empty name stands for all nodes.
    async fn may_maintain(&self, write: &WriteAttributes<'_>, name: &str) -> Result<bool, ApiError> {
        for verb in VERBS {
            let right = Right::core(verb, "nodes", "").on(name);
            if self.access.decide(write, right).await? == Decision::Allow {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Warns about selections that are probably mistakes. The user has the right for the nodes that the selector may match.
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
        if nodes.len().saturating_mul(selector.node_selector_terms.len()) > MAX_COMPARISONS {
            return;
        }
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

fn missing(write: &WriteAttributes<'_>, about: &str) -> ApiError {
    Right::core("maintain", "nodes", "").missing(write, about)
}

impl Rule for NodeAccess {
    fn admit<'a>(&'a self, write: &'a WriteAttributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        self.check(write).boxed()
    }
}
