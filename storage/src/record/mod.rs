//! The records of `state` and `history` on disk.
//!
//! A record is an envelope byte and a protobuf message in two parts that protobuf merges. The *body* (the value, compressed
//! and sealed, with its checksum) is encoded in the task of the request. The *place* (revisions and time, with a checksum of
//! its own) is appended by the commit thread, which alone knows it. Checksums cover the value from the task that wrote it to
//! the one that reads it. The checksum of a sealed value is sealed with it; that of what is stored (the payload, and all that
//! it takes to open and read it) is not, so that damage is told from a missing or wrong key.

mod checksum;

use std::sync::{Arc, RwLock};

use bytes::Bytes;
use drydock_proto::storage::v1::{ChangeKind, Codec, HistoryRecord, Side, StateRecord};
use prost::Message;
use thiserror::Error;

use self::checksum::{
    content_crc, is_intact, place_crc_of_change, place_crc_of_state, sealed_crc_of_change,
    sealed_crc_of_state, sealed_sides, split_crcs,
};
use crate::seal::{Seal, SealError, Sealed, StoredSeal};
use crate::{Entry, Event, EventKind, Key, KeyError, Revision, StoreError, Value, sync};

/// First byte of every record: the version of what follows.
const ENVELOPE: u8 = 1;
/// Payloads shorter than this are not worth compressing.
const COMPRESS_FROM: usize = 64;
/// How many names of forms are interned; there are as many as stored API versions.
const MAX_FORMS: usize = 64;
/// The largest decompressed payload: two values.
const MAX_PLAIN: usize = 2 * Value::MAX_BYTES;

/// Why a record cannot be read.
#[derive(Debug, Error)]
pub(crate) enum RecordError {
    #[error("it is empty")]
    Empty,
    #[error("its envelope is {0}, this binary reads {ENVELOPE}")]
    Envelope(u8),
    #[error("it is not a protobuf message")]
    Protobuf(#[source] prost::DecodeError),
    #[error("its key is malformed")]
    Key(#[from] KeyError),
    #[error("its revisions fail their checksum")]
    Place,
    #[error("its revision is above that of the store")]
    Future,
    #[error("its value fails its checksum")]
    Content,
    #[error("its sealed value fails its checksum")]
    Sealed,
    #[error("its value has another length than recorded")]
    Length,
    #[error("its value does not decompress")]
    Compression,
    #[error("its codec is unknown")]
    Codec,
    #[error("its kind of change does not fit its values")]
    Kind,
    #[error(transparent)]
    Seal(#[from] SealError),
}

impl RecordError {
    /// Whether the record is damaged, rather than sealed with a key that is not available. What is sealed is compared with
    /// its checksum before it is opened, so what opens to something else than was written was opened with another key.
    pub(crate) fn is_damage(&self) -> bool {
        !matches!(self, Self::Seal(_))
    }

    /// The error of a read of `key` that met this one.
    pub(crate) fn of_read(&self, key: &str) -> StoreError {
        let (key, reason) = (key.to_owned(), self.to_string());
        if self.is_damage() {
            StoreError::Corrupt { key, reason }
        } else {
            StoreError::Sealed { key, reason }
        }
    }

    /// The error of a write that met this one: only sealing can fail, and then nothing was written.
    pub(crate) fn of_write(&self) -> StoreError {
        StoreError::NotSealed {
            reason: self.to_string(),
        }
    }
}

/// Encodes records, and decodes their values.
pub(crate) struct Records {
    seal: Arc<dyn Seal>,
    forms: RwLock<Vec<Arc<str>>>,
}

/// The revisions of an entry, read without its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) created: Revision,
    pub(crate) modified: Revision,
}

/// Where and when a change was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Committed {
    pub(crate) revision: Revision,
    pub(crate) at_ms: u64,
}

/// A state record whose place has been checked; its value is not decoded.
#[derive(Debug)]
pub(crate) struct StoredState {
    record: StateRecord,
}

/// A history record whose place has been checked; its values are not decoded.
#[derive(Debug)]
pub(crate) struct StoredChange {
    pub(crate) key: Key,
    pub(crate) kind: EventKind,
    pub(crate) committed: Committed,
    /// The revision of the value before, if there was one.
    pub(crate) previous: Option<Revision>,
    created: Revision,
    record: HistoryRecord,
}

impl StoredChange {
    /// Decodes a history record without its values.
    pub(crate) fn decode(revision: Revision, bytes: &[u8]) -> Result<Self, RecordError> {
        let record = HistoryRecord::decode(body(bytes)?).map_err(RecordError::Protobuf)?;
        let key = Key::parse(&record.key)?;
        let change_kind = ChangeKind::try_from(record.kind).map_err(|_| RecordError::Kind)?;
        let kind = match (change_kind, &record.old, &record.new) {
            (ChangeKind::Created, None, Some(_)) => EventKind::Created,
            (ChangeKind::Updated, Some(_), Some(_)) => EventKind::Updated,
            (ChangeKind::Deleted, Some(_), None) => EventKind::Deleted,
            _ => return Err(RecordError::Kind),
        };
        let committed = Committed {
            revision,
            at_ms: record.committed_ms,
        };
        let created = Revision(record.created);
        if record.place_crc != place_crc_of_change(&key, kind, created, record.previous, committed) {
            return Err(RecordError::Place);
        }
        Ok(Self {
            key,
            kind,
            committed,
            previous: (record.previous != 0).then_some(Revision(record.previous)),
            created,
            record,
        })
    }

