//! What the parent orders a child to do and to suffer, told through environment variables.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use drydock_storage::{Durability, Options};

/// What a child does until something ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// Writes once, and is gone as soon as it is answered.
    WriteOnce,
    /// Writes, watches, compacts and keeps house.
    Write,
    /// The same, and takes one backup after another: each flushes and is a checkpoint.
    BackUp,
    /// The same with incremental backups.
    CopyOut,
    /// Writes, closes and opens, again and again: each close flushes, each open begins a new manifest.
    Reopen,
    /// Writes and flushes until the manifest is larger than all else, then meets the full disk there.
    FillManifest,
    /// Restores this backup.
    Restore(PathBuf),
    /// Imports this export.
    Import(PathBuf),
    /// Recovers a damaged store, accepting loss.
    Recover,
}

/// What befalls a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Blow {
    /// The parent's kill alone.
    None,
    /// It dies when it has passed a failpoint so many times, and some time later.
    Death {
        point: String,
        passes: i64,
        linger: Duration,
    },
    /// Passing a failpoint for this many times fails.
    Error { point: String, passes: i64 },
    /// No file grows beyond so many bytes, as if the disk were full then.
    Full { bytes: u64 },
}

impl Blow {
    pub(crate) fn death(point: &str, passes: i64) -> Self {
        Self::Death {
            point: point.to_owned(),
            passes,
            linger: Duration::ZERO,
        }
    }
}

/// What the parent orders.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    pub(crate) folder: PathBuf,
    pub(crate) seed: u64,
    pub(crate) job: Job,
    pub(crate) blow: Blow,
    pub(crate) is_relaxed: bool,
    /// History up to here may be let go of.
    pub(crate) compact_through: u64,
    /// Note how long each log is when it has just been synced.
    pub(crate) notes_syncs: bool,
}

const FOLDER: &str = "DRYDOCK_CRASH_FOLDER";
const SEED: &str = "DRYDOCK_CRASH_SEED";
const JOB: &str = "DRYDOCK_CRASH_JOB";
const SOURCE: &str = "DRYDOCK_CRASH_SOURCE";
const BLOW: &str = "DRYDOCK_CRASH_BLOW";
const RELAXED: &str = "DRYDOCK_CRASH_RELAXED";
const COMPACT: &str = "DRYDOCK_CRASH_COMPACT";
const NOTES: &str = "DRYDOCK_CRASH_NOTES";

impl Orders {
    /// Orders to write in a folder, and nothing else.
    pub(crate) fn to_write(folder: &Path, seed: u64) -> Self {
        Self {
            folder: folder.to_owned(),
            seed,
            job: Job::Write,
            blow: Blow::None,
            is_relaxed: false,
            compact_through: 1,
            notes_syncs: false,
        }
    }

    /// The command that runs a child under these orders.
    pub(crate) fn command(&self) -> Command {
        let this = std::env::current_exe().unwrap();
        let mut command = if let Blow::Full { bytes } = self.blow {
            // A signal that is ignored stays ignored across exec; a write beyond the limit then fails.
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
        self.tell(&mut command);
        command
    }

    fn tell(&self, command: &mut Command) {
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
        let blow = match &self.blow {
            Blow::None => String::new(),
            Blow::Death {
                point,
                passes,
                linger,
            } => format!("death {point} {passes} {}", linger.as_micros()),
            Blow::Error { point, passes } => format!("error {point} {passes}"),
            Blow::Full { bytes } => format!("full {bytes}"),
        };
        command.env(FOLDER, &self.folder).env(SEED, self.seed.to_string());
        command.env(JOB, job).env(BLOW, blow);
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

    /// The orders of this process; none when no parent started it.
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
        let blow = std::env::var(BLOW).unwrap();
        let blow = match blow.split(' ').collect::<Vec<_>>().as_slice() {
            ["death", point, passes, linger] => Blow::Death {
                point: (*point).to_owned(),
                passes: passes.parse().unwrap(),
                linger: Duration::from_micros(linger.parse().unwrap()),
            },
            ["error", point, passes] => Blow::Error {
                point: (*point).to_owned(),
                passes: passes.parse().unwrap(),
            },
            ["full", bytes] => Blow::Full {
                bytes: bytes.parse().unwrap(),
            },
            _ => Blow::None,
        };
        Some(Self {
            folder,
            seed: number(SEED)?,
            job,
            blow,
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

/// Where the child notes the synced length of the newest log.
pub(crate) fn notes_path(folder: &Path) -> PathBuf {
    folder.with_extension("synced")
}

/// Where backups of a store go.
pub(crate) fn backups_path(folder: &Path) -> PathBuf {
    folder.with_extension("backups")
}

/// Where incremental backups of a store go.
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
