//! The checksums of records.
//!
//! That of a value covers its key, form and splice offset, too, so that a value under another key is noticed. Sealed values have
//! theirs at the end of the payload, inside the seal; what is stored of them has another one, in clear.

use crc32fast::Hasher;
use drydock_proto::storage::v1::{HistoryRecord, Side, StateRecord};

use super::{Committed, Place};
use crate::{EventKind, Key, Revision, Value};

/// Takes the checksums off the end of an opened payload.
pub(super) fn split_crcs<const N: usize>(opened: &mut Vec<u8>) -> Option<[u32; N]> {
    let at = opened.len().checked_sub(N * size_of::<u32>())?;
    let bytes = opened.split_off(at);
    let mut crcs = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|crc| u32::from_le_bytes(*crc));
    Some(std::array::from_fn(|_| crcs.next().unwrap_or_default()))
}

/// The sides of a change with their checksums, which are taken off the end of the opened payload.
pub(super) fn sealed_sides(
    sides: (Option<Side>, Option<Side>),
    opened: &mut Vec<u8>,
) -> Option<(Option<Side>, Option<Side>)> {
    let with = |side: Side, content_crc| Some(Side { content_crc, ..side });
    Some(match sides {
        (Some(old), Some(new)) => {
            let [old_crc, new_crc] = split_crcs(opened)?;
            (with(old, old_crc), with(new, new_crc))
        }
        (Some(old), None) => {
            let [crc] = split_crcs(opened)?;
            (with(old, crc), None)
        }
        (None, Some(new)) => {
            let [crc] = split_crcs(opened)?;
            (None, with(new, crc))
        }
        (None, None) => (None, None),
    })
}

/// The checksum of a sealed state record as it is stored: of its payload, and of what it takes to open and read it.
pub(super) fn sealed_crc_of_state(record: &StateRecord) -> u32 {
    let mut hasher = sealed_by(&record.seal_key_id, record.codec);
    add_value(
        &mut hasher,
        &record.form,
        record.splice_offset,
        record.plain_length,
    );
    hasher.update(&record.payload);
    hasher.finalize()
}

/// The same of a sealed history record. Which of its values it has is in the checksum of its place.
pub(super) fn sealed_crc_of_change(record: &HistoryRecord) -> u32 {
    let mut hasher = sealed_by(&record.seal_key_id, record.codec);
    for side in [&record.old, &record.new].into_iter().flatten() {
        add_value(&mut hasher, &side.form, side.splice_offset, side.plain_length);
    }
    hasher.update(&record.payload);
    hasher.finalize()
}

fn sealed_by(key_id: &str, codec: i32) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.update(key_id.as_bytes());
    hasher.update(&[0]);
    hasher.update(&codec.to_le_bytes());
    hasher
}

fn add_value(hasher: &mut Hasher, form: &str, splice_offset: u32, plain_length: u32) {
    hasher.update(form.as_bytes());
    hasher.update(&[0]);
    hasher.update(&splice_offset.to_le_bytes());
    hasher.update(&plain_length.to_le_bytes());
}

/// Whether a record is as it was stored. `whole` is the checksum of one that has those of its values inside the seal; what
/// older versions sealed has a checksum of its payload, or none, and what is not sealed is covered by that of its content.
pub(super) fn is_intact(
    stored: Option<u32>,
    has_sealed_content_crc: bool,
    whole: impl FnOnce() -> u32,
    payload: &[u8],
) -> bool {
    if has_sealed_content_crc {
        stored == Some(whole())
    } else {
        stored.is_none_or(|crc| crc == crc32fast::hash(payload))
    }
}

pub(super) fn content_crc(key: &Key, value: &Value) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(key.as_str().as_bytes());
    hasher.update(&[0]);
    hasher.update(value.form.as_bytes());
    hasher.update(&[0]);
    hasher.update(&value.splice_offset.to_le_bytes());
    hasher.update(&value.bytes);
    hasher.finalize()
}

pub(super) fn place_crc_of_state(key: &Key, place: Place) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(key.as_str().as_bytes());
    hasher.update(&place.created.0.to_le_bytes());
    hasher.update(&place.modified.0.to_le_bytes());
    hasher.finalize()
}

pub(super) fn place_crc_of_change(
    key: &Key,
    kind: EventKind,
    created: Revision,
    previous: u64,
    committed: Committed,
) -> u32 {
    let kind = match kind {
        EventKind::Created => 1,
        EventKind::Updated => 2,
        EventKind::Deleted => 3,
    };
    let mut hasher = Hasher::new();
    hasher.update(key.as_str().as_bytes());
    hasher.update(&[0, kind]);
    hasher.update(&created.0.to_le_bytes());
    hasher.update(&previous.to_le_bytes());
    hasher.update(&committed.revision.0.to_le_bytes());
    // The index that format 1 reserves, see `column_families`.
    hasher.update(&[0, 0]);
    hasher.update(&committed.at_ms.to_le_bytes());
    hasher.finalize()
}
