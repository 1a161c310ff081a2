//! Errors of the engine and of opening a store.

use std::io;
use std::path::{Path, PathBuf};

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
    /// A file or a family of the store is missing.
    #[error("a part of the engine is missing: {0}")]
    Missing(String),
    /// The disk is full: for a write, the outcome is unknown.
    #[error("the disk is full: {0}")]
    NoSpace(String),
    /// Anything else, which says nothing about the data: for a write, the outcome is unknown.
    #[error("the engine failed: {0}")]
    Failed(String),
    /// A column family of the layout is missing.
    #[error("the column family {0} is missing")]
    MissingFamily(&'static str),
}

impl From<rocksdb::Error> for EngineError {
    fn from(error: rocksdb::Error) -> Self {
        match error.kind() {
            rocksdb::ErrorKind::Incomplete => Self::Stalled,
            rocksdb::ErrorKind::Corruption => Self::Corruption(error.into_string()),
            rocksdb::ErrorKind::IOError => Self::from_io(error.into_string()),
            rocksdb::ErrorKind::InvalidArgument => Self::from_argument(error.into_string()),
            _ => Self::Failed(error.into_string()),
        }
    }
}

impl EngineError {
    /// The binding passes on only the engine's text. It begins with the kind of I/O error; for errors without a kind it ends
    /// with the text of the system.
    fn from_io(text: String) -> Self {
        if text.starts_with("IO error: No space left on device") || text.ends_with("Disk quota exceeded") {
            Self::NoSpace(text)
        } else if text.starts_with("IO error: No such file or directory") {
            Self::Missing(text)
        } else {
            Self::Failed(text)
        }
    }

    /// The engine reports a missing first file or a missing family as an invalid argument.
    fn from_argument(text: String) -> Self {
        if text.contains("does not exist (create_if_missing is false)")
            || text.contains("olumn family not found")
        {
            Self::Missing(text)
        } else {
            Self::Failed(text)
        }
    }

    /// Whether the data is damaged, rather than not accessible now.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Corruption(_) | Self::Missing(_) | Self::MissingFamily(_)
        )
    }
}

/// Why a store does not open. Each message names the remedy.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("another process holds the store ({holder}): stop it first")]
    Locked {
        /// How the other process describes itself.
        holder: String,
    },
    /// The file system cannot guarantee durability.
    #[error(
        "{path} is on {kind}, which cannot guarantee durability: use a local disk, or allow any file system at your own \
         risk"
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
    /// The disk is full.
    #[error(
        "the disk is full ({what}): free some space, or remove the file `ballast` in the folder of the store, which \
         exists for this, and start again"
    )]
    NoSpace {
        /// The operation or the file that failed.
        what: String,
    },
    /// The engine cannot access its files now, which says nothing about their content.
    #[error("{reason}: nothing was changed. Resolve the cause, and start again")]
    Engine {
        /// Why, in the engine's words.
        reason: String,
    },
    /// Values are sealed with an encryption key that is not available now.
    #[error(
        "the value of {key} cannot be opened: {reason}. Nothing is lost: make the encryption key available, and start again"
    )]
    Sealed {
        /// Whose value.
        key: String,
        /// Why, for people.
        reason: String,
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
    /// The engine refuses the options this binary needs.
    #[error("the engine refuses its options: {reason}")]
    Options {
        /// Why.
        reason: String,
    },
    /// Writes that were acknowledged are missing.
    #[error(
        "acknowledged writes are missing: the log of {path} ends at revision {recovered}, but revision {acknowledged} \
         was durable (files of the log: {logs}). Restore a backup, or accept the loss with `drydock-apiserver \
         storage recover --accept-loss`"
    )]
    AcknowledgedLost {
        /// The newest revision that can be recovered.
        recovered: Revision,
        /// The newest revision that was acknowledged.
        acknowledged: Revision,
        /// The folder.
        path: PathBuf,
        /// The files of the log and their sizes.
        logs: String,
    },
    /// The store is damaged.
    #[error(
        "the store is damaged: {what}. Restore a backup, or recover what can be read with `drydock-apiserver storage \
         recover --accept-loss`"
    )]
    Damaged {
        /// What was found.
        what: String,
    },
    /// An operation needs an empty folder.
    #[error("{path} is not empty: use a new folder")]
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

    /// An error about a file or folder.
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        if is_full(&source) {
            Self::NoSpace {
                what: path.display().to_string(),
            }
        } else {
            let path = path.to_owned();
            Self::Io { path, source }
        }
    }
}

/// Whether the disk, or the quota, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

impl From<EngineError> for OpenError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::NoSpace(what) => Self::NoSpace { what },
            error if error.is_damage() => Self::damaged(error.to_string()),
            error => Self::Engine {
                reason: error.to_string(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_about_the_data_are_damage() {
        let classify = |kind: &str, text: &str| match OpenError::from(match kind {
            "argument" => EngineError::from_argument(text.to_owned()),
            _ => EngineError::from_io(text.to_owned()),
        }) {
            OpenError::Damaged { .. } => "damaged",
            OpenError::NoSpace { .. } => "no space",
            OpenError::Engine { .. } => "engine",
            other => panic!("{other}"),
        };
        for (kind, text, expected) in [
            (
                "io",
                "IO error: No space left on device: While appending to file: /d/db/9.log",
                "no space",
            ),
            (
                "io",
                "IO error: While open a file for appending: /d/db/9.log: Disk quota exceeded",
                "no space",
            ),
            (
                "io",
                "IO error: While open a file: /d/db/9.sst: Too many open files",
                "engine",
            ),
            (
                "io",
                "IO error: While pread 99 bytes: /d/db/9.sst: Input/output error",
                "engine",
            ),
            (
                "io",
                "IO error: While lock file: /d/db/LOCK: Resource temporarily unavailable",
                "engine",
            ),
            (
                "io",
                "IO error: No such file or directory: While opening a file: /d/db/MANIFEST-9",
                "damaged",
            ),
            (
                "argument",
                "Invalid argument: /d/db/CURRENT: does not exist (create_if_missing is false)",
                "damaged",
            ),
            (
                "argument",
                "Invalid argument: Column family not found: meta",
                "damaged",
            ),
            ("argument", "Invalid argument: bad option", "engine"),
        ] {
            assert_eq!(classify(kind, text), expected, "{text}");
        }
    }
}
