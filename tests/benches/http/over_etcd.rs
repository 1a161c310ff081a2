//! The server over etcd: beside the aggregated server in Go on the same etcd, and beside the server over RocksDB.

use anyhow::{Context as _, Result};
use drydock_tests::cluster::Server;
use drydock_tests::load::{Call, Goal, Pool, Report, Unit, Usage, drive, resident_bytes, show};
use futures_util::future::try_join_all;

use super::rows::{Bench, CLIENTS, CONNECTIONS, Cost, SMALL_LIST, ensure_all};
use super::subject::Subject;

const SERVERS: usize = 3;
/// Objects for the row of memory.
const OBJECTS: u64 = 30_000;
/// Less than this is noise of a run.
const SAME: f64 = 1.25;

impl Bench<'_> {
    /// Starts three servers over the etcd of the server in Go, and measures.
    pub(crate) async fn over_etcd(&self, report: &mut Report) -> Result<()> {
        let Some(sample) = self.sample else {
            report.note("without the peers there is no etcd to measure on");
            return Ok(());
        };
        let etcd = format!("--etcd-servers={}", sample.etcd_url());
        let flags = [
            "--storage-backend=etcd",
            &etcd,
            "--etcd-prefix=/registry/bench",
            "--etcd-compaction-interval=0",
        ];
        let mut servers = Vec::new();
        for number in 0..SERVERS {
            let name = format!("bench-etcd-{number}");
            servers.push(Server::start_with(self.drydock, &name, &flags).await?);
        }
        let subject = |server| Subject::server(self.drydock, server);
        let subjects = servers.iter().map(subject).collect::<Result<Vec<_>>>()?;
        let ours = subjects.first().context("a server")?;
        let go = Subject::flunder_alone(sample)?;
        self.writes_over_etcd(report, ours, &go).await?;
        self.reads_over_etcd(report, ours).await?;
        self.watches_over_etcd(report, ours).await?;
        self.memory_over_etcd(report, ours).await?;
        self.replicas_over_etcd(report, &subjects).await
    }

    async fn writes_over_etcd(&self, report: &mut Report, ours: &Subject, go: &Subject) -> Result<()> {
        let own = self.create(ours, "bench-creates").await?;
        let other = self.create(go, "bench-etcd").await?;
        let beside = |own: &Cost, other: &Cost| {
            let line = |name: &str, cost: &Cost| {
                format!(
                    "{name} {:.0}/s, p50 {}, {} CPU",
                    cost.measured.rate(),
                    show(cost.measured.latencies.median()),
                    show(cost.cpu)
                )
            };
            [line("ours", own), line("the server in Go", other)]
        };
        report.row(
            "over etcd: creates/s, times the server in Go",
            Goal::AtLeast(1.0, Unit::Ratio),
            own.measured.rate() / other.measured.rate(),
            &beside(&own, &other),
        );
        report.row(
            "over etcd: server CPU of a create, times the server in Go",
            Goal::AtMost(0.25, Unit::Ratio),
            own.cpu.as_secs_f64() / other.cpu.as_secs_f64(),
            &[],
        );
        let (own, other) = (self.patches(ours).await?, self.patches(go).await?);
        let median = |cost: &Cost| cost.measured.latencies.median().as_secs_f64();
        report.row(
            "over etcd: patch p50, times the server in Go",
            Goal::AtMost(1.0, Unit::Ratio),
            median(&own) / median(&other),
            &beside(&own, &other),
        );
        Ok(())
    }

    /// Gets and lists come from memory, as over RocksDB; only the question for the revision goes to etcd.
    async fn reads_over_etcd(&self, report: &mut Report, ours: &Subject) -> Result<()> {
        let (own, rocks) = (self.get(ours).await?, self.get(&self.ours).await?);
        report.row(
            "over etcd: gets/s, times those over RocksDB",
            Goal::None(Unit::Ratio),
            own.measured.rate() / rocks.measured.rate(),
            &[own.show_rate(ours), rocks.show_rate(&self.ours)],
        );
        let own = self.cached_gets(std::slice::from_ref(&ours)).await?;
        let rocks = self.cached_gets(&[&self.ours]).await?;
        report.row(
            "over etcd: CPU of a get from the cache, times that over RocksDB",
            Goal::AtMost(SAME, Unit::Ratio),
            own / rocks,
            &[Unit::Seconds.show(own), Unit::Seconds.show(rocks)],
        );
        let list = async |subject| self.lists(subject, "bench-5000", SMALL_LIST, 1, "").await;
        let (own, rocks) = (list(ours).await?, list(&self.ours).await?);
        report.row(
            "over etcd: list of 5,000, p50, times that over RocksDB",
            Goal::AtMost(SAME, Unit::Ratio),
            own.measured.latencies.median().as_secs_f64() / rocks.measured.latencies.median().as_secs_f64(),
            &[own.show_median(ours), rocks.show_median(&self.ours)],
        );
        Ok(())
    }

    /// CPU time of a get without a question to etcd, in seconds, over several servers at once. Each server has as many clients
    /// as one alone, so that only the number of servers differs.
    async fn cached_gets(&self, subjects: &[&Subject]) -> Result<f64> {
        let mut pools = Vec::new();
        let mut processes = Vec::new();
        for subject in subjects {
            self.fill(subject, "bench-5000", SMALL_LIST).await?;
            pools.push(Pool::open(&subject.client, CONNECTIONS).await?);
            processes.extend(&subject.processes);
        }
        let before = Usage::of(&processes)?;
        let runs = subjects.iter().zip(&pools).map(|(subject, pool)| {
            let get = subject.get("bench-5000", SMALL_LIST);
            let cached = move |number| {
                let call = get(number);
                Call::get(format!("{}?resourceVersion=0", call.path))
            };
            drive(pool, CLIENTS, self.bound(u64::MAX), cached)
        });
        let measured = try_join_all(runs).await?;
        let used = Usage::of(&processes)?.since(before);
        let mut gets = 0;
        for run in &measured {
            ensure_all(run)?;
            gets += run.succeeded;
        }
        Ok(used.as_secs_f64() / gets.max(1) as f64)
    }

    async fn watches_over_etcd(&self, report: &mut Report, ours: &Subject) -> Result<()> {
        let own = self.watched(ours, 1000, 50).await?;
        let rocks = self.watched(&self.ours, 1000, 50).await?;
        let beside = [own.show_events(), rocks.show_events()];
        report.row(
            "over etcd: 1000 watchers × 50 writes/s: CPU of an event, times that over RocksDB",
            Goal::AtMost(SAME, Unit::Ratio),
            own.event_cpu() / rocks.event_cpu(),
            &beside,
        );
        report.row(
            "over etcd: 1000 watchers × 50 writes/s: watches that ended",
            Goal::AtMost(0.0, Unit::Count),
            own.ended() as f64,
            &[],
        );
        Ok(())
    }

    async fn memory_over_etcd(&self, report: &mut Report, ours: &Subject) -> Result<()> {
        let mut sizes = Vec::new();
        for subject in [ours, &self.ours] {
            let process = *subject.processes.first().context("a process")?;
            self.fill(subject, "bench-etcd", 1).await?;
            let empty = resident_bytes(process)?;
            self.fill(subject, "bench-etcd", OBJECTS).await?;
            let filled = resident_bytes(process)?;
            sizes.push(filled.saturating_sub(empty) as f64 / (OBJECTS - 1) as f64);
        }
        let &[own, rocks] = sizes.as_slice() else {
            return Ok(());
        };
        report.row(
            "over etcd: memory of an object, times that over RocksDB",
            Goal::AtMost(SAME, Unit::Ratio),
            own / rocks,
            &[Unit::Bytes.show(own), Unit::Bytes.show(rocks)],
        );
        Ok(())
    }

    /// More servers serve more reads as far as there are cores: the cost of one does not grow.
    async fn replicas_over_etcd(&self, report: &mut Report, subjects: &[Subject]) -> Result<()> {
        let all: Vec<&Subject> = subjects.iter().collect();
        let one = self.cached_gets(all.get(..1).unwrap_or_default()).await?;
        let three = self.cached_gets(&all).await?;
        report.row(
            "over etcd: CPU of a get from 3 servers, times that from 1",
            Goal::AtMost(SAME, Unit::Ratio),
            three / one,
            &[Unit::Seconds.show(three), Unit::Seconds.show(one)],
        );
        Ok(())
    }
}
