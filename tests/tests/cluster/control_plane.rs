//! Is what the suites run on a cluster?

use std::time::Duration;

use anyhow::Result;
use drydock_tests::clients::{eventually, expect_status};
use drydock_tests::cluster::shared;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use serde_json::json;

#[tokio::test]
async fn control_plane_runs_a_deployment() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    cluster
        .add_node("deployment-node", &[("suite", "control-plane")])
        .await?;
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": {
                    "nodeSelector": { "suite": "control-plane" },
                    "containers": [{ "name": "web", "image": "web" }],
                },
            },
        },
    }))?;
    let deployments: Api<Deployment> = Api::namespaced(cluster.client().await?, "default");
    deployments.create(&PostParams::default(), &deployment).await?;
    eventually("2 replicas available", Duration::from_mins(1), async || {
        let status = deployments.get("web").await?.status.unwrap_or_default();
        Ok((status.available_replicas == Some(2)).then_some(()))
    })
    .await?;
    let pods = cluster
        .admin()
        .ok(&["get", "pods", "-l", "app=web", "-o", "wide", "--no-headers"])
        .await?;
    assert_eq!(pods.matches("Running").count(), 2, "{pods}");
    assert_eq!(pods.matches("deployment-node").count(), 2, "{pods}");
    Ok(())
}

#[tokio::test]
async fn the_host_publishes_how_the_aggregator_identifies_people() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await?, "kube-system");
    let published = maps
        .get("extension-apiserver-authentication")
        .await?
        .data
        .unwrap_or_default();
    let check = |key: &str, expected: &str| {
        assert_eq!(published.get(key).map(|it| it.trim()), Some(expected), "{key}");
    };
    check("requestheader-allowed-names", r#"["front-proxy-client"]"#);
    check("requestheader-username-headers", r#"["X-Remote-User"]"#);
    check(
        "requestheader-client-ca-file",
        cluster.pki().front_proxy.certificate().trim(),
    );
    check("client-ca-file", cluster.pki().cluster.certificate().trim());
    Ok(())
}

#[tokio::test]
async fn somebody_is_known_but_may_nothing_and_nobody_is_anonymous() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    let path = "/api/v1/namespaces/default/pods";
    let somebody = cluster
        .raw_client(Some(&cluster.pki().somebody))?
        .get(path)
        .await?;
    expect_status(&somebody, 403)?;
    assert!(String::from_utf8_lossy(somebody.body()).contains(r#"User \"somebody\" cannot list"#));
    let nobody = cluster.raw_client(None)?.get(path).await?;
    expect_status(&nobody, 403)?;
    assert!(String::from_utf8_lossy(nobody.body()).contains("system:anonymous"));
    expect_status(
        &cluster.raw_client(Some(&cluster.pki().admin))?.get(path).await?,
        200,
    )?;
    Ok(())
}
