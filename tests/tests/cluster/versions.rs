//! The older versions on a real control plane: kubectl, OpenAPI, garbage collection, namespace deletion, and the stories of
//! the designs with requesters and interceptors that speak only their version.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::eventually;
use serde_json::{Value, json};

use crate::stage::{PATIENCE, ROOT, Stage, is_true, requests_of, text, together};

const OLD: &str = "/apis/coordination.k8s.io/v1alpha1";
const OLD_VERSION: &str = "coordination.k8s.io/v1alpha1";
const PRIORITY: &str = "evacuation.coordination.k8s.io/priority_";
const INSTIGATOR: &str = "evacuation.coordination.k8s.io/instigator_drainer.example.com";

fn old_requests(namespace: &str) -> String {
    format!("{OLD}/namespaces/{namespace}/evictionrequests")
}

fn evacuations(namespace: &str) -> String {
    format!("{OLD}/namespaces/{namespace}/evacuations")
}

fn old_request(pod: &str, uid: &str) -> Value {
    json!({
        "apiVersion": OLD_VERSION,
        "kind": "EvictionRequest",
        "metadata": { "name": uid },
        "spec": {
            "target": { "podRef": { "name": pod, "uid": uid } },
            "requesters": [{ "name": "drainer.example.com" }],
        },
    })
}

fn evacuation(pod: &str, uid: &str) -> Value {
    json!({
        "apiVersion": OLD_VERSION,
        "kind": "Evacuation",
        "metadata": { "name": format!("{uid}-{pod}"), "finalizers": [INSTIGATOR] },
        "spec": { "podRef": { "name": pod, "uid": uid } },
    })
}

/// Creates a Pod that stays pending, with evacuators of these priorities; returns its UID.
async fn pod(stage: &Stage, namespace: &str, name: &str, evacuators: &[(&str, &str)]) -> Result<String> {
    let annotations: BTreeMap<String, &str> = evacuators
        .iter()
        .map(|(name, priority)| (format!("{PRIORITY}{name}"), *priority))
        .collect();
    let pod = json!({
        "metadata": { "name": name, "annotations": annotations },
        "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "main" }] },
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let pod = stage.host()?.post(&path, &pod).await?.expect(201)?;
    text(&pod["metadata"]["uid"])
}

async fn becomes(host: &Caller, path: &str, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
    eventually(what, PATIENCE, async || {
        let object = host.get(path).await?.expect(200)?;
        ensure!(check(&object), "{object}");
        Ok(Some(object))
    })
    .await
}

async fn vanishes(host: &Caller, path: &str) -> Result<()> {
    eventually(&format!("{path} to be gone"), PATIENCE, async || {
        let response = host.get(path).await?;
        ensure!(response.status == 404, "{}", response.text());
        Ok(Some(()))
    })
    .await
}

/// Creates a `ConfigMap` with an owner.
async fn owned(host: &Caller, namespace: &str, name: &str, owner: &Value) -> Result<String> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let object = json!({ "metadata": { "name": name, "ownerReferences": [owner] } });
    host.post(&path, &object).await?.expect(201)?;
    Ok(format!("{path}/{name}"))
}

#[tokio::test]
async fn every_version_is_explained() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let kubectl = stage.kubectl();
    let cases: [(&str, &str, &[&str]); 6] = [
        (
            "evictionrequests",
            "v1alpha3",
            &["requesters", "targetInterceptors"],
        ),
        ("nodemaintenances", "v1alpha3", &["drainPlan", "nodeStatuses"]),
        ("evictioninterceptors", "v1alpha3", &["matchConditions"]),
        (
            "evictionrequests",
            "v1alpha1",
            &["podRef", "interceptors", "activeInterceptorName"],
        ),
        (
            "evacuations",
            "v1alpha1",
            &["evacuators", "progressDeadlineSeconds", "activeEvacuatorClass"],
        ),
        (
            "nodemaintenances",
            "v1alpha1",
            &["drainPlan", "reachedDrainTargets"],
        ),
    ];
    for (plural, version, members) in cases {
        let version = format!("--api-version=coordination.k8s.io/{version}");
        let all = kubectl.ok(&["explain", plural, &version, "--recursive"]).await?;
        for member in members {
            ensure!(
                all.contains(&format!("{member}\t<")),
                "{plural}, {member}:\n{all}"
            );
        }
        for part in ["spec", "status"] {
            let explained = kubectl
                .ok(&["explain", &format!("{plural}.{part}"), &version])
                .await?;
            ensure!(!explained.contains("<no description>"), "{explained}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_creates_and_shows_objects_of_every_version() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("versions-kubectl").await?;
    let kubectl = stage.kubectl();
    let guard = [("guard.example.com", "20000")];
    let first = pod(&stage, &namespace, "first", &guard).await?;
    let second = pod(&stage, &namespace, "second", &guard).await?;
    let maintenance = json!({
        "apiVersion": OLD_VERSION, "kind": "NodeMaintenance", "metadata": { "name": "versions-kubectl" },
        "spec": { "nodeSelector": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "nowhere", "operator": "Exists" }] }] } },
    });
    let cases = [
        (
            old_request("first", &first),
            "evictionrequests.v1alpha1.coordination.k8s.io",
            "NAME POD ACTIVE COMPLETED COMPLETE REQUESTERS RETRIES ETA AGE",
        ),
        (
            evacuation("second", &second),
            "evac",
            "NAME POD ACTIVE COMPLETED COMPLETE INSTIGATORS RETRIES ETA AGE",
        ),
        (
            maintenance,
            "nodemaintenances.v1alpha1.coordination.k8s.io",
            "NAME STAGE PODS LEFT AGE",
        ),
    ];
    for (object, resource, columns) in cases {
        let output = kubectl
            .run_with_input(&["create", "-n", &namespace, "-f", "-"], &object.to_string())
            .await?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let name = text(&object["metadata"]["name"])?;
        let shown = kubectl.ok(&["get", resource, &name, "-n", &namespace]).await?;
        let header = shown.lines().next().unwrap_or_default();
        let header: Vec<&str> = header.split_whitespace().collect();
        assert_eq!(header.join(" "), columns);
        let yaml = kubectl
            .ok(&["get", resource, &name, "-n", &namespace, "-o", "yaml"])
            .await?;
        let kind = text(&object["kind"])?;
        ensure!(
            yaml.starts_with(&format!("apiVersion: {OLD_VERSION}\nkind: {kind}\n")),
            "{yaml}"
        );
    }
    // Without a version, kubectl uses the preferred one.
    let yaml = kubectl
        .ok(&["get", "er", &second, "-n", &namespace, "-o", "yaml"])
        .await?;
    ensure!(
        yaml.starts_with("apiVersion: coordination.k8s.io/v1alpha3\n"),
        "{yaml}"
    );
    let listed = kubectl
        .ok(&["get", "drydock", "-n", &namespace, "-o", "name"])
        .await?;
    for name in [
        format!("evictionrequest.coordination.k8s.io/{first}"),
        format!("evacuation.coordination.k8s.io/{second}-second"),
    ] {
        ensure!(listed.lines().any(|line| line == name), "{listed}");
    }
    Ok(())
}

