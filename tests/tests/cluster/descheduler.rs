//! The descheduler of Kubernetes, unchanged, and the eviction bridge: what is in progress counts against its limits, also after
//! a restart, and nothing is evicted twice.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::eventually;
use drydock_tests::cluster;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::actor::Actor;
use crate::bridge::{INTERCEPTOR, REQUESTER, bridged_namespace};
use crate::stage::{PATIENCE, Stage, is_true, requests_of, together};

const IN_PROGRESS: &str = "descheduler.alpha.kubernetes.io/eviction-in-progress";
const EVICT_ONLY: &str = "descheduler.alpha.kubernetes.io/request-evict-only";
const REPLICAS: usize = 4;
/// From which age on the first strategy evicts pods.
const OLD_SECONDS: i64 = 1;

/// A strategy of the descheduler, with its arguments.
#[derive(Clone, Copy)]
enum Strategy {
    /// Every pod is too old.
    Age,
    /// The taints of the nodes are not tolerated.
    Taints,
}

/// A namespace, its pool of nodes of the same name, and a Deployment of intercepted pods there.
struct Scene<'a> {
    stage: &'a Stage,
    host: Caller,
    name: String,
}

impl<'a> Scene<'a> {
    /// Four pods on two nodes with a taint that none tolerates.
    async fn new(stage: &'a Stage, name: &str) -> Result<Self> {
        let name = bridged_namespace(stage, name).await?;
        for suffix in ["a", "b"] {
            let node = format!("{name}-{suffix}");
            stage.control_plane().add_node(&node, &[("pool", &name)]).await?;
        }
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": name },
            "spec": {
                "replicas": REPLICAS,
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" }, "annotations": {
                        "evictionrequest.coordination.k8s.io/interceptors": INTERCEPTOR, EVICT_ONLY: "true",
                    } },
                    "spec": {
                        "nodeSelector": { "pool": name }, "terminationGracePeriodSeconds": 1,
                        "containers": [{ "name": "main", "image": "main" }],
                    },
                },
            },
        });
        let kubectl = stage.kubectl();
        kubectl.apply(&deployment.to_string()).await?;
        kubectl
            .ok(&[
                "rollout",
                "status",
                "deployment/web",
                "-n",
                &name,
                "--timeout=50s",
            ])
            .await?;
        let scene = Self {
            stage,
            host: stage.host()?,
            name,
        };
        scene.pods_are_old().await?;
        let pool = format!("pool={}", scene.name);
        kubectl
            .ok(&["taint", "nodes", "-l", &pool, "old=yes:NoSchedule"])
            .await?;
        Ok(scene)
    }

    /// Waits until every pod is too old for its strategy.
    async fn pods_are_old(&self) -> Result<()> {
        eventually("the pods to be old", PATIENCE, async || {
            let list = self
                .host
                .get(&format!("/api/v1/namespaces/{}/pods", self.name))
                .await?;
            let now: Timestamp = list.time()?.parse()?;
            let list = list.expect(200)?;
            let items = list["items"].as_array().context("items")?;
            let mut ages = Vec::new();
            for item in items {
                let created = item["metadata"]["creationTimestamp"].as_str().context("a time")?;
                ages.push(now.duration_since(created.parse()?).as_secs());
            }
            Ok((ages.len() == REPLICAS && ages.iter().all(|age| *age > OLD_SECONDS + 1)).then_some(()))
        })
        .await
    }

    /// One pass of a newly started descheduler. Returns its log.
    async fn pass(&self, strategy: Strategy, limits: &Value, gate: bool) -> Result<String> {
        let namespaces = json!({ "include": [self.name] });
        let (plugin, arguments) = match strategy {
            Strategy::Age => (
                "PodLifeTime",
                json!({ "maxPodLifeTimeSeconds": OLD_SECONDS, "namespaces": namespaces }),
            ),
            Strategy::Taints => (
                "RemovePodsViolatingNodeTaints",
                json!({ "namespaces": namespaces }),
            ),
        };
        let mut policy = json!({
            "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerPolicy",
            "nodeSelector": format!("pool={}", self.name),
            "profiles": [{
                "name": "suite",
                "pluginConfig": [
                    { "name": "DefaultEvictor", "args": { "nodeFit": false } },
                    { "name": plugin, "args": arguments },
                ],
                "plugins": { "deschedule": { "enabled": [plugin] } },
            }],
        });
        for (name, limit) in limits.as_object().into_iter().flatten() {
            policy[name] = limit.clone();
        }
        let folder = self.stage.control_plane().folder();
        let policy = folder.write(&format!("{}-policy.yaml", self.name), policy.to_string())?;
        let output = Command::new(cluster::descheduler().await?)
            .arg("--kubeconfig")
            .arg(self.stage.control_plane().admin_kubeconfig())
            .arg("--policy-config-file")
            .arg(policy)
            .args(["--descheduling-interval", "0", "--secure-port", "0", "-v", "3"])
            .arg(format!("--feature-gates=EvictionsInBackground={gate}"))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = timeout(PATIENCE, output)
            .await
            .context("the descheduler did not end")??;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{log}");
        Ok(log)
    }

    /// The requests that have not ended, by the UID of their pod.
    async fn live(&self) -> Result<BTreeSet<String>> {
        let list = self.host.get(&requests_of(&self.name)).await?.expect(200)?;
        let items = list["items"].as_array().context("items")?;
        Ok(items
            .iter()
            .filter(|item| !is_true(item, "Canceled") && !is_true(item, "Evicted"))
            .filter(|item| item["spec"]["requesters"] == json!([{ "name": REQUESTER }]))
            .filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned))
            .collect())
    }

    /// The pods, and those of them whose eviction is in progress, by UID.
    async fn pods(&self) -> Result<[BTreeSet<String>; 2]> {
        let list = self
            .host
            .get(&format!("/api/v1/namespaces/{}/pods", self.name))
            .await?
            .expect(200)?;
        let items = list["items"].as_array().context("items")?;
        let uids = |is_wanted: &dyn Fn(&Value) -> bool| {
            let items = items.iter().filter(|item| is_wanted(item));
            items
                .filter_map(|item| item["metadata"]["uid"].as_str().map(str::to_owned))
                .collect()
        };
        Ok([
            uids(&|_| true),
            uids(&|pod| pod["metadata"]["annotations"][IN_PROGRESS].is_string()),
        ])
    }

    /// Waits until so many evictions are in progress, each of them annotated. Returns their pods.
    async fn in_progress(&self, count: usize) -> Result<BTreeSet<String>> {
        eventually(&format!("{count} evictions in progress"), PATIENCE, async || {
            let (live, [_, annotated]) = (self.live().await?, self.pods().await?);
            ensure!(
                live == annotated && live.len() == count,
                "{live:?}, {annotated:?}"
            );
            Ok(Some(live))
        })
        .await
    }

    /// The UIDs of the pods of each node.
    async fn pods_by_node(&self) -> Result<BTreeMap<String, BTreeSet<String>>> {
        let list = self
            .host
            .get(&format!("/api/v1/namespaces/{}/pods", self.name))
            .await?
            .expect(200)?;
        let mut nodes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for item in list["items"].as_array().context("items")? {
            let node = item["spec"]["nodeName"].as_str().context("a node")?;
            let uid = item["metadata"]["uid"].as_str().context("a UID")?;
            nodes.entry(node.to_owned()).or_default().insert(uid.to_owned());
        }
        Ok(nodes)
    }

    /// The nodes with a pod whose UID is wanted.
    async fn nodes(&self, is_wanted: impl Fn(&String) -> bool) -> Result<BTreeSet<String>> {
        let nodes = self.pods_by_node().await?.into_iter();
        Ok(nodes
            .filter(|(_, pods)| pods.iter().any(&is_wanted))
            .map(|(node, _)| node)
            .collect())
    }

    fn request(&self, uid: &str) -> String {
        format!("{}/{uid}", requests_of(&self.name))
    }

    async fn remove(self) -> Result<()> {
        let kubectl = self.stage.kubectl();
        kubectl
            .ok(&["delete", "deployment", "web", "-n", &self.name])
            .await?;
        kubectl
            .ok(&["delete", "nodes", "-l", &format!("pool={}", self.name)])
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn limits_of_the_descheduler_hold_across_restarts() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let scene = Scene::new(&stage, "descheduler").await?;
    let [all, none] = scene.pods().await?;
    ensure!(none.is_empty(), "{none:?}");
    // In all, also the evictions of other tests count.
    let limits = json!({ "maxNoOfPodsToEvictPerNamespace": 2 });
    let log = scene.pass(Strategy::Age, &limits, true).await?;
    ensure!(log.contains("Eviction in background assumed"), "{log}");
    let first = scene.in_progress(2).await?;

    // A descheduler that was restarted finds them, asks for none again, and has no place for others.
    for (strategy, limits) in [
        (Strategy::Age, limits.clone()),
        (Strategy::Taints, limits.clone()),
        (Strategy::Taints, json!({ "maxNoOfPodsToEvictTotal": 2 })),
    ] {
        let log = scene.pass(strategy, &limits, true).await?;
        ensure!(!log.contains("Eviction in background assumed"), "{log}");
        assert_eq!(scene.in_progress(2).await?, first);
    }

    // A request that ends without its pod frees its place, and what the user wrote stays.
    let ended = first.first().context("a request")?;
    let withdrawn = json!({ "spec": { "requesters": [] } });
    scene
        .host
        .patch(&scene.request(ended), MERGE_PATCH, &withdrawn)
        .await?
        .expect(200)?;
    let rest = scene.in_progress(1).await?;
    scene.pass(Strategy::Taints, &limits, true).await?;
    let second = scene.in_progress(2).await?;
    ensure!(second.is_superset(&rest), "{second:?} without {rest:?}");

    // A pod whose interceptor is done leaves once, and frees its place.
    let leaving = rest.first().context("a request")?;
    let actor = Actor {
        caller: stage.host()?,
        name: INTERCEPTOR,
        path: scene.request(leaving),
    };
    actor.begin("moving", &json!({})).await?;
    actor.complete().await?;
    eventually("the pod to be gone", PATIENCE, async || {
        Ok((!scene.pods().await?[0].contains(leaving)).then_some(()))
    })
    .await?;
    let left = scene.pods().await?[0].clone();
    assert_eq!(
        all.difference(&left).collect::<Vec<_>>(),
        [leaving],
        "evicted twice"
    );
    scene.pass(Strategy::Age, &limits, true).await?;
    scene.in_progress(2).await?;
    scene.remove().await
}

