//! What the child says it does, line by line, and what the parent makes of it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use drydock_storage::{Event, Key, Value};

/// What a transaction does to its keys: the number of the new value, or nothing for a delete.
pub(crate) type Effects = BTreeMap<String, Option<u64>>;

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

/// What events did.
pub(crate) fn effects(events: &[Event]) -> Effects {
    let effect = |event: &Event| {
        let new = event.new.as_ref().map(|entry| number(&entry.value));
        (event.key.name().to_owned(), new)
    };
    events.iter().map(effect).collect()
}

fn encode(effects: &Effects) -> String {
    let effect = |(key, value): (&String, &Option<u64>)| match value {
        Some(value) => format!("{key}={value}"),
        None => format!("{key}="),
    };
    effects.iter().map(effect).collect::<Vec<_>>().join(",")
}

fn decode(text: &str) -> Effects {
    let effect = |text: &str| {
        let (key, value) = text.split_once('=').unwrap();
        (key.to_owned(), value.parse().ok())
    };
    text.split(',').map(effect).collect()
}

/// Something the child says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// The store is open at a revision.
    Open(u64),
    /// A transaction is about to be asked for.
    Call(u64, Effects),
    /// It was answered: it happened at a revision.
    Ack(u64, u64),
    /// A watch showed a revision.
    Seen(u64),
}

impl Line {
    /// Prints the line so that a kill leaves it whole or not at all.
    pub(crate) fn say(&self) {
        use std::io::Write;
        let text = match self {
            Self::Open(revision) => format!("@open {revision}\n"),
            Self::Call(id, effects) => format!("@call {id} {}\n", encode(effects)),
            Self::Ack(id, revision) => format!("@ack {id} {revision}\n"),
            Self::Seen(revision) => format!("@seen {revision}\n"),
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
            "call" => Self::Call(word()?.parse().ok()?, decode(word()?)),
            "ack" => Self::Ack(word()?.parse().ok()?, word()?.parse().ok()?),
            "seen" => Self::Seen(word()?.parse().ok()?),
            _ => return None,
        })
    }
}

/// All that a child said before it died.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) calls: BTreeMap<u64, Effects>,
    pub(crate) acks: BTreeMap<u64, u64>,
    pub(crate) newest_seen: u64,
}

impl Journal {
    /// Takes a line.
    pub(crate) fn take(&mut self, line: Line) {
        match line {
            Line::Open(revision) | Line::Seen(revision) => self.newest_seen = self.newest_seen.max(revision),
            Line::Call(id, effects) => {
                self.calls.insert(id, effects);
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

    /// Everything that was ever asked for.
    pub(crate) fn asked(&self) -> BTreeSet<&Effects> {
        self.calls.values().collect()
    }
}
