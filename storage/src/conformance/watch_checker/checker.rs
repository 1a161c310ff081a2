//! The checker of one watch.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

use super::event::{Event, Frame, Kind, Rule, Violation};
use super::selected::{Digest, SelectedEvents};

/// How many frames may wait until their revision is known.
const MOST_WAITING: usize = 1 << 17;

/// The position of a watch among the events of its selection.
#[derive(Debug)]
enum Position<K> {
    /// It starts after a revision.
    After(u64),
    /// It is receiving initial events.
    Initial { shown: HashSet<K>, state: Digest },
    /// The next event is the one at this position.
    Next(u64),
}

/// Compares the frames of one watch with the events of its selection.
///
/// [`take`](Self::take) checks what a frame alone can break, [`settle`](Self::settle) compares with what is known to
/// have happened by then, and [`finish`](Self::finish) checks that nothing is missing. A watch that reconnects is
/// another watch, which starts after what the first one has [`seen`](Self::seen_to).
#[derive(Debug)]
pub struct Checker<K, V> {
    bookmarks: bool,
    position: Position<K>,
    /// Events at or before this revision must not be delivered.
    start: u64,
    /// The revision of the last event, or the start.
    last: u64,
    /// The revision of the last bookmark.
    promised: u64,
    /// Frames that cannot be compared yet.
    waiting: VecDeque<Frame<K, V>>,
}

impl<K: Clone + Debug + Eq + Hash, V: Debug + Eq + Hash> Checker<K, V> {
    /// For a watch that starts after a revision.
    #[must_use]
    pub fn after(revision: u64, bookmarks: bool) -> Self {
        Self {
            bookmarks,
            position: Position::After(revision),
            start: revision,
            last: revision,
            promised: 0,
            waiting: VecDeque::new(),
        }
    }

    /// For a watch that starts with initial events, which a bookmark ends.
    #[must_use]
    pub fn initial() -> Self {
        Self {
            position: Position::Initial {
                shown: HashSet::new(),
                state: Digest::default(),
            },
            ..Self::after(0, true)
        }
    }

    /// The revision that another watch can resume from; `None` during initial events.
    #[must_use]
    pub fn seen_to(&self) -> Option<u64> {
        let is_live = !matches!(self.position, Position::Initial { .. }) || self.promised > 0;
        is_live.then_some(self.last.max(self.promised))
    }

    /// Takes the next frame and checks it against the frames before.
    ///
    /// # Errors
    /// It breaks a rule.
    pub fn take(&mut self, frame: Frame<K, V>) -> Result<(), Violation> {
        match &frame {
            Frame::Event(event) => self.take_event(event)?,
            Frame::Bookmark {
                revision,
                ends_initial_events,
            } => self.take_bookmark(*revision, *ends_initial_events)?,
            Frame::Error { code } => {
                let detail = format!("ERROR event with code {code} after {}", self.last);
                return Err(Violation::new(Rule::Open, detail));
            }
        }
        if self.waiting.len() >= MOST_WAITING {
            let detail = format!("{MOST_WAITING} frames cannot be compared yet");
            return Err(Violation::new(Rule::Forgotten, detail));
        }
        self.waiting.push_back(frame);
        Ok(())
    }

    fn take_event(&mut self, event: &Event<K, V>) -> Result<(), Violation> {
        if self.seen_to().is_none() {
            // Initial events come in the order of names.
            return Ok(());
        }
        let violation = |rule, after| Err(Violation::new(rule, format!("{event:?} after {after}")));
        if event.revision <= self.promised {
            return violation(Rule::Bookmarkable, format!("a bookmark at {}", self.promised));
        }
        if event.revision <= self.start || event.revision < self.last {
            return violation(Rule::Ordered, self.last.to_string());
        }
        if event.revision == self.last {
            return violation(Rule::Unique, "the same event".to_owned());
        }
        self.last = event.revision;
        Ok(())
    }

    fn take_bookmark(&mut self, revision: u64, ends_initial_events: bool) -> Result<(), Violation> {
        let is_end_due = self.seen_to().is_none();
        if !self.bookmarks || ends_initial_events != is_end_due {
            return Err(Violation::new(
                Rule::Unrequested,
                format!("bookmark at {revision}"),
            ));
        }
        if revision < self.promised || revision < self.last || revision <= self.start {
            let detail = format!("bookmark at {revision} after {}", self.last.max(self.promised));
            return Err(Violation::new(Rule::Bookmarkable, detail));
        }
        self.promised = revision;
        if ends_initial_events {
            self.start = revision;
        }
        Ok(())
    }

