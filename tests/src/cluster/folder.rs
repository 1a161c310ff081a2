//! The folder with a cluster's certificates, data and logs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, test_kill_process};

const PREFIX: &str = "drydock-cluster-";

/// The folder of one cluster, readable only by its owner since it holds private keys.
///
/// A temporary folder is removed when its cluster is dropped. If a test is failing, the logs stay until the next
/// cluster on this machine starts after the test's process has ended.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    is_temporary: bool,
}

impl Folder {
    /// A new folder below the system's temporary folder, named after this process.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn temporary() -> Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        remove_abandoned();
        let path = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .context("create the cluster's folder")?
            .keep();
        Ok(Self {
            path,
            is_temporary: true,
        })
    }

    /// A permanent folder at a path that must not exist yet.
    ///
    /// # Errors
    /// It exists or cannot be created.
    pub fn chosen(path: &Path) -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let path = std::path::absolute(path).context("find the current folder")?;
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        }
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("create the cluster's folder {}", path.display()))?;
        // Without symbolic links, since it is compared with command lines later.
        let path = path
            .canonicalize()
            .with_context(|| format!("find {}", path.display()))?;
        Ok(Self {
            path,
            is_temporary: false,
        })
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file in the folder and returns its path.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path.join(name);
        std::fs::write(&path, contents).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_temporary && !std::thread::panicking() {
            // Otherwise the next cluster removes it.
            std::fs::remove_dir_all(&self.path).ok();
        }
    }
}

/// Removes the temporary folders of processes that have ended: a shared cluster is in a static, which is never
/// dropped.
fn remove_abandoned() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .and_then(|rest| rest.split_once('-'))
            .and_then(|(pid, _)| Pid::from_raw(pid.parse().ok()?));
        if owner.is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH)) {
            std::fs::remove_dir_all(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_folder_is_private_and_removed_on_drop() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = Folder::temporary().unwrap();
        let path = folder.path().to_owned();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_is_removed_after_its_process_has_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let abandoned = std::env::temp_dir().join(format!("{PREFIX}{}-abandoned", child.id()));
        std::fs::create_dir(&abandoned).unwrap();
        let mine = Folder::temporary().unwrap();
        let other = Folder::temporary().unwrap();
        assert!(!abandoned.exists());
        assert!(mine.path().exists() && other.path().exists());
    }

    #[test]
    fn a_chosen_folder_must_be_new() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        let folder = Folder::chosen(&path).unwrap();
        assert!(Folder::chosen(&path).is_err());
        drop(folder);
        assert!(path.exists());
    }
}
