//! Encodes a transaction before it is queued.
//!
//! The task of the request encodes, compresses, seals and checksums both records of a write, so that the single commit
//! thread only appends what it alone knows. A history record holds the value before, taken from the published index. If
//! the commit thread finds another value there (an earlier transaction of the same batch wrote it), it encodes again.

use super::capacity::Cramped;
use super::index::Slot;
use super::queue::Weight;
use crate::record::Records;
use crate::{Key, Revision, StoreError, Transaction, Value};

/// An encoded transaction.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) key: Key,
    /// The expected revision of the last write; none: the key must be absent.
    pub(crate) base: Option<Revision>,
    /// The new value; none for a delete.
    pub(crate) value: Option<Value>,
    /// Empty for a delete.
    pub(crate) state_body: Vec<u8>,
    pub(crate) history_body: Vec<u8>,
    /// The revision of the value before that `history_body` holds.
    pub(crate) assumed: Option<Revision>,
    /// Whether it may delete a key whose value is damaged.
    pub(crate) may_remove_damaged: bool,
}

impl Prepared {
    pub(crate) fn weight(&self) -> Weight {
        let plain = self.value.as_ref().map_or(0, |value| value.bytes.len());
        Weight {
            writes: 1,
            bytes: self.state_body.len() + self.history_body.len() + plain,
        }
    }
}

/// Encodes a transaction whose size has been checked. `before` is the published value of its key; `cramped` is set if the
/// store is full.
pub(crate) fn prepare(
    records: &Records,
    transaction: Transaction,
    before: Option<&Slot>,
    cramped: Option<Cramped>,
) -> Result<Prepared, StoreError> {
    let before = match before {
        Some(Slot::Whole(entry)) => Some(entry),
        Some(Slot::Damaged(_) | Slot::Sealed(..)) | None => None,
    };
    if let Some(cramped) = cramped
        && transaction.needs_room(before.map(|entry| entry.value.bytes.len()), cramped.has_reserve())
    {
        return Err(StoreError::Full {
            reason: cramped.to_string(),
        });
    }
    let Transaction { key, write, .. } = transaction;
    let base = write.base();
    let value = write.into_value();
    let state_body = match &value {
        Some(value) => records
            .state_body(&key, value)
            .map_err(|error| error.of_write())?,
        None => Vec::new(),
    };
    let old = before.map(|entry| &entry.value);
    let history_body = records
        .history_body(&key, old, value.as_ref())
        .map_err(|error| error.of_write())?;
    Ok(Prepared {
        base,
        value,
        state_body,
        history_body,
        assumed: before.map(|entry| entry.modified),
        may_remove_damaged: false,
        key,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::seal::Unsealed;
    use crate::{Entry, Growth};

    const SHORT: Cramped = Cramped::Objects {
        found: 12,
        limit: 10,
        reserve: 2,
    };
    const FULL: Cramped = Cramped::Objects {
        found: 13,
        limit: 10,
        reserve: 2,
    };

    fn key() -> Key {
        Key::new("g", "r", "n", "name").unwrap()
    }

    fn value(size: usize) -> Value {
        Value {
            bytes: Bytes::from(vec![0; size]),
            form: "g/v1".into(),
            splice_offset: 0,
        }
    }

    /// Whether a full store accepts a value of `size` bytes over one of `before` bytes.
    fn check(before: Option<usize>, size: usize, growth: Growth, cramped: Cramped, expected: bool) {
        let records = Records::new(Arc::new(Unsealed));
        let base = Revision(2);
        let slot = before.map(|before| {
            Slot::Whole(Entry {
                value: value(before),
                created: base,
                modified: base,
            })
        });
        let put = match &slot {
            None => Transaction::create(key(), value(size)),
            Some(_) => Transaction::update(key(), base, value(size)),
        };
        let result = prepare(&records, put.growing(growth), slot.as_ref(), Some(cramped));
        assert_eq!(
            result.is_ok(),
            expected,
            "{size} over {before:?}, {growth:?}, {cramped:?}"
        );
    }

    #[test]
    fn a_full_disk_accepts_writes_that_do_not_grow() {
        for cramped in [Cramped::Disk, SHORT, FULL] {
            check(None, 0, Growth::None, cramped, false);
            check(Some(10), 11, Growth::None, cramped, false);
            check(Some(10), 10, Growth::None, cramped, true);
            check(Some(10), 9, Growth::None, cramped, true);
        }
        let records = Records::new(Arc::new(Unsealed));
        let delete = Transaction::delete(key(), Revision(2));
        prepare(&records, delete, None, Some(Cramped::Disk)).unwrap();
    }

    #[test]
    fn a_full_disk_accepts_growing_updates_but_no_growing_creates() {
        for cramped in [Cramped::Disk, SHORT] {
            check(Some(10), 11, Growth::UpTo(11), cramped, true);
            check(Some(10), 12, Growth::UpTo(11), cramped, false);
            check(None, 0, Growth::UpTo(11), cramped, false);
        }
    }

    #[test]
    fn without_a_reserve_only_deletion_timestamps_may_grow() {
        check(Some(10), 11, Growth::UpTo(11), FULL, false);
        for cramped in [Cramped::Disk, SHORT, FULL] {
            check(
                Some(10),
                10 + Growth::DELETION_BYTES,
                Growth::Deletion,
                cramped,
                true,
            );
            check(
                Some(10),
                11 + Growth::DELETION_BYTES,
                Growth::Deletion,
                cramped,
                false,
            );
        }
    }
}
