//! Warnings about valid maintenances that are probably mistakes. Warnings that depend on the nodes of the cluster come from
//! admission.

use drydock_proto::kinds::nodemaintenance::NodeMaintenanceSpec;

/// How many terms are warned about.
const MAX_WARNINGS: usize = 10;

/// Warnings about selector terms that match no node.
pub(super) fn about_empty_terms(spec: &NodeMaintenanceSpec) -> Vec<String> {
    let terms = spec
        .node_selector
        .iter()
        .flat_map(|selector| &selector.node_selector_terms)
        .enumerate();
    terms
        .filter(|(_, term)| term.match_expressions.is_empty() && term.match_fields.is_empty())
        .take(MAX_WARNINGS)
        .map(|(index, _)| {
            format!("spec.nodeSelector.nodeSelectorTerms[{index}]: an empty term matches no node")
        })
        .collect()
}
