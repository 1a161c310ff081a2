//! Did a watch deliver what it owes?
//!
//! Checks the recorded signals of one watch against all changes of the store: *ordered*, *unique*, *reliable*
//! (between the first and the last revision seen nothing is missing and nothing extra), *atomic* (one revision, one
//! signal, as written), *resumable* (it begins with the first change it was asked for), and *bookmarkable* (after a
//! mark of progress nothing up to it follows).

use super::history::{Fault, fault};
use crate::{Event, KeyRange, Revision, Signal};

/// What a watch was asked for and what it delivered.
#[derive(Debug, Clone)]
pub struct RecordedWatch {
    /// The range.
    pub range: KeyRange,
    /// The first revision of interest.
    pub first: Revision,
    /// Every signal, in order.
    pub signals: Vec<Signal>,
}

/// Checks a watch against all changes of the store, in order of revision.
///
/// # Errors
/// The first rule found broken.
pub fn check_watch(watch: &RecordedWatch, truth: &[(Revision, Vec<Event>)]) -> Result<(), Fault> {
    let owed = truth.iter().filter(|(revision, _)| *revision >= watch.first);
    let mut owed = owed
        .map(|(revision, events)| {
            let events = events
                .iter()
                .filter(|event| watch.range.contains(event.key.as_str()));
            (*revision, events.collect::<Vec<_>>())
        })
        .filter(|(_, events)| !events.is_empty())
        .peekable();
    let mut last = watch.first.previous();
    let mut is_changes = false;
    let mut has_ended = false;
    for signal in &watch.signals {
        if has_ended {
            return fault("nothing after the end", format!("{signal:?}"));
        }
        match signal {
            Signal::Changes { revision, events } => {
                if *revision == last && is_changes {
                    return fault("atomic", format!("{revision} came in two parts"));
                }
                if *revision <= last {
                    return fault("ordered and unique", format!("{revision} came after {last}"));
                }
                let Some((due, expected)) = owed.next() else {
                    return fault("nothing extra", format!("{revision}"));
                };
                if due < *revision {
                    return fault("reliable", format!("{due} is missing before {revision}"));
                }
                if due > *revision || events.iter().collect::<Vec<_>>() != expected {
                    return fault("as written", format!("{revision} is not what was written"));
                }
                last = *revision;
                is_changes = true;
            }
            Signal::Progress(revision) => {
                if *revision < last {
                    return fault("bookmarks do not go back", format!("{revision} after {last}"));
                }
                if let Some((due, _)) = owed.peek()
                    && *due <= *revision
                {
                    return fault(
                        "bookmarkable",
                        format!("{due} is missing before the mark {revision}"),
                    );
                }
                last = *revision;
                is_changes = false;
            }
            Signal::Compacted(_) => has_ended = true,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{entry, key};
    use crate::{EventKind, Key};

    fn created(key: Key, at: u64) -> Event {
        Event {
            key,
            kind: EventKind::Created,
            new: Some(entry("x", Revision(at), Revision(at))),
            old: None,
        }
    }

    fn truth() -> Vec<(Revision, Vec<Event>)> {
        vec![
            (Revision(2), vec![created(key("a", "one"), 2)]),
            (Revision(3), vec![created(key("b", "two"), 3)]),
            (
                Revision(4),
                vec![created(key("a", "three"), 4), created(key("a", "four"), 4)],
            ),
            (Revision(5), vec![created(key("a", "five"), 5)]),
        ]
    }

    fn changes(revision: u64) -> Signal {
        let (_, events) = truth().into_iter().find(|(at, _)| at.0 == revision).unwrap();
        Signal::Changes {
            revision: Revision(revision),
            events,
        }
    }

    fn mark(revision: u64) -> Signal {
        Signal::Progress(Revision(revision))
    }

    /// `expected` is the broken rule, empty for none.
    fn check(signals: &[Signal], expected: &str) {
        let watch = RecordedWatch {
            range: KeyRange::namespace("example.com", "things", "a"),
            first: Revision(2),
            signals: signals.to_vec(),
        };
        let found = check_watch(&watch, &truth()).map_or_else(|fault| fault.rule, |()| "");
        assert_eq!(found, expected, "{signals:?}");
    }

    #[test]
    fn each_planted_fault_is_told_by_its_rule() {
        let part = |index: usize| Signal::Changes {
            revision: Revision(4),
            events: vec![truth()[2].1[index].clone()],
        };
        check(
            &[changes(2), mark(3), changes(4), mark(4), changes(5), mark(7)],
            "",
        );
        check(&[changes(2), changes(4)], "");
        check(&[changes(4)], "reliable");
        check(&[changes(2), changes(5)], "reliable");
        check(&[changes(2), changes(2)], "atomic");
        check(&[changes(2), changes(4), changes(2)], "ordered and unique");
        check(&[changes(2), part(0), part(1)], "as written");
        check(&[changes(2), changes(3)], "as written");
        check(&[changes(2), mark(4), changes(4)], "bookmarkable");
        check(&[mark(4)], "bookmarkable");
        check(&[changes(2), mark(3), mark(2)], "bookmarks do not go back");
        check(
            &[changes(2), Signal::Compacted(Revision(4)), changes(4)],
            "nothing after the end",
        );
    }
}
