//! `drydock-apiserver storage`: work on a store while no server runs on it.
//!
//! Export, import and rewrite work with etcd, too; what concerns files is for RocksDB only.
//!
//! Progress is shown as a bar on standard error; the report is one JSON document on standard output.

use std::sync::Mutex;
use std::time::Duration;

use drydock_storage::clock::{Clock as _, SystemClock};
use drydock_storage::etcd::{self, EtcdOpenError, EtcdOptions, EtcdStore, EtcdTransferError};
use drydock_storage::rocks::{self, MaintenanceError, OpenError, Progress, RocksStore};
use drydock_storage::{At, Key, KeyRange, Options, Outcome, Page, Removable, Store, StoreError, Transaction};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::Value;

use crate::backend;
use crate::config::{ConfigError, StorageCommand, StorageFlags};
use crate::encryption::{Encryption, EncryptionError};

/// Why a storage command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A flag has an invalid value.
    #[error(transparent)]
    Flags(#[from] ConfigError),
    /// Encryption at rest cannot be configured.
    #[error(transparent)]
    Encryption(#[from] EncryptionError),
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The work failed.
    #[error(transparent)]
    Work(#[from] MaintenanceError),
    /// etcd cannot be used.
    #[error(transparent)]
    Etcd(#[from] EtcdOpenError),
    /// Objects could not be moved to or from etcd.
    #[error(transparent)]
    EtcdTransfer(#[from] EtcdTransferError),
    /// The command is for the embedded store only.
    #[error("storage {command} is for RocksDB only: {instead}")]
    RocksOnly {
        /// The command.
        command: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// The store refused a write.
    #[error(transparent)]
    Store(StoreError),
    /// An object is sealed, and its key is not at hand: nothing says that it is damaged.
    #[error(
        "{key} is sealed and does not open: {reason}. That is no damage. Give --encryption-provider-config with its key; \
         docs/encryption.md says what to do if the key is lost"
    )]
    Sealed {
        /// The object.
        key: String,
        /// Why it does not open.
        reason: String,
    },
    /// Verification found damaged values.
    #[error("{count} stored values are damaged: they are named in the report")]
    Damaged {
        /// How many.
        count: usize,
    },
    /// The report cannot be written.
    #[error("the report cannot be written")]
    Report(#[source] std::io::Error),
    /// The work panicked.
    #[error("the command panicked")]
    Panicked(#[source] tokio::task::JoinError),
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Sealed { key, reason } => Self::Sealed { key, reason },
            error => Self::Store(error),
        }
    }
}

/// Runs a command and prints its report.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: StorageCommand) -> Result<(), CommandError> {
    let encryption = Encryption::load(command.store().validated()?.encryption).await?;
    tokio::task::spawn_blocking(move || execute(&command, &encryption))
        .await
        .map_err(CommandError::Panicked)?
}

fn execute(command: &StorageCommand, encryption: &Encryption) -> Result<(), CommandError> {
    let bar = Bar::new();
    let options = |store: &StorageFlags| options(store, encryption);
    let open = |store: &StorageFlags| open(store, encryption);
    if let Some(etcd) = etcd_of(command, encryption)? {
        return tokio::runtime::Handle::current().block_on(execute_on_etcd(command, etcd, &bar));
    }
    let progress = |progress: Progress| bar.show(progress);
    match command {
        StorageCommand::Recover { store, accept_loss } => {
            print(&rocks::recover(&options(store)?, *accept_loss, &progress)?)
        }
        StorageCommand::Verify(store) => {
            let report = rocks::verify(&options(store)?, &progress)?;
            let count = report.damaged.len() + report.damaged_history.len();
            print(&report)?;
            if count > 0 {
                Err(CommandError::Damaged { count })
            } else {
                Ok(())
            }
        }
        StorageCommand::Rewrite(store) => {
            let store = open(store)?;
            let runtime = tokio::runtime::Handle::current();
            print(&runtime.block_on(async {
                let report = rewrite(&store, &bar).await?;
                // Nothing that is kept needs another key then.
                store.compact(store.current_revision().await?).await?;
                Ok::<_, CommandError>(report)
            })?)
        }
        StorageCommand::RemoveDamaged { store, key } => print(&remove_damaged(&open(store)?, key)?),
        StorageCommand::Backup { store, target, keep } => {
            let store = open(store)?;
            if let Some(folder) = &target.incremental_to {
                print(&store.backup_incrementally(folder, *keep)?)?;
            }
            if let Some(folder) = &target.to {
                print(&store.backup(folder, *keep, &progress)?)?;
            }
            Ok(())
        }
        StorageCommand::Restore { store, from } => print(&rocks::restore(from, &options(store)?, &progress)?),
        StorageCommand::Export { store, to } => print(&open(store)?.export(to, &progress)?),
        StorageCommand::Import { store, from } => print(&rocks::import(from, &options(store)?, &progress)?),
    }
}

/// The options of etcd, if the flags of a command choose it.
fn etcd_of(command: &StorageCommand, encryption: &Encryption) -> Result<Option<EtcdOptions>, CommandError> {
    let etcd = command.store().validated()?.etcd;
    Ok(etcd.map(|etcd| EtcdOptions {
        // Work on a store leaves its history alone.
        compaction_interval: Duration::ZERO,
        ..backend::etcd_options(&etcd, encryption)
    }))
}

async fn execute_on_etcd(
    command: &StorageCommand,
    options: EtcdOptions,
    bar: &Bar,
) -> Result<(), CommandError> {
    let rocks_only = |command, instead| Err(CommandError::RocksOnly { command, instead });
    let progress = |step, done, total| {
        bar.show(Progress {
            step,
            done,
            total: Some(total),
        });
    };
    match command {
        StorageCommand::Recover { .. } => rocks_only("recover", "etcd recovers on its own"),
        StorageCommand::Verify(_) => rocks_only("verify", "use etcdctl endpoint hashkv and etcdutl check"),
        StorageCommand::Backup { .. } => rocks_only("backup", backend::ETCD_BACKUPS),
        StorageCommand::Restore { .. } => rocks_only(
            "restore",
            "use etcdutl snapshot restore --bump-revision --mark-compacted, see docs/etcd.md",
        ),
        StorageCommand::Rewrite(_) => {
            let (store, _) = EtcdStore::open(options).await?;
            print(&rewrite(&store, bar).await?)
        }
        StorageCommand::RemoveDamaged { key, .. } => {
            let parsed = Key::parse(key).map_err(StoreError::from)?;
            let store = EtcdStore::open(options).await?.0;
            match store.remove_damaged(&parsed, Removable::Damaged).await? {
                Outcome::Committed { revision } => print(&Removed {
                    removed: key,
                    revision: revision.0,
                }),
                // Somebody else changed it meanwhile.
                Outcome::Conflict { .. } => Err(StoreError::NotDamaged.into()),
            }
        }
        StorageCommand::Export { to, .. } => {
            let (store, _) = EtcdStore::open(options).await?;
            print(&store.export(to, SystemClock.now_ms(), &progress).await?)
        }
        StorageCommand::Import { from, .. } => {
            print(&etcd::import(options, from, SystemClock.now_ms(), &progress).await?)
        }
    }
}

/// What `remove-damaged` did.
#[derive(Debug, Serialize)]
struct Removed<'a> {
    removed: &'a str,
    revision: u64,
}

fn remove_damaged<'a>(store: &RocksStore, key: &'a str) -> Result<Removed<'a>, CommandError> {
    let parsed = Key::parse(key).map_err(StoreError::from)?;
    let removal = store.remove_damaged(&parsed, Removable::Damaged);
    match tokio::runtime::Handle::current().block_on(removal)? {
        Outcome::Committed { revision } => Ok(Removed {
            removed: key,
            revision: revision.0,
        }),
        // This process holds the lock of the store: there is no concurrent writer.
        Outcome::Conflict { .. } => Err(StoreError::Unknown { source: None }.into()),
    }
}

