//! Checks the recorded signals of one watch of a store with the [watch checker](super::watch_checker).

use super::watch_checker::{Checker, Event as Expected, Frame, Kind, Rule, SelectedEvents, Violation};
use crate::{Event, EventKind, Key, KeyRange, Revision, Signal};

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
    let mut selected = SelectedEvents::default();
    for event in truth {
        if watch.range.contains(event.key.as_str()) {
            selected.push_event(expected(event));
        }
    }
    let start = watch.first.previous().0;
    let mut checker = Checker::after(start, true);
    let mut has_ended = false;
    for signal in &watch.signals {
        if has_ended {
            return Err(Violation::new(Rule::Open, format!("{signal:?} after the end")));
        }
        match signal {
            Signal::Change(event) => checker.take(Frame::Event(expected(event)))?,
            // Unlike a bookmark, progress may repeat the revision that the watch starts after.
            Signal::Progress(revision) if revision.0 == start && checker.seen_to() == Some(start) => {}
            Signal::Progress(revision) => checker.take(Frame::Bookmark {
                revision: revision.0,
                ends_initial_events: false,
            })?,
            Signal::Compacted(_) => has_ended = true,
        }
        checker.settle(&selected, u64::MAX)?;
    }
    Ok(())
}

/// An event for the checker, with the whole event as its value.
fn expected(event: &Event) -> Expected<Key, Event> {
    Expected {
        revision: event.revision.0,
        kind: match event.kind {
            EventKind::Created => Kind::Added,
            EventKind::Updated => Kind::Modified,
            EventKind::Deleted => Kind::Deleted,
        },
        key: event.key.clone(),
        value: event.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    fn check(signals: &[Signal], expected: Result<(), Rule>) {
        let watch = RecordedWatch {
            range: KeyRange::namespace("example.com", "things", "a"),
            first: Revision(2),
            signals: signals.to_vec(),
        };
        let found = check_watch(&watch, &truth()).map_err(|violation| violation.rule);
        assert_eq!(found, expected, "{signals:?}");
    }

    /// The checker has tests of its own; these show that it gets every signal.
    #[test]
    fn violations_are_found() {
        let all = [
            progress(1),
            change(2),
            progress(3),
            change(4),
            progress(4),
            change(5),
            progress(7),
        ];
        check(&all, Ok(()));
        check(&[change(2), change(4)], Ok(()));
        check(&[change(4)], Err(Rule::Reliable));
        check(&[change(2), change(5)], Err(Rule::Reliable));
        check(&[change(2), change(3)], Err(Rule::Reliable));
        check(&[change(2), change(2)], Err(Rule::Unique));
        check(&[change(2), change(4), change(2)], Err(Rule::Ordered));
        let altered = |revision, alter: fn(&mut Event)| {
            let Signal::Change(mut event) = change(revision) else {
                panic!("a change");
            };
            alter(&mut event);
            Signal::Change(event)
        };
        let without_value = altered(4, |event| event.new = None);
        check(&[change(2), without_value], Err(Rule::Filtered));
        let extra = altered(5, |event| event.revision = Revision(6));
        check(&[change(2), change(4), change(5), extra], Err(Rule::Reliable));
        check(&[change(2), progress(4), change(4)], Err(Rule::Bookmarkable));
        check(&[progress(4)], Err(Rule::Bookmarkable));
        check(&[change(2), progress(3), progress(2)], Err(Rule::Bookmarkable));
        check(&[change(2), progress(1)], Err(Rule::Bookmarkable));
        let end = Signal::Compacted(Revision(4));
        check(&[change(2), end, change(4)], Err(Rule::Open));
    }
}
