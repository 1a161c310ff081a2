//! Checks a recorded watch of the cache against the log of all writes.
//!
//! [`check`] builds the events of the watch's selection from the log and hands the frames to the checker that storage
//! and the whole-system suites use too.

use std::collections::{BTreeMap, HashMap};

use drydock_storage::Revision;
use drydock_storage::conformance::watch_checker::{
    Checker, Event, Frame as CheckedFrame, Kind, SelectedEvents, Stored, Violation,
};

use super::super::WatchKind;
use super::fixture::{Frame, Thing};

/// A write of one key.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) revision: Revision,
    pub(super) key: String,
    pub(super) old: Option<Thing>,
    pub(super) new: Option<Thing>,
}

/// All writes, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    pub(super) changes: Vec<Change>,
}

impl Log {
    /// The state right after a revision: for each key its revision and value.
    pub(super) fn state_at(&self, revision: Revision) -> BTreeMap<String, (Revision, Thing)> {
        let mut state = BTreeMap::new();
        for change in self
            .changes
            .iter()
            .take_while(|change| change.revision <= revision)
        {
            match &change.new {
                Some(new) => state.insert(change.key.clone(), (change.revision, new.clone())),
                None => state.remove(&change.key),
            };
        }
        state
    }
}

/// A selection, implemented independently of the cache.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) app: Option<(bool, String)>,
    pub(super) phase: Option<(bool, String)>,
}

impl Wanted {
    pub(super) fn has(&self, key: &str, thing: &Thing) -> bool {
        let parts: Vec<&str> = key.split('/').collect();
        let holds = |condition: &Option<(bool, String)>, value: &str| {
            condition
                .as_ref()
                .is_none_or(|(is_equal, wanted)| (wanted == value) == *is_equal)
        };
        self.namespace
            .as_ref()
            .is_none_or(|namespace| namespace == parts[2])
            && self.name.as_ref().is_none_or(|name| name == parts[3])
            && holds(&self.app, &thing.app)
            && holds(&self.phase, &thing.phase)
    }
}

/// A watch as its client received it.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) wanted: Wanted,
    /// The revision that it started after; none with initial events.
    pub(super) behind: Option<Revision>,
    pub(super) bookmarks: bool,
    pub(super) frames: Vec<Frame>,
    /// Every event up to here must have been delivered, because the client waited for it.
    pub(super) complete_to: Option<Revision>,
    /// It ended with "too old" for this revision.
    pub(super) expired_since: Option<Revision>,
}

/// The events that the log holds for a selection.
fn selected(log: &Log, wanted: &Wanted) -> SelectedEvents<String, Thing> {
    let mut selected = SelectedEvents::default();
    let mut written: HashMap<&str, u64> = HashMap::new();
    for change in &log.changes {
        let matching = |thing: &Option<Thing>| thing.clone().filter(|thing| wanted.has(&change.key, thing));
        let revision = change.revision.0;
        let old_revision = written.insert(&change.key, revision).unwrap_or_default();
        let old = matching(&change.old).map(|value| Stored {
            value,
            revision: old_revision,
        });
        selected.push(change.key.clone(), revision, old, matching(&change.new));
    }
    selected
}

fn checked(frame: &Frame) -> CheckedFrame<String, Thing> {
    match frame {
        Frame::Event {
            kind,
            key,
            revision,
            thing,
        } => CheckedFrame::Event(Event {
            revision: revision.0,
            kind: match kind {
                WatchKind::Added => Kind::Added,
                WatchKind::Modified => Kind::Modified,
                WatchKind::Deleted => Kind::Deleted,
            },
            key: key.clone(),
            value: thing.clone(),
        }),
        Frame::Bookmark {
            revision,
            ends_initial_events,
        } => CheckedFrame::Bookmark {
            revision: revision.0,
            ends_initial_events: *ends_initial_events,
        },
    }
}

/// Compares a record with the log.
pub(super) fn check(record: &Record, log: &Log) -> Result<(), Violation> {
    let selected = selected(log, &record.wanted);
    let mut checker = match record.behind {
        Some(behind) => Checker::after(behind.0, record.bookmarks),
        None => Checker::initial(),
    };
    for frame in &record.frames {
        checker.take(checked(frame))?;
    }
    checker.settle(&selected, u64::MAX)?;
    // A watch that expires during initial events has delivered no revision as a whole.
    let expired_since = record.expired_since.filter(|_| checker.seen_to().is_some());
    match record.complete_to.max(expired_since) {
        Some(complete_to) => checker.finish(complete_to.0, &selected, u64::MAX),
        None => Ok(()),
    }
}

/// The checker has tests of its own; these show that the adapter hands it everything.
mod tests {
    use drydock_storage::conformance::watch_checker::Rule;

