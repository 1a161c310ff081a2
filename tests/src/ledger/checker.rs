//! The checker of one watch, with the ledger as its source of expected events.

use drydock_storage::conformance::watch_checker::{self, Rule, Violation};

use super::event::{Event, Frame, Version};
use super::ledger::{ClassId, Ledger};

/// Compares the frames of one watch with the events that the ledger expects for its selection.
///
/// A watch that reconnects is another watch, which starts after what the first one has [`seen`](Self::seen_to).
#[derive(Debug)]
pub struct Checker {
    class: ClassId,
    inner: watch_checker::Checker<u32, Version>,
}

impl Checker {
    /// For a watch that starts after a revision.
    #[must_use]
    pub fn after(class: ClassId, revision: u64, bookmarks: bool) -> Self {
        let inner = watch_checker::Checker::after(revision, bookmarks);
        Self { class, inner }
    }

    /// For a watch that starts with initial events, which a bookmark ends.
    #[must_use]
    pub fn initial(class: ClassId) -> Self {
        let inner = watch_checker::Checker::initial();
        Self { class, inner }
    }

    /// The revision that another watch can resume from; `None` during initial events.
    #[must_use]
    pub fn seen_to(&self) -> Option<u64> {
        self.inner.seen_to()
    }

    /// Takes the next frame and checks it against the frames before.
    ///
    /// # Errors
    /// It breaks a rule.
    pub fn take(&mut self, frame: Frame) -> Result<(), Violation> {
        self.inner.take(frame)
    }

    /// Compares the frames up to the revision that the ledger knows.
    ///
    /// # Errors
    /// A frame breaks a rule.
    pub fn settle(&mut self, ledger: &Ledger) -> Result<(), Violation> {
        let selected = &ledger.class(self.class)?.events;
        self.inner.settle(selected, ledger.known_to()).map_err(lagging)
    }

    /// The oldest event that has happened and was not delivered; `None` while frames wait.
    ///
    /// # Errors
    /// The ledger no longer keeps the event.
    pub fn due(&self, ledger: &Ledger) -> Result<Option<Event>, Violation> {
        let selected = &ledger.class(self.class)?.events;
        self.inner
            .due(selected)
            .map(Option::<&_>::copied)
            .map_err(lagging)
    }

    /// Whether the watch has delivered every event up to a revision, up to which the ledger must know everything.
    ///
    /// # Errors
    /// As for [`due`](Self::due).
    pub fn has_all_to(&self, revision: u64, ledger: &Ledger) -> Result<bool, Violation> {
        let selected = &ledger.class(self.class)?.events;
        self.inner.has_all_to(revision, selected).map_err(lagging)
    }

    /// Checks a watch that must have delivered every event up to a revision.
    ///
    /// # Errors
    /// It breaks a rule, or events are missing.
    pub fn finish(&mut self, complete_to: u64, ledger: &Ledger) -> Result<(), Violation> {
        let selected = &ledger.class(self.class)?.events;
        let known_to = ledger.known_to();
        self.inner
            .finish(complete_to, selected, known_to)
            .map_err(lagging)
    }
}

/// The ledger keeps events for as long as a watch may lag.
fn lagging(fault: Violation) -> Violation {
    match fault.rule {
        Rule::Forgotten => Violation::new(
            fault.rule,
            format!("{}: the watch lags too far behind", fault.detail),
        ),
        _ => fault,
    }
}

/// The checker has tests of its own; these show that the ledger feeds it.
#[cfg(test)]
mod tests {
    use drydock_storage::conformance::watch_checker::Kind;

    use super::super::event::{Group, Selection};
    use super::*;

    fn event(revision: u64, kind: Kind, key: u32, serial: u32, group: u16) -> Frame {
        Frame::Event(Event {
            revision,
            kind,
            key,
            value: Version { serial, group },
        })
    }

    fn bookmark(revision: u64, ends_initial_events: bool) -> Frame {
        Frame::Bookmark {
            revision,
            ends_initial_events,
        }
    }

