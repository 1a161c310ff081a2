//! What the manifests say about the controller's way to drydock-apiserver, when they restart the server, and who reaches etcd.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use super::root;

/// A member of an object, which must be there.
fn at<'a>(object: &'a Value, pointer: &str) -> &'a Value {
    object.pointer(pointer).expect(pointer)
}

/// The documents of a manifest.
fn documents(manifest: &str) -> Vec<Value> {
    let text = fs::read_to_string(root().join(manifest)).expect(manifest);
    text.split("\n---\n")
        .map(|document| serde_saphyr::from_str(document).expect(manifest))
        .collect()
}

/// The labels by which a pod of a manifest is known, and its ports by name.
fn pod_of(manifest: &str) -> (Value, Value) {
    let documents = documents(manifest);
    let workload = documents
        .iter()
        .find(|document| document.pointer("/spec/template").is_some());
    let workload = workload.expect(manifest);
    let ports = at(workload, "/spec/template/spec/containers/0/ports");
    let ports = ports.as_array().expect("a list").iter();
    let by_name = ports.map(|port| {
        (
            port["name"].as_str().expect("a name").to_owned(),
            port["containerPort"].clone(),
        )
    });
    (at(workload, "/spec/selector").clone(), by_name.collect())
}

/// Each pair of a peer and a port that rules of a policy name.
fn allowed(rules: &Value, peers: &str) -> BTreeSet<(String, u64)> {
    let mut found = BTreeSet::new();
    for rule in rules.as_array().expect("a list") {
        let peers = rule[peers]
            .as_array()
            .map_or_else(|| vec![Value::Null], Clone::clone);
        for port in rule["ports"].as_array().expect("ports") {
            for peer in &peers {
                found.insert((peer.to_string(), port["port"].as_u64().expect("a number")));
            }
        }
    }
    found
}

#[test]
fn only_servers_and_members_reach_the_client_port_of_etcd_and_only_members_the_port_of_members() {
    let policies = documents("deploy/etcd/network.yaml");
    let [policy] = policies.as_slice() else {
        panic!("one policy: {policies:?}");
    };
    let (member, ports) = pod_of("deploy/etcd/etcd.yaml");
    let (server, _) = pod_of("deploy/etcd/apiserver.yaml");
    let spec = at(policy, "/spec");
    assert_eq!(spec["podSelector"], member);
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
    let workload = &documents("deploy/etcd/etcd.yaml")[0];
    assert_eq!(
        at(policy, "/metadata/namespace"),
        at(workload, "/metadata/namespace")
    );

    let port = |name: &str| ports[name].as_u64().expect(name);
    let pods = |selector: &Value| json!({ "podSelector": selector }).to_string();
    let monitoring = json!({ "kubernetes.io/metadata.name": "monitoring" });
    let monitoring = json!({ "namespaceSelector": { "matchLabels": monitoring } }).to_string();
    let expected = [
        (pods(&server), port("client")),
        (pods(&member), port("client")),
        (pods(&member), port("peer")),
        (monitoring, port("metrics")),
    ];
    assert_eq!(allowed(&spec["ingress"], "from"), expected.into());
    let expected = [
        (pods(&member), port("client")),
        (pods(&member), port("peer")),
        (Value::Null.to_string(), 53),
    ];
    assert_eq!(allowed(&spec["egress"], "to"), expected.into());
}

#[test]
fn the_controller_reaches_the_service_with_files_that_are_mounted() {
    let manifest = documents("deploy/controller/deployment.yaml");
    let [config, deployment] = manifest.as_slice() else {
        panic!("a ConfigMap and a Deployment: {manifest:?}");
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
    let service = &documents("deploy/apiserver/service.yaml")[0];
    let (name, namespace) = (at(service, "/metadata/name"), at(service, "/metadata/namespace"));
    let url = format!(
        "https://{}.{}.svc",
        name.as_str().expect("text"),
        namespace.as_str().expect("text")
    );
    assert_eq!(cluster["server"], url);
    assert_eq!(at(service, "/spec/ports/0/port"), 443);
    assert_eq!(
        cluster["certificate-authority"],
        format!("{}/ca.crt", mounted("authority"))
    );
    let secret = at(pod, "/volumes/1/secret");
    assert_eq!(secret["items"], json!([{"key": "ca.crt", "path": "ca.crt"}]));
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
        let container = "/spec/template/spec/containers/0";
        let workloads: Vec<Value> = documents(manifest)
            .into_iter()
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
