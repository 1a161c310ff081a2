//! Recovery at a start: verifies that every acknowledged write is present and that the store is consistent.
//!
//! The steps, once the lock is held and the format is known:
//! 1. open strictly; if only the end of the log is torn and the mark shows that it was never acknowledged, open up to the
//!    tear;
//! 2. compare with the mark: below it, acknowledged writes are missing;
//! 3. check the numbers in `meta` against each other and the newest history record;
//! 4. load `state` into the index and check every value;
//! 5. read `history` once: it must be dense and agree with `state` on every key; its end goes into the tail in memory.
//!
//! Structural damage refuses the start. A value that fails its checksum is set apart.

use std::collections::{HashMap, VecDeque};
use std::path::Path;

use uuid::Uuid;

use super::column_families::{Access, Engine, Meta, Recovery, Step, View};
use super::error::OpenError;
use super::format::Levels;
use super::history::{Density, HistoryError, walk};
use super::index::{Index, Slot};
use super::mark::Mark;
use super::tail::{MAX_BYTES, MAX_REVISIONS};
use super::timeline::Timeline;
use crate::record::{Place, RecordError, Records, StoredState};
use crate::{Entry, Event, EventKind, Floors, Key, Revision};

/// The numbers of `meta`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) store: Uuid,
    pub(crate) revision: Revision,
    pub(crate) floors: Floors,
    pub(crate) origin: Revision,
    /// Relaxed mode of the last run: no revision above it was assigned.
    pub(crate) ceiling: Option<Revision>,
}

/// An open engine with every acknowledged write.
pub(crate) struct Recovered {
    pub(crate) engine: Engine,
    /// The torn end of the log was dropped: never acknowledged, or in relaxed mode not synced yet.
    pub(crate) had_torn_tail: bool,
}

/// The loaded content.
pub(crate) struct Loaded {
    pub(crate) index: Index,
    pub(crate) timeline: Timeline,
    pub(crate) history_records: u64,
    /// The newest commit time seen.
    pub(crate) last_ms: u64,
    recent: Recent,
}

/// The newest revisions that fit into the tail in memory.
#[derive(Default)]
struct Recent {
    sizes: VecDeque<(Revision, usize)>,
    bytes: usize,
}

impl Recent {
    fn note(&mut self, revision: Revision, bytes: usize) {
        self.bytes += bytes;
        self.sizes.push_back((revision, bytes));
        while self.sizes.len() > MAX_REVISIONS || self.bytes > MAX_BYTES {
            let Some((_, size)) = self.sizes.pop_front() else {
                break;
            };
            self.bytes -= size;
        }
    }
}

/// Steps 1 and 2. With [`Access::ReadOnly`] no byte changes, and the result is that of a start.
pub(crate) fn open_engine(folder: &Path, mark: &Mark, access: Access) -> Result<Recovered, OpenError> {
    let is_checked = |engine: Engine, had_torn_tail: bool| {
        check_mark(folder, &engine.view(), mark)?;
        Ok(Recovered {
            engine,
            had_torn_tail,
        })
    };
    if mark.is_relaxed && !mark.is_clean {
        // Torn tails of several batches are normal there. A store below the mark is refused before it is opened for writing,
        // which would flush what can be read and drop the rest of the log.
        let reader = match Engine::open(folder, Access::ReadOnly, Recovery::Strict) {
            Ok(reader) => is_checked(reader, false)?,
            Err(OpenError::Damaged { .. }) => {
                let reader = Engine::open(folder, Access::ReadOnly, Recovery::PointInTime)?;
                is_checked(reader, true)?
            }
            Err(error) => return Err(error),
        };
        if access == Access::ReadOnly {
            return Ok(reader);
        }
        let had_torn_tail = reader.had_torn_tail;
        drop(reader);
        return is_checked(
            Engine::open(folder, access, Recovery::PointInTime)?,
            had_torn_tail,
        );
    }
    let strict = match Engine::open(folder, access, Recovery::Strict) {
        Ok(engine) => return is_checked(engine, false),
        Err(error @ OpenError::Damaged { .. }) => error,
        // A full disk, missing rights, too many open files: not a torn log.
        Err(error) => return Err(error),
    };
    // Opened read-only, so that nothing changes whatever is found.
    let reader = match Engine::open(folder, Access::ReadOnly, Recovery::PointInTime) {
        Ok(reader) => is_checked(reader, true)?,
        Err(OpenError::Damaged { .. }) => return Err(strict),
        Err(error) => return Err(error),
    };
    if access == Access::ReadOnly {
        return Ok(reader);
    }
    drop(reader);
    tracing::warn!(error = %strict, "the log ends in an incomplete write that was never acknowledged: it is dropped");
    is_checked(Engine::open(folder, access, Recovery::PointInTime)?, true)
}