#[tokio::test]
async fn the_merged_openapi_document_renames_and_doubles_nothing() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let host = stage.host()?;
    let document = eventually("both versions in the merged document", PATIENCE, async || {
        let document = host.get("/openapi/v2").await?.expect(200)?;
        let has = |root: &str| {
            document["paths"]
                .get(format!("{root}/nodemaintenances"))
                .is_some()
        };
        Ok((has(ROOT) && has(OLD)).then_some(document))
    })
    .await?;
    let definitions = document["definitions"].as_object().context("definitions")?;
    let mut kinds: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, definition) in definitions {
        let renamed = name.rsplit_once("_v").map(|(_, number)| number);
        ensure!(
            renamed.is_none_or(|number| number.parse::<u32>().is_err()),
            "{name} was renamed"
        );
        let own = name.starts_with("io.drydock.");
        ensure!(
            own || !definition.to_string().contains("#/definitions/io.drydock."),
            "{name} refers to a definition of ours"
        );
        for kind in definition["x-kubernetes-group-version-kind"]
            .as_array()
            .into_iter()
            .flatten()
        {
            kinds.entry(kind.to_string()).or_default().push(name);
        }
    }
    let doubled: Vec<_> = kinds.iter().filter(|(_, names)| names.len() > 1).collect();
    ensure!(doubled.is_empty(), "{doubled:?}");
    let ours: BTreeSet<&str> = kinds
        .values()
        .flatten()
        .filter_map(|name| name.strip_prefix("io.drydock.api.coordination."))
        .collect();
    for kind in [
        "v1alpha1.Evacuation",
        "v1alpha1.EvictionRequest",
        "v1alpha1.NodeMaintenance",
        "v1alpha3.EvictionInterceptor",
        "v1alpha3.EvictionRequest",
        "v1alpha3.NodeMaintenance",
    ] {
        ensure!(
            ours.contains(kind) && ours.contains(&*format!("{kind}List")),
            "{kind}: {ours:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn dependents_of_an_evacuation_live_as_long_as_it() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("versions-owners").await?;
    let host = stage.host()?;
    let uid = pod(&stage, &namespace, "owner", &[("guard.example.com", "20000")]).await?;
    let created = host
        .post(&evacuations(&namespace), &evacuation("owner", &uid))
        .await?
        .expect(201)?;
    let (name, own_uid) = (
        text(&created["metadata"]["name"])?,
        text(&created["metadata"]["uid"])?,
    );
    let request = host
        .get(&format!("{}/{uid}", requests_of(&namespace)))
        .await?
        .expect(200)?;
    let stored_uid = text(&request["metadata"]["uid"])?;
    ensure!(own_uid != stored_uid, "{own_uid}");
    let owner =
        |uid: &str| json!({ "apiVersion": OLD_VERSION, "kind": "Evacuation", "name": name, "uid": uid });
    let kept = owned(&host, &namespace, "kept", &owner(&own_uid)).await?;
    let of_request = json!({ "apiVersion": "coordination.k8s.io/v1alpha3", "kind": "EvictionRequest",
        "name": uid, "uid": stored_uid });
    let twin = owned(&host, &namespace, "of-request", &of_request).await?;
    // The garbage collector has looked at dependents once it has removed those whose owner has another uid.
    for (number, other) in [stored_uid.as_str(), "2f0e3f1c-6a0b-4f7e-9d5b-0d6c1f0a7b99"]
        .iter()
        .enumerate()
    {
        let absent = owned(&host, &namespace, &format!("absent-{number}"), &owner(other)).await?;
        vanishes(&host, &absent).await?;
    }
    host.get(&kept).await?.expect(200)?;
    host.get(&twin).await?.expect(200)?;

    // Deleted in the foreground, the Evacuation waits for its dependents and for its instigators.
    let path = format!("{}/{name}", evacuations(&namespace));
    let options = json!({ "propagationPolicy": "Foreground", "preconditions": { "uid": own_uid } });
    host.delete_with(&path, &options).await?.expect(200)?;
    vanishes(&host, &kept).await?;
    becomes(&host, &path, "only the instigators to hold it", |object| {
        !object["metadata"]["finalizers"]
            .to_string()
            .contains("foreground")
    })
    .await?;
    host.get(&twin).await?.expect(200)?;
    let none = json!({ "metadata": { "finalizers": null } });
    host.patch(&path, MERGE_PATCH, &none).await?.expect(200)?;
    vanishes(&host, &path).await?;
    vanishes(&host, &twin).await?;
    Ok(())
}

#[tokio::test]
async fn a_namespace_with_requests_and_evacuations_is_deleted() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("versions-namespace").await?;
    let host = stage.host()?;
    for number in 0..6 {
        let name = format!("pod-{number}");
        let uid = pod(&stage, &namespace, &name, &[("guard.example.com", "20000")]).await?;
        if number % 2 == 0 {
            let object = evacuation(&name, &uid);
            host.post(&evacuations(&namespace), &object).await?.expect(201)?;
        } else {
            let object = old_request(&name, &uid);
            host.post(&old_requests(&namespace), &object).await?.expect(201)?;
        }
        if number == 0 {
            let path = format!("{}/{uid}-{name}", evacuations(&namespace));
            let marked = host.delete(&path).await?.expect(200)?;
            ensure!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
        }
    }
    let path = format!("/api/v1/namespaces/{namespace}");
    host.delete(&path).await?.expect(200)?;
    vanishes(&host, &path).await
}

