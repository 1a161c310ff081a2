//! Does a real API server accept the manifests of `deploy/`, and do they grant what is needed?

use std::path::{Path, PathBuf};

use anyhow::Result;
use drydock_tests::cluster::{ControlPlane, NAMESPACE, shared};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, PostParams};
use tokio::sync::OnceCell;

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name)
}

/// The namespace and the rights, for all tests of this module: what follows needs them to exist.
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
    // cert-manager's kinds are not this cluster's.
    let (apiserver, controller) = (deploy("apiserver"), deploy("controller"));
    let (apiserver, controller) = (apiserver.display().to_string(), controller.display().to_string());
    let arguments = ["apply", "--server-side", "--dry-run=server", "--validate=strict"];
    let output = cluster
        .kubectl(&[&arguments[..], &["-f", &apiserver, "-f", &controller]].concat())
        .await?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    let applied = String::from_utf8_lossy(&output.stdout).lines().count();
    assert_eq!(
        applied, 4,
        "a StatefulSet, a Service, an APIService and a Deployment"
    );
    Ok(())
}

#[tokio::test]
async fn the_accounts_may_do_what_their_programs_do_and_no_more() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    rights_are_applied(cluster).await?;
    let (server, controller) = ("drydock-apiserver", "drydock-controller");
    for (account, verb, resource, namespace, expected) in [
        (
            server,
            "get",
            "/configmaps//extension-apiserver-authentication",
            "kube-system",
            true,
        ),
        (
            server,
            "watch",
            "/configmaps//extension-apiserver-authentication",
            "kube-system",
            true,
        ),
        (
            server,
            "create",
            "authorization.k8s.io/subjectaccessreviews",
            "",
            true,
        ),
        (server, "create", "authentication.k8s.io/tokenreviews", "", true),
        (server, "watch", "/namespaces", "", true),
        (
            server,
            "watch",
            "admissionregistration.k8s.io/validatingadmissionpolicies",
            "",
            true,
        ),
        (server, "watch", "apiregistration.k8s.io/apiservices", "", true),
        (server, "list", "/secrets", NAMESPACE, false),
        (server, "delete", "/pods", "default", false),
        (controller, "create", "/pods/eviction", "default", true),
        (controller, "delete", "/pods", "default", true),
        (controller, "patch", "/nodes", "", true),
        (controller, "list", "apps/daemonsets", "", true),
        (controller, "create", "events.k8s.io/events", "default", true),
        (
            controller,
            "create",
            "coordination.k8s.io/leases",
            NAMESPACE,
            true,
        ),
        (
            controller,
            "update",
            "coordination.k8s.io/leases",
            "kube-system",
            false,
        ),
        (
            controller,
            "patch",
            "coordination.k8s.io/evictionrequests/status",
            "default",
            true,
        ),
        (controller, "list", "/secrets", "default", false),
    ] {
        let is_allowed = may(cluster, account, verb, resource, namespace).await?;
        assert_eq!(
            is_allowed, expected,
            "{account}: {verb} {resource} in {namespace}"
        );
    }
    Ok(())
}

/// The host's answer to whether an account may do something. `resource` is
/// `group/resource/subresource/name`, each of which may be empty.
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
