//! Why did the store not open, and what is the way on?

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::Revision;

/// An error of the embedded engine.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum EngineError {
    /// Writes are stalled; nothing was written.
    #[error("writes are stalled")]
    Stalled,
    /// Data failed the engine's checks.
    #[error("the engine found damage: {0}")]
    Corruption(String),
    /// Anything else: for a write, the outcome is unknown.
    #[error("the engine failed: {0}")]
    Failed(String),
    /// A column family that the layout asks for is not there.
    #[error("the column family {0} is missing")]
    MissingFamily(&'static str),
}

impl From<rocksdb::Error> for EngineError {
    fn from(error: rocksdb::Error) -> Self {
        match error.kind() {
            rocksdb::ErrorKind::Incomplete => Self::Stalled,
            rocksdb::ErrorKind::Corruption => Self::Corruption(error.into_string()),
            _ => Self::Failed(error.into_string()),
        }
    }
}

/// The store refuses to start. Each message names the remedy.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("another process holds the store ({holder}): stop it first")]
    Locked {
        /// What the other process wrote about itself.
        holder: String,
    },
    /// The file system cannot keep the promises of a store.
    #[error(
        "{path} lies on {kind}, which cannot keep a sync's promise: use a local disk, or allow any file system to \
         take the risk"
    )]
    FileSystem {
        /// The folder.
        path: PathBuf,
        /// The kind of file system.
        kind: &'static str,
    },
    /// A file cannot be read or written.
    #[error("cannot use {path}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The store was written by a newer binary.
    #[error(
        "the store has format {found} and needs format {needed}, this binary has {supported}: use a newer binary"
    )]
    TooNew {
        /// The version on disk.
        found: u32,
        /// The oldest version that may work with it.
        needed: u32,
        /// The version of this binary.
        supported: u32,
    },
    /// The engine does not take the options this binary needs.
    #[error("the engine refuses its options: {reason}")]
    Options {
        /// Why.
        reason: String,
    },
    /// Writes that were acknowledged are missing.
    #[error(
        "acknowledged writes are missing: the log of {path} ends at revision {recovered}, but revision {acknowledged} \
         was durable once. Restore a backup, or accept the loss with `drydock-apiserver storage recover \
         --accept-loss`"
    )]
    AcknowledgedLost {
        /// The newest revision that can be recovered.
        recovered: Revision,
        /// The newest revision that was acknowledged.
        acknowledged: Revision,
        /// The folder.
        path: PathBuf,
    },
    /// Something contradicts itself.
    #[error(
        "the store is damaged: {what}. Restore a backup, or take what can be read with `drydock-apiserver storage \
         recover --accept-loss`"
    )]
    Damaged {
        /// What was found.
        what: String,
    },
    /// An operation needs a folder without a store.
    #[error("{path} is not empty: name a new folder")]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// There is no store.
    #[error("there is no store in {path}")]
    Missing {
        /// The folder.
        path: PathBuf,
    },
}

impl OpenError {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }
}

impl From<EngineError> for OpenError {
    fn from(error: EngineError) -> Self {
        Self::damaged(error.to_string())
    }
}
