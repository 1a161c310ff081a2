//! What happened, and in which order?

use std::collections::{BTreeMap, HashMap};

use super::class::{Change, Class, Digest, Forgotten, Stored};
use super::event::{Event, Fault, Frame, Kind, Rule, Selection};

/// A selection that the ledger keeps events of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClassId(usize);

/// Acknowledged writes in the order of their revisions, and what each selection is owed of them.
///
/// Objects are numbered; their namespace is their number modulo the number of namespaces. Every write of an object
/// gives it the next serial and is sent when the one before it was answered. An object that is created again keeps
/// counting. Nobody else writes to them.
#[derive(Debug)]
pub struct Ledger {
    namespaces: u32,
    objects: Vec<Option<Stored>>,
    classes: Vec<Class>,
    /// Which of them select a namespace, by its number, and which none: a write is of interest to few.
    by_namespace: HashMap<Option<u32>, Vec<usize>>,
    /// Everything up to here has been told.
    known_to: u64,
    /// The highest revision that an answer has named.
    answered_to: u64,
    /// Answered, but not told yet.
    acknowledged: BTreeMap<u64, Event>,
    /// Told, but not answered yet.
    early: HashMap<u64, Event>,
    /// Removals that were answered but not told yet: each object's, and the revision it lies beyond.
    removals: HashMap<u32, u64>,
    /// Removals that were told but not answered yet, and their revision.
    early_removals: HashMap<u32, u64>,
}

impl Ledger {
    /// A ledger of objects that do not exist at revision `from`.
    #[must_use]
    pub fn new(objects: u32, namespaces: u32, selections: &[Selection], from: u64) -> Self {
        let mut by_namespace: HashMap<_, Vec<_>> = HashMap::new();
        for (index, selection) in selections.iter().enumerate() {
            by_namespace.entry(selection.namespace).or_default().push(index);
        }
        Self {
            namespaces: namespaces.max(1),
            objects: vec![None; objects as usize],
            classes: selections.iter().copied().map(Class::new).collect(),
            by_namespace,
            known_to: from,
            answered_to: from,
            acknowledged: BTreeMap::new(),
            early: HashMap::new(),
            removals: HashMap::new(),
            early_removals: HashMap::new(),
        }
    }

    /// The selections it keeps events of, in the order in which they were given.
    pub fn classes(&self) -> impl Iterator<Item = (ClassId, Selection)> {
        let selections = self.classes.iter().map(|class| class.selection);
        selections
            .enumerate()
            .map(|(index, selection)| (ClassId(index), selection))
    }

    /// Up to which revision everything has been told.
    #[must_use]
    pub fn known_to(&self) -> u64 {
        self.known_to
    }

    /// The highest revision that an answer has named: what is written from now on lies beyond.
    #[must_use]
    pub fn answered_to(&self) -> u64 {
        self.answered_to
    }

