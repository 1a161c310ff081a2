//! What is measured, row by row?

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::cluster::{Drydock, Part};
use drydock_tests::load::{Bound, Call, Measured, Pool, Usage, Watchers, drive, pace, resident_bytes};
use serde_json::Value;
use tokio::time::Instant;

use super::disk;
use super::report::{Goal, Report, Unit, show};
use super::settings::Settings;
use super::subject::Subject;

/// As behind one aggregator.
const CONNECTIONS: usize = 4;
const CLIENTS: usize = 64;
/// Objects that are created at most to measure creates, and then read.
const CREATES: u64 = 50_000;
const PATCHES: u64 = 2000;
const LISTS: u64 = 40;
const SMALL_LIST: u64 = 5000;
const LARGE_LIST: u64 = 30_000;
/// Objects that are written to in turn while they are watched.
const WATCHED: u64 = 200;
/// For rows that end when their work is done.
const NO_HURRY: Duration = Duration::from_mins(5);
/// Until the last events of a burst have come.
const EVENTS_DEADLINE: Duration = Duration::from_mins(1);

/// Who is measured.
pub(crate) struct Bench<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) drydock: &'a Drydock<'a>,
    pub(crate) ours: Subject,
    pub(crate) nothing: Subject,
    pub(crate) proxied: Subject,
    pub(crate) peers: Vec<Subject>,
}

/// What a run of requests came to.
struct Cost {
    measured: Measured,
    /// Of the server's processes, for one request.
    cpu: Duration,
}

impl Cost {
    fn show_rate(&self, subject: &Subject) -> String {
        format!(
            "{} {:.0}/s, {} CPU",
            subject.name,
            self.measured.rate(),
            show(self.cpu)
        )
    }

    fn show_median(&self, subject: &Subject) -> String {
        format!("{} {}", subject.name, show(self.measured.latencies.median()))
    }
}