    /// The uncompressed bytes of both values, according to the record.
    pub(crate) fn plain_bytes(&self) -> usize {
        let sides = [&self.record.old, &self.record.new];
        let lengths = sides.map(|side| side.as_ref().map_or(0, |side| side.plain_length));
        lengths
            .into_iter()
            .map(|length| usize::try_from(length).unwrap_or(usize::MAX))
            .fold(0, usize::saturating_add)
    }

    /// The place of the key after the change; for a deletion, with the revision of the deletion.
    pub(crate) fn place(&self) -> Place {
        Place {
            created: self.created,
            modified: self.committed.revision,
        }
    }
}

impl StoredState {
    /// Decodes a state record without a place, from a store that has the revisions elsewhere.
    pub(crate) fn unplaced(bytes: &Bytes) -> Result<Self, RecordError> {
        let record = StateRecord::decode(bytes.slice(bytes.len() - body(bytes)?.len()..));
        let record = record.map_err(RecordError::Protobuf)?;
        Ok(Self { record })
    }

    /// Decodes a state record without its value.
    pub(crate) fn decode(key: &Key, bytes: &[u8]) -> Result<Self, RecordError> {
        let record = StateRecord::decode(body(bytes)?).map_err(RecordError::Protobuf)?;
        let stored = Self { record };
        if stored.record.place_crc != place_crc_of_state(key, stored.place()) {
            return Err(RecordError::Place);
        }
        Ok(stored)
    }

    pub(crate) fn place(&self) -> Place {
        Place {
            created: Revision(self.record.created),
            modified: Revision(self.record.modified),
        }
    }

    /// By what its value is sealed.
    pub(crate) fn seal(self) -> StoredSeal {
        StoredSeal {
            shows_checksum: !self.record.seal_key_id.is_empty() && !self.record.has_sealed_content_crc,
            key_id: self.record.seal_key_id,
            payload: self.record.payload,
        }
    }
}

impl Records {
    pub(crate) fn new(seal: Arc<dyn Seal>) -> Self {
        Self {
            seal,
            forms: RwLock::new(Vec::new()),
        }
    }

    /// What seals and opens.
    pub(crate) fn seal(&self) -> &Arc<dyn Seal> {
        &self.seal
    }

    /// Interns the name of a form: hundreds of thousands of values have a few different ones.
    fn form(&self, name: &str) -> Arc<str> {
        let forms = sync::read(&self.forms);
        if let Some(form) = forms.iter().find(|form| form.as_ref() == name) {
            return Arc::clone(form);
        }
        drop(forms);
        let form: Arc<str> = name.into();
        let mut forms = sync::write(&self.forms);
        if forms.len() < MAX_FORMS && !forms.contains(&form) {
            forms.push(Arc::clone(&form));
        }
        form
    }

