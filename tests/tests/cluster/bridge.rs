//! The eviction bridge, on a real control plane with the webhook of `deploy/bridge`: evictions by `kubectl drain` of two
//! releases wait for interceptors, and pods without interceptors leave at once.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::{Kubectl, Protocol, eventually};
use drydock_tests::cluster::{
    self, ControlPlane, DEFAULT_KUBERNETES_VERSION, Lifetime, NAMESPACE, Part, Ports, Process,
};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::actor::Actor;
use crate::plugin::Plugin;
use crate::plugin_page::{blocks, commands, repository};
use crate::stage::{
    PATIENCE, ROOT, Stage, alone, condition, interceptor, is_true, requests_of, text, together,
};

pub(crate) const INTERCEPTOR: &str = "guard.example.com";
pub(crate) const REQUESTER: &str = "eviction-bridge.drydock";
const ASKED: &str = "evictionrequest.coordination.k8s.io/eviction-bridge";
/// The older of the two releases.
const OLDER: &str = "1.34.4";

/// The label of namespaces whose evictions the bridge of this suite reviews.
pub(crate) const BRIDGED: &str = "bridged";

/// Registers the bridge for namespaces with a label, once.
async fn register(stage: &Stage) -> Result<()> {
    static REGISTERED: OnceCell<()> = OnceCell::const_new();
    REGISTERED
        .get_or_try_init(async || {
            let port = stage.drydock.controller_address().port();
            let webhook = webhook(stage.control_plane(), port, BRIDGED)?;
            stage.kubectl().apply(&webhook.to_string()).await.map(drop)
        })
        .await
        .copied()
}

/// The manifests of `deploy/bridge`, with the port and the authority of a process on this machine, for namespaces with a label.
pub(crate) fn webhook(cluster: &ControlPlane, port: u16, label: &str) -> Result<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/bridge/webhook.yaml");
    let mut webhook: Value = serde_saphyr::from_str(&std::fs::read_to_string(path)?)?;
    let authority = cluster.pki().drydock.certificate();
    let one = &mut webhook["webhooks"][0];
    one["clientConfig"]["caBundle"] = json!(STANDARD.encode(authority));
    one["clientConfig"]["service"]["port"] = json!(port);
    one["namespaceSelector"]["matchLabels"] = json!({ label: "yes" });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "drydock-controller", "namespace": NAMESPACE },
        "spec": { "type": "ExternalName", "externalName": "localhost" },
    });
    Ok(json!({ "apiVersion": "v1", "kind": "List", "items": [service, webhook] }))
}

/// A new namespace whose evictions the bridge reviews. Returns when it does.
pub(crate) async fn bridged_namespace(stage: &Stage, name: &str) -> Result<String> {
    let namespace = stage.namespace(name).await?;
    register(stage).await?;
    let host = stage.host()?;
    let labels = json!({ "metadata": { "labels": { BRIDGED: "yes" } } });
    host.patch(&format!("/api/v1/namespaces/{name}"), MERGE_PATCH, &labels)
        .await?
        .expect(200)?;
    // The host learns of the webhook and of the label a little later. A dry run shows it, and creates nothing.
    let probe = pod(&namespace, "probe", None, true);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    host.post(&pods, &probe).await?.expect(201)?;
    let eviction = json!({ "metadata": { "name": "probe" }, "deleteOptions": { "dryRun": ["All"] } });
    eventually("the bridge to review evictions", PATIENCE, async || {
        let answer = host.post(&format!("{pods}/probe/eviction"), &eviction).await?;
        Ok(answer.header("warning").contains(INTERCEPTOR).then_some(()))
    })
    .await?;
    host.delete(&format!("{pods}/probe")).await?;
    Ok(namespace)
}

/// A pod on a node, or on none.
pub(crate) fn pod(namespace: &str, name: &str, node: Option<&str>, is_intercepted: bool) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
        "spec": {
            "schedulerName": "nobody", "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": "main" }],
        },
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    if is_intercepted {
        let key = "evictionrequest.coordination.k8s.io/interceptors";
        pod["metadata"]["annotations"] = json!({ key: INTERCEPTOR });
    }
    pod
}

