//! Every kind of file with every kind of damage: the store does not open, quarantines values by name, or has
//! everything. There is never a silent difference.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use drydock_storage::rocks::{RocksStore, verify};
use drydock_storage::{At, Options, Revision, Store, StoreError, Transaction};
use tempfile::TempDir;

use crate::faults::FAILPOINTS;
use crate::journal::{key, number, value};
use crate::truth::{State, changes_from, state_at};

const GRACE: Duration = Duration::from_secs(10);

fn options(folder: &Path) -> Options {
    Options {
        background_work: false,
        lock_wait: GRACE,
        ..Options::for_tests(folder)
    }
}

/// The files of a store by path.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn read_files(folder: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for found in std::fs::read_dir(folder.join(&below)).unwrap() {
            let found = found.unwrap();
            let path = below.join(found.file_name());
            if found.file_type().unwrap().is_dir() {
                folders.push(path);
            } else {
                files.insert(path, std::fs::read(found.path()).unwrap());
            }
        }
    }
    files
}

fn write_files(folder: &Path, files: &Files) {
    for (path, bytes) in files {
        let target = folder.join(path);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::write(target, bytes).unwrap();
    }
}

/// Writes over twenty keys, with deletes.
async fn write(store: &RocksStore, ids: std::ops::Range<u64>) {
    for id in ids {
        let key = key(usize::try_from(id % 20).unwrap());
        let found = store.get(&key).await.unwrap().entry;
        let transaction = match found {
            None => Transaction::create(key, value(id)),
            Some(entry) if id % 7 == 0 => Transaction::delete(key, entry.modified),
            Some(entry) => Transaction::update(key, entry.modified, value(id)),
        };
        store.transact(transaction).await.unwrap();
    }
}

async fn close(store: RocksStore) {
    store.close(GRACE).await.unwrap();
}

/// The content of the undamaged store.
struct Expected {
    revision: Revision,
    floor: Revision,
    state: State,
    history: Vec<drydock_storage::Event>,
}

/// A store with tables of both families and a log with acknowledged writes, and its files at an earlier time, when it
/// also had a log.
async fn sample() -> (Files, Files, Expected) {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    let (store, _) = RocksStore::open(options(&folder)).unwrap();
    write(&store, 0..100).await;
    store.compact(Revision(20)).await.unwrap();
    close(store).await;
    let (store, _) = RocksStore::open(options(&folder)).unwrap();
    write(&store, 100..150).await;
    let older = as_left(store, &folder);
    let (store, _) = RocksStore::open(options(&folder)).unwrap();
    write(&store, 150..260).await;
    let expected = Expected {
        revision: store.current_revision().await.unwrap(),
        floor: store.floors().watchable_from,
        state: state_at(&store, At::Latest).await,
        history: changes_from(&store, store.floors().watchable_from).await,
    };
    (older, as_left(store, &folder), expected)
}

/// The files of a store that is not closed: nothing is flushed, the log remains.
fn as_left(store: RocksStore, folder: &Path) -> Files {
    drop(store);
    // Verification waits for the lock and changes nothing.
    verify(&options(folder), &|_| {}).unwrap();
    read_files(folder)
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Log,
    Table,
    Manifest,
    Options,
    Current,
    Identity,
    Journal,
    EngineLock,
    Mark,
    Format,
    Lock,
}

const KINDS: [Kind; 11] = [
    Kind::Log,
    Kind::Table,
    Kind::Manifest,
    Kind::Options,
    Kind::Current,
    Kind::Identity,
    Kind::Journal,
    Kind::EngineLock,
    Kind::Mark,
    Kind::Format,
    Kind::Lock,
];

