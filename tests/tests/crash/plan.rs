//! The plan of a child: its job and the fault that is injected, passed in environment variables.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use drydock_storage::{Durability, Options};

/// The job of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// Writes once, and exits as soon as the write is acknowledged.
    WriteOnce,
    /// Writes, watches, compacts and runs maintenance.
    Write,
    /// The same, and takes one backup after the other; each flushes and makes a checkpoint.
    BackUp,
    /// The same with incremental backups.
    CopyOut,
    /// Writes, closes and opens repeatedly: each close flushes, each open starts a new manifest.
    Reopen,
    /// Writes and flushes until the manifest is the largest file and cannot grow.
    FillManifest,
    /// Restores this backup.
    Restore(PathBuf),
    /// Imports this export.
    Import(PathBuf),
    /// Recovers a damaged store, accepting loss.
    Recover,
}

/// A fault that is injected into a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Injection {
    /// None; the parent kills it.
    None,
    /// It is killed at this pass of a failpoint, or some time later.
    Kill {
        point: String,
        passes: i64,
        delay: Duration,
    },
    /// This pass of a failpoint fails.
    Error { point: String, passes: i64 },
    /// No file grows beyond this size, as on a full disk.
    Full { bytes: u64 },
}

impl Injection {
    pub(crate) fn kill(point: &str, passes: i64) -> Self {
        Self::Kill {
            point: point.to_owned(),
            passes,
            delay: Duration::ZERO,
        }
    }
}

/// The plan of a child.
#[derive(Debug, Clone)]
pub(crate) struct ChildPlan {
    pub(crate) folder: PathBuf,
    pub(crate) seed: u64,
    pub(crate) job: Job,
    pub(crate) injection: Injection,
    pub(crate) is_relaxed: bool,
    /// History up to here may be compacted.
    pub(crate) compact_through: u64,
    /// Whether the child writes down the length of each log after it was synced.
    pub(crate) notes_syncs: bool,
}

const FOLDER: &str = "DRYDOCK_CRASH_FOLDER";
const SEED: &str = "DRYDOCK_CRASH_SEED";
const JOB: &str = "DRYDOCK_CRASH_JOB";
const SOURCE: &str = "DRYDOCK_CRASH_SOURCE";
const INJECTION: &str = "DRYDOCK_CRASH_INJECTION";
const RELAXED: &str = "DRYDOCK_CRASH_RELAXED";
const COMPACT: &str = "DRYDOCK_CRASH_COMPACT";
const NOTES: &str = "DRYDOCK_CRASH_NOTES";

impl ChildPlan {
    /// A plan to write in a folder.
    pub(crate) fn to_write(folder: &Path, seed: u64) -> Self {
        Self {
            folder: folder.to_owned(),
            seed,
            job: Job::Write,
            injection: Injection::None,
            is_relaxed: false,
            compact_through: 1,
            notes_syncs: false,
        }
    }

    /// The command that runs the child.
    pub(crate) fn command(&self) -> Command {
        let this = std::env::current_exe().unwrap();
        let mut command = if let Injection::Full { bytes } = self.injection {
            // An ignored signal stays ignored across exec, so a write beyond the limit fails instead of killing.
            let limited = format!(
                "trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"",
                bytes.div_ceil(512)
            );
            let mut command = Command::new("sh");
            command.args(["-c", &limited]).arg(this);
            command
        } else {
            Command::new(this)
        };
        command.args(["--exact", "child::the_child", "--nocapture", "--test-threads=1"]);
        self.set_environment(&mut command);
        command
    }

