//! The folder of a store: its files, its lock, and the traces of interrupted work.

use std::path::{Path, PathBuf};

use super::error::OpenError;
use super::lock::{FolderLock, LockError};
use crate::Options;

/// The engine's folder of a store.
pub(crate) fn engine_folder(folder: &Path) -> PathBuf {
    folder.join("db")
}

pub(crate) fn mark_path(folder: &Path) -> PathBuf {
    folder.join("mark")
}

/// Where the recovered store is written before it replaces the damaged one.
pub(crate) const RECOVERING: &str = "recovering";

/// Whether a recovery was interrupted while it replaced the store.
pub(crate) fn is_interrupted(folder: &Path) -> bool {
    folder.join(RECOVERING).join("format").exists() && !folder.join("format").exists()
}

/// A file in a folder that is being filled: without it, one that was barely begun would look like a new, empty store.
pub(crate) const UNFINISHED: &str = "unfinished";

/// Whether a restore or an import into a folder was interrupted.
pub(crate) fn is_unfinished(folder: &Path) -> bool {
    folder.join(UNFINISHED).exists()
}

/// Takes the lock of the folder.
pub(crate) fn lock_folder(options: &Options) -> Result<FolderLock, OpenError> {
    FolderLock::take(&options.path, options.lock_wait, options.boot_id).map_err(|error| match error {
        LockError::Held(holder) => OpenError::Locked { holder },
        LockError::Io(source) => OpenError::io(&options.path, source),
    })
}
