//! Power is gone: only what was synced is there, of every file and every folder.
//!
//! A library that is preloaded into the child (`tests/power/synced_image.c`) repeats each sync in an image. After the
//! child's death the parent makes a folder of it that has what a file system owes after a loss of power, with or
//! without some of what it does not owe, and the store must come up with everything it acknowledged.

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
use crate::faults::TURN;
use crate::journal::Journal;
use crate::orders::{Blow, Job, Orders, backups_path, options};
use crate::power::copy_folder;
use crate::rounds::{rounds, run};
use crate::truth::{State, Truth, changes_from, open, state_at};

const LONGEST: Duration = Duration::from_secs(2);
const PAGE: usize = 4096;

/// What becomes of what was not synced.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    /// It is gone: bytes, names, and the absence of names.
    Gone,
    /// Every file has the name it had at the end, and only the bytes that were synced.
    NamesStay,
    /// Of the bytes behind the synced ones some are there, and pages among them are zero.
    Torn,
}

const FATES: [Fate; 3] = [Fate::Gone, Fate::NamesStay, Fate::Torn];

/// The library, built once a run.
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

/// A folder whose synced content is known.
pub(crate) struct Disk {
    /// What is watched; the store and its backups lie in it.
    root: TempDir,
    image: TempDir,
}

/// What a loss of power took.
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

/// The name of a file or folder in the image, as the library gives it.
fn key_of(path: &Path) -> String {
    let found = fs::symlink_metadata(path).unwrap();
    let born = found.created().unwrap().duration_since(UNIX_EPOCH).unwrap();
    format!("{}-{}-{}", found.ino(), born.as_secs(), born.subsec_nanos())
}