    /// Writes of four objects, and the class that selects group 7.
    fn ledger() -> (Ledger, ClassId) {
        let selected = Selection {
            group: Some(Group::Is(7)),
            ..Selection::default()
        };
        let mut ledger = Ledger::new(4, 2, &[Selection::default(), selected], 1);
        for frame in [
            event(2, Kind::Added, 1, 0, 7),
            event(3, Kind::Added, 2, 0, 8),
            event(4, Kind::Modified, 1, 1, 7),
            event(5, Kind::Modified, 2, 1, 7),
            event(6, Kind::Modified, 1, 2, 8),
            event(7, Kind::Deleted, 2, 1, 7),
            event(8, Kind::Added, 0, 0, 8),
            event(9, Kind::Added, 3, 0, 7),
        ] {
            ledger.observe(frame).unwrap();
        }
        let (class, _) = ledger.classes().nth(1).unwrap();
        (ledger, class)
    }

    /// A watch of group 7 with initial events at revision 3.
    fn faithful() -> Vec<Frame> {
        vec![
            event(2, Kind::Added, 1, 0, 7),
            bookmark(3, true),
            event(4, Kind::Modified, 1, 1, 7),
            event(5, Kind::Added, 2, 1, 7),
            event(6, Kind::Deleted, 1, 1, 7),
            event(7, Kind::Deleted, 2, 1, 7),
            bookmark(7, false),
            event(9, Kind::Added, 3, 0, 7),
        ]
    }

    fn check(mut checker: Checker, frames: &[Frame]) -> Result<(), Rule> {
        let (ledger, _) = ledger();
        let mut all = || {
            for frame in frames {
                checker.take(*frame)?;
            }
            checker.finish(9, &ledger)
        };
        all().map_err(|violation| violation.rule)
    }

    #[test]
    fn planted_faults_are_found() {
        let (_, class) = ledger();
        let initial = |plant: &dyn Fn(&mut Vec<Frame>)| {
            let mut frames = faithful();
            plant(&mut frames);
            check(Checker::initial(class), &frames)
        };
        assert_eq!(initial(&|_| {}), Ok(()));
        let lose = |frames: &mut Vec<Frame>, index| {
            frames.remove(index);
        };
        assert_eq!(initial(&|it| lose(it, 0)), Err(Rule::Initial));
        assert_eq!(initial(&|it| lose(it, 2)), Err(Rule::Reliable));
        assert_eq!(initial(&|it| lose(it, 7)), Err(Rule::Complete));
        assert_eq!(
            initial(&|it| it[3] = event(5, Kind::Modified, 2, 1, 7)),
            Err(Rule::Filtered)
        );
        assert_eq!(
            initial(&|it| it.insert(7, event(8, Kind::Added, 0, 0, 8))),
            Err(Rule::Reliable)
        );
        assert_eq!(
            initial(&|it| it.push(Frame::Error { code: 410 })),
            Err(Rule::Open)
        );
        let after = |revision, bookmarks| check(Checker::after(class, revision, bookmarks), &faithful()[2..]);
        assert_eq!(after(3, true), Ok(()));
        assert_eq!(after(1, true), Err(Rule::Reliable));
        assert_eq!(after(3, false), Err(Rule::Unrequested));
    }

    #[test]
    fn frames_wait_until_the_ledger_knows_their_revision() {
        let (mut ledger, class) = ledger();
        let mut checker = Checker::after(class, 9, true);
        checker.take(event(10, Kind::Added, 1, 3, 7)).unwrap();
        checker.settle(&ledger).unwrap();
        assert!(!checker.has_all_to(9, &ledger).unwrap());
        ledger.observe(event(10, Kind::Modified, 1, 3, 7)).unwrap();
        checker.settle(&ledger).unwrap();
        assert!(checker.has_all_to(10, &ledger).unwrap());
    }

    #[test]
    fn a_watch_that_lags_behind_the_ledger_is_reported() {
        let (mut ledger, class) = ledger();
        ledger.forget_before(9);
        let late = Checker::after(class, 3, true).due(&ledger).unwrap_err();
        assert_eq!(late.rule, Rule::Forgotten);
        assert!(late.detail.ends_with("lags too far behind"), "{}", late.detail);
        let in_time = Checker::after(class, 8, true).due(&ledger).unwrap();
        assert_eq!(in_time.map(|event| event.revision), Some(9));
    }
}
