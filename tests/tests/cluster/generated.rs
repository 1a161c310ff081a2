//! Clients of generated code, for every kind: runs `tests/clients/go/typed`, whose clientset, apply configurations, informers and
//! listers come from the generators of Kubernetes.

use anyhow::Result;

use crate::stage::{ends_with_done, go_client, together};

#[tokio::test]
async fn generated_go_clients_create_update_patch_apply_watch_and_delete() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let mut client = go_client("typed").await?;
    client
        .arg("-kubeconfig")
        .arg(stage.control_plane().admin_kubeconfig())
        .args(["-prefix", "go-typed"]);
    ends_with_done(&mut client).await
}
