//! Go clients in protobuf and CBOR and over WebSocket: runs `tests/clients/go/encodings`.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};
use tokio::process::Command;

use crate::stage::{ends_with_done, together};

#[tokio::test]
async fn go_clients_speak_protobuf_cbor_and_websocket() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/go");
    let built = Command::new(folder.join("build.sh"))
        .arg("encodings")
        .stderr(Stdio::inherit())
        .output()
        .await?;
    ensure!(
        built.status.success(),
        "the Go program could not be built: see standard error"
    );
    let mut client = Command::new(String::from_utf8(built.stdout)?.trim_end());
    client
        .arg("-kubeconfig")
        .arg(stage.control_plane().admin_kubeconfig())
        .args(["-prefix", "go-encodings"])
        .env("KUBE_FEATURE_ClientsAllowCBOR", "true")
        .env("KUBE_FEATURE_ClientsPreferCBOR", "true");
    ends_with_done(&mut client).await
}
