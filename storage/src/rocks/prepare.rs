//! What of a commit can be done before its turn?
//!
//! The task of the request encodes, compresses, seals and checksums both records of each write, so that the one
//! commit thread only appends what it alone knows. A history record needs the value before; it is taken from the
//! index. If another one turns out to be there when the turn comes, the commit thread encodes again.

use super::disk::Cramped;
use super::index::{Index, Slot};
use super::queue::Weight;
use crate::record::{RecordError, Records};
use crate::{Condition, Entry, Key, Revision, StoreError, Transaction, Value, Write};

/// One write, encoded.
#[derive(Debug)]
pub(crate) struct PreparedWrite {
    pub(crate) key: Key,
    /// The new value; none for a delete.
    pub(crate) value: Option<Value>,
    /// Empty for a delete.
    pub(crate) state_body: Vec<u8>,
    pub(crate) history_body: Vec<u8>,
    /// The revision of the value before that `history_body` holds.
    pub(crate) assumed: Option<Revision>,
}

/// A transaction, encoded.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) writes: Vec<PreparedWrite>,
    /// Whether it may delete a key whose value is damaged.
    pub(crate) may_remove_damaged: bool,
}

impl Prepared {
    pub(crate) fn weight(&self) -> Weight {
        let bytes = |write: &PreparedWrite| {
            let plain = write.value.as_ref().map_or(0, |value| value.bytes.len());
            write.state_body.len() + write.history_body.len() + plain
        };
        Weight {
            // A check takes a place in the queue as well.
            writes: self.writes.len().max(1),
            bytes: self.writes.iter().map(bytes).sum(),
        }
    }
}

/// What the index holds of the keys a transaction writes. Taken under its lock, used without.
pub(crate) fn values_before(index: &Index, transaction: &Transaction) -> Vec<Option<Slot>> {
    let writes = transaction.writes.iter();
    writes.map(|write| index.slot(write.key()).cloned()).collect()
}

/// Encodes a transaction whose form has been checked; what needs room is refused if `cramped` says why there is none.
pub(crate) fn prepare(
    records: &Records,
    transaction: Transaction,
    before: Vec<Option<Slot>>,
    cramped: Option<Cramped>,
) -> Result<Prepared, StoreError> {
    let lengths = before.iter().map(|slot| match slot {
        Some(Slot::Whole(entry)) => Some(entry.value.bytes.len()),
        Some(Slot::Damaged(_)) | None => None,
    });
    if let Some(cramped) = cramped
        && transaction.needs_room(lengths)
    {
        return Err(StoreError::Full {
            reason: cramped.to_string(),
        });
    }
    let mut writes = Vec::with_capacity(transaction.writes.len());
    for (write, before) in transaction.writes.into_iter().zip(before) {
        let before = match before {
            Some(Slot::Whole(entry)) => Some(entry),
            Some(Slot::Damaged(_)) | None => None,
        };
        writes.push(prepare_write(records, write, before.as_ref())?);
    }
    Ok(Prepared {
        conditions: transaction.conditions,
        writes,
        may_remove_damaged: false,
    })
}

fn prepare_write(
    records: &Records,
    write: Write,
    before: Option<&Entry>,
) -> Result<PreparedWrite, StoreError> {
    let (key, value) = match write {
        Write::Put(key, value) => (key, Some(value)),
        Write::Delete(key) => (key, None),
    };
    let state_body = match &value {
        Some(value) => records
            .state_body(&key, value)
            .map_err(|error| cannot_encode(&error))?,
        None => Vec::new(),
    };
    let old = before.map(|entry| &entry.value);
    let history_body = records
        .history_body(&key, old, value.as_ref())
        .map_err(|error| cannot_encode(&error))?;
    Ok(PreparedWrite {
        key,
        value,
        state_body,
        history_body,
        assumed: before.map(|entry| entry.modified),
    })
}

/// Only sealing can fail, and then nothing was written.
pub(crate) fn cannot_encode(error: &RecordError) -> StoreError {
    StoreError::ReadOnly {
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::seal::Unsealed;

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

    /// Whether a disk that is nearly full takes a put of so many bytes over a value of `before` bytes.
    fn check(before: Option<usize>, size: usize, may_grow: bool, expected: bool) {
        let records = Records::new(Arc::new(Unsealed));
        let slot = before.map(|before| {
            Slot::Whole(Entry {
                value: value(before),
                created: Revision(2),
                modified: Revision(2),
            })
        });
        let put = Transaction {
            writes: vec![Write::Put(key(), value(size))],
            may_grow,
            ..Transaction::default()
        };
        let taken = prepare(&records, put, vec![slot], Some(Cramped::Disk));
        assert_eq!(taken.is_ok(), expected, "{size} over {before:?}");
    }

    #[test]
    fn a_full_disk_takes_what_does_not_grow() {
        check(None, 0, false, false);
        check(Some(10), 11, false, false);
        check(Some(10), 10, false, true);
        check(Some(10), 9, false, true);
        let records = Records::new(Arc::new(Unsealed));
        let delete = Transaction::delete(key(), Revision(2));
        prepare(&records, delete, vec![None], Some(Cramped::Disk)).unwrap();
    }

    #[test]
    fn what_leads_to_less_may_grow_but_not_begin() {
        check(Some(10), 11, true, true);
        check(None, 0, true, false);
    }
}
