//! A full disk, simulated by a limit on file sizes: system calls of the engine fail, in the log, in a flush or in the
//! manifest, whichever grows first.

use std::time::Duration;

use drydock_storage::Store;
use tempfile::TempDir;

use crate::faults::FAILPOINTS;
use crate::plan::{ChildPlan, Injection, Job};
use crate::rounds::run_child;
use crate::truth::{Truth, open};

/// A child that does not fill its files is killed.
const LONGEST: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_secs(30);

/// Limits in bytes, for a store that only writes, and for one that also flushes all the time.
const LIMITS: [(Job, u64); 9] = [
    (Job::Write, 20_000),
    (Job::Write, 65_536),
    (Job::Write, 200_000),
    (Job::BackUp, 12_000),
    (Job::BackUp, 40_000),
    (Job::BackUp, 45_000),
    (Job::BackUp, 65_536),
    (Job::BackUp, 100_000),
    (Job::Write, 33_333),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_writes_and_the_reopened_store_is_right() {
    let _shared = FAILPOINTS.read().await;
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    let mut truth = Truth::default();
    let mut failures = Vec::new();
    let (mut refused, mut unknown) = (0, 0);
    for (round, (job, bytes)) in LIMITS.into_iter().enumerate() {
        let plan = ChildPlan {
            job,
            injection: Injection::Full { bytes },
            compact_through: truth.revision.0.saturating_sub(100).max(1),
            ..ChildPlan::to_write(&folder, 6_000_000 + round as u64)
        };
        let journal = run_child(&plan, LONGEST);
        refused += usize::from(journal.refused.is_some());
        unknown += journal.unknown.len();
        failures.extend(journal.failure.as_ref().map(|(why, _)| why.clone()));
        // Without the limit.
        let (store, opened) = open(&folder, false);
        truth.check(&store, &opened, &journal).await;
        if round % 3 == 0 {
            store.close(Duration::from_secs(10)).await.unwrap();
        }
    }
    println!("{failures:#?}");
    // With the smallest limits the engine does not open; otherwise the log or a table is too large.
    assert!(refused > 0, "a store opened without room for its options");
    assert!(unknown >= failures.len(), "a failure without a failed write");
    assert!(
        failures.iter().any(|why| why.contains(".log")),
        "no log was full: {failures:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_that_cannot_grow_stops_writes_too() {
    let _shared = FAILPOINTS.read().await;
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    let plan = ChildPlan {
        job: Job::FillManifest,
        injection: Injection::Full { bytes: 1 << 30 },
        ..ChildPlan::to_write(&folder, 7_000_000)
    };
    let journal = run_child(&plan, PATIENCE);
    let (why, _) = journal.failure.as_ref().unwrap();
    assert!(why.contains("MANIFEST"), "{why}");
    let (store, opened) = open(&folder, false);
    Truth::default().check(&store, &opened, &journal).await;
}
