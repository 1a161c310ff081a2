//! `release`: gives up the record of a maintenance that has vanished.

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
struct Record {
    #[serde(default)]
    maintenances: Vec<Holder>,
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
    let patch = json!({
        "metadata": {
            "resourceVersion": node.metadata.resource_version,
            "annotations": { STATUS_ANNOTATION: null },
        },
    });
    session.merge_patch(Resource::Nodes, name, &patch).await?;
    let holders: Vec<&str> = record
        .maintenances
        .iter()
        .map(|holder| holder.name.as_str())
        .collect();
    print(&format!("node/{name} released from {}\n", holders.join(", ")))
}

/// The record on a node. One that cannot be read can be given up as well.
fn record(node: &Node) -> Option<Record> {
    let text = node.metadata.annotations.as_ref()?.get(STATUS_ANNOTATION)?;
    Some(serde_json::from_str(text).unwrap_or_default())
}
