//! The form of an export: every object of a store in one file, the same for all backends.
//!
//! A magic line, a header, the objects in key order, a trailer with a checksum; each frame is a length-delimited protobuf
//! message. Where encryption at rest is configured, values are sealed in the file as they are in a store: by the first
//! provider, whatever sealed them before.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drydock_proto::storage::v1::{ExportHeader, ExportRecord, ExportTrailer};
use prost::Message;
use serde::Serialize;
use sha2::{Digest, Sha256};
use thiserror::Error;
use uuid::Uuid;

use crate::record::{RecordError, Records};
use crate::seal::Seal;
use crate::{Entry, Key, Revision, Value};

/// First line of an export.
const MAGIC: &[u8] = b"drydock-export 1\n";
/// The largest frame: a value and its metadata.
const MAX_FRAME: usize = Value::MAX_BYTES + (64 << 10);
/// The format without sealed values.
const PLAIN_FORMAT: u32 = 1;
/// The newest format that this version reads, and writes where encryption is configured: values may be sealed.
const FORMAT: u32 = 2;
/// The least number of revisions that a restored store skips: a week at 1,500 writes per second.
const LEAST_JUMP: u64 = 1_000_000_000;
/// How many it skips for each second since the source was taken: more than any store writes.
const JUMP_A_SECOND: u64 = 20_000;

/// Why an export cannot be written or read.
#[derive(Debug, Error)]
pub enum ExportError {
    /// A file cannot be read or written.
    #[error("cannot use {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An export has changed since it was written.
    #[error("{path} is damaged: {what}. Use another one")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// A value does not open, or cannot be sealed.
    #[error(
        "the value of {key} in {path} cannot be used: {reason}. Give --encryption-provider-config with its key"
    )]
    Sealed {
        /// The file.
        path: PathBuf,
        /// Whose value.
        key: String,
        /// Why.
        reason: String,
    },
    /// The store had another number of objects than it said before.
    #[error(
        "{path} is not complete: the store has {found} objects, and said before that it has {expected}. Repeat it"
    )]
    Miscounted {
        /// The file.
        path: PathBuf,
        /// What the store said.
        expected: u64,
        /// How many there were.
        found: u64,
    },
    /// An export was written by a newer version.
    #[error("{path} has format {found}, this version reads formats up to {FORMAT}")]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
}

/// The result of an export.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportReport {
    /// The file.
    pub path: PathBuf,
    /// The identity of the store.
    pub store: Uuid,
    /// The revision of its state.
    pub revision: u64,
    /// How many objects it holds.
    pub objects: u64,
    /// Its size.
    pub bytes: u64,
}

/// A revision above every one a store may have assigned, `age` after `revision` was its newest.
pub(crate) fn jump(revision: Revision, age: Duration) -> Revision {
    let jump = age.as_secs().saturating_mul(JUMP_A_SECOND).max(LEAST_JUMP);
    Revision(revision.0.saturating_add(jump))
}

/// Which state is exported.
pub(crate) struct Exported<'a> {
    pub(crate) store: Uuid,
    pub(crate) revision: Revision,
    /// How many objects it has.
    pub(crate) count: u64,
    pub(crate) now_ms: u64,
    /// What seals the values again: what was sealed in the store is not in clear in the file.
    pub(crate) records: &'a Records,
}

/// An export that is being written: an object at a time, none of which is kept. The file has another name until it is complete.
pub(crate) struct ExportWriter<'a> {
    from: Exported<'a>,
    path: &'a Path,
    unfinished: PathBuf,
    out: Hashing<BufWriter<File>>,
    written: u64,
}

impl<'a> ExportWriter<'a> {
    /// Makes the file and writes its header.
    pub(crate) fn begin(path: &'a Path, from: Exported<'a>) -> Result<Self, ExportError> {
        let unfinished = path.with_extension("unfinished");
        let header = ExportHeader {
            format: if from.records.seal().has_stale() {
                FORMAT
            } else {
                PLAIN_FORMAT
            },
            store_uuid: from.store.to_string(),
            revision: from.revision.0,
            count: from.count,
            exported_ms: from.now_ms,
        };
        let file = File::create(&unfinished).map_err(at(&unfinished))?;
        let mut writer = Self {
            from,
            path,
            unfinished,
            out: Hashing::new(BufWriter::new(file)),
            written: 0,
        };
        writer.append(MAGIC)?;
        writer.append(&header.encode_length_delimited_to_vec())?;
        Ok(writer)
    }

