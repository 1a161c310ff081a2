//! The control plane of the suites behaves as a cluster.

use std::time::Duration;

use anyhow::Result;
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Component, ControlPlane, Options, shared};
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
async fn the_front_proxy_settings_are_published() -> Result<()> {
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
async fn a_killed_component_comes_back_with_its_data() -> Result<()> {
    if shared().await?.is_none() {
        return Ok(());
    }
    // A control plane of its own, since other tests need the components.
    let cluster = ControlPlane::start(Options::default()).await?;
    cluster.admin().ok(&["create", "namespace", "before"]).await?;
    for component in [Component::ApiServer, Component::Etcd] {
        cluster.kill_component(component);
    }
    assert!(cluster.raw_client(None)?.get("/readyz").await.is_err());
    for component in [Component::Etcd, Component::ApiServer] {
        cluster.start_component(component).await?;
    }
    cluster.admin().ok(&["get", "namespace", "before"]).await?;
    let folder = cluster.folder().path().to_owned();
    cluster.shutdown();
    assert!(!folder.exists());
    Ok(())
}