    /// The body of a state record.
    pub(crate) fn state_body(&self, key: &Key, value: &Value) -> Result<Vec<u8>, RecordError> {
        Ok(enveloped(&self.state_record(key, value)?))
    }

    fn state_record(&self, key: &Key, value: &Value) -> Result<StateRecord, RecordError> {
        let (codec, compressed) = compress(&value.bytes);
        let crc = content_crc(key, value);
        let sealed = self.sealed(key, compressed, &[crc])?;
        let is_sealed = !sealed.key_id.is_empty();
        let mut record = StateRecord {
            form: value.form.as_ref().to_owned(),
            splice_offset: value.splice_offset,
            codec: codec.into(),
            seal_key_id: sealed.key_id,
            plain_length: length(&value.bytes),
            content_crc: if is_sealed { 0 } else { crc },
            has_sealed_content_crc: is_sealed,
            payload: sealed.bytes.into(),
            ..StateRecord::default()
        };
        record.sealed_crc = is_sealed.then(|| sealed_crc_of_state(&record));
        Ok(record)
    }

    /// The body of a state record, if its value is sealed.
    pub(crate) fn sealed_body(&self, key: &Key, value: &Value) -> Result<Option<Vec<u8>>, RecordError> {
        if !self.seal.has_stale() {
            return Ok(None);
        }
        let record = self.state_record(key, value)?;
        Ok((!record.seal_key_id.is_empty()).then(|| enveloped(&record)))
    }

