//! Power loss: only synced bytes and names remain, of every file and every folder.
//!
//! A library that is preloaded into the child (`tests/power/synced_image.c`) copies what each sync covers to an image.
//! After the child is killed, the parent builds a folder with what a file system guarantees after a power loss, with or
//! without some of the rest, and the store must open with everything that it acknowledged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use drydock_storage::rocks::{OpenError, RocksStore};
use drydock_storage::{At, Options, Revision, Store};
use tempfile::TempDir;
use uuid::Uuid;

use crate::backups;
use crate::faults::FAILPOINTS;
use crate::journal::Journal;
use crate::plan::{ChildPlan, Injection, Job, backups_path, options};
use crate::power::copy_folder;
use crate::rounds::{rounds, run};
use crate::truth::{State, Truth, changes_from, open, state_at};

const LONGEST: Duration = Duration::from_secs(2);
const PAGE: usize = 4096;

/// What remains of unsynced data.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unsynced {
    /// Nothing: bytes, names and removals of names are lost.
    Lost,
    /// Names, but no bytes.
    NamesRemain,
    /// A part of the bytes after the synced ones, with pages of zeros.
    Torn,
}

const OUTCOMES: [Unsynced; 3] = [Unsynced::Lost, Unsynced::NamesRemain, Unsynced::Torn];

/// The library, built once per run.
fn library() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("synced_image.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("power/synced_image.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&path, &source])
            .args(["-ldl", "-pthread"])
            .status();
        assert!(built.unwrap().success(), "the library is not built");
        (folder, path)
    });
    path
}

/// A folder with a record of its synced content.
pub(crate) struct Disk {
    /// The recorded folder, with the store and its backups.
    root: TempDir,
    image: TempDir,
}

/// What was lost in a power loss.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Loss {
    bytes: u64,
    names: u64,
}

impl std::ops::AddAssign for Loss {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.names += other.names;
    }
}

/// The name of a file or folder in the image, as in the library.
fn key_of(path: &Path) -> String {
    let found = fs::symlink_metadata(path).unwrap();
    let born = found.created().unwrap().duration_since(UNIX_EPOCH).unwrap();
    format!("{}-{}-{}", found.ino(), born.as_secs(), born.subsec_nanos())
}

/// The entries of a folder by name: whether each is a folder, and its key.
type Entries = BTreeMap<String, (bool, String)>;

fn entries_of(folder: &Path) -> Entries {
    let found = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let entry = |found: fs::DirEntry| {
        let is_folder = found.file_type().unwrap().is_dir();
        let name = found.file_name().into_string().unwrap();
        (name, (is_folder, key_of(&found.path())))
    };
    found.map(entry).collect()
}

impl Disk {
    pub(crate) fn new() -> Self {
        let disk = Self {
            root: TempDir::new().unwrap(),
            image: TempDir::new().unwrap(),
        };
        for part in ["files", "folders"] {
            fs::create_dir(disk.image.path().join(part)).unwrap();
        }
        disk
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.root.path().join("store")
    }

    /// Records everything that exists as synced.
    pub(crate) fn settle(&self) {
        self.settle_folder(self.root.path());
    }

    fn settle_folder(&self, folder: &Path) {
        let mut lines = String::new();
        for (name, (is_folder, key)) in entries_of(folder) {
            let path = folder.join(&name);
            let kind = if is_folder { 'd' } else { 'f' };
            writeln!(lines, "{kind} {key} {name}").unwrap();
            if is_folder {
                self.settle_folder(&path);
            } else {
                fs::copy(&path, self.file(&key)).unwrap();
            }
        }
        fs::write(self.image.path().join("folders").join(key_of(folder)), lines).unwrap();
    }

    fn file(&self, key: &str) -> PathBuf {
        self.image.path().join("files").join(key)
    }

    /// The entries of a folder that were synced.
    fn synced_entries(&self, key: &str) -> Entries {
        let lines = fs::read_to_string(self.image.path().join("folders").join(key)).unwrap_or_default();
        let entry = |line: &str| {
            let (kind, rest) = line.split_once(' ').unwrap();
            let (key, name) = rest.split_once(' ').unwrap();
            (name.to_owned(), (kind == "d", key.to_owned()))
        };
        lines.lines().map(entry).collect()
    }

    /// Runs a child whose syncs are recorded.
    pub(crate) fn run(&self, plan: &ChildPlan, lies: Option<&str>) -> Journal {
        let mut command = plan.command();
        command
            .env("LD_PRELOAD", library())
            .env("DRYDOCK_SYNCED_ROOT", self.root.path())
            .env("DRYDOCK_SYNCED_IMAGE", self.image.path());
        if let Some(lies) = lies {
            command.env("DRYDOCK_SYNCED_LIES", lies);
        }
        run(command, LONGEST)
    }

    /// The disk after a power loss.
    pub(crate) fn cut(&self, unsynced: Unsynced, random: &mut fastrand::Rng) -> (Self, Loss) {
        let after = Self::new();
        let mut loss = Loss::default();
        let root = self.root.path();
        self.cut_folder(
            Some(root),
            &key_of(root),
            after.root.path(),
            unsynced,
            random,
            &mut loss,
        );
        (after, loss)
    }

