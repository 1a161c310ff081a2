//! `complete` and `cancel`: end maintenances.

use drydock_machinery::clock::Clock;
use drydock_proto::kinds::nodemaintenance::{NodeMaintenance, Stage};
use serde_json::{Value, json};

use super::follow::{Goal, follow};
use crate::api::{Resource, Session};
use crate::args::EndFlags;
use crate::error::Error;
use crate::terminal::print;

/// Moves maintenances to the stage Complete.
pub(super) async fn complete(session: &Session, flags: &EndFlags, clock: &dyn Clock) -> Result<(), Error> {
    for name in &flags.names {
        let maintenance = get(session, name).await?;
        let done = if maintenance.spec.stage == Stage::Complete {
            "is completed already"
        } else {
            set_stage(session, &maintenance, &Stage::Complete).await?;
            "completed"
        };
        print(&format!("nodemaintenance/{} {done}\n", bare(name)))?;
    }
    wait(session, flags, Goal::Completed, clock).await
}

/// Deletes maintenances. The controller completes them before they go.
pub(super) async fn cancel(session: &Session, flags: &EndFlags, clock: &dyn Clock) -> Result<(), Error> {
    for name in &flags.names {
        let maintenance = get(session, name).await?;
        let uid = maintenance.metadata.uid.as_deref().unwrap_or_default();
        session
            .delete(Resource::NodeMaintenances, None, bare(name), uid)
            .await?;
        print(&format!("nodemaintenance/{} canceled\n", bare(name)))?;
    }
    wait(session, flags, Goal::Gone, clock).await
}

async fn wait(session: &Session, flags: &EndFlags, goal: Goal, clock: &dyn Clock) -> Result<(), Error> {
    if flags.wait.wait {
        for name in &flags.names {
            follow(session, bare(name), goal, flags.wait.timeout, clock).await?;
        }
    }
    Ok(())
}

async fn get(session: &Session, name: &str) -> Result<NodeMaintenance, Error> {
    session.get(Resource::NodeMaintenances, None, bare(name)).await
}

/// `nm/NAME` and `NAME`.
pub(super) fn bare(name: &str) -> &str {
    ["nm/", "nodemaintenance/", "nodemaintenances/"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name)
}

/// Applies the stage of a maintenance, and nothing else. The uid keeps an apply from creating one that is gone.
pub(super) async fn set_stage(
    session: &Session,
    maintenance: &NodeMaintenance,
    stage: &Stage,
) -> Result<Value, Error> {
    let name = maintenance.metadata.name.as_deref().unwrap_or_default();
    let object = json!({
        "apiVersion": "coordination.k8s.io/v1alpha3",
        "kind": "NodeMaintenance",
        "metadata": {"name": name, "uid": maintenance.metadata.uid},
        "spec": {"stage": stage},
    });
    session
        .apply(Resource::NodeMaintenances, None, name, &object)
        .await
}
