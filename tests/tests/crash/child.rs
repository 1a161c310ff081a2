//! The child process that is killed, or whose engine fails: it does its job and prints what it does.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drydock_storage::rocks::{RocksStore, import, recover, restore};
use drydock_storage::{
    At, Events, Health, KeyRange, Outcome, Page, Revision, Signal, Store, StoreError, Transaction,
};
use rustix::process::{Resource, Signal as Kill, getpid, getrlimit, kill_process, setrlimit};
use tokio::task::JoinSet;

use crate::journal::{KEYS, Line, key, number, value};
use crate::plan::{ChildPlan, Injection, Job, backups_path, copies_path, newest_log, notes_path, options};

const GRACE: Duration = Duration::from_secs(10);

fn die() {
    kill_process(getpid(), Kill::KILL).unwrap();
}

/// Sets up the failpoints, before the store is opened, so that those of the start are reached too.
fn arm(plan: &ChildPlan) {
    if plan.notes_syncs {
        note_syncs(plan);
        return;
    }
    match plan.injection.clone() {
        Injection::None | Injection::Full { .. } => {}
        Injection::Kill { point, passes, delay } => {
            let left = AtomicI64::new(passes);
            let met = point.clone();
            fail::cfg_callback(point, move || {
                if left.fetch_sub(1, Ordering::Relaxed) != 1 {
                    return;
                }
                Line::Reached(met.clone()).print();
                if delay.is_zero() {
                    die();
                } else {
                    // The child keeps working until then.
                    std::thread::spawn(move || {
                        std::thread::sleep(delay);
                        die();
                    });
                }
            })
            .unwrap();
        }
        Injection::Error { point, passes } => {
            let actions = match passes {
                1 => "1*return".to_owned(),
                _ => format!("{}*off->1*return", passes - 1),
            };
            fail::cfg(point, &actions).unwrap();
        }
    }
}

