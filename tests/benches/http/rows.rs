//! The rows of the benchmark.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::cluster::{Drydock, Part, SampleApiServer};
use drydock_tests::load::{
    Bound, Call, Goal, Measured, Pool, Report, Unit, Usage, drive, resident_bytes, show,
};
use serde_json::Value;
use tokio::time::Instant;

use super::disk;
use super::settings::Settings;
use super::subject::Subject;

/// As from one aggregator.
pub(crate) const CONNECTIONS: usize = 4;
pub(crate) const CLIENTS: usize = 64;
/// The most objects that the row of creates creates.
const CREATES: u64 = 50_000;
const PATCHES: u64 = 2000;
const LISTS: u64 = 40;
pub(crate) const SMALL_LIST: u64 = 5000;
const LARGE_LIST: u64 = 30_000;
/// Objects that are written one after the other.
pub(crate) const WATCHED: u64 = 200;
/// The time limit of rows that end when their work is done.
const NO_HURRY: Duration = Duration::from_mins(5);

/// The servers that are measured.
pub(crate) struct Bench<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) drydock: &'a Drydock<'a>,
    pub(crate) ours: Subject,
    pub(crate) nothing: Subject,
    pub(crate) proxied: Subject,
    pub(crate) peers: Vec<Subject>,
    /// The aggregated server in Go, whose etcd the row of etcd shares.
    pub(crate) sample: Option<&'a SampleApiServer<'a>>,
}

/// The cost of a run of requests.
pub(crate) struct Cost {
    pub(crate) measured: Measured,
    /// CPU time of the server's processes per request.
    pub(crate) cpu: Duration,
}

impl Cost {
    pub(crate) fn show_rate(&self, subject: &Subject) -> String {
        format!(
            "{} {:.0}/s, {} CPU",
            subject.name,
            self.measured.rate(),
            show(self.cpu)
        )
    }

    pub(crate) fn show_median(&self, subject: &Subject) -> String {
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
        if wants("writes") {
            self.writes(report).await?;
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
        if wants("etcd") {
            self.over_etcd(report).await?;
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

    pub(crate) async fn create(&self, subject: &Subject, namespace: &str) -> Result<Cost> {
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

    pub(crate) async fn patches(&self, subject: &Subject) -> Result<Cost> {
        self.fill(subject, "bench-patch", WATCHED).await?;
        let call = subject.patch("bench-patch", WATCHED, counted());
        self.cost(subject, 1, self.bound(PATCHES), call).await
    }

    /// The CPU time of a merge patch beside a create, and of an apply beside a merge patch of the same change.
    async fn writes(&self, report: &mut Report) -> Result<()> {
        let namespace = "bench-writes";
        let create = self.create(&self.ours, "bench-writes-created").await?;
        self.fill(&self.ours, namespace, SMALL_LIST).await?;
        let patch = self.ours.patch(namespace, SMALL_LIST, counted());
        let patch = self.cost(&self.ours, CLIENTS, self.bound(CREATES), patch).await?;
        let apply = self.ours.apply(namespace, SMALL_LIST, counted());
        let apply = self.cost(&self.ours, CLIENTS, self.bound(CREATES), apply).await?;
        let [create, patch, apply] = [create, patch, apply].map(|cost| cost.cpu.as_secs_f64());
        let show = |cpu| Unit::Seconds.show(cpu);
        report.row(
            "merge patches, 64 clients: server CPU, times a create",
            Goal::AtMost(1.3, Unit::Ratio),
            patch / create,
            &[show(patch), show(create)],
        );
        report.row(
            "applies of the same change, 64 clients: server CPU, times a merge patch",
            Goal::AtMost(1.5, Unit::Ratio),
            apply / patch,
            &[show(apply)],
        );
        Ok(())
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

    pub(crate) async fn get(&self, subject: &Subject) -> Result<Cost> {
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

    pub(crate) async fn lists(
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
        let mut listed = filled;
        for (what, goal, clients, query) in [
            (
                "selector without a match over 30,000, p50",
                1e-3,
                1,
                "?labelSelector=bench%3Dnothing",
            ),
            ("list of 30,000, p50", 0.15, 1, ""),
            ("list of 30,000, 4 at once, p50", 0.6, 4, ""),
        ] {
            let lists = async |subject| {
                self.lists(subject, "bench-30000", LARGE_LIST, clients, query)
                    .await
            };
            let ours = lists(&self.ours).await?;
            listed = resident_bytes(server)?;
            let mut beside = vec![format!("ours {} CPU", show(ours.cpu)), of_size(&ours)];
            for peer in &self.peers {
                let cost = lists(peer).await?;
                beside.push(format!("{}, {} CPU", cost.show_median(peer), show(cost.cpu)));
            }
            let median = ours.measured.latencies.median();
            report.row(
                what,
                Goal::AtMost(goal, Unit::Seconds),
                median.as_secs_f64(),
                &beside,
            );
        }
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

    fn others(&self) -> impl Iterator<Item = &Subject> {
        std::iter::once(&self.nothing).chain(&self.peers)
    }

    fn process(&self) -> Result<u32> {
        self.drydock
            .process_id(Part::ApiServer)
            .context("the server runs")
    }

    pub(crate) fn bound(&self, requests: u64) -> Bound {
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

    /// Creates the objects that a namespace lacks.
    pub(crate) async fn fill(&self, subject: &Subject, namespace: &str, objects: u64) -> Result<()> {
        if std::ptr::eq(subject, &raw const self.nothing) {
            return Ok(());
        }
        let pool = Pool::open(&subject.client, CONNECTIONS).await?;
        let there = count(&pool, subject, namespace).await?;
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

/// The number of objects in a namespace.
pub(crate) async fn count(pool: &Pool, subject: &Subject, namespace: &str) -> Result<u64> {
    let path = format!("{}?limit=1", subject.collection(namespace));
    let page = pool.sender(0)?.send(Call::get(path)).await?.succeeded()?;
    let page: Value = serde_json::from_slice(&page.start).context("read a list")?;
    let items = page.get("items").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    let remaining = page
        .pointer("/metadata/remainingItemCount")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    Ok(items + remaining)
}

/// Values that go up, so that every patch is a change.
pub(crate) fn counted() -> impl Fn() -> u128 + Send + Sync {
    let next = AtomicU64::new(1);
    move || u128::from(next.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn ensure_all(measured: &Measured) -> Result<()> {
    ensure!(
        measured.failed == 0,
        "{} of {} requests failed; the first: {}",
        measured.failed,
        measured.failed + measured.succeeded,
        measured.first_failure.as_deref().unwrap_or_default()
    );
    Ok(())
}

pub(crate) fn of_size(cost: &Cost) -> String {
    let bytes = cost.measured.bytes as f64 / cost.measured.succeeded.max(1) as f64;
    Unit::Bytes.show(bytes)
}
