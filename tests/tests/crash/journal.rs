//! The lines that a child prints about its work, and the parent's record of them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use drydock_storage::{Event, Key, Value};

/// The effect of a transaction: the name of its key, and the number of the new value or `None` for a delete.
pub(crate) type Effect = (String, Option<u64>);

/// The number of keys that the child writes to.
pub(crate) const KEYS: usize = 24;

/// The key with a number.
pub(crate) fn key(number: usize) -> Key {
    Key::new("example.com", "things", "n", &format!("k{number:02}")).unwrap()
}

/// The value with a number, which determines its size and every byte.
pub(crate) fn value(number: u64) -> Value {
    let mut text = format!("{number};");
    let size = usize::try_from(number % 1009 * 7919 % 3000).unwrap();
    while text.len() < size {
        let filler = number.wrapping_mul(31).wrapping_add(text.len() as u64);
        text.push_str(&filler.to_string());
    }
    Value {
        bytes: Bytes::from(text),
        form: "example.com/v1".into(),
        splice_offset: 1,
    }
}

/// The number of a value, which must be complete.
pub(crate) fn number(found: &Value) -> u64 {
    let text = std::str::from_utf8(&found.bytes).unwrap();
    let number = text.split(';').next().unwrap().parse().unwrap();
    assert_eq!(
        *found,
        value(number),
        "the value {number} is not what was written"
    );
    number
}

/// The effect of an event.
pub(crate) fn effect(event: &Event) -> Effect {
    let new = event.new.as_ref().map(|entry| number(&entry.value));
    (event.key.name().to_owned(), new)
}

fn encode((key, value): &Effect) -> String {
    match value {
        Some(value) => format!("{key}={value}"),
        None => format!("{key}="),
    }
}

fn decode(text: &str) -> Effect {
    let (key, value) = text.split_once('=').unwrap();
    (key.to_owned(), value.parse().ok())
}

/// A line that the child prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// The store is open at a revision.
    Open(u64),
    /// The store does not open, because the disk is full.
    Refused(String),
    /// A transaction is about to be sent.
    Call(u64, Effect),
    /// It was committed at a revision.
    Ack(u64, u64),
    /// Its outcome is unknown.
    Unknown(u64),
    /// A watch delivered a revision.
    Seen(u64),
    /// The store has failed and serves reads: the values that they return, by number, and the reason.
    Failed(BTreeSet<u64>, String),
    /// The failpoint of the injected kill was reached.
    Reached(String),
    /// The child panicked.
    Bug(String),
}

impl Line {
    /// Prints the line in one write, so that a kill leaves all of it or nothing.
    pub(crate) fn print(&self) {
        use std::io::Write;
        let text = match self {
            Self::Open(revision) => format!("@open {revision}\n"),
            Self::Refused(why) => format!("@refused {why}\n"),
            Self::Call(id, effect) => format!("@call {id} {}\n", encode(effect)),
            Self::Ack(id, revision) => format!("@ack {id} {revision}\n"),
            Self::Unknown(id) => format!("@unknown {id}\n"),
            Self::Seen(revision) => format!("@seen {revision}\n"),
            Self::Failed(shown, why) => {
                let shown: Vec<String> = shown.iter().map(ToString::to_string).collect();
                format!("@failed {} {why}\n", shown.join(","))
            }
            Self::Reached(point) => format!("@met {point}\n"),
            Self::Bug(what) => format!("@fault {what}\n"),
        };
        if std::io::stdout().lock().write_all(text.as_bytes()).is_err() {
            // The parent is gone.
            std::process::exit(1);
        }
    }

    /// Parses a line; output of the test harness may precede it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (verb, rest) = text.split_once('@')?.1.split_once(' ')?;
        let mut words = rest.split(' ');
        let mut word = || words.next();
        Some(match verb {
            "open" => Self::Open(word()?.parse().ok()?),
            "refused" => Self::Refused(rest.to_owned()),
            "call" => Self::Call(word()?.parse().ok()?, decode(word()?)),
            "ack" => Self::Ack(word()?.parse().ok()?, word()?.parse().ok()?),
            "unknown" => Self::Unknown(word()?.parse().ok()?),
            "seen" => Self::Seen(word()?.parse().ok()?),
            "failed" => {
                let (shown, why) = rest.split_once(' ')?;
                let shown = shown.split(',').filter_map(|shown| shown.parse().ok());
                Self::Failed(shown.collect(), why.to_owned())
            }
            "met" => Self::Reached(word()?.to_owned()),
            "fault" => Self::Bug(rest.to_owned()),
            _ => return None,
        })
    }
}

/// Everything that a child printed.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) calls: BTreeMap<u64, Effect>,
    /// Transactions by the revision of their acknowledgement.
    pub(crate) acks: BTreeMap<u64, u64>,
    pub(crate) unknown: BTreeSet<u64>,
    pub(crate) newest_seen: u64,
    /// The reason why the store did not open.
    pub(crate) refused: Option<String>,
    /// The reason why the store failed, and the values that it returned afterwards.
    pub(crate) failure: Option<(String, BTreeSet<u64>)>,
    /// The failpoint at which the child was killed.
    pub(crate) reached: Option<String>,
}

impl Journal {
    /// Records a line.
    pub(crate) fn take(&mut self, line: Line) {
        match line {
            Line::Open(revision) => {
                assert!(
                    revision >= self.newest_seen,
                    "it opened at {revision}, {} was seen",
                    self.newest_seen
                );
                self.newest_seen = revision;
            }
            Line::Refused(why) => self.refused = Some(why),
            Line::Seen(revision) => self.newest_seen = self.newest_seen.max(revision),
            Line::Unknown(id) => drop(self.unknown.insert(id)),
            Line::Failed(shown, why) => self.failure = Some((why, shown)),
            Line::Reached(point) => self.reached = Some(point),
            Line::Bug(what) => panic!("the child panicked: {what}"),
            Line::Call(id, effect) => {
                self.calls.insert(id, effect);
            }
            Line::Ack(id, revision) => {
                assert_eq!(
                    self.acks.insert(revision, id),
                    None,
                    "revision {revision} was assigned twice"
                );
                self.newest_seen = self.newest_seen.max(revision);
            }
        }
    }

    /// Checks that no write with an unknown outcome was served.
    pub(crate) fn check_unknown_writes_are_hidden(&self) {
        let shown = self.failure.iter().flat_map(|(_, shown)| shown);
        for number in shown {
            assert!(
                !self.unknown.contains(number),
                "the value {number} with an unknown outcome was served"
            );
        }
    }

    /// The effects of all transactions that were sent.
    pub(crate) fn asked(&self) -> BTreeSet<&Effect> {
        self.calls.values().collect()
    }
}
