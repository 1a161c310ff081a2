//! Faults: several servers over an etcd of three members, with a load that a ledger judges, while parts of both fail.
//!
//! ```text
//! writers, readers, watchers ──HTTP──►  three servers ──TLS──►  three members of etcd
//!        │ what they saw                      ▲ killed, paused        ▲ killed, paused, cut off, full, compacted
//!        ▼                                    └──────── injection ────┘
//!     Ledger: nothing acknowledged is lost, every list is a state, every watch is complete, revisions only grow
//! ```
//!
//! A client that gets no answer, or 504, does not know whether its write happened. It reads the object until it does, and
//! repeats the write on the condition that it did not. A 503 says that the write did not happen. Any other refusal of a
//! faultless request is a violation, above all 404 for an object that exists.
//!
//! Start at [`run`]; the faults are in `injection`.

mod client;
mod injection;
mod readers;
mod shared;
mod watchers;
mod writers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use futures_util::future::try_join_all;
use serde_json::json;
use tokio::task::JoinSet;

use self::client::Client;
use self::injection::{Injection, deck};
use self::shared::{Shared, Turns};
use self::watchers::Watcher;
use crate::clients::{Protocol, eventually};
use crate::cluster::EtcdMembers;
use crate::ledger::run::Phase;
use crate::ledger::wire::Place;
use crate::ledger::{Group, Ledger, Selection};
use crate::standalone::Standalone;

/// Servers, and members of etcd.
const SERVERS: usize = 3;
const MEMBERS: usize = 3;
const NAMESPACES: u32 = 2;
/// Each lane writes its own objects, one write after the other.
const LANES: u32 = 6;
const WRITERS: usize = LANES as usize;
const OBJECTS: u32 = 8 * LANES;
const GROUPS: u16 = 3;
const OBJECT_BYTES: usize = 2700;
/// The faults of a round. All kinds occur in five rounds.
const FAULTS_OF_A_ROUND: usize = 2;
/// Small, so that it is soon full; what is written between two compactions fits many times.
const QUOTA: &str = "--quota-backend-bytes=67108864";
/// How long anything may take that only waits for the machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a run does.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many rounds of two faults.
    pub rounds: usize,
    /// The start of the pseudorandom numbers: which faults come when, and whom they hit.
    pub seed: u64,
    /// For how long the clients of other servers may wait when a server ends.
    pub server_bound: Duration,
    /// For how long clients may wait when the leader of etcd ends.
    pub leader_bound: Duration,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Summary {
    counts: String,
    lines: Vec<String>,
    violations: Vec<String>,
}

impl Summary {
    /// Whether no rule was broken.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "{}", self.counts)?;
        for violation in &self.violations {
            writeln!(f, "VIOLATION {violation}")?;
        }
        write!(f, "{}", if self.passed() { "passed" } else { "FAILED" })
    }
}

/// Runs the rounds. `say` receives a line for each fault.
///
/// # Errors
/// Servers or etcd cannot be set up or do not recover. What clients saw is in the summary.
pub async fn run(settings: &Settings, say: impl Fn(&str)) -> Result<Summary> {
    let members = EtcdMembers::start(MEMBERS, &["--unsafe-no-fsync", QUOTA]).await?;
    let mut flags = members.server_flags();
    flags.push("--etcd-compaction-interval=30s".to_owned());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let servers = try_join_all((0..SERVERS).map(|_| Standalone::start_with(&flags))).await?;
    let place = Place {
        prefix: "faults-".to_owned(),
        namespaces: NAMESPACES,
        object_bytes: OBJECT_BYTES,
    };
    let from = prepare(&servers, &place).await?;
    let selections = selections();
    let ledger = Ledger::new(OBJECTS, NAMESPACES, &selections, from);
    let shared = Arc::new(Shared::new(
        servers,
        place,
        ledger,
        2 * SERVERS,
        WRITERS + SERVERS,
    ));
    let load = Load::start(&shared, settings.seed);
    let mut injection = Injection::new(Arc::clone(&shared), members, Rng::with_seed(settings.seed));
    let faults = deck(
        settings.rounds * FAULTS_OF_A_ROUND,
        injection.can_cut_off(),
        &mut Rng::with_seed(settings.seed),
    );
    let mut lines = Vec::new();
    for (number, fault) in faults.into_iter().enumerate() {
        let line = match injection.inject(fault, settings).await {
            Ok(line) => line,
            // What clients and servers saw before tells more than what was waited for in vain.
            Err(error) => {
                let (counts, violations) = (shared.counts(), shared.run.faults().join("\n"));
                let state = injection.describe().await;
                let start = settings.seed;
                let detail =
                    format!("fault {number}, {fault:?}, seed {start}: {counts}\n{violations}\n{state}");
                return Err(error.context(detail));
            }
        };
        let line = format!("round {}: {line}", number / FAULTS_OF_A_ROUND + 1);
        say(&line);
        lines.push(line);
        if shared.run.phase() == Phase::Over {
            break;
        }
    }
    injection.finish().await?;
    load.end(&shared).await?;
    Ok(Summary {
        counts: shared.counts(),
        lines,
        violations: shared.run.faults(),
    })
}

