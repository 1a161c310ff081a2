//! Does one watch keep the promises of watches?

use std::collections::{HashSet, VecDeque};

use super::class::{Digest, Forgotten};
use super::event::{Event, Fault, Frame, Kind, Rule};
use super::ledger::{ClassId, Ledger};

/// How many frames may wait for the ledger to hear of them.
const MOST_WAITING: usize = 1 << 17;

/// Where a watch is in what it is owed.
#[derive(Debug)]
enum Place {
    /// It is to begin behind a revision.
    Behind(u64),
    /// It is shown the state first.
    Initial { shown: HashSet<u32>, state: Digest },
    /// The next event is the one at this place of the class.
    Next(u64),
}

/// Compares the frames of one watch with what the ledger says its selection is owed.
///
/// A watch that is reconnected is another watch, which begins behind what the first one has [`seen`](Self::seen_to).
#[derive(Debug)]
pub struct Checker {
    class: ClassId,
    bookmarks: bool,
    place: Place,
    /// Nothing at or before this revision may come.
    start: u64,
    /// The revision of the last event, or the one it began behind.
    last: u64,
    /// What the last bookmark promised.
    promised: u64,
    /// What the ledger could not judge yet.
    waiting: VecDeque<Frame>,
}

impl Checker {
    /// Of a watch that begins behind a revision.
    #[must_use]
    pub fn behind(class: ClassId, revision: u64, bookmarks: bool) -> Self {
        Self {
            class,
            bookmarks,
            place: Place::Behind(revision),
            start: revision,
            last: revision,
            promised: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Of a watch that is shown the state first, up to a bookmark that says so.
    #[must_use]
    pub fn initial(class: ClassId) -> Self {
        Self {
            place: Place::Initial {
                shown: HashSet::new(),
                state: Digest::default(),
            },
            ..Self::behind(class, 0, true)
        }
    }

    /// The revision behind which another watch can go on; `None` while the state is being shown.
    #[must_use]
    pub fn seen_to(&self) -> Option<u64> {
        let is_live = !matches!(self.place, Place::Initial { .. }) || self.promised > 0;
        is_live.then_some(self.last.max(self.promised))
    }

    /// Takes the next frame, and judges what can be judged by itself.
    ///
    /// # Errors
    /// It breaks a rule.
    pub fn take(&mut self, frame: Frame) -> Result<(), Fault> {
        match frame {
            Frame::Event(event) => self.take_event(event)?,
            Frame::Bookmark {
                revision,
                ends_initial_events,
            } => self.take_bookmark(revision, ends_initial_events)?,
            Frame::Error { code } => {
                return Err(Fault::new(
                    Rule::Open,
                    format!("an error event, {code}, after {}", self.last),
                ));
            }
        }
        if self.waiting.len() >= MOST_WAITING {
            let detail = format!("{MOST_WAITING} frames wait for the ledger");
            return Err(Fault::new(Rule::Forgotten, detail));
        }
        self.waiting.push_back(frame);
        Ok(())
    }

    fn take_event(&mut self, event: Event) -> Result<(), Fault> {
        if self.seen_to().is_none() {
            // The state comes in the order of names.
            return Ok(());
        }
        if event.revision <= self.promised {
            let detail = format!("{event:?} after a bookmark at {}", self.promised);
            return Err(Fault::new(Rule::Bookmarkable, detail));
        }
        if event.revision <= self.start || event.revision < self.last {
            let detail = format!("{event:?} after {}", self.last);
            return Err(Fault::new(Rule::Ordered, detail));
        }
        if event.revision == self.last {
            return Err(Fault::new(Rule::Unique, format!("{event:?} again")));
        }
        self.last = event.revision;
        Ok(())
    }

    fn take_bookmark(&mut self, revision: u64, ends_initial_events: bool) -> Result<(), Fault> {
        let is_due = self.seen_to().is_none();
        if !self.bookmarks || ends_initial_events != is_due {
            return Err(Fault::new(Rule::Unasked, format!("a bookmark at {revision}")));
        }
        if revision < self.promised || revision < self.last {
            let detail = format!("a bookmark at {revision} after {}", self.last.max(self.promised));
            return Err(Fault::new(Rule::Bookmarkable, detail));
        }
        self.promised = revision;
        if ends_initial_events {
            self.start = revision;
        }
        Ok(())
    }

    /// Judges what the ledger knows by now.
    ///
    /// # Errors
    /// A frame breaks a rule.
    pub fn settle(&mut self, ledger: &Ledger) -> Result<(), Fault> {
        while let Some(frame) = self.waiting.front().copied() {
            let is_known = match frame {
                // Shown as it was, which the bookmark after it dates.
                Frame::Event(_) if matches!(self.place, Place::Initial { .. }) => true,
                Frame::Event(Event { revision, .. }) | Frame::Bookmark { revision, .. } => {
                    revision <= ledger.known_to()
                }
                Frame::Error { .. } => true,
            };
            if !is_known {
                break;
            }
            self.waiting.pop_front();
            self.judge(frame, ledger)?;
        }
        Ok(())
    }

    fn judge(&mut self, frame: Frame, ledger: &Ledger) -> Result<(), Fault> {
        if let Place::Initial { shown, state } = &mut self.place {
            return match frame {
                Frame::Event(event) if event.kind == Kind::Added => {
                    state.add(event.object, event.version, event.revision);
                    if shown.insert(event.object) {
                        Ok(())
                    } else {
                        Err(Fault::new(Rule::Initial, format!("{event:?} again")))
                    }
                }
                Frame::Bookmark { revision, .. } => {
                    let state = *state;
                    self.place = Place::Behind(revision);
                    ledger
                        .check_list(self.class, revision, state)
                        .map_err(|fault| match fault.rule {
                            Rule::Snapshot => Fault::new(Rule::Initial, fault.detail),
                            _ => fault,
                        })
                }
                other => Err(Fault::new(Rule::Initial, format!("{other:?} within the state"))),
            };
        }
        let (place, next) = self.next(ledger)?;
        match (frame, next) {
            (Frame::Event(event), Some(owed)) => {
                if (event.revision, event.object) != (owed.revision, owed.object) {
                    let detail = format!("{event:?} instead of {owed:?}");
                    return Err(Fault::new(Rule::Reliable, detail));
                }
                if event != owed {
                    let detail = format!("{event:?} instead of {owed:?}");
                    return Err(Fault::new(Rule::Filtered, detail));
                }
                self.place = Place::Next(place + 1);
                Ok(())
            }
            (Frame::Event(event), None) => {
                Err(Fault::new(Rule::Reliable, format!("{event:?} did not happen")))
            }
            (Frame::Bookmark { revision, .. }, Some(owed)) if owed.revision <= revision => {
                let detail = format!("a bookmark at {revision} before {owed:?}");
                Err(Fault::new(Rule::Bookmarkable, detail))
            }
            (Frame::Bookmark { .. } | Frame::Error { .. }, _) => {
                self.place = Place::Next(place);
                Ok(())
            }
        }
    }

    /// The place of the next event it is owed, and the event if it has happened.
    fn next(&self, ledger: &Ledger) -> Result<(u64, Option<Event>), Fault> {
        let forgotten = |Forgotten| {
            let detail = format!("what came after {}: the watch lags too far behind", self.last);
            Fault::new(Rule::Forgotten, detail)
        };
        let class = ledger.class(self.class)?;
        let place = match self.place {
            Place::Next(place) => place,
            Place::Behind(revision) => class.place_behind(revision).ok_or(Forgotten).map_err(forgotten)?,
            // Nothing is owed before the state was shown.
            Place::Initial { .. } => return Ok((0, None)),
        };
        Ok((place, class.at(place).map_err(forgotten)?))
    }

    /// The oldest event that the watch is owed and has not delivered, once everything has been settled.
    ///
    /// # Errors
    /// The ledger has forgotten it.
    pub fn owed(&self, ledger: &Ledger) -> Result<Option<Event>, Fault> {
        if self.waiting.is_empty() {
            Ok(self.next(ledger)?.1)
        } else {
            Ok(None)
        }
    }

    /// Whether the watch has delivered everything up to a revision, up to which everything must have been told.
    ///
    /// # Errors
    /// As for [`owed`](Self::owed).
    pub fn has_all_to(&self, revision: u64, ledger: &Ledger) -> Result<bool, Fault> {
        let is_live = !matches!(self.place, Place::Initial { .. });
        let owed = self.owed(ledger)?;
        Ok(is_live && self.waiting.is_empty() && owed.is_none_or(|event| event.revision > revision))
    }

    /// Judges the end of a watch that was to deliver everything up to a revision.
    ///
    /// # Errors
    /// It broke a rule, or something is missing.
    pub fn finish(&mut self, complete_to: u64, ledger: &Ledger) -> Result<(), Fault> {
        self.settle(ledger)?;
        if self.has_all_to(complete_to, ledger)? {
            Ok(())
        } else {
            let detail = format!("the end at {}, owing {:?}", self.last, self.owed(ledger)?);
            Err(Fault::new(Rule::Complete, detail))
        }
    }
}

#[cfg(test)]
mod tests;