    /// The body of a history record.
    pub(crate) fn history_body(
        &self,
        key: &Key,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<Vec<u8>, RecordError> {
        let mut plain = Vec::with_capacity([old, new].iter().flatten().map(|value| value.bytes.len()).sum());
        for value in [old, new].into_iter().flatten() {
            plain.extend_from_slice(&value.bytes);
        }
        let (codec, compressed) = compress(&plain);
        let sides = [old, new].map(|value| value.map(|value| side(key, value)));
        let crcs: Vec<_> = sides.iter().flatten().map(|side| side.content_crc).collect();
        let sealed = self.sealed(key, compressed, &crcs)?;
        let is_sealed = !sealed.key_id.is_empty();
        let [old, new] = sides.map(|side| {
            side.map(|side| Side {
                content_crc: if is_sealed { 0 } else { side.content_crc },
                ..side
            })
        });
        let mut record = HistoryRecord {
            key: key.as_str().to_owned(),
            codec: codec.into(),
            seal_key_id: sealed.key_id,
            has_sealed_content_crc: is_sealed,
            old,
            new,
            payload: sealed.bytes.into(),
            ..HistoryRecord::default()
        };
        record.sealed_crc = is_sealed.then(|| sealed_crc_of_change(&record));
        Ok(enveloped(&record))
    }

    /// Decodes and checks the value of a state record.
    pub(crate) fn value(&self, key: &Key, stored: StoredState) -> Result<Value, RecordError> {
        let record = stored.record;
        let (stored_crc, is_whole) = (record.sealed_crc, record.has_sealed_content_crc);
        if !is_intact(
            stored_crc,
            is_whole,
            || sealed_crc_of_state(&record),
            &record.payload,
        ) {
            return Err(RecordError::Sealed);
        }
        let codec = Codec::try_from(record.codec).map_err(|_| RecordError::Codec)?;
        let expected = usize::try_from(record.plain_length).map_err(|_| RecordError::Length)?;
        let is_sealed = !record.seal_key_id.is_empty();
        let mut opened = self.open(key, &record.seal_key_id, record.payload)?;
        let checked = || {
            let crc = if record.has_sealed_content_crc {
                let [crc] = split_crcs(&mut opened).ok_or(RecordError::Length)?;
                crc
            } else {
                record.content_crc
            };
            let value = Value {
                bytes: decompress(codec, opened, expected)?.into(),
                form: self.form(&record.form),
                splice_offset: record.splice_offset,
            };
            if content_crc(key, &value) != crc {
                return Err(RecordError::Content);
            }
            Ok(value)
        };
        of_opened(is_sealed, checked())
    }

    /// Decodes and checks the value of a state record without a place, from a store that has the revisions elsewhere.
    pub(crate) fn unplaced_value(&self, key: &Key, bytes: &Bytes) -> Result<Value, RecordError> {
        self.value(key, StoredState::unplaced(bytes)?)
    }

    /// Decodes a state record with its value.
    #[cfg(test)]
    pub(crate) fn entry(&self, key: &Key, bytes: &[u8]) -> Result<Entry, RecordError> {
        let stored = StoredState::decode(key, bytes)?;
        let Place { created, modified } = stored.place();
        let value = self.value(key, stored)?;
        Ok(Entry {
            value,
            created,
            modified,
        })
    }

    /// Decodes and checks the values of a history record.
    pub(crate) fn event(&self, stored: StoredChange) -> Result<Event, RecordError> {
        let StoredChange {
            key,
            kind,
            committed,
            previous,
            created,
            record,
        } = stored;
        let (stored_crc, is_whole) = (record.sealed_crc, record.has_sealed_content_crc);
        if !is_intact(
            stored_crc,
            is_whole,
            || sealed_crc_of_change(&record),
            &record.payload,
        ) {
            return Err(RecordError::Sealed);
        }
        let codec = Codec::try_from(record.codec).map_err(|_| RecordError::Codec)?;
        let lengths = [&record.old, &record.new].map(|side| {
            let length = side.as_ref().map_or(0, |side| side.plain_length);
            usize::try_from(length).unwrap_or(usize::MAX)
        });
        let [old_length, new_length] = lengths;
        let is_sealed = !record.seal_key_id.is_empty();
        let mut opened = self.open(&key, &record.seal_key_id, record.payload)?;
        let checked = || {
            let sides = (record.old, record.new);
            let (old, new) = if record.has_sealed_content_crc {
                sealed_sides(sides, &mut opened).ok_or(RecordError::Length)?
            } else {
                sides
            };
            let mut plain = Bytes::from(decompress(codec, opened, old_length.saturating_add(new_length))?);
            let new_bytes = plain.split_off(old_length);
            let old = self.opened_side(&key, old, plain)?;
            Ok((old, self.opened_side(&key, new, new_bytes)?))
        };
        let (old, new) = of_opened(is_sealed, checked())?;
        Ok(Event {
            revision: committed.revision,
            key,
            kind,
            new: new.map(|value| Entry {
                value,
                created,
                modified: committed.revision,
            }),
            old: old.map(|value| Entry {
                value,
                created,
                modified: previous.unwrap_or(created),
            }),
        })
    }

    /// Seals a payload with the checksums of its values; what is not sealed is the payload alone. Nothing needs no key: a
    /// value that does not open can be removed without one.
    fn sealed(&self, key: &Key, mut plain: Vec<u8>, crcs: &[u32]) -> Result<Sealed, RecordError> {
        if plain.is_empty() {
            return Ok(Sealed {
                key_id: String::new(),
                bytes: plain,
            });
        }
        let length = plain.len();
        plain.extend(crcs.iter().flat_map(|crc| crc.to_le_bytes()));
        let mut sealed = self.seal.seal(key.as_str(), plain)?;
        if sealed.key_id.is_empty() {
            sealed.bytes.truncate(length);
        }
        Ok(sealed)
    }

    /// Opens a payload. Damage on disk was reported before: no encryption key is requested for it.
    fn open(&self, key: &Key, key_id: &str, payload: Bytes) -> Result<Vec<u8>, RecordError> {
        if payload.is_empty() && key_id.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.seal.open(key.as_str(), key_id, payload.into())?)
    }

