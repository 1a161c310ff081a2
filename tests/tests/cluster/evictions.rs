//! Evictions that fail, and evictions that must not happen, on a real control plane.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::Part;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, Stage, alone, condition, eviction_request, is_true, requests_of, together};
use crate::webhook::{Answer, Webhook};

/// Creates a pod that stays pending and a request for it, as drainers do: with the labels and annotations that the
/// controller would add. Returns the path of the request.
async fn request(stage: &Stage, namespace: &str, name: &str) -> Result<String> {
    let uid = stage.pod(namespace, name).await?;
    let request = eviction_request(namespace, name, &uid);
    stage
        .host()?
        .post(&requests_of(namespace), &request)
        .await?
        .expect(201)?;
    Ok(format!("{}/{uid}", requests_of(namespace)))
}

/// Waits until an object fulfils a condition.
async fn becomes(host: &Caller, path: &str, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
    eventually(what, PATIENCE, async || {
        let object = host.get(path).await?.expect(200)?;
        ensure!(check(&object), "{object}");
        Ok(Some(object))
    })
    .await
}

fn refusals(request: &Value) -> u64 {
    request["status"]["podEvictionStatus"]["failedAPIEvictionCounter"]
        .as_u64()
        .unwrap_or_default()
}

/// Whether the request is blocked by the webhook, with this text, after more than so many refusals.
fn is_refused(request: &Value, text: &str, more_than: u64) -> bool {
    let blocked = condition(request, "Blocked");
    blocked.is_ok_and(|blocked| {
        blocked["status"] == "True"
            && blocked["reason"] == "Webhook"
            && blocked["message"]
                .as_str()
                .is_some_and(|message| message.contains(text))
    }) && refusals(request) > more_than
}

#[tokio::test]
async fn a_webhook_that_denies_fails_or_hangs_holds_the_pod_with_its_text() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("evictions-webhook").await?;
    let webhook = Webhook::start(&stage, &namespace, Answer::Deny).await?;
    let host = stage.host()?;
    let path = request(&stage, &namespace, "web").await?;
    let denied = becomes(&host, &path, "the denial to be told", |request| {
        is_refused(request, "denied the request: not today", 0)
    })
    .await?;
    let since = condition(&denied, "Blocked")?["lastTransitionTime"].clone();
    let row = stage
        .kubectl()
        .ok(&["get", "er", "-n", &namespace, "--no-headers"])
        .await?;
    ensure!(row.contains("Blocked"), "{row}");

    let mut last = denied;
    for (answer, text) in [
        (Answer::Fail, "failed calling webhook"),
        (Answer::Hang, "context deadline exceeded"),
    ] {
        webhook.answer(answer);
        let before = refusals(&last);
        last = becomes(&host, &path, &format!("{answer:?} to be told"), |request| {
            is_refused(request, text, before)
        })
        .await?;
    }
    assert_eq!(condition(&last, "Blocked")?["lastTransitionTime"], since);
    // Every attempt was told before the next one, and each was announced.
    let attempts = &last["status"]["podEvictionStatus"];
    ensure!(
        attempts["lastAttemptTime"].is_string() && attempts["nextAttemptTime"].is_string(),
        "{attempts}"
    );
    let calls = u64::try_from(webhook.calls())?;
    ensure!(
        (refusals(&last)..=refusals(&last) + 1).contains(&calls),
        "{calls} calls and {} refusals",
        refusals(&last)
    );

    webhook.answer(Answer::Allow);
    let evicted = becomes(&host, &path, "Evicted", |request| is_true(request, "Evicted")).await?;
    assert_eq!(condition(&evicted, "Blocked")?["status"], "False");
    webhook.remove(&stage).await
}

/// The result is written more than ten seconds after the attempt began, and the server accepts it.
#[tokio::test]
async fn a_webhook_that_takes_twelve_seconds_is_told_and_counted() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("evictions-slow").await?;
    let webhook = Webhook::start_with(&stage, &namespace, Answer::DenyLate, 14).await?;
    let host = stage.host()?;
    let path = request(&stage, &namespace, "web").await?;
    let denied = becomes(&host, &path, "the denial to be told", |request| {
        is_refused(request, "denied the request: not today", 0)
    })
    .await?;
    webhook.answer(Answer::Allow);
    assert_eq!(refusals(&denied), 1);
    becomes(&host, &path, "Evicted", |request| is_true(request, "Evicted")).await?;
    webhook.remove(&stage).await
}

#[tokio::test]
async fn an_eviction_takes_three_writes() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("evictions-writes").await?;
    let host = stage.host()?;
    let uid = stage.pod(&namespace, "web").await?;
    let mut object = eviction_request(&namespace, "web", &uid);
    object["metadata"]["annotations"] = json!({
        "argocd.argoproj.io/sync-options": "Prune=false",
        "argocd.argoproj.io/compare-options": "IgnoreExtraneous",
    });
    let list = requests_of(&namespace);
    let version = host.get(&list).await?.expect(200)?["metadata"]["resourceVersion"].clone();
    let version = version.as_str().context("a version")?;
    let mut watch = host
        .watch(&format!("{list}?watch=true&resourceVersion={version}"))
        .await?;
    host.post(&list, &object).await?.expect(201)?;
    let mut states = Vec::new();
    loop {
        let event = watch.event().await?;
        let object = &event["object"];
        states.push(object["status"].clone());
        if is_true(object, "Evicted") {
            break;
        }
    }
    ensure!(states.len() == 3, "{states:?}");
    let intent = &states[1];
    assert_eq!(
        intent["activeInterceptors"],
        json!(["imperative-eviction.k8s.io"])
    );
    ensure!(
        intent["podEvictionStatus"]["lastAttemptTime"].is_string(),
        "{intent}"
    );
    Ok(())
}

