//! Follows a drain until its goal: a live screen on a terminal, plain lines elsewhere.

use std::time::Duration;

use drydock_machinery::clock::Clock;
use drydock_proto::kinds::nodemaintenance::{COMPLETION_FINALIZER, NodeMaintenance, Stage};
use k8s_openapi::api::core::v1::{Node, Pod};

use super::read::{FEW_NODES, pods_on, selected_nodes};
use crate::api::{Resource, Session};
use crate::error::Error;
use crate::progress::history::History;
use crate::progress::{Snapshot, lines, screen};
use crate::terminal::{Terminal, note, print};

/// How often a drain is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often a drain of many nodes is looked at.
const INTERVAL_OF_MANY: Duration = Duration::from_secs(5);

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Every node is drained.
    Drained,
    /// The nodes have returned to service.
    Completed,
    /// The maintenance is gone, and with it everything that it did.
    Gone,
}

impl Goal {
    const fn describe(self) -> &'static str {
        match self {
            Self::Drained => "is not drained",
            Self::Completed => "is not completed",
            Self::Gone => "still exists",
        }
    }

    /// Whether it is reached; an error when it can no longer be.
    fn is_reached(self, maintenance: &NodeMaintenance, snapshot: &Snapshot) -> Result<bool, Error> {
        let finalizers = maintenance.metadata.finalizers.as_deref().unwrap_or_default();
        let is_complete = snapshot.stage == Stage::Complete;
        match self {
            Self::Completed => Ok(is_complete && !finalizers.iter().any(|name| name == COMPLETION_FINALIZER)),
            Self::Drained if snapshot.is_drained && snapshot.stage == Stage::Drain => Ok(true),
            Self::Drained if is_complete || snapshot.is_ending => Err(Error::Ended(format!(
                "{} was completed before it was drained",
                snapshot.maintenance
            ))),
            Self::Gone | Self::Drained => Ok(false),
        }
    }
}

/// A frame that is redrawn in place.
#[derive(Debug, Default)]
pub(super) struct Frame {
    lines: usize,
}

impl Frame {
    /// Replaces what was drawn before.
    pub(super) fn draw(&mut self, lines: &[String]) -> Result<(), Error> {
        let mut text = String::new();
        if self.lines > 0 {
            // Up to the first line, and clear from there.
            text.push_str("\u{1b}[");
            text.push_str(&self.lines.to_string());
            text.push_str("A\r\u{1b}[J");
        }
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        self.lines = lines.len();
        print(&text)
    }
}

/// Waits until the goal is reached, and shows how it goes. `timeout` zero waits for ever.
pub(super) async fn follow(
    session: &Session,
    name: &str,
    goal: Goal,
    timeout: Duration,
    clock: &dyn Clock,
) -> Result<(), Error> {
    let follower = Follower {
        session,
        name,
        goal,
        clock,
        terminal: Terminal::detect(),
    };
    if timeout.is_zero() {
        return follower.run().await;
    }
    match tokio::time::timeout(timeout, follower.run()).await {
        Ok(result) => result,
        Err(_) => Err(Error::TimedOut(format!(
            "{name} {} after {} s; it goes on. See: kubectl drydock explain nm/{name}",
            goal.describe(),
            timeout.as_secs()
        ))),
    }
}

struct Follower<'a> {
    session: &'a Session,
    name: &'a str,
    goal: Goal,
    clock: &'a dyn Clock,
    terminal: Terminal,
}

impl Follower<'_> {
    async fn run(&self) -> Result<(), Error> {
        let mut history = History::default();
        let mut frame = Frame::default();
        let mut before: Option<Snapshot> = None;
        let mut is_away = false;
        loop {
            let (maintenance, snapshot) = match observe(self.session, self.name).await {
                Ok(Some(observed)) => observed,
                Ok(None) if self.goal == Goal::Gone => return Ok(()),
                Ok(None) if before.is_some() => {
                    return Err(Error::Ended(format!("{} was deleted", self.name)));
                }
                Ok(None) => {
                    return Err(Error::NotFound(format!(
                        "nodemaintenances.coordination.k8s.io {:?} not found",
                        self.name
                    )));
                }
                // A drain takes hours, in which servers restart: say it once, and go on.
                Err(error) if before.is_some() && is_transient(&error) => {
                    if !is_away {
                        note(&format!("waiting for the cluster: {error}"));
                        frame = Frame::default();
                        is_away = true;
                    }
                    tokio::time::sleep(INTERVAL_OF_MANY).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            is_away = false;
            let now = self.clock.now();
            history.add(&snapshot, now);
            if self.terminal.is_live {
                let (columns, rows) = Terminal::size();
                let size = (columns, rows.saturating_sub(1).max(3));
                frame.draw(&screen::render(
                    &snapshot,
                    &history,
                    now,
                    size,
                    self.terminal.colour,
                ))?;
            } else {
                for line in lines::changes(before.as_ref(), &snapshot) {
                    let time = now.strftime("%H:%M:%S");
                    print(&format!("{time} {line}\n"))?;
                }
            }
            if self.goal.is_reached(&maintenance, &snapshot)? {
                return Ok(());
            }
            let is_large = snapshot.selected_nodes > FEW_NODES;
            before = Some(snapshot);
            tokio::time::sleep(if is_large { INTERVAL_OF_MANY } else { INTERVAL }).await;
        }
    }
}

/// Whether another try may succeed.
pub(super) fn is_transient(error: &Error) -> bool {
    match error {
        Error::Unreachable(_) | Error::NoResponse(_) | Error::NotAvailable(_) => true,
        Error::Response { code, .. } => *code == 429 || *code >= 500,
        _ => false,
    }
}

/// Reads a maintenance, its nodes and their pods; `None` when it does not exist.
pub(super) async fn observe(
    session: &Session,
    name: &str,
) -> Result<Option<(NodeMaintenance, Snapshot)>, Error> {
    let Some(maintenance) = session.find(Resource::NodeMaintenances, None, name).await? else {
        return Ok(None);
    };
    let maintenance: NodeMaintenance = maintenance;
    let nodes: Vec<Node> = match &maintenance.spec.node_selector {
        Some(selector) => selected_nodes(session, selector).await?,
        None => Vec::new(),
    };
    let names: Vec<String> = nodes
        .iter()
        .filter_map(|node| node.metadata.name.clone())
        .collect();
    let pods: Vec<Pod> = pods_on(session, &names).await?;
    let snapshot = Snapshot::new(&maintenance, &nodes, &pods);
    Ok(Some((maintenance, snapshot)))
}
