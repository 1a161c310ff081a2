//! Rounds of killing the child, checking its store, and starting again: `DRYDOCK_CRASH_ROUNDS`, 30 by default.
//!
//! A child writes, takes backups, or closes and reopens; it is killed at a random time, at a failpoint or some time
//! after one, or its engine fails.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use drydock_storage::Store;
use tempfile::TempDir;

use crate::backups;
use crate::faults::FAILPOINTS;
use crate::journal::{Journal, Line};
use crate::plan::{ChildPlan, Injection, Job, backups_path, copies_path};
use crate::truth::{Truth, open};

/// A child that does not reach its failpoint is killed after this time.
const LONGEST: Duration = Duration::from_millis(700);
/// This many rounds reach every failpoint.
const ALL_POINTS: u64 = 1000;

const WRITE_POINTS: [&str; 9] = [
    "commit-before-sync",
    "engine-written",
    "commit-after-sync",
    "mark-write",
    "mark-sync",
    "commit-before-publish",
    "commit-before-reply",
    "compact-after-floors",
    "compact-between-families",
];
const BACKUP_POINTS: [&str; 7] = [
    "backup-before-checkpoint",
    "backup-after-checkpoint",
    "backup-before-manifest",
    "durable-before-rename",
    "durable-before-sync",
    "backup-before-rename",
    "backup-before-removal",
];
const COPY_POINTS: [&str; 5] = [
    "copy-before-manifest",
    "durable-before-rename",
    "durable-before-sync",
    "copy-before-purge",
    "copy-before-removal",
];
const REOPEN_POINTS: [&str; 3] = ["engine-flush", "open-before-engine", "open-before-threads"];
/// Failpoints where the engine or a file fails and the process continues.
const ERROR_POINTS: [&str; 4] = ["engine-write", "engine-written", "mark-write", "mark-sync"];
const RELAXED_ERROR_POINTS: [&str; 4] = ["engine-write", "engine-written", "engine-sync-log", "mark-sync"];

