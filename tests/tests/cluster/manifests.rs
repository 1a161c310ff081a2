//! The manifests of `deploy/`: a real API server accepts them, and they grant exactly the needed rights.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use drydock_tests::cluster::{ControlPlane, NAMESPACE, shared};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use serde_json::Value;
use tokio::sync::OnceCell;

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name)
}

/// Applies the namespace and the rights, once for all tests of this module.
async fn rights_are_applied(cluster: &ControlPlane) -> Result<()> {
    static APPLIED: OnceCell<()> = OnceCell::const_new();
    APPLIED
        .get_or_try_init(async || {
            let (namespace, rbac) = (deploy("namespace.yaml"), deploy("rbac"));
            let (namespace, rbac) = (namespace.display().to_string(), rbac.display().to_string());
            cluster
                .admin()
                .ok(&["apply", "--server-side", "-f", &namespace, "-f", &rbac])
                .await
                .map(drop)
        })
        .await
        .copied()
}

#[tokio::test]
async fn every_manifest_is_accepted_without_a_warning() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    rights_are_applied(cluster).await?;
    // The manifests for cert-manager are left out: its kinds are not installed.
    let [apiserver, controller, etcd] =
        ["apiserver", "controller", "etcd"].map(|name| deploy(name).display().to_string());
    let [service, webhook, rights] = ["service", "webhook", "rbac"].map(|name| {
        deploy("bridge")
            .join(name)
            .with_extension("yaml")
            .display()
            .to_string()
    });
    let arguments = ["apply", "--server-side", "--dry-run=server", "--validate=strict"];
    let output = cluster
        .kubectl(
            &[
                &arguments[..],
                &["-f", &apiserver, "-f", &controller, "-f", &etcd],
                &["-f", &service, "-f", &webhook, "-f", &rights],
            ]
            .concat(),
        )
        .await?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{error}");
    let applied = String::from_utf8_lossy(&output.stdout).lines().count();
    assert_eq!(
        applied, 18,
        "two StatefulSets, Services, Deployments, budgets and APIServices, a ConfigMap, a Role and its binding, a NetworkPolicy; the bridge's Service, webhook and rights"
    );
    Ok(())
}

#[tokio::test]
async fn the_patch_for_the_bridge_adds_flags_and_a_certificate_to_the_controller() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    // The file has a ConfigMap beside the Deployment.
    let manifests = std::fs::read_to_string(deploy("controller/deployment.yaml"))?;
    let deployment = manifests
        .split("\n---\n")
        .find(|text| text.contains("\nkind: Deployment\n"));
    let deployment = deployment.context("a Deployment")?;
    let patch = deploy("bridge/controller-patch.yaml").display().to_string();
    let arguments = [
        "patch",
        "--local",
        "-f",
        "-",
        "--patch-file",
        &patch,
        "-o",
        "json",
    ];
    let output = cluster.admin().run_with_input(&arguments, deployment).await?;
    let patched: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let original: Value = serde_saphyr::from_str(deployment)?;
    let container = |deployment: &Value| deployment["spec"]["template"]["spec"]["containers"][0].clone();
    let flags = |deployment: &Value| -> Vec<String> {
        let arguments = container(deployment)["args"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let arguments = arguments
            .iter()
            .filter_map(|argument| argument.as_str().map(str::to_owned));
        arguments.collect()
    };
    let (before, after) = (flags(&original), flags(&patched));
    assert!(!before.is_empty() && after.starts_with(&before), "{after:?}");
    assert_eq!(
        after.get(before.len()..).unwrap_or_default(),
        [
            "--eviction-bridge",
            "--tls-cert-file=/etc/drydock/serving/tls.crt",
            "--tls-private-key-file=/etc/drydock/serving/tls.key"
        ]
    );
    assert_eq!(container(&patched)["image"], container(&original)["image"]);
    let input = patched.to_string();
    let arguments = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
    ];
    let output = cluster.admin().run_with_input(&arguments, &input).await?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

