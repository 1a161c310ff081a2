//! Readers of lists.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;
use tokio::time::{Instant, sleep};

use super::PATIENCE;
use super::client::{Answer, Client};
use super::shared::{Shared, Turns, count};
use super::writers::unexpected;
use crate::ledger::run::Phase;
use crate::ledger::wire::page;
use crate::ledger::{ClassId, Digest, Rule, Selection, Violation};
use crate::load::Call;

/// The pause between two lists.
const PAUSE: Duration = Duration::from_millis(150);

/// Lists one selection after the other until the load ends.
pub(super) async fn run(shared: Arc<Shared>, home: usize, turns: Turns, classes: Vec<(ClassId, Selection)>) {
    let mut client = Client::new(Arc::clone(&shared), home);
    for (class, selection) in classes.into_iter().cycle() {
        sleep(PAUSE).await;
        if shared.run.phase() > Phase::Load {
            return;
        }
        client.return_home();
        let stop = async || {
            // The sender is never dropped before.
            drop(shared.run.phases().wait_for(|phase| *phase > Phase::Load).await);
        };
        tokio::select! {
            listed = list(&shared, &mut client, class, selection) => {
                if let Err(violation) = listed {
                    shared.violation(&format!("a list of {selection:?}"), &violation);
                }
            }
            // The list may wait for an event that does not come any more.
            () = stop() => return,
        }
        turns.next();
    }
}

/// Lists a selection: it must be the state at its revision, which is not older than anything seen before.
pub(super) async fn list(
    shared: &Shared,
    client: &mut Client,
    class: ClassId,
    selection: Selection,
) -> Result<()> {
    let call = Call::get(shared.place.path(selection));
    let began = Instant::now();
    let (before, response) = loop {
        ensure!(began.elapsed() < PATIENCE, "no server answers a list");
        let before = shared.newest();
        if let Answer::Response(response) = client.call(&call).await {
            break (before, response);
        }
    };
    if response.status != StatusCode::OK {
        return Err(unexpected("a list", &response));
    }
    shared.record_wait(client.home, began.elapsed());
    let mut items = Digest::default();
    let revision = page(&response.start, &mut items)?.revision;
    if revision < before {
        let detail = format!("a list at {revision}, after a response at {before}");
        return Err(Violation::new(Rule::Ordered, detail).into());
    }
    shared.note_revision(revision);
    shared.known_to(revision).await?;
    shared.run.ledger().check_list(class, revision, items)?;
    count(&shared.counters.lists);
    Ok(())
}
