//! The time of a restart, and the memory of objects and lists.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::cluster::Server;
use drydock_tests::load::{Goal, Pool, Report, Unit, forget_peak, peak_bytes, resident_bytes, show};
use tokio::time::Instant;

use super::rows::{Bench, count, of_size};
use super::subject::Subject;

const NAMESPACE: &str = "bench-fill";
/// A snapshot, two buffers, the connection, and pages that the allocator keeps.
const EXTRA_BYTES: u32 = 8 << 20;

impl Bench<'_> {
    /// Fills a separate server with exactly the configured number of objects and restarts it.
    pub(crate) async fn restart(&self, report: &mut Report) -> Result<()> {
        let objects = self.settings.objects;
        let server = Server::start(self.drydock, "bench-restart").await?;
        let process = || server.process_id().context("the server runs");
        self.fill(&Subject::server(self.drydock, &server)?, NAMESPACE, objects)
            .await?;
        let before = resident_bytes(process()?)?;
        server.stop().await?;
        let started = Instant::now();
        server.start_again().await?;
        let took = started.elapsed();
        let after = resident_bytes(process()?)?;

        let subject = Subject::server(self.drydock, &server)?;
        let pool = Pool::open(&subject.client, 1).await?;
        let there = count(&pool, &subject, NAMESPACE).await?;
        ensure!(there == objects, "expected {objects} objects, found {there}");
        report.row(
            &format!("restart to ready with {objects} objects"),
            Goal::AtMost(3.0, Unit::Seconds),
            took.as_secs_f64(),
            &[],
        );
        report.row(
            &format!("resident memory with {objects} objects"),
            Goal::AtMost(1.2 * f64::from(1 << 30), Unit::Bytes),
            before as f64,
            &[format!("after the restart {}", Unit::Bytes.show(after as f64))],
        );
        self.memory_of_lists(report, &subject, process()?).await
    }

    /// The memory of lists of everything, in addition to the objects.
    async fn memory_of_lists(&self, report: &mut Report, subject: &Subject, process: u32) -> Result<()> {
        let objects = self.settings.objects;
        for clients in [1, 4] {
            forget_peak(process)?;
            let before = resident_bytes(process)?;
            let lists = self.lists(subject, NAMESPACE, objects, clients, "").await?;
            let peak = peak_bytes(process)?;
            report.row(
                &format!("extra memory of a list of {objects}, {clients} at once"),
                Goal::AtMost(f64::from(EXTRA_BYTES), Unit::Bytes),
                peak.saturating_sub(before) as f64 / clients as f64,
                &[
                    format!("p50 {}", show(lists.measured.latencies.median())),
                    of_size(&lists),
                ],
            );
        }
        Ok(())
    }
}