/// An entry of a folder: whether it is one itself, and its key.
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

    /// Takes everything that is there for durable: it has been for long.
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

    /// Runs a child whose syncs are repeated.
    pub(crate) fn run(&self, orders: &Orders, lies: Option<&str>) -> Journal {
        let mut command = orders.command();
        command
            .env("LD_PRELOAD", library())
            .env("DRYDOCK_SYNCED_ROOT", self.root.path())
            .env("DRYDOCK_SYNCED_IMAGE", self.image.path());
        if let Some(lies) = lies {
            command.env("DRYDOCK_SYNCED_LIES", lies);
        }
        run(command, LONGEST)
    }

    /// What is there after the power came back.
    pub(crate) fn cut(&self, fate: Fate, random: &mut fastrand::Rng) -> (Self, Loss) {
        let after = Self::new();
        let mut loss = Loss::default();
        let root = self.root.path();
        self.cut_folder(
            Some(root),
            &key_of(root),
            after.root.path(),
            fate,
            random,
            &mut loss,
        );
        (after, loss)
    }

    /// `now`: where the folder lies, unless it is gone since its name was synced.
    fn cut_folder(
        &self,
        now: Option<&Path>,
        key: &str,
        to: &Path,
        fate: Fate,
        random: &mut fastrand::Rng,
        loss: &mut Loss,
    ) {
        let synced = self.synced_entries(key);
        let current = now.map_or_else(Entries::default, entries_of);
        loss.names += current
            .iter()
            .filter(|(name, entry)| synced.get(*name) != Some(entry))
            .count() as u64;
        let kept = if matches!(fate, Fate::NamesStay) && now.is_some() {
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
                self.cut_folder(now.as_deref(), key, &target, fate, random, loss);
            } else {
                fs::write(target, self.cut_file(now.as_deref(), key, fate, random, loss)).unwrap();
            }
        }
    }

    fn cut_file(
        &self,
        now: Option<&Path>,
        key: &str,
        fate: Fate,
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
        if !matches!(fate, Fate::Torn) {
            return synced;
        }
        let same = synced
            .iter()
            .zip(&current)
            .take_while(|(one, other)| one == other)
            .count();
        // One page, as the mark is: all or nothing. Else it has grown.
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
async fn what_was_acknowledged_was_synced_with_every_name_on_the_way_to_it() {
    let _turn = TURN.read().await;
    let mut disk = Disk::new();
    let (store, _) = open(&disk.store(), false);
    store.close(Duration::from_secs(10)).await.unwrap();
    let mut truth = Truth::default();
    let mut random = fastrand::Rng::with_seed(11);
    let (mut loss, mut acknowledged, mut backups_compared) = (Loss::default(), 0, 0);
    // Twelve in thirty rounds of a run.
    for round in 0..rounds() * 2 / 5 {
        disk.settle();
        let (job, blow) = match round % 3 {
            0 => (Job::Write, Blow::death("commit-before-sync", random.i64(20..120))),
            // The second time there is a whole one, and a new one in the making.
            1 if round % 2 == 0 => (Job::BackUp, Blow::death("backup-before-removal", 2)),
            // In the middle of one, with names nobody has synced yet.
            1 => (Job::BackUp, Blow::death("backup-after-checkpoint", 2)),
            _ => (Job::Reopen, Blow::death("open-before-threads", random.i64(2..5))),
        };
        let orders = Orders {
            job,
            blow,
            compact_through: truth.revision.0.saturating_sub(100).max(1),
            ..Orders::to_write(&disk.store(), 6_000_000 + round)
        };
        let journal = disk.run(&orders, None);
        acknowledged += journal.acks.len();
        let fate = FATES[usize::try_from(round / 3).unwrap() % FATES.len()];
        let (next, taken) = disk.cut(fate, &mut random);
        loss += taken;
        disk = next;
        let (store, opened) = open(&disk.store(), false);
        truth.check(&store, &opened, &journal).await;
        if orders.job == Job::BackUp && backups::check(&backups_path(&disk.store()), &truth).await {
            backups_compared += 1;
        }
        store.close(Duration::from_secs(10)).await.unwrap();
    }
    println!("{acknowledged} acknowledged, {backups_compared} backups compared, lost {loss:?}");
    assert!(acknowledged > 50 && backups_compared > 0);
    assert!(loss.bytes > 0 && loss.names > 0, "nothing was lost: {loss:?}");
}

/// In relaxed mode acknowledged writes may be lost, but from the end only, and what is left was once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_relaxed_mode_a_state_that_once_was_is_left() {
    let _turn = TURN.read().await;
    let mut loss = Loss::default();
    for round in 0..6_u64 {
        let disk = Disk::new();
        let mut random = fastrand::Rng::with_seed(round);
        let mut orders = Orders {
            blow: Blow::death("commit-before-publish", random.i64(50..200)),
            is_relaxed: true,
            ..Orders::to_write(&disk.store(), 7_000_000 + round)
        };
        run(orders.command(), LONGEST);
        let (store, opened) = open(&disk.store(), true);
        store.close(Duration::from_secs(10)).await.unwrap();
        disk.settle();
        orders.seed += 1 << 20;
        orders.compact_through = opened.revision - 20;
        if round % 2 == 1 {
            // Flushes make files that compaction drops whole.
            orders.job = Job::BackUp;
        }
        let journal = disk.run(&orders, None);
        // The same boot: nothing is lost, and every state on the way is known.
        let copy = TempDir::new().unwrap();
        copy_folder(&disk.store(), copy.path());
        let states = states_on_the_way(copy.path()).await;

        let fate = FATES[usize::try_from(round).unwrap() % FATES.len()];
        let (next, taken) = disk.cut(fate, &mut random);
        loss += taken;
        let next_boot = Options {
            boot_id: Uuid::from_u128(1),
            ..options(&next.store(), true)
        };
        let (store, opened) = RocksStore::open(next_boot).unwrap();
        assert!(opened.revision > journal.newest_seen, "{fate:?}: {opened:?}");
        let found = state_at(&store, At::Latest).await;
        assert!(states.contains(&found), "{fate:?}: a state that never was");
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

/// A disk that does not do what it is asked for: the test sees it, so it sees a store that does not ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_that_did_not_happen_is_found() {
    let _turn = TURN.read().await;
    let disk = Disk::new();
    let (store, _) = open(&disk.store(), false);
    store.close(Duration::from_secs(10)).await.unwrap();
    disk.settle();
    let orders = Orders {
        blow: Blow::death("commit-before-sync", 60),
        ..Orders::to_write(&disk.store(), 8_000_000)
    };
    let journal = disk.run(&orders, Some(".log"));
    let (after, _) = disk.cut(Fate::Gone, &mut fastrand::Rng::with_seed(0));
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

/// A store in a folder that it made itself: the way to it was not there before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_new_store_acknowledged_is_found_again() {
    let _turn = TURN.read().await;
    let mut random = fastrand::Rng::with_seed(14);
    let disk = Disk::new();
    disk.settle();
    let orders = Orders {
        job: Job::WriteOnce,
        ..Orders::to_write(&disk.store(), 10_000_000)
    };
    let journal = disk.run(&orders, None);
    assert_eq!(journal.acks.len(), 1);
    let (after, _) = disk.cut(Fate::Gone, &mut random);
    let (store, opened) = open(&after.store(), false);
    Truth::default().check(&store, &opened, &journal).await;
}

/// The same for the first backup in a folder that is made for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_backup_is_found_again() {
    let _turn = TURN.read().await;
    let mut random = fastrand::Rng::with_seed(15);
    let disk = Disk::new();
    let (store, _) = open(&disk.store(), false);
    store.close(Duration::from_secs(10)).await.unwrap();
    disk.settle();
    let orders = Orders {
        job: Job::BackUp,
        blow: Blow::death("backup-before-removal", 1),
        ..Orders::to_write(&disk.store(), 11_000_000)
    };
    let journal = disk.run(&orders, None);
    let (after, _) = disk.cut(Fate::Gone, &mut random);
    let mut truth = Truth::default();
    let (store, opened) = open(&after.store(), false);
    truth.check(&store, &opened, &journal).await;
    assert!(
        backups::check(&backups_path(&after.store()), &truth).await,
        "the backup is gone"
    );
}