fn check_mark(folder: &Path, view: &View<'_>, mark: &Mark) -> Result<(), OpenError> {
    let recovered = Revision(view.meta(Meta::Revision)?.unwrap_or_default());
    if recovered < mark.synced {
        return Err(OpenError::AcknowledgedLost {
            recovered,
            acknowledged: mark.synced,
            path: folder.to_owned(),
            logs: logs(folder),
        });
    }
    Ok(())
}

/// The files of the log with their sizes, for people.
fn logs(folder: &Path) -> String {
    let mut logs = Vec::new();
    for found in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = found.path();
        if path.extension().is_some_and(|end| end == "log") {
            let bytes = found.metadata().map_or(0, |metadata| metadata.len());
            logs.push(format!("{} of {bytes} B", found.file_name().to_string_lossy()));
        }
    }
    logs.sort_unstable();
    if logs.is_empty() {
        return "none".to_owned();
    }
    logs.join(", ")
}

/// The format numbers stored in the engine.
pub(crate) fn levels(view: &View<'_>) -> Result<Levels, OpenError> {
    let format = view.meta(Meta::Format)?;
    Ok(Levels {
        format: format.ok_or_else(|| OpenError::damaged("the number Format is missing"))?,
        feature_level: view.meta(Meta::FeatureLevel)?,
    })
}

/// Step 3.
pub(crate) fn position(view: &View<'_>) -> Result<Position, OpenError> {
    let number = |name: Meta| -> Result<Revision, OpenError> {
        let found = view.meta(name)?;
        found
            .map(Revision)
            .ok_or_else(|| OpenError::damaged(format!("the number {name:?} is missing")))
    };
    let store = view
        .store()?
        .ok_or_else(|| OpenError::damaged("the identity of the store is missing"))?;
    let ceiling = view
        .meta(Meta::Ceiling)?
        .filter(|ceiling| *ceiling != 0)
        .map(Revision);
    let position = Position {
        store,
        revision: number(Meta::Revision)?,
        floors: Floors {
            listable_from: number(Meta::ListableFrom)?,
            watchable_from: number(Meta::WatchableFrom)?,
        },
        origin: number(Meta::Origin)?,
        ceiling,
    };
    let Position { revision, floors, .. } = position;
    let highest = floors.listable_from.max(floors.watchable_from);
    if position.origin > revision || highest > revision.next() || floors.watchable_from > floors.listable_from
    {
        return Err(OpenError::damaged(format!(
            "its revisions contradict each other: {position:?}"
        )));
    }
    if let Some(last) = view.last_history()?
        && last != revision
        && last >= floors.watchable_from
    {
        let what = format!("the newest history record is of revision {last}, the store is at {revision}");
        return Err(OpenError::damaged(what));
    }
    Ok(position)
}

/// Steps 4 and 5.
pub(crate) fn load(view: &View<'_>, records: &Records, position: &Position) -> Result<Loaded, OpenError> {
    let index = load_state(view, records, position.revision)?;
    let mut loaded = Loaded {
        index,
        timeline: Timeline::default(),
        history_records: 0,
        last_ms: 0,
        recent: Recent::default(),
    };
    walk_history(view, position, &mut loaded)?;
    Ok(loaded)
}

fn load_state(view: &View<'_>, records: &Records, revision: Revision) -> Result<Index, OpenError> {
    let mut index = Index::at(revision);
    let mut rows = view.state("", "")?;
    while let Some((key, record)) = rows.next()? {
        let text =
            std::str::from_utf8(key).map_err(|_| OpenError::damaged("a key of the state is not text"))?;
        let damaged = |error: RecordError| OpenError::damaged(format!("the record of {text}: {error}"));
        let key = Key::parse(text).map_err(|error| damaged(error.into()))?;
        let stored = StoredState::decode(&key, record).map_err(damaged)?;
        let place = stored.place();
        if place.modified > revision || place.created > place.modified {
            return Err(damaged(RecordError::Future));
        }
        let slot = match records.value(&key, stored) {
            Ok(value) => Slot::Whole(Entry {
                value,
                created: place.created,
                modified: place.modified,
            }),
            // A missing encryption key says nothing about the data.
            Err(RecordError::Seal(error)) => Slot::Sealed(place, error.reason),
            Err(error) => {
                tracing::error!(%key, %error, "a value is damaged and set apart");
                Slot::Damaged(place)
            }
        };
        index.set(key, Some(slot));
    }
    Ok(index)
}