    fn opened_side(&self, key: &Key, side: Option<Side>, bytes: Bytes) -> Result<Option<Value>, RecordError> {
        let Some(side) = side else {
            return Ok(None);
        };
        let value = Value {
            bytes,
            form: self.form(&side.form),
            splice_offset: side.splice_offset,
        };
        if content_crc(key, &value) != side.content_crc {
            return Err(RecordError::Content);
        }
        Ok(Some(value))
    }
}

/// Appends a key's place to the body of its state record.
pub(crate) fn finish_state(mut body: Vec<u8>, key: &Key, place: Place) -> Vec<u8> {
    let record = StateRecord {
        created: place.created.0,
        modified: place.modified.0,
        place_crc: place_crc_of_state(key, place),
        ..StateRecord::default()
    };
    append(&record, &mut body);
    body
}

/// Appends a change's place to the body of its history record.
pub(crate) fn finish_change(
    mut body: Vec<u8>,
    key: &Key,
    kind: EventKind,
    created: Revision,
    previous: Option<Revision>,
    committed: Committed,
) -> Vec<u8> {
    let previous = previous.map_or(0, |revision| revision.0);
    let change_kind = match kind {
        EventKind::Created => ChangeKind::Created,
        EventKind::Updated => ChangeKind::Updated,
        EventKind::Deleted => ChangeKind::Deleted,
    };
    let record = HistoryRecord {
        kind: change_kind.into(),
        created: created.0,
        previous,
        committed_ms: committed.at_ms,
        place_crc: place_crc_of_change(key, kind, created, previous, committed),
        ..HistoryRecord::default()
    };
    append(&record, &mut body);
    body
}

fn enveloped(record: &impl Message) -> Vec<u8> {
    // With room for the place, so that appending it does not reallocate.
    let mut bytes = Vec::with_capacity(1 + record.encoded_len() + 64);
    bytes.push(ENVELOPE);
    append(record, &mut bytes);
    bytes
}

fn append(record: &impl Message, bytes: &mut Vec<u8>) {
    #[expect(
        clippy::expect_used,
        reason = "only a lack of capacity can fail, and a vector grows"
    )]
    record.encode(bytes).expect("a vector grows");
}

