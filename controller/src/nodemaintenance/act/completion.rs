//! The nodes that a maintenance still holds, read from the API. What is watched may be behind: without its finalizer nobody
//! would release a node that was held in the last moment, and it would stay cordoned for a maintenance that is gone.

use drydock_machinery::selector::NodeMatcher;
use drydock_proto::kinds::nodemaintenance::NodeMaintenance;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::api::{Error, call};
use crate::nodemaintenance::node_state;

/// How many nodes are read at a time.
const PAGE: u32 = 500;
/// How many nodes are named.
const MAX_NAMED: usize = 10;

/// The names of some nodes that the maintenance holds; empty when it holds none.
///
/// # Errors
///
/// [`Error`] of a call.
pub(super) async fn held_nodes(host: &Client, maintenance: &NodeMaintenance) -> Result<Vec<String>, Error> {
    let selector = maintenance.spec.node_selector.as_ref();
    let matcher = selector.and_then(|selector| NodeMatcher::try_from(selector).ok());
    let nodes: Api<Node> = Api::all(host.clone());
    let mut page = ListParams::default().limit(PAGE);
    let mut held = Vec::new();
    loop {
        let list = call(nodes.list(&page)).await?;
        let of_page = list
            .items
            .iter()
            .filter(|node| is_held(node, maintenance, matcher.as_ref()));
        held.extend(of_page.filter_map(|node| node.metadata.name.clone()));
        if held.len() >= MAX_NAMED {
            held.truncate(MAX_NAMED);
            return Ok(held);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(held),
        }
    }
}

/// Whether the record of the node names the maintenance; or, on a selected node without a record, whether it has the
/// drain taint, which nobody else sets. Whose cordon an unrecorded one is cannot be told.
fn is_held(node: &Node, maintenance: &NodeMaintenance, matcher: Option<&NodeMatcher>) -> bool {
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    let (name, uid) = (of(&maintenance.metadata.name), of(&maintenance.metadata.uid));
    if let Some(record) = node_state::record(node) {
        return record.maintenances.iter().any(|one| one.is(&name, &uid));
    }
    let labels = node.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    let is_selected = matcher.is_some_and(|matcher| matcher.matches(&of(&node.metadata.name), label));
    is_selected && node_state::is_tainted(node) && !node_state::is_under_maintenance(node)
}
