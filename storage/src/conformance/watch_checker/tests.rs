//! A faithful watch passes; each planted fault is found by its rule.

use super::*;

type TestFrame = Frame<u32, &'static str>;
type TestChecker = Checker<u32, &'static str>;
/// A planted fault: a name, the change to the frames, and the rules that may report it.
type Planted = (&'static str, fn(&mut Vec<TestFrame>), &'static [Rule]);

fn event(revision: u64, kind: Kind, key: u32, value: &'static str) -> TestFrame {
    Frame::Event(Event {
        revision,
        kind,
        key,
        value,
    })
}

fn bookmark(revision: u64, ends_initial_events: bool) -> TestFrame {
    Frame::Bookmark {
        revision,
        ends_initial_events,
    }
}

/// Writes as (revision, key, old, new). Values that begin with `a` match.
const WRITES: [(u64, u32, &str, &str); 8] = [
    (2, 1, "", "a0"),
    (3, 2, "", "b0"),
    (4, 1, "a0", "a1"),
    (5, 2, "b0", "a2"),
    (6, 3, "", "b1"),
    (7, 1, "a1", "b2"),
    (8, 2, "a2", ""),
    (9, 4, "", "a4"),
];

fn selected() -> SelectedEvents<u32, &'static str> {
    let mut selected = SelectedEvents::default();
    let mut stored = std::collections::HashMap::new();
    let matches = |value: &&str| value.starts_with('a');
    for (revision, key, old, new) in WRITES {
        let old = Some(old).filter(matches).map(|value| Stored {
            value,
            revision: stored.get(&key).copied().unwrap_or_default(),
        });
        selected.push(key, revision, old, Some(new).filter(matches));
        stored.insert(key, revision);
    }
    selected
}

/// A watch after revision 3.
fn faithful() -> Vec<TestFrame> {
    vec![
        event(4, Kind::Modified, 1, "a1"),
        event(5, Kind::Added, 2, "a2"),
        bookmark(6, false),
        event(7, Kind::Deleted, 1, "a1"),
        event(8, Kind::Deleted, 2, "a2"),
        bookmark(8, false),
        event(9, Kind::Added, 4, "a4"),
    ]
}

/// The same with initial events at revision 3.
fn faithful_initial() -> Vec<TestFrame> {
    let mut frames = vec![event(2, Kind::Added, 1, "a0"), bookmark(3, true)];
    frames.extend(faithful());
    frames
}

fn check(mut checker: TestChecker, frames: &[TestFrame]) -> Result<(), Rule> {
    let mut all = || {
        for frame in frames {
            checker.take(*frame)?;
        }
        checker.finish(9, &selected(), 9)
    };
    all().map_err(|violation| violation.rule)
}

fn finds_each(checker: fn() -> TestChecker, faithful: fn() -> Vec<TestFrame>, planted: &[Planted]) {
    assert_eq!(check(checker(), &faithful()), Ok(()), "the faithful watch");
    for (name, plant, rules) in planted {
        let mut frames = faithful();
        plant(&mut frames);
        let found = check(checker(), &frames).expect_err(name);
        assert!(rules.contains(&found), "{name}: {found:?}");
    }
}

fn lose(frames: &mut Vec<TestFrame>, index: usize) {
    frames.remove(index);
}

