//! Checks the recorded signals of one watch against all events of the store.
//!
//! The rules: *ordered and unique*; *reliable* (between the first and the last revision seen no event is missing and none
//! is extra); *as written*; *resumable* (it begins with the first event it was opened for); *bookmarkable* (no event up to
//! a progress signal's revision follows it).

use super::history::{Violation, violation};
use crate::{Event, KeyRange, Revision, Signal};

/// A watch and the signals it delivered.
#[derive(Debug, Clone)]
pub struct RecordedWatch {
    /// The range.
    pub range: KeyRange,
    /// The first revision of interest.
    pub first: Revision,
    /// Every signal, in order.
    pub signals: Vec<Signal>,
}

/// Checks a watch against all events of the store, in order of revision.
///
/// # Errors
/// The first violated rule.
pub fn check_watch(watch: &RecordedWatch, truth: &[Event]) -> Result<(), Violation> {
    let is_due = |event: &&Event| event.revision >= watch.first && watch.range.contains(event.key.as_str());
    let mut due = truth.iter().filter(is_due).peekable();
    let mut last = watch.first.previous();
    let mut has_ended = false;
    for signal in &watch.signals {
        if has_ended {
            return violation("nothing after the end", format!("{signal:?}"));
        }
        match signal {
            Signal::Change(event) => {
                let revision = event.revision;
                if revision <= last {
                    return violation("ordered and unique", format!("{revision} came after {last}"));
                }
                let Some(expected) = due.next() else {
                    return violation("nothing extra", format!("{revision}"));
                };
                if expected.revision < revision {
                    let detail = format!("{} is missing before {revision}", expected.revision);
                    return violation("reliable", detail);
                }
                if event != expected {
                    return violation("as written", format!("{revision} is not what was written"));
                }
                last = revision;
            }
            Signal::Progress(revision) => {
                if *revision < last {
                    return violation("progress does not go back", format!("{revision} after {last}"));
                }
                if let Some(expected) = due.peek()
                    && expected.revision <= *revision
                {
                    let detail = format!("{} is missing before progress {revision}", expected.revision);
                    return violation("bookmarkable", detail);
                }
                last = *revision;
            }
            Signal::Compacted(_) => has_ended = true,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventKind;
    use crate::conformance::{entry, key};

    fn truth() -> Vec<Event> {
        let places = [("a", "one"), ("b", "two"), ("a", "three"), ("a", "four")];
        let created = |((namespace, name), at)| Event {
            revision: Revision(at),
            key: key(namespace, name),
            kind: EventKind::Created,
            new: Some(entry("x", Revision(at), Revision(at))),
            old: None,
        };
        places.into_iter().zip(2..).map(created).collect()
    }

    fn change(revision: u64) -> Signal {
        let event = truth().into_iter().find(|event| event.revision.0 == revision);
        Signal::Change(event.unwrap())
    }

    fn progress(revision: u64) -> Signal {
        Signal::Progress(Revision(revision))
    }

    /// `expected` is the violated rule, empty for none.
    fn check(signals: &[Signal], expected: &str) {
        let watch = RecordedWatch {
            range: KeyRange::namespace("example.com", "things", "a"),
            first: Revision(2),
            signals: signals.to_vec(),
        };
        let found = check_watch(&watch, &truth()).map_or_else(|violation| violation.rule, |()| "");
        assert_eq!(found, expected, "{signals:?}");
    }

    #[test]
    fn each_violation_is_reported_by_its_rule() {
        check(
            &[
                change(2),
                progress(3),
                change(4),
                progress(4),
                change(5),
                progress(7),
            ],
            "",
        );
        check(&[change(2), change(4)], "");
        check(&[change(4)], "reliable");
        check(&[change(2), change(5)], "reliable");
        check(&[change(2), change(2)], "ordered and unique");
        check(&[change(2), change(4), change(2)], "ordered and unique");
        check(&[change(2), change(3)], "as written");
        let Signal::Change(mut changed) = change(4) else {
            panic!("a change");
        };
        changed.new = None;
        check(&[change(2), Signal::Change(changed)], "as written");
        check(&[change(2), progress(4), change(4)], "bookmarkable");
        check(&[progress(4)], "bookmarkable");
        check(
            &[change(2), progress(3), progress(2)],
            "progress does not go back",
        );
        check(
            &[change(2), Signal::Compacted(Revision(4)), change(4)],
            "nothing after the end",
        );
        check(
            &[change(2), change(4), change(5), change(5)],
            "ordered and unique",
        );
        let Signal::Change(mut later) = change(5) else {
            panic!("a change");
        };
        later.revision = Revision(6);
        check(
            &[change(2), change(4), change(5), Signal::Change(later)],
            "nothing extra",
        );
    }
}
