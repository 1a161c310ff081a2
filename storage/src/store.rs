//! The contract every backend keeps.
//!
//! Guarantees, each with a test in the conformance suite:
//! - *revision*: one number per store; every committed write takes the next one;
//! - *durable*: a write is acknowledged only after it is on disk, and nothing that is not durable is visible to a get,
//!   scan, watch or conflict;
//! - *strictly serializable*: transactions, gets, scans at [`At::Latest`];
//! - *exact past*: a scan at a revision equals the state right after it, on every page;
//! - *watch*: ordered, unique, reliable, resumable;
//! - *refuse, do not guess*: damage is reported, never served as an empty result.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use crate::{Key, KeyRange, Revision, StoreError};

/// What is stored under a key: opaque bytes, and the few properties that readers need without parsing them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Value {
    /// The payload: immutable and shared.
    pub bytes: Bytes,
    /// The form of the payload (the API version of the stored object), so that readers can convert old forms.
    pub form: Arc<str>,
    /// An offset into `bytes` stored with the value: where readers insert text when they serve it.
    pub splice_offset: u32,
}

impl Value {
    /// The largest payload in bytes: 1.5 MiB, as with etcd, so that objects can move between backends.
    pub const MAX_BYTES: usize = 3 << 19;

    /// Replaces a value that failed its checks in the event of its removal: no bytes, no form.
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The value.
    pub value: Value,
    /// The revision of the create; deletion and recreation start anew.
    pub created: Revision,
    /// The revision of the last write.
    pub modified: Revision,
}

/// What a transaction does to its key. Every write is conditional.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Set the value if the key is absent.
    Create(Value),
    /// Replace the value if the key was last written at `base`.
    Update {
        /// The expected revision of the last write.
        base: Revision,
        /// The new value.
        value: Value,
    },
    /// Remove the key if it was last written at `base`.
    Delete {
        /// The expected revision of the last write.
        base: Revision,
    },
}

impl Write {
    /// The expected revision of the key's last write; none if the key must be absent.
    #[must_use]
    pub fn base(&self) -> Option<Revision> {
        match self {
            Self::Create(_) => None,
            Self::Update { base, .. } | Self::Delete { base } => Some(*base),
        }
    }

    /// The new value; none for a delete.
    #[must_use]
    pub fn value(&self) -> Option<&Value> {
        match self {
            Self::Create(value) | Self::Update { value, .. } => Some(value),
            Self::Delete { .. } => None,
        }
    }

    /// As [`Write::value`], by value.
    #[must_use]
    pub fn into_value(self) -> Option<Value> {
        match self {
            Self::Create(value) | Self::Update { value, .. } => Some(value),
            Self::Delete { .. } => None,
        }
    }
}

/// One conditional write of one key, at one new revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The key.
    pub key: Key,
    /// What is written, and the condition for it.
    pub write: Write,
    /// How much longer a full store lets an update make the value. A full store never accepts a create.
    pub growth: Growth,
}

/// How much longer an update may make a value while the store is full. What goes on in a full store leads to removals, which
/// are the way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Growth {
    /// Not at all.
    #[default]
    None,
    /// Up to this length in bytes, as long as the reserve of the store lasts. For reports about an object, and for updates of
    /// objects that are being deleted.
    UpTo(usize),
    /// By as much as a deletion timestamp takes, even when the reserve is used up: an object gets one once.
    Deletion,
}

impl Growth {
    /// What setting a deletion timestamp may add to a value, in bytes: with the finalizer and the managed fields that go
    /// with it.
    pub const DELETION_BYTES: usize = 1024;
}

impl Transaction {
    fn new(key: Key, write: Write) -> Self {
        Self {
            key,
            write,
            growth: Growth::None,
        }
    }

    /// Create `key` if it is absent.
    #[must_use]
    pub fn create(key: Key, value: Value) -> Self {
        Self::new(key, Write::Create(value))
    }