fn body(bytes: &[u8]) -> Result<&[u8], RecordError> {
    match bytes.split_first() {
        None => Err(RecordError::Empty),
        Some((&ENVELOPE, body)) => Ok(body),
        Some((&other, _)) => Err(RecordError::Envelope(other)),
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn side(key: &Key, value: &Value) -> Side {
    Side {
        form: value.form.as_ref().to_owned(),
        splice_offset: value.splice_offset,
        plain_length: length(&value.bytes),
        content_crc: content_crc(key, value),
    }
}

fn compress(plain: &[u8]) -> (Codec, Vec<u8>) {
    if plain.len() >= COMPRESS_FROM {
        let compressed = lz4_flex::block::compress(plain);
        if compressed.len() < plain.len() {
            return (Codec::Lz4, compressed);
        }
    }
    (Codec::Plain, plain.to_vec())
}

fn decompress(codec: Codec, bytes: Vec<u8>, expected: usize) -> Result<Vec<u8>, RecordError> {
    if expected > MAX_PLAIN {
        return Err(RecordError::Length);
    }
    let plain = match codec {
        Codec::Plain => bytes,
        Codec::Lz4 => lz4_flex::block::decompress(&bytes, expected).map_err(|_| RecordError::Compression)?,
    };
    if plain.len() != expected {
        return Err(RecordError::Length);
    }
    Ok(plain)
}

/// What was read of an opened payload. One that was sealed is intact as it is stored: if what it opens to is not what was
/// written, the key is another one. Not every cipher notices that itself.
fn of_opened<T>(is_sealed: bool, read: Result<T, RecordError>) -> Result<T, RecordError> {
    match read {
        Err(error) if is_sealed => Err(SealError::new(format!("the key is another one: {error}")).into()),
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::seal::Unsealed;

    /// In place of an AEAD: adds the key's length to every byte.
    struct Shift;
    impl Seal for Shift {
        fn seal(&self, key: &str, plain: Vec<u8>) -> Result<Sealed, SealError> {
            let shift = u8::try_from(key.len()).unwrap();
            let bytes = plain.into_iter().map(|byte| byte.wrapping_add(shift)).collect();
            Ok(Sealed {
                key_id: "k1".to_owned(),
                bytes,
            })
        }

        fn open(&self, key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
            assert_eq!(key_id, "k1");
            let shift = u8::try_from(key.len()).unwrap();
            Ok(sealed.into_iter().map(|byte| byte.wrapping_sub(shift)).collect())
        }
    }

    fn key() -> Key {
        Key::new("g", "r", "n", "name").unwrap()
    }

    fn value(text: &str) -> Value {
        Value {
            bytes: Bytes::copy_from_slice(text.as_bytes()),
            form: "g/v1".into(),
            splice_offset: 3,
        }
    }

    const COMMITTED: Committed = Committed {
        revision: Revision(9),
        at_ms: 77,
    };

    fn state(records: &Records, value: &Value) -> Vec<u8> {
        let place = Place {
            created: Revision(4),
            modified: Revision(9),
        };
        finish_state(records.state_body(&key(), value).unwrap(), &key(), place)
    }

    fn updated(records: &Records, old: &Value, new: &Value) -> Vec<u8> {
        let body = records.history_body(&key(), Some(old), Some(new)).unwrap();
        finish_change(
            body,
            &key(),
            EventKind::Updated,
            Revision(4),
            Some(Revision(7)),
            COMMITTED,
        )
    }

    proptest! {
        #[test]
        fn a_state_record_is_read_as_written(text in ".{0,300}") {
            let records = Records::new(Arc::new(Unsealed));
            let entry = records.entry(&key(), &state(&records, &value(&text))).unwrap();
            prop_assert_eq!(entry, Entry { value: value(&text), created: Revision(4), modified: Revision(9) });
        }

        #[test]
        fn a_history_record_is_read_as_written(old in ".{0,300}", new in ".{0,300}") {
            let records = Records::new(Arc::new(Unsealed));
            let stored = StoredChange::decode(Revision(9), &updated(&records, &value(&old), &value(&new))).unwrap();
            prop_assert_eq!(stored.committed, COMMITTED);
            let event = records.event(stored).unwrap();
            prop_assert_eq!(event, Event {
                revision: Revision(9),
                key: key(),
                kind: EventKind::Updated,
                new: Some(Entry { value: value(&new), created: Revision(4), modified: Revision(9) }),
                old: Some(Entry { value: value(&old), created: Revision(4), modified: Revision(7) }),
            });
        }

        #[test]
        fn no_flipped_bit_goes_unnoticed(text in "[a-c]{0,200}", at in any::<prop::sample::Index>(), bit in 0..8) {
            let records = Records::new(Arc::new(Unsealed));
            let good = state(&records, &value(&text));
            let mut bad = good.clone();
            let index = at.index(bad.len());
            bad[index] ^= 1_u8 << bit;
            if let Ok(entry) = records.entry(&key(), &bad) {
                // A bit of an unknown or repeated field may have no effect; then the entry must be equal.
                prop_assert_eq!(entry, records.entry(&key(), &good).unwrap());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let records = Records::new(Arc::new(Unsealed));
            let mut enveloped = vec![ENVELOPE];
            enveloped.extend(bytes);
            drop(records.entry(&key(), &enveloped));
            if let Ok(stored) = StoredChange::decode(Revision(1), &enveloped) {
                drop(records.event(stored));
            }
        }
    }

    #[test]
    fn a_record_moved_to_another_key_is_refused() {
        let records = Records::new(Arc::new(Unsealed));
        let bytes = state(&records, &value("x"));
        let other = Key::new("g", "r", "n", "other").unwrap();
        assert!(matches!(records.entry(&other, &bytes), Err(RecordError::Place)));
        let bytes = updated(&records, &value("a"), &value("b"));
        assert!(matches!(
            StoredChange::decode(Revision(8), &bytes),
            Err(RecordError::Place)
        ));
    }

    #[test]
    fn both_records_of_a_write_are_sealed_and_bound_to_their_key() {
        let records = Records::new(Arc::new(Shift));
        let secret = value("secret-secret-secret");
        let bytes = [state(&records, &secret), updated(&records, &secret, &secret)];
        for bytes in &bytes {
            assert!(!bytes.windows(6).any(|window| window == b"secret"));
        }
        assert_eq!(records.entry(&key(), &bytes[0]).unwrap().value, secret);
        let stored = StoredChange::decode(Revision(9), &bytes[1]).unwrap();
        assert_eq!(records.event(stored).unwrap().old.unwrap().value, secret);
        // Without the encryption key: an intact payload does not open, a changed one is damaged.
        let plain = Records::new(Arc::new(Unsealed));
        let refused = plain.entry(&key(), &bytes[0]).unwrap_err();
        assert!(
            matches!(refused, RecordError::Seal(_)) && !refused.is_damage(),
            "{refused}"
        );
        let sealed = Shift.seal(key().as_str(), b"secret".to_vec()).unwrap().bytes;
        let at = |bytes: &[u8]| {
            bytes
                .windows(4)
                .position(|window| window == &sealed[..4])
                .unwrap()
        };
        for (mut bytes, is_state) in bytes.into_iter().zip([true, false]) {
            let at = at(&bytes);
            bytes[at + 2] ^= 1;
            let refused = if is_state {
                plain.entry(&key(), &bytes).unwrap_err()
            } else {
                let stored = StoredChange::decode(Revision(9), &bytes).unwrap();
                plain.event(stored).unwrap_err()
            };
            assert!(
                matches!(refused, RecordError::Sealed) && refused.is_damage(),
                "{refused}"
            );
        }
    }

    /// Damage of what is stored in clear beside a sealed value was reported as another key, so that it could not be removed.
    #[test]
    fn no_flipped_bit_of_a_sealed_record_is_taken_for_another_key() {
        let (sealed, plain) = (Records::new(Arc::new(Shift)), Records::new(Arc::new(Unsealed)));
        let flips = |bytes: &[u8]| -> Vec<Vec<u8>> {
            let flip = |bit: usize| {
                let mut flipped = bytes.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                flipped
            };
            (0..bytes.len() * 8).map(flip).collect()
        };
        // With the key, and without: a bit may have no effect, and then it is the key that is missing.
        let check =
            |with: Result<Value, RecordError>, without: Result<Value, RecordError>, written: &Value| {
                let without = without.unwrap_err();
                match with {
                    Ok(value) => assert!(value == *written && !without.is_damage()),
                    Err(error) => assert!(error.is_damage() && without.is_damage(), "{error}, {without}"),
                }
            };
        for text in ["short".to_owned(), "abc".repeat(40)] {
            let (old, new) = (value("old"), value(&text));
            for flipped in flips(&state(&sealed, &new)) {
                let read = |records: &Records| records.entry(&key(), &flipped).map(|entry| entry.value);
                check(read(&sealed), read(&plain), &new);
            }
            for flipped in flips(&updated(&sealed, &old, &new)) {
                let read = |records: &Records| {
                    let event = records.event(StoredChange::decode(Revision(9), &flipped)?)?;
                    Ok(event.new.unwrap().value)
                };
                check(read(&sealed), read(&plain), &new);
            }
        }
    }

    /// Contains the bytes of a checksum.
    fn shows(record: &[u8], crc: u32) -> bool {
        record.windows(4).any(|window| window == crc.to_le_bytes())
    }

    #[test]
    fn a_sealed_record_shows_no_checksum_of_its_value() {
        let (sealed, plain) = (Records::new(Arc::new(Shift)), Records::new(Arc::new(Unsealed)));
        let (old, new) = (value("first"), value("second"));
        let crcs = [&old, &new].map(|value| content_crc(&key(), value));
        assert!(shows(&state(&plain, &new), crcs[1]), "the search finds it");
        assert!(!shows(&state(&sealed, &new), crcs[1]));
        let bodies = [(Some(&old), Some(&new)), (Some(&old), None), (None, Some(&new))];
        for (old, new) in bodies {
            let body = |records: &Records| records.history_body(&key(), old, new).unwrap();
            let count = |body: &[u8]| crcs.iter().filter(|crc| shows(body, **crc)).count();
            assert_eq!(count(&body(&plain)), [old, new].iter().flatten().count());
            assert_eq!(count(&body(&sealed)), 0);
        }
        assert_eq!(sealed.entry(&key(), &state(&sealed, &new)).unwrap().value, new);
        let bytes = updated(&sealed, &old, &new);
        let event = sealed
            .event(StoredChange::decode(Revision(9), &bytes).unwrap())
            .unwrap();
        assert_eq!((event.old.unwrap().value, event.new.unwrap().value), (old, new));
    }

    /// As binaries before wrote it.
    #[test]
    fn a_sealed_record_with_its_checksum_outside_is_read() {
        let records = Records::new(Arc::new(Shift));
        let (old, new) = (value("first"), value("second"));
        let seal = |plain: &[u8]| Shift.seal(key().as_str(), plain.to_vec()).unwrap();
        let sealed = seal(b"second");
        let body = enveloped(&StateRecord {
            form: new.form.to_string(),
            splice_offset: new.splice_offset,
            sealed_crc: Some(crc32fast::hash(&sealed.bytes)),
            seal_key_id: sealed.key_id,
            plain_length: 6,
            content_crc: content_crc(&key(), &new),
            payload: sealed.bytes.into(),
            ..StateRecord::default()
        });
        let place = Place {
            created: Revision(4),
            modified: Revision(9),
        };
        let bytes = finish_state(body, &key(), place);
        assert_eq!(records.entry(&key(), &bytes).unwrap().value, new);
        // It is worth a write, which is what hides the checksum.
        let is_stale = |bytes: &[u8]| {
            let stored = StoredState::decode(&key(), bytes).unwrap();
            stored.seal().is_stale(&Shift, &key())
        };
        assert!(is_stale(&bytes) && !is_stale(&state(&records, &new)));
        let sealed = seal(b"firstsecond");
        let body = enveloped(&HistoryRecord {
            key: key().to_string(),
            sealed_crc: Some(crc32fast::hash(&sealed.bytes)),
            seal_key_id: sealed.key_id,
            old: Some(side(&key(), &old)),
            new: Some(side(&key(), &new)),
            payload: sealed.bytes.into(),
            ..HistoryRecord::default()
        });
        let (created, previous) = (Revision(4), Some(Revision(7)));
        let bytes = finish_change(body, &key(), EventKind::Updated, created, previous, COMMITTED);
        let event = records
            .event(StoredChange::decode(Revision(9), &bytes).unwrap())
            .unwrap();
        assert_eq!((event.old.unwrap().value, event.new.unwrap().value), (old, new));
    }

    /// Opens to what it is given, as a cipher without integrity does with another key.
    struct Garbling(Vec<u8>);

    impl Seal for Garbling {
        fn seal(&self, key: &str, plain: Vec<u8>) -> Result<Sealed, SealError> {
            Shift.seal(key, plain)
        }

        fn open(&self, _: &str, _: &str, _: Vec<u8>) -> Result<Vec<u8>, SealError> {
            Ok(self.0.clone())
        }
    }

    proptest! {
        #[test]
        fn what_opens_to_something_else_is_not_damaged(garbage in prop::collection::vec(any::<u8>(), 0..40), long in any::<bool>()) {
            let text = if long { "abc".repeat(100) } else { "abc".to_owned() };
            let written = Records::new(Arc::new(Shift));
            let records = Records::new(Arc::new(Garbling(garbage)));
            let refused = records.entry(&key(), &state(&written, &value(&text))).unwrap_err();
            prop_assert!(!refused.is_damage(), "{}", refused);
            let bytes = updated(&written, &value(&text), &value("x"));
            let refused = records.event(StoredChange::decode(Revision(9), &bytes).unwrap()).unwrap_err();
            prop_assert!(!refused.is_damage(), "{}", refused);
        }
    }
}