pub(crate) fn rounds() -> u64 {
    std::env::var("DRYDOCK_CRASH_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(30)
}

/// Runs a child until it ends, or kills it `longest` after it opened the store. Returns what it printed.
pub(crate) fn run_child(plan: &ChildPlan, longest: Duration) -> Journal {
    run(plan.command(), longest)
}

/// Runs the command of a child like [`run_child`].
pub(crate) fn run(mut command: Command, longest: Duration) -> Journal {
    let mut child: Child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, received_lines) = sync_channel(1 << 16);
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
    let mut is_open = false;
    let mut is_killed = false;
    loop {
        let since = start();
        let received = received_lines.recv_timeout(left);
        left = left.saturating_sub(since.elapsed());
        match received {
            Ok(line) => {
                if matches!(line, Line::Open(_)) && !is_open {
                    left = longest;
                    is_open = true;
                }
                journal.take(line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if left.is_zero() && !is_killed {
            // The pipe still holds the last lines.
            child.kill().unwrap();
            is_killed = true;
            left = Duration::from_secs(30);
        }
    }
    reader.join().unwrap();
    child.wait().unwrap();
    journal.check_unknown_writes_are_hidden();
    journal
}

#[expect(clippy::disallowed_methods, reason = "the kill is at a random real time")]
fn start() -> std::time::Instant {
    std::time::Instant::now()
}

/// A kill at one of these failpoints, half the time a little later.
fn kill(points: &[&str], most: impl Fn(&str) -> i64, random: &mut fastrand::Rng) -> Injection {
    let point = points[random.usize(..points.len())];
    let delay = if random.bool() { random.u64(..20_000) } else { 0 };
    Injection::Kill {
        point: point.to_owned(),
        passes: random.i64(1..=most(point)),
        delay: Duration::from_micros(delay),
    }
}

/// The job and the injected fault of a round.
fn choose(round: u64, is_relaxed: bool, random: &mut fastrand::Rng) -> (Job, Injection) {
    let often = |point: &str| match point {
        "compact-after-floors" | "compact-between-families" | "mark-sync" => 3,
        _ => 80,
    };
    match round % 5 {
        0 => {
            let jobs = [Job::Write, Job::BackUp, Job::CopyOut, Job::Reopen];
            (jobs[random.usize(..jobs.len())].clone(), Injection::None)
        }
        1 => (Job::Write, kill(&WRITE_POINTS, often, random)),
        2 if random.bool() => (Job::CopyOut, kill(&COPY_POINTS, |_| 3, random)),
        2 => (Job::BackUp, kill(&BACKUP_POINTS, |_| 3, random)),
        3 => (Job::Reopen, kill(&REOPEN_POINTS, |_| 4, random)),
        _ => {
            let points = if is_relaxed {
                RELAXED_ERROR_POINTS
            } else {
                ERROR_POINTS
            };
            let point = points[random.usize(..points.len())];
            let passes = match point {
                // The first pass belongs to the start.
                "mark-sync" => 2..=5,
                "engine-sync-log" => 1..=5,
                _ => 1..=40,
            };
            let injection = Injection::Error {
                point: point.to_owned(),
                passes: random.i64(passes),
            };
            (Job::Write, injection)
        }
    }
}

/// Counts over all rounds.
#[derive(Debug, Default)]
struct Tally {
    acknowledged: usize,
    unknown: usize,
    failures: usize,
    backups_compared: usize,
    reached: BTreeMap<String, u64>,
}

impl Tally {
    fn count(&mut self, journal: &Journal) {
        self.acknowledged += journal.acks.len();
        self.unknown += journal.unknown.len();
        self.failures += usize::from(journal.failure.is_some());
        if let Some(point) = &journal.reached {
            *self.reached.entry(point.clone()).or_default() += 1;
        }
    }

    /// Checks that the rounds tested something.
    fn check(&self, rounds: u64) {
        assert!(self.acknowledged as u64 > rounds, "too few writes: {self:?}");
        if rounds >= 30 {
            assert!(
                self.failures > 0 && self.unknown > 0,
                "no engine failed: {self:?}"
            );
            assert!(self.backups_compared > 0, "no backup was restored: {self:?}");
        }
        if rounds >= ALL_POINTS {
            let backups = BACKUP_POINTS.iter().chain(&COPY_POINTS);
            for point in WRITE_POINTS.iter().chain(backups).chain(&REOPEN_POINTS) {
                assert!(
                    self.reached.contains_key(*point),
                    "no child was killed at {point}: {self:?}"
                );
            }
        }
    }
}

async fn crash_rounds(is_relaxed: bool, rounds: u64, salt: u64) {
    let _shared = FAILPOINTS.read().await;
    let root = TempDir::new().unwrap();
    let folder = root.path().join("store");
    let mut truth = Truth::default();
    let mut random = fastrand::Rng::with_seed(salt);
    let mut tally = Tally::default();
    for round in 0..rounds {
        let (job, injection) = choose(round, is_relaxed, &mut random);
        let plan = ChildPlan {
            job,
            injection,
            is_relaxed,
            compact_through: truth.revision.0.saturating_sub(random.u64(..200)).max(1),
            ..ChildPlan::to_write(&folder, salt + round)
        };
        let life = match plan.injection {
            Injection::None => Duration::from_millis(random.u64(1..150)),
            _ if matches!(plan.job, Job::BackUp | Job::CopyOut) => LONGEST * 4,
            _ => LONGEST,
        };
        let journal = run_child(&plan, life);
        tally.count(&journal);
        let (store, opened) = open(&folder, is_relaxed);
        truth.check(&store, &opened, &journal).await;
        let is_compared = match plan.job {
            Job::BackUp => backups::check(&backups_path(&folder), &truth).await,
            Job::CopyOut => backups::check_copies(&copies_path(&folder), &truth).await,
            _ => false,
        };
        tally.backups_compared += usize::from(is_compared);
        if random.bool() {
            store.close(Duration::from_secs(10)).await.unwrap();
        }
    }
    tally.check(rounds);
    println!("{rounds} rounds up to revision {}: {tally:?}", truth.revision);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_store_has_every_acknowledged_write_and_no_partial_ones() {
    crash_rounds(false, rounds(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_store_in_relaxed_mode_loses_nothing() {
    crash_rounds(true, rounds() / 5, 1_000_000).await;
}