    /// Compares the frames up to `known_to`, the revision up to which `selected` is complete.
    ///
    /// # Errors
    /// A frame breaks a rule.
    pub fn settle(&mut self, selected: &SelectedEvents<K, V>, known_to: u64) -> Result<(), Violation> {
        while let Some(frame) = self.waiting.front() {
            let is_known = match frame {
                // The bookmark that follows says what revision they are compared at.
                Frame::Event(_) if matches!(self.position, Position::Initial { .. }) => true,
                Frame::Event(Event { revision, .. }) | Frame::Bookmark { revision, .. } => {
                    *revision <= known_to
                }
                Frame::Error { .. } => true,
            };
            if !is_known {
                break;
            }
            if let Some(frame) = self.waiting.pop_front() {
                self.compare(&frame, selected)?;
            }
        }
        Ok(())
    }

    fn compare(&mut self, frame: &Frame<K, V>, selected: &SelectedEvents<K, V>) -> Result<(), Violation> {
        if let Position::Initial { shown, state } = &mut self.position {
            let violation = |detail| Err(Violation::new(Rule::Initial, detail));
            return match frame {
                Frame::Event(event) if event.kind == Kind::Added => {
                    state.add(&event.key, &event.value, event.revision);
                    if shown.insert(event.key.clone()) {
                        Ok(())
                    } else {
                        violation(format!("{event:?} is repeated"))
                    }
                }
                Frame::Bookmark { revision, .. } => {
                    let expected = selected.state_at(*revision)?;
                    if *state != expected {
                        let (found, expected) = (state.objects, expected.objects);
                        return violation(format!(
                            "{found} objects are not the {expected} objects at {revision}"
                        ));
                    }
                    self.position = Position::After(*revision);
                    Ok(())
                }
                other => violation(format!("{other:?} among initial events")),
            };
        }
        let position = self.next(selected)?;
        let next = selected.at(position)?;
        let violation = |rule, detail| Err(Violation::new(rule, detail));
        match (frame, next) {
            (Frame::Event(event), Some(next)) => {
                if event != next {
                    let is_place = (event.revision, &event.key) == (next.revision, &next.key);
                    let rule = if is_place { Rule::Filtered } else { Rule::Reliable };
                    return violation(rule, format!("{event:?}, expected {next:?}"));
                }
                self.position = Position::Next(position + 1);
            }
            (Frame::Event(event), None) => {
                return violation(Rule::Reliable, format!("{event:?} did not happen"));
            }
            (Frame::Bookmark { revision, .. }, Some(next)) if next.revision <= *revision => {
                return violation(
                    Rule::Bookmarkable,
                    format!("bookmark at {revision} before {next:?}"),
                );
            }
            (Frame::Bookmark { .. } | Frame::Error { .. }, _) => self.position = Position::Next(position),
        }
        Ok(())
    }

    /// The position of the next event.
    fn next(&self, selected: &SelectedEvents<K, V>) -> Result<u64, Violation> {
        match self.position {
            Position::Next(position) => Ok(position),
            Position::After(revision) => Ok(selected.position_after(revision)?),
            Position::Initial { .. } => {
                Err(Violation::new(Rule::Initial, "the initial events have not ended"))
            }
        }
    }

    /// The oldest event that has happened and was not delivered; `None` while frames wait.
    ///
    /// # Errors
    /// The event is no longer kept.
    pub fn due<'a>(&self, selected: &'a SelectedEvents<K, V>) -> Result<Option<&'a Event<K, V>>, Violation> {
        // No event is due before the initial events end.
        if !self.waiting.is_empty() || matches!(self.position, Position::Initial { .. }) {
            return Ok(None);
        }
        Ok(selected.at(self.next(selected)?)?)
    }

    /// Whether the watch has delivered every event up to a revision, up to which `selected` must be complete.
    ///
    /// # Errors
    /// As for [`due`](Self::due).
    pub fn has_all_to(&self, revision: u64, selected: &SelectedEvents<K, V>) -> Result<bool, Violation> {
        let is_live = !matches!(self.position, Position::Initial { .. });
        let due = self.due(selected)?;
        Ok(is_live && self.waiting.is_empty() && due.is_none_or(|event| event.revision > revision))
    }

    /// Checks a watch that must have delivered every event up to a revision.
    ///
    /// # Errors
    /// It breaks a rule, or events are missing.
    pub fn finish(
        &mut self,
        complete_to: u64,
        selected: &SelectedEvents<K, V>,
        known_to: u64,
    ) -> Result<(), Violation> {
        self.settle(selected, known_to)?;
        if self.has_all_to(complete_to, selected)? {
            return Ok(());
        }
        let detail = format!(
            "the watch ended at {}, next is {:?}",
            self.last,
            self.due(selected)?
        );
        Err(Violation::new(Rule::Complete, detail))
    }
}