    /// Writes that were answered but not told, and the reverse.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        self.acknowledged.len() + self.early.len() + self.removals.len() + self.early_removals.len()
    }

    /// The answer of a create or a change.
    ///
    /// # Errors
    /// It contradicts what was told.
    pub fn acknowledge(&mut self, event: Event) -> Result<(), Fault> {
        self.answered_to = self.answered_to.max(event.revision);
        if let Some(told) = self.early.remove(&event.revision) {
            return if told == event {
                Ok(())
            } else {
                Err(Fault::new(
                    Rule::Acknowledged,
                    format!("answered {event:?}, told {told:?}"),
                ))
            };
        }
        if event.revision <= self.known_to {
            let detail = format!(
                "{event:?} was not told, though everything up to {} was",
                self.known_to
            );
            return Err(Fault::new(Rule::Reliable, detail));
        }
        match self.acknowledged.insert(event.revision, event) {
            None => Ok(()),
            Some(other) => Err(Fault::new(
                Rule::Acknowledged,
                format!("{event:?} and {other:?} have the same revision"),
            )),
        }
    }

    /// The answer of a removal that was sent when `beyond` was the highest revision answered.
    ///
    /// # Errors
    /// It contradicts what was told.
    pub fn acknowledge_removal(&mut self, object: u32, beyond: u64) -> Result<(), Fault> {
        match self.early_removals.remove(&object) {
            Some(revision) if revision > beyond => Ok(()),
            Some(revision) => Err(removed_too_early(object, revision, beyond)),
            None => {
                self.removals.insert(object, beyond);
                Ok(())
            }
        }
    }

    /// What the one watch of everything has delivered.
    ///
    /// # Errors
    /// The watch breaks a rule: it must tell every acknowledged write once, in order, and nothing else.
    pub fn tell(&mut self, frame: Frame) -> Result<(), Fault> {
        match frame {
            Frame::Event(event) => {
                if event.revision == self.known_to {
                    return Err(Fault::new(Rule::Unique, format!("{event:?} again")));
                }
                if event.revision < self.known_to {
                    let detail = format!("{event:?} after {}", self.known_to);
                    return Err(Fault::new(Rule::Ordered, detail));
                }
                self.nothing_is_missing_before(event.revision)?;
                self.settle(event)?;
                self.apply(event)
            }
            Frame::Bookmark { revision, .. } => {
                if revision < self.known_to {
                    let detail = format!("a bookmark at {revision} after {}", self.known_to);
                    return Err(Fault::new(Rule::Bookmarkable, detail));
                }
                self.nothing_is_missing_before(revision + 1)?;
                self.known_to = revision;
                Ok(())
            }
            Frame::Error { code } => Err(Fault::new(Rule::Open, format!("an error event, {code}"))),
        }
    }

    fn nothing_is_missing_before(&self, revision: u64) -> Result<(), Fault> {
        match self.acknowledged.first_key_value() {
            Some((missing, event)) if *missing < revision => {
                let detail = format!("{event:?} was not told before {revision}");
                Err(Fault::new(Rule::Reliable, detail))
            }
            _ => Ok(()),
        }
    }

    /// Brings together what is told and what is answered.
    fn settle(&mut self, event: Event) -> Result<(), Fault> {
        if event.kind == Kind::Deleted {
            return match self.removals.remove(&event.object) {
                Some(beyond) if event.revision <= beyond => {
                    Err(removed_too_early(event.object, event.revision, beyond))
                }
                Some(_) => Ok(()),
                None => {
                    self.early_removals.insert(event.object, event.revision);
                    Ok(())
                }
            };
        }
        match self.acknowledged.remove(&event.revision) {
            Some(answered) if answered == event => Ok(()),
            Some(answered) => Err(Fault::new(
                Rule::Acknowledged,
                format!("answered {answered:?}, told {event:?}"),
            )),
            None => {
                self.early.insert(event.revision, event);
                Ok(())
            }
        }
    }

    fn apply(&mut self, event: Event) -> Result<(), Fault> {
        let stored = usize::try_from(event.object)
            .ok()
            .and_then(|index| self.objects.get_mut(index));
        let Some(stored) = stored else {
            return Err(Fault::new(
                Rule::Reliable,
                format!("{event:?} of nobody's object"),
            ));
        };
        let old = *stored;
        let follows = match (event.kind, old) {
            (Kind::Added, None) => true,
            (Kind::Modified, Some(old)) => event.version.serial == old.version.serial + 1,
            (Kind::Deleted, Some(old)) => event.version == old.version,
            (Kind::Added, Some(_)) | (Kind::Modified | Kind::Deleted, None) => false,
        };
        if !follows {
            return Err(Fault::new(
                Rule::Reliable,
                format!("{event:?} does not follow {old:?}"),
            ));
        }
        let new = (event.kind != Kind::Deleted).then_some(Stored {
            version: event.version,
            revision: event.revision,
        });
        *stored = new;
        let change = Change {
            revision: event.revision,
            object: event.object,
            namespace: event.object % self.namespaces,
            old,
            new,
        };
        for scope in [None, Some(change.namespace)] {
            for index in self.by_namespace.get(&scope).into_iter().flatten() {
                if let Some(class) = self.classes.get_mut(*index) {
                    class.push(&change);
                }
            }
        }
        self.known_to = event.revision;
        Ok(())
    }

    /// Says that nothing will be written any more and everything has been told.
    ///
    /// # Errors
    /// Something was answered and not told, or told and never answered.
    pub fn close(&mut self) -> Result<(), Fault> {
        if self.unsettled() > 0 {
            let detail = format!(
                "answered but not told: {:?}, removed {:?}; told but not answered: {:?}, removed {:?}",
                self.acknowledged.values().next(),
                self.removals.iter().next(),
                self.early.values().next(),
                self.early_removals.iter().next()
            );
            return Err(Fault::new(Rule::Acknowledged, detail));
        }
        self.known_to = u64::MAX;
        Ok(())
    }

    /// Forgets what lies before a revision.
    pub fn forget_before(&mut self, revision: u64) {
        for class in &mut self.classes {
            class.forget_before(revision);
        }
    }

    /// Judges a list: the digest of its items and its revision, up to which everything must have been told.
    ///
    /// # Errors
    /// The items are not the state at that revision.
    pub fn check_list(&self, class: ClassId, revision: u64, items: Digest) -> Result<(), Fault> {
        let class = self.class(class)?;
        match class.state_at(revision) {
            Ok(state) if state == items => Ok(()),
            Ok(state) => Err(Fault::new(
                Rule::Snapshot,
                format!(
                    "{} objects of {:?} at {revision} are not the {} that were there",
                    items.objects, class.selection, state.objects
                ),
            )),
            Err(Forgotten) => Err(Fault::new(Rule::Forgotten, format!("the state at {revision}"))),
        }
    }

    pub(super) fn class(&self, id: ClassId) -> Result<&Class, Fault> {
        let class = self.classes.get(id.0);
        class.ok_or_else(|| Fault::new(Rule::Forgotten, "a class of another ledger"))
    }
}

