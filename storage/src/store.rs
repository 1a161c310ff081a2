//! The contract every backend keeps.
//!
//! Guarantees, each with a test in the conformance suite:
//! - *revision*: one number a store; every committed transaction takes the next one, all its writes share it;
//! - *durable*: an answer to a write is sent only after the write is on disk, and nothing that is not
//!   durable is ever visible to a get, scan, watch or conflict;
//! - *strictly serializable*: transactions, gets, scans at [`At::Latest`];
//! - *exact past*: a scan at a revision equals the state right after it, on every page;
//! - *watch*: ordered, unique, reliable, atomic by revision, resumable;
//! - *refuse, do not guess*: damage is reported, never an empty answer.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use crate::{Key, KeyRange, Revision, StoreError};

/// What is stored under a key: opaque bytes and the little that readers need without parsing them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The payload: immutable and shared.
    pub bytes: Bytes,
    /// Names the form of the payload (the API version of the stored object), so that stale forms can be found.
    pub form: Arc<str>,
    /// An offset into `bytes` that travels with the value: where its reader splices text in.
    pub splice_offset: u32,
}

impl Value {
    /// The largest payload in bytes: 1.5 MiB, as with etcd, so that objects can move between backends.
    pub const MAX_BYTES: usize = 3 << 19;

    /// What stands for a value that failed its checks, in the event of its removal: no bytes of no form.
    #[must_use]
    pub fn unreadable() -> Self {
        Self {
            bytes: Bytes::new(),
            form: "".into(),
            splice_offset: 0,
        }
    }

    /// Whether this is [`Value::unreadable`].
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        self.bytes.is_empty() && self.form.is_empty()
    }
}

/// A value with its place in history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Value,
    /// The revision at which the key came to be; recreation starts anew.
    pub created: Revision,
    /// The revision of the last write.
    pub modified: Revision,
}

/// What a transaction expects of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// There is no such key.
    Absent,
    /// The key was last written at this revision.
    Revision(Revision),
}

/// A key and what it must be for the transaction to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The key.
    pub key: Key,
    /// What must hold.
    pub expect: Expect,
}

/// One change of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Set the value.
    Put(Key, Value),
    /// Remove the key; removing an absent key is [`StoreError::Malformed`] unless a condition guards it.
    Delete(Key),
}

impl Write {
    /// The key that is written.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

/// All conditions hold and all writes happen at one new revision, or nothing happens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold; at most [`Transaction::MAX_KEYS`].
    pub conditions: Vec<Condition>,
    /// What then changes; at most [`Transaction::MAX_KEYS`], one write a key. None = a linearizable check.
    pub writes: Vec<Write>,
    /// Whether a store without room lets it make values larger that are there: for what leads to less, such as a mark
    /// that an object is to go. New keys are never taken then.
    pub may_grow: bool,
}

impl Transaction {
    /// The most conditions, and the most writes, of one transaction.
    pub const MAX_KEYS: usize = 1024;

    /// Create `key` if it is absent.
    #[must_use]
    pub fn create(key: Key, value: Value) -> Self {
        Self {
            conditions: vec![Condition {
                key: key.clone(),
                expect: Expect::Absent,
            }],
            writes: vec![Write::Put(key, value)],
            may_grow: false,
        }
    }

    /// Replace the value of `key` if it was last written at `base`.
    #[must_use]
    pub fn update(key: Key, base: Revision, value: Value) -> Self {
        Self {
            conditions: vec![Condition {
                key: key.clone(),
                expect: Expect::Revision(base),
            }],
            writes: vec![Write::Put(key, value)],
            may_grow: false,
        }
    }

    /// Remove `key` if it was last written at `base`.
    #[must_use]
    pub fn delete(key: Key, base: Revision) -> Self {
        Self {
            conditions: vec![Condition {
                key: key.clone(),
                expect: Expect::Revision(base),
            }],
            writes: vec![Write::Delete(key)],
            may_grow: false,
        }
    }

    /// Ask, linearizably, whether `key` is still what it was at `base`.
    #[must_use]
    pub fn check(key: Key, base: Revision) -> Self {
        Self {
            conditions: vec![Condition {
                key,
                expect: Expect::Revision(base),
            }],
            writes: Vec::new(),
            may_grow: false,
        }
    }

