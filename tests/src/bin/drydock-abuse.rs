//! Abuse for minutes (`make abuse`): users with few rights and strangers do everything at once that once took a server down,
//! and an honest client must not notice.
//!
//! ```text
//! DRYDOCK_ABUSE_SECONDS=600          how long
//! DRYDOCK_ABUSE_USERS=20             how many users
//! DRYDOCK_ABUSE_P99_MILLIS=1000      what 99 of 100 requests of the honest client may take
//! DRYDOCK_ABUSE_MEMORY_MIB=4096      what the server may have taken at most: its limit in `deploy/`
//! DRYDOCK_BIN_DIR=bin                the folder of the server's binary
//! ```
//!
//! Prints how the honest client fared, and exits with 1 if a request of it failed, its watch ended, it was too slow, a health
//! check was too slow, or the server took too much memory.
#![expect(clippy::print_stdout, reason = "a command line tool")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::abuse::{Abuser, Honest, Volume, holding};
use drydock_tests::calls::Caller;
use drydock_tests::clients::Protocol;
use drydock_tests::environment::number;
use drydock_tests::objects::{eviction_request, requests_of};
use drydock_tests::standalone::Standalone;
use futures_util::future::join_all;
use http::Method;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Of each user, again and again.
const VOLUME: Volume = Volume {
    cancelled: 200,
    refused: 200,
    watches: 25,
    drops: 2,
    targets: 2,
    selectors: 10,
    heavy: 1,
};
/// The address of strangers. At that of the users, whose connections are unknown until their handshake is over, those would
/// make way, too, since all come from one address.
const STRANGE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// Connections that strangers hold.
const HELD: usize = 1100;
/// Requests of strangers at a time.
const ANONYMOUS: usize = 200;
/// How long a health check may take: a kubelet gives up after a second, three times.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
/// How many of a hundred health checks may take longer on a busy machine, where they were not the server's fault.
const SLOW_PROBES: usize = 5;

/// The most memory that a process has had, in MiB.
fn peak_mib(process: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
    Ok(kib
        .context("the peak of the server's memory")?
        .trim()
        .parse::<u64>()?
        / 1024)
}

/// Strangers ask for lists with long selectors and post, without end.
async fn strangers(caller: &Caller, until: Instant) {
    let collection = &requests_of("default");
    let list = &format!("{collection}?labelSelector={}", "k%2C".repeat(2_000));
    while Instant::now() < until {
        let calls = (0..ANONYMOUS).map(async |number| {
            // Whatever they get: their connections make way for others.
            let _refused = if number % 2 == 0 {
                caller.get(list).await.map(drop)
            } else {
                let posted = caller.call(Method::POST, collection, "application/json", "{}");
                posted.await.map(drop)
            };
        });
        join_all(calls).await;
    }
}

/// Asks whether the server lives, as a kubelet does; how long each answer took.
async fn probe(caller: &Caller, until: Instant) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    while Instant::now() < until {
        let begun = Instant::now();
        let live = caller.get("/livez").await?;
        ensure!(live.status == 200, "{}", live.text());
        took.push(begun.elapsed());
        sleep(Duration::from_secs(1)).await;
    }
    Ok(took)
}

#[tokio::main]
async fn main() -> Result<()> {
    let seconds = number("DRYDOCK_ABUSE_SECONDS", 600)?;
    let users: usize = number("DRYDOCK_ABUSE_USERS", 20)?;
    let p99 = Duration::from_millis(number("DRYDOCK_ABUSE_P99_MILLIS", 1000)?);
    let limit: u64 = number("DRYDOCK_ABUSE_MEMORY_MIB", 4096)?;
    let server = Standalone::start().await?;
    let collection = requests_of("default");
    let admin = server.caller(Protocol::Http2)?;
    let existing = eviction_request("default", "missing", "00000000-0000-4000-ab05-00000000beef");
    admin.post(&collection, &existing).await?.expect(201)?;
    let until = Instant::now() + Duration::from_secs(seconds);
    // Abusers and strangers run on the threads of the runtime. What their clients compute must not delay the honest client.
    let mut abusers = JoinSet::<Result<()>>::new();
    for _ in 0..users {
        let abuser = Abuser::new(server.raw_client(Protocol::Http2)?, collection.clone());
        abusers.spawn(async move {
            while Instant::now() < until {
                abuser.abuse(VOLUME).await?;
            }
            Ok(())
        });
    }
    let strange = Caller::new(server.stranger(Protocol::Http1)?.coming_from(STRANGE));
    abusers.spawn(async move {
        strangers(&strange, until).await;
        Ok(())
    });
    let probes = Caller::new(server.stranger(Protocol::Http2)?);
    let abuse = async {
        let abused = async {
            while let Some(ended) = abusers.join_next().await {
                ended.context("an abuser panicked")??;
            }
            Ok::<_, anyhow::Error>(())
        };
        // The first error ends the run.
        let ((), mut probes) = tokio::try_join!(abused, probe(&probes, until))?;
        probes.sort_unstable();
        let slow = probes.iter().filter(|took| **took > PROBE_LIMIT).count();
        let slowest = probes.last().copied().unwrap_or_default();
        println!(
            "abuse: {} health checks, {slow} slow, the slowest {slowest:?}",
            probes.len()
        );
        ensure!(
            slow * 100 <= SLOW_PROBES * probes.len(),
            "health checks are too slow"
        );
        Ok(())
    };
    let honest = Honest::new(server.caller(Protocol::Http2)?, collection.clone(), |round| {
        eviction_request(
            "default",
            "missing",
            &format!("00000000-0000-4000-ab06-{round:012x}"),
        )
    });
    let stranger = server.stranger(Protocol::Http1)?.coming_from(STRANGE);
    let fared = holding(&stranger, HELD, Box::pin(honest.work_during(abuse))).await?;
    let peak = peak_mib(server.process_id().context("the server runs")?)?;
    println!(
        "abuse: the honest client did {} rounds, 99 of 100 requests within {:?}, the slowest {:?}; the server took {peak} MiB",
        fared.rounds, fared.p99, fared.slowest
    );
    ensure!(fared.p99 < p99, "the honest client was too slow");
    ensure!(peak < limit, "the server took more than {limit} MiB");
    Ok(())
}