#[tokio::test]
async fn the_limit_of_the_descheduler_per_node_counts_what_is_in_progress() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let scene = Scene::new(&stage, "descheduler-nodes").await?;
    let limits = json!({ "maxNoOfPodsToEvictPerNode": 1 });
    scene.pass(Strategy::Age, &limits, true).await?;
    // The scheduler may have put all pods on one of the nodes.
    let nodes = scene.nodes(|_| true).await?;
    let first = scene.in_progress(nodes.len()).await?;
    assert_eq!(
        scene.nodes(|uid| first.contains(uid)).await?,
        nodes,
        "one on each node"
    );

    // Also after a restart, and by another strategy, nothing is added.
    for strategy in [Strategy::Age, Strategy::Taints] {
        scene.pass(strategy, &limits, true).await?;
        assert_eq!(scene.in_progress(nodes.len()).await?, first);
    }
    let more = json!({ "maxNoOfPodsToEvictPerNode": 2 });
    scene.pass(Strategy::Taints, &more, true).await?;
    let count: usize = scene
        .pods_by_node()
        .await?
        .values()
        .map(|pods| pods.len().min(2))
        .sum();
    ensure!(scene.in_progress(count).await?.is_superset(&first));
    scene.remove().await
}

#[tokio::test]
async fn without_the_feature_gate_the_descheduler_evicts_no_intercepted_pod_either() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let scene = Scene::new(&stage, "descheduler-plain").await?;
    let [all, _] = scene.pods().await?;
    let limits = json!({ "maxNoOfPodsToEvictPerNamespace": 2 });
    for strategy in [Strategy::Age, Strategy::Taints] {
        let log = scene.pass(strategy, &limits, false).await?;
        ensure!(log.contains("Eviction triggered evacuation"), "{log}");
        // It takes the answers for failures, which its limits do not count: every pod is requested to leave, once.
        let live = scene.in_progress(REPLICAS).await?;
        assert_eq!([live, scene.pods().await?[0].clone()], [all.clone(), all.clone()]);
    }
    scene.remove().await
}
