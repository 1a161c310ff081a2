//! `status`: the drains, or one of them.

use std::time::Duration;

use drydock_machinery::clock::Clock;
use drydock_proto::kinds::nodemaintenance::NodeMaintenance;
use jiff::Timestamp;
use serde_json::Value;

use super::end::bare;
use super::follow::{Goal, follow, observe};
use super::repeat::{Is, repeat};
use crate::api::{Resource, Session};
use crate::args::{Format, StatusFlags};
use crate::error::Error;
use crate::output::{as_list, print_as};
use crate::progress::history::History;
use crate::progress::{Held, screen};
use crate::table::table;
use crate::terminal::{Terminal, cut, print};
use crate::times::{ago, timestamp};

/// More lines than any status has.
const ALL_ROWS: usize = 100_000;

pub(super) async fn run(session: &Session, flags: &StatusFlags, clock: &dyn Clock) -> Result<(), Error> {
    match flags.name.as_deref().map(bare) {
        Some(name) if flags.watch => follow(session, name, Goal::Drained, Duration::ZERO, clock).await,
        Some(name) => one(session, name, flags.output, clock).await,
        None if flags.watch => watch_all(session, clock).await,
        None => all(session, flags.output, clock).await,
    }
}

async fn one(session: &Session, name: &str, output: Option<Format>, clock: &dyn Clock) -> Result<(), Error> {
    let object: Value = session.get(Resource::NodeMaintenances, None, name).await?;
    if print_as(output, &object)? {
        return Ok(());
    }
    let Some((_, snapshot)) = observe(session, name).await? else {
        return Err(Error::NotFound(format!(
            "nodemaintenances.coordination.k8s.io {name:?} not found"
        )));
    };
    let now = clock.now();
    let mut history = History::default();
    history.add(&snapshot, now);
    let terminal = Terminal::detect();
    let columns = if output == Some(Format::Wide) {
        usize::MAX
    } else {
        Terminal::size().0
    };
    let lines = screen::render(&snapshot, &history, now, (columns, ALL_ROWS), terminal.colour);
    print(&(lines.join("\n") + "\n"))
}

async fn all(session: &Session, output: Option<Format>, clock: &dyn Clock) -> Result<(), Error> {
    let mut objects: Vec<Value> = session.list(Resource::NodeMaintenances, None, &[]).await?;
    for object in &mut objects {
        // Items of a list do not repeat these.
        if let Some(members) = object.as_object_mut() {
            members.insert("apiVersion".to_owned(), "coordination.k8s.io/v1alpha3".into());
            members.insert("kind".to_owned(), "NodeMaintenance".into());
        }
    }
    if matches!(output, Some(Format::Json | Format::Yaml)) {
        print_as(output, &as_list(&objects))?;
        return Ok(());
    }
    let maintenances = decode(objects)?;
    print(&overview(
        &maintenances,
        clock.now(),
        output == Some(Format::Wide),
    ))
}

fn decode(objects: Vec<Value>) -> Result<Vec<NodeMaintenance>, Error> {
    objects
        .into_iter()
        .map(|object| serde_json::from_value(object).map_err(|error| Error::Decode(error.to_string())))
        .collect()
}

async fn watch_all(session: &Session, clock: &dyn Clock) -> Result<(), Error> {
    let terminal = Terminal::detect();
    repeat(async || {
        let objects = session.list(Resource::NodeMaintenances, None, &[]).await?;
        let mut text = overview(&decode(objects)?, clock.now(), false);
        if terminal.is_live {
            let columns = Terminal::size().0;
            let lines: Vec<String> = text.lines().map(|line| cut(line, columns)).collect();
            text = lines.join("\n") + "\n";
        }
        Ok((text, Is::GoingOn))
    })
    .await
}

/// The table of all maintenances.
fn overview(maintenances: &[NodeMaintenance], now: Timestamp, is_wide: bool) -> String {
    if maintenances.is_empty() {
        return "No maintenances. Start one: kubectl drydock drain NODE\n".to_owned();
    }
    let mut header = vec!["NAME", "STAGE", "NODES", "DRAINED", "PODS LEFT", "HELD BY", "AGE"];
    if is_wide {
        header.extend(["MESSAGE", "REASON"]);
    }
    let rows: Vec<Vec<String>> = maintenances
        .iter()
        .map(|maintenance| {
            let status = maintenance.status.clone().unwrap_or_default();
            let drain = status.drain_status.unwrap_or_default();
            let left = drain
                .pods_pending_eviction_request
                .saturating_add(drain.active_eviction_requests);
            let mut row = vec![
                maintenance.metadata.name.clone().unwrap_or_default(),
                maintenance.spec.stage.to_string(),
                status.selected_nodes.unwrap_or_default().to_string(),
                status.drained_nodes.unwrap_or_default().to_string(),
                left.to_string(),
                status
                    .blockers
                    .first()
                    .map(Held::from)
                    .map_or_else(|| "-".to_owned(), |held| held_by(&held)),
                ago(timestamp(maintenance.metadata.creation_timestamp.as_ref()), now),
            ];
            if is_wide {
                row.extend([drain.drain_message, maintenance.spec.reason.clone()]);
            }
            row.iter()
                .map(|cell| crate::terminal::printable(cell).replace('\n', " "))
                .collect()
        })
        .collect();
    table(&header, &rows)
}

fn held_by(held: &Held) -> String {
    if held.pod.is_empty() {
        held.reason.clone()
    } else {
        format!("{} ({})", held.pod, held.reason)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn overview_shows_what_holds_each_maintenance() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let maintenances: Vec<NodeMaintenance> = decode(vec![
            json!({
                "metadata": {"name": "drain-node-a", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"stage": "Drain", "reason": "disk"},
                "status": {
                    "selectedNodes": 3, "drainedNodes": 1,
                    "drainStatus": {"podsPendingEvictionRequest": 1, "activeEvictionRequests": 2, "drainMessage": "Draining"},
                    "blockers": [{"node": "node-a", "namespace": "shop", "pod": "db-0", "reason": "Budget", "message": "m", "since": "2026-01-01T00:01:00Z"}],
                },
            }),
            json!({"metadata": {"name": "idle"}}),
        ])
        .unwrap();
        assert_eq!(
            overview(&maintenances, now, true),
            "NAME           STAGE   NODES   DRAINED   PODS LEFT   HELD BY              AGE   MESSAGE    REASON\n\
             drain-node-a   Drain   3       1         3           shop/db-0 (Budget)   10m   Draining   disk\n\
             idle           Idle    0       0         0           -                    ?\n"
        );
        assert!(overview(&[], now, false).contains("kubectl drydock drain"));
    }
}
