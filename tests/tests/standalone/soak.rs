//! A soak of some seconds.

use std::time::Duration;

use anyhow::{Result, ensure};
use drydock_tests::soak::{Settings, run, server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_soak_finds_no_fault() -> Result<()> {
    let settings = Settings {
        time: Duration::from_secs(10),
        objects: 2000,
        object_bytes: 2700,
        writes: 100,
        watchers: 50,
        slow_per_thousand: 100,
        reconnects_per_thousand: 50,
        pause: Duration::from_millis(500),
        lists_every: Duration::from_secs(1),
        probes_every: Duration::from_secs(1),
        backups_every: Duration::from_secs(4),
        reports_every: Duration::from_secs(5),
        window: Duration::from_secs(5),
        warm_up: Duration::from_secs(5),
        growth_per_hour: 16 << 20,
    };
    let server = server(&settings).await?;
    let summary = run(&server, &settings, |line| eprintln!("{line}")).await?;
    eprintln!("{summary}");
    ensure!(summary.passed(), "{summary}");
    Ok(())
}
