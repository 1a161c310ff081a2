//! What becomes of one request for eviction: who is asked, who may withdraw, and how it ends?

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::MERGE_PATCH;
use drydock_tests::clients::eventually;
use serde_json::{Value, json};

use crate::stage::{PATIENCE, ROOT, Stage, eviction_request, interceptor, requests_of, text, together};

/// Creates a Pod that stays pending, and a request for it; returns the path of the request.
async fn request(
    stage: &Stage,
    namespace: &str,
    pod: &Value,
    change: impl FnOnce(&mut Value),
) -> Result<String> {
    let host = stage.host()?;
    let pod = host
        .post(&format!("/api/v1/namespaces/{namespace}/pods"), pod)
        .await?
        .expect(201)?;
    let (name, uid) = (text(&pod["metadata"]["name"])?, text(&pod["metadata"]["uid"])?);
    let mut request = eviction_request(namespace, &name, &uid);
    change(&mut request);
    host.post(&requests_of(namespace), &request).await?.expect(201)?;
    Ok(format!("{}/{uid}", requests_of(namespace)))
}

fn pod(name: &str, labels: &Value, annotations: &Value) -> Value {
    json!({
        "metadata": { "name": name, "labels": labels, "annotations": annotations },
        "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "main" }] },
    })
}

/// Waits until the request is as it should be.
async fn becomes(stage: &Stage, path: &str, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
    let host = stage.host()?;
    eventually(what, PATIENCE, async || {
        let request = host.get(path).await?.expect(200)?;
        ensure!(check(&request), "{request}");
        Ok(Some(request))
    })
    .await
}

fn is_true(request: &Value, condition: &str) -> bool {
    let conditions = request["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter()
            .any(|it| it["type"] == condition && it["status"] == "True")
    })
}

