//! Which maintenances are allowed, and still surprising?

use std::collections::BTreeMap;

use drydock_machinery::field_error::quoted;
use drydock_machinery::selector::NodeMatcher;
use drydock_proto::kinds::nodemaintenance::NodeMaintenanceSpec;

/// The labels by which nodes of the control plane are known; the second until 1.24.
const CONTROL_PLANE_LABELS: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// A node as selectors see it.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
}

impl Node<'_> {
    /// Whether the maintenance chooses it.
    #[must_use]
    pub fn is_chosen(&self, matcher: &NodeMatcher) -> bool {
        matcher.matches(self.name, |key| self.labels.get(key).map(String::as_str))
    }

    fn is_control_plane(&self) -> bool {
        CONTROL_PLANE_LABELS
            .iter()
            .any(|label| self.labels.contains_key(*label))
    }
}

/// Warnings about a selector that chooses every node, every node of the control plane, or the node this server runs
/// on, among the nodes there are now.
pub fn about_chosen_nodes<'a>(
    matcher: &NodeMatcher,
    nodes: impl Iterator<Item = Node<'a>> + Clone,
    own_node: Option<&str>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let all_chosen = |mut nodes: Box<dyn Iterator<Item = Node<'a>> + '_>| {
        nodes
            .next()
            .is_some_and(|first| first.is_chosen(matcher) && nodes.all(|node| node.is_chosen(matcher)))
    };
    if all_chosen(Box::new(nodes.clone())) {
        warnings.push("spec.nodeSelector: matches every node of the cluster".to_owned());
    } else if all_chosen(Box::new(nodes.clone().filter(Node::is_control_plane))) {
        warnings.push("spec.nodeSelector: matches every node of the control plane".to_owned());
    }
    let own = own_node.and_then(|own| nodes.clone().find(|node| node.name == own));
    if let Some(own) = own.filter(|own| own.is_chosen(matcher)) {
        warnings.push(format!(
            "spec.nodeSelector: matches node {}, on which Drydock itself runs",
            quoted(own.name)
        ));
    }
    warnings
}

/// Warnings about terms that choose nothing.
pub(super) fn about_empty_terms(spec: &NodeMaintenanceSpec) -> Vec<String> {
    let terms = spec
        .node_selector
        .iter()
        .flat_map(|selector| &selector.node_selector_terms)
        .enumerate();
    terms
        .filter(|(_, term)| term.match_expressions.is_empty() && term.match_fields.is_empty())
        .map(|(index, _)| {
            format!("spec.nodeSelector.nodeSelectorTerms[{index}]: an empty term matches no node")
        })
        .collect()
}
