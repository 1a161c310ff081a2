//! A killed server restarts with everything it acknowledged.

use anyhow::{Result, ensure};
use drydock_tests::clients::Protocol;
use drydock_tests::conformance::{Endpoint, names, version};
use drydock_tests::standalone::Standalone;
use drydock_tests::websocket::{Frame, HANDSHAKE};
use serde_json::json;

#[tokio::test]
async fn a_killed_server_restarts_with_its_state() -> Result<()> {
    let standalone = Standalone::start().await?;
    let api = Endpoint::in_default(standalone.caller(Protocol::Http2)?);
    let mut written = Vec::new();
    for name in ["a", "b", "c"] {
        written.push(api.create(name).await?);
    }
    let from = version(&written[0])?;
    standalone.kill();
    ensure!(api.caller.get("/readyz").await.is_err());
    standalone.start_again().await?;
    let list = api.caller.get(&api.own()).await?.expect(200)?;
    assert_eq!(names(&list), ["default-a", "default-b", "default-c"]);
    for (name, before) in ["a", "b", "c"].into_iter().zip(&written) {
        assert_eq!(&api.read(name).await?, before);
    }
    // A watch resumes from before the kill.
    let mut watch = api.watch(&format!("&resourceVersion={from}")).await?;
    for before in &written[1..] {
        assert_eq!(&watch.event().await?["object"], before);
    }
    let later = api
        .merge("a", &json!({ "spec": { "reason": "later" } }))
        .await?
        .expect(200)?;
    ensure!(version(&later)? > version(&written[2])?);
    assert_eq!(watch.event().await?["object"], later);

    let path = format!("{}&watch=true&resourceVersion={}", api.own(), version(&later)?);
    let socket = api.caller.websocket(&path, &HANDSHAKE).await?;
    let mut socket = socket.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;

    let status = standalone.stop().await?;
    ensure!(status.is_some_and(|status| status.success()), "{status:?}");
    assert_eq!(watch.next().await?, None, "the watch ends cleanly");
    assert_eq!(socket.next().await?, Frame::Close(1000));
    Ok(())
}
