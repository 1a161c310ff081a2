//! The soak: hours of load on one server, with every watch event and list checked while it runs.
//!
//! Writers create, change and delete objects at a steady rate. Thousands of watches of namespaces, groups, single
//! objects and everything are open; some read slowly, some reconnect. Lists, reads of past revisions and backups run
//! at the same time. A [`Ledger`] checks every event, bookmark and list in bounded memory. The first faults are kept
//! with their evidence; the soak ends after twenty.
//!
//! It also checks that a watch ends only at its timeout, that revisions within the history window can be read and
//! much older ones cannot, and that the server's memory does not grow after a warm-up.
//!
//! Start at [`run`].

mod checks;
mod memory;
mod settings;
mod shared;
mod watchers;
mod writers;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, interval, timeout};

use self::memory::{Memory, Trend};
pub use self::settings::Settings;
use self::shared::{Counters, Shared};
use self::watchers::{Watcher, selection};
use self::writers::Writers;
use crate::clients::{Protocol, RawClient};
use crate::ledger::run::Phase;
use crate::ledger::wire::Place;
use crate::ledger::{ClassId, Ledger, Selection};
use crate::load::{Call, Pool, resident_bytes};
use crate::standalone::Standalone;

/// Connections of the writers.
const WRITING: usize = 4;
/// Watches per connection.
const SHARE: usize = 100;
/// The flow-control window of a slow reader's stream, the default of HTTP/2: two dozen events fill it. The server
/// drops streams whose client reads nothing for 30 s.
const SLOW_WINDOW_BYTES: u32 = 64 << 10;

/// The outcome of a soak.
#[derive(Debug)]
pub struct Summary {
    counts: String,
    memory: Trend,
    faults: Vec<String>,
    fault_count: u64,
}

impl Summary {
    /// Whether no rule was broken.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.fault_count == 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.counts)?;
        writeln!(f, "resident memory: {}", self.memory)?;
        for fault in &self.faults {
            writeln!(f, "FAULT {fault}")?;
        }
        if self.passed() {
            write!(f, "passed: no rule was broken")
        } else {
            write!(f, "FAILED: {} faults", self.fault_count)
        }
    }
}

/// Starts a server with an empty store and no limit on its objects.
///
/// # Errors
/// As for [`Standalone::start`].
pub async fn server(settings: &Settings) -> Result<Standalone> {
    let window = format!("{}s", settings.window.as_secs());
    let checks = format!("{}s", settings.reports_every.as_secs());
    Standalone::start_with(&[
        "--history-window",
        &window,
        "--storage-object-bytes-limit",
        "0",
        "--debug-cache-check-period",
        &checks,
    ])
    .await
}

/// Runs the load against a server that [`server`] has started. `say` receives the lines of progress.
///
/// # Errors
/// The load cannot be set up. Faults of the server are in the summary.
pub async fn run(server: &Standalone, settings: &Settings, say: impl Fn(&str)) -> Result<Summary> {
    let client = server.raw_client(Protocol::Http2)?;
    let process = server.process_id().context("the server runs")?;
    let pool = Pool::open(&client, WRITING).await?;
    let place = Place {
        prefix: "soak-".to_owned(),
        namespaces: settings.namespaces(),
        object_bytes: settings.object_bytes,
    };
    let from = prepare(&pool, &place).await?;

    let chosen: Vec<(Selection, bool)> = (0..settings.watchers)
        .map(|number| {
            (
                selection(number, is_slow(number, settings), settings),
                is_slow(number, settings),
            )
        })
        .collect();
    let mut seen = HashSet::new();
    let mut selections = vec![Selection::default()];
    selections.extend(chosen.iter().map(|(selection, _)| *selection));
    selections.retain(|selection| seen.insert(*selection));
    let ledger = Ledger::new(settings.objects, place.namespaces, &selections, from);
    let classes: Vec<_> = ledger.classes().collect();
    let shared = Arc::new(Shared::new(settings.clone(), place, ledger));

    let observing_pool = Pool::open(&client, 1).await?;
    let observing = tokio::spawn(watchers::observe(Arc::clone(&shared), observing_pool.sender(0)?));
    let started = Instant::now();
    let writers = Writers::fill(&shared, pool).await.context("create the objects")?;
    say(&format!(
        "{} objects created in {:.0?}",
        settings.objects,
        started.elapsed()
    ));
    let watchers = Watching::start(&shared, &client, chosen, &classes).await?;
    let checks_pool = Pool::open(&client, 3).await?;
    let mut checks = JoinSet::new();
    checks.spawn(checks::lists(
        Arc::clone(&shared),
        checks_pool.sender(0)?,
        classes.clone(),
    ));
    checks.spawn(checks::past(Arc::clone(&shared), checks_pool.sender(1)?, classes));
    checks.spawn(checks::backups(Arc::clone(&shared), checks_pool.sender(2)?));

    let writing = tokio::spawn(writers.run(Arc::clone(&shared)));
    let memory = supervise(&shared, process, &watchers.reconnects, &say).await;

    shared.run.enter(Phase::Drain);
    writing.await.context("the writers ended early")??;
    drain(&shared, observing).await;
    watchers.end().await?;
    while let Some(ended) = checks.join_next().await {
        ended.context("a check ended early")?;
    }
    let trend = memory.trend();
    if let Err(fault) = trend.check(settings.growth_per_hour) {
        shared.run.fault("the server", &fault);
    }
    Ok(Summary {
        counts: all(&shared.counters, started.elapsed()),
        memory: trend,
        faults: shared.run.faults(),
        fault_count: shared.run.fault_count(),
    })
}

