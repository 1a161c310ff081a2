//! Single EvictionRequests: the order of interceptors, requesters that withdraw, and how requests end.

use anyhow::{Result, ensure};
use drydock_tests::calls::MERGE_PATCH;
use drydock_tests::clients::eventually;
use serde_json::{Value, json};

use crate::stage::{
    PATIENCE, ROOT, Stage, condition, eviction_request, interceptor, is_true, requests_of, text, together,
};

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

/// Waits until an object fulfils a condition.
async fn becomes(stage: &Stage, path: &str, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
    let host = stage.host()?;
    eventually(what, PATIENCE, async || {
        let object = host.get(path).await?.expect(200)?;
        ensure!(check(&object), "{object}");
        Ok(Some(object))
    })
    .await
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

/// EvictionInterceptors as (name, priority, condition); the last one matches no pod.
const RULES: [(&str, u32, &str); 3] = [
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
];

/// The interceptors of the pod, sorted by name.
const INTERCEPTORS: [&str; 6] = [
    "imperative-eviction.k8s.io",
    "listed.example.com",
    "middle.example.com",
    "owner.example.com",
    "rule-high.example.com",
    "rule-low.example.com",
];

/// Creates an EvictionInterceptor and waits until it is accepted.
async fn accepted(stage: &Stage, name: &str, priority: u32, expression: &str) -> Result<()> {
    let host = stage.host()?;
    let mut rule = interceptor(name, "ordered");
    rule["spec"]["priority"] = json!(priority);
    rule["spec"]["matchConditions"] = json!([{ "name": "which", "expression": expression }]);
    let path = format!("{ROOT}/evictioninterceptors");
    host.post(&path, &rule).await?.expect(201)?;
    let path = format!("{path}/{name}");
    becomes(stage, &path, &format!("{name} to be accepted"), |rule| {
        is_true(rule, "Accepted")
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn interceptors_of_all_sources_are_merged_into_one_order() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("requests-order").await?;
    for (name, priority, expression) in RULES {
        accepted(&stage, name, priority, expression).await?;
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
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, INTERCEPTORS);
    for (position, name) in [
        (0, "rule-high.example.com"),
        (1, "middle.example.com"),
        (4, "rule-low.example.com"),
        (5, "imperative-eviction.k8s.io"),
    ] {
        assert_eq!(order.get(position).map(String::as_str), Some(name), "{order:?}");
    }
    becomes(&stage, &path, "the first to be active", |request| {
        request["status"]["activeInterceptors"] == json!(["rule-high.example.com"])
    })
    .await?;
    becomes(&stage, &path, "the pod's labels on the request", |request| {
        request["metadata"]["labels"]["color"] == "blue"
    })
    .await?;
    let managers = &request["metadata"]["managedFields"];
    let has_manager = managers
        .as_array()
        .into_iter()
        .flatten()
        .any(|it| it["manager"] == "drydock-controller" && it["subresource"] == "status");
    ensure!(has_manager, "{managers}");
    // An EvictionInterceptor counts its pods.
    let late = "rule-late.example.com";
    let path = format!("{ROOT}/evictioninterceptors");
    let rule = interceptor(late, "ordered");
    stage.host()?.post(&path, &rule).await?.expect(201)?;
    becomes(
        &stage,
        &format!("{path}/{late}"),
        "the pods to be counted",
        |rule| rule["status"]["matchedPods"] == 1,
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_request_ends_with_its_pod_and_is_deleted_after_its_ttl() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("requests-end").await?;
    let host = stage.host()?;
    let prefix = "interceptor.evictionrequest.coordination.k8s.io/priority_guard.example.com";
    let guarded = |name: &str| pod(name, &json!({}), &json!({ prefix: "20000" }));
    // Another client deletes the pod while its interceptor is active.
    let path = request(&stage, &namespace, &guarded("deleted"), |request| {
        request["spec"]["ttlSecondsAfterFinished"] = json!(2);
    })
    .await?;
    let active = |request: &Value| request["status"]["activeInterceptors"] == json!(["guard.example.com"]);
    becomes(&stage, &path, "the guard to be active", active).await?;
    host.delete(&format!("/api/v1/namespaces/{namespace}/pods/deleted"))
        .await?
        .expect(200)?;
    eventually("the finished request to be deleted", PATIENCE, async || {
        let response = host.get(&path).await?;
        ensure!(response.status == 404, "{}", response.text());
        Ok(Some(()))
    })
    .await?;

    // A pod that has completed needs no eviction.
    let path = request(&stage, &namespace, &guarded("done"), |_| {}).await?;
    becomes(&stage, &path, "the guard to be active", active).await?;
    let status = json!({ "status": { "phase": "Succeeded" } });
    let pod = format!("/api/v1/namespaces/{namespace}/pods/done/status");
    host.patch(&pod, MERGE_PATCH, &status).await?.expect(200)?;
    let request = becomes(&stage, &path, "Evicted", |request| is_true(request, "Evicted")).await?;
    assert_eq!(condition(&request, "Evicted")?["reason"], "PodTerminal");
    host.get(&format!("/api/v1/namespaces/{namespace}/pods/done"))
        .await?
        .expect(200)?;
    Ok(())
}

#[tokio::test]
async fn a_request_continues_until_its_last_requester_withdraws() -> Result<()> {
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
    becomes(&stage, &path, "the guard to be active", active).await?;
    let one = json!({ "spec": { "requesters": [{ "name": "two.example.com" }] } });
    let left = host.patch(&path, MERGE_PATCH, &one).await?.expect(200)?;
    let generation = left["metadata"]["generation"].clone();
    let seen = |request: &Value| request["status"]["observedGeneration"] == generation;
    let request = becomes(&stage, &path, "the controller to have observed it", seen).await?;
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