fn targets(request: &Value) -> Vec<String> {
    let all = request["status"]["targetInterceptors"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    all.iter()
        .filter_map(|it| it["name"].as_str().map(str::to_owned))
        .collect()
}

#[tokio::test]
async fn interceptors_of_all_sources_are_asked_in_one_order() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("requests-order").await?;
    let host = stage.host()?;
    for (name, priority, condition) in [
        (
            "rule-high.example.com",
            30_000,
            "pod.metadata.labels['app'] == 'ordered'",
        ),
        (
            "rule-low.example.com",
            50,
            "namespace.metadata.name == 'requests-order'",
        ),
        (
            "rule-other.example.com",
            40_000,
            "pod.metadata.labels['app'] == 'another'",
        ),
    ] {
        let mut rule = interceptor(name, "ordered");
        rule["spec"]["priority"] = json!(priority);
        rule["spec"]["matchConditions"] = json!([{ "name": "which", "expression": condition }]);
        host.post(&format!("{ROOT}/evictioninterceptors"), &rule)
            .await?
            .expect(201)?;
        eventually(&format!("{name} to be accepted"), PATIENCE, async || {
            let rule = host
                .get(&format!("{ROOT}/evictioninterceptors/{name}"))
                .await?
                .expect(200)?;
            ensure!(is_true(&rule, "Accepted"), "{rule}");
            Ok(Some(()))
        })
        .await?;
    }
    let prefix = "interceptor.evictionrequest.coordination.k8s.io/priority_";
    let annotations = json!({
        format!("{prefix}middle.example.com"): "20000",
        format!("{prefix}owner.example.com"): "10000/controller",
        format!("{prefix}odd.example.com"): "not a number",
        "evictionrequest.coordination.k8s.io/interceptors": "listed.example.com,middle.example.com",
    });
    let labels = json!({ "app": "ordered", "color": "blue" });
    let path = request(&stage, &namespace, &pod("ordered", &labels, &annotations), |_| {}).await?;
    let request = becomes(&stage, &path, "the order", |request| !targets(request).is_empty()).await?;
    let order = targets(&request);
    let (first, last) = (order.first().cloned(), order.last().cloned());
    assert_eq!(first.as_deref(), Some("rule-high.example.com"), "{order:?}");
    assert_eq!(
        order.get(1).map(String::as_str),
        Some("middle.example.com"),
        "{order:?}"
    );
    assert_eq!(last.as_deref(), Some("imperative-eviction.k8s.io"), "{order:?}");
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(
        sorted,
        [
            "imperative-eviction.k8s.io",
            "listed.example.com",
            "middle.example.com",
            "owner.example.com",
            "rule-high.example.com",
            "rule-low.example.com",
        ]
    );
    assert_eq!(
        order.iter().position(|it| it == "rule-low.example.com"),
        Some(4),
        "{order:?}"
    );
    let active =
        |request: &Value| request["status"]["activeInterceptors"] == json!(["rule-high.example.com"]);
    becomes(&stage, &path, "the first to be asked", active).await?;
    // The pod's labels are on the request, so that people find it.
    becomes(&stage, &path, "the labels", |request| {
        request["metadata"]["labels"]["color"] == "blue"
    })
    .await?;
    // Both processes are told apart from other writers.
    let managers = request["metadata"]["managedFields"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let has_manager = managers
        .iter()
        .any(|it| it["manager"] == "drydock-controller" && it["subresource"] == "status");
    ensure!(has_manager, "{managers:?}");
    // A rule counts its pods.
    let late = "rule-late.example.com";
    host.post(
        &format!("{ROOT}/evictioninterceptors"),
        &interceptor(late, "ordered"),
    )
    .await?
    .expect(201)?;
    eventually("the late rule to count its pods", PATIENCE, async || {
        let rule = host
            .get(&format!("{ROOT}/evictioninterceptors/{late}"))
            .await?
            .expect(200)?;
        ensure!(rule["status"]["matchedPods"] == 1, "{rule}");
        Ok(Some(()))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_request_ends_with_its_pod_and_is_collected_after_its_time() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("requests-end").await?;
    let host = stage.host()?;
    let prefix = "interceptor.evictionrequest.coordination.k8s.io/priority_guard.example.com";
    let guarded = |name: &str| pod(name, &json!({}), &json!({ prefix: "20000" }));
    // Somebody else deletes the pod while its interceptor works.
    let path = request(&stage, &namespace, &guarded("deleted"), |request| {
        request["spec"]["ttlSecondsAfterFinished"] = json!(2);
    })
    .await?;
    let active = |request: &Value| request["status"]["activeInterceptors"] == json!(["guard.example.com"]);
    becomes(&stage, &path, "the guard to be asked", active).await?;
    host.delete(&format!("/api/v1/namespaces/{namespace}/pods/deleted"))
        .await?
        .expect(200)?;
    eventually("the finished request to be collected", PATIENCE, async || {
        let answer = host.get(&path).await?;
        ensure!(answer.status == 404, "{}", answer.text());
        Ok(Some(()))
    })
    .await?;

    // A pod that has ended by itself needs no eviction.
    let path = request(&stage, &namespace, &guarded("done"), |_| {}).await?;
    becomes(&stage, &path, "the guard to be asked", active).await?;
    let status = json!({ "status": { "phase": "Succeeded" } });
    let pod = format!("/api/v1/namespaces/{namespace}/pods/done/status");
    host.patch(&pod, MERGE_PATCH, &status).await?.expect(200)?;
    let request = becomes(&stage, &path, "Evicted", |request| is_true(request, "Evicted")).await?;
    let conditions = request["status"]["conditions"].as_array().context("conditions")?;
    let evicted = conditions
        .iter()
        .find(|it| it["type"] == "Evicted")
        .context("Evicted")?;
    assert_eq!(evicted["reason"], "PodTerminal");
    host.get(&format!("/api/v1/namespaces/{namespace}/pods/done"))
        .await?
        .expect(200)?;
    Ok(())
}

#[tokio::test]
async fn one_of_two_requesters_withdraws_and_the_request_goes_on() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("requests-two").await?;
    let host = stage.host()?;
    let prefix = "interceptor.evictionrequest.coordination.k8s.io/priority_guard.example.com";
    let path = request(
        &stage,
        &namespace,
        &pod("both", &json!({}), &json!({ prefix: "20000" })),
        |request| {
            request["spec"]["requesters"] =
                json!([{ "name": "one.example.com" }, { "name": "two.example.com" }]);
        },
    )
    .await?;
    let active = |request: &Value| request["status"]["activeInterceptors"] == json!(["guard.example.com"]);
    becomes(&stage, &path, "the guard to be asked", active).await?;
    let one = json!({ "spec": { "requesters": [{ "name": "two.example.com" }] } });
    let left = host.patch(&path, MERGE_PATCH, &one).await?.expect(200)?;
    let generation = left["metadata"]["generation"].clone();
    let seen = |request: &Value| request["status"]["observedGeneration"] == generation;
    let request = becomes(&stage, &path, "the controller to have seen it", seen).await?;
    ensure!(!is_true(&request, "Canceled") && active(&request), "{request}");
    host.patch(&path, MERGE_PATCH, &json!({ "spec": { "requesters": [] } }))
        .await?
        .expect(200)?;
    becomes(&stage, &path, "Canceled", |request| is_true(request, "Canceled")).await?;
    host.get(&format!("/api/v1/namespaces/{namespace}/pods/both"))
        .await?
        .expect(200)?;
    Ok(())
}
