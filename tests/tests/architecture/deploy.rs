//! What the manifests say about the controller's way to drydock-apiserver, and when they restart the server.

use std::fs;

use serde_json::Value;

use super::root;

/// A member of an object, which must be there.
fn at<'a>(object: &'a Value, pointer: &str) -> &'a Value {
    object.pointer(pointer).expect(pointer)
}

#[test]
fn the_controller_reaches_the_service_with_files_that_are_mounted() {
    let path = root().join("deploy/controller/deployment.yaml");
    let text = fs::read_to_string(path).expect("the manifest");
    let documents: Vec<Value> = text
        .split("\n---\n")
        .map(|document| serde_saphyr::from_str(document).expect("YAML"))
        .collect();
    let [config, deployment] = documents.as_slice() else {
        panic!("a ConfigMap and a Deployment: {documents:?}");
    };
    let pod = at(deployment, "/spec/template/spec");
    let mounted = |volume: &str| {
        let mounts = at(pod, "/containers/0/volumeMounts").as_array().expect("a list");
        let mount = mounts.iter().find(|mount| mount["name"] == volume);
        mount.expect(volume)["mountPath"]
            .as_str()
            .expect("a path")
            .to_owned()
    };
    let arguments = at(pod, "/containers/0/args").as_array().expect("a list");
    let expected = format!(
        "--apiserver-kubeconfig={}/apiserver.kubeconfig",
        mounted("config")
    );
    assert!(arguments.contains(&expected.clone().into()), "{expected}");
    assert_eq!(at(pod, "/volumes/0/configMap/name"), at(config, "/metadata/name"));

    let kubeconfig = at(config, "/data/apiserver.kubeconfig").as_str().expect("text");
    let kubeconfig: Value = serde_saphyr::from_str(kubeconfig).expect("YAML");
    let cluster = at(&kubeconfig, "/clusters/0/cluster");
    let service = fs::read_to_string(root().join("deploy/apiserver/service.yaml")).expect("the Service");
    let service: Value = serde_saphyr::from_str(&service).expect("YAML");
    let (name, namespace) = (
        at(&service, "/metadata/name"),
        at(&service, "/metadata/namespace"),
    );
    let url = format!(
        "https://{}.{}.svc",
        name.as_str().expect("text"),
        namespace.as_str().expect("text")
    );
    assert_eq!(cluster["server"], url);
    assert_eq!(at(&service, "/spec/ports/0/port"), 443);
    assert_eq!(
        cluster["certificate-authority"],
        format!("{}/ca.crt", mounted("authority"))
    );
    let secret = at(pod, "/volumes/1/secret");
    assert_eq!(
        secret["items"],
        serde_json::json!([{"key": "ca.crt", "path": "ca.crt"}])
    );
    assert_eq!(
        at(&kubeconfig, "/users/0/user/tokenFile"),
        "/var/run/secrets/kubernetes.io/serviceaccount/token"
    );
}

/// An outage of a key service is no reason to restart a server, which could read nothing then, nor to take the whole API away
/// from the cluster.
#[test]
fn probes_leave_the_key_services_out() {
    for manifest in ["deploy/apiserver/statefulset.yaml", "deploy/etcd/apiserver.yaml"] {
        let text = fs::read_to_string(root().join(manifest)).expect("the manifest");
        let documents = text
            .split("\n---\n")
            .map(|document| serde_saphyr::from_str::<Value>(document).expect("YAML"));
        let container = "/spec/template/spec/containers/0";
        let workloads: Vec<Value> = documents
            .filter(|document| document.pointer(container).is_some())
            .collect();
        assert_eq!(workloads.len(), 1, "{manifest}");
        for (probe, path) in [
            ("startupProbe", "/livez?exclude=kms-providers"),
            ("livenessProbe", "/livez?exclude=kms-providers"),
            ("readinessProbe", "/readyz?exclude=kms-providers"),
        ] {
            let found = at(&workloads[0], &format!("{container}/{probe}/httpGet/path"));
            assert_eq!(found, path, "{manifest}, {probe}");
        }
    }
}