/// What `rewrite` did.
#[derive(Debug, Serialize)]
struct Rewritten {
    /// Objects that were looked at.
    objects: u64,
    /// Objects that were written again.
    rewritten: u64,
}

/// How many objects are read at once: of the largest objects, 96 MiB.
const PAGE: usize = 64;

/// Writes every stale object again, as it is. One that is written meanwhile is fresh.
async fn rewrite<S: Store>(store: &S, bar: &Bar) -> Result<Rewritten, CommandError> {
    let mut report = Rewritten {
        objects: 0,
        rewritten: 0,
    };
    let mut after = String::new();
    loop {
        let page = Page {
            after,
            limit: PAGE,
            ..Page::default()
        };
        let scan = store.scan(&KeyRange::all(), At::Latest, page).await?;
        after = match scan.entries.last() {
            Some((key, _)) if scan.more => key.as_str().to_owned(),
            _ => String::new(),
        };
        for (key, entry) in scan.entries {
            report.objects += 1;
            if !store.is_stale(&key, entry.modified).await? {
                continue;
            }
            let update = Transaction::update(key, entry.modified, entry.value);
            if let Outcome::Committed { .. } = store.transact(update).await? {
                report.rewritten += 1;
            }
        }
        bar.show(Progress {
            step: "rewrite",
            done: report.objects,
            total: None,
        });
        if after.is_empty() {
            return Ok(report);
        }
    }
}

