//! Acknowledged writes in the order of their revisions.

use std::collections::{BTreeMap, HashMap, VecDeque};

use drydock_storage::conformance::watch_checker::{
    Digest, Forgotten, Kind, Rule, SelectedEvents, Stored, Violation,
};

use super::event::{Event, Frame, Selection, Version};

/// A selection whose events the ledger keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClassId(usize);

/// A selection and its events.
#[derive(Debug)]
pub(super) struct Class {
    selection: Selection,
    pub(super) events: SelectedEvents<u32, Version>,
}

/// Acknowledged writes in the order of their revisions, and the events of each selection.
///
/// Objects are numbered; an object's namespace is its number modulo the number of namespaces. Every write of an object
/// gives it the next serial and is sent after the response of the one before. An object that is created again keeps
/// counting. There are no other writers.
#[derive(Debug)]
pub struct Ledger {
    namespaces: u32,
    objects: Vec<Option<Stored<Version>>>,
    classes: Vec<Class>,
    /// The classes that select a namespace, by its number, and those that select none: few concern a write.
    by_namespace: HashMap<Option<u32>, Vec<usize>>,
    /// Everything up to here has been observed.
    known_to: u64,
    /// The highest revision of a response.
    acknowledged_to: u64,
    /// Acknowledged, but not observed yet.
    acknowledged: BTreeMap<u64, Event>,
    /// Observed, but not acknowledged yet.
    early: HashMap<u64, Event>,
    /// Deletions acknowledged but not observed yet: those of each object, in their order, as the revisions that theirs must
    /// exceed. An object may be created and deleted again before the watch of everything sees its first deletion.
    removals: HashMap<u32, VecDeque<u64>>,
    /// Deletions observed but not acknowledged yet, and their revision.
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
            classes: selections
                .iter()
                .map(|it| Class {
                    selection: *it,
                    events: SelectedEvents::default(),
                })
                .collect(),
            by_namespace,
            known_to: from,
            acknowledged_to: from,
            acknowledged: BTreeMap::new(),
            early: HashMap::new(),
            removals: HashMap::new(),
            early_removals: HashMap::new(),
        }
    }

    /// The selections, in the order in which they were given.
    pub fn classes(&self) -> impl Iterator<Item = (ClassId, Selection)> {
        let selections = self.classes.iter().map(|class| class.selection);
        selections
            .enumerate()
            .map(|(index, selection)| (ClassId(index), selection))
    }

    /// The revision up to which everything has been observed.
    #[must_use]
    pub fn known_to(&self) -> u64 {
        self.known_to
    }

    /// The highest revision of a response: later writes have higher ones.
    #[must_use]
    pub fn acknowledged_to(&self) -> u64 {
        self.acknowledged_to
    }

    /// The number of writes that were acknowledged but not observed, or the reverse.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        let removals: usize = self.removals.values().map(VecDeque::len).sum();
        self.acknowledged.len() + self.early.len() + removals + self.early_removals.len()
    }

    /// Records the response of a create or a change.
    ///
    /// # Errors
    /// It contradicts an observed event.
    pub fn acknowledge(&mut self, event: Event) -> Result<(), Violation> {
        self.acknowledged_to = self.acknowledged_to.max(event.revision);
        if let Some(observed) = self.early.remove(&event.revision) {
            return if observed == event {
                Ok(())
            } else {
                Err(Violation::new(
                    Rule::Acknowledged,
                    format!("acknowledged {event:?}, observed {observed:?}"),
                ))
            };
        }
        if event.revision <= self.known_to {
            let detail = format!(
                "{event:?} was not observed, though everything up to {} was",
                self.known_to
            );
            return Err(Violation::new(Rule::Reliable, detail));
        }
        match self.acknowledged.insert(event.revision, event) {
            None => Ok(()),
            Some(other) => Err(Violation::new(
                Rule::Acknowledged,
                format!("{event:?} and {other:?} have the same revision"),
            )),
        }
    }

    /// Records the response of a deletion that was sent when `beyond` was the highest revision of a response.
    ///
    /// # Errors
    /// It contradicts an observed event.
    pub fn acknowledge_removal(&mut self, object: u32, beyond: u64) -> Result<(), Violation> {
        match self.early_removals.remove(&object) {
            Some(revision) if revision > beyond => Ok(()),
            Some(revision) => Err(removed_too_early(object, revision, beyond)),
            None => {
                self.removals.entry(object).or_default().push_back(beyond);
                Ok(())
            }
        }
    }

    /// Records a frame of the watch of everything.
    ///
    /// # Errors
    /// The watch breaks a rule: it must deliver every acknowledged write once, in order, and nothing else.
    pub fn observe(&mut self, frame: Frame) -> Result<(), Violation> {
        match frame {
            Frame::Event(event) => {
                if event.revision == self.known_to {
                    return Err(Violation::new(Rule::Unique, format!("{event:?} is repeated")));
                }
                if event.revision < self.known_to {
                    let detail = format!("{event:?} after {}", self.known_to);
                    return Err(Violation::new(Rule::Ordered, detail));
                }
                self.nothing_is_missing_before(event.revision)?;
                self.settle(event)?;
                self.apply(event)
            }
            Frame::Bookmark { revision, .. } => {
                if revision < self.known_to {
                    let detail = format!("bookmark at {revision} after {}", self.known_to);
                    return Err(Violation::new(Rule::Bookmarkable, detail));
                }
                self.nothing_is_missing_before(revision + 1)?;
                self.known_to = revision;
                Ok(())
            }
            Frame::Error { code } => Err(Violation::new(
                Rule::Open,
                format!("ERROR event with code {code}"),
            )),
        }
    }

    fn nothing_is_missing_before(&self, revision: u64) -> Result<(), Violation> {
        match self.acknowledged.first_key_value() {
            Some((missing, event)) if *missing < revision => {
                let detail = format!("{event:?} was not observed before {revision}");
                Err(Violation::new(Rule::Reliable, detail))
            }
            _ => Ok(()),
        }
    }

    /// Takes the first acknowledged deletion of an object that was not observed.
    fn first_removal(&mut self, object: u32) -> Option<u64> {
        let removals = self.removals.get_mut(&object)?;
        let first = removals.pop_front();
        if removals.is_empty() {
            self.removals.remove(&object);
        }
        first
    }

    /// Matches an observed event with its acknowledgement.
    fn settle(&mut self, event: Event) -> Result<(), Violation> {
        if event.kind == Kind::Deleted {
            return match self.first_removal(event.key) {
                Some(beyond) if event.revision <= beyond => {
                    Err(removed_too_early(event.key, event.revision, beyond))
                }
                Some(_) => Ok(()),
                None => {
                    self.early_removals.insert(event.key, event.revision);
                    Ok(())
                }
            };
        }
        match self.acknowledged.remove(&event.revision) {
            Some(acknowledged) if acknowledged == event => Ok(()),
            Some(acknowledged) => Err(Violation::new(
                Rule::Acknowledged,
                format!("acknowledged {acknowledged:?}, observed {event:?}"),
            )),
            None => {
                self.early.insert(event.revision, event);
                Ok(())
            }
        }
    }

    fn apply(&mut self, event: Event) -> Result<(), Violation> {
        let stored = usize::try_from(event.key)
            .ok()
            .and_then(|index| self.objects.get_mut(index));
        let Some(stored) = stored else {
            return Err(Violation::new(
                Rule::Reliable,
                format!("{event:?} of an unknown object"),
            ));
        };
        let old = *stored;
        let follows = match (event.kind, old) {
            (Kind::Added, None) => true,
            (Kind::Modified, Some(old)) => event.value.serial == old.value.serial + 1,
            (Kind::Deleted, Some(old)) => event.value == old.value,
            (Kind::Added, Some(_)) | (Kind::Modified | Kind::Deleted, None) => false,
        };
        if !follows {
            return Err(Violation::new(
                Rule::Reliable,
                format!("{event:?} does not follow {old:?}"),
            ));
        }
        let new = (event.kind != Kind::Deleted).then_some(event.value);
        *stored = new.map(|value| Stored {
            value,
            revision: event.revision,
        });
        let namespace = event.key % self.namespaces;
        for scope in [None, Some(namespace)] {
            for index in self.by_namespace.get(&scope).into_iter().flatten() {
                if let Some(Class { selection, events }) = self.classes.get_mut(*index) {
                    let has = |version: Version| selection.has(namespace, event.key, version);
                    let old = old.filter(|old| has(old.value));
                    events.push(event.key, event.revision, old, new.filter(|new| has(*new)));
                }
            }
        }
        self.known_to = event.revision;
        Ok(())
    }

    /// Declares that there will be no more writes and that everything has been observed.
    ///
    /// # Errors
    /// A write was acknowledged and not observed, or the reverse.
    pub fn close(&mut self) -> Result<(), Violation> {
        if self.unsettled() > 0 {
            let detail = format!(
                "acknowledged but not observed: {:?}, removed {:?}; observed but not acknowledged: {:?}, removed {:?}",
                self.acknowledged.values().next(),
                self.removals.iter().next(),
                self.early.values().next(),
                self.early_removals.iter().next()
            );
            return Err(Violation::new(Rule::Acknowledged, detail));
        }
        self.known_to = u64::MAX;
        Ok(())
    }

    /// Drops the events before a revision.
    pub fn forget_before(&mut self, revision: u64) {
        for class in &mut self.classes {
            class.events.forget_before(revision);
        }
    }

    /// Checks a list: the digest of its items and its revision, up to which everything must have been observed.
    ///
    /// # Errors
    /// The items are not the state at that revision.
    pub fn check_list(&self, class: ClassId, revision: u64, items: Digest) -> Result<(), Violation> {
        let class = self.class(class)?;
        match class.events.state_at(revision) {
            Ok(state) if state == items => Ok(()),
            Ok(state) => Err(Violation::new(
                Rule::Snapshot,
                format!(
                    "{} listed objects of {:?} at {revision} are not the {} that existed",
                    items.objects, class.selection, state.objects
                ),
            )),
            Err(Forgotten) => Err(Violation::new(
                Rule::Forgotten,
                format!("the state at {revision}"),
            )),
        }
    }

    pub(super) fn class(&self, id: ClassId) -> Result<&Class, Violation> {
        let class = self.classes.get(id.0);
        class.ok_or_else(|| Violation::new(Rule::Forgotten, "unknown class"))
    }
}

