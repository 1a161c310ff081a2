//! What of a commit can be done before its turn?
//!
//! The task of the request encodes, compresses, seals and checksums both records of each write, so that the one
//! commit thread only appends what it alone knows. A history record needs the value before; it is taken from the
//! index. If another one turns out to be there when the turn comes, the commit thread encodes again.

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

/// Whether a write makes the store larger than it was.
fn grows(value: &Value, before: Option<&Slot>) -> bool {
    match before {
        Some(Slot::Whole(entry)) => value.bytes.len() > entry.value.bytes.len(),
        _ => true,
    }
}

/// What the index holds of the keys a transaction writes. Taken under its lock, used without.
pub(crate) fn values_before(index: &Index, transaction: &Transaction) -> Vec<Option<Slot>> {
    let writes = transaction.writes.iter();
    writes.map(|write| index.slot(write.key()).cloned()).collect()
}

/// Encodes a transaction whose form has been checked; `may_grow` is false when the disk is nearly full.
pub(crate) fn prepare(
    records: &Records,
    transaction: Transaction,
    before: Vec<Option<Slot>>,
    may_grow: bool,
) -> Result<Prepared, StoreError> {
    let mut writes = Vec::with_capacity(transaction.writes.len());
    for (write, before) in transaction.writes.into_iter().zip(before) {
        if let Write::Put(_, value) = &write
            && !may_grow
            && grows(value, before.as_ref())
        {
            return Err(StoreError::ReadOnly {
                reason: "the disk is nearly full: only deletes and writes that do not grow are taken"
                    .to_owned(),
            });
        }
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
    fn check(before: Option<usize>, size: usize, expected: bool) {
        let records = Records::new(Arc::new(Unsealed));
        let slot = before.map(|before| {
            Slot::Whole(Entry {
                value: value(before),
                created: Revision(2),
                modified: Revision(2),
            })
        });
        let put = Transaction {
            conditions: Vec::new(),
            writes: vec![Write::Put(key(), value(size))],
        };
        let taken = prepare(&records, put, vec![slot], false);
        assert_eq!(taken.is_ok(), expected, "{size} over {before:?}");
    }

    #[test]
    fn a_full_disk_takes_what_does_not_grow() {
        check(None, 0, false);
        check(Some(10), 11, false);
        check(Some(10), 10, true);
        check(Some(10), 9, true);
        let records = Records::new(Arc::new(Unsealed));
        let delete = Transaction::delete(key(), Revision(2));
        prepare(&records, delete, vec![None], false).unwrap();
    }
}