    use super::super::fixture::{bookmark, event, key};
    use super::*;

    fn change(revision: u64, name: &str, old: Option<&Thing>, new: Option<&Thing>) -> Change {
        Change {
            revision: Revision(revision),
            key: key("ns", name).to_string(),
            old: old.cloned(),
            new: new.cloned(),
        }
    }

    /// A log, and a faithful record of a watch of app=a with initial events at revision 3.
    fn faithful() -> (Log, Record) {
        let a = |serial| Thing::new("a", "x", serial);
        let b = |serial| Thing::new("b", "x", serial);
        let changes = vec![
            change(2, "one", None, Some(&a(1))),
            change(3, "two", None, Some(&b(2))),
            change(4, "one", Some(&a(1)), Some(&a(3))),
            change(5, "two", Some(&b(2)), Some(&a(4))),
            change(6, "three", None, Some(&b(5))),
            change(7, "one", Some(&a(3)), Some(&b(6))),
            change(8, "two", Some(&a(4)), None),
            change(9, "four", None, Some(&a(7))),
        ];
        let frames = vec![
            event(WatchKind::Added, &key("ns", "one"), 2, a(1)),
            bookmark(3, true),
            event(WatchKind::Modified, &key("ns", "one"), 4, a(3)),
            event(WatchKind::Added, &key("ns", "two"), 5, a(4)),
            bookmark(6, false),
            event(WatchKind::Deleted, &key("ns", "one"), 7, a(3)),
            event(WatchKind::Deleted, &key("ns", "two"), 8, a(4)),
            event(WatchKind::Added, &key("ns", "four"), 9, a(7)),
        ];
        let record = Record {
            wanted: Wanted {
                app: Some((true, "a".to_owned())),
                ..Wanted::default()
            },
            behind: None,
            bookmarks: true,
            frames,
            complete_to: Some(Revision(9)),
            expired_since: None,
        };
        (Log { changes }, record)
    }

    fn resume_after_3(record: &mut Record) {
        record.behind = Some(Revision(3));
        record.frames.drain(..2);
    }

    fn finds(fault: impl FnOnce(&mut Record)) -> Result<(), Rule> {
        let (log, mut record) = faithful();
        fault(&mut record);
        check(&record, &log).map_err(|violation| violation.rule)
    }

    #[test]
    fn faithful_records_pass() {
        assert_eq!(finds(|_| {}), Ok(()));
        assert_eq!(finds(resume_after_3), Ok(()));
    }

    #[test]
    fn each_part_of_a_record_is_checked() {
        let four = key("ns", "four");
        let lose = |index: usize| finds(|record| drop(record.frames.remove(index)));
        assert_eq!(lose(0), Err(Rule::Initial));
        assert_eq!(lose(2), Err(Rule::Reliable));
        assert_eq!(lose(7), Err(Rule::Complete));
        let replace = |index: usize, frame| finds(|record| record.frames[index] = frame);
        let other = Thing::new("a", "x", 9);
        let modified = event(WatchKind::Modified, &four, 9, Thing::new("a", "x", 7));
        assert_eq!(
            replace(7, event(WatchKind::Added, &four, 9, other)),
            Err(Rule::Filtered)
        );
        assert_eq!(replace(7, modified), Err(Rule::Filtered));
        assert_eq!(replace(4, bookmark(7, false)), Err(Rule::Bookmarkable));
        assert_eq!(replace(4, bookmark(6, true)), Err(Rule::Unrequested));
        assert_eq!(
            finds(|record| record.behind = Some(Revision(1))),
            Err(Rule::Unrequested)
        );
        let start = |behind| {
            finds(|record| {
                resume_after_3(record);
                record.behind = Some(Revision(behind));
            })
        };
        assert_eq!(start(1), Err(Rule::Reliable));
        assert_eq!(start(4), Err(Rule::Ordered));
        let without_bookmarks = finds(|record| {
            resume_after_3(record);
            record.bookmarks = false;
        });
        assert_eq!(without_bookmarks, Err(Rule::Unrequested));
        let everything = finds(|record| record.wanted = Wanted::default());
        assert_eq!(everything, Err(Rule::Initial));
    }

    #[test]
    fn an_expired_watch_has_delivered_everything_to_its_last_revision() {
        let expires = |since, frames| {
            finds(|record| {
                record.frames.truncate(frames);
                record.complete_to = None;
                record.expired_since = Some(Revision(since));
            })
        };
        assert_eq!(expires(7, 6), Ok(()));
        assert_eq!(expires(8, 6), Err(Rule::Complete));
        assert_eq!(expires(8, 1), Ok(()), "during initial events");
    }
}
