//! Why did the store not open, and what is the way on?

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
    /// A file or a family that belongs to the store is not there.
    #[error("the engine misses a part: {0}")]
    Missing(String),
    /// The disk is full: for a write, the outcome is unknown.
    #[error("the engine found no room: {0}")]
    NoSpace(String),
    /// Anything else, which says nothing about the data: for a write, the outcome is unknown.
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
            rocksdb::ErrorKind::IOError => Self::from_io(error.into_string()),
            rocksdb::ErrorKind::InvalidArgument => Self::from_argument(error.into_string()),
            _ => Self::Failed(error.into_string()),
        }
    }
}

impl EngineError {
    /// The binding hands out the engine's text alone; what kind of I/O error it was stands at its start, and where the
    /// engine has no kind for it, the system's own words stand at its end.
    fn from_io(text: String) -> Self {
        if text.starts_with("IO error: No space left on device") || text.ends_with("Disk quota exceeded") {
            Self::NoSpace(text)
        } else if text.starts_with("IO error: No such file or directory") {
            Self::Missing(text)
        } else {
            Self::Failed(text)
        }
    }

    /// The engine calls it an argument of ours when a store lacks its first file or one of its families.
    fn from_argument(text: String) -> Self {
        if text.contains("does not exist (create_if_missing is false)")
            || text.contains("olumn family not found")
        {
            Self::Missing(text)
        } else {
            Self::Failed(text)
        }
    }

    /// Whether the data is not what was written, rather than not to be had at the moment.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Corruption(_) | Self::Missing(_) | Self::MissingFamily(_)
        )
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
    /// The disk is full.
    #[error(
        "there is no room on the disk ({what}): free some, or remove the file `ballast` in the folder of the store, \
         which is kept for this, and start again"
    )]
    NoSpace {
        /// What found no room.
        what: String,
    },
    /// The engine cannot work with its files at the moment, which says nothing about what they hold.
    #[error("{reason}: nothing was changed. Mend what it names, and start again")]
    Engine {
        /// Why, in the engine's words.
        reason: String,
    },
    /// Values are sealed with a key that cannot be had at the moment.
    #[error(
        "the value of {key} cannot be opened: {reason}. Nothing is lost: make the key available, and start again"
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
    /// The engine does not take the options this binary needs.
    #[error("the engine refuses its options: {reason}")]
    Options {
        /// Why.
        reason: String,
    },
    /// Writes that were acknowledged are missing.
    #[error(
        "acknowledged writes are missing: the log of {path} ends at revision {recovered}, but revision {acknowledged} \
         was durable once (files of the log: {logs}). Restore a backup, or accept the loss with `drydock-apiserver \
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

/// Whether an error says that the disk, or the share of it, is full.
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
    fn only_what_speaks_of_the_data_is_damage() {
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
