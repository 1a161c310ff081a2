//! Twenty users and a thousand strangers abuse a server at once, and an honest client does not notice.

use std::time::Duration;

use anyhow::{Result, ensure};
use drydock_tests::abuse::{Abuser, Honest, Volume, holding};
use drydock_tests::calls::Caller;
use drydock_tests::clients::Protocol;
use drydock_tests::objects::{eviction_request, requests_of};
use drydock_tests::standalone::Standalone;
use futures_util::future::{join_all, try_join_all};
use http::Method;
use tokio::time::Instant;

const ABUSERS: usize = 20;
/// Of each abuser; three thousand of the first two in all.
const VOLUME: Volume = Volume {
    cancelled: 150,
    refused: 150,
    watches: 25,
    drops: 4,
    targets: 2,
    selectors: 5,
    heavy: 1,
};
/// Connections that strangers hold: more than the share of an address.
const HELD: usize = 1100;
/// POSTs of clients without a credential, all at once.
const ANONYMOUS: usize = 450;
/// How long a probe may take on a busy machine. It took half a minute when every place was held.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_client_notices_no_abuse() -> Result<()> {
    let server = Standalone::start().await?;
    let collection = requests_of("default");
    let abusers: Vec<Abuser> = (0..ABUSERS)
        .map(|_| {
            Ok(Abuser::new(
                server.raw_client(Protocol::Http2)?,
                collection.clone(),
            ))
        })
        .collect::<Result<_>>()?;
    let honest = Honest::new(server.caller(Protocol::Http2)?, collection.clone(), |round| {
        let uid = format!("00000000-0000-4000-ab05-{round:012x}");
        eviction_request("default", "missing", &uid)
    });
    let stranger = server.stranger(Protocol::Http1)?;
    let probes = Caller::new(stranger.clone());
    let abuse = async {
        let anonymous = async {
            let posts = (0..ANONYMOUS).map(async |_| {
                let posted = probes
                    .call(Method::POST, &collection, "application/json", "{}")
                    .await;
                // Its connection may have made way for another one.
                posted.map_or(403, |response| response.status)
            });
            join_all(posts).await
        };
        let users = try_join_all(abusers.iter().map(|abuser| abuser.abuse(VOLUME)));
        let (anonymous, users) = tokio::join!(anonymous, users);
        users?;
        ensure!(anonymous.iter().all(|status| *status == 403), "{anonymous:?}");
        let begun = Instant::now();
        let ready = probes.get("/readyz").await?;
        ensure!(ready.status == 200, "{}", ready.text());
        ensure!(
            begun.elapsed() < PROBE_LIMIT,
            "a probe took {:?}",
            begun.elapsed()
        );
        Ok(())
    };
    let fared = holding(&stranger, HELD, Box::pin(honest.work_during(abuse))).await?;
    eprintln!("{fared:?}");
    Ok(())
}
