//! The cost and the lag of watch events, and whether watches stay open.

use std::time::Duration;

use anyhow::{Context as _, Result};
use drydock_tests::load::{Call, Goal, Measured, Pool, Report, Seen, Unit, Usage, Watchers, pace, show};
use serde_json::Value;
use tokio::time::Instant;

use super::rows::{Bench, WATCHED, counted, ensure_all};
use super::subject::Subject;

const NAMESPACE: &str = "bench-watch";
/// Watches per connection.
const SHARE: usize = 100;
/// After this time without an event, no more are expected.
const PATIENCE: Duration = Duration::from_secs(10);
/// The part of the rate of events that meets the goal: the last events come after the last write.
const ON_TIME: f64 = 0.95;

/// The events that watchers received of steady writes.
pub(crate) struct Watched {
    watchers: usize,
    /// CPU time of a write without watchers.
    quiet_cpu: Duration,
    writes: Measured,
    seen: Seen,
    took: Duration,
    /// CPU time of the server's processes, from the first write to the last event.
    cpu: Duration,
    /// The part of it that the writes take without watchers.
    writes_cpu: Duration,
}

impl Watched {
    fn expected(&self) -> u64 {
        self.writes.succeeded * self.watchers as u64
    }

    fn rate(&self) -> f64 {
        self.seen.events as f64 / self.took.as_secs_f64()
    }

    /// CPU time of an event without the writes, in seconds.
    pub(crate) fn event_cpu(&self) -> f64 {
        let events = self.cpu.saturating_sub(self.writes_cpu).as_secs_f64();
        events / self.seen.events.max(1) as f64
    }

    /// CPU time of an event with the writes, in seconds.
    fn cpu_with_writes(&self) -> f64 {
        self.cpu.as_secs_f64() / self.seen.events.max(1) as f64
    }

    /// How many watches ended.
    pub(crate) fn ended(&self) -> u64 {
        self.seen.ended
    }

    fn lag(&self) -> f64 {
        self.seen.lag.quantile(990).as_secs_f64()
    }

    pub(crate) fn show_events(&self) -> String {
        let failed = match self.writes.failed {
            0 => String::new(),
            failed => format!(", {failed} writes failed"),
        };
        format!(
            "{} of {} events in {}{failed}",
            self.seen.events,
            self.expected(),
            show(self.took)
        )
    }
}

impl Bench<'_> {
    /// Steady writes to objects with many watchers.
    pub(crate) async fn watch(&self, report: &mut Report, watchers: usize, rate: u32) -> Result<()> {
        let ours = self.watched(&self.ours, watchers, rate).await?;
        ensure_all(&ours.writes)?;
        let mut peers = Vec::new();
        let mut failures = Vec::new();
        for peer in &self.peers {
            match self.watched(peer, watchers, rate).await {
                Ok(watched) => peers.push((peer.name, watched)),
                // A peer may fail under the load; the report says so.
                Err(error) => failures.push(format!("{} failed: {error:#}", peer.name)),
            }
        }
        let beside = |mut own: Vec<String>, show: &dyn Fn(&Watched) -> String| {
            own.extend(
                peers
                    .iter()
                    .map(|(name, watched)| format!("{name} {}", show(watched))),
            );
            own
        };

        let what = format!("{watchers} watchers × {rate} writes/s");
        // Only with few watchers are there goals.
        let goal = |goal: Goal, unit: Unit| if watchers <= SHARE { goal } else { Goal::None(unit) };
        let asked = (watchers as f64) * f64::from(rate);
        let mut events = beside(
            vec![
                format!("ours {}", ours.show_events()),
                Unit::Bytes.show(ours.seen.bytes as f64),
                format!("writes p50 {}", show(ours.writes.latencies.median())),
            ],
            &Watched::show_events,
        );
        events.append(&mut failures);
        report.row(
            &format!("{what}: events"),
            goal(Goal::AtLeast(asked * ON_TIME, Unit::Rate), Unit::Rate),
            ours.rate(),
            &events,
        );
        let with_writes = ours.cpu_with_writes();
        report.row(
            &format!("{what}: server CPU of an event"),
            Goal::AtMost(6e-6, Unit::Seconds),
            ours.event_cpu(),
            &beside(
                vec![
                    format!("ours {} with the writes", Unit::Seconds.show(with_writes)),
                    format!("a write alone {}", show(ours.quiet_cpu)),
                ],
                &|watched| {
                    let with_writes = Unit::Seconds.show(watched.cpu_with_writes());
                    let event = Unit::Seconds.show(watched.event_cpu());
                    format!("{event}, {with_writes} with the writes")
                },
            ),
        );
        report.row(
            &format!("{what}: lag p99, from sending the write"),
            goal(Goal::AtMost(20e-3, Unit::Seconds), Unit::Seconds),
            ours.lag(),
            &beside(
                vec![format!("ours p50 {}", show(ours.seen.lag.median()))],
                &|watched| Unit::Seconds.show(watched.lag()),
            ),
        );
        report.row(
            &format!("{what}: watches that ended"),
            Goal::AtMost(0.0, Unit::Count),
            ours.seen.ended as f64,
            &beside(Vec::new(), &|watched| watched.seen.ended.to_string()),
        );
        Ok(())
    }

    pub(crate) async fn watched(&self, subject: &Subject, watchers: usize, rate: u32) -> Result<Watched> {
        self.fill(subject, NAMESPACE, WATCHED).await?;
        let writing = Pool::open(&subject.client, 1).await?;
        let readers = Pool::open(&subject.client, watchers.div_ceil(SHARE)).await?;
        // The cost of writes without watchers.
        let before = Usage::of(&subject.processes)?;
        let call = subject.patch(NAMESPACE, WATCHED, counted());
        let quiet = pace(&writing, rate, self.settings.time, call).await?;
        ensure_all(&quiet)?;
        let quiet_cpu = Usage::of(&subject.processes)?.since(before) / u32::try_from(quiet.succeeded.max(1))?;

        let path = subject.collection(NAMESPACE);
        let page = Call::get(format!("{path}?limit=1"));
        let page = writing.sender(0)?.send(page).await?.succeeded()?;
        let page: Value = serde_json::from_slice(&page.start).context("read a list")?;
        let revision = page
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str)
            .context("a list has a revision")?;
        let path = format!("{path}?watch=true&resourceVersion={revision}");
        let open = Watchers::open(&readers, watchers, &path).await?;

        let before = Usage::of(&subject.processes)?;
        let started = Instant::now();
        let call = subject.patch(NAMESPACE, WATCHED, open.clock());
        let writes = pace(&writing, rate, self.settings.time, call).await?;
        let expected = writes.succeeded * watchers as u64;
        let last = open.wait_for(expected, PATIENCE).await;
        let took = last.saturating_duration_since(started);
        let cpu = Usage::of(&subject.processes)?.since(before);
        let seen = open.close().await?;
        Ok(Watched {
            watchers,
            quiet_cpu,
            writes_cpu: quiet_cpu * u32::try_from(writes.succeeded)?,
            writes,
            seen,
            took,
            cpu,
        })
    }
}
