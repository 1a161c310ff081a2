//! What other stores lost in a crash, by the number of their issue. Those that need no crash are beside the code.

use std::time::Duration;

use drydock_storage::Store;
use tempfile::TempDir;

use crate::faults::TURN;
use crate::orders::{Blow, Job, Orders};
use crate::rounds::run_child;
use crate::truth::{Truth, open};

const PATIENCE: Duration = Duration::from_secs(30);

/// A store alone in its cluster answered its first write before it was in the log, was killed at once, and came back
/// without it (etcd#14370).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_acknowledged_write_survives_a_kill_at_once_as_in_etcd_14370() {
    let _turn = TURN.read().await;
    let root = TempDir::new().unwrap();
    for round in 0..8 {
        // By turns into a new store, and into the one that was left by the round before.
        let folder = root.path().join(format!("store-{}", round / 2));
        let mut truth = Truth::default();
        if round % 2 == 1 {
            let (store, opened) = open(&folder, false);
            truth.learn(&store).await;
            assert_eq!(truth.revision.0, opened.revision);
        }
        let orders = Orders {
            job: Job::WriteOnce,
            ..Orders::to_write(&folder, 4_000_000 + round)
        };
        let journal = run_child(&orders, PATIENCE);
        assert_eq!(journal.acks.len(), 1, "{journal:?}");
        let (store, opened) = open(&folder, false);
        assert_eq!(journal.acks.keys().next(), Some(&opened.revision));
        truth.check(&store, &opened, &journal).await;
    }
}

/// The same for a store that dies while it is made: it is empty or not there, and opens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_making_was_killed_opens_empty() {
    let _turn = TURN.read().await;
    let mut random = fastrand::Rng::with_seed(6);
    let points = [
        "create-before-engine",
        "create-before-format",
        "durable-before-rename",
        "durable-before-sync",
    ];
    for point in points {
        for linger in [0, random.u64(1..30_000)] {
            let root = TempDir::new().unwrap();
            let folder = root.path().join("store");
            let orders = Orders {
                blow: Blow::Death {
                    point: point.to_owned(),
                    passes: 1,
                    linger: Duration::from_micros(linger),
                },
                ..Orders::to_write(&folder, 5_000_000)
            };
            let journal = run_child(&orders, PATIENCE);
            assert_eq!(journal.met.as_deref(), Some(point));
            let (store, opened) = open(&folder, false);
            Truth::default().check(&store, &opened, &journal).await;
            store.close(PATIENCE).await.unwrap();
        }
    }
}