/// The number of slow readers.
fn slow(settings: &Settings) -> usize {
    settings.watchers * settings.slow_per_thousand / 1000
}

/// Whether a watcher reads slowly; slow readers are spread evenly over all watchers.
fn is_slow(number: usize, settings: &Settings) -> bool {
    let slow_before = |number| number * slow(settings) / settings.watchers;
    slow_before(number) != slow_before(number + 1)
}

/// The running watchers.
struct Watching {
    tasks: JoinSet<()>,
    /// Makes a quick reader reconnect.
    reconnects: Vec<Arc<Notify>>,
    _pools: [Pool; 2],
}

impl Watching {
    /// Starts a watcher for each selection; `true` marks a slow reader.
    async fn start(
        shared: &Arc<Shared>,
        client: &RawClient,
        chosen: Vec<(Selection, bool)>,
        classes: &[(ClassId, Selection)],
    ) -> Result<Self> {
        let settings = &shared.settings;
        let by_selection: HashMap<_, _> = classes.iter().map(|(class, it)| (*it, *class)).collect();
        let quick_pool = Pool::open(client, settings.watchers.div_ceil(SHARE)).await?;
        let slow_connections = slow(settings).div_ceil(SHARE).max(1);
        let slow_pool = Pool::open_with_window(client, slow_connections, SLOW_WINDOW_BYTES).await?;
        let mut tasks = JoinSet::new();
        let mut reconnects = Vec::new();
        for (number, (selection, is_slow)) in chosen.into_iter().enumerate() {
            let pool = if is_slow { &slow_pool } else { &quick_pool };
            let reconnect = Arc::new(Notify::new());
            if !is_slow {
                reconnects.push(Arc::clone(&reconnect));
            }
            let class = by_selection.get(&selection);
            let watcher = Watcher {
                shared: Arc::clone(shared),
                number,
                class: *class.context("every selection has a class")?,
                selection,
                sender: pool.sender(number)?,
                is_slow,
                reconnect,
                live_since: 0,
            };
            tasks.spawn(watcher.run());
        }
        Ok(Self {
            tasks,
            reconnects,
            _pools: [quick_pool, slow_pool],
        })
    }

    async fn end(mut self) -> Result<()> {
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("a watcher ended early")?;
        }
        Ok(())
    }
}

