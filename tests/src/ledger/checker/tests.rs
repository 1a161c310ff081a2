//! A faithful record passes; each planted fault is found.

use super::super::event::{Group, Selection, Version};
use super::*;

fn event(revision: u64, kind: Kind, object: u32, serial: u32, group: u16) -> Event {
    Event {
        revision,
        kind,
        object,
        version: Version { serial, group },
    }
}

fn bookmark(revision: u64, ends_initial_events: bool) -> Frame {
    Frame::Bookmark {
        revision,
        ends_initial_events,
    }
}

fn told(revision: u64, kind: Kind, object: u32, serial: u32, group: u16) -> Frame {
    Frame::Event(event(revision, kind, object, serial, group))
}

/// What happened, of which the second class has group 7.
fn ledger() -> (Ledger, ClassId) {
    let selected = Selection {
        group: Some(Group::Is(7)),
        ..Selection::default()
    };
    let mut ledger = Ledger::new(5, 2, &[Selection::default(), selected], 1);
    for it in [
        event(2, Kind::Added, 1, 0, 7),
        event(3, Kind::Added, 2, 0, 8),
        event(4, Kind::Modified, 1, 1, 7),
        event(5, Kind::Modified, 2, 1, 7),
        event(6, Kind::Added, 3, 0, 8),
        event(7, Kind::Modified, 1, 2, 8),
        event(8, Kind::Deleted, 2, 1, 7),
        event(9, Kind::Added, 4, 0, 7),
    ] {
        ledger.tell(Frame::Event(it)).unwrap();
    }
    let (class, _) = ledger.classes().nth(1).unwrap();
    (ledger, class)
}

/// A watch of group 7 behind revision 3.
fn faithful() -> Vec<Frame> {
    vec![
        told(4, Kind::Modified, 1, 1, 7),
        told(5, Kind::Added, 2, 1, 7),
        bookmark(6, false),
        told(7, Kind::Deleted, 1, 1, 7),
        told(8, Kind::Deleted, 2, 1, 7),
        bookmark(8, false),
        told(9, Kind::Added, 4, 0, 7),
    ]
}

/// The same with the state at revision 3 first.
fn faithful_initial() -> Vec<Frame> {
    let mut frames = vec![told(2, Kind::Added, 1, 0, 7), bookmark(3, true)];
    frames.extend(faithful());
    frames
}

fn judge(mut checker: Checker, frames: &[Frame]) -> Result<(), Rule> {
    let (ledger, _) = ledger();
    let mut all = || {
        for frame in frames {
            checker.take(*frame)?;
        }
        checker.finish(9, &ledger)
    };
    all().map_err(|fault| fault.rule)
}

fn breaks(
    checker: impl Fn() -> Checker,
    mut frames: Vec<Frame>,
    fault: fn(&mut Vec<Frame>),
    expected: &[Rule],
) {
    assert_eq!(judge(checker(), &frames), Ok(()), "the faithful record");
    fault(&mut frames);
    let found = judge(checker(), &frames).expect_err("a planted fault");
    assert!(expected.contains(&found), "{found:?} instead of {expected:?}");
}

#[test]
fn each_planted_fault_is_found() {
    use Rule::*;
    let (_, class) = ledger();
    let check = |fault, expected: &[Rule]| {
        breaks(|| Checker::behind(class, 3, true), faithful(), fault, expected);
    };
    check(|frames| frames.swap(0, 1), &[Ordered]);
    check(|frames| frames.swap(3, 4), &[Ordered, Reliable]);
    check(|frames| frames.insert(1, frames[0]), &[Unique]);
    check(|frames| frames.insert(2, frames[0]), &[Ordered]);
    check(|frames| frames.push(frames[6]), &[Unique]);
    check(
        |frames| {
            frames.remove(0);
        },
        &[Reliable],
    );
    check(
        |frames| {
            frames.remove(1);
        },
        &[Bookmarkable],
    );
    check(
        |frames| {
            frames.remove(6);
        },
        &[Complete],
    );
    check(|frames| frames.truncate(0), &[Complete]);
    check(|frames| frames[2] = bookmark(7, false), &[Bookmarkable]);
    check(|frames| frames[5] = bookmark(5, false), &[Bookmarkable]);
    check(|frames| frames[5] = bookmark(9, false), &[Bookmarkable]);
    check(|frames| frames.insert(0, bookmark(2, false)), &[Bookmarkable]);
    check(|frames| frames.insert(3, bookmark(6, true)), &[Unasked]);
    check(|frames| frames[0] = told(4, Kind::Added, 1, 1, 7), &[Filtered]);
    check(|frames| frames[1] = told(5, Kind::Modified, 2, 1, 7), &[Filtered]);
    check(|frames| frames[3] = told(7, Kind::Deleted, 1, 2, 8), &[Filtered]);
    check(|frames| frames[3] = told(7, Kind::Modified, 1, 2, 8), &[Filtered]);
    check(
        |frames| frames[4] = told(5, Kind::Deleted, 2, 1, 7),
        &[Bookmarkable, Ordered],
    );
    check(
        |frames| frames.insert(2, told(6, Kind::Added, 3, 0, 8)),
        &[Reliable],
    );
    check(|frames| frames.push(Frame::Error { code: 410 }), &[Open]);
    breaks(
        || Checker::behind(class, 3, true),
        faithful(),
        |frames| frames.insert(0, told(3, Kind::Added, 2, 0, 8)),
        &[Ordered],
    );
}

