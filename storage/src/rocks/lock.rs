//! The lock of a store's folder, and the check of its file system.
//!
//! An advisory lock on the file `lock`, taken before anything is read and held until the engine is closed. The file
//! describes the holder. File systems that cannot guarantee durability are refused by their type.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, statfs};
use rustix::io::Errno;
use uuid::Uuid;

use super::error::is_full;
use crate::clock::Stopwatch;

/// How often a held lock is retried.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// The held lock; dropping it releases it.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

/// Why the lock was not taken.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Another process holds it; how that describes itself.
    Held(String),
    /// The file cannot be used.
    Io(io::Error),
}

impl FolderLock {
    /// Takes the lock of a folder, waiting for at most `wait`.
    pub(crate) fn take(folder: &Path, wait: Duration, boot: Uuid) -> Result<Self, LockError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join("lock"))
            .map_err(LockError::Io)?;
        let since = Stopwatch::start();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if since.elapsed() < wait => std::thread::sleep(TRY_EVERY),
                Err(Errno::WOULDBLOCK) => {
                    let mut holder = String::new();
                    file.read_to_string(&mut holder).map_err(LockError::Io)?;
                    return Err(LockError::Held(holder.trim().to_owned()));
                }
                Err(error) => return Err(LockError::Io(error.into())),
            }
        }
        match describe_holder(&file, boot) {
            Err(error) if is_full(&error) => {
                tracing::warn!("the disk is full: the lock file does not describe its holder");
            }
            described => described.map_err(LockError::Io)?,
        }
        Ok(Self { _file: file })
    }
}

/// Overwrites the content before truncating it: a full disk accepts that, since it needs no space.
fn describe_holder(file: &File, boot: Uuid) -> io::Result<()> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let pod = std::env::var("POD_UID").unwrap_or_default();
    let holder = format!("host={host} pod={pod} pid={} boot={boot}\n", std::process::id());
    file.write_all_at(holder.as_bytes(), 0)?;
    file.set_len(holder.len() as u64)
}

/// The name of the file system of `folder`, if it cannot guarantee durability.
pub(crate) fn unfit_file_system(folder: &Path) -> io::Result<Option<&'static str>> {
    // The type of the number differs between platforms; its low 32 bits are the magic everywhere.
    Ok(unfit(statfs(folder)?.f_type.cast_unsigned() & 0xffff_ffff))
}

fn unfit(kind: u64) -> Option<&'static str> {
    match kind {
        0x6969 => Some("NFS"),
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => Some("SMB"),
        0x0102_1997 => Some("9p"),
        0x794C_7630 => Some("overlayfs"),
        0x0102_1994 => Some("tmpfs"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfit_file_systems_are_known_by_their_magic_numbers() {
        for (kind, expected) in [
            (0x6969, Some("NFS")),
            (0xFF53_4D42, Some("SMB")),
            (0x0102_1997, Some("9p")),
            (0x794C_7630, Some("overlayfs")),
            (0x0102_1994, Some("tmpfs")),
            (0xEF53, None),
            (0x5846_5342, None),
        ] {
            assert_eq!(unfit(kind), expected, "{kind:#x}");
        }
    }

    #[test]
    fn a_held_lock_names_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let held = FolderLock::take(folder.path(), Duration::ZERO, Uuid::nil()).unwrap();
        let Err(LockError::Held(holder)) = FolderLock::take(folder.path(), Duration::ZERO, Uuid::nil())
        else {
            panic!("the lock is held");
        };
        assert!(
            holder.contains(&format!("pid={}", std::process::id())),
            "{holder}"
        );
        drop(held);
        FolderLock::take(folder.path(), Duration::ZERO, Uuid::nil()).unwrap();
    }
}