    /// `now`: the path of the folder, unless it was removed after its name was synced.
    fn cut_folder(
        &self,
        now: Option<&Path>,
        key: &str,
        to: &Path,
        unsynced: Unsynced,
        random: &mut fastrand::Rng,
        loss: &mut Loss,
    ) {
        let synced = self.synced_entries(key);
        let current = now.map_or_else(Entries::default, entries_of);
        loss.names += current
            .iter()
            .filter(|(name, entry)| synced.get(*name) != Some(entry))
            .count() as u64;
        let kept = if matches!(unsynced, Unsynced::NamesRemain) && now.is_some() {
            &current
        } else {
            &synced
        };
        for (name, (is_folder, key)) in kept {
            let target = to.join(name);
            let now = now
                .map(|now| now.join(name))
                .filter(|_| current.get(name) == Some(&(*is_folder, key.clone())));
            if *is_folder {
                fs::create_dir(&target).unwrap();
                self.cut_folder(now.as_deref(), key, &target, unsynced, random, loss);
            } else {
                fs::write(target, self.cut_file(now.as_deref(), key, unsynced, random, loss)).unwrap();
            }
        }
    }

    fn cut_file(
        &self,
        now: Option<&Path>,
        key: &str,
        unsynced: Unsynced,
        random: &mut fastrand::Rng,
        loss: &mut Loss,
    ) -> Vec<u8> {
        let synced = fs::read(self.file(key)).unwrap_or_default();
        let Some(current) = now.map(|now| fs::read(now).unwrap()) else {
            return synced;
        };
        let differ = synced
            .iter()
            .zip(&current)
            .filter(|(one, other)| one != other)
            .count();
        loss.bytes += (differ + current.len().abs_diff(synced.len())) as u64;
        if !matches!(unsynced, Unsynced::Torn) {
            return synced;
        }
        let same = synced
            .iter()
            .zip(&current)
            .take_while(|(one, other)| one == other)
            .count();
        // A single page, such as the mark, is written completely or not at all. Larger files have grown.
        if current.len() <= PAGE {
            return if random.bool() { current } else { synced };
        }
        if same < synced.len() || current.len() <= same {
            return synced;
        }
        let mut torn = current[..same + random.usize(..=current.len() - same)].to_vec();
        if torn.len() > same && random.bool() {
            let from = same + random.usize(..torn.len() - same);
            let to = (from + PAGE).min(torn.len());
            torn[from..to].fill(0);
        }
        torn
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_are_synced_with_every_name_on_their_path() {
    let _shared = FAILPOINTS.read().await;
    let mut disk = Disk::new();
    let (store, _) = open(&disk.store(), false);
    store.close(Duration::from_secs(10)).await.unwrap();
    let mut truth = Truth::default();
    let mut random = fastrand::Rng::with_seed(11);
    let (mut loss, mut acknowledged, mut backups_compared) = (Loss::default(), 0, 0);
    // 12 rounds by default.
    for round in 0..rounds() * 2 / 5 {
        disk.settle();
        let (job, injection) = match round % 3 {
            0 => (
                Job::Write,
                Injection::kill("commit-before-sync", random.i64(20..120)),
            ),
            // At the second pass there is a complete backup, and a new one in progress.
            1 if round % 2 == 0 => (Job::BackUp, Injection::kill("backup-before-removal", 2)),
            // During a backup, with names that are not synced yet.
            1 => (Job::BackUp, Injection::kill("backup-after-checkpoint", 2)),
            _ => (
                Job::Reopen,
                Injection::kill("open-before-threads", random.i64(2..5)),
            ),
        };
        let plan = ChildPlan {
            job,
            injection,
            compact_through: truth.revision.0.saturating_sub(100).max(1),
            ..ChildPlan::to_write(&disk.store(), 6_000_000 + round)
        };
        let journal = disk.run(&plan, None);
        acknowledged += journal.acks.len();
        let unsynced = OUTCOMES[usize::try_from(round / 3).unwrap() % OUTCOMES.len()];
        let (next, taken) = disk.cut(unsynced, &mut random);
        loss += taken;
        disk = next;
        let (store, opened) = open(&disk.store(), false);
        truth.check(&store, &opened, &journal).await;
        if plan.job == Job::BackUp && backups::check(&backups_path(&disk.store()), &truth).await {
            backups_compared += 1;
        }
        store.close(Duration::from_secs(10)).await.unwrap();
    }
    println!("{acknowledged} acknowledged, {backups_compared} backups compared, lost {loss:?}");
    assert!(acknowledged > 50 && backups_compared > 0);
    assert!(loss.bytes > 0 && loss.names > 0, "nothing was lost: {loss:?}");
}

/// In relaxed mode the newest acknowledged writes may be lost; the rest is a state that once existed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_relaxed_mode_an_earlier_state_remains() {
    let _shared = FAILPOINTS.read().await;
    let mut loss = Loss::default();
    for round in 0..6_u64 {
        let disk = Disk::new();
        let mut random = fastrand::Rng::with_seed(round);
        let mut plan = ChildPlan {
            injection: Injection::kill("commit-before-publish", random.i64(50..200)),
            is_relaxed: true,
            ..ChildPlan::to_write(&disk.store(), 7_000_000 + round)
        };
        run(plan.command(), LONGEST);
        let (store, opened) = open(&disk.store(), true);
        store.close(Duration::from_secs(10)).await.unwrap();
        disk.settle();
        plan.seed += 1 << 20;
        plan.compact_through = opened.revision - 20;
        if round % 2 == 1 {
            // Flushes write files that compaction drops as a whole.
            plan.job = Job::BackUp;
        }
        let journal = disk.run(&plan, None);
        // In the same boot nothing is lost, so every earlier state is known.
        let copy = TempDir::new().unwrap();
        copy_folder(&disk.store(), copy.path());
        let states = states_on_the_way(copy.path()).await;

        let unsynced = OUTCOMES[usize::try_from(round).unwrap() % OUTCOMES.len()];
        let (next, taken) = disk.cut(unsynced, &mut random);
        loss += taken;
        let next_boot = Options {
            boot_id: Uuid::from_u128(1),
            ..options(&next.store(), true)
        };
        let (store, opened) = RocksStore::open(next_boot).unwrap();
        assert!(opened.revision > journal.newest_seen, "{unsynced:?}: {opened:?}");
        let found = state_at(&store, At::Latest).await;
        assert!(
            states.contains(&found),
            "{unsynced:?}: a state that never existed"
        );
        store.close(Duration::from_secs(10)).await.unwrap();
    }
    assert!(loss.bytes > 0, "nothing was lost");
}

/// The states of a store since the oldest revision that can be listed.
async fn states_on_the_way(folder: &Path) -> Vec<State> {
    let (store, opened) = open(folder, true);
    let first = Revision(opened.listable_from);
    let mut truth = Truth {
        revision: first,
        state: state_at(&store, At::Exactly(first)).await,
        past: BTreeMap::new(),
    };
    let mut states = vec![truth.state.clone()];
    for event in changes_from(&store, first.next()).await {
        truth.apply(&event);
        states.push(truth.state.clone());
    }
    states
}

/// A disk that ignores syncs: the test finds the loss, so it would find a store that does not sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ignored_sync_is_found() {
    let _shared = FAILPOINTS.read().await;
    let disk = Disk::new();
    let (store, _) = open(&disk.store(), false);
    store.close(Duration::from_secs(10)).await.unwrap();
    disk.settle();
    let plan = ChildPlan {
        injection: Injection::kill("commit-before-sync", 60),
        ..ChildPlan::to_write(&disk.store(), 8_000_000)
    };
    let journal = disk.run(&plan, Some(".log"));
    let (after, _) = disk.cut(Unsynced::Lost, &mut fastrand::Rng::with_seed(0));
    let newest = journal.acks.keys().next_back().copied().unwrap();
    match RocksStore::open(options(&after.store(), false)).map(|(_, opened)| opened) {
        Err(OpenError::AcknowledgedLost {
            recovered,
            acknowledged,
            ..
        }) => assert!(recovered < acknowledged && acknowledged.0 <= newest),
        other => panic!("{newest} was acknowledged and is lost: {other:?}"),
    }
}

