//! Nodes, namespaces and pods.

use anyhow::{Context as _, Result};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::node;
use drydock_tests::load::{Call, Response};
use serde_json::{Map, Value, json};

use super::Bench;
use super::calls::{PATIENCE, count, get, send, send_all};

/// The label of all nodes.
pub(crate) const POOL: &str = "drain";

/// What differs between the pods of scenarios.
#[derive(Clone, Copy)]
pub(crate) struct Workload {
    /// The namespace.
    pub(crate) namespace: &'static str,
    /// The prefix of names, and the label `app`.
    pub(crate) app: &'static str,
    /// How many.
    pub(crate) count: u64,
    /// An interceptor that is declared by an annotation, and acts before the eviction API.
    pub(crate) interceptor: Option<&'static str>,
    /// Whether they run on the nodes. Otherwise no scheduler places them, and nothing happens to them.
    pub(crate) is_placed: bool,
}

impl Workload {
    /// The name of a pod.
    pub(crate) fn pod_name(&self, number: u64) -> String {
        format!("{}-{number}", self.app)
    }

    /// The path of its pods.
    pub(crate) fn pods_path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }

    /// A pod with what pods in use have besides: labels of a chart, environment, volumes, probes.
    pub(crate) fn pod_object(&self, number: u64, nodes: u64) -> Value {
        let mut annotations = Map::from_iter([
            ("prometheus.io/scrape".to_owned(), json!("true")),
            ("checksum/config".to_owned(), json!(format!("{number:064x}"))),
        ]);
        if let Some(interceptor) = self.interceptor {
            let key = format!("interceptor.evictionrequest.coordination.k8s.io/priority_{interceptor}");
            annotations.insert(key, json!("20000"));
        }
        let environment: Vec<_> = (0..8)
            .map(|index| json!({ "name": format!("SETTING_{index}"), "value": format!("value-{index}") }))
            .collect();
        let (placement, chosen) = if self.is_placed {
            ("nodeName", node_name(number % nodes.max(1)))
        } else {
            ("schedulerName", "none".to_owned())
        };
        let spec = json!({
            placement: chosen,
            "containers": [{
                "name": "main", "image": "registry.example.com/shop/web:1.2.3", "env": environment,
                "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
                "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 } },
                "volumeMounts": [{ "name": "scratch", "mountPath": "/tmp" }],
            }],
            "volumes": [{ "name": "scratch", "emptyDir": {} }],
        });
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.pod_name(number),
                "labels": {
                    "app": self.app,
                    "app.kubernetes.io/name": self.app,
                    "app.kubernetes.io/instance": format!("{}-{}", self.app, number % 97),
                    "app.kubernetes.io/component": "worker",
                    "pod-template-hash": format!("{:08x}", number % 1013),
                },
                "annotations": annotations,
            },
            "spec": spec,
        })
    }
}

/// The name of a node.
pub(crate) fn node_name(number: u64) -> String {
    format!("drain-{number:04}")
}

impl Bench<'_> {
    /// Creates the nodes and waits until they take pods.
    pub(crate) async fn create_nodes(&self) -> Result<()> {
        let create = |number| {
            let node = node(&node_name(number), &[("pool", POOL)]);
            Call::post("/api/v1/nodes", json!(node).to_string().into())
        };
        send_all(&self.host, self.settings.nodes, create, |_, _| Ok(())).await?;
        eventually("all nodes to be ready", PATIENCE, async || {
            let nodes = get(&self.host, &format!("/api/v1/nodes?labelSelector=pool%3D{POOL}")).await?;
            let nodes = nodes.get("items").and_then(Value::as_array).context("a list")?;
            let is_ready = |node: &Value| {
                let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
                node.pointer("/spec/taints").is_none()
                    && conditions.is_some_and(|conditions| {
                        let mut conditions = conditions.iter();
                        conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
                    })
            };
            Ok(nodes.iter().all(is_ready).then_some(()))
        })
        .await
    }

    /// Creates the namespace and waits until it takes pods.
    pub(crate) async fn create_namespace(&self, name: &str) -> Result<()> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        send(
            &self.host,
            Call::post("/api/v1/namespaces", namespace.to_string().into()),
        )
        .await?;
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        eventually("the service account of the namespace", PATIENCE, async || {
            Ok(get(&self.host, &account).await.ok().map(drop))
        })
        .await
    }

    /// Creates the pods, and waits until they run. Returns their names and UIDs.
    pub(crate) async fn create_pods(&self, workload: Workload) -> Result<Vec<(String, String)>> {
        let path = workload.pods_path();
        let nodes = self.settings.nodes;
        let create = |number| {
            Call::post(
                path.clone(),
                workload.pod_object(number, nodes).to_string().into(),
            )
        };
        let read = |number, response: &Response| {
            let created: Value = serde_json::from_slice(&response.start).context("parse the pod")?;
            let uid = created.pointer("/metadata/uid").and_then(Value::as_str);
            Ok((
                workload.pod_name(number),
                uid.context("a pod has a UID")?.to_owned(),
            ))
        };
        let created = send_all(&self.host, workload.count, create, read).await?;
        if workload.is_placed {
            let pending = format!("{path}?fieldSelector=status.phase%3DPending");
            eventually("all pods to run", PATIENCE, async || {
                Ok((count(&self.host, &pending).await? == 0).then_some(()))
            })
            .await?;
        }
        Ok(created)
    }

    /// Deletes the requests of the namespace.
    pub(crate) async fn delete_requests(&self, namespace: &str) -> Result<()> {
        let path = drydock_tests::objects::requests_of(namespace);
        send(&self.ours, Call::delete(path)).await?;
        Ok(())
    }
}