/// What is watched: everything, each group, and one namespace.
fn selections() -> Vec<Selection> {
    let mut all = vec![Selection::default()];
    all.extend((0..GROUPS).map(|group| Selection {
        group: Some(Group::Is(group)),
        ..Selection::default()
    }));
    all.push(Selection {
        namespace: Some(1),
        ..Selection::default()
    });
    all
}

/// Creates the namespaces and returns the revision that the load starts after.
async fn prepare(servers: &[Standalone], place: &Place) -> Result<u64> {
    let server = servers.first().context("a server")?;
    let caller = server.caller(Protocol::Http2)?;
    for number in 0..place.namespaces {
        let namespace = json!({ "metadata": { "name": place.namespace(number) } });
        caller.post("/api/v1/namespaces", &namespace).await?.expect(201)?;
    }
    let list = caller.get(&place.path(Selection::default())).await?.expect(200)?;
    let items = list.get("items").and_then(|items| items.as_array());
    ensure!(
        items.is_some_and(Vec::is_empty),
        "the servers have objects already"
    );
    let revision = list.pointer("/metadata/resourceVersion");
    let revision = revision
        .and_then(|it| it.as_str())
        .context("a list has a revision")?;
    Ok(revision.parse()?)
}

/// The clients.
struct Load {
    writers: JoinSet<()>,
    watchers: JoinSet<()>,
    observer: tokio::task::JoinHandle<()>,
}

impl Load {
    fn start(shared: &Arc<Shared>, seed: u64) -> Self {
        let (mut writers, mut watchers) = (JoinSet::new(), JoinSet::new());
        let classes: Vec<_> = shared.run.ledger().classes().collect();
        let observer = tokio::spawn(watchers::observe(Arc::clone(shared)));
        for lane in 0..LANES {
            let random = Rng::with_seed(seed.wrapping_add(u64::from(lane)));
            writers.spawn(writers::run(Arc::clone(shared), lane, random));
        }
        for home in 0..SERVERS {
            let turns = Turns::new(Arc::clone(shared), WRITERS + home);
            writers.spawn(readers::run(Arc::clone(shared), home, turns, classes.clone()));
        }
        for (number, class) in classes.iter().cycle().take(2 * SERVERS).enumerate() {
            watchers.spawn(Watcher::new(Arc::clone(shared), number, *class).run());
        }
        Self {
            writers,
            watchers,
            observer,
        }
    }

    /// Lets everything that was written arrive everywhere.
    async fn end(mut self, shared: &Arc<Shared>) -> Result<()> {
        shared.run.enter(Phase::Drain);
        while let Some(ended) = self.writers.join_next().await {
            ended.context("a writer or reader ended early")?;
        }
        let settled = async || {
            let is_settled = shared.run.ledger().unsettled() == 0 || shared.run.phase() == Phase::Over;
            Ok(is_settled.then_some(()))
        };
        // The ledger says what is missing.
        eventually("the last events", PATIENCE, settled).await.ok();
        self.observer.abort();
        self.observer.await.ok();
        if let Err(violation) = shared.run.close() {
            shared.violation("the watch of everything", &violation.into());
        }
        while let Some(ended) = self.watchers.join_next().await {
            ended.context("a watcher ended early")?;
        }
        for home in 0..SERVERS {
            let mut client = Client::new(Arc::clone(shared), home);
            let classes: Vec<_> = shared.run.ledger().classes().collect();
            for (class, selection) in classes {
                if let Err(violation) = readers::list(shared, &mut client, class, selection).await {
                    shared.violation(&format!("the last list of {selection:?}"), &violation);
                }
            }
        }
        Ok(())
    }
}
