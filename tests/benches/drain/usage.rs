//! What a part of a run cost: CPU time, memory, and writes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Component, Part};
use drydock_tests::load::{Call, Usage, peak_bytes};
use tokio::time::{Instant, sleep};

use super::Bench;
use super::calls::{Endpoint, PATIENCE, send};

/// The verbs that count as writes.
const WRITES: [&str; 6] = ["POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"];
/// How long the writes must not change for work to be over.
const QUIET: Duration = Duration::from_secs(2);
/// Requests that are less frequent than this, by pod, are not told.
const RARE: f64 = 0.05;
/// A process is idle when it uses less CPU time a second than this.
const IDLE: Duration = Duration::from_millis(30);

/// CPU time of each process so far, and when it was read.
#[derive(Clone, Copy)]
pub(crate) struct Meter {
    at: Instant,
    host: Usage,
    etcd: Usage,
    server: Usage,
    controller: Usage,
}

/// CPU times between two readings of a [`Meter`].
#[derive(Clone, Copy)]
pub(crate) struct Cpu {
    pub(crate) host: Duration,
    pub(crate) etcd: Duration,
    pub(crate) server: Duration,
    pub(crate) controller: Duration,
    pub(crate) elapsed: Duration,
}

impl Meter {
    /// The CPU times since an earlier reading.
    pub(crate) fn since(self, earlier: Self) -> Cpu {
        Cpu {
            host: self.host.since(earlier.host),
            etcd: self.etcd.since(earlier.etcd),
            server: self.server.since(earlier.server),
            controller: self.controller.since(earlier.controller),
            elapsed: self.at.duration_since(earlier.at),
        }
    }
}

impl Bench<'_> {
    /// The CPU time of the processes so far. A controller that does not run has used none.
    pub(crate) fn read_meter(&self) -> Result<Meter> {
        let control_plane = self.drydock.control_plane();
        let of = |process: Option<u32>| match process {
            Some(process) => Usage::of(&[process]),
            None => Ok(Usage::default()),
        };
        Ok(Meter {
            at: Instant::now(),
            host: of(control_plane.process_id(Component::ApiServer))?,
            etcd: of(control_plane.process_id(Component::Etcd))?,
            server: of(self.drydock.process_id(Part::ApiServer))?,
            controller: of(self.drydock.process_id(Part::Controller))?,
        })
    }

    /// The process of the controller.
    pub(crate) fn controller(&self) -> Result<u32> {
        let process = self.drydock.process_id(Part::Controller);
        process.context("the controller runs")
    }

    /// The most memory that the controller has used.
    pub(crate) fn controller_peak(&self) -> Result<u64> {
        peak_bytes(self.controller()?)
    }

    /// Waits until the controller does nothing.
    pub(crate) async fn controller_is_idle(&self) -> Result<()> {
        let process = self.controller()?;
        eventually("the controller to be idle", PATIENCE, async || {
            let before = Usage::of(&[process])?;
            sleep(Duration::from_secs(1)).await;
            Ok((Usage::of(&[process])?.since(before) < IDLE).then_some(()))
        })
        .await
    }

    /// The writes of a resource that drydock-apiserver has served; with a subresource, only those.
    pub(crate) async fn our_writes(&self, resource: &str, subresource: Option<&str>) -> Result<f64> {
        requests(&self.ours, resource, subresource).await
    }

    /// The evictions that were posted to the host so far, accepted or not.
    pub(crate) async fn posted_evictions(&self) -> Result<f64> {
        requests(&self.host, "pods", Some("eviction")).await
    }

    /// Waits until drydock-apiserver gets no more writes of requests, and returns their number so far.
    pub(crate) async fn writes_when_quiet(&self) -> Result<f64> {
        eventually("the writes to end", PATIENCE, async || {
            let before = self.our_writes("evictionrequests", None).await?;
            sleep(QUIET).await;
            let after = self.our_writes("evictionrequests", None).await?;
            Ok((before.total_cmp(&after).is_eq()).then_some(after))
        })
        .await
    }
}

/// The number of requests by verb, resource and subresource.
pub(crate) type Requests = BTreeMap<(String, String, String), f64>;

/// The requests that a server has served so far, without watches.
pub(crate) async fn served(server: &Endpoint) -> Result<Requests> {
    let metrics = send(server, Call::get("/metrics")).await?;
    let text = std::str::from_utf8(&metrics.start).context("metrics are text")?;
    let mut requests = Requests::new();
    for line in text.lines() {
        let sample = line.strip_prefix("apiserver_request_total{");
        let Some((labels, value)) = sample.and_then(|sample| sample.rsplit_once("} ")) else {
            continue;
        };
        let label = |name: &str| {
            let mut labels = labels.split(',').filter_map(|label| label.split_once('='));
            let found = labels.find(|(label, _)| *label == name);
            found.map_or("", |(_, value)| value.trim_matches('"')).to_owned()
        };
        let key = (label("verb"), label("resource"), label("subresource"));
        if key.0 != "WATCH" && !key.1.is_empty() {
            *requests.entry(key).or_default() += value.parse::<f64>().unwrap_or_default();
        }
    }
    Ok(requests)
}

/// The requests since an earlier reading, by pod, the most frequent first.
pub(crate) fn describe(before: &Requests, after: &Requests, pods: u64) -> String {
    let mut since: Vec<_> = after
        .iter()
        .map(|(key, count)| {
            let earlier = before.get(key).copied().unwrap_or_default();
            (key, (count - earlier) / pods.max(1) as f64)
        })
        .filter(|(_, count)| *count >= RARE)
        .collect();
    since.sort_by(|a, b| b.1.total_cmp(&a.1));
    let since: Vec<_> = since
        .into_iter()
        .map(|((verb, resource, subresource), count)| {
            let slash = if subresource.is_empty() { "" } else { "/" };
            format!("{verb} {resource}{slash}{subresource} {count:.2}")
        })
        .collect();
    since.join(", ")
}

/// The writes in the metrics of a server.
async fn requests(server: &Endpoint, resource: &str, subresource: Option<&str>) -> Result<f64> {
    let counts = served(server).await?;
    let wanted = counts.iter().filter(|((verb, of, sub), _)| {
        of == resource && subresource.is_none_or(|wanted| sub == wanted) && WRITES.contains(&verb.as_str())
    });
    Ok(wanted.map(|(_, count)| count).sum())
}