/// Waits until every write is acknowledged and observed, then closes the ledger.
async fn drain(shared: &Shared, observing: JoinHandle<()>) {
    let settled = async {
        while shared.run.ledger().unsettled() > 0 && shared.run.phase() < Phase::Over {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(shared.settings.patience(), settled).await.ok();
    observing.abort();
    // The error of an aborted task is expected.
    observing.await.ok();
    if let Err(fault) = shared.run.close() {
        shared.run.fault("the watch of everything", &fault.into());
    }
}

/// Pseudorandom numbers, the same in every run.
fn scatter(number: u64, turn: u32) -> u64 {
    let bits = (number << 32 | u64::from(turn)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (bits ^ bits >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

/// Creates the namespaces and returns the revision that the load starts after.
async fn prepare(pool: &Pool, place: &Place) -> Result<u64> {
    let mut sender = pool.sender(0)?;
    for number in 0..place.namespaces {
        let body = json!({ "metadata": { "name": place.namespace(number) } }).to_string();
        let response = sender.send(Call::post("/api/v1/namespaces", body.into())).await?;
        ensure!(
            response.status == StatusCode::CREATED,
            "a namespace: {}",
            String::from_utf8_lossy(&response.start)
        );
    }
    let list = Call::get(place.path(Selection::default()));
    let list = sender.send(list).await?.succeeded()?;
    let list: Value = serde_json::from_slice(&list.start).context("read a list")?;
    let items = list.get("items").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(items == 0, "the server has {items} objects already");
    list.pointer("/metadata/resourceVersion")
        .and_then(Value::as_str)
        .and_then(|text| text.parse().ok())
        .context("a list has a revision")
}

/// Runs once a second until the load ends: samples memory, makes watches reconnect, reports.
async fn supervise(shared: &Shared, process: u32, reconnects: &[Arc<Notify>], say: &impl Fn(&str)) -> Memory {
    let settings = &shared.settings;
    let (mut memory, mut last) = (Memory::default(), Counts::of(&shared.counters));
    // The times of creating the objects are not part of the report.
    shared.take_times();
    let (started, mut reported) = (Instant::now(), Instant::now());
    let mut beats = interval(Duration::from_secs(1));
    let mut phases = shared.run.phases();
    let mut next = reconnects.iter().cycle();
    let mut due = 0;
    loop {
        let over = started + settings.time;
        tokio::select! {
            _ = beats.tick() => {}
            () = tokio::time::sleep_until(over) => return memory,
            _ = phases.wait_for(|phase| *phase > Phase::Load) => return memory,
        }
        shared.mark();
        due += settings.watchers * settings.reconnects_per_thousand;
        for watcher in next.by_ref().take(due / 1000) {
            watcher.notify_one();
        }
        due %= 1000;
        let resident = match resident_bytes(process) {
            Ok(resident) => resident,
            Err(gone) => {
                shared.run.fault("the server", &gone);
                shared.run.enter(Phase::Over);
                return memory;
            }
        };
        if started.elapsed() >= settings.warm_up {
            memory.record(started.elapsed(), resident);
        }
        if reported.elapsed() >= settings.reports_every {
            let now = Counts::of(&shared.counters);
            say(&line(
                shared,
                &now.since(&last),
                started.elapsed(),
                reported.elapsed(),
                resident,
            ));
            (last, reported) = (now, Instant::now());
        }
    }
}

/// Counts for a line of progress.
#[derive(Clone, Copy, Debug)]
struct Counts {
    writes: u64,
    events: u64,
    resumed: u64,
    lists: u64,
}

impl Counts {
    fn of(counters: &Counters) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            writes: read(&counters.writes),
            events: read(&counters.events),
            resumed: read(&counters.resumed),
            lists: read(&counters.lists),
        }
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            writes: self.writes - earlier.writes,
            events: self.events - earlier.events,
            resumed: self.resumed - earlier.resumed,
            lists: self.lists - earlier.lists,
        }
    }
}

fn line(shared: &Shared, counts: &Counts, at: Duration, over: Duration, resident: u64) -> String {
    let each = |count: u64| count / over.as_secs().max(1);
    let (writes, lags) = shared.take_times();
    format!(
        "{:>4} min: {} writes/s (p99 {:.1?}), {} events/s (lag p99 {:.1?}), {} watches resumed, {} lists, {} MiB, {} faults",
        at.as_secs() / 60,
        each(counts.writes),
        writes.quantile(990),
        each(counts.events),
        lags.quantile(990),
        counts.resumed,
        counts.lists,
        resident >> 20,
        shared.run.fault_count()
    )
}

fn all(counters: &Counters, time: Duration) -> String {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    format!(
        "in {:.0?}: {} writes; {} events and {} bookmarks over {} watches, {} resumed, {} timed out; \
         {} lists of {} objects; {} reads of the past, {} expired; {} backups; {} times 429",
        time,
        read(&counters.writes),
        read(&counters.events),
        read(&counters.bookmarks),
        read(&counters.watches),
        read(&counters.resumed),
        read(&counters.timed_out),
        read(&counters.lists),
        read(&counters.listed),
        read(&counters.past),
        read(&counters.expired),
        read(&counters.backups),
        read(&counters.put_off)
    )
}
