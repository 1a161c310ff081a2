//! Checks a recorded watch against the guarantees of watches.
//!
//! [`check`] compares the record with the log of all changes and names the guarantee that is violated. The tests here
//! violate each of them on purpose.

use std::collections::{BTreeMap, HashSet};

use drydock_storage::Revision;

use super::super::WatchKind;
use super::fixture::{Frame, Thing};

/// A change of a key at a revision.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) revision: Revision,
    pub(super) key: String,
    pub(super) old: Option<Thing>,
    pub(super) new: Option<Thing>,
}

/// All changes, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    pub(super) changes: Vec<Change>,
}

impl Log {
    /// The state right after a revision: the revision and value of each key.
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

/// What a watch selects, evaluated independently of the cache.
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

/// A watch as received by its client.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) wanted: Wanted,
    /// The revision it started after; none with initial events.
    pub(super) behind: Option<Revision>,
    pub(super) bookmarks: bool,
    pub(super) frames: Vec<Frame>,
    /// Everything up to here had to be delivered, because the client waited for it.
    pub(super) complete_to: Option<Revision>,
    /// It expired ("too old") at this revision.
    pub(super) expired_since: Option<Revision>,
}

/// The guarantee that is violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    Ordered,
    Unique,
    Reliable,
    Filtered,
    Bookmarkable,
    Initial,
    Complete,
    Unasked,
}

type Delivered = (Revision, WatchKind, String, Thing);

/// The events of the log as seen through the selection.
fn expected(log: &Log, wanted: &Wanted) -> Vec<Delivered> {
    let mut all = Vec::new();
    for change in &log.changes {
        let is = |thing: &Option<Thing>| thing.clone().filter(|thing| wanted.has(&change.key, thing));
        let (kind, shown) = match (is(&change.old), is(&change.new)) {
            (None, None) => continue,
            (None, Some(new)) => (WatchKind::Added, new),
            (Some(_), Some(new)) => (WatchKind::Modified, new),
            (Some(old), None) => (WatchKind::Deleted, old),
        };
        all.push((change.revision, kind, change.key.clone(), shown));
    }
    all
}

/// Compares a record with the log.
pub(super) fn check(record: &Record, log: &Log) -> Result<(), Broken> {
    let (start, live) = match record.behind {
        Some(behind) => (behind, record.frames.as_slice()),
        None => check_initial(record, log)?,
    };
    let expected = expected(log, &record.wanted);
    let expected: Vec<&Delivered> = expected
        .iter()
        .filter(|(revision, ..)| *revision > start)
        .collect();
    let mut seen = HashSet::new();
    let (mut count, mut last, mut promised) = (0, start, Revision(0));
    for frame in live {
        match frame {
            Frame::Event {
                kind,
                key,
                revision,
                thing,
            } => {
                if *revision <= promised {
                    return Err(Broken::Bookmarkable);
                }
                if !seen.insert((*revision, key.clone())) {
                    return Err(Broken::Unique);
                }
                if *revision < last || *revision <= start {
                    return Err(Broken::Ordered);
                }
                last = *revision;
                let Some((at, what, whom, shown)) = expected.get(count) else {
                    return Err(Broken::Reliable);
                };
                if (at, whom) != (revision, key) {
                    return Err(Broken::Reliable);
                }
                if (what, shown) != (kind, thing) {
                    return Err(Broken::Filtered);
                }
                count += 1;
            }
            Frame::Bookmark {
                revision,
                ends_initial_events,
            } => {
                if !record.bookmarks || *ends_initial_events {
                    return Err(Broken::Unasked);
                }
                let next = expected.get(count).map(|(revision, ..)| *revision);
                let is_false = next.is_some_and(|next| next <= *revision);
                if is_false || *revision < promised || *revision < last || *revision <= start {
                    return Err(Broken::Bookmarkable);
                }
                promised = *revision;
            }
        }
    }
    let complete_to = record.complete_to.max(record.expired_since);
    match expected.get(count) {
        Some((revision, ..)) if complete_to.is_some_and(|to| *revision <= to) => Err(Broken::Complete),
        _ => Ok(()),
    }
}

/// The revision of the state that initial events showed, and the frames after them.
fn check_initial<'a>(record: &'a Record, log: &Log) -> Result<(Revision, &'a [Frame]), Broken> {
    let end = record.frames.iter().position(|frame| {
        matches!(
            frame,
            Frame::Bookmark {
                ends_initial_events: true,
                ..
            }
        )
    });
    let Some(end) = end else {
        // Without a bookmark it is unknown where initial events end.
        return if record.complete_to.is_some() {
            Err(Broken::Initial)
        } else {
            Ok((Revision(u64::MAX), &[]))
        };
    };
    let (initial, rest) = record.frames.split_at(end);
    let Some((Frame::Bookmark { revision, .. }, live)) = rest.split_first() else {
        return Err(Broken::Initial);
    };
    let mut shown = BTreeMap::new();
    for frame in initial {
        let Frame::Event {
            kind: WatchKind::Added,
            key,
            revision,
            thing,
        } = frame
        else {
            return Err(Broken::Initial);
        };
        if shown.insert(key.clone(), (*revision, thing.clone())).is_some() {
            return Err(Broken::Initial);
        }
    }
    let mut state = log.state_at(*revision);
    state.retain(|key, (_, thing)| record.wanted.has(key, thing));
    if state == shown {
        Ok((*revision, live))
    } else {
        Err(Broken::Initial)
    }
}

mod tests {
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