/// A node with two plain pods, one with an interceptor, and one that a budget holds.
async fn prepare(stage: &Stage, namespace: &str) -> Result<()> {
    stage.control_plane().add_node(namespace, &[]).await?;
    let node = Some(namespace);
    let objects = json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            pod(namespace, "plain-1", node, false),
            pod(namespace, "plain-2", node, false),
            pod(namespace, "guarded", node, true),
            pod(namespace, "budgeted", node, false),
            {
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                "metadata": { "name": "keep", "namespace": namespace },
                "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "budgeted" } } },
            },
        ],
    });
    let kubectl = stage.kubectl();
    kubectl.apply(&objects.to_string()).await?;
    for name in ["plain-1", "plain-2", "guarded", "budgeted"] {
        kubectl
            .wait(&format!("pod/{name}"), namespace, "condition=Ready")
            .await?;
    }
    eventually("the budget to allow nothing", PATIENCE, async || {
        let path = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/keep");
        let budget = stage.host()?.get(&path).await?.expect(200)?;
        Ok(
            (budget["status"]["currentHealthy"] == 1 && budget["status"]["disruptionsAllowed"] == 0)
                .then_some(()),
        )
    })
    .await
}

async fn names(host: &Caller, path: &str) -> Result<Vec<String>> {
    let list = host.get(path).await?.expect(200)?;
    let items = list["items"].as_array().context("items")?;
    let mut names: Vec<String> = items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    Ok(names)
}

/// A running `kubectl drain` of the node.
async fn drain(kubectl: &Kubectl, node: &str) -> Result<Output> {
    let output = Command::new(&kubectl.binary)
        .args(["drain", node, "--force", "--ignore-daemonsets", "--timeout=110s"])
        .env("KUBECONFIG", &kubectl.kubeconfig)
        .env("HOME", &kubectl.home)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE * 2, output)
        .await
        .context("kubectl drain did not end")?;
    output.context("run kubectl drain")
}

/// Drains a node with a kubectl, step by step.
async fn drains(stage: &Stage, binary: PathBuf, namespace: String) -> Result<()> {
    prepare(stage, &namespace).await?;
    let (host, mut kubectl) = (stage.host()?, stage.kubectl());
    kubectl.binary = binary;
    // Not of the pod that the budget holds: kubectl would try for ever.
    let dry = [
        "drain",
        &namespace,
        "--force",
        "--pod-selector=app=guarded",
        "--dry-run=server",
    ];
    kubectl.ok(&dry).await.context("a dry run")?;
    let (pods, requests) = (
        format!("/api/v1/namespaces/{namespace}/pods"),
        requests_of(&namespace),
    );
    assert_eq!(names(&host, &requests).await?, [""; 0], "after a dry run");

    let steps = async {
        // Pods without an interceptor are gone, and were never requested to leave.
        eventually("the plain pods to be gone", PATIENCE, async || {
            Ok((names(&host, &pods).await? == ["budgeted", "guarded"]).then_some(()))
        })
        .await?;
        let uid = host.get(&format!("{pods}/guarded")).await?.expect(200)?["metadata"]["uid"].clone();
        let uid = uid.as_str().context("a UID")?;
        eventually("the request of the guarded pod", PATIENCE, async || {
            Ok((names(&host, &requests).await? == [uid]).then_some(()))
        })
        .await?;
        let path = format!("{requests}/{uid}");
        let request = host.get(&path).await?.expect(200)?;
        assert_eq!(request["spec"]["requesters"], json!([{ "name": REQUESTER }]));
        let asked = request["metadata"]["annotations"][ASKED]
            .as_str()
            .context("who asked")?;
        ensure!(asked.contains("\"by\":\"admin\""), "{asked}");
        let actor = Actor {
            caller: stage.host()?,
            name: INTERCEPTOR,
            path: path.clone(),
        };
        actor.begin("saving", &json!({})).await?;
        host.get(&format!("{pods}/guarded")).await?.expect(200)?;
        actor.complete().await?;
        eventually("the guarded pod to be gone", PATIENCE, async || {
            ensure!(
                is_true(&host.get(&path).await?.expect(200)?, "Evicted"),
                "not yet"
            );
            Ok((names(&host, &pods).await? == ["budgeted"]).then_some(()))
        })
        .await?;
        // The budget held its pod, without a request.
        assert_eq!(names(&host, &requests).await?, [uid]);
        stage
            .kubectl()
            .ok(&["delete", "pdb", "keep", "-n", &namespace])
            .await
    };
    let (drained, steps) = tokio::join!(drain(&kubectl, &namespace), steps);
    steps?;
    let drained = drained?;
    let error = String::from_utf8_lossy(&drained.stderr);
    ensure!(drained.status.success(), "{error}");
    assert_eq!(names(&host, &pods).await?, [""; 0]);
    stage.kubectl().ok(&["delete", "node", &namespace]).await?;
    Ok(())
}