fn kind(path: &Path) -> Kind {
    let name = path.file_name().unwrap().to_str().unwrap();
    match path.to_str().unwrap() {
        "mark" => Kind::Mark,
        "format" => Kind::Format,
        "lock" => Kind::Lock,
        "db/CURRENT" => Kind::Current,
        "db/IDENTITY" => Kind::Identity,
        "db/LOCK" => Kind::EngineLock,
        _ if name.starts_with("LOG") => Kind::Journal,
        _ if name.starts_with("MANIFEST-") => Kind::Manifest,
        _ if name.starts_with("OPTIONS-") => Kind::Options,
        other => match path.extension().and_then(|end| end.to_str()) {
            Some("log") => Kind::Log,
            Some("sst") => Kind::Table,
            _ => panic!("what is {other}?"),
        },
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// A flipped bit, at a position in thousandths of the file.
    Bit(usize),
    /// A page of zeros at a position.
    Page(usize),
    /// Cut off at a position.
    Cut(usize),
    Missing,
    /// The newest file of the kind at the earlier time, which may have another number.
    Older,
    Grown,
}

impl Damage {
    fn name(self) -> &'static str {
        match self {
            Self::Bit(_) => "bit",
            Self::Page(_) => "page",
            Self::Cut(_) => "cut",
            Self::Missing => "missing",
            Self::Older => "older",
            Self::Grown => "grown",
        }
    }

    /// Whether it can change a file of this kind.
    fn applies_to(self, kind: Kind) -> bool {
        let is_empty = kind == Kind::EngineLock;
        // Written once, or with the same content each time.
        let is_constant = matches!(
            kind,
            Kind::Identity | Kind::Format | Kind::Options | Kind::Lock | Kind::EngineLock
        );
        match self {
            Self::Bit(_) | Self::Page(_) | Self::Cut(_) => !is_empty,
            Self::Older => !is_constant,
            Self::Missing | Self::Grown => true,
        }
    }
}

fn damages() -> Vec<Damage> {
    let places = [0, 120, 333, 500, 777, 940, 999];
    let mut damages: Vec<Damage> = places.iter().map(|place| Damage::Bit(*place)).collect();
    damages.extend(places.iter().map(|place| Damage::Page(*place)));
    damages.extend(places.iter().map(|place| Damage::Cut(*place)));
    damages.extend([Damage::Missing, Damage::Older, Damage::Grown]);
    damages
}

/// A damaged file.
enum Becomes {
    Other(Vec<u8>),
    Gone,
}

/// Damages a file; `None` if that changes nothing.
fn inflict(damage: Damage, bytes: &[u8], older: Option<&Vec<u8>>) -> Option<Becomes> {
    let place = |thousandths: usize| bytes.len() * thousandths / 1000;
    let mut damaged = bytes.to_vec();
    match damage {
        Damage::Bit(at) => *damaged.get_mut(place(at))? ^= 0x10,
        Damage::Page(at) => {
            let from = place(at);
            let to = (from + 4096).min(bytes.len());
            damaged.get_mut(from..to)?.fill(0);
        }
        Damage::Cut(at) => damaged.truncate(place(at)),
        Damage::Missing => return Some(Becomes::Gone),
        Damage::Older => damaged.clone_from(older?),
        Damage::Grown => damaged.extend([0x42; 100]),
    }
    (damaged != bytes).then_some(Becomes::Other(damaged))
}

/// Opens the store: `false` if it does not open, `true` if its content is right or quarantined.
async fn is_refused_or_right(folder: &Path, expected: &Expected) -> Result<bool, String> {
    let (store, opened) = match RocksStore::open(options(folder)) {
        Ok(opened) => opened,
        Err(refused) => {
            let text = refused.to_string();
            assert!(!text.is_empty());
            return Ok(false);
        }
    };
    if opened.revision != expected.revision.0 || opened.watchable_from != expected.floor.0 {
        return Err(format!("opened at {opened:?}"));
    }
    if !opened.damaged.is_empty() {
        let range = drydock_storage::KeyRange::all();
        let scanned = store
            .scan(&range, At::Latest, drydock_storage::Page::default())
            .await;
        if !matches!(scanned, Err(StoreError::Corrupt { .. })) {
            return Err(format!(
                "{:?} are set apart, yet a scan shows {scanned:?}",
                opened.damaged
            ));
        }
        close(store).await;
        return Ok(true);
    }
    if state_at(&store, At::Latest).await != expected.state {
        return Err("the state differs".to_owned());
    }
    if changes_from(&store, expected.floor).await != expected.history {
        return Err("the history differs".to_owned());
    }
    close(store).await;
    Ok(true)
}