fn signal(process: Option<u32>, signal: Signal) -> Result<()> {
    let id = i32::try_from(process.context("a running process")?)?;
    kill_process_group(Pid::from_raw(id).context("an id")?, signal).context("signal the process")
}

#[tokio::test]
async fn a_canceled_request_is_not_carried_out_after_the_server_or_the_controller_was_away() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("evictions-canceled").await?;
    let webhook = Webhook::start(&stage, &namespace, Answer::Deny).await?;
    let host = stage.host()?;
    let (drydock, log) = (stage.drydock, stage.drydock.log(Part::Controller));

    // While the server is away nothing is evicted, although the host would let the pod go.
    let path = request(&stage, &namespace, "away").await?;
    becomes(&host, &path, "the denial", |request| {
        is_refused(request, "not today", 0)
    })
    .await?;
    drydock.kill_part(Part::ApiServer);
    webhook.answer(Answer::Allow);
    let calls = webhook.calls();
    let failed = |log: &str| {
        log.lines()
            .filter(|line| {
                line.contains("reconciling an eviction request failed") && line.contains(&namespace)
            })
            .count()
    };
    eventually("attempts to fail without the server", PATIENCE, async || {
        Ok((failed(&std::fs::read_to_string(&log)?) >= 2).then_some(()))
    })
    .await?;
    ensure!(
        webhook.calls() <= calls + 1,
        "evictions without the server: {} calls after {calls}",
        webhook.calls()
    );
    host.get(&format!("/api/v1/namespaces/{namespace}/pods/away"))
        .await?
        .expect(200)?;

    // Cancellations that the controller has not seen: it is stopped while they are written.
    webhook.answer(Answer::Deny);
    drydock.start_part(Part::ApiServer).await?;
    drydock.available().await?;
    let withdrawn = json!({ "spec": { "requesters": [] } });
    host.patch(&path, MERGE_PATCH, &withdrawn).await?.expect(200)?;
    becomes(&host, &path, "Canceled", |request| is_true(request, "Canceled")).await?;
    let path = request(&stage, &namespace, "unseen").await?;
    let refused = becomes(&host, &path, "the denial", |request| {
        is_refused(request, "not today", 0)
    })
    .await?;
    signal(drydock.process_id(Part::Controller), Signal::STOP)?;
    let canceled = host.patch(&path, MERGE_PATCH, &withdrawn).await;
    webhook.answer(Answer::Allow);
    let calls = webhook.calls();
    let due = refused["status"]["podEvictionStatus"]["nextAttemptTime"]
        .as_str()
        .context("a next attempt")?
        .to_owned();
    let waited = eventually("the next attempt to be due", PATIENCE, async || {
        Ok((host.get(&path).await?.time()? > due).then_some(()))
    })
    .await;
    signal(drydock.process_id(Part::Controller), Signal::CONT)?;
    canceled?.expect(200)?;
    waited?;
    becomes(&host, &path, "Canceled", |request| is_true(request, "Canceled")).await?;
    assert_eq!(webhook.calls(), calls, "evicted after its cancellation");
    host.get(&format!("/api/v1/namespaces/{namespace}/pods/unseen"))
        .await?
        .expect(200)?;
    webhook.remove(&stage).await
}

#[tokio::test]
async fn a_request_that_a_finalizer_holds_ends_with_its_pod() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("held-request").await?;
    let host = stage.host()?;
    let pod = format!("/api/v1/namespaces/{namespace}/pods/web");
    let web = crate::bridge::pod(&namespace, "web", None, true);
    let web = host
        .post(&format!("/api/v1/namespaces/{namespace}/pods"), &web)
        .await?
        .expect(201)?;
    let uid = web["metadata"]["uid"].as_str().context("a UID")?;
    let mut request = eviction_request(&namespace, "web", uid);
    request["metadata"]["finalizers"] = json!(["test.example.com/keep"]);
    let list = requests_of(&namespace);
    host.post(&list, &request).await?.expect(201)?;
    let path = format!("{list}/{uid}");
    becomes(&host, &path, "the interceptor to be active", |request| {
        request["status"]["activeInterceptors"] == json!([crate::bridge::INTERCEPTOR])
    })
    .await?;
    host.delete(&path).await?.expect(200)?;
    host.delete(&pod).await?.expect(200)?;
    let ended = becomes(&host, &path, "the request to end", |request| {
        is_true(request, "Evicted")
    })
    .await?;
    ensure!(ended["metadata"]["deletionTimestamp"].is_string(), "{ended}");
    let patch = json!({ "metadata": { "finalizers": null } });
    host.patch(&path, MERGE_PATCH, &patch).await?.expect(200)?;
    Ok(())
}