#[tokio::test]
async fn drains_by_kubectl_of_two_releases_wait_for_interceptors_and_budgets() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let older = bridged_namespace(&stage, "bridge-older").await?;
    let newer = bridged_namespace(&stage, "bridge-newer").await?;
    let own = stage.control_plane().binaries().command("kubectl");
    let (first, second) = match stage.control_plane().options().kubernetes_version.as_str() {
        OLDER => (own, cluster::kubectl(DEFAULT_KUBERNETES_VERSION).await?),
        _ => (cluster::kubectl(OLDER).await?, own),
    };
    tokio::try_join!(drains(&stage, first, older), drains(&stage, second, newer))?;
    Ok(())
}

#[tokio::test]
async fn requests_end_when_nobody_asks_again_and_begin_anew_when_somebody_does() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = bridged_namespace(&stage, "bridge-expiry").await?;
    let host = stage.host()?;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let created = host
        .post(&pods, &pod(&namespace, "web", None, true))
        .await?
        .expect(201)?;
    let uid = created["metadata"]["uid"].as_str().context("a UID")?;
    let (web, path) = (
        format!("{pods}/web"),
        format!("{}/{uid}", requests_of(&namespace)),
    );
    let evict = async || {
        let eviction = json!({ "metadata": { "name": "web" } });
        let answer = host.post(&format!("{web}/eviction"), &eviction).await?;
        ensure!(!answer.header("retry-after").is_empty(), "no Retry-After");
        let status = answer.expect(429)?;
        let message = status["message"].as_str().context("a message")?;
        ensure!(
            message.contains("Eviction triggered evacuation: pod "),
            "{message}"
        );
        Ok(())
    };
    let annotated = async |expected: bool| {
        eventually("the annotations of the descheduler", PATIENCE, async || {
            let annotations = host.get(&web).await?.expect(200)?["metadata"]["annotations"].clone();
            let found = ["request-evict-only", "eviction-in-progress"]
                .map(|name| annotations[format!("descheduler.alpha.kubernetes.io/{name}")].is_string());
            Ok((found == [expected; 2]).then_some(()))
        })
        .await
    };
    evict().await?;
    annotated(true).await?;

    let past = json!({ "by": "admin", "until": "2026-01-01T00:00:00Z" }).to_string();
    let patch = json!({ "metadata": { "annotations": { ASKED: past } } });
    host.patch(&path, MERGE_PATCH, &patch).await?.expect(200)?;
    let ended = eventually("the request to be canceled", PATIENCE, async || {
        let request = host.get(&path).await?.expect(200)?;
        Ok(is_true(&request, "Canceled").then_some(request))
    })
    .await?;
    assert_eq!(condition(&ended, "Canceled")?["reason"], "NoRequesters");
    annotated(false).await?;

    let first = ended["metadata"]["uid"].clone();
    eventually("a new request", PATIENCE, async || {
        evict().await?;
        let request = host.get(&path).await?.expect(200)?;
        Ok((request["metadata"]["uid"] != first && !is_true(&request, "Canceled")).then_some(()))
    })
    .await?;
    annotated(true).await
}

