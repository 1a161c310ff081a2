//! The process that is killed: it writes, watches, compacts and backs up, and says what it does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drydock_storage::rocks::RocksStore;
use drydock_storage::{
    Condition, Durability, Events, Expect, KeyRange, Options, Outcome, Revision, Signal, Store, Transaction,
    Write,
};

use crate::journal::{KEYS, Line, key, value};

/// What the parent orders, through environment variables.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    pub(crate) folder: PathBuf,
    pub(crate) seed: u64,
    /// Die at this failpoint when it is passed so many times.
    pub(crate) die_at: Option<(&'static str, i64)>,
    pub(crate) is_relaxed: bool,
    /// History up to here may be let go of.
    pub(crate) compact_through: u64,
    /// Note how long each log is when it has just been synced.
    pub(crate) notes_syncs: bool,
}

const FOLDER: &str = "DRYDOCK_CRASH_FOLDER";
const SEED: &str = "DRYDOCK_CRASH_SEED";
const POINT: &str = "DRYDOCK_CRASH_POINT";
const COUNT: &str = "DRYDOCK_CRASH_COUNT";
const RELAXED: &str = "DRYDOCK_CRASH_RELAXED";
const COMPACT: &str = "DRYDOCK_CRASH_COMPACT";
const NOTES: &str = "DRYDOCK_CRASH_NOTES";

/// Every failpoint at which a child may be told to die.
pub(crate) const POINTS: [&str; 15] = [
    "commit-before-sync",
    "engine-written",
    "commit-after-sync",
    "mark-write",
    "mark-sync",
    "commit-before-publish",
    "commit-before-reply",
    "compact-after-floors",
    "compact-between-families",
    "backup-before-checkpoint",
    "backup-after-checkpoint",
    "backup-before-manifest",
    "backup-before-rename",
    "backup-before-removal",
    "open-before-threads",
];

impl Orders {
    /// The command that runs a child under these orders.
    pub(crate) fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::the_child", "--nocapture", "--test-threads=1"]);
        command.env(FOLDER, &self.folder).env(SEED, self.seed.to_string());
        command.env(COMPACT, self.compact_through.to_string());
        if let Some((point, count)) = self.die_at {
            command.env(POINT, point).env(COUNT, count.to_string());
        }
        for (name, is_set) in [(RELAXED, self.is_relaxed), (NOTES, self.notes_syncs)] {
            if is_set {
                command.env(name, "1");
            }
        }
        command
    }

    fn from_environment() -> Option<Self> {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let point = std::env::var(POINT).ok();
        let point = point.and_then(|point| POINTS.into_iter().find(|known| *known == point));
        Some(Self {
            folder: std::env::var_os(FOLDER)?.into(),
            seed: number(SEED)?,
            die_at: point.zip(number(COUNT).and_then(|count| i64::try_from(count).ok())),
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

fn die() {
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

/// Set up before the store is opened, so that points of the start count as well.
fn arm(orders: &Orders) {
    let noted = if orders.is_relaxed {
        "relaxed-after-sync"
    } else {
        "commit-after-sync"
    };
    if orders.notes_syncs {
        let folder = orders.folder.clone();
        let left = AtomicI64::new(orders.die_at.map_or(i64::MAX, |(_, count)| count));
        let noting = Mutex::new(());
        fail::cfg_callback(noted, move || {
            // The last sync did not come to pass: power was gone before it.
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                die();
            }
            // Two threads sync in relaxed mode.
            let _one_note = noting.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((path, length)) = newest_log(&folder) {
                let note = format!("{} {length}", path.file_name().unwrap().to_string_lossy());
                let unfinished = notes_path(&folder).with_extension("new");
                std::fs::write(&unfinished, note).unwrap();
                std::fs::rename(unfinished, notes_path(&folder)).unwrap();
            }
        })
        .unwrap();
    } else if let Some((point, count)) = orders.die_at {
        let left = AtomicI64::new(count);
        fail::cfg_callback(point, move || {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                die();
            }
        })
        .unwrap();
    }
}

/// One random transaction against what is there, told before and after.
async fn write_once(store: &RocksStore, ids: &AtomicU64, random: &mut fastrand::Rng) {
    let id = ids.fetch_add(1, Ordering::Relaxed);
    let count = random.usize(1..=3);
    let keys: BTreeSet<usize> = (0..count).map(|_| random.usize(..KEYS)).collect();
    let mut transaction = Transaction::default();
    let mut effects = std::collections::BTreeMap::new();
    for (position, number) in keys.into_iter().enumerate() {
        let key = key(number);
        let found = store.get(&key).await.unwrap().entry;
        let is_delete = found.is_some() && random.u8(..4) == 0;
        let new = (!is_delete).then_some(id * 4 + position as u64);
        effects.insert(key.name().to_owned(), new);
        transaction.conditions.push(Condition {
            key: key.clone(),
            expect: found.map_or(Expect::Absent, |entry| Expect::Revision(entry.modified)),
        });
        transaction.writes.push(match new {
            Some(new) => Write::Put(key, value(new)),
            None => Write::Delete(key),
        });
    }
    Line::Call(id, effects).say();
    if let Ok(Outcome::Committed { revision }) = store.transact(transaction).await {
        Line::Ack(id, revision.0).say();
    }
}

async fn live(orders: Orders) {
    arm(&orders);
    let (store, opened) = RocksStore::open(options(&orders.folder, orders.is_relaxed)).unwrap();
    Line::Open(opened.revision).say();
    let ids = Arc::new(AtomicU64::new(orders.seed << 32));
    for writer in 0..6 {
        let (store, ids) = (store.clone(), Arc::clone(&ids));
        let mut random = fastrand::Rng::with_seed(orders.seed ^ writer << 40);
        tokio::spawn(async move {
            loop {
                write_once(&store, &ids, &mut random).await;
                tokio::time::sleep(Duration::from_micros(random.u64(..4000))).await;
            }
        });
    }
    let mut events = store
        .watch(&KeyRange::all(), Revision(opened.revision + 1))
        .await
        .unwrap();
    tokio::spawn(async move {
        while let Some(signal) = events.next().await {
            if let Signal::Changes { revision, .. } = signal {
                Line::Seen(revision.0).say();
            }
        }
    });
    let mut random = fastrand::Rng::with_seed(orders.seed);
    let backups = orders.folder.with_extension("backups");
    let is_backing_up = orders
        .die_at
        .is_some_and(|(point, _)| point.starts_with("backup"));
    loop {
        let floor = store.floors().watchable_from.0;
        let through = random.u64(floor.min(orders.compact_through)..=orders.compact_through);
        store.compact(Revision(through)).await.unwrap();
        let (keeper, backups) = (store.clone(), backups.clone());
        let housekeeping = tokio::task::spawn_blocking(move || {
            keeper.keep_house();
            if is_backing_up {
                keeper.backup(&backups, 1, &|_| {}).unwrap();
            }
        });
        housekeeping.await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Does nothing unless a parent started it.
#[test]
fn the_child() {
    if let Some(orders) = Orders::from_environment() {
        // A fault of the child must not look like an orderly end.
        std::panic::set_hook(Box::new(|_| die()));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.unwrap().block_on(live(orders));
    }
}