    /// Replace the value of `key` if it was last written at `base`.
    #[must_use]
    pub fn update(key: Key, base: Revision, value: Value) -> Self {
        Self::new(key, Write::Update { base, value })
    }

    /// Remove `key` if it was last written at `base`.
    #[must_use]
    pub fn delete(key: Key, base: Revision) -> Self {
        Self::new(key, Write::Delete { base })
    }

    /// Sets [`Transaction::growth`].
    #[must_use]
    pub fn growing(self, growth: Growth) -> Self {
        Self { growth, ..self }
    }

    /// Whether a full store refuses it. `before` is the length of the value it overwrites; `has_reserve` says whether reports
    /// may still grow.
    pub(crate) fn needs_room(&self, before: Option<usize>, has_reserve: bool) -> bool {
        let (value, before) = match (self.write.value(), before) {
            (None, _) => return false,
            (Some(_), None) => return true,
            (Some(value), Some(before)) => (value.bytes.len(), before),
        };
        let grown = value.saturating_sub(before);
        grown > 0
            && match self.growth {
                Growth::None => true,
                Growth::UpTo(limit) => value > limit || !has_reserve,
                Growth::Deletion => grown > Growth::DELETION_BYTES,
            }
    }

    /// Checks the limits that hold on every backend.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] for a value beyond [`Value::MAX_BYTES`].
    pub fn check_size(&self) -> Result<(), StoreError> {
        let found = self.write.value().map_or(0, |value| value.bytes.len());
        if found > Value::MAX_BYTES {
            return Err(StoreError::TooLarge {
                found,
                limit: Value::MAX_BYTES,
            });
        }
        Ok(())
    }
}

/// The outcome of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The write is durable, at this revision.
    Committed {
        /// The revision it took.
        revision: Revision,
    },
    /// The condition does not hold.
    Conflict {
        /// The revision at which it was checked.
        revision: Revision,
        /// What the key holds, durably.
        current: Option<Entry>,
    },
}

/// The result of a linearizable read of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The revision of the state that was read.
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
    /// Only keys greater than this text; empty: from the start of the range.
    pub after: String,
    /// At most this many entries; 0: all.
    pub limit: usize,
    /// How keys whose value cannot be read are treated.
    pub damaged: Damaged,
}

/// How a scan treats keys whose value cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Damaged {
    /// Fail the whole scan with [`StoreError::Corrupt`] or [`StoreError::Sealed`]: a list must not have invisible holes.
    #[default]
    Refuse,
    /// Return their keys in [`Scan::damaged`] and go on.
    SetApart,
}

/// Which values [`Store::remove_damaged`] removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removable {
    /// Damaged ones. One that is sealed and does not open is kept: its key may come back.
    Damaged,
    /// Sealed ones that do not open, too: whoever asks gives their key up.
    DamagedOrSealed,
}

/// Why a stored value cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// It failed its checks.
    Damaged,
    /// It is sealed and does not open, for this reason. It may later.
    Sealed(Arc<str>),
}

impl Unread {
    /// The error of a read of `key`.
    #[must_use]
    pub fn error(&self, key: &Key) -> StoreError {
        let key = key.to_string();
        match self {
            Self::Damaged => StoreError::Corrupt {
                key,
                reason: "its value fails its checks".to_owned(),
            },
            Self::Sealed(reason) => StoreError::Sealed {
                key,
                reason: reason.to_string(),
            },
        }
    }

    /// What an error of a read of one key says; none if it says nothing about the value.
    #[must_use]
    pub fn of(error: &StoreError) -> Option<Self> {
        match error {
            StoreError::Corrupt { .. } => Some(Self::Damaged),
            StoreError::Sealed { reason, .. } => Some(Self::Sealed(reason.as_str().into())),
            _ => None,
        }
    }
}