impl Bench<'_> {
    /// Measures the chosen rows.
    pub(crate) async fn run(&self, report: &mut Report) -> Result<()> {
        let load = std::fs::read_to_string("/proc/loadavg").context("read the load average")?;
        let cores = std::thread::available_parallelism().context("count the cores")?;
        report.note(format!(
            "{cores} cores; load average at the start {}",
            load.trim()
        ));
        let wants = |row| self.settings.wants(row);
        if wants("creates") {
            self.creates(report).await?;
        }
        if wants("patch") {
            self.patch(report).await?;
        }
        if wants("gets") {
            self.gets(report).await?;
        }
        if wants("list5000") {
            self.small_list(report).await?;
        }
        if wants("deletecollection") {
            self.delete_collection(report).await?;
        }
        if wants("list30000") {
            self.large_list(report).await?;
        }
        if wants("watch100") {
            self.watch(report, 100, 200).await?;
        }
        if wants("watch1000") {
            self.watch(report, 1000, 50).await?;
            self.watch(report, 1000, 200).await?;
        }
        if wants("proxy") {
            self.proxy(report).await?;
        }
        if wants("restart") {
            self.restart(report).await?;
        }
        Ok(())
    }

    async fn creates(&self, report: &mut Report) -> Result<()> {
        let syncs = disk::sync_loop(self.drydock.control_plane().folder().path())?;
        let mut beside = vec![format!("fdatasync p50 {}", show(syncs.median()))];
        let ours = self.create(&self.ours, "bench-creates").await?;
        for other in self.others() {
            let cost = self.create(other, "bench-creates").await?;
            beside.push(cost.show_rate(other));
        }
        let latencies = &ours.measured.latencies;
        beside.push(format!(
            "ours p50 {} p99 {}",
            show(latencies.median()),
            show(latencies.quantile(990))
        ));
        report.row(
            "creates, 64 clients, durable",
            Goal::AtLeast(8000.0, Unit::Rate),
            ours.measured.rate(),
            &beside,
        );
        report.row(
            "server CPU of a create",
            Goal::AtMost(0.12e-3, Unit::Seconds),
            ours.cpu.as_secs_f64(),
            &[],
        );
        Ok(())
    }

    async fn create(&self, subject: &Subject, namespace: &str) -> Result<Cost> {
        let bound = self.bound(CREATES);
        self.cost(subject, CLIENTS, bound, subject.create(namespace, 0))
            .await
    }

    async fn patch(&self, report: &mut Report) -> Result<()> {
        let syncs = disk::sync_loop(self.drydock.control_plane().folder().path())?;
        let mut beside = vec![format!("fdatasync p50 {}", show(syncs.median()))];
        let ours = self.patches(&self.ours).await?;
        for other in self.others() {
            beside.push(self.patches(other).await?.show_median(other));
        }
        beside.push(format!("ours {} CPU", show(ours.cpu)));
        report.row(
            "patch, one client, p50",
            Goal::AtMost(0.6e-3, Unit::Seconds),
            ours.measured.latencies.median().as_secs_f64(),
            &beside,
        );
        Ok(())
    }

    async fn patches(&self, subject: &Subject) -> Result<Cost> {
        self.fill(subject, "bench-patch", WATCHED).await?;
        let call = subject.patch("bench-patch", WATCHED, counted());
        self.cost(subject, 1, self.bound(PATCHES), call).await
    }

    async fn gets(&self, report: &mut Report) -> Result<()> {
        let ours = self.get(&self.ours).await?;
        let mut beside = Vec::new();
        for other in self.others() {
            beside.push(self.get(other).await?.show_rate(other));
        }
        beside.push(format!(
            "ours {} CPU, p50 {}",
            show(ours.cpu),
            show(ours.measured.latencies.median())
        ));
        report.row(
            "gets, 64 clients",
            Goal::AtLeast(15_000.0, Unit::Rate),
            ours.measured.rate(),
            &beside,
        );
        Ok(())
    }

    async fn get(&self, subject: &Subject) -> Result<Cost> {
        self.fill(subject, "bench-5000", SMALL_LIST).await?;
        let call = subject.get("bench-5000", SMALL_LIST);
        self.cost(subject, CLIENTS, self.bound(u64::MAX), call).await
    }

    async fn small_list(&self, report: &mut Report) -> Result<()> {
        let ours = self.lists(&self.ours, "bench-5000", SMALL_LIST, 1, "").await?;
        let mut beside = Vec::new();
        for peer in &self.peers {
            let cost = self.lists(peer, "bench-5000", SMALL_LIST, 1, "").await?;
            beside.push(cost.show_median(peer));
        }
        beside.push(format!("ours {} CPU", show(ours.cpu)));
        beside.push(of_size(&ours));
        report.row(
            "list of 5,000, p50",
            Goal::AtMost(25e-3, Unit::Seconds),
            ours.measured.latencies.median().as_secs_f64(),
            &beside,
        );
        Ok(())
    }

    async fn lists(
        &self,
        subject: &Subject,
        namespace: &str,
        objects: u64,
        clients: usize,
        query: &'static str,
    ) -> Result<Cost> {
        self.fill(subject, namespace, objects).await?;
        let path = format!("{}{query}", subject.collection(namespace));
        self.cost(subject, clients, self.bound(LISTS), move |_| {
            Call::get(path.clone())
        })
        .await
    }

    async fn delete_collection(&self, report: &mut Report) -> Result<()> {
        let ours = self.delete_all(&self.ours).await?;
        let mut beside = Vec::new();
        for peer in &self.peers {
            beside.push(format!("{} {}", peer.name, show(self.delete_all(peer).await?)));
        }
        report.row(
            "deletecollection of 5,000",
            Goal::AtMost(0.5, Unit::Seconds),
            ours.as_secs_f64(),
            &beside,
        );
        Ok(())
    }

    async fn delete_all(&self, subject: &Subject) -> Result<Duration> {
        self.fill(subject, "bench-delete", SMALL_LIST).await?;
        let pool = Pool::open(&subject.client, 1).await?;
        let started = Instant::now();
        let call = Call::delete(subject.collection("bench-delete"));
        pool.sender(0)?.send(call).await?.succeeded()?;
        Ok(started.elapsed())
    }

    async fn large_list(&self, report: &mut Report) -> Result<()> {
        let server = self.process()?;
        self.fill(&self.ours, "bench-30000", 1).await?;
        let empty = resident_bytes(server)?;
        self.fill(&self.ours, "bench-30000", LARGE_LIST).await?;
        let filled = resident_bytes(server)?;

        let nothing = "?labelSelector=bench%3Dnothing";
        let selected = self
            .lists(&self.ours, "bench-30000", LARGE_LIST, 1, nothing)
            .await?;
        let one = self.lists(&self.ours, "bench-30000", LARGE_LIST, 1, "").await?;
        let four = self.lists(&self.ours, "bench-30000", LARGE_LIST, 4, "").await?;
        let listed = resident_bytes(server)?;

        report.row(
            "list of 30,000, p50",
            Goal::AtMost(0.15, Unit::Seconds),
            one.measured.latencies.median().as_secs_f64(),
            &[format!("{} CPU", show(one.cpu)), of_size(&one)],
        );
        report.row(
            "list of 30,000, 4 at once, p50",
            Goal::AtMost(0.6, Unit::Seconds),
            four.measured.latencies.median().as_secs_f64(),
            &[format!("{} CPU", show(four.cpu))],
        );
        report.row(
            "selector without a match over 30,000, p50",
            Goal::AtMost(1e-3, Unit::Seconds),
            selected.measured.latencies.median().as_secs_f64(),
            &[format!("{} CPU", show(selected.cpu))],
        );
        let each = |bytes: u64| bytes.saturating_sub(empty) as f64 / (LARGE_LIST - 1) as f64;
        report.row(
            "memory of an object",
            Goal::AtMost(8.0 * 1024.0, Unit::Bytes),
            each(filled),
            &[format!("from {} without", Unit::Bytes.show(empty as f64))],
        );
        report.row(
            "memory of an object, after lists",
            Goal::AtMost(8.0 * 1024.0, Unit::Bytes),
            each(listed),
            &[],
        );
        Ok(())
    }

    async fn watch(&self, report: &mut Report, watchers: usize, rate: u32) -> Result<()> {
        let ours = &self.ours;
        self.fill(ours, "bench-watch", WATCHED).await?;
        let writing = Pool::open(&ours.client, 1).await?;
        let readers = Pool::open(&ours.client, watchers.div_ceil(100)).await?;
        let path = ours.collection("bench-watch");
        // What the writes cost with nobody to tell of them.
        let before = Usage::of(&ours.processes)?;
        let quiet = pace(
            &writing,
            rate,
            self.settings.time,
            ours.patch("bench-watch", WATCHED, counted()),
        )
        .await?;
        ensure_all(&quiet)?;
        let writes_cpu = Usage::of(&ours.processes)?.since(before);

        let page = writing
            .sender(0)?
            .send(Call::get(format!("{path}?limit=1")))
            .await?;
        let page: Value = serde_json::from_slice(&page.succeeded()?.start).context("read a list")?;
        let revision = page
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str)
            .context("a list has a revision")?;
        let open = Watchers::open(
            &readers,
            watchers,
            &format!("{path}?watch=true&resourceVersion={revision}"),
        )
        .await?;

        let before = Usage::of(&ours.processes)?;
        let started = Instant::now();
        let call = ours.patch("bench-watch", WATCHED, open.clock());
        let writes = pace(&writing, rate, self.settings.time, call).await?;
        ensure_all(&writes)?;
        open.wait_for(writes.succeeded * watchers as u64, EVENTS_DEADLINE)
            .await;
        let took = started.elapsed();
        let cpu = Usage::of(&ours.processes)?.since(before);
        let seen = open.close().await?;

        let what = format!("{watchers} watchers × {rate} writes/s");
        let expected = writes.succeeded * watchers as u64;
        let beside = [
            format!("{} of {expected} events in {}", seen.events, show(took)),
            Unit::Bytes.show(seen.bytes as f64),
            format!("writes p50 {}", show(writes.latencies.median())),
        ];
        let goal = Goal::AtLeast((watchers as f64) * f64::from(rate) * 0.95, Unit::Rate);
        let goal = if watchers == 100 {
            goal
        } else {
            Goal::None(Unit::Rate)
        };
        report.row(
            &format!("{what}: events"),
            goal,
            seen.events as f64 / took.as_secs_f64(),
            &beside,
        );
        report.row(
            &format!("{what}: server CPU of an event"),
            Goal::AtMost(6e-6, Unit::Seconds),
            cpu.saturating_sub(writes_cpu).as_secs_f64() / (seen.events.max(1) as f64),
            &[
                format!(
                    "{} with the writes",
                    show(cpu / u32::try_from(seen.events.max(1))?)
                ),
                format!(
                    "a write alone {}",
                    show(writes_cpu / u32::try_from(quiet.succeeded.max(1))?)
                ),
            ],
        );
        let goal = if watchers == 100 {
            Goal::AtMost(20e-3, Unit::Seconds)
        } else {
            Goal::None(Unit::Seconds)
        };
        report.row(
            &format!("{what}: lag p99, from sending the write"),
            goal,
            seen.lag.quantile(990).as_secs_f64(),
            &[format!("p50 {}", show(seen.lag.median()))],
        );
        let goal = Goal::AtMost(0.0, Unit::Count);
        report.row(
            &format!("{what}: watches that ended"),
            goal,
            seen.ended as f64,
            &[],
        );
        Ok(())
    }

    async fn proxy(&self, report: &mut Report) -> Result<()> {
        let cost = self.create(&self.proxied, "bench-proxy").await?;
        report.row(
            "creates through the aggregator, 64 clients",
            Goal::None(Unit::Rate),
            cost.measured.rate(),
            &[
                format!("our server {} CPU", show(cost.cpu)),
                format!("p50 {}", show(cost.measured.latencies.median())),
            ],
        );
        Ok(())
    }

    async fn restart(&self, report: &mut Report) -> Result<()> {
        self.fill(&self.ours, "bench-fill", self.settings.objects).await?;
        let before = resident_bytes(self.process()?)?;
        self.drydock.stop_part(Part::ApiServer).await?;
        let started = Instant::now();
        self.drydock.start_part(Part::ApiServer).await?;
        let took = started.elapsed();
        let what = format!("{} objects and those of the rows before", self.settings.objects);
        report.row(
            &format!("restart to ready, {what}"),
            Goal::AtMost(3.0, Unit::Seconds),
            took.as_secs_f64(),
            &[],
        );
        report.row(
            &format!("resident memory, {what}"),
            Goal::AtMost(1.2 * f64::from(1 << 30), Unit::Bytes),
            before as f64,
            &[format!(
                "after the restart {}",
                Unit::Bytes.show(resident_bytes(self.process()?)? as f64)
            )],
        );
        Ok(())
    }

    fn others(&self) -> impl Iterator<Item = &Subject> {
        std::iter::once(&self.nothing).chain(&self.peers)
    }

    fn process(&self) -> Result<u32> {
        self.drydock
            .process_id(Part::ApiServer)
            .context("the server runs")
    }

    fn bound(&self, requests: u64) -> Bound {
        Bound {
            requests,
            time: self.settings.time,
        }
    }

    async fn cost<F>(&self, subject: &Subject, clients: usize, bound: Bound, call: F) -> Result<Cost>
    where
        F: Fn(u64) -> Call + Send + Sync + 'static,
    {
        let pool = Pool::open(&subject.client, CONNECTIONS.min(clients)).await?;
        let before = Usage::of(&subject.processes)?;
        let measured = drive(&pool, clients, bound, call).await?;
        let used = Usage::of(&subject.processes)?.since(before);
        ensure_all(&measured).with_context(|| format!("measure {}", subject.name))?;
        let cpu = used / u32::try_from(measured.succeeded.max(1)).unwrap_or(u32::MAX);
        Ok(Cost { measured, cpu })
    }

    /// Makes the objects that a namespace lacks.
    async fn fill(&self, subject: &Subject, namespace: &str, objects: u64) -> Result<()> {
        if std::ptr::eq(subject, &raw const self.nothing) {
            return Ok(());
        }
        let pool = Pool::open(&subject.client, CONNECTIONS).await?;
        let path = format!("{}?limit=1", subject.collection(namespace));
        let page = pool.sender(0)?.send(Call::get(path)).await?.succeeded()?;
        let page: Value = serde_json::from_slice(&page.start).context("read a list")?;
        let items = page.get("items").and_then(Value::as_array).map_or(0, Vec::len) as u64;
        let remaining = page
            .pointer("/metadata/remainingItemCount")
            .and_then(Value::as_u64)
            .unwrap_or_default();
        let there = items + remaining;
        if there >= objects {
            return Ok(());
        }
        let bound = Bound {
            requests: objects - there,
            time: NO_HURRY,
        };
        let filled = drive(&pool, CLIENTS, bound, subject.create(namespace, there)).await?;
        ensure_all(&filled)?;
        ensure!(
            filled.succeeded == bound.requests,
            "{namespace} was not filled in time"
        );
        Ok(())
    }
}

/// Values that go up, so that every patch is a change.
fn counted() -> impl Fn() -> u128 + Send + Sync {
    let next = AtomicU64::new(1);
    move || u128::from(next.fetch_add(1, Ordering::Relaxed))
}

fn ensure_all(measured: &Measured) -> Result<()> {
    ensure!(
        measured.failed == 0,
        "{} of {} requests failed; the first: {}",
        measured.failed,
        measured.failed + measured.succeeded,
        measured.first_failure.as_deref().unwrap_or_default()
    );
    Ok(())
}

fn of_size(cost: &Cost) -> String {
    let bytes = cost.measured.bytes as f64 / cost.measured.succeeded.max(1) as f64;
    Unit::Bytes.show(bytes)
}