/// The newest events, for the tail in memory: readers that reconnect after a restart then need no disk. Begins after the
/// last damaged record, which must not be skipped.
pub(crate) fn recent(
    view: &View<'_>,
    records: &Records,
    loaded: &Loaded,
    revision: Revision,
) -> Result<Vec<Event>, OpenError> {
    let mut events = Vec::new();
    let Some((first, _)) = loaded.recent.sizes.front() else {
        return Ok(events);
    };
    walk(view, *first, revision, |stored, _| {
        let revision = stored.committed.revision;
        match records.event(stored) {
            Ok(event) => events.push(event),
            Err(error) => {
                if error.is_damage() {
                    tracing::error!(%revision, %error, "a history record is damaged: watches across it must start over");
                }
                // One that does not open now is read from the disk when somebody watches from there.
                events.clear();
            }
        }
        Ok(true)
    })?;
    Ok(events)
}

impl From<HistoryError> for OpenError {
    fn from(error: HistoryError) -> Self {
        match error {
            HistoryError::Engine(error) => error.into(),
            HistoryError::Sealed { revision, reason } => Self::Sealed {
                key: format!("the history of revision {revision}"),
                reason,
            },
            HistoryError::Damaged { revision, reason } => {
                Self::damaged(format!("the history of revision {revision}: {reason}"))
            }
        }
    }
}

fn walk_history(view: &View<'_>, position: &Position, loaded: &mut Loaded) -> Result<(), OpenError> {
    let before_first = position.origin.max(position.floors.watchable_from.previous());
    let mut density = Density::after(before_first);
    // What each key holds according to its newest record.
    let mut newest: HashMap<Key, Option<Place>> = HashMap::new();
    let from = before_first.next();
    walk(view, from, position.revision, |stored, size| {
        density.follow(&stored)?;
        let revision = stored.committed.revision;
        let damaged = |reason: &str| HistoryError::Damaged {
            revision,
            reason: reason.to_owned(),
        };
        let place = stored.place();
        if let Some(before) = newest.get(&stored.key)
            && before.map(|place| place.modified) != stored.previous
        {
            return Err(damaged("it does not follow the record before it of the same key"));
        }
        loaded.history_records += 1;
        loaded.last_ms = loaded.last_ms.max(stored.committed.at_ms);
        loaded
            .timeline
            .note(stored.committed.at_ms, revision, size as u64);
        loaded.recent.note(revision, stored.plain_bytes());
        let is_present = stored.kind != EventKind::Deleted;
        newest.insert(stored.key, is_present.then_some(place));
        Ok(true)
    })
    .and_then(|()| density.end(position.revision))
    .map_err(OpenError::from)?;
    for (key, expected) in &newest {
        if loaded.index.slot(key).map(Slot::place) != *expected {
            return Err(OpenError::damaged(format!("state and history disagree on {key}")));
        }
    }
    for (key, slot) in loaded.index.iter() {
        if slot.place().modified >= from && !newest.contains_key(key) {
            return Err(OpenError::damaged(format!(
                "history has no record of the newest value of {key}"
            )));
        }
    }
    Ok(())
}

/// Relaxed mode after a loss of power: clients may have seen revisions up to the ceiling, so the store continues there and
/// every client must list again.
pub(crate) fn resume_at_ceiling(
    engine: &Engine,
    position: &Position,
    ceiling: Revision,
) -> Result<Position, OpenError> {
    let resumed = Position {
        revision: ceiling,
        floors: Floors {
            listable_from: ceiling,
            watchable_from: ceiling,
        },
        origin: ceiling,
        ceiling: None,
        ..*position
    };
    engine.write_or_wait(
        &[
            Step::PutMeta(Meta::Revision, ceiling.0),
            Step::PutMeta(Meta::ListableFrom, ceiling.0),
            Step::PutMeta(Meta::WatchableFrom, ceiling.0),
            Step::PutMeta(Meta::Origin, ceiling.0),
            Step::PutMeta(Meta::Ceiling, 0),
            Step::DropHistory(ceiling),
        ],
        true,
    )?;
    Ok(resumed)
}