    /// Writes the next object in the order of keys.
    pub(crate) fn put(&mut self, key: &Key, entry: &Entry) -> Result<(), ExportError> {
        let record = record(self.from.records, key, entry);
        let record = record.map_err(sealed(&self.unfinished, key.as_str()))?;
        self.append(&record.encode_length_delimited_to_vec())?;
        self.written += 1;
        Ok(())
    }

    /// How many objects were written.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Ends the file and gives it its name.
    pub(crate) fn finish(mut self) -> Result<ExportReport, ExportError> {
        if self.written != self.from.count {
            return Err(ExportError::Miscounted {
                path: self.unfinished,
                expected: self.from.count,
                found: self.written,
            });
        }
        let trailer = ExportTrailer {
            count: self.written,
            sha256: Bytes::copy_from_slice(&self.out.digest()),
        };
        self.append(&trailer.encode_length_delimited_to_vec())?;
        self.out.flush().map_err(at(&self.unfinished))?;
        let file = self.out.inner.get_ref();
        file.sync_all().map_err(at(&self.unfinished))?;
        std::fs::rename(&self.unfinished, self.path).map_err(at(self.path))?;
        sync_folder_of(self.path).map_err(at(self.path))?;
        Ok(ExportReport {
            path: self.path.to_owned(),
            store: self.from.store,
            revision: self.from.revision.0,
            objects: self.written,
            bytes: self.out.bytes,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.out.write_all(bytes).map_err(at(&self.unfinished))
    }
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// An object as it is written.
fn record(records: &Records, key: &Key, entry: &Entry) -> Result<ExportRecord, RecordError> {
    let place = ExportRecord {
        key: key.to_string(),
        created: entry.created.0,
        modified: entry.modified.0,
        ..ExportRecord::default()
    };
    if let Some(body) = records.sealed_body(key, &entry.value)? {
        return Ok(ExportRecord {
            sealed: body.into(),
            ..place
        });
    }
    Ok(ExportRecord {
        form: entry.value.form.as_ref().to_owned(),
        splice_offset: entry.value.splice_offset,
        value: entry.value.bytes.clone(),
        ..place
    })
}

fn sealed<'a>(path: &'a Path, key: &'a str) -> impl FnOnce(RecordError) -> ExportError + 'a {
    |error| ExportError::Sealed {
        path: path.to_owned(),
        key: key.to_owned(),
        reason: error.to_string(),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ExportError + '_ {
    |source| ExportError::Io {
        path: path.to_owned(),
        source,
    }
}

/// An export that is being read. Its checksum is at its end: nothing may be relied on before [`ExportReader::next`] has
/// returned none.
pub(crate) struct ExportReader {
    path: PathBuf,
    input: Hashing<BufReader<File>>,
    /// The store it comes from.
    pub(crate) source: Uuid,
    /// The revision of its state.
    pub(crate) revision: Revision,
    /// How many objects it holds.
    pub(crate) count: u64,
    /// When it was written, in milliseconds since 1970.
    pub(crate) exported_ms: u64,
    left: u64,
    last: String,
    records: Records,
}

impl ExportReader {
    /// Opens a file and reads its header. `seal` opens its values.
    pub(crate) fn open(path: &Path, seal: &Arc<dyn Seal>) -> Result<Self, ExportError> {
        let damaged = |what: &str| ExportError::Damaged {
            path: path.to_owned(),
            what: what.to_owned(),
        };
        let file = File::open(path).map_err(at(path))?;
        let mut input = Hashing::new(BufReader::new(file));
        let mut magic = vec![0; MAGIC.len()];
        input.read_exact(&mut magic).map_err(at(path))?;
        if magic != MAGIC {
            return Err(damaged("it does not begin like an export"));
        }
        let header: ExportHeader = read_frame(&mut input).map_err(at(path))?;
        if header.format > FORMAT {
            return Err(ExportError::TooNew {
                path: path.to_owned(),
                found: header.format,
            });
        }
        let source = Uuid::parse_str(&header.store_uuid).map_err(|_| damaged("its header names no store"))?;
        Ok(Self {
            path: path.to_owned(),
            input,
            source,
            revision: Revision(header.revision),
            count: header.count,
            exported_ms: header.exported_ms,
            left: header.count,
            last: String::new(),
            records: Records::new(Arc::clone(seal)),
        })
    }

    fn damaged(&self, what: &str) -> ExportError {
        ExportError::Damaged {
            path: self.path.clone(),
            what: what.to_owned(),
        }
    }

    /// A revision above every one that the source can have assigned by now.
    pub(crate) fn above(&self, now_ms: u64) -> Revision {
        let age = Duration::from_millis(now_ms.saturating_sub(self.exported_ms));
        jump(self.revision, age)
    }

    /// The newest revision that a client of the source can know: what it can have assigned since it was exported. An export
    /// of a store that was stopped before, as the runbook says, is as new as it can be.
    pub(crate) fn newest_possible(&self, now_ms: u64) -> Revision {
        let seconds = now_ms.saturating_sub(self.exported_ms) / 1000;
        Revision(
            self.revision
                .0
                .saturating_add(seconds.saturating_mul(JUMP_A_SECOND)),
        )
    }

    /// The next object; none at the end, where the checksum was found right.
    pub(crate) fn next(&mut self) -> Result<Option<(Key, Value)>, ExportError> {
        if self.left == 0 {
            let digest = self.input.digest();
            let trailer: ExportTrailer = read_frame(&mut self.input).map_err(at(&self.path))?;
            if trailer.count != self.count || trailer.sha256 != digest.as_slice() {
                return Err(self.damaged("its content does not match its trailer"));
            }
            return Ok(None);
        }
        self.left -= 1;
        let record: ExportRecord = read_frame(&mut self.input).map_err(at(&self.path))?;
        if record.key <= self.last {
            return Err(self.damaged("its objects are not in order"));
        }
        let key = Key::parse(&record.key).map_err(|_| self.damaged("it holds a malformed key"))?;
        let value = if record.sealed.is_empty() {
            Value {
                bytes: record.value,
                form: record.form.into(),
                splice_offset: record.splice_offset,
            }
        } else {
            match self.records.unplaced_value(&key, &record.sealed) {
                Ok(value) => value,
                Err(error) if error.is_damage() => {
                    return Err(self.damaged(&format!("the value of {key}: {error}")));
                }
                Err(error) => return Err(sealed(&self.path, key.as_str())(error)),
            }
        };
        if value.bytes.len() > Value::MAX_BYTES {
            return Err(self.damaged("it holds a value that is too large"));
        }
        self.last = record.key;
        Ok(Some((key, value)))
    }
}

fn read_frame<M: Message + Default>(input: &mut impl Read) -> io::Result<M> {
    let invalid = |what: &'static str| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut length: usize = 0;
    for shift in (0..35).step_by(7) {
        let mut byte = [0];
        input.read_exact(&mut byte)?;
        let [byte] = byte;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            if length > MAX_FRAME {
                return Err(invalid("a frame is too large"));
            }
            let mut frame = vec![0; length];
            input.read_exact(&mut frame)?;
            return M::decode(frame.as_slice()).map_err(|_| invalid("a frame is not a protobuf message"));
        }
    }
    Err(invalid("the length of a frame is malformed"))
}

/// A digest as hexadecimal text.
pub(crate) fn hex(digest: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or_default();
    let digits = digest
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    digits.collect()
}

/// Hashes and counts the bytes that pass through.
struct Hashing<T> {
    inner: T,
    hash: Sha256,
    bytes: u64,
}

impl<T> Hashing<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            bytes: 0,
        }
    }

    fn digest(&self) -> Vec<u8> {
        self.hash.clone().finalize().to_vec()
    }

    fn note(&mut self, passed: &[u8]) {
        self.hash.update(passed);
        self.bytes += passed.len() as u64;
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.note(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: BufRead> Read for Hashing<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.note(bytes.get(..read).unwrap_or_default());
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
