//! Backup, restore, export, import, verification and recovery: no loss is silent, and no revision goes back.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod backups;
mod exports;
mod fixture;
mod incremental;
mod recovery;
