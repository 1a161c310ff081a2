//! The oldest revisions that can be served, as far as this process knows.
//!
//! etcd tells the compacted revision only to a watch that begins before it, so it is asked with one: when the store opens,
//! from time to time, and when a request finds its revision compacted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, WatchOptions};
use tokio::time::timeout;

use super::keyspace::Keyspace;
use super::members::Members;
use crate::{Floors, Revision};

/// How long etcd may take to tell the compacted revision.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often etcd is asked whether the watch has caught up.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The newest revision known to be compacted.
#[derive(Debug, Default)]
pub(super) struct KnownFloors {
    compacted: AtomicU64,
}

impl KnownFloors {
    /// Both floors. A state of the compacted revision could still be listed, but not watched from: the value before its
    /// event is gone.
    pub(super) fn floors(&self) -> Floors {
        let floor = Revision(self.compacted.load(Ordering::Acquire)).next();
        Floors {
            listable_from: floor,
            watchable_from: floor,
        }
    }

    /// Notes that everything before `through`, and the changes at it, are compacted.
    pub(super) fn note(&self, through: Revision) {
        self.compacted.fetch_max(through.0, Ordering::AcqRel);
    }

    /// Asks etcd. A failure leaves what is known.
    pub(super) async fn ask(&self, members: &Members, keys: &Keyspace) {
        match timeout(PATIENCE, ask(members, keys)).await {
            Ok(Ok(compacted)) => self.note(compacted),
            Ok(Err(reason)) => tracing::debug!(reason, "etcd did not tell the compacted revision"),
            Err(_) => tracing::debug!("etcd did not tell the compacted revision in time"),
        }
    }
}

async fn ask(members: &Members, keys: &Keyspace) -> Result<Revision, String> {
    let (_, client) = members
        .watch_connection()
        .await
        .map_err(|error| error.to_string())?;
    compacted(&client, keys).await.map_err(|error| error.to_string())
}

async fn compacted(client: &Client, keys: &Keyspace) -> Result<Revision, etcd_client::Error> {
    let options = WatchOptions::new().with_start_revision(1);
    let mut watch = client.watch_client();
    let (mut requests, mut responses) = watch.watch(keys.nothing(), Some(options)).await?.split();
    loop {
        match timeout(ASK_EVERY, responses.message()).await {
            Err(_) => requests.request_progress().await?,
            Ok(response) => match response? {
                Some(response) if response.canceled() => {
                    let compacted = response.compact_revision();
                    return Ok(Revision(u64::try_from(compacted).unwrap_or_default()));
                }
                Some(response) if response.created() => {}
                // The watch has caught up from the first revision: nothing is compacted.
                Some(_) | None => return Ok(Revision(0)),
            },
        }
    }
}
