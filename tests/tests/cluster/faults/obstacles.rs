//! What looks like progress and is none: pods that come back, and requests that stand in the way. On the shared control
//! plane, since nothing is stopped.

use std::time::Duration;

use anyhow::{Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::{POLL_INTERVAL, eventually};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{LONG, rounds};
use crate::stage::{
    PATIENCE, ROOT, Stage, eviction_request, idle_maintenance, is_true, requests_of, text, together,
};

/// How long the controller of the test takes to create its pod again: less than a node takes to count as drained.
const RETURN_AFTER: Duration = Duration::from_secs(6);

fn pod(node: &str, more: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": "main" }],
        },
    });
    pod["metadata"] = more.clone();
    pod
}

async fn start_drain(stage: &Stage, node: &str) -> Result<String> {
    let mut maintenance = idle_maintenance(node, node);
    maintenance["spec"]["stage"] = json!("Drain");
    let path = format!("{ROOT}/nodemaintenances");
    stage.host()?.post(&path, &maintenance).await?.expect(201)?;
    Ok(format!("{path}/{node}"))
}

async fn finish(stage: &Stage, maintenances: &[&str]) -> Result<()> {
    for name in maintenances {
        stage
            .kubectl()
            .ok(&["delete", "nm", name, "--timeout=50s"])
            .await?;
    }
    Ok(())
}

fn blockers(maintenance: &Value, reason: &str) -> Vec<String> {
    let blockers = maintenance["status"]["blockers"].as_array().into_iter().flatten();
    blockers
        .filter(|it| it["reason"] == reason)
        .filter_map(|it| it["message"].as_str().map(str::to_owned))
        .collect()
}

/// A controller that binds its pod to a node, as controllers of daemons do that know no taints: it creates the pod again
/// some seconds after it is gone, once.
struct Agent {
    host: Caller,
    pods: String,
    pod: Value,
    gone_since: Option<Instant>,
    returns: usize,
}

impl Agent {
    async fn start(stage: &Stage, namespace: &str, node: &str) -> Result<Self> {
        let host = stage.host()?;
        let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
        let map = json!({ "metadata": { "name": "agent" } });
        let owner = host.post(&maps, &map).await?.expect(201)?;
        let reference = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "agent", "uid": owner["metadata"]["uid"], "controller": true,
        });
        let agent = Self {
            host,
            pods: format!("/api/v1/namespaces/{namespace}/pods"),
            pod: pod(node, &json!({ "name": "agent", "ownerReferences": [reference] })),
            gone_since: None,
            returns: 0,
        };
        agent.host.post(&agent.pods, &agent.pod).await?.expect(201)?;
        Ok(agent)
    }

    /// Whether its pod is there. Creates it again when it is due.
    async fn tend(&mut self) -> Result<bool> {
        let found = self.host.get(&format!("{}/agent", self.pods)).await?;
        if found.status == 200 {
            self.gone_since = None;
            return Ok(true);
        }
        let gone_since = *self.gone_since.get_or_insert_with(Instant::now);
        if self.returns == 0 && gone_since.elapsed() >= RETURN_AFTER {
            self.host.post(&self.pods, &self.pod).await?.expect(201)?;
            self.returns += 1;
        }
        Ok(false)
    }
}

/// A Deployment whose pods tolerate everything and name the node.
async fn stubborn_deployment(stage: &Stage, namespace: &str, node: &str) -> Result<()> {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "stubborn", "namespace": namespace },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": "stubborn" } },
            "template": {
                "metadata": { "labels": { "app": "stubborn" } },
                "spec": {
                    "nodeSelector": { "kubernetes.io/hostname": node },
                    "tolerations": [{ "operator": "Exists" }],
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{ "name": "main", "image": "main" }],
                },
            },
        },
    });
    let kubectl = stage.kubectl();
    kubectl.apply(&deployment.to_string()).await?;
    let arguments = [
        "rollout",
        "status",
        "deployment/stubborn",
        "-n",
        namespace,
        "--timeout=55s",
    ];
    kubectl.ok(&arguments).await?;
    Ok(())
}

