//! What the child says it does, line by line, and what the parent makes of it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use drydock_storage::{Event, Key, Value};

/// What a transaction does: the name of its key, and the number of the new value or nothing for a delete.
pub(crate) type Effect = (String, Option<u64>);

/// How many keys the child writes to.
pub(crate) const KEYS: usize = 24;

/// The key with a number.
pub(crate) fn key(number: usize) -> Key {
    Key::new("example.com", "things", "n", &format!("k{number:02}")).unwrap()
}

/// The value with a number: its size and every byte follow from it.
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

/// The number of a value, which must be whole.
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

/// What an event did.
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

/// Something the child says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// The store is open at a revision.
    Open(u64),
    /// The store does not open, for want of room.
    Refused(String),
    /// A transaction is about to be asked for.
    Call(u64, Effect),
    /// It was answered: it happened at a revision.
    Ack(u64, u64),
    /// It was answered: nobody knows.
    Unknown(u64),
    /// A watch showed a revision.
    Seen(u64),
    /// The store has failed and serves reads; the values they show, by number, and why.
    Failed(BTreeSet<u64>, String),
    /// The failpoint of the ordered death was met.
    Met(String),
    /// The child found something that must not be.
    Fault(String),
}

impl Line {
    /// Prints the line so that a kill leaves it whole or not at all.
    pub(crate) fn say(&self) {
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
            Self::Met(point) => format!("@met {point}\n"),
            Self::Fault(what) => format!("@fault {what}\n"),
        };
        if std::io::stdout().lock().write_all(text.as_bytes()).is_err() {
            // The parent is gone.
            std::process::exit(1);
        }
    }

    /// Reads a line; what the test harness prints is none, though it may stand before one.
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
            "met" => Self::Met(word()?.to_owned()),
            "fault" => Self::Fault(rest.to_owned()),
            _ => return None,
        })
    }
}

/// All that a child said before it died.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) calls: BTreeMap<u64, Effect>,
    /// Transactions by the revision they were acknowledged at.
    pub(crate) acks: BTreeMap<u64, u64>,
    pub(crate) unknown: BTreeSet<u64>,
    pub(crate) newest_seen: u64,
    /// Why the store did not open.
    pub(crate) refused: Option<String>,
    /// Why the store failed, and which values it showed after that.
    pub(crate) failure: Option<(String, BTreeSet<u64>)>,
    /// The failpoint at which the child died.
    pub(crate) met: Option<String>,
}

impl Journal {
    /// Takes a line.
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
            Line::Met(point) => self.met = Some(point),
            Line::Fault(what) => panic!("the child found: {what}"),
            Line::Call(id, effect) => {
                self.calls.insert(id, effect);
            }
            Line::Ack(id, revision) => {
                assert_eq!(
                    self.acks.insert(revision, id),
                    None,
                    "revision {revision} was handed out twice"
                );
                self.newest_seen = self.newest_seen.max(revision);
            }
        }
    }

    /// Nothing of a doubtful write was shown by the process that was in doubt.
    pub(crate) fn check_that_doubt_is_hidden(&self) {
        let shown = self.failure.iter().flat_map(|(_, shown)| shown);
        for number in shown {
            assert!(
                !self.unknown.contains(number),
                "the doubtful value {number} was shown"
            );
        }
    }

    /// Everything that was ever asked for.
    pub(crate) fn asked(&self) -> BTreeSet<&Effect> {
        self.calls.values().collect()
    }
}
