//! Three servers over three members of etcd, judged while parts of both fail.
//!
//! ```text
//! DRYDOCK_FAULT_ROUNDS=100   how many rounds of two faults (default 5, which have every kind once)
//! DRYDOCK_FAULT_SEED=7       which faults come when, and whom they hit (default 1)
//! DRYDOCK_FAULT_STRICT=1     judge how long clients wait: on a machine with nothing else to do
//! ```

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use drydock_tests::environment::number;
use drydock_tests::faults::{Settings, run};

#[tokio::test(flavor = "multi_thread")]
async fn clients_see_no_fault_of_servers_or_etcd() -> Result<()> {
    let is_strict = number("DRYDOCK_FAULT_STRICT", 0)? != 0;
    let bound = |strict, lenient| Duration::from_secs(if is_strict { strict } else { lenient });
    let settings = Settings {
        rounds: number("DRYDOCK_FAULT_ROUNDS", 5)?,
        seed: number("DRYDOCK_FAULT_SEED", 1)?,
        server_bound: bound(1, 30),
        leader_bound: bound(10, 50),
    };
    let say = |line: &str| writeln!(std::io::stderr(), "{line}").unwrap_or_default();
    say(&format!("{settings:?}"));
    let summary = run(&settings, say).await?;
    say(&summary.to_string());
    ensure!(summary.passed(), "{summary}");
    Ok(())
}
