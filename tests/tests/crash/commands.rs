//! Restore, import and recovery: killed at any step, they leave no store or a complete one, and the repeated command
//! ends with every object.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use drydock_storage::rocks::{MaintenanceError, OpenError, RocksStore, import, recover, restore};
use drydock_storage::{At, Key, Options, Store, Transaction, Value};
use tempfile::TempDir;

use crate::backups::values;
use crate::durable::{Disk, Unsynced};
use crate::faults::FAILPOINTS;
use crate::plan::{ChildPlan, Injection, Job, options};
use crate::rounds::run_child;
use crate::truth::state_at;

const PATIENCE: Duration = Duration::from_secs(30);
const OBJECTS: u64 = 10;
/// The size of a value in bytes: with large ones a restore has a full batch and a partial one, with small ones only a
/// partial one.
const LARGE: usize = 430_000;
const SMALL: usize = 20_000;

/// Failpoints of restore and import, and the pass at which the child is killed.
const RESTORE_POINTS: [(&str, i64); 6] = [
    ("restore-begin", 1),
    ("restore-before-finish", 1),
    ("restore-before-mark", 1),
    ("restore-before-format", 1),
    ("durable-before-rename", 1),
    ("durable-before-sync", 1),
];
const RECOVER_POINTS: [(&str, i64); 10] = [
    ("restore-begin", 1),
    ("restore-before-finish", 1),
    ("restore-before-mark", 1),
    ("restore-before-format", 1),
    ("durable-before-rename", 1),
    ("recover-before-moves", 1),
    ("recover-between-moves", 1),
    ("recover-between-moves", 2),
    ("durable-before-sync", 2),
    ("recover-before-removal", 1),
];

/// A store with values that do not compress, a backup and an export of it.
struct Source {
    root: TempDir,
    store: PathBuf,
    backup: PathBuf,
    export: PathBuf,
    values: BTreeMap<Key, Value>,
}

impl Source {
    async fn new(bytes: usize) -> Self {
        let root = TempDir::new().unwrap();
        let folder = root.path().join("store");
        let (store, _) = RocksStore::open(options(&folder, false)).unwrap();
        let mut random = fastrand::Rng::with_seed(4);
        for number in 0..OBJECTS {
            let key = Key::new("example.com", "things", "n", &format!("k{number:02}")).unwrap();
            let mut bytes = vec![0; bytes];
            random.fill(&mut bytes);
            let value = Value {
                bytes: Bytes::from(bytes),
                form: "example.com/v1".into(),
                splice_offset: 0,
            };
            store.transact(Transaction::create(key, value)).await.unwrap();
        }
        let backup = store.backup(&root.path().join("backups"), 0, &|_| {}).unwrap();
        let export = root.path().join("export");
        store.export(&export, &|_| {}).unwrap();
        let values = values(&state_at(&store, At::Latest).await);
        store.close(PATIENCE).await.unwrap();
        Self {
            store: folder,
            backup: backup.path,
            export,
            values,
            root,
        }
    }

    /// Opens the store after a kill: it is complete, or the error.
    async fn check_opened(&self, folder: &Path) -> Result<(), OpenError> {
        let (store, opened) = RocksStore::open(options(folder, false))?;
        assert!(!opened.is_new, "an empty store");
        assert_eq!(values(&state_at(&store, At::Latest).await), self.values);
        assert!(opened.revision > 1_000_000_000);
        store.close(PATIENCE).await.unwrap();
        Ok(())
    }