fn removed_too_early(object: u32, revision: u64, beyond: u64) -> Violation {
    let detail =
        format!("object {object} was removed at {revision}, though the removal was sent after {beyond}");
    Violation::new(Rule::Acknowledged, detail)
}

#[cfg(test)]
mod tests {
    use super::super::event::Group;
    use super::*;

    fn event(revision: u64, kind: Kind, key: u32, serial: u32, group: u16) -> Event {
        Event {
            revision,
            kind,
            key,
            value: Version { serial, group },
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

    fn acknowledge(ledger: &mut Ledger, event: Event) -> Result<(), Violation> {
        if event.kind == Kind::Deleted {
            ledger.acknowledge_removal(event.key, ledger.acknowledged_to())
        } else {
            ledger.acknowledge(event)
        }
    }

    /// Runs the events through, each acknowledged first or observed first, and returns the broken rule.
    fn run(acknowledged: &[Event], observed: &[Event], observed_first: bool) -> Result<(), Rule> {
        let mut ledger = Ledger::new(2, 1, &[Selection::default()], 10);
        let (mut acknowledged, mut observed) = (acknowledged.iter(), observed.iter());
        let mut both = || -> Result<(), Violation> {
            loop {
                let (response, next) = (acknowledged.next(), observed.next());
                let observe =
                    |ledger: &mut Ledger| next.map_or(Ok(()), |it| ledger.observe(Frame::Event(*it)));
                if observed_first {
                    observe(&mut ledger)?;
                }
                if let Some(response) = response {
                    acknowledge(&mut ledger, *response)?;
                }
                if !observed_first {
                    observe(&mut ledger)?;
                }
                if (response, next) == (None, None) {
                    return ledger.close();
                }
            }
        };
        both().map_err(|violation| violation.rule)
    }

    #[test]
    fn a_faithful_watch_passes_in_either_order() {
        for observed_first in [false, true] {
            assert_eq!(run(&life(), &life(), observed_first), Ok(()));
        }
    }

    #[test]
    fn each_planted_fault_of_the_watch_of_everything_is_found() {
        use Rule::*;
        let check = |fault: fn(&mut Vec<Event>), expected: &[Rule]| {
            for observed_first in [false, true] {
                let mut observed = life().to_vec();
                fault(&mut observed);
                let found = run(&life(), &observed, observed_first).expect_err("a planted fault");
                assert!(expected.contains(&found), "{found:?} instead of {expected:?}");
            }
        };
        check(
            |observed| {
                observed.remove(0);
            },
            &[Reliable],
        );
        check(
            |observed| {
                observed.remove(1);
            },
            &[Reliable],
        );
        check(
            |observed| {
                observed.remove(2);
            },
            &[Reliable],
        );
        check(
            |observed| {
                observed.remove(3);
            },
            &[Acknowledged],
        );
        check(|observed| observed.insert(1, observed[0]), &[Unique]);
        check(|observed| observed.insert(2, observed[0]), &[Ordered]);
        check(|observed| observed.swap(1, 2), &[Reliable]);
        check(|observed| observed[1].value.group = 1, &[Acknowledged]);
        check(|observed| observed[1].value.serial = 2, &[Acknowledged, Reliable]);
        check(|observed| observed[2].value.serial = 0, &[Reliable]);
        check(|observed| observed[3].revision = 16, &[Reliable, Acknowledged]);
        check(
            |observed| observed.push(event(17, Kind::Modified, 1, 3, 0)),
            &[Acknowledged],
        );
        check(
            |observed| observed.push(event(17, Kind::Added, 0, 0, 0)),
            &[Acknowledged],
        );
    }

    #[test]
    fn a_bookmark_confirms_everything_up_to_its_revision() {
        let mut ledger = Ledger::new(2, 1, &[], 10);
        let bookmark = |revision| Frame::Bookmark {
            revision,
            ends_initial_events: false,
        };
        ledger.observe(bookmark(11)).unwrap();
        assert_eq!(ledger.observe(bookmark(10)).unwrap_err().rule, Rule::Bookmarkable);
        ledger.acknowledge(event(12, Kind::Added, 1, 0, 0)).unwrap();
        ledger.observe(bookmark(11)).unwrap();
        assert_eq!(ledger.observe(bookmark(12)).unwrap_err().rule, Rule::Reliable);
        let late = ledger.acknowledge(event(11, Kind::Added, 0, 0, 0));
        assert_eq!(late.unwrap_err().rule, Rule::Reliable);
    }

    #[test]
    fn a_deletion_has_a_higher_revision_than_responses_before_it_was_sent() {
        for observed_first in [false, true] {
            let mut ledger = Ledger::new(2, 1, &[], 10);
            for it in &life()[..2] {
                ledger.acknowledge(*it).unwrap();
                ledger.observe(Frame::Event(*it)).unwrap();
            }
            let observed = Frame::Event(life()[2]);
            let found = if observed_first {
                ledger.observe(observed).unwrap();
                ledger.acknowledge_removal(1, 14)
            } else {
                ledger.acknowledge_removal(1, 14).unwrap();
                ledger.observe(observed)
            };
            assert_eq!(found.unwrap_err().rule, Rule::Acknowledged);
        }
    }

    /// The watch of everything may be of a server that stands still while an object lives twice.
    #[test]
    fn two_deletions_may_be_acknowledged_before_the_first_is_observed() {
        let mut ledger = Ledger::new(2, 1, &[], 10);
        let twice = life().into_iter().chain([event(16, Kind::Deleted, 1, 2, 0)]);
        let events: Vec<Event> = twice.collect();
        for it in &events {
            acknowledge(&mut ledger, *it).unwrap();
        }
        for it in &events {
            ledger.observe(Frame::Event(*it)).unwrap();
        }
        assert_eq!(ledger.unsettled(), 0);
        ledger.close().unwrap();
    }

    #[test]
    fn lists_are_compared_with_the_state_at_their_revision() {
        let some = Selection {
            group: Some(Group::Is(7)),
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
            ledger.observe(Frame::Event(it)).unwrap();
        }
        let digest = |items: &[(u32, u32, u64)]| {
            let mut digest = Digest::default();
            for (object, serial, revision) in items {
                let version = Version {
                    serial: *serial,
                    group: 7,
                };
                digest.add(object, &version, *revision);
            }
            digest
        };
        let rule = |ledger: &Ledger, revision, items: &[_]| {
            let found = ledger.check_list(class, revision, digest(items));
            found.map_err(|violation| violation.rule)
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
