//! `release`: gives up the record of a maintenance that has vanished, and makes its node schedulable if it was before.

use drydock_proto::kinds::nodemaintenance::{NodeMaintenance, STATUS_ANNOTATION};
use k8s_openapi::api::core::v1::Node;
use serde::Deserialize;
use serde_json::json;

use super::drain::bare;
use super::read;
use crate::api::{Resource, Session};
use crate::args::ReleaseFlags;
use crate::error::Error;
use crate::terminal::print;

/// What the annotation says, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    #[serde(default)]
    maintenances: Vec<Holder>,
    /// Maintenances that are gone and were not completed.
    #[serde(default)]
    vanished: Vec<String>,
    /// Whether the node was unschedulable before its first maintenance; unknown in a record that cannot be read.
    was_unschedulable: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Holder {
    #[serde(default)]
    name: String,
}

pub(super) async fn run(session: &Session, flags: &ReleaseFlags) -> Result<(), Error> {
    for name in &flags.nodes {
        release(session, bare(name)).await?;
    }
    Ok(())
}

async fn release(session: &Session, name: &str) -> Result<(), Error> {
    let node = read::node(session, name).await?;
    let Some(record) = record(&node) else {
        return Err(Error::NotFound(format!(
            "no maintenance has left a record on node {name}. If it is cordoned by hand: kubectl uncordon {name}"
        )));
    };
    // Removing the record of a maintenance that is there would only make the controller write it again.
    let active = read::maintenances_of(session, &node).await?;
    if let Some(maintenance) = active.first() {
        let holder = maintenance.metadata.name.as_deref().unwrap_or_default();
        return Err(Error::Refused(format!(
            "the maintenance {holder} holds node {name}. End it: kubectl drydock complete {holder}"
        )));
    }
    for holder in &record.maintenances {
        let found: Option<NodeMaintenance> = session
            .find(Resource::NodeMaintenances, None, &holder.name)
            .await?;
        if found.is_some_and(|found| found.metadata.deletion_timestamp.is_some()) {
            return Err(Error::Refused(format!(
                "the maintenance {} of node {name} is being deleted, and will return the node to service",
                holder.name
            )));
        }
    }
    let mut patch = json!({
        "metadata": {
            "resourceVersion": node.metadata.resource_version,
            "annotations": { STATUS_ANNOTATION: null },
        },
    });
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let uncordons = is_cordoned && record.was_unschedulable == Some(false);
    if uncordons && let Some(members) = patch.as_object_mut() {
        members.insert("spec".to_owned(), json!({ "unschedulable": null }));
    }
    session.merge_patch(Resource::Nodes, name, &patch).await?;
    let mut holders: Vec<&str> = record.vanished.iter().map(String::as_str).collect();
    holders.extend(record.maintenances.iter().map(|holder| holder.name.as_str()));
    let outcome = match (uncordons, is_cordoned) {
        (true, _) => " and uncordoned".to_owned(),
        (false, true) => format!("; it stays cordoned. To change that: kubectl uncordon {name}"),
        (false, false) => String::new(),
    };
    print(&format!(
        "node/{name} released from {}{outcome}\n",
        holders.join(", ")
    ))
}

/// The record on a node. One that cannot be read can be given up as well.
fn record(node: &Node) -> Option<Record> {
    let text = node.metadata.annotations.as_ref()?.get(STATUS_ANNOTATION)?;
    Some(serde_json::from_str(text).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(annotation: &str) -> Record {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"annotations": {STATUS_ANNOTATION: annotation}},
        }))
        .unwrap();
        super::record(&node).unwrap()
    }

    #[test]
    fn a_record_tells_whether_the_node_was_schedulable() {
        let read = record(r#"{"maintenances":[{"name":"m","stage":"Drain"}],"wasUnschedulable":false}"#);
        assert_eq!(
            (read.maintenances[0].name.as_str(), read.was_unschedulable),
            ("m", Some(false))
        );
        assert_eq!(
            record(r#"{"wasUnschedulable":true}"#).was_unschedulable,
            Some(true)
        );
        assert_eq!(record("{").was_unschedulable, None);
        assert!(super::record(&Node::default()).is_none());
    }
}