#[tokio::test]
async fn the_page_about_other_programs_can_be_followed() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let page = repository()?.join("docs/neighbours.md");
    let page = std::fs::read_to_string(page).context("read the page")?;
    let namespace = bridged_namespace(&stage, "billing").await?;
    let host = stage.host()?;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let ledger = host
        .post(&pods, &pod(&namespace, "ledger-0", None, true))
        .await?
        .expect(201)?;
    let eviction = json!({ "metadata": { "name": "ledger-0" } });
    host.post(&format!("{pods}/ledger-0/eviction"), &eviction)
        .await?
        .expect(429)?;
    let plugin = Plugin::new(&stage).await?;
    let commands = commands(&page);
    ensure!(commands.len() == 2, "{commands:?}");
    for (line, _) in commands {
        let words = line.strip_prefix("kubectl ").context("a kubectl command")?;
        let output = timeout(PATIENCE, plugin.kubectl_command(words).output())
            .await
            .with_context(|| format!("{line} did not end"))??;
        let (out, error) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        ensure!(output.status.success(), "{line}: {error}");
        ensure!(out.contains("ledger-0"), "{line}: {out}");
        if line.contains("explain") {
            ensure!(
                out.contains("eviction-bridge.drydock (evictions by admin)"),
                "{out}"
            );
        }
    }
    // The files of kube-apiserver are used by another test.
    for manifest in blocks(&page, "yaml")
        .into_iter()
        .filter(|block| !block.starts_with("# "))
    {
        let arguments = ["create", "--dry-run=server", "-f", "-"];
        let output = stage.kubectl().run_with_input(&arguments, manifest).await?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    // The body of the page, with the UID of the pod here.
    let bodies = blocks(&page, "json");
    let mut body: Value = serde_json::from_str(bodies.first().context("a body")?)?;
    body["nominations"][0]["uid"] = ledger["metadata"]["uid"].clone();
    let answer = nominate(&stage, &namespace, &body).await?;
    assert_eq!(answer["results"][0]["outcome"], "InProgress", "{answer}");
    Ok(())
}

/// Posts nominations as a service account that may evict in the namespace.
pub(crate) async fn nominate(stage: &Stage, namespace: &str, body: &Value) -> Result<Value> {
    let kubectl = stage.kubectl();
    let rights = json!({
        "apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": { "name": "evictor", "namespace": namespace },
                "rules": [{ "apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"] }],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": { "name": "evictor", "namespace": namespace },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "evictor" },
                "subjects": [{ "kind": "ServiceAccount", "name": "default", "namespace": namespace }],
            },
        ],
    });
    kubectl.apply(&rights.to_string()).await?;
    let token = kubectl
        .ok(&["create", "token", "default", "-n", namespace])
        .await?;
    let client = stage.drydock.controller_client(None, Protocol::Http2)?;
    let caller = Caller::new(client).with_header("authorization", &format!("Bearer {}", token.trim()))?;
    eventually("the leader to answer", PATIENCE, async || {
        caller
            .post("/descheduling/nominations", body)
            .await?
            .expect(200)
            .map(Some)
    })
    .await
}

#[tokio::test]
async fn nominated_pods_are_requested_to_leave() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("nominations").await?;
    let host = stage.host()?;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let mut nominations = Vec::new();
    for name in ["plain", "guarded"] {
        let created = host
            .post(&pods, &pod(&namespace, name, None, name == "guarded"))
            .await?
            .expect(201)?;
        let uid = created["metadata"]["uid"].clone();
        nominations.push(json!({ "namespace": namespace, "name": name, "uid": uid }));
    }
    let mut forbidden = nominations[0].clone();
    forbidden["namespace"] = json!("default");
    nominations.push(forbidden);
    let body = json!({ "nominations": nominations });
    eventually("the pods to be requested", PATIENCE, async || {
        let answer = nominate(&stage, &namespace, &body).await?;
        let outcomes: Vec<&Value> = answer["results"]
            .as_array()
            .context("results")?
            .iter()
            .map(|result| &result["outcome"])
            .collect();
        ensure!(outcomes[2] == "Forbidden", "{outcomes:?}");
        // Until they are a second old, they are left alone.
        ensure!(outcomes[1] == "InProgress", "{outcomes:?}");
        Ok(Some(()))
    })
    .await?;
    eventually("the plain pod to be gone", PATIENCE, async || {
        Ok((names(&host, &pods).await? == ["guarded"]).then_some(()))
    })
    .await?;
    let anonymous = Caller::new(stage.drydock.controller_client(None, Protocol::Http1)?);
    let refused = anonymous.post("/descheduling/nominations", &body).await?;
    assert_eq!(refused.status, 401);
    Ok(())
}