#[test]
fn each_planted_fault_of_initial_events_is_found() {
    use Rule::*;
    let (_, class) = ledger();
    let check = |fault, expected: &[Rule]| {
        breaks(|| Checker::initial(class), faithful_initial(), fault, expected);
    };
    check(
        |frames| {
            frames.remove(0);
        },
        &[Initial],
    );
    check(
        |frames| {
            frames.remove(1);
        },
        &[Initial, Unasked],
    );
    check(|frames| frames.insert(1, frames[0]), &[Initial]);
    check(|frames| frames[0] = told(3, Kind::Added, 1, 0, 7), &[Initial]);
    check(|frames| frames[0] = told(2, Kind::Modified, 1, 0, 7), &[Initial]);
    check(
        |frames| frames.insert(1, told(3, Kind::Added, 2, 0, 8)),
        &[Initial],
    );
    check(|frames| frames[1] = bookmark(4, true), &[Initial, Bookmarkable]);
    check(|frames| frames.insert(2, frames[1]), &[Unasked]);
    check(
        |frames| {
            frames.remove(2);
        },
        &[Reliable],
    );
    check(|frames| frames.truncate(1), &[Complete]);
}

#[test]
fn bookmarks_come_only_when_asked_for() {
    let (_, class) = ledger();
    let found = judge(Checker::behind(class, 3, false), &faithful());
    assert_eq!(found, Err(Rule::Unasked));
}

#[test]
fn a_watch_goes_on_behind_what_it_has_seen() {
    let (ledger, class) = ledger();
    for cut in 0..faithful().len() {
        let mut first = Checker::behind(class, 3, true);
        for frame in &faithful()[..cut] {
            first.take(*frame).unwrap();
        }
        first.settle(&ledger).unwrap();
        let seen = first.seen_to().unwrap();
        let second = || Checker::behind(class, seen, true);
        assert_eq!(judge(second(), &faithful()[cut..]), Ok(()), "cut {cut}");
        // Too early or too late is found.
        if cut > 0 && matches!(faithful()[cut - 1], Frame::Event(_)) {
            let found = judge(second(), &faithful()[cut - 1..]);
            assert_eq!(found, Err(Rule::Ordered), "cut {cut}");
        }
        if let Frame::Event(_) = faithful()[cut] {
            let found = judge(second(), &faithful()[cut + 1..]).unwrap_err();
            assert!(
                [Rule::Reliable, Rule::Complete, Rule::Bookmarkable].contains(&found),
                "cut {cut}: {found:?}"
            );
        }
    }
}

#[test]
fn what_the_ledger_has_not_heard_of_waits() {
    let (mut ledger, class) = ledger();
    let mut checker = Checker::behind(class, 9, true);
    checker.take(told(10, Kind::Added, 3, 1, 7)).unwrap();
    checker.settle(&ledger).unwrap();
    assert!(!checker.has_all_to(9, &ledger).unwrap());
    ledger.tell(told(10, Kind::Modified, 3, 1, 7)).unwrap();
    checker.settle(&ledger).unwrap();
    assert!(checker.has_all_to(10, &ledger).unwrap());
    // One that never happens is found when something later is known.
    checker.take(told(11, Kind::Added, 3, 2, 7)).unwrap();
    ledger.tell(told(12, Kind::Modified, 3, 2, 7)).unwrap();
    assert_eq!(checker.settle(&ledger).unwrap_err().rule, Rule::Reliable);
}

#[test]
fn a_watch_that_lags_behind_the_memory_is_told_so() {
    let (mut ledger, class) = ledger();
    let mut checker = Checker::behind(class, 3, true);
    checker.take(faithful()[0]).unwrap();
    checker.settle(&ledger).unwrap();
    ledger.forget_before(9);
    checker.take(faithful()[1]).unwrap();
    assert_eq!(checker.settle(&ledger).unwrap_err().rule, Rule::Forgotten);
    let late = Checker::behind(class, 3, true);
    assert_eq!(late.owed(&ledger).unwrap_err().rule, Rule::Forgotten);
    let in_time = Checker::behind(class, 8, true);
    assert_eq!(in_time.owed(&ledger).unwrap().map(|it| it.revision), Some(9));
}