    /// Kills the command at each of these points, and some time after the first of them, and repeats it.
    async fn kill_and_repeat(
        &self,
        job: Job,
        points: &[(&str, i64)],
        repeat: impl Fn(&Options) -> Result<(), MaintenanceError>,
    ) {
        let mut random = fastrand::Rng::with_seed(7);
        let folder = self.root.path().join("target");
        let deaths = points
            .iter()
            .map(|(point, passes)| Injection::kill(point, *passes));
        let mut injections: Vec<Injection> = deaths.collect();
        injections.extend((0..points.len() / 2).map(|_| Injection::Kill {
            point: points[0].0.to_owned(),
            passes: 1,
            delay: Duration::from_micros(random.u64(..20_000)),
        }));
        for injection in injections {
            let plan = ChildPlan {
                job: job.clone(),
                injection: injection.clone(),
                ..ChildPlan::to_write(&folder, 0)
            };
            let journal = run_child(&plan, PATIENCE);
            assert!(journal.reached.is_some(), "{injection:?}: it was not reached");
            let is_whole = match self.check_opened(&folder).await {
                Ok(()) => true,
                Err(OpenError::Damaged { .. }) => false,
                Err(other) => panic!("{injection:?}: {other}"),
            };
            // It never writes into an existing folder.
            let refused = repeat(&options(&folder, false)).unwrap_err();
            assert!(
                matches!(refused, MaintenanceError::Open(OpenError::NotEmpty { .. })),
                "{injection:?}: {refused}"
            );
            std::fs::remove_dir_all(&folder).unwrap();
            if !is_whole {
                repeat(&options(&folder, false)).unwrap();
                self.check_opened(&folder).await.unwrap();
                std::fs::remove_dir_all(&folder).unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_restore_leaves_no_store_or_a_complete_one() {
    let _shared = FAILPOINTS.read().await;
    for (bytes, points) in [
        (SMALL, RESTORE_POINTS.as_slice()),
        (LARGE, &[("restore-batch", 1)]),
    ] {
        let source = Source::new(bytes).await;
        let job = Job::Restore(source.backup.clone());
        let repeat = |options: &Options| restore(&source.backup, options, &|_| {}).map(drop);
        source.kill_and_repeat(job, points, repeat).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_import_leaves_no_store_or_a_complete_one() {
    let _shared = FAILPOINTS.read().await;
    for (bytes, points) in [
        (SMALL, RESTORE_POINTS.as_slice()),
        (LARGE, &[("restore-batch", 1)]),
    ] {
        let source = Source::new(bytes).await;
        let job = Job::Import(source.export.clone());
        let repeat = |options: &Options| import(&source.export, options, &|_| {}).map(drop);
        source.kill_and_repeat(job, points, repeat).await;
    }
}

/// The same command is repeated until it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_killed_again_and_again_ends_with_every_object() {
    let _shared = FAILPOINTS.read().await;
    let mut source = Source::new(SMALL).await;
    let mut random = fastrand::Rng::with_seed(8);
    let damaged = source.root.path().join("damaged");
    std::fs::rename(&source.store, &damaged).unwrap();
    std::fs::write(damaged.join("mark"), b"").unwrap();
    for (point, passes) in RECOVER_POINTS {
        source.store = source.root.path().join("copy");
        crate::power::copy_folder(&damaged, &source.store);
        let mut injections = vec![Injection::kill(point, passes)];
        for _ in 0..random.usize(..3) {
            let (point, passes) = RECOVER_POINTS[random.usize(..RECOVER_POINTS.len())];
            injections.push(Injection::Kill {
                point: point.to_owned(),
                passes,
                delay: Duration::from_micros(random.u64(..30_000)),
            });
        }
        for (kill, injection) in injections.iter().enumerate() {
            let plan = ChildPlan {
                job: Job::Recover,
                injection: injection.clone(),
                ..ChildPlan::to_write(&source.store, 0)
            };
            let journal = run_child(&plan, PATIENCE);
            assert!(
                kill > 0 || journal.reached.is_some(),
                "{injection:?}: it was not reached"
            );
            match source.check_opened(&source.store).await {
                Ok(()) | Err(OpenError::Damaged { .. }) => {}
                Err(other) => panic!("{injection:?}: {other}"),
            }
        }
        let report = recover(&options(&source.store, false), true, &|_| {}).unwrap();
        assert_eq!(
            (report.objects, report.lost.len()),
            (OBJECTS, 0),
            "{injections:?}"
        );
        source.check_opened(&source.store).await.unwrap();
        std::fs::remove_dir_all(&source.store).unwrap();
    }
}

/// The power fails right after the command has ended: names that were not synced are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_results_of_a_command_are_synced_when_it_ends() {
    let _shared = FAILPOINTS.read().await;
    let source = Source::new(SMALL).await;
    let mut random = fastrand::Rng::with_seed(12);
    for job in [
        Job::Restore(source.backup.clone()),
        Job::Import(source.export.clone()),
        Job::Recover,
    ] {
        let disk = Disk::new();
        if job == Job::Recover {
            crate::power::copy_folder(&source.store, &disk.store());
            std::fs::write(disk.store().join("mark"), b"").unwrap();
        }
        disk.settle();
        let plan = ChildPlan {
            job,
            ..ChildPlan::to_write(&disk.store(), 0)
        };
        disk.run(&plan, None);
        let (after, _) = disk.cut(Unsynced::Lost, &mut random);
        source.check_opened(&after.store()).await.unwrap();
    }
}

/// Before it ends there is no store or a complete one, and the command can be repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_after_a_power_loss_can_be_repeated() {
    let _shared = FAILPOINTS.read().await;
    let source = Source::new(SMALL).await;
    let mut random = fastrand::Rng::with_seed(13);
    for (point, passes) in RECOVER_POINTS {
        let disk = Disk::new();
        crate::power::copy_folder(&source.store, &disk.store());
        std::fs::write(disk.store().join("mark"), b"").unwrap();
        disk.settle();
        let plan = ChildPlan {
            job: Job::Recover,
            injection: Injection::kill(point, passes),
            ..ChildPlan::to_write(&disk.store(), 0)
        };
        let journal = disk.run(&plan, None);
        assert!(journal.reached.is_some(), "{point}: it was not reached");
        let (after, _) = disk.cut(Unsynced::Lost, &mut random);
        let folder = after.store();
        match source.check_opened(&folder).await {
            Ok(()) | Err(OpenError::Damaged { .. }) => {}
            Err(other) => panic!("{point}: {other}"),
        }
        let report = recover(&options(&folder, false), true, &|_| {}).unwrap();
        assert_eq!((report.objects, report.lost.len()), (OBJECTS, 0), "{point}");
        source.check_opened(&folder).await.unwrap();
    }
}