fn removed_too_early(object: u32, revision: u64, beyond: u64) -> Fault {
    let detail =
        format!("object {object} was removed at {revision}, though the removal was sent after {beyond}");
    Fault::new(Rule::Acknowledged, detail)
}

#[cfg(test)]
mod tests {
    use super::super::event::Version;
    use super::*;

    fn event(revision: u64, kind: Kind, object: u32, serial: u32, group: u16) -> Event {
        Event {
            revision,
            kind,
            object,
            version: Version { serial, group },
        }
    }

    /// Object 1: created, changed, removed, created again.
    fn life() -> [Event; 4] {
        [
            event(11, Kind::Added, 1, 0, 0),
            event(12, Kind::Modified, 1, 1, 0),
            event(14, Kind::Deleted, 1, 1, 0),
            event(15, Kind::Added, 1, 2, 0),
        ]
    }

    fn acknowledge(ledger: &mut Ledger, event: Event) -> Result<(), Fault> {
        if event.kind == Kind::Deleted {
            ledger.acknowledge_removal(event.object, ledger.answered_to())
        } else {
            ledger.acknowledge(event)
        }
    }

    /// Runs the events through, each answered first or told first, and says what is found.
    fn run(answered: &[Event], told: &[Event], told_first: bool) -> Result<(), Rule> {
        let mut ledger = Ledger::new(2, 1, &[Selection::default()], 10);
        let (mut answered, mut told) = (answered.iter(), told.iter());
        let mut both = || -> Result<(), Fault> {
            loop {
                let (answer, tale) = (answered.next(), told.next());
                let tell = |ledger: &mut Ledger| tale.map_or(Ok(()), |it| ledger.tell(Frame::Event(*it)));
                if told_first {
                    tell(&mut ledger)?;
                }
                if let Some(answer) = answer {
                    acknowledge(&mut ledger, *answer)?;
                }
                if !told_first {
                    tell(&mut ledger)?;
                }
                if (answer, tale) == (None, None) {
                    return ledger.close();
                }
            }
        };
        both().map_err(|fault| fault.rule)
    }

    #[test]
    fn a_faithful_watch_is_believed_in_either_order() {
        for told_first in [false, true] {
            assert_eq!(run(&life(), &life(), told_first), Ok(()));
        }
    }

    #[test]
    fn each_planted_fault_of_the_one_watch_is_found() {
        use Rule::*;
        let check = |fault: fn(&mut Vec<Event>), expected: &[Rule]| {
            for told_first in [false, true] {
                let mut told = life().to_vec();
                fault(&mut told);
                let found = run(&life(), &told, told_first).expect_err("a planted fault");
                assert!(expected.contains(&found), "{found:?} instead of {expected:?}");
            }
        };
        check(
            |told| {
                told.remove(0);
            },
            &[Reliable],
        );
        check(
            |told| {
                told.remove(1);
            },
            &[Reliable],
        );
        check(
            |told| {
                told.remove(2);
            },
            &[Reliable],
        );
        check(
            |told| {
                told.remove(3);
            },
            &[Acknowledged],
        );
        check(|told| told.insert(1, told[0]), &[Unique]);
        check(|told| told.insert(2, told[0]), &[Ordered]);
        check(|told| told.swap(1, 2), &[Reliable]);
        check(|told| told[1].version.group = 1, &[Acknowledged]);
        check(|told| told[1].version.serial = 2, &[Acknowledged, Reliable]);
        check(|told| told[2].version.serial = 0, &[Reliable]);
        check(|told| told[3].revision = 16, &[Reliable, Acknowledged]);
        check(
            |told| told.push(event(17, Kind::Modified, 1, 3, 0)),
            &[Acknowledged],
        );
        check(|told| told.push(event(17, Kind::Added, 0, 0, 0)), &[Acknowledged]);
    }