fn note_syncs(plan: &ChildPlan) {
    let noted = if plan.is_relaxed {
        "relaxed-after-sync"
    } else {
        "commit-after-sync"
    };
    let folder = plan.folder.clone();
    let left = AtomicI64::new(match plan.injection {
        Injection::Kill { passes, .. } => passes,
        _ => i64::MAX,
    });
    let noting = Mutex::new(());
    fail::cfg_callback(noted, move || {
        // The power fails before the last sync.
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
}

/// One random write, printed before and after.
async fn write_once(store: &RocksStore, ids: &AtomicU64, random: &mut fastrand::Rng) {
    let id = ids.fetch_add(1, Ordering::Relaxed);
    let key = key(random.usize(..KEYS));
    let name = key.name().to_owned();
    let (transaction, new) = match store.get(&key).await.unwrap().entry {
        None => (Transaction::create(key, value(id)), Some(id)),
        Some(entry) if random.u8(..4) == 0 => (Transaction::delete(key, entry.modified), None),
        Some(entry) => (Transaction::update(key, entry.modified, value(id)), Some(id)),
    };
    Line::Call(id, (name, new)).print();
    match store.transact(transaction).await {
        Ok(Outcome::Committed { revision }) => Line::Ack(id, revision.0).print(),
        Ok(Outcome::Conflict { .. }) | Err(StoreError::Busy { .. }) => {}
        Err(StoreError::Unknown { .. }) => Line::Unknown(id).print(),
        Err(StoreError::ReadOnly { .. }) => assert!(matches!(store.health(), Health::Failed(_))),
        Err(other) => panic!("{other}"),
    }
}

/// Starts six writers and a watch.
async fn load(store: &RocksStore, ids: &Arc<AtomicU64>, seed: u64) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for writer in 0..6 {
        let (store, ids) = (store.clone(), Arc::clone(ids));
        let mut random = fastrand::Rng::with_seed(seed ^ writer << 40);
        tasks.spawn(async move {
            loop {
                write_once(&store, &ids, &mut random).await;
                tokio::time::sleep(Duration::from_micros(random.u64(..4000))).await;
            }
        });
    }
    let next = store.current_revision().await.unwrap().next();
    let mut events = store.watch(&KeyRange::all(), next).await.unwrap();
    tasks.spawn(async move {
        while let Some(signal) = events.next().await {
            if let Signal::Change(event) = signal {
                Line::Seen(event.revision.0).print();
            }
        }
    });
    tasks
}

async fn write_once_and_die(plan: &ChildPlan) {
    let (store, opened) = RocksStore::open(options(&plan.folder, plan.is_relaxed)).unwrap();
    Line::Open(opened.revision).print();
    let mut random = fastrand::Rng::with_seed(plan.seed);
    write_once(&store, &AtomicU64::new(plan.seed << 32), &mut random).await;
    die();
}

async fn write(plan: &ChildPlan) {
    let (store, opened) = match RocksStore::open(options(&plan.folder, plan.is_relaxed)) {
        Ok(opened) => opened,
        Err(refused) if matches!(plan.injection, Injection::Full { .. }) => {
            return Line::Refused(refused.to_string()).print();
        }
        Err(refused) => panic!("{refused}"),
    };
    Line::Open(opened.revision).print();
    let mut tasks = load(&store, &Arc::new(AtomicU64::new(plan.seed << 32)), plan.seed).await;
    let mut random = fastrand::Rng::with_seed(plan.seed);
    while store.health() == Health::Ready {
        let floor = store.floors().watchable_from.0;
        let through = random.u64(floor.min(plan.compact_through)..=plan.compact_through);
        if let Err(refused) = store.compact(Revision(through)).await {
            assert!(matches!(store.health(), Health::Failed(_)), "{refused}");
        }
        let (keeper, plan) = (store.clone(), plan.clone());
        let housekeeping = tokio::task::spawn_blocking(move || {
            keeper.run_housekeeping();
            let backed_up = match plan.job {
                Job::BackUp => keeper.backup(&backups_path(&plan.folder), 1, &|_| {}).map(drop),
                Job::CopyOut => keeper
                    .backup_incrementally(&copies_path(&plan.folder), 2)
                    .map(drop),
                _ => Ok(()),
            };
            if let Err(failed) = backed_up {
                let is_full = matches!(plan.injection, Injection::Full { .. });
                assert!(
                    is_full || matches!(keeper.health(), Health::Failed(_)),
                    "{failed:?}"
                );
            }
        });
        housekeeping.await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    report_failure(&store).await;
    tasks.shutdown().await;
    if random.bool() {
        // After a write with an unknown outcome, closing may fail.
        drop(store.close(GRACE).await);
    }
    die();
}

async fn report_failure(store: &RocksStore) {
    let shown = check_reads_after_failure(store).await;
    let (Health::Failed(why) | Health::ReadOnly(why)) = store.health() else {
        panic!("the failure disappeared");
    };
    Line::Failed(shown, why.replace('\n', " ")).print();
}

/// After a failure: everything published is served, and writes are rejected. Returns the numbers of the values.
async fn check_reads_after_failure(store: &RocksStore) -> BTreeSet<u64> {
    let range = KeyRange::all();
    // A batch in progress when maintenance failed may still be published, and nothing after it.
    let scan = loop {
        let scan = store.scan(&range, At::Latest, Page::default()).await.unwrap();
        let mut shown = Vec::new();
        for (key, _) in &scan.entries {
            shown.push(store.get(key).await.unwrap());
        }
        if store.current_revision().await.unwrap() == scan.revision {
            let entries = scan.entries.iter().map(|(_, entry)| Some(entry));
            assert!(entries.eq(shown.iter().map(|found| found.entry.as_ref())));
            break scan;
        }
    };
    let past = store
        .scan(&range, At::Exactly(scan.revision), Page::default())
        .await
        .unwrap();
    assert_eq!(past.entries, scan.entries);
    let mut events = store.watch(&range, scan.revision.next()).await.unwrap();
    store.request_progress();
    assert_eq!(events.next().await, Some(Signal::Progress(scan.revision)));
    let refused = store.transact(Transaction::create(key(99), value(1))).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly { .. })), "{refused:?}");
    scan.entries
        .iter()
        .map(|(_, entry)| number(&entry.value))
        .collect()
}