    /// The same, let grow or not: see [`Transaction::may_grow`].
    #[must_use]
    pub fn growing(self, may_grow: bool) -> Self {
        Self { may_grow, ..self }
    }

    /// Whether a store without room refuses it. `before` tells how long the values are that it writes over, in the
    /// order of its writes.
    pub(crate) fn needs_room(&self, before: impl IntoIterator<Item = Option<usize>>) -> bool {
        let mut writes = self.writes.iter().zip(before);
        writes.any(|(write, before)| match (write, before) {
            (Write::Delete(_), _) => false,
            (Write::Put(..), None) => true,
            (Write::Put(_, value), Some(before)) => !self.may_grow && value.bytes.len() > before,
        })
    }

    /// Whether any backend takes it, without a look at what is stored.
    ///
    /// # Errors
    /// [`StoreError::Malformed`] for too many keys or two writes of one key, [`StoreError::TooLarge`] for a
    /// value beyond [`Value::MAX_BYTES`].
    pub fn check_form(&self) -> Result<(), StoreError> {
        if self.conditions.len() > Self::MAX_KEYS || self.writes.len() > Self::MAX_KEYS {
            return Err(StoreError::Malformed {
                reason: "it has more than 1024 conditions or writes",
            });
        }
        for write in &self.writes {
            if let Write::Put(_, value) = write
                && value.bytes.len() > Value::MAX_BYTES
            {
                return Err(StoreError::TooLarge {
                    found: value.bytes.len(),
                    limit: Value::MAX_BYTES,
                });
            }
        }
        if self.writes.len() > 1 {
            let mut seen = HashSet::with_capacity(self.writes.len());
            if !self.writes.iter().all(|write| seen.insert(write.key())) {
                return Err(StoreError::Malformed {
                    reason: "it writes one key twice",
                });
            }
        }
        Ok(())
    }
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It happened, durably, at this revision (without writes: it holds at this revision).
    Committed {
        /// The revision taken, or the current one for a transaction without writes.
        revision: Revision,
    },
    /// A condition does not hold.
    Conflict {
        /// The revision at which it was found not to hold.
        revision: Revision,
        /// What the keys of the conditions hold, in their order; all of it durable.
        current: Vec<Option<Entry>>,
    },
}

/// A linearizable read of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The revision the answer is valid at.
    pub revision: Revision,
    /// What the key holds.
    pub entry: Option<Entry>,
}

/// Which state to scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The newest, linearizable.
    Latest,
    /// The state right after this revision.
    Exactly(Revision),
}

/// Which part of a range to scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Only keys greater than this text; empty = from the start of the range.
    pub after: String,
    /// At most so many entries; 0 = all.
    pub limit: usize,
    /// What becomes of keys whose value cannot be read.
    pub damaged: Damaged,
}

/// What a scan makes of keys whose value failed its checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Damaged {
    /// Refuse the whole range with [`StoreError::Corrupt`]: a list must not have holes that nobody sees.
    #[default]
    Refuse,
    /// Name them in [`Scan::damaged`] and go on.
    SetApart,
}

/// A page of entries in key order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The revision the page shows.
    pub revision: Revision,
    /// The entries, ordered by key.
    pub entries: Vec<(Key, Entry)>,
    /// With [`Damaged::SetApart`], the keys in the page's part of the range whose value cannot be read, ordered.
    pub damaged: Vec<Key>,
    /// Whether entries follow beyond the limit.
    pub more: bool,
}

/// What happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The key came to be.
    Created,
    /// Its value changed.
    Updated,
    /// It was removed.
    Deleted,
}

/// One change of one key. Holds both sides, so that a reader needs no other look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: Key,
    /// What happened.
    pub kind: EventKind,
    /// What the key holds since; none for [`EventKind::Deleted`].
    pub new: Option<Entry>,
    /// What it held before; none for [`EventKind::Created`], and [`Value::unreadable`] when that could not be read.
    pub old: Option<Entry>,
}

/// What a watch delivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// All changes of one revision in the watched range, in the order they were written.
    Changes {
        /// The revision.
        revision: Revision,
        /// Never empty.
        events: Vec<Event>,
    },
    /// Everything up to this revision has been delivered.
    Progress(Revision),
    /// The reader fell behind what is kept; the watch ends with this signal. Holds the oldest watchable revision.
    Compacted(Revision),
}