#[tokio::test]
async fn a_replica_that_does_not_lead_answers_as_the_leader_does() -> Result<()> {
    const STANDBY: &str = "bridged-by-standby";
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("bridge-standby").await?;
    let (host, kubectl) = (stage.host()?, stage.kubectl());
    let address = Ports::reserve(1)?.take()?;
    let mut command = stage.drydock.command_of(Part::Controller);
    command
        .args(["--secure-port", &address.port().to_string()])
        .env("POD_NAME", "standby");
    let folder = stage.control_plane().folder().path();
    let standby = Process::spawn(command, "standby", folder, Lifetime::WithParent)?;
    let mut webhook = webhook(stage.control_plane(), address.port(), STANDBY)?;
    webhook["items"][1]["metadata"]["name"] = json!("eviction-bridge-of-the-standby");
    kubectl.apply(&webhook.to_string()).await?;
    let labels = json!({ "metadata": { "labels": { STANDBY: "yes" } } });
    host.patch(&format!("/api/v1/namespaces/{namespace}"), MERGE_PATCH, &labels)
        .await?
        .expect(200)?;

    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let guarded = host
        .post(&pods, &pod(&namespace, "guarded", None, true))
        .await?
        .expect(201)?;
    host.post(&pods, &pod(&namespace, "plain", None, false))
        .await?
        .expect(201)?;
    let dry_run = json!({ "metadata": { "name": "guarded" }, "deleteOptions": { "dryRun": ["All"] } });
    eventually("the standby to review evictions", PATIENCE, async || {
        let answer = host.post(&format!("{pods}/guarded/eviction"), &dry_run).await?;
        Ok(answer.header("warning").contains(INTERCEPTOR).then_some(()))
    })
    .await?;
    let evict = async |name: &str| {
        let eviction = json!({ "metadata": { "name": name } });
        host.post(&format!("{pods}/{name}/eviction"), &eviction).await
    };
    evict("plain").await?.expect(201)?;
    let refused = evict("guarded").await?.expect(429)?;
    ensure!(
        refused.to_string().contains("Eviction triggered evacuation"),
        "{refused}"
    );
    let path = format!(
        "{}/{}",
        requests_of(&namespace),
        text(&guarded["metadata"]["uid"])?
    );
    let request = host.get(&path).await?.expect(200)?;
    assert_eq!(request["spec"]["requesters"], json!([{ "name": REQUESTER }]));
    // It has the labels of its pod from the beginning.
    assert_eq!(request["metadata"]["labels"], json!({ "app": "guarded" }));
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/drydock-controller");
    let holder = text(&host.get(&lease).await?.expect(200)?["spec"]["holderIdentity"])?;
    ensure!(!holder.starts_with("standby"), "{holder}");

    // The leader goes on with the request, and the standby lets the pod go when its interceptor is done.
    let actor = Actor {
        caller: stage.host()?,
        name: INTERCEPTOR,
        path: path.clone(),
    };
    actor.begin("saving", &json!({})).await?;
    evict("guarded").await?.expect(429)?;
    actor.complete().await?;
    eventually("the guarded pod to be gone", PATIENCE, async || {
        let answer = evict("guarded").await?;
        ensure!([201, 404, 429].contains(&answer.status), "{}", answer.text());
        Ok((answer.status == 404).then_some(()))
    })
    .await?;
    kubectl
        .ok(&[
            "delete",
            "validatingwebhookconfiguration",
            "eviction-bridge-of-the-standby",
        ])
        .await?;
    standby.terminate(PATIENCE).await?;
    Ok(())
}