async fn reopen(plan: &ChildPlan) {
    let ids = Arc::new(AtomicU64::new(plan.seed << 32));
    let mut random = fastrand::Rng::with_seed(plan.seed);
    loop {
        let (store, opened) = RocksStore::open(options(&plan.folder, plan.is_relaxed)).unwrap();
        Line::Open(opened.revision).print();
        let mut tasks = load(&store, &ids, random.u64(..)).await;
        tokio::time::sleep(Duration::from_millis(random.u64(1..30))).await;
        tasks.shutdown().await;
        store.close(GRACE).await.unwrap();
    }
}

/// The length of the newest manifest.
fn manifest_length(plan: &ChildPlan) -> u64 {
    let found = std::fs::read_dir(plan.folder.join("db")).unwrap();
    let manifests = found
        .map(|found| found.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("MANIFEST-"));
    std::fs::metadata(manifests.max().unwrap()).unwrap().len()
}

async fn fill_manifest(plan: &ChildPlan) {
    let (store, opened) = RocksStore::open(options(&plan.folder, false)).unwrap();
    Line::Open(opened.revision).print();
    let flush = async || {
        let (store, backups) = (store.clone(), backups_path(&plan.folder));
        let backup = move || store.backup(&backups, 1, &|_| {}).is_ok();
        tokio::task::spawn_blocking(backup).await.unwrap()
    };
    for id in plan.seed << 32.. {
        let length = manifest_length(plan);
        if length > 8 << 10 {
            // From here on the manifest cannot grow; logs and tables are smaller and still can.
            let mut limit = getrlimit(Resource::Fsize);
            limit.current = Some(length);
            setrlimit(Resource::Fsize, limit).unwrap();
        }
        let key = key(0);
        Line::Call(id, (key.name().to_owned(), Some(id))).print();
        let transaction = match store.get(&key).await.unwrap().entry {
            None => Transaction::create(key, value(id)),
            Some(entry) => Transaction::update(key, entry.modified, value(id)),
        };
        match store.transact(transaction).await {
            Ok(Outcome::Committed { revision }) => Line::Ack(id, revision.0).print(),
            Err(StoreError::Unknown { .. }) => {
                Line::Unknown(id).print();
                break;
            }
            other => panic!("{other:?}"),
        }
        assert!(flush().await || length > 8 << 10, "a backup failed early");
    }
    report_failure(&store).await;
    die();
}

async fn work(plan: ChildPlan) {
    arm(&plan);
    match &plan.job {
        Job::WriteOnce => write_once_and_die(&plan).await,
        Job::Write | Job::BackUp | Job::CopyOut => write(&plan).await,
        Job::Reopen => reopen(&plan).await,
        Job::FillManifest => fill_manifest(&plan).await,
        Job::Restore(backup) => drop(restore(backup, &options(&plan.folder, false), &|_| {}).unwrap()),
        Job::Import(export) => drop(import(export, &options(&plan.folder, false), &|_| {}).unwrap()),
        Job::Recover => drop(recover(&options(&plan.folder, false), true, &|_| {}).unwrap()),
    }
}

/// The entry point of the child; does nothing unless a parent started it.
#[test]
fn the_child() {
    if let Some(plan) = ChildPlan::from_environment() {
        // A panic of the child must look neither like a clean end nor like the injected kill.
        std::panic::set_hook(Box::new(|panicked| {
            Line::Bug(panicked.to_string().replace('\n', " ")).print();
            die();
        }));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.unwrap().block_on(work(plan));
    }
}