/// A store that creates its own folder: the path to it is new too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_write_of_a_new_store_survives() {
    let _shared = FAILPOINTS.read().await;
    let mut random = fastrand::Rng::with_seed(14);
    let disk = Disk::new();
    disk.settle();
    let plan = ChildPlan {
        job: Job::WriteOnce,
        ..ChildPlan::to_write(&disk.store(), 10_000_000)
    };
    let journal = disk.run(&plan, None);
    assert_eq!(journal.acks.len(), 1);
    let (after, _) = disk.cut(Unsynced::Lost, &mut random);
    let (store, opened) = open(&after.store(), false);
    Truth::default().check(&store, &opened, &journal).await;
}

/// The same for the first backup, which creates its folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_backup_survives() {
    let _shared = FAILPOINTS.read().await;
    let mut random = fastrand::Rng::with_seed(15);
    let disk = Disk::new();
    let (store, _) = open(&disk.store(), false);
    store.close(Duration::from_secs(10)).await.unwrap();
    disk.settle();
    let plan = ChildPlan {
        job: Job::BackUp,
        injection: Injection::kill("backup-before-removal", 1),
        ..ChildPlan::to_write(&disk.store(), 11_000_000)
    };
    let journal = disk.run(&plan, None);
    let (after, _) = disk.cut(Unsynced::Lost, &mut random);
    let mut truth = Truth::default();
    let (store, opened) = open(&after.store(), false);
    truth.check(&store, &opened, &journal).await;
    assert!(
        backups::check(&backups_path(&after.store()), &truth).await,
        "the backup is lost"
    );
}
