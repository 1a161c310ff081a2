//! Checks of backups after a kill: each is complete, and the newest one restores to the state of its revision.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drydock_storage::rocks::{RocksStore, restore, verify_backup};
use drydock_storage::seal::{Seal, Unsealed};
use drydock_storage::{At, Key, Options, Revision, Value};
use tempfile::TempDir;

use crate::truth::{State, Truth, state_at};

/// The backups in a folder, oldest first.
pub(crate) fn list(backups: &Path) -> Vec<PathBuf> {
    let Ok(found) = std::fs::read_dir(backups) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = found.map(|found| found.unwrap().path()).collect();
    found.retain(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("backup-"))
    });
    found.sort_unstable();
    found
}

/// Keys and values without revisions.
pub(crate) fn values(state: &State) -> BTreeMap<Key, Value> {
    state
        .iter()
        .map(|(key, entry)| (key.clone(), entry.value.clone()))
        .collect()
}

/// Restores a backup into a temporary folder.
async fn restored_values(backup: &Path) -> (Revision, BTreeMap<Key, Value>) {
    let root = TempDir::new().unwrap();
    let options = Options::for_tests(root.path().join("store"));
    let report = restore(backup, &options, &|_| {}).unwrap();
    let (store, opened) = RocksStore::open(options).unwrap();
    assert_eq!(opened.revision, report.revision);
    (
        Revision(report.source_revision),
        values(&state_at(&store, At::Latest).await),
    )
}

/// Checks every backup in a folder. Returns whether one of them was compared with the expected state.
pub(crate) async fn check(backups: &Path, truth: &Truth) -> bool {
    let found = list(backups);
    let seal: Arc<dyn Seal> = Arc::new(Unsealed);
    for backup in &found {
        verify_backup(backup, &seal, &|_| {}).unwrap();
    }
    // An interrupted backup fails its verification, or it is complete and has not been renamed yet.
    let unfinished = backups.join("unfinished");
    let unnamed = verify_backup(&unfinished, &seal, &|_| {})
        .is_ok()
        .then_some(unfinished);
    let mut is_compared = false;
    for backup in found.last().into_iter().chain(unnamed.as_ref()) {
        let (revision, values_then) = restored_values(backup).await;
        if let Some(state) = truth.past.get(&revision) {
            assert_eq!(values_then, values(state), "{} at {revision}", backup.display());
            is_compared = true;
        }
    }
    is_compared
}

/// Restores the newest incremental backup, which has a state from when it was taken. Returns whether it was compared.
pub(crate) async fn check_copies(copies: &Path, truth: &Truth) -> bool {
    let is_manifest = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    if !list(copies).iter().any(is_manifest) {
        return false;
    }
    let (revision, values_then) = restored_values(copies).await;
    // It has this revision or an earlier one, but none from before the child started.
    let is_known = truth.past.contains_key(&revision) && truth.past.keys().next() < Some(&revision);
    let mut possible = truth.past.range(..=revision);
    assert!(
        !is_known || possible.any(|(_, state)| values(state) == values_then),
        "{} up to {revision}",
        copies.display()
    );
    is_known
}
