//! Progress and errors of long operations: backup, restore, export, import, verification, recovery.

use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::error::{EngineError, OpenError};
use crate::export::ExportError;
use crate::record::{RecordError, Records, StoredState};
use crate::{Key, StoreError, Value};

/// The progress of a long operation, reported once per [`REPORT_EVERY`] objects or per file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The current step, for people: `read`, `write`, `copy`, `verify`.
    pub step: &'static str,
    /// How many objects or files are done.
    pub done: u64,
    /// How many there are, if known.
    pub total: Option<u64>,
}

/// Why a backup, restore, export, import, verification or recovery failed.
#[derive(Debug, Error)]
pub enum MaintenanceError {
    /// The store or its folder cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store could not be read.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
    /// A file cannot be read or written.
    #[error("cannot use {path}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A backup or an export has changed since it was written.
    #[error("{path} is damaged: {what}. Use another one")]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// An export cannot be written or read.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// What was imported is not what the export holds.
    #[error("{key} was read back with another value than it was imported with")]
    Differs {
        /// The first key that differs.
        key: String,
    },
    /// A folder of backups belongs to another store.
    #[error("{path} holds backups of the store {store}: name another folder")]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Whose they are.
        store: uuid::Uuid,
    },
    /// Loss must be accepted explicitly.
    #[error("{what}: nothing was changed. Restore a backup, or repeat the command with --accept-loss")]
    LossNotAccepted {
        /// What would be lost.
        what: String,
    },
}

impl From<EngineError> for MaintenanceError {
    fn from(error: EngineError) -> Self {
        Self::Open(error.into())
    }
}

/// Puts the path into an I/O error.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> MaintenanceError + '_ {
    |source| MaintenanceError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Key and value of a row of `state`.
pub(crate) fn read_row(records: &Records, text: &str, record: &[u8]) -> Result<(Key, Value), RecordError> {
    let key = Key::parse(text)?;
    let stored = StoredState::decode(&key, record)?;
    let value = records.value(&key, stored)?;
    Ok((key, value))
}

/// The error for a value whose encryption key is not available: leaving the value out would lose it.
pub(crate) fn sealed(key: &str, error: &RecordError) -> MaintenanceError {
    let (key, reason) = (key.to_owned(), error.to_string());
    OpenError::Sealed { key, reason }.into()
}

/// Progress is reported once for this many objects.
pub(crate) const REPORT_EVERY: u64 = 1000;

/// A digest as hexadecimal text.
pub(crate) fn hex(digest: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or_default();
    let digits = digest
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    digits.collect()
}

/// The SHA-256 over every key and the revision of its value, in key order.
#[derive(Clone, Default)]
pub(crate) struct ContentHash(Sha256);

impl ContentHash {
    pub(crate) fn add(&mut self, key: &str, modified: u64) {
        self.0.update(key.as_bytes());
        self.0.update([0]);
        self.0.update(modified.to_be_bytes());
    }

    pub(crate) fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}