/// The first revision: a requester and an interceptor that know only EvictionRequests of v1alpha1. The interceptor first
/// forbids the cancellation, reports, and then ends the pod itself.
#[tokio::test]
async fn an_interceptor_of_the_first_revision_moves_a_pod() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("versions-first").await?;
    let host = stage.host()?;
    let evacuators = [("mover.example.com", "20000"), ("rescue.example.com", "2000")];
    let uid = pod(&stage, &namespace, "moved", &evacuators).await?;
    let collection = old_requests(&namespace);
    let missing = old_request("no-such-pod", &uid);
    host.post(&collection, &missing).await?.expect(404)?;
    let created = host
        .post(&collection, &old_request("moved", &uid))
        .await?
        .expect(201)?;
    let interceptors = json!([{ "name": "imperative-eviction.k8s.io" }, { "name": "rescue.example.com" },
        { "name": "mover.example.com" }]);
    assert_eq!(created["spec"]["interceptors"], interceptors);
    let path = format!("{collection}/{uid}");
    let request = becomes(&host, &path, "the mover to be active", |request| {
        request["status"]["activeInterceptorName"] == "mover.example.com"
    })
    .await?;
    assert_eq!(request["spec"]["interceptors"], interceptors);
    assert_eq!(request["spec"]["heartbeatDeadlineSeconds"], 1800);

    let mut report = request;
    report["status"]["heartbeatTime"] = json!(host.get("/healthz").await?.time()?);
    report["status"]["message"] = json!("copies the data");
    report["status"]["evictionRequestCancellationPolicy"] = json!("Forbid");
    eventually("the report to be accepted", PATIENCE, async || {
        let current = host.get(&path).await?.expect(200)?;
        report["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
        let response = host.put(&format!("{path}/status"), &report).await?;
        ensure!(response.status == 200, "{}", response.text());
        Ok(Some(()))
    })
    .await?;
    host.delete(&path).await?.expect(403)?;
    let withdrawn = json!({ "spec": { "requesters": [] } });
    host.patch(&path, MERGE_PATCH, &withdrawn).await?.expect(422)?;
    let current = host
        .get(&format!("{}/{uid}", requests_of(&namespace)))
        .await?
        .expect(200)?;
    let entry = &current["status"]["interceptors"][0];
    assert_eq!(entry["message"], "copies the data");
    assert_eq!(entry["startTime"], entry["heartbeatTime"]);

    host.delete(&format!("/api/v1/namespaces/{namespace}/pods/moved"))
        .await?
        .expect(200)?;
    let request = becomes(&host, &path, "Complete", |request| is_true(request, "Complete")).await?;
    ensure!(
        request["status"].get("activeInterceptorName").is_none(),
        "{request}"
    );
    host.delete(&path).await?.expect(200)?;
    vanishes(&host, &path).await
}

