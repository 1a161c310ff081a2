//! Is everything there after the server was killed?

use anyhow::{Result, ensure};
use drydock_tests::clients::Protocol;
use drydock_tests::conformance::{Road, names, version};
use drydock_tests::standalone::Standalone;
use serde_json::json;

#[tokio::test]
async fn a_killed_server_goes_on_where_it_was() -> Result<()> {
    let standalone = Standalone::start().await?;
    let road = Road {
        caller: standalone.caller(Protocol::Http2)?,
        namespace: "default".to_owned(),
        through_host: false,
    };
    let mut written = Vec::new();
    for name in ["a", "b", "c"] {
        written.push(road.create(name).await?);
    }
    let from = version(&written[0])?;
    standalone.kill();
    ensure!(road.caller.get("/readyz").await.is_err());
    standalone.start_again().await?;
    let list = road.caller.get(&road.own()).await?.expect(200)?;
    assert_eq!(names(&list), ["default-a", "default-b", "default-c"]);
    for (name, before) in ["a", "b", "c"].into_iter().zip(&written) {
        assert_eq!(&road.read(name).await?, before);
    }
    // A watch goes on from before the end.
    let mut watch = road.watch(&format!("&resourceVersion={from}")).await?;
    for before in &written[1..] {
        assert_eq!(&watch.event().await?["object"], before);
    }
    let later = road
        .merge("a", &json!({ "spec": { "reason": "later" } }))
        .await?
        .expect(200)?;
    ensure!(version(&later)? > version(&written[2])?);
    assert_eq!(watch.event().await?["object"], later);

    let status = standalone.stop().await?;
    ensure!(status.is_some_and(|status| status.success()), "{status:?}");
    assert_eq!(watch.next().await?, None, "a clean end");
    Ok(())
}