fn options(store: &StorageFlags, encryption: &Encryption) -> Result<Options, CommandError> {
    Ok(backend::options(&store.validated()?, encryption))
}

fn open(store: &StorageFlags, encryption: &Encryption) -> Result<RocksStore, CommandError> {
    let options = options(store, encryption)?;
    if !options.path.exists() {
        let path = options.path;
        return Err(OpenError::Missing { path }.into());
    }
    Ok(RocksStore::open(options)?.0)
}

fn print(report: &impl Serialize) -> Result<(), CommandError> {
    use std::io::Write as _;
    let value: Value = serde_json::to_value(report).map_err(|error| CommandError::Report(error.into()))?;
    let mut text = drydock_machinery::codec::encode_pretty(&value);
    text.push(b'\n');
    std::io::stdout().write_all(&text).map_err(CommandError::Report)
}

/// A progress bar on standard error; not shown if that is not a terminal.
struct Bar(Mutex<ProgressBar>);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg:8} {wide_bar} {human_pos}/{human_len} {eta}") {
            bar.set_style(style);
        }
        Self(Mutex::new(bar))
    }

    fn show(&self, progress: Progress) {
        let bar = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        bar.set_message(progress.step);
        if let Some(total) = progress.total {
            bar.set_length(total);
        }
        bar.set_position(progress.done);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use clap::Parser as _;
    use drydock_storage::Value;
    use drydock_storage::seal::{Seal, SealError, Sealed, Unsealed};

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        command: StorageCommand,
    }

    /// While set, damages the next payload that is sealed: the value of an object, which comes before its history.
    #[derive(Default)]
    struct Damaging(AtomicBool);

    impl Seal for Damaging {
        fn seal(&self, key: &str, mut plain: Vec<u8>) -> Result<Sealed, SealError> {
            if self.0.swap(false, Ordering::Relaxed)
                && let Some(first) = plain.first_mut()
            {
                *first ^= 1;
            }
            Unsealed.seal(key, plain)
        }

        fn open(&self, key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
            Unsealed.open(key, key_id, sealed)
        }
    }

    async fn remove(folder: &std::path::Path, key: &str) -> Result<(), CommandError> {
        let arguments = ["storage", "remove-damaged", "--storage-any-file-system"];
        let arguments = arguments.into_iter().map(OsString::from);
        let arguments = arguments.chain(["--data-dir".into(), folder.into(), key.into()]);
        run(Line::try_parse_from(arguments).unwrap().command).await
    }

    #[tokio::test]
    async fn remove_damaged_removes_only_damaged_values() {
        let folder = tempfile::TempDir::new().unwrap();
        let seal = Arc::new(Damaging::default());
        let options = || Options {
            seal: Arc::clone(&seal) as _,
            ..Options::for_tests(folder.path())
        };
        let (store, _) = RocksStore::open(options()).unwrap();
        let key = |name: &str| Key::new("g", "things", "n", name).unwrap();
        for name in ["whole", "damaged"] {
            seal.0.store(name == "damaged", Ordering::Relaxed);
            let value = Value {
                bytes: "{\"kind\":\"Thing\"}".into(),
                form: "v1".into(),
                splice_offset: 1,
            };
            store
                .transact(Transaction::create(key(name), value))
                .await
                .unwrap();
        }
        store.close(Duration::from_secs(10)).await.unwrap();
        drop(store);

        for (name, is_removed) in [
            ("whole", false),
            ("absent", false),
            ("damaged", true),
            ("damaged", false),
        ] {
            let outcome = remove(folder.path(), key(name).as_str()).await;
            assert_eq!(outcome.is_ok(), is_removed, "{name}: {outcome:?}");
            let refused = matches!(outcome, Err(CommandError::Store(StoreError::NotDamaged)));
            assert_eq!(refused, !is_removed, "{name}");
        }
        assert!(matches!(
            remove(folder.path(), "no key").await,
            Err(CommandError::Store(StoreError::Key(_)))
        ));
        let (store, opened) = RocksStore::open(options()).unwrap();
        assert!(opened.damaged.is_empty());
        assert!(store.get(&key("whole")).await.unwrap().entry.is_some());
        assert!(store.get(&key("damaged")).await.unwrap().entry.is_none());
    }
}