const SERVER: &str = "drydock-apiserver";
const CONTROLLER: &str = "drydock-controller";

/// Account, verb, resource, namespace, and whether it is allowed.
const RIGHTS: &[(&str, &str, &str, &str, bool)] = &[
    (
        SERVER,
        "get",
        "/configmaps//extension-apiserver-authentication",
        "kube-system",
        true,
    ),
    (
        SERVER,
        "watch",
        "/configmaps//extension-apiserver-authentication",
        "kube-system",
        true,
    ),
    (
        SERVER,
        "create",
        "authorization.k8s.io/subjectaccessreviews",
        "",
        true,
    ),
    (SERVER, "create", "authentication.k8s.io/tokenreviews", "", true),
    (SERVER, "watch", "/namespaces", "", true),
    (SERVER, "list", "apiregistration.k8s.io/apiservices", "", true),
    (SERVER, "get", "/pods", "default", true),
    (SERVER, "list", "/pods", "default", false),
    (SERVER, "list", "/secrets", NAMESPACE, false),
    (SERVER, "delete", "/pods", "default", false),
    (CONTROLLER, "create", "/pods/eviction", "default", true),
    (CONTROLLER, "delete", "/pods", "default", true),
    (CONTROLLER, "patch", "/nodes", "", true),
    (CONTROLLER, "delete", "/nodes", "", false),
    (CONTROLLER, "maintain", "/nodes", "", false),
    (CONTROLLER, "list", "apps/daemonsets", "", false),
    (
        CONTROLLER,
        "coordinate",
        "coordination.k8s.io/evictionrequests",
        "default",
        true,
    ),
    (
        CONTROLLER,
        "intercept",
        "coordination.k8s.io/evictioninterceptors//imperative-eviction.k8s.io",
        "",
        true,
    ),
    (
        CONTROLLER,
        "intercept",
        "coordination.k8s.io/evictioninterceptors//other.example.com",
        "",
        false,
    ),
    (CONTROLLER, "create", "events.k8s.io/events", "default", true),
    (
        CONTROLLER,
        "create",
        "coordination.k8s.io/leases",
        NAMESPACE,
        true,
    ),
    (
        CONTROLLER,
        "update",
        "coordination.k8s.io/leases",
        "kube-system",
        false,
    ),
    (
        CONTROLLER,
        "patch",
        "coordination.k8s.io/evictionrequests/status",
        "default",
        true,
    ),
    (CONTROLLER, "list", "/secrets", "default", false),
];

#[tokio::test]
async fn the_service_accounts_have_exactly_the_needed_rights() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    rights_are_applied(cluster).await?;
    for (account, verb, resource, namespace, expected) in RIGHTS {
        let is_allowed = may(cluster, account, verb, resource, namespace).await?;
        assert_eq!(
            is_allowed, *expected,
            "{account}: {verb} {resource} in {namespace}"
        );
    }
    Ok(())
}

/// Whether an account may do something. `resource` is `group/resource/subresource/name`, each of which may be empty.
async fn may(
    cluster: &ControlPlane,
    account: &str,
    verb: &str,
    resource: &str,
    namespace: &str,
) -> Result<bool> {
    let reviews: Api<SubjectAccessReview> = Api::all(cluster.client().await?);
    let mut parts = resource.split('/').map(|part| Some(part.to_owned()));
    let attributes = ResourceAttributes {
        verb: Some(verb.to_owned()),
        namespace: Some(namespace.to_owned()),
        group: parts.next().flatten(),
        resource: parts.next().flatten(),
        subresource: parts.next().flatten(),
        name: parts.next().flatten(),
        ..ResourceAttributes::default()
    };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{NAMESPACE}:{account}")),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let status = reviews.create(&PostParams::default(), &review).await?.status;
    Ok(status.is_some_and(|status| status.allowed))
}
