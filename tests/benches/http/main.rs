//! The throughput, latency and cost of the server over HTTP/2 and TLS, compared with the machine and with other servers.
//!
//! The load runs on the same cores as the server. Each row is compared with a loop of `fdatasync`, with a server of the
//! same HTTP and TLS stack that does nothing, and with peers: a custom resource and a built-in kind on kube-apiserver
//! and etcd, and an aggregated server in Go with an etcd of its own. Row `etcd` compares our server over that etcd with both. Compare the ratios of one run; absolute numbers vary
//! with the machine. CPU time is that of the server's processes, from `/proc`. The clients are in group
//! `system:masters`, which needs no access review.
//!
//! ```text
//! DRYDOCK_BENCH=creates,gets     only these rows (see [`ROWS`])
//! DRYDOCK_BENCH_SECONDS=3        the duration of a row
//! DRYDOCK_BENCH_OBJECTS=150000   the objects of the last rows
//! DRYDOCK_BENCH_PEERS=skip       without the peers
//! DRYDOCK_BIN_DIR=bin            the folder of the server's binary
//! ```
#![expect(
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark measures real time and prints a report"
)]

mod disk;
mod do_nothing;
mod over_etcd;
mod restart;
mod rows;
mod settings;
mod subject;
mod watching;

use anyhow::Result;
use drydock_tests::cluster::{Component, ControlPlane, Drydock, Options, Part, SampleApiServer};
use drydock_tests::load::Report;
use serde_json::json;

use self::do_nothing::DoNothing;
use self::settings::Settings;
use self::subject::{Subject, crd};

/// The rows that `DRYDOCK_BENCH` can select, in the order of measurement.
const ROWS: [&str; 12] = [
    "creates",
    "patch",
    "writes",
    "gets",
    "list5000",
    "deletecollection",
    "list30000",
    "watch100",
    "watch1000",
    "proxy",
    "etcd",
    "restart",
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let [command, certificate, key] = arguments.as_slice()
        && command == do_nothing::COMMAND
    {
        return runtime.block_on(do_nothing::serve(certificate, key));
    }
    // `cargo test` runs benchmarks too, without measuring.
    if arguments.iter().any(|argument| argument == "--bench") {
        return runtime.block_on(run(&Settings::from_environment()?));
    }
    Ok(())
}

async fn run(settings: &Settings) -> Result<()> {
    let control_plane = ControlPlane::start(Options {
        frequent_cache_checks: false,
        ..Options::default()
    })
    .await?;
    let drydock = Drydock::start(&control_plane).await?;
    // Controllers would add load.
    drydock.stop_part(Part::Controller).await?;
    for component in [
        Component::ControllerManager,
        Component::Scheduler,
        Component::Kwok,
    ] {
        control_plane.kill_component(component);
    }
    let namespaces = subject::NAMESPACES
        .map(|name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }));
    let mut objects = namespaces.to_vec();
    objects.push(crd());
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    control_plane.admin().apply(&list.to_string()).await?;

    let nothing = DoNothing::start(&control_plane).await?;
    let sample = if settings.peers {
        Some(SampleApiServer::start(&control_plane).await?)
    } else {
        None
    };
    let peers = match &sample {
        Some(sample) => vec![
            Subject::custom_resource(&control_plane)?,
            Subject::lease(&control_plane)?,
            Subject::flunder(sample)?,
        ],
        None => Vec::new(),
    };
    let bench = rows::Bench {
        settings,
        drydock: &drydock,
        ours: Subject::drydock(&drydock)?,
        nothing: Subject::nothing(&control_plane, &nothing)?,
        proxied: Subject::proxied(&drydock)?,
        peers,
        sample: sample.as_ref(),
    };
    let mut report = Report::default();
    let failed = bench.run(&mut report).await;
    println!("{report}");
    failed
}
