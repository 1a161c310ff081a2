//! Writers. Each has objects of its own, and knows the outcome of a write before it sends the next one of the object.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use http::StatusCode;
use tokio::time::{Instant, sleep};

use super::client::{Answer, Client};
use super::shared::{Shared, Turns, count};
use super::{GROUPS, LANES, OBJECTS, PATIENCE, SERVERS};
use crate::ledger::run::Phase;
use crate::ledger::wire::{stored, written};
use crate::ledger::{Event, Kind, Rule, Version, Violation};
use crate::load::{Call, Response};

/// The pause between two requests.
const PAUSE: Duration = Duration::from_millis(60);
/// What a change fills an object up with, and what it does so that a server that lags has much to catch up with.
const SMALL_BYTES: usize = 1_800;
const LARGE_BYTES: usize = 60_000;
/// After so many faults no request that nobody answered can still be under way.
const OVER_AFTER: u64 = 2;

/// An object of a writer.
struct Own {
    object: u32,
    version: Version,
    /// The revision of its last write.
    revision: u64,
    is_there: bool,
    /// During which fault a create was not answered. It may still arrive after a deletion, which only its sender could
    /// rule out by waiting.
    doubted_during: Option<u64>,
}

struct Lane {
    shared: Arc<Shared>,
    client: Client,
    random: Rng,
}

/// Writes until the load ends.
pub(super) async fn run(shared: Arc<Shared>, number: u32, random: Rng) {
    let mut objects: Vec<Own> = (0..OBJECTS)
        .filter(|object| object % LANES == number)
        .map(|object| Own {
            object,
            version: Version {
                serial: 0,
                group: u16::try_from(object).unwrap_or_default() % GROUPS,
            },
            revision: 0,
            is_there: false,
            doubted_during: None,
        })
        .collect();
    let number = usize::try_from(number).unwrap_or_default();
    let home = number % SERVERS;
    let turns = Turns::new(Arc::clone(&shared), number);
    let mut lane = Lane {
        client: Client::new(Arc::clone(&shared), home),
        shared,
        random,
    };
    loop {
        for own in &mut objects {
            if lane.shared.run.phase() > Phase::Load {
                return;
            }
            if !lane.shared.is_hurried.load(Ordering::Relaxed) {
                sleep(PAUSE).await;
            }
            if let Err(violation) = lane.step(own).await {
                let whose = format!("the writer of object {}", own.object);
                lane.shared.violation(&whose, &violation);
                // The ledger could not judge later writes of the object.
                return;
            }
            turns.next();
        }
    }
}

impl Lane {
    /// The next request for an object.
    async fn step(&mut self, own: &mut Own) -> Result<()> {
        self.client.return_home();
        let began = Instant::now();
        let fault = self.shared.fault.load(Ordering::Relaxed);
        let may_remove = own
            .doubted_during
            .is_none_or(|during| during + OVER_AFTER <= fault);
        let kind = match self.random.u8(..12) {
            _ if !own.is_there => Kind::Added,
            0..3 => return self.read(own).await,
            3 if may_remove => Kind::Deleted,
            _ => Kind::Modified,
        };
        if self.write(own, kind).await? {
            count(&self.shared.counters.writes);
            self.shared.record_wait(self.client.home, began.elapsed());
        }
        Ok(())
    }

    /// Reads an object: it must be as it was last written.
    async fn read(&mut self, own: &Own) -> Result<()> {
        let began = Instant::now();
        let found = self.found(own.object).await?;
        let expected = own.is_there.then_some((own.version, own.revision));
        if found != expected {
            let detail = format!("a get shows {found:?} instead of {expected:?}");
            return Err(Violation::new(Rule::Snapshot, detail).into());
        }
        count(&self.shared.counters.reads);
        self.shared.record_wait(self.client.home, began.elapsed());
        Ok(())
    }

    /// What a get shows, repeated until it is answered.
    async fn found(&mut self, object: u32) -> Result<Option<(Version, u64)>> {
        let call = self.shared.place.read(object);
        let began = Instant::now();
        loop {
            ensure!(began.elapsed() < PATIENCE, "no server answers a get");
            if let Answer::Response(response) = self.client.call(&call).await {
                return match response.status {
                    StatusCode::OK => Ok(Some(stored(&response.start, object)?)),
                    StatusCode::NOT_FOUND => Ok(None),
                    _ => Err(unexpected("a get", &response)),
                };
            }
        }
    }

