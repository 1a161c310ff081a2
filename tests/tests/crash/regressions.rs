//! Data loss bugs of other stores that need a crash, by issue number. The others are tested beside the code.

use std::time::Duration;

use drydock_storage::Store;
use tempfile::TempDir;

use crate::faults::FAILPOINTS;
use crate::plan::{ChildPlan, Injection, Job};
use crate::rounds::run_child;
use crate::truth::{Truth, open};

const PATIENCE: Duration = Duration::from_secs(30);

/// A single-node store acknowledged its first write before it was in the log, was killed, and lost it (etcd#14370).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_acknowledged_write_survives_an_immediate_kill_etcd_14370() {
    let _shared = FAILPOINTS.read().await;
    let root = TempDir::new().unwrap();
    for round in 0..8 {
        // Alternately into a new store, and into the store of the round before.
        let folder = root.path().join(format!("store-{}", round / 2));
        let mut truth = Truth::default();
        if round % 2 == 1 {
            let (store, opened) = open(&folder, false);
            truth.learn(&store).await;
            assert_eq!(truth.revision.0, opened.revision);
        }
        let plan = ChildPlan {
            job: Job::WriteOnce,
            ..ChildPlan::to_write(&folder, 4_000_000 + round)
        };
        let journal = run_child(&plan, PATIENCE);
        assert_eq!(journal.acks.len(), 1, "{journal:?}");
        let (store, opened) = open(&folder, false);
        assert_eq!(journal.acks.keys().next(), Some(&opened.revision));
        truth.check(&store, &opened, &journal).await;
    }
}

/// A store whose creation was killed is empty or missing, and opens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_creation_was_killed_opens_empty() {
    let _shared = FAILPOINTS.read().await;
    let mut random = fastrand::Rng::with_seed(6);
    let points = [
        "create-before-engine",
        "create-before-format",
        "durable-before-rename",
        "durable-before-sync",
    ];
    for point in points {
        for delay in [0, random.u64(1..30_000)] {
            let root = TempDir::new().unwrap();
            let folder = root.path().join("store");
            let plan = ChildPlan {
                injection: Injection::Kill {
                    point: point.to_owned(),
                    passes: 1,
                    delay: Duration::from_micros(delay),
                },
                ..ChildPlan::to_write(&folder, 5_000_000)
            };
            let journal = run_child(&plan, PATIENCE);
            assert_eq!(journal.reached.as_deref(), Some(point));
            let (store, opened) = open(&folder, false);
            Truth::default().check(&store, &opened, &journal).await;
            store.close(PATIENCE).await.unwrap();
        }
    }
}
