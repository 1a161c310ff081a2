//! Servers that refuse a prefix say why, write nothing, and end.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::cluster::EtcdMembers;
use drydock_tests::standalone::Standalone;

const ID: &str = "0d0c2b9e-6d0f-4c5e-9a53-6a9b3f0c1d2e";

/// What is put where, and what the server says about it.
fn states() -> [(&'static str, String, &'static str); 4] {
    let marker = |rest: &str| format!("{{\"product\":\"drydock\",\"store\":\"{ID}\",{rest}}}");
    [
        (
            "/registry/drydock",
            marker("\"format\":1,\"importUnfinished\":true"),
            "holds an import that is not finished: repeat the import",
        ),
        (
            "/registry/drydock",
            marker("\"format\":9"),
            "has format 9, this version reads formats up to 1",
        ),
        (
            "/registry/drydock/pods/a",
            "of somebody else".to_owned(),
            "holds keys of another product, such as /registry/drydock/pods/a",
        ),
        ("/registry", marker("\"format\":1"), "is below /registry"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_a_prefix_says_why() -> Result<()> {
    let members = EtcdMembers::start(1, &["--unsafe-no-fsync"]).await?;
    let flags = members.server_flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    for (key, value, reason) in states() {
        members.etcdctl(&["put", key], value.as_bytes()).await?;
        let everything = ["get", "", "--prefix"];
        let before = members.etcdctl(&everything, &[]).await?;
        let refused = Standalone::start_with(&flags).await.err();
        let text = format!("{:#}", refused.context("it does not start")?);
        ensure!(text.contains(reason), "{text} instead of {reason}");
        ensure!(members.etcdctl(&everything, &[]).await? == before);
        members.etcdctl(&["del", key], &[]).await?;
    }
    Ok(())
}
