//! A controller that may not watch disruption budgets: what budgets hold says so, and everything else goes on.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::{Lifetime, NAMESPACE, Part, Process};
use serde_json::{Value, json};

use crate::bridge::pod;
use crate::stage::{PATIENCE, Stage, alone, condition, eviction_request, is_true, requests_of, text};

const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/drydock-controller";

/// Writes the rules of the controller's role, and returns those before.
async fn replace_rules(host: &Caller, change: impl Fn(&Value) -> Value) -> Result<Value> {
    let mut role = host.get(ROLE).await?.expect(200)?;
    let before = role["rules"].take();
    role["rules"] = change(&before);
    host.put(ROLE, &role).await?.expect(200)?;
    Ok(before)
}

fn without_budgets(rules: &Value) -> Value {
    let rules = rules.as_array().into_iter().flatten();
    let others: Vec<&Value> = rules
        .filter(|rule| !rule["resources"].to_string().contains("poddisruptionbudgets"))
        .collect();
    json!(others)
}

fn start(stage: &Stage) -> Result<Process> {
    let mut command = stage.drydock.command_of(Part::Controller);
    command.args(["--watch-failure-deadline", "3s"]);
    let folder = stage.control_plane().folder().path();
    Process::spawn(command, "without-budgets", folder, Lifetime::WithParent)
}

#[tokio::test]
async fn budgets_that_cannot_be_watched_hold_only_what_they_protect() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("budgets-away").await?;
    stage.control_plane().add_node(&namespace, &[]).await?;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": "keep", "namespace": namespace },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "held" } } },
    });
    let node = Some(namespace.as_str());
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        pod(&namespace, "held", node, false), pod(&namespace, "free", node, false), budget,
    ] });
    let kubectl = stage.kubectl();
    kubectl.apply(&objects.to_string()).await?;
    for name in ["held", "free"] {
        kubectl
            .wait(&format!("pod/{name}"), &namespace, "condition=Ready")
            .await?;
    }
    let host = stage.host()?;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/drydock-controller");
    let holder = async || text(&host.get(&lease).await?.expect(200)?["spec"]["holderIdentity"]);

    stage.drydock.stop_part(Part::Controller).await?;
    let rules = replace_rules(&host, without_budgets).await?;
    let controller = start(&stage)?;
    let list = requests_of(&namespace);
    let request_of = async |name: &str| {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let uid = text(&host.get(&path).await?.expect(200)?["metadata"]["uid"])?;
        let request = eviction_request(&namespace, name, &uid);
        host.post(&list, &request).await?.expect(201)?;
        Ok::<_, anyhow::Error>(format!("{list}/{uid}"))
    };
    let (held, free) = (request_of("held").await?, request_of("free").await?);
    eventually("the free pod to be evicted", PATIENCE, async || {
        Ok(is_true(&host.get(&free).await?.expect(200)?, "Evicted").then_some(()))
    })
    .await?;
    eventually("the held pod to be blocked", PATIENCE, async || {
        let request = host.get(&held).await?.expect(200)?;
        let blocked = condition(&request, "Blocked")?;
        ensure!(
            blocked["status"] == "True" && blocked["reason"] == "BudgetNotObserved",
            "{blocked}"
        );
        let message = blocked["message"].as_str().context("a message")?;
        ensure!(
            message.contains("cannot be watched") && message.contains("forbidden"),
            "{message}"
        );
        Ok(Some(()))
    })
    .await?;
    // It is ready, and leads on: the deadline of watches passed long ago.
    let probe = stage.drydock.controller_client(None, Protocol::Http1)?;
    let ready = probe.get("/readyz").await?;
    ensure!(ready.status().is_success(), "{}", ready.status());
    ensure!(holder().await?.contains('_'), "the lease was given up");

    replace_rules(&host, |_| rules.clone()).await?;
    kubectl.ok(&["delete", "pdb", "keep", "-n", &namespace]).await?;
    eventually("the held pod to be evicted", PATIENCE, async || {
        Ok(is_true(&host.get(&held).await?.expect(200)?, "Evicted").then_some(()))
    })
    .await?;
    controller.terminate(PATIENCE).await?;
    kubectl.ok(&["delete", "node", &namespace]).await?;
    Ok(())
}