const PLANTED: &[Planted] = {
    use Rule::*;
    &[
        ("order", |it| it.swap(0, 1), &[Ordered]),
        (
            "order around a bookmark",
            |it| it.swap(0, 3),
            &[Ordered, Reliable],
        ),
        ("order after a bookmark", |it| it.swap(3, 4), &[Ordered, Reliable]),
        ("repeated at once", |it| it.insert(1, it[0]), &[Unique]),
        ("repeated later", |it| it.insert(2, it[0]), &[Ordered]),
        ("repeated at the end", |it| it.push(it[6]), &[Unique]),
        ("first lost", |it| lose(it, 0), &[Reliable]),
        ("lost before a bookmark", |it| lose(it, 1), &[Bookmarkable]),
        ("last lost", |it| lose(it, 6), &[Complete]),
        ("all lost", |it| it.truncate(0), &[Complete]),
        (
            "bookmark too new",
            |it| it[2] = bookmark(7, false),
            &[Bookmarkable],
        ),
        (
            "bookmark goes back",
            |it| it[5] = bookmark(5, false),
            &[Bookmarkable],
        ),
        (
            "bookmark too early",
            |it| it[5] = bookmark(9, false),
            &[Bookmarkable],
        ),
        (
            "bookmark at the start",
            |it| it.insert(0, bookmark(3, false)),
            &[Bookmarkable],
        ),
        (
            "bookmark before the start",
            |it| it.insert(0, bookmark(2, false)),
            &[Bookmarkable],
        ),
        (
            "end without initial events",
            |it| it.insert(3, bookmark(6, true)),
            &[Unrequested],
        ),
        (
            "wrong type: added",
            |it| it[0] = event(4, Kind::Added, 1, "a1"),
            &[Filtered],
        ),
        (
            "wrong type: modified",
            |it| it[1] = event(5, Kind::Modified, 2, "a2"),
            &[Filtered],
        ),
        (
            "new value deleted",
            |it| it[3] = event(7, Kind::Deleted, 1, "b2"),
            &[Filtered],
        ),
        (
            "not deleted",
            |it| it[3] = event(7, Kind::Modified, 1, "b2"),
            &[Filtered],
        ),
        (
            "wrong object",
            |it| it[3] = event(7, Kind::Deleted, 2, "a1"),
            &[Reliable],
        ),
        (
            "old revision",
            |it| it[4] = event(5, Kind::Deleted, 2, "a2"),
            &[Bookmarkable, Ordered],
        ),
        (
            "not selected",
            |it| it.insert(2, event(6, Kind::Added, 3, "b1")),
            &[Reliable],
        ),
        (
            "at the start",
            |it| it.insert(0, event(3, Kind::Added, 2, "b0")),
            &[Ordered],
        ),
        ("error", |it| it.push(Frame::Error { code: 410 }), &[Open]),
    ]
};

#[test]
fn each_planted_fault_is_found() {
    finds_each(|| Checker::after(3, true), faithful, PLANTED);
    assert_eq!(check(Checker::after(1, true), &faithful()), Err(Rule::Reliable));
    assert_eq!(check(Checker::after(4, true), &faithful()), Err(Rule::Ordered));
    assert_eq!(
        check(Checker::after(3, false), &faithful()),
        Err(Rule::Unrequested)
    );
}

#[test]
fn each_planted_fault_of_initial_events_is_found() {
    use Rule::*;
    let planted: &[Planted] = &[
        ("object lost", |it| lose(it, 0), &[Initial]),
        ("end lost", |it| lose(it, 1), &[Initial, Unrequested]),
        ("repeated", |it| it.insert(1, it[0]), &[Initial]),
        (
            "wrong revision",
            |it| it[0] = event(3, Kind::Added, 1, "a0"),
            &[Initial],
        ),
        (
            "wrong type",
            |it| it[0] = event(2, Kind::Modified, 1, "a0"),
            &[Initial],
        ),
        (
            "wrong value",
            |it| it[0] = event(2, Kind::Added, 1, "a1"),
            &[Initial],
        ),
        (
            "not selected",
            |it| it.insert(1, event(3, Kind::Added, 2, "b0")),
            &[Initial],
        ),
        (
            "end too new",
            |it| it[1] = bookmark(4, true),
            &[Initial, Bookmarkable],
        ),
        ("second end", |it| it.insert(2, it[1]), &[Unrequested]),
        ("first event lost", |it| lose(it, 2), &[Reliable]),
        ("nothing after initial events", |it| it.truncate(1), &[Complete]),
    ];
    finds_each(Checker::initial, faithful_initial, planted);
}