/// The ancestor: an instigator and an evacuator that know only Evacuations. The evacuator withdraws, so that the pod is
/// evicted, and the deleted Evacuation waits until its instigator has seen the end.
#[tokio::test]
async fn an_evacuator_withdraws_and_the_pod_is_evicted() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("versions-evacuation").await?;
    let host = stage.host()?;
    let evacuators = [
        ("operator.example.com", "11000"),
        ("owner.example.com", "10000/controller"),
    ];
    let uid = pod(&stage, &namespace, "evacuated", &evacuators).await?;
    let collection = evacuations(&namespace);
    let object = evacuation("evacuated", &uid);
    host.post(&collection, &object).await?.expect(201)?;
    let path = format!("{collection}/{}", text(&object["metadata"]["name"])?);
    for evacuator in ["operator.example.com", "owner.example.com"] {
        let active = |object: &Value| object["status"]["activeEvacuatorClass"] == evacuator;
        let shown = becomes(&host, &path, &format!("{evacuator} to be active"), active).await?;
        let classes: Vec<&Value> = shown["spec"]["evacuators"]
            .as_array()
            .context("evacuators")?
            .iter()
            .map(|it| &it["evacuatorClass"])
            .collect();
        assert_eq!(
            classes,
            [
                "operator.example.com",
                "owner.example.com",
                "imperative-eviction.k8s.io"
            ]
        );
        let completed = json!({ "status": { "activeEvacuatorCompleted": true, "message": "not mine" } });
        host.patch(&format!("{path}/status"), MERGE_PATCH, &completed)
            .await?
            .expect(200)?;
    }
    vanishes(&host, &format!("/api/v1/namespaces/{namespace}/pods/evacuated")).await?;
    becomes(&host, &path, "the evacuation to end", |object| {
        is_true(object, "Evicted")
    })
    .await?;
    let listed = host.get(&collection).await?.expect(200)?;
    assert_eq!(listed["items"][0]["metadata"]["finalizers"], json!([INSTIGATOR]));
    host.delete(&path).await?.expect(200)?;
    vanishes(&host, &path).await
}

/// An instigator cancels: it deletes the Evacuation and removes its finalizer; the pod stays.
#[tokio::test]
async fn an_instigator_cancels_an_evacuation() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("versions-cancel").await?;
    let host = stage.host()?;
    let uid = pod(&stage, &namespace, "stays", &[("guard.example.com", "20000")]).await?;
    let collection = evacuations(&namespace);
    host.post(&collection, &evacuation("stays", &uid))
        .await?
        .expect(201)?;
    let path = format!("{collection}/{uid}-stays");
    becomes(&host, &path, "the guard to be active", |object| {
        object["status"]["activeEvacuatorClass"] == "guard.example.com"
    })
    .await?;
    let without = json!({ "metadata": { "finalizers": null } });
    host.patch(&path, MERGE_PATCH, &without).await?.expect(200)?;
    let ended = becomes(&host, &path, "the cancellation", |object| {
        is_true(object, "Canceled")
    })
    .await?;
    ensure!(ended["status"].get("activeEvacuatorClass").is_none(), "{ended}");
    host.delete(&path).await?.expect(200)?;
    vanishes(&host, &path).await?;
    let pod = format!("/api/v1/namespaces/{namespace}/pods/stays");
    host.get(&pod).await?.expect(200)?;
    Ok(())
}
