//! The cost of a drain on a real control plane with kwok nodes, beside the floor: 32 clients that only post evictions.
//!
//! Everything runs on the same cores, so compare the ratios of one run; absolute numbers vary with the machine. CPU time
//! and memory are those of the processes, from `/proc`, and writes are counted by the servers' metrics: both say
//! something on a busy machine too, while times to the end say little there.
//!
//! | scenario | measures |
//! | --- | --- |
//! | `drain` | one maintenance of all nodes, on both roads of the controller, beside the floor and beside `kubectl drain` |
//! | `rest` | what finished requests, and requests that wait for a silent interceptor, cost while nothing happens |
//! | `herd` | how many evictions are posted while a budget lets its pods go one by one |
//!
//! ```text
//! DRYDOCK_DRAIN=drain,rest,herd    only these scenarios
//! DRYDOCK_DRAIN_PODS=1000          the pods of a drain (the goals are for 5000)
//! DRYDOCK_DRAIN_NODES=50           its nodes (250)
//! DRYDOCK_DRAIN_ROADS=direct,aggregator
//! DRYDOCK_DRAIN_REPEAT=1           how often each road is measured, each time beside a floor of its own; medians are reported
//! DRYDOCK_DRAIN_KUBECTL=60         the seconds that kubectl drain gets; 0 leaves it out
//! DRYDOCK_DRAIN_FINISHED=2000      the finished requests at rest (the goals are for 150000 in all)
//! DRYDOCK_DRAIN_LIVE=500           the waiting ones
//! DRYDOCK_DRAIN_SECONDS=30         how long rest is measured
//! DRYDOCK_DRAIN_WAITING=1000       the pods that wait for one budget
//! DRYDOCK_DRAIN_PLACES=10          how many of them it lets go
//! DRYDOCK_BIN_DIR=bin              the folder of the programs
//! ```
#![expect(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark measures real time and prints a report"
)]

mod calls;
mod drains;
mod herd;
mod rest;
mod settings;
mod usage;
mod workload;

use anyhow::{Context as _, Result};
use drydock_tests::clients::Protocol;
use drydock_tests::cluster::{ControlPlane, Drydock, Options, Part};
use drydock_tests::load::Report;

use self::calls::Endpoint;
use self::settings::Settings;

/// What all scenarios use.
pub(crate) struct Bench<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) drydock: &'a Drydock<'a>,
    /// kube-apiserver.
    pub(crate) host: Endpoint,
    /// drydock-apiserver itself.
    pub(crate) ours: Endpoint,
}

fn main() -> Result<()> {
    // `cargo test` runs benchmarks too, without measuring.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(&Settings::from_environment()?))
}

async fn run(settings: &Settings) -> Result<()> {
    let control_plane = ControlPlane::start(Options {
        frequent_cache_checks: false,
        // The audit log has only the requests of Drydock, which the floor does not send.
        apiserver_flags: ["--audit-log-path=", "--audit-policy-file="]
            .map(str::to_owned)
            .to_vec(),
        ..Options::default()
    })
    .await?;
    let drydock = Drydock::start(&control_plane).await?;
    drydock.stop_part(Part::Controller).await?;
    let admin = &control_plane.pki().admin;
    let host = control_plane.client_of(control_plane.apiserver_address(), Protocol::Http2)?;
    let bench = Bench {
        settings,
        drydock: &drydock,
        host: Endpoint::new(host),
        ours: Endpoint::new(drydock.raw_client(Some(admin), Protocol::Http2)?),
    };
    let mut report = Report::default();
    let failed = bench.run(&mut report).await;
    println!("{report}");
    failed
}

impl Bench<'_> {
    async fn run(&self, report: &mut Report) -> Result<()> {
        let load = std::fs::read_to_string("/proc/loadavg").context("read the load average")?;
        let cores = std::thread::available_parallelism().context("count the cores")?;
        report.note(format!(
            "{cores} cores; load average at the start {}; {}",
            load.trim(),
            self.settings
        ));
        if self.settings.wants("drain") || self.settings.wants("herd") {
            self.create_nodes().await?;
        }
        if self.settings.wants("drain") {
            self.measure_drains(report).await?;
        }
        if self.settings.wants("herd") {
            self.measure_herd(report).await?;
        }
        if self.settings.wants("rest") {
            self.measure_rest(report).await?;
        }
        Ok(())
    }
}