/// A page of entries in key order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The revision the page shows.
    pub revision: Revision,
    /// The entries, ordered by key.
    pub entries: Vec<(Key, Entry)>,
    /// With [`Damaged::SetApart`], the keys within the page whose value cannot be read, ordered, and why.
    pub damaged: Vec<(Key, Unread)>,
    /// Whether entries follow beyond the limit.
    pub more: bool,
}

/// What a write did to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The key was absent before.
    Created,
    /// The value was replaced.
    Updated,
    /// The key was removed.
    Deleted,
}

/// The change of one revision. Holds the value before and after, so that a reader needs no second read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Event {
    /// The revision of the change.
    pub revision: Revision,
    /// The key.
    pub key: Key,
    /// What the write did.
    pub kind: EventKind,
    /// What the key holds after it; none for [`EventKind::Deleted`].
    pub new: Option<Entry>,
    /// What it held before; none for [`EventKind::Created`], and [`Value::unreadable`] if that could not be read.
    pub old: Option<Entry>,
}

/// What a watch delivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// A change in the watched range.
    Change(Event),
    /// Everything up to this revision has been delivered.
    Progress(Revision),
    /// History after the reader's position was compacted; the watch ends with this signal. Holds the oldest watchable
    /// revision.
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

/// Which operations the store serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Reads and writes.
    Ready,
    /// Reads only, and why.
    ReadOnly(String),
    /// The store does not answer now, and why. It may again without a restart.
    Unreachable(String),
    /// The outcome of a write is unknown: reads of published state go on until the process ends. Holds the cause.
    Failed(String),
}

/// Durable, ordered values under keys, with history. See the module for the guarantees.
pub trait Store: Clone + Send + Sync + 'static {
    /// The stream type of [`Store::watch`].
    type Events: Events;

    /// Checks the condition and writes, atomically. If the future is dropped, the write happens once or not at all.
    fn transact(&self, transaction: Transaction) -> impl Future<Output = Result<Outcome, StoreError>> + Send;

    /// Runs independent transactions, each at a revision of its own, and returns all outcomes together. Those of one key
    /// run in their order. One failure does not stop the others. Cheaper than single calls where the backend batches.
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

    /// Removes a key whose value cannot be read; no other call can. The event holds [`Value::unreadable`].
    ///
    /// # Errors
    /// [`StoreError::NotDamaged`] for a key whose value can be read, or that is absent; [`StoreError::Sealed`] for one that is
    /// sealed and does not open, unless `which` includes those.
    fn remove_damaged(
        &self,
        key: &Key,
        which: Removable,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send;

    /// Delivers every change of the range with a revision of at least `first`, in order.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] below the floor, [`StoreError::Future`] beyond current + 1.
    fn watch(
        &self,
        range: &KeyRange,
        first: Revision,
    ) -> impl Future<Output = Result<Self::Events, StoreError>> + Send;

    /// Whether a write should replace the value of a key although it is the same, because it is sealed with a key that
    /// nothing is sealed with any more. A key that was written since `at`, or is absent, is not stale.
    fn is_stale(&self, key: &Key, at: Revision) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = (key, at);
        ready(Ok(false))
    }

    /// The newest committed revision, linearizably.
    fn current_revision(&self) -> impl Future<Output = Result<Revision, StoreError>> + Send;

    /// Asks every watch to deliver a [`Signal::Progress`] soon. A hint.
    fn request_progress(&self);

    /// Drops history up to and including `through`: `listable_from` and `watchable_from` become at least `through + 1`.
    /// Does nothing if they are already.
    fn compact(&self, through: Revision) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The oldest revisions that can be listed and watched.
    fn floors(&self) -> Floors;

    /// Which operations the store serves.
    fn health(&self) -> Health;

    /// Stops accepting work, flushes and closes within `grace`. Idempotent; later operations fail with
    /// [`StoreError::Closed`].
    fn close(&self, grace: Duration) -> impl Future<Output = Result<(), StoreError>> + Send;
}
