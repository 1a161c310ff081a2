//! Go clients in protobuf and CBOR and over WebSocket: runs `tests/clients/go/encodings`.

use anyhow::Result;

use crate::stage::{ends_with_done, go_client, together};

#[tokio::test]
async fn go_clients_speak_protobuf_cbor_and_websocket() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let mut client = go_client("encodings").await?;
    client
        .arg("-kubeconfig")
        .arg(stage.control_plane().admin_kubeconfig())
        .args(["-prefix", "go-encodings"])
        .env("KUBE_FEATURE_ClientsAllowCBOR", "true")
        .env("KUBE_FEATURE_ClientsPreferCBOR", "true");
    ends_with_done(&mut client).await
}
