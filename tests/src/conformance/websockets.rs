//! Rules of watches over WebSocket, which consoles in browsers use.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Endpoint, version};
use crate::websocket::{Frame, HANDSHAKE, WebSocket};

async fn watch(api: &Endpoint, parameters: &str, more: &[(&str, &str)]) -> Result<WebSocket> {
    let path = format!("{}&watch=true{parameters}", api.own());
    let lines = [&HANDSHAKE[..], more].concat();
    let connected = api.caller.websocket(&path, &lines).await?;
    connected.map_err(|refusal| anyhow::anyhow!("refused: {refusal:?}"))
}

/// Every event is one text message, with what the same watch sends as a stream.
pub async fn a_watch_over_websocket_has_a_message_for_each_event(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    api.create("b").await?;
    let mut stream = api.watch("").await?;
    let mut socket = watch(api, "", &[]).await?;
    assert_eq!(socket.protocol, "");
    for name in ["a", "b"] {
        let patch = json!({ "metadata": { "labels": { "more": name } } });
        api.merge(name, &patch).await?.expect(200)?;
    }
    // The initial events have any order.
    let mut events = Vec::new();
    let mut expected = Vec::new();
    for _ in 0..4 {
        let Frame::Text(text) = socket.next().await? else {
            anyhow::bail!("not text");
        };
        ensure!(text.ends_with("}\n") && text.lines().count() == 1, "{text}");
        events.push(serde_json::from_str::<Value>(&text).context("an event")?);
        expected.push(stream.event().await?);
    }
    let order = |event: &Value| version(&event["object"]).unwrap_or(0);
    events.sort_by_key(order);
    expected.sort_by_key(order);
    assert_eq!(events, expected);

    // What the client sends is ignored, and pings are answered.
    socket.send(1, b"hello").await?;
    socket.send(9, b"are you there").await?;
    assert_eq!(socket.next().await?, Frame::Pong(b"are you there".to_vec()));
    api.caller.delete(&api.path("a")).await?.expect(200)?;
    assert_eq!(socket.event().await?["type"], "DELETED");
    // A client that closes gets its close frame back.
    socket.send(8, &1000_u16.to_be_bytes()).await?;
    assert_eq!(socket.next().await?, Frame::Close(1000));
    socket.ended().await
}

/// The end of a watch is a close frame, also after an error.
pub async fn a_watch_over_websocket_ends_with_a_close_frame(api: &Endpoint) -> Result<()> {
    let mut socket = watch(api, "&timeoutSeconds=1", &[]).await?;
    assert_eq!(socket.next().await?, Frame::Close(1000));
    socket.send(8, &1000_u16.to_be_bytes()).await?;
    socket.ended().await?;
    let parameters =
        "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99999999999999";
    let mut socket = watch(api, parameters, &[]).await?;
    let event = socket.event().await?;
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(504))
    );
    assert_eq!(socket.next().await?, Frame::Close(1000));
    // Without an answer of the client the server closes too.
    socket.ended().await
}

/// A subprotocol is chosen if it is the only one, and binary encodings have binary messages.
pub async fn websocket_messages_have_the_negotiated_form(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let protocol = ("sec-websocket-protocol", "base64.binary.k8s.io");
    let mut socket = watch(api, "", &[protocol]).await?;
    assert_eq!(socket.protocol, "base64.binary.k8s.io");
    assert_eq!(socket.event().await?["type"], "ADDED");

    let accept = ("accept", "application/vnd.kubernetes.protobuf");
    let mut socket = watch(api, "", &[accept]).await?;
    let Frame::Binary(message) = socket.next().await? else {
        anyhow::bail!("not binary");
    };
    // A WatchEvent without a length: field 1 is its type, and the object is an envelope.
    ensure!(message.starts_with(b"\x0a\x05ADDED\x12"), "{message:?}");
    ensure!(message.windows(4).any(|window| window == b"k8s\0"), "{message:?}");

    let accept = (
        "accept",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    );
    let mut socket = watch(api, "", &[accept]).await?;
    assert_eq!(socket.event().await?["object"]["kind"], "Table");
    Ok(())
}

/// Handshakes that are refused have a 4xx, never a response as if nothing was asked.
pub async fn refused_websockets_are_4xx(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let own = format!("{}&watch=true", api.own());
    let without = |name: &str| -> Vec<(&str, &str)> {
        let mut lines = HANDSHAKE.to_vec();
        lines.retain(|(own, _)| *own != name);
        lines
    };
    let with = |name, value| [without(name), vec![(name, value)]].concat();
    let invalid = format!("{own}&resourceVersionMatch=Exact");
    for (path, lines, code) in [
        (&own, without("sec-websocket-key"), 400),
        (&own, without("sec-websocket-version"), 400),
        (&own, with("sec-websocket-version", "8"), 400),
        (&own, with("sec-websocket-protocol", "a, b"), 400),
        (&own, without("origin"), 403),
        (&own, with("origin", "null"), 403),
        (&own, with("accept", "application/yaml"), 406),
        (&invalid, HANDSHAKE.to_vec(), 422),
        (&api.path("a"), HANDSHAKE.to_vec(), 400),
        (&api.own(), HANDSHAKE.to_vec(), 400),
    ] {
        let refusal = api.caller.websocket(path, &lines).await?;
        let refusal = refusal
            .err()
            .with_context(|| format!("{path} {lines:?} was upgraded"))?;
        assert_eq!(refusal.status, code, "{path} {lines:?}: {}", refusal.text);
    }
    Ok(())
}