    /// A log, and a correct record of a watch of app=a that started after revision 3.
    fn correct() -> (Log, Record) {
        let a = |serial| Thing::new("a", "x", serial);
        let b = |serial| Thing::new("b", "x", serial);
        let changes = vec![
            change(2, "one", None, Some(&a(1))),
            change(3, "two", None, Some(&b(2))),
            change(4, "one", Some(&a(1)), Some(&a(3))),
            change(4, "two", Some(&b(2)), Some(&a(4))),
            change(5, "three", None, Some(&b(5))),
            change(6, "one", Some(&a(3)), Some(&b(6))),
            change(7, "two", Some(&a(4)), None),
            change(8, "four", None, Some(&a(7))),
        ];
        let frames = vec![
            event(WatchKind::Modified, &key("ns", "one"), 4, a(3)),
            event(WatchKind::Added, &key("ns", "two"), 4, a(4)),
            bookmark(5, false),
            event(WatchKind::Deleted, &key("ns", "one"), 6, a(3)),
            event(WatchKind::Deleted, &key("ns", "two"), 7, a(4)),
            bookmark(7, false),
            event(WatchKind::Added, &key("ns", "four"), 8, a(7)),
        ];
        let record = Record {
            wanted: Wanted {
                app: Some((true, "a".to_owned())),
                ..Wanted::default()
            },
            behind: Some(Revision(3)),
            bookmarks: true,
            frames,
            complete_to: Some(Revision(8)),
            expired_since: None,
        };
        (Log { changes }, record)
    }

    /// The same with initial events at revision 3.
    fn correct_initial() -> (Log, Record) {
        let (log, mut record) = correct();
        record.behind = None;
        let one = event(WatchKind::Added, &key("ns", "one"), 2, Thing::new("a", "x", 1));
        record.frames.splice(..0, [one, bookmark(3, true)]);
        (log, record)
    }

    fn breaks(base: fn() -> (Log, Record), fault: impl FnOnce(&mut Record), expected: &[Broken]) {
        let (log, mut record) = base();
        assert_eq!(check(&record, &log), Ok(()), "the correct record");
        fault(&mut record);
        let found = check(&record, &log).expect_err("a planted violation");
        assert!(expected.contains(&found), "{found:?} instead of {expected:?}");
    }

    #[test]
    fn each_planted_violation_is_found() {
        use Broken::*;
        breaks(correct, |record| record.frames.swap(0, 3), &[Reliable, Ordered]);
        breaks(correct, |record| record.frames.swap(3, 4), &[Reliable]);
        breaks(
            correct,
            |record| record.frames.insert(1, record.frames[0].clone()),
            &[Unique],
        );
        breaks(correct, |record| drop(record.frames.remove(0)), &[Reliable]);
        breaks(correct, |record| drop(record.frames.remove(6)), &[Complete]);
        breaks(
            correct,
            |record| drop(record.frames.remove(1)),
            &[Reliable, Bookmarkable],
        );
        breaks(correct, |record| record.frames.truncate(0), &[Complete]);
        breaks(
            correct,
            |record| record.frames[2] = bookmark(6, false),
            &[Bookmarkable],
        );
        breaks(
            correct,
            |record| record.frames[5] = bookmark(4, false),
            &[Bookmarkable],
        );
        breaks(
            correct,
            |record| record.frames[5] = bookmark(8, false),
            &[Bookmarkable],
        );
        breaks(
            correct,
            |record| record.frames.insert(0, bookmark(3, false)),
            &[Bookmarkable],
        );
        breaks(
            correct,
            |record| record.frames.insert(3, bookmark(5, true)),
            &[Unasked],
        );
        breaks(correct, |record| record.bookmarks = false, &[Unasked]);
        breaks(correct, |record| record.behind = Some(Revision(1)), &[Reliable]);
        breaks(correct, |record| record.behind = Some(Revision(4)), &[Ordered]);
        breaks(
            correct,
            |record| {
                record.frames[0] = event(WatchKind::Added, &key("ns", "one"), 4, Thing::new("a", "x", 3));
            },
            &[Filtered],
        );
        breaks(
            correct,
            |record| {
                record.frames[3] = event(WatchKind::Deleted, &key("ns", "one"), 6, Thing::new("b", "x", 6));
            },
            &[Filtered],
        );
        breaks(
            correct,
            |record| {
                record.frames[4] = event(WatchKind::Deleted, &key("ns", "two"), 4, Thing::new("a", "x", 4));
            },
            &[Unique, Ordered, Bookmarkable],
        );
        breaks(
            correct,
            |record| {
                record.frames.truncate(4);
                record.complete_to = None;
                record.expired_since = Some(Revision(7));
            },
            &[Complete],
        );
    }

    #[test]
    fn each_planted_violation_in_initial_events_is_found() {
        use Broken::*;
        breaks(
            correct_initial,
            |record| drop(record.frames.remove(0)),
            &[Initial],
        );
        breaks(
            correct_initial,
            |record| drop(record.frames.remove(1)),
            &[Initial],
        );
        breaks(
            correct_initial,
            |record| record.frames[1] = bookmark(4, true),
            &[Initial],
        );
        breaks(
            correct_initial,
            |record| record.frames.insert(0, record.frames[0].clone()),
            &[Initial],
        );
        breaks(
            correct_initial,
            |record| record.frames.insert(2, record.frames[1].clone()),
            &[Unasked],
        );
        breaks(
            correct_initial,
            |record| drop(record.frames.remove(2)),
            &[Reliable],
        );
    }
}
