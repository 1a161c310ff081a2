//! Kill the child, look at what is left, start it again: as many rounds as `DRYDOCK_CRASH_ROUNDS` says, 30 without.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use drydock_storage::Store;
use tempfile::TempDir;

use crate::child::{Orders, POINTS};
use crate::faults::TURN;
use crate::journal::{Journal, Line};
use crate::truth::{Truth, open};

/// A child that does not reach its failpoint is killed anyway.
const LONGEST: Duration = Duration::from_millis(700);

fn rounds() -> u64 {
    std::env::var("DRYDOCK_CRASH_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(30)
}

/// Runs a child until it dies by itself or `longest` after it opened the store; all it said.
pub(crate) fn run_child(orders: &Orders, longest: Duration) -> Journal {
    let mut child: Child = orders
        .command()
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, said) = sync_channel(1 << 16);
    let reader = std::thread::spawn(move || {
        for line in output
            .lines()
            .map_while(Result::ok)
            .filter_map(|text| Line::parse(&text))
        {
            sender.send(line).unwrap();
        }
    });
    let mut journal = Journal::default();
    let mut left = Duration::from_secs(30);
    let mut is_killed = false;
    loop {
        let since = start();
        let received = said.recv_timeout(left);
        left = left.saturating_sub(since.elapsed());
        match received {
            Ok(line) => {
                if matches!(line, Line::Open(_)) {
                    left = longest;
                }
                journal.take(line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if left.is_zero() && !is_killed {
            // Kill, then read what was said before: the pipe outlives the child.
            child.kill().unwrap();
            is_killed = true;
            left = Duration::from_secs(30);
        }
    }
    reader.join().unwrap();
    child.wait().unwrap();
    journal
}

#[expect(
    clippy::disallowed_methods,
    reason = "a kill at a random moment is about real time"
)]
fn start() -> std::time::Instant {
    std::time::Instant::now()
}

async fn crash_rounds(is_relaxed: bool, rounds: u64, salt: u64) {
    let _turn = TURN.read().await;
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    let mut truth = Truth::default();
    let mut random = fastrand::Rng::with_seed(salt);
    let mut acknowledged = 0;
    for round in 0..rounds {
        let die_at = (round % 2 == 1).then(|| {
            let point = POINTS[random.usize(..POINTS.len())];
            let most = if point.starts_with("commit") || point == "mark-write" {
                80
            } else {
                3
            };
            (
                point,
                if point.starts_with("open") {
                    1
                } else {
                    random.i64(1..=most)
                },
            )
        });
        let orders = Orders {
            folder: folder.clone(),
            seed: salt + round,
            die_at,
            is_relaxed,
            compact_through: truth.revision.0.saturating_sub(random.u64(..200)).max(1),
            notes_syncs: false,
        };
        let life = die_at.map_or(Duration::from_millis(random.u64(1..150)), |_| LONGEST);
        let journal = run_child(&orders, life);
        acknowledged += journal.acks.len();
        let (store, opened) = open(&folder, is_relaxed);
        truth.check(&store, &opened, &journal).await;
        if random.bool() {
            store.close(Duration::from_secs(10)).await.unwrap();
        }
    }
    assert!(
        acknowledged as u64 > rounds,
        "the children hardly wrote: {acknowledged}"
    );
    println!(
        "{rounds} rounds, {acknowledged} acknowledged writes, revision {}",
        truth.revision
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_store_shows_all_it_acknowledged_and_nothing_by_halves() {
    crash_rounds(false, rounds(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_store_in_relaxed_mode_loses_nothing_either() {
    crash_rounds(true, rounds() / 5, 1_000_000).await;
}