    fn set_environment(&self, command: &mut Command) {
        let (job, source) = match &self.job {
            Job::WriteOnce => ("write-once", None),
            Job::Write => ("write", None),
            Job::BackUp => ("back-up", None),
            Job::CopyOut => ("copy-out", None),
            Job::Reopen => ("reopen", None),
            Job::FillManifest => ("fill-manifest", None),
            Job::Restore(source) => ("restore", Some(source)),
            Job::Import(source) => ("import", Some(source)),
            Job::Recover => ("recover", None),
        };
        let injection = match &self.injection {
            Injection::None => String::new(),
            Injection::Kill { point, passes, delay } => {
                format!("kill {point} {passes} {}", delay.as_micros())
            }
            Injection::Error { point, passes } => format!("error {point} {passes}"),
            Injection::Full { bytes } => format!("full {bytes}"),
        };
        command.env(FOLDER, &self.folder).env(SEED, self.seed.to_string());
        command.env(JOB, job).env(INJECTION, injection);
        command.env(COMPACT, self.compact_through.to_string());
        if let Some(source) = source {
            command.env(SOURCE, source);
        }
        for (name, is_set) in [(RELAXED, self.is_relaxed), (NOTES, self.notes_syncs)] {
            if is_set {
                command.env(name, "1");
            }
        }
    }

    /// The plan of this process; `None` if no parent started it.
    pub(crate) fn from_environment() -> Option<Self> {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let source = || PathBuf::from(std::env::var_os(SOURCE).unwrap());
        let folder = std::env::var_os(FOLDER)?.into();
        let job = match std::env::var(JOB).unwrap().as_str() {
            "write-once" => Job::WriteOnce,
            "write" => Job::Write,
            "back-up" => Job::BackUp,
            "copy-out" => Job::CopyOut,
            "reopen" => Job::Reopen,
            "fill-manifest" => Job::FillManifest,
            "restore" => Job::Restore(source()),
            "import" => Job::Import(source()),
            "recover" => Job::Recover,
            other => panic!("no such job: {other}"),
        };
        let injection = std::env::var(INJECTION).unwrap();
        let injection = match injection.split(' ').collect::<Vec<_>>().as_slice() {
            ["kill", point, passes, delay] => Injection::Kill {
                point: (*point).to_owned(),
                passes: passes.parse().unwrap(),
                delay: Duration::from_micros(delay.parse().unwrap()),
            },
            ["error", point, passes] => Injection::Error {
                point: (*point).to_owned(),
                passes: passes.parse().unwrap(),
            },
            ["full", bytes] => Injection::Full {
                bytes: bytes.parse().unwrap(),
            },
            _ => Injection::None,
        };
        Some(Self {
            folder,
            seed: number(SEED)?,
            job,
            injection,
            is_relaxed: number(RELAXED).is_some(),
            compact_through: number(COMPACT)?,
            notes_syncs: number(NOTES).is_some(),
        })
    }
}

/// The options of a store under test.
pub(crate) fn options(folder: &Path, is_relaxed: bool) -> Options {
    let durability = if is_relaxed {
        Durability::Relaxed {
            interval: Duration::from_millis(20),
        }
    } else {
        Durability::Strict
    };
    Options {
        durability,
        lock_wait: Duration::from_secs(10),
        ..Options::for_tests(folder)
    }
}

/// The file for the synced length of the newest log.
pub(crate) fn notes_path(folder: &Path) -> PathBuf {
    folder.with_extension("synced")
}

/// The folder for backups of a store.
pub(crate) fn backups_path(folder: &Path) -> PathBuf {
    folder.with_extension("backups")
}

/// The folder for incremental backups of a store.
pub(crate) fn copies_path(folder: &Path) -> PathBuf {
    folder.with_extension("copies")
}

/// The newest log of a store and its length.
pub(crate) fn newest_log(folder: &Path) -> Option<(PathBuf, u64)> {
    let found = std::fs::read_dir(folder.join("db")).ok()?;
    let logs = found.filter_map(|found| Some(found.ok()?.path()));
    let newest = logs
        .filter(|path| path.extension().is_some_and(|end| end == "log"))
        .max()?;
    let length = std::fs::metadata(&newest).ok()?.len();
    Some((newest, length))
}
