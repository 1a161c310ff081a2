//! Format versions, and durable changes of files and folders.
//!
//! The file `format` names the version on disk and the oldest versions that may read and write it, so that a binary that is
//! too old refuses with both numbers. The engine stores two more numbers: the newest format a record may have, and the
//! feature level, which is the format that is written. An upgrade raises the file first and the feature level last, so that
//! no binary meets records it does not know. Records have an envelope byte of their own. See decision 0016.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::OpenError;

/// The format this binary writes.
pub(crate) const CURRENT: u32 = 1;

/// The content of the file `format`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Format {
    /// The version on disk.
    pub(crate) version: u32,
    /// The oldest binary format that can read it.
    pub(crate) oldest_reader: u32,
    /// The oldest binary format that can write it.
    pub(crate) oldest_writer: u32,
    /// The identity of the store.
    pub(crate) store: Uuid,
}

/// The format numbers stored in the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Levels {
    /// The newest format that a record may have.
    pub(crate) format: u64,
    /// The format that is written; none in stores older than the feature level.
    pub(crate) feature_level: Option<u64>,
}

impl Format {
    /// Refuses numbers that contradict the file, and a feature level above the format this binary writes.
    pub(crate) fn check(&self, levels: Levels) -> Result<(), OpenError> {
        let feature_level = levels.feature_level.unwrap_or(levels.format);
        if levels.format > u64::from(self.version) || feature_level > levels.format || feature_level == 0 {
            return Err(OpenError::damaged(format!(
                "the file format has version {}, the engine {} with feature level {feature_level}",
                self.version, levels.format
            )));
        }
        match u32::try_from(feature_level) {
            Ok(level) if level <= CURRENT => Ok(()),
            level => Err(OpenError::TooNew {
                found: self.version,
                needed: level.unwrap_or(u32::MAX),
                supported: CURRENT,
            }),
        }
    }

    /// The format of a new store.
    pub(crate) fn new(store: Uuid) -> Self {
        Self {
            version: CURRENT,
            oldest_reader: CURRENT,
            oldest_writer: CURRENT,
            store,
        }
    }

    /// Reads the file; refuses a format this binary cannot read or write. None if there is no file.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, OpenError> {
        let path = folder.join("format");
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(OpenError::io(&path, source)),
        };
        let format: Self = serde_json::from_slice(&text).map_err(|error| OpenError::Damaged {
            what: format!("the file {} does not parse: {error}", path.display()),
        })?;
        if format.oldest_reader > CURRENT || format.oldest_writer > CURRENT {
            return Err(OpenError::TooNew {
                found: format.version,
                needed: format.oldest_reader.max(format.oldest_writer),
                supported: CURRENT,
            });
        }
        Ok(Some(format))
    }

    /// Writes the file durably.
    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        write_durably(&folder.join("format"), &text)
    }
}

/// Replaces a file atomically and durably.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fail::fail_point!("durable-before-rename");
    std::fs::rename(&temporary, path)?;
    fail::fail_point!("durable-before-sync");
    sync_name(path)
}

/// What only the owner of a folder may do: everything.
const PRIVATE: u32 = 0o700;

/// Takes the access of other users away: the files hold what only the server may read, whatever the umask is.
///
/// # Errors
/// Other users have access, and only the owner of the folder, who is another user, can change that.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o7777;
    if mode | PRIVATE == PRIVATE {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(PRIVATE)).map_err(|error| {
        let text = format!(
            "other users have access to it (mode {mode:04o}), which its owner must take away: {error}. Use a folder \
             below it, which is created with mode 0700"
        );
        io::Error::new(error.kind(), text)
    })
}

/// Creates a folder and its parents durably. Those that it creates are private.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let made: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    DirBuilder::new().recursive(true).mode(PRIVATE).create(path)?;
    for folder in &made {
        sync_name(folder)?;
    }
    if !made.is_empty() {
        return Ok(());
    }
    // It may have been created just before a kill. If its parent cannot be opened, another user created it.
    match sync_name(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// Makes the name of a file or folder durable.
pub(crate) fn sync_name(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_folder(Path::new(".")),
        Some(parent) => sync_folder(parent),
        None => Ok(()),
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn folders_are_private_whatever_they_were() {
        let root = tempfile::tempdir().unwrap();
        let made = root.path().join("a/b");
        make_folder(&made).unwrap();
        assert_eq!((mode(&made), mode(made.parent().unwrap())), (0o700, 0o700));
        for (before, after) in [(0o755, 0o700), (0o2775, 0o700), (0o500, 0o500)] {
            std::fs::set_permissions(&made, Permissions::from_mode(before)).unwrap();
            make_private(&made).unwrap();
            assert_eq!(mode(&made), after, "{before:o}");
        }
        // The kernel lets nobody change the mode there.
        let refused = make_private(Path::new("/proc/self")).unwrap_err().to_string();
        assert!(
            refused.contains("other users have access to it (mode 0555)"),
            "{refused}"
        );
    }

    #[test]
    fn a_format_is_read_as_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Format::read(folder.path()).unwrap(), None);
        let format = Format::new(Uuid::from_u128(3));
        format.write(folder.path()).unwrap();
        assert_eq!(Format::read(folder.path()).unwrap(), Some(format));
    }

    #[test]
    fn a_newer_format_is_refused_with_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let newer = Format {
            version: 9,
            oldest_reader: 1,
            oldest_writer: 8,
            store: Uuid::nil(),
        };
        newer.write(folder.path()).unwrap();
        let refused = Format::read(folder.path()).unwrap_err().to_string();
        assert!(
            refused.contains("needs format 8") && refused.contains("this binary has 1"),
            "{refused}"
        );
    }

    #[test]
    fn engine_numbers_above_those_of_the_file_are_damage() {
        for (file, format, feature_level, expected) in [
            (1, 1, Some(1), "opens"),
            (1, 1, None, "opens"),
            // A newer binary has opened the store and left the feature level.
            (2, 2, Some(1), "opens"),
            // An upgrade was interrupted after the file.
            (2, 1, Some(1), "opens"),
            (2, 2, Some(2), "too new"),
            (2, 2, None, "too new"),
            (1, 2, Some(1), "damaged"),
            (2, 1, Some(2), "damaged"),
            (1, 1, Some(0), "damaged"),
        ] {
            let file = Format {
                version: file,
                ..Format::new(Uuid::nil())
            };
            let levels = Levels {
                format,
                feature_level,
            };
            let found = match file.check(levels) {
                Ok(()) => "opens",
                Err(OpenError::TooNew {
                    needed: 2,
                    supported: 1,
                    ..
                }) => "too new",
                Err(OpenError::Damaged { .. }) => "damaged",
                Err(other) => panic!("{other}"),
            };
            assert_eq!(found, expected, "{} {levels:?}", file.version);
        }
    }

    #[test]
    fn a_format_that_does_not_parse_is_damage() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("format"), b"{").unwrap();
        assert!(matches!(
            Format::read(folder.path()),
            Err(OpenError::Damaged { .. })
        ));
    }
}