#[test]
fn a_watch_resumes_from_what_it_has_seen() {
    for cut in 0..faithful().len() {
        let mut first = TestChecker::after(3, true);
        for frame in &faithful()[..cut] {
            first.take(*frame).unwrap();
        }
        first.settle(&selected(), 9).unwrap();
        let seen = first.seen_to().unwrap();
        let second = || Checker::after(seen, true);
        // A bookmark at the revision that a watch resumes from says nothing new.
        let rest = if faithful()[cut] == bookmark(seen, false) {
            cut + 1
        } else {
            cut
        };
        assert_eq!(check(second(), &faithful()[rest..]), Ok(()), "cut {cut}");
        if cut > 0 && matches!(faithful()[cut - 1], Frame::Event(_)) {
            let found = check(second(), &faithful()[cut - 1..]);
            assert_eq!(found, Err(Rule::Ordered), "one event too early, cut {cut}");
        }
        if let Frame::Event(_) = faithful()[cut] {
            let found = check(second(), &faithful()[cut + 1..]).unwrap_err();
            let rules = [Rule::Reliable, Rule::Complete, Rule::Bookmarkable];
            assert!(rules.contains(&found), "one event too late, cut {cut}: {found:?}");
        }
    }
}

#[test]
fn frames_wait_until_their_revision_is_known() {
    let mut selected = selected();
    let mut checker = TestChecker::after(9, true);
    checker.take(event(10, Kind::Added, 3, "a5")).unwrap();
    checker.settle(&selected, 9).unwrap();
    assert_eq!(checker.due(&selected), Ok(None));
    assert_eq!(checker.has_all_to(9, &selected), Ok(false));
    selected.push(3, 10, None, Some("a5"));
    checker.settle(&selected, 10).unwrap();
    assert_eq!(checker.has_all_to(10, &selected), Ok(true));
    // An event that did not happen is found once a later revision is known.
    checker.take(event(11, Kind::Added, 3, "a6")).unwrap();
    checker.settle(&selected, 10).unwrap();
    let found = checker.settle(&selected, 12).unwrap_err();
    assert_eq!(found.rule, Rule::Reliable);
}

#[test]
fn a_watch_that_lags_behind_the_kept_events_is_reported() {
    let mut selected = selected();
    let mut checker = TestChecker::after(3, true);
    checker.take(faithful()[0]).unwrap();
    checker.settle(&selected, 9).unwrap();
    selected.forget_before(9);
    checker.take(faithful()[1]).unwrap();
    assert_eq!(checker.settle(&selected, 9).unwrap_err().rule, Rule::Forgotten);
    let late = TestChecker::after(3, true);
    assert_eq!(late.due(&selected).unwrap_err().rule, Rule::Forgotten);
    let in_time = TestChecker::after(8, true);
    assert_eq!(in_time.due(&selected).unwrap().map(|it| it.revision), Some(9));
}

#[test]
fn the_state_of_a_selection_is_kept_with_its_events() {
    let mut selected = selected();
    let digest = |objects: &[(u32, &str, u64)]| {
        let mut digest = Digest::default();
        for (key, value, revision) in objects {
            digest.add(key, value, *revision);
        }
        digest
    };
    assert_eq!(selected.state_at(1), Ok(Digest::default()));
    assert_eq!(selected.state_at(5), Ok(digest(&[(2, "a2", 5), (1, "a1", 4)])));
    assert_eq!(selected.state_at(9), Ok(digest(&[(4, "a4", 9)])));
    for wrong in [
        &[][..],
        &[(4, "a4", 8)],
        &[(4, "a0", 9)],
        &[(4, "a4", 9), (1, "a1", 4)],
    ] {
        assert_ne!(selected.state_at(9), Ok(digest(wrong)));
    }
    selected.forget_before(9);
    assert_eq!(selected.state_at(7), Err(Forgotten));
    assert_eq!(selected.state_at(8), Ok(Digest::default()));
    assert_eq!(selected.state_at(9), Ok(digest(&[(4, "a4", 9)])));
}