    #[test]
    fn a_bookmark_is_a_promise() {
        let mut ledger = Ledger::new(2, 1, &[], 10);
        let bookmark = |revision| Frame::Bookmark {
            revision,
            ends_initial_events: false,
        };
        ledger.tell(bookmark(11)).unwrap();
        assert_eq!(ledger.tell(bookmark(10)).unwrap_err().rule, Rule::Bookmarkable);
        ledger.acknowledge(event(12, Kind::Added, 1, 0, 0)).unwrap();
        ledger.tell(bookmark(11)).unwrap();
        assert_eq!(ledger.tell(bookmark(12)).unwrap_err().rule, Rule::Reliable);
        let late = ledger.acknowledge(event(11, Kind::Added, 0, 0, 0));
        assert_eq!(late.unwrap_err().rule, Rule::Reliable);
    }

    #[test]
    fn a_removal_lies_beyond_what_was_answered_before_it_was_sent() {
        for told_first in [false, true] {
            let mut ledger = Ledger::new(2, 1, &[], 10);
            for it in &life()[..2] {
                ledger.acknowledge(*it).unwrap();
                ledger.tell(Frame::Event(*it)).unwrap();
            }
            let told = Frame::Event(life()[2]);
            let found = if told_first {
                ledger.tell(told).unwrap();
                ledger.acknowledge_removal(1, 14)
            } else {
                ledger.acknowledge_removal(1, 14).unwrap();
                ledger.tell(told)
            };
            assert_eq!(found.unwrap_err().rule, Rule::Acknowledged);
        }
    }

    #[test]
    fn lists_are_compared_with_the_state_at_their_revision() {
        let some = Selection {
            group: Some(super::super::event::Group::Is(7)),
            ..Selection::default()
        };
        let mut ledger = Ledger::new(2, 1, &[some], 10);
        let (class, _) = ledger.classes().next().unwrap();
        for it in [
            event(11, Kind::Added, 0, 0, 7),
            event(12, Kind::Added, 1, 0, 7),
            event(13, Kind::Modified, 0, 1, 8),
            event(14, Kind::Modified, 1, 1, 7),
        ] {
            ledger.tell(Frame::Event(it)).unwrap();
        }
        let digest = |items: &[(u32, u32, u64)]| {
            let mut digest = Digest::default();
            for (object, serial, revision) in items {
                let version = Version {
                    serial: *serial,
                    group: 7,
                };
                digest.add(*object, version, *revision);
            }
            digest
        };
        let rule = |ledger: &Ledger, revision, items: &[_]| {
            let found = ledger.check_list(class, revision, digest(items));
            found.map_err(|fault| fault.rule)
        };
        assert_eq!(rule(&ledger, 10, &[]), Ok(()));
        assert_eq!(rule(&ledger, 12, &[(1, 0, 12), (0, 0, 11)]), Ok(()));
        assert_eq!(rule(&ledger, 13, &[(1, 0, 12)]), Ok(()));
        assert_eq!(rule(&ledger, 14, &[(1, 1, 14)]), Ok(()));
        for wrong in [
            &[(1, 0, 14)][..],
            &[(1, 1, 13)],
            &[(0, 1, 14)],
            &[],
            &[(1, 1, 14), (0, 1, 13)],
        ] {
            assert_eq!(rule(&ledger, 14, wrong), Err(Rule::Snapshot), "{wrong:?}");
        }
        ledger.forget_before(14);
        assert_eq!(rule(&ledger, 12, &[]), Err(Rule::Forgotten));
        assert_eq!(rule(&ledger, 13, &[(1, 0, 12)]), Ok(()));
        assert_eq!(rule(&ledger, 14, &[(1, 1, 14)]), Ok(()));
    }
}