#[tokio::test]
async fn evictions_are_refused_and_not_let_through_while_the_server_is_away() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    let namespace = bridged_namespace(&stage, "bridge-away").await?;
    let host = stage.host()?;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    host.post(&pods, &pod(&namespace, "web", None, true))
        .await?
        .expect(201)?;
    stage.drydock.kill_part(Part::ApiServer);
    let began = tokio::time::Instant::now();
    let probe = Caller::new(stage.drydock.controller_client(None, Protocol::Http1)?);
    // Watches that fail for ten seconds would make a controller without the bridge unready, and so take its endpoint away.
    eventually("more time than that to pass", PATIENCE, async || {
        let eviction = json!({ "metadata": { "name": "web" } });
        host.post(&format!("{pods}/web/eviction"), &eviction)
            .await?
            .expect(429)?;
        let ready = probe.get("/readyz").await?;
        ensure!(ready.status == 200, "{}", ready.text());
        Ok((began.elapsed().as_secs() > 14).then_some(()))
    })
    .await?;
    stage.drydock.start_part(Part::ApiServer).await?;
    stage.drydock.available().await?;
    // The controller opens its watches again after pauses, and the next test expects that they work.
    let list = requests_of(&namespace);
    eventually("the request to be processed", PATIENCE, async || {
        let eviction = json!({ "metadata": { "name": "web" } });
        host.post(&format!("{pods}/web/eviction"), &eviction)
            .await?
            .expect(429)?;
        let requests = host.get(&list).await?.expect(200)?;
        let active = &requests["items"][0]["status"]["activeInterceptors"];
        ensure!(*active == json!([INTERCEPTOR]), "{requests}");
        Ok(Some(()))
    })
    .await?;
    let rules = format!("{ROOT}/evictioninterceptors");
    let rule = interceptor("after-the-outage.example.com", "no-pod-has-this-name");
    host.post(&rules, &rule).await?.expect(201)?;
    let rule = format!("{rules}/after-the-outage.example.com");
    eventually("the controller to see a new rule", PATIENCE, async || {
        let rule = host.get(&rule).await?.expect(200)?;
        Ok(is_true(&rule, "Accepted").then_some(()))
    })
    .await?;
    host.delete(&rule).await?.expect(200)?;
    Ok(())
}

/// Evicts a new pod that waits for its interceptor and has the annotation after which the bridge annotates it. The path of the pod.
pub(crate) async fn evict_annotated_pod(host: &Caller, namespace: &str) -> Result<String> {
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let mut web = pod(namespace, "web", None, true);
    web["metadata"]["annotations"]["descheduler.alpha.kubernetes.io/request-evict-only"] = json!("true");
    host.post(&pods, &web).await?.expect(201)?;
    let eviction = json!({ "metadata": { "name": "web" } });
    let web = format!("{pods}/web");
    host.post(&format!("{web}/eviction"), &eviction)
        .await?
        .expect(429)?;
    Ok(web)
}

#[tokio::test]
async fn what_the_bridge_put_on_pods_goes_when_it_is_turned_off() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    let namespace = bridged_namespace(&stage, "bridge-off").await?;
    let host = stage.host()?;
    let web = evict_annotated_pod(&host, &namespace).await?;
    let annotations = async || {
        let web = host.get(&web).await?.expect(200)?;
        let annotations = &web["metadata"]["annotations"];
        Ok::<_, anyhow::Error>(
            ["eviction-in-progress", "request-evict-only"]
                .map(|name| annotations[format!("descheduler.alpha.kubernetes.io/{name}")].clone()),
        )
    };
    eventually("the pod to be annotated", PATIENCE, async || {
        Ok((annotations().await? == ["drydock", "true"]).then_some(()))
    })
    .await?;
    stage.drydock.stop_part(Part::Controller).await?;
    let mut command = stage.drydock.command_of(Part::Controller);
    command.arg("--eviction-bridge=false");
    let folder = stage.control_plane().folder().path();
    let without = Process::spawn(command, "without-the-bridge", folder, Lifetime::WithParent)?;
    eventually(
        "what it put there to be gone, and nothing else",
        PATIENCE,
        async || Ok((annotations().await? == [json!(null), json!("true")]).then_some(())),
    )
    .await?;
    without.terminate(PATIENCE).await?;
    Ok(())
}