/// Runs the matrix for some kinds of files. Returns how often the store did not open.
async fn matrix(is_meant: impl Fn(Kind) -> bool) -> usize {
    let _shared = FAILPOINTS.read().await;
    let (older, files, expected) = sample().await;
    let (mut refused, mut right) = (0, 0);
    let mut wrong = Vec::new();
    let mut applied: BTreeSet<(Kind, &str)> = BTreeSet::new();
    for (path, bytes) in &files {
        let kind = kind(path);
        if !is_meant(kind) {
            continue;
        }
        let alike = older.iter().rev().find(|(path, _)| self::kind(path) == kind);
        for damage in damages() {
            let Some(damaged) = inflict(damage, bytes, alike.map(|(_, bytes)| bytes)) else {
                continue;
            };
            applied.insert((kind, damage.name()));
            let root = TempDir::new().unwrap();
            let mut copy = files.clone();
            match damaged {
                Becomes::Other(damaged) => copy.insert(path.clone(), damaged),
                Becomes::Gone => copy.remove(path),
            };
            write_files(root.path(), &copy);
            match is_refused_or_right(root.path(), &expected).await {
                Ok(true) => right += 1,
                Ok(false) => refused += 1,
                Err(difference) => wrong.push(format!("{}: {damage:?}: {difference}", path.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "silent differences:\n{}", wrong.join("\n"));
    for kind in KINDS.into_iter().filter(|kind| is_meant(*kind)) {
        for damage in damages() {
            assert_eq!(
                applied.contains(&(kind, damage.name())),
                damage.applies_to(kind),
                "{kind:?}: {damage:?}"
            );
        }
    }
    println!("{refused} refused, {right} right");
    refused
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_logs_never_differ_silently() {
    assert!(matrix(|kind| kind == Kind::Log).await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_tables_never_differ_silently() {
    assert!(matrix(|kind| kind == Kind::Table).await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_damaged_files_never_differ_silently() {
    assert!(matrix(|kind| !matches!(kind, Kind::Log | Kind::Table)).await > 0);
}

/// Several files from an earlier time, as when part of a copy is put back. With the mark among them it would be an
/// older store, which cannot be detected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_older_files_never_differ_silently() {
    let _shared = FAILPOINTS.read().await;
    let (older, files, expected) = sample().await;
    let engine = KINDS
        .into_iter()
        .filter(|kind| !matches!(kind, Kind::Mark | Kind::Format | Kind::Lock))
        .collect();
    let sets = [
        engine,
        vec![Kind::Manifest, Kind::Current],
        vec![Kind::Manifest, Kind::Current, Kind::Log],
        vec![Kind::Manifest, Kind::Current, Kind::Table],
    ];
    for old in sets {
        let root = TempDir::new().unwrap();
        let mut copy = files.clone();
        copy.retain(|path, _| !old.contains(&kind(path)));
        let back = older.iter().filter(|(path, _)| old.contains(&kind(path)));
        copy.extend(back.map(|(path, bytes)| (path.clone(), bytes.clone())));
        write_files(root.path(), &copy);
        let outcome = is_refused_or_right(root.path(), &expected).await;
        assert_eq!(outcome, Ok(false), "{old:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undamaged_store_is_right() {
    let _shared = FAILPOINTS.read().await;
    let (_, files, expected) = sample().await;
    let root = TempDir::new().unwrap();
    write_files(root.path(), &files);
    assert_eq!(is_refused_or_right(root.path(), &expected).await, Ok(true));
    let last = expected.state.values().last().unwrap();
    assert!(
        number(&last.value) > 150,
        "the log holds newer values than the tables"
    );
    assert!(
        files
            .keys()
            .any(|path| path.extension().is_some_and(|end| end == "sst"))
    );
}
