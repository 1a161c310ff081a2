//! The writers.
//!
//! Every object belongs to one lane, which sends one write after the other: the response of a write is known before
//! the next write of the same object is sent.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::scatter;
use super::shared::Shared;
use crate::ledger::run::Phase;
use crate::ledger::wire::written;
use crate::ledger::{Event, Kind, Version};
use crate::load::{Pool, Sender};

/// As many as clients of the benchmarks.
const LANES: u32 = 64;
/// One of so many writes deletes its object; the next one creates it again.
const REMOVALS: u64 = 20;
/// One of so many changes moves its object to another group.
const MOVES: u64 = 8;

/// The objects of one lane.
struct Lane {
    sender: Sender,
    objects: Vec<Own>,
}

struct Own {
    object: u32,
    version: Version,
    is_there: bool,
}

/// All lanes.
pub(super) struct Writers {
    lanes: Vec<Lane>,
    _pool: Pool,
}

impl Writers {
    /// Creates every object.
    pub(super) async fn fill(shared: &Arc<Shared>, pool: Pool) -> Result<Self> {
        let settings = &shared.settings;
        let mut filling = JoinSet::new();
        for number in 0..LANES.min(settings.objects) {
            let step = LANES as usize;
            let objects = (number..settings.objects).step_by(step).map(|object| Own {
                object,
                version: Version {
                    serial: 0,
                    group: group(object, 0, settings.groups()),
                },
                is_there: false,
            });
            let mut lane = Lane {
                sender: pool.sender(number as usize)?,
                objects: objects.collect(),
            };
            let shared = Arc::clone(shared);
            filling.spawn(async move {
                let Lane { sender, objects } = &mut lane;
                for own in objects {
                    if shared.run.phase() > Phase::Load {
                        break;
                    }
                    create(&shared, sender, own).await?;
                }
                Ok::<_, anyhow::Error>(lane)
            });
        }
        let mut lanes = Vec::new();
        while let Some(lane) = filling.join_next().await {
            lanes.push(lane.context("a writer ended early")??);
        }
        Ok(Self { lanes, _pool: pool })
    }

    /// Writes at the configured rate until the load ends.
    pub(super) async fn run(self, shared: Arc<Shared>) -> Result<()> {
        let count = u32::try_from(self.lanes.len().max(1))?;
        let beat = Duration::from_secs(1) * count / shared.settings.writes;
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for (number, lane) in (0..).zip(self.lanes) {
            let first = started + beat * number / count;
            tasks.spawn(write(Arc::clone(&shared), lane, first, beat));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.context("a writer ended early")?;
        }
        Ok(())
    }
}

async fn write(shared: Arc<Shared>, mut lane: Lane, first: Instant, beat: Duration) {
    let mut beats = interval_at(first, beat);
    // Late ticks are made up for, so that the rate holds over the whole time.
    beats.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut phases = shared.run.phases();
    let Lane { sender, objects } = &mut lane;
    loop {
        for own in &mut *objects {
            tokio::select! {
                _ = beats.tick() => {}
                _ = phases.wait_for(|phase| *phase > Phase::Load) => return,
            }
            if let Err(fault) = next(&shared, sender, own).await {
                shared.run.fault("a writer", &fault);
                // The outcome is unknown, so the ledger could not judge later writes of the object.
                return;
            }
        }
    }
}

/// The next write of an object.
async fn next(shared: &Shared, sender: &mut Sender, own: &mut Own) -> Result<()> {
    if !own.is_there {
        own.version.serial += 1;
        return create(shared, sender, own).await;
    }
    let chance = scatter(own.object.into(), own.version.serial);
    if chance.is_multiple_of(REMOVALS) {
        return remove(shared, sender, own).await;
    }
    let serial = own.version.serial + 1;
    let group = if chance.is_multiple_of(MOVES) {
        group(own.object, serial, shared.settings.groups())
    } else {
        own.version.group
    };
    own.version = Version { serial, group };
    let call = shared.place.change(own.object, own.version, shared.run.now());
    let asked = Instant::now();
    let response = shared.send(sender, &call).await?;
    shared.record_write(asked.elapsed());
    acknowledge(shared, own, Kind::Modified, &response.start)
}

async fn create(shared: &Shared, sender: &mut Sender, own: &mut Own) -> Result<()> {
    let call = shared.place.create(own.object, own.version, shared.run.now());
    let asked = Instant::now();
    let response = shared.send(sender, &call).await?;
    shared.record_write(asked.elapsed());
    own.is_there = true;
    acknowledge(shared, own, Kind::Added, &response.start)
}

async fn remove(shared: &Shared, sender: &mut Sender, own: &mut Own) -> Result<()> {
    let beyond = shared.run.ledger().acknowledged_to();
    let asked = Instant::now();
    shared.send(sender, &shared.place.remove(own.object)).await?;
    shared.record_write(asked.elapsed());
    own.is_there = false;
    Ok(shared.run.ledger().acknowledge_removal(own.object, beyond)?)
}

fn acknowledge(shared: &Shared, own: &Own, kind: Kind, response: &[u8]) -> Result<()> {
    let event = Event {
        revision: written(response, own.object, own.version)?,
        kind,
        key: own.object,
        value: own.version,
    };
    Ok(shared.run.ledger().acknowledge(event)?)
}

fn group(object: u32, serial: u32, groups: u16) -> u16 {
    u16::try_from(scatter(object.into(), serial) >> 8 & 0xffff).unwrap_or_default() % groups
}