#[tokio::test]
async fn node_whose_pods_come_back_is_not_drained_and_evicts_them_at_a_bounded_rate() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("comes-back").await?;
    let (with_agent, with_deployment) = ("comes-back-agent", "comes-back-deployment");
    for node in [with_agent, with_deployment] {
        stage.control_plane().add_node(node, &[]).await?;
    }
    stubborn_deployment(&stage, &namespace, with_deployment).await?;
    let mut agent = Agent::start(&stage, &namespace, with_agent).await?;
    let maintenances = [
        start_drain(&stage, with_agent).await?,
        start_drain(&stage, with_deployment).await?,
    ];
    let host = stage.host()?;

    // Neither is drained while pods come back, not even between two of them.
    let started = Instant::now();
    let mut is_named = false;
    while !(is_named && agent.returns == 1) {
        ensure!(
            started.elapsed() < PATIENCE * 2,
            "named: {is_named}, {} returns",
            agent.returns
        );
        for path in &maintenances {
            let maintenance = host.get(path).await?.expect(200)?;
            ensure!(!is_true(&maintenance, "Drained"), "{}", maintenance["status"]);
            let named = blockers(&maintenance, "ComesBack");
            is_named |= named
                .iter()
                .any(|message| message.contains(&format!("{namespace}/stubborn")));
        }
        agent.tend().await?;
        sleep(POLL_INTERVAL).await;
    }
    let requests = host.get(&requests_of(&namespace)).await?.expect(200)?;
    let targets = requests["items"].as_array().into_iter().flatten();
    let lives = targets
        .filter(|it| {
            it["spec"]["target"]["pod"]["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("stubborn-"))
        })
        .count();
    ensure!(
        (3..=12).contains(&lives),
        "{lives} pods of the Deployment were requested to leave"
    );

    // When their controllers give up, both are.
    let arguments = ["scale", "deployment/stubborn", "--replicas=0", "-n", &namespace];
    stage.kubectl().ok(&arguments).await?;
    eventually("both nodes to be drained", PATIENCE * 2, async || {
        let is_there = agent.tend().await?;
        for path in &maintenances {
            let maintenance = host.get(path).await?.expect(200)?;
            ensure!(is_true(&maintenance, "Drained"), "{}", maintenance["status"]);
        }
        Ok((!is_there).then_some(()))
    })
    .await?;
    finish(&stage, &[with_agent, with_deployment]).await
}

/// The path and the UID of a new pod.
async fn new_pod(stage: &Stage, namespace: &str, node: &str, name: &str) -> Result<(String, String)> {
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let created = stage
        .host()?
        .post(&pods, &pod(node, &json!({ "name": name })))
        .await?
        .expect(201)?;
    Ok((format!("{pods}/{name}"), text(&created["metadata"]["uid"])?))
}

#[tokio::test]
async fn requests_that_stand_in_the_way_are_replaced_or_named() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let node = "obstructed";
    let namespace = stage.namespace(node).await?;
    stage.control_plane().add_node(node, &[]).await?;
    let host = stage.host()?;
    let requests = requests_of(&namespace);
    let (mistaken, mistaken_uid) = new_pod(&stage, &namespace, node, "mistaken").await?;
    let (held, held_uid) = new_pod(&stage, &namespace, node, "held").await?;
    // Somebody who may delete the pod `other` has requested it under the UID of the pod `mistaken`.
    stage.pod(&namespace, "other").await?;
    host.post(&requests, &eviction_request(&namespace, "other", &mistaken_uid))
        .await?
        .expect(201)?;
    // The request of the pod `held` is being deleted, and somebody's finalizer keeps it.
    let mut request = eviction_request(&namespace, "held", &held_uid);
    request["metadata"]["finalizers"] = json!(["example.com/hold"]);
    // Its pod must not leave before: nobody acts for this interceptor.
    let annotate = json!({ "metadata": { "annotations": {
        "interceptor.evictionrequest.coordination.k8s.io/priority_guard.example.com": "20000",
    } } });
    host.patch(&held, MERGE_PATCH, &annotate).await?.expect(200)?;
    host.post(&requests, &request).await?.expect(201)?;
    let item = format!("{requests}/{held_uid}");
    host.delete(&item).await?.expect(200)?;

    let maintenance = start_drain(&stage, node).await?;
    eventually("the pod of the mistaken request to leave", PATIENCE, async || {
        Ok((host.get(&mistaken).await?.status == 404).then_some(()))
    })
    .await?;
    let replaced = host
        .get(&format!("{requests}/{mistaken_uid}"))
        .await?
        .expect(200)?;
    ensure!(
        replaced["spec"]["target"]["pod"]["name"] == "mistaken",
        "{replaced}"
    );
    host.get(&format!("/api/v1/namespaces/{namespace}/pods/other"))
        .await?
        .expect(200)?;
    if rounds()? >= LONG {
        eventually("the finalizer to be named", PATIENCE * 2, async || {
            let maintenance = host.get(&maintenance).await?.expect(200)?;
            let named = blockers(&maintenance, "RequestObstructed");
            Ok(named
                .iter()
                .any(|message| message.contains("example.com/hold"))
                .then_some(()))
        })
        .await?;
    }
    let current = host.get(&maintenance).await?.expect(200)?;
    ensure!(!is_true(&current, "Drained"), "{current}");
    host.get(&held).await?.expect(200)?;
    // Without the finalizer the request goes, and a new one takes its place.
    let before = host.get(&item).await?.expect(200)?["metadata"]["uid"].clone();
    let free = json!({ "metadata": { "finalizers": null } });
    host.patch(&item, MERGE_PATCH, &free).await?.expect(200)?;
    eventually("a new request", PATIENCE, async || {
        let request = host.get(&item).await?.expect(200)?;
        ensure!(request["metadata"]["uid"] != before, "{request}");
        let requesters = &request["spec"]["requesters"];
        Ok((*requesters == json!([{ "name": "nodemaintenance.k8s.io" }])).then_some(()))
    })
    .await?;
    host.delete(&held).await?.expect(200)?;
    eventually("the node to be drained", PATIENCE, async || {
        let maintenance = host.get(&maintenance).await?.expect(200)?;
        Ok(is_true(&maintenance, "Drained").then_some(()))
    })
    .await?;
    finish(&stage, &[node]).await
}