/// A stream of signals. Dropping it ends the watch.
pub trait Events: Send + 'static {
    /// The next signal; `None` when the store is closed. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Option<Signal>> + Send;
}

/// The oldest revisions that can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floors {
    /// Oldest revision [`At::Exactly`] can show.
    pub listable_from: Revision,
    /// Oldest `first` a watch can start from.
    pub watchable_from: Revision,
}

impl Floors {
    /// Whether the state right after `revision` can be shown by a store that is at `current`.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] below the floor, [`StoreError::Future`] beyond current.
    pub fn check_listable(&self, revision: Revision, current: Revision) -> Result<Revision, StoreError> {
        if revision > current {
            return Err(StoreError::Future {
                requested: revision,
                current,
            });
        }
        if revision < self.listable_from {
            return Err(StoreError::Compacted {
                requested: revision,
                floor: self.listable_from,
            });
        }
        Ok(revision)
    }

    /// Whether a watch can start with `first` on a store that is at `current`.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] below the floor, [`StoreError::Future`] beyond current + 1.
    pub fn check_watchable(&self, first: Revision, current: Revision) -> Result<(), StoreError> {
        if first > current.next() {
            return Err(StoreError::Future {
                requested: first,
                current,
            });
        }
        if first < self.watchable_from {
            return Err(StoreError::Compacted {
                requested: first,
                floor: self.watchable_from,
            });
        }
        Ok(())
    }
}

/// Whether the store does its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Reads and writes.
    Ready,
    /// Reads only, and why.
    ReadOnly(String),
    /// A write failed in doubt: reads of what was published go on until the process ends, and why.
    Failed(String),
}

/// Durable, ordered values under keys, with history. See the module for the guarantees.
pub trait Store: Clone + Send + Sync + 'static {
    /// The stream type of [`Store::watch`].
    type Events: Events;

    /// Checks and writes, atomically. The future may be dropped: the write then happens or not, once.
    fn transact(&self, transaction: Transaction) -> impl Future<Output = Result<Outcome, StoreError>> + Send;

    /// Many independent transactions in order, each atomic and at a revision of its own, answered together.
    /// One refusal does not stop the others. Cheaper than one call each where the backend can batch.
    fn transact_many(
        &self,
        transactions: Vec<Transaction>,
    ) -> impl Future<Output = Vec<Result<Outcome, StoreError>>> + Send {
        join_all(
            transactions
                .into_iter()
                .map(|transaction| self.transact(transaction)),
        )
    }

    /// Reads one key, linearizably.
    fn get(&self, key: &Key) -> impl Future<Output = Result<Found, StoreError>> + Send;

    /// Reads a range in key order.
    fn scan(
        &self,
        range: &KeyRange,
        at: At,
        page: Page,
    ) -> impl Future<Output = Result<Scan, StoreError>> + Send;

    /// Removes a key whose value cannot be read, whatever it was: the one way to be rid of it. Its event holds
    /// [`Value::unreadable`].
    ///
    /// # Errors
    /// [`StoreError::Malformed`] for a key whose value can be read, or that is absent.
    fn remove_damaged(&self, key: &Key) -> impl Future<Output = Result<Outcome, StoreError>> + Send;

    /// Delivers every change of the range with a revision of at least `first`, in order.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] below the floor, [`StoreError::Future`] beyond current + 1.
    fn watch(
        &self,
        range: &KeyRange,
        first: Revision,
    ) -> impl Future<Output = Result<Self::Events, StoreError>> + Send;

    /// The newest committed revision, linearizably.
    fn current_revision(&self) -> impl Future<Output = Result<Revision, StoreError>> + Send;

    /// Asks watches for a [`Signal::Progress`] soon. A hint.
    fn request_progress(&self);

    /// Lets go of history up to and including `through`: `listable_from` and `watchable_from` become `through + 1`
    /// at least. A no-op when already there.
    fn compact(&self, through: Revision) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What can still be listed and watched.
    fn floors(&self) -> Floors;

    /// Whether the store does its work.
    fn health(&self) -> Health;

    /// Stops taking work, flushes and closes within `grace`. Idempotent; later calls answer [`StoreError::Closed`].
    fn close(&self, grace: Duration) -> impl Future<Output = Result<(), StoreError>> + Send;
}