    /// Writes until the outcome is known; `false`: nothing was written, since etcd is full.
    async fn write(&mut self, own: &mut Own, kind: Kind) -> Result<bool> {
        let next = match kind {
            Kind::Deleted => own.version,
            Kind::Added if own.version.serial == 0 && own.revision == 0 => own.version,
            Kind::Added | Kind::Modified => Version {
                serial: own.version.serial + 1,
                group: self.random.u16(..GROUPS),
            },
        };
        let call = self.call(own, kind, next);
        let beyond = self.shared.run.ledger().acknowledged_to();
        let (began, mut in_doubt) = (Instant::now(), false);
        loop {
            ensure!(began.elapsed() < PATIENCE, "no server answers a write");
            if in_doubt && let Some(revision) = self.outcome(own, kind, next).await? {
                return self.done(own, kind, next, revision, beyond);
            }
            match self.client.call(&call).await {
                Answer::Response(response) => match (response.status, kind) {
                    (StatusCode::OK | StatusCode::CREATED, _) => {
                        let revision = match kind {
                            Kind::Deleted => own.revision,
                            _ => written(&response.start, own.object, next)?,
                        };
                        return self.done(own, kind, next, revision, beyond);
                    }
                    // Of the write that was not answered.
                    (StatusCode::CONFLICT, _) | (StatusCode::NOT_FOUND, Kind::Deleted) if in_doubt => {}
                    _ => return Err(unexpected(&format!("{kind:?} of {:?}", own.object), &response)),
                },
                Answer::NotExecuted { is_full: true } if !in_doubt => {
                    count(&self.shared.counters.full);
                    return Ok(false);
                }
                Answer::NotExecuted { .. } => {}
                Answer::Unknown => {
                    if !std::mem::replace(&mut in_doubt, true) {
                        count(&self.shared.counters.doubts);
                    }
                    if kind == Kind::Added {
                        own.doubted_during = Some(self.shared.fault.load(Ordering::Relaxed));
                    }
                }
            }
        }
    }

    fn call(&self, own: &Own, kind: Kind, next: Version) -> Call {
        let place = &self.shared.place;
        match kind {
            Kind::Added => place.create(own.object, next, self.shared.run.now()),
            Kind::Modified => {
                let is_hurried = self.shared.is_hurried.load(Ordering::Relaxed);
                let bytes = if is_hurried { LARGE_BYTES } else { SMALL_BYTES };
                place.change_at(own.object, next, self.shared.run.now(), own.revision, bytes)
            }
            Kind::Deleted => place.remove_at(own.object, own.revision),
        }
    }

    /// Whether a write in doubt has happened, and at which revision; a deletion shows none, so that it is the old one.
    async fn outcome(&mut self, own: &Own, kind: Kind, next: Version) -> Result<Option<u64>> {
        let found = self.found(own.object).await?;
        match (kind, found) {
            (Kind::Deleted, None) => Ok(Some(own.revision)),
            (Kind::Added | Kind::Modified, Some((version, revision))) if version == next => {
                Ok(Some(revision))
            }
            (Kind::Added, None) => Ok(None),
            (Kind::Modified | Kind::Deleted, Some(found)) if found == (own.version, own.revision) => Ok(None),
            _ => {
                let detail = format!(
                    "{kind:?} of {next:?} over {:?} at {}: a get shows {found:?}",
                    own.version, own.revision
                );
                Err(Violation::new(Rule::Snapshot, detail).into())
            }
        }
    }

    /// Records a write that happened.
    fn done(&self, own: &mut Own, kind: Kind, next: Version, revision: u64, beyond: u64) -> Result<bool> {
        let shared = &self.shared;
        if kind == Kind::Deleted {
            own.is_there = false;
            own.doubted_during = None;
            count(&shared.counters.removals);
            shared.run.ledger().acknowledge_removal(own.object, beyond)?;
            return Ok(true);
        }
        if revision <= own.revision {
            bail!("the revision went from {} to {revision}", own.revision);
        }
        (own.version, own.revision, own.is_there) = (next, revision, true);
        shared.note_revision(revision);
        shared.run.ledger().acknowledge(Event {
            revision,
            kind,
            key: own.object,
            value: next,
        })?;
        Ok(true)
    }
}

/// The violation of a response that no faultless request gets.
pub(super) fn unexpected(what: &str, response: &Response) -> anyhow::Error {
    anyhow::Error::msg(format!(
        "{what}: {}: {}",
        response.status,
        String::from_utf8_lossy(&response.start)
    ))
}
