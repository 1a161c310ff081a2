//! Drydock does no harm to its cluster: namespace deletion, garbage collection, quotas, and while the server is down.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::MERGE_PATCH;
use drydock_tests::clients::eventually;
use drydock_tests::cluster::Part;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::stage::{
    PATIENCE, ROOT, Stage, alone, eviction_request, idle_maintenance, requests_of, text, together, uid,
};

/// The prefix of the UIDs of this file.
const UIDS: u16 = 0x4a12;
/// The garbage collector discovers new kinds every 30 s, and the namespace controller backs off.
const COLLECTION: Duration = Duration::from_mins(2);

async fn gone(stage: &Stage, path: &str) -> Result<()> {
    let host = stage.host()?;
    eventually(&format!("{path} to go"), COLLECTION, async || {
        let response = host.get(path).await?;
        ensure!(response.status == 404, "{}", response.text());
        Ok(Some(()))
    })
    .await
}

fn config_maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn config_map(name: &str, owner: Option<&Value>) -> Value {
    let mut object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } });
    if let Some(owner) = owner {
        object["metadata"]["ownerReferences"] = json!([reference(owner)]);
    }
    object
}

/// An owner reference that blocks foreground deletion.
fn reference(owner: &Value) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true,
    })
}

#[tokio::test]
async fn namespace_deletion_deletes_its_requests_and_nothing_else() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let (host, kubectl) = (stage.host()?, stage.kubectl());
    let namespace = stage.namespace("harm-namespace").await?;
    let maintenances = format!("{ROOT}/nodemaintenances");
    host.post(&maintenances, &idle_maintenance("harm-bystander", "nowhere"))
        .await?
        .expect(201)?;
    let path = requests_of(&namespace);
    for number in 0..5 {
        let request = eviction_request(&namespace, "absent", &uid(UIDS, number));
        host.post(&path, &request).await?.expect(201)?;
    }
    let held = uid(UIDS, 100);
    let mut request = eviction_request(&namespace, "absent", &held);
    request["metadata"]["finalizers"] = json!(["example.com/hold"]);
    host.post(&path, &request).await?.expect(201)?;

    kubectl
        .ok(&["delete", "namespace", &namespace, "--wait=false"])
        .await?;
    eventually("the namespace to report what holds it", COLLECTION, async || {
        let status = host
            .get(&format!("/api/v1/namespaces/{namespace}"))
            .await?
            .expect(200)?;
        let conditions = status["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let holds = conditions.iter().any(|it| {
            it["type"] == "NamespaceFinalizersRemaining"
                && it["status"] == "True"
                && it["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("example.com/hold"))
        });
        ensure!(holds, "{conditions:?}");
        Ok(Some(()))
    })
    .await?;
    let left = host.get(&path).await?.expect(200)?;
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    // Nothing new can be created.
    let late = uid(UIDS, 200);
    let response = host
        .post(&path, &eviction_request(&namespace, "absent", &late))
        .await?;
    let message = format!(
        "evictionrequests.coordination.k8s.io \"{late}\" is forbidden: unable to create new content in namespace \
         {namespace} because it is being terminated"
    );
    let status = response.expect_error(403, "Forbidden", &message)?;
    assert_eq!(
        status["details"]["causes"],
        json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }])
    );
    let free = json!({ "metadata": { "finalizers": null } });
    host.patch(&format!("{path}/{held}"), MERGE_PATCH, &free)
        .await?
        .expect(200)?;
    gone(&stage, &format!("/api/v1/namespaces/{namespace}")).await?;
    let bystander = host
        .get(&format!("{maintenances}/harm-bystander"))
        .await?
        .expect(200)?;
    assert_eq!(bystander["metadata"]["deletionTimestamp"], Value::Null);
    Ok(())
}

#[tokio::test]
async fn namespace_deletion_overrides_forbidden_cancellation() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let host = stage.host()?;
    let namespace = stage.namespace("harm-forbid").await?;
    let guard = "guard.example.com";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "held", "finalizers": ["example.com/hold"], "annotations": {
            format!("interceptor.evictionrequest.coordination.k8s.io/priority_{guard}"): "20000",
        } },
        "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "main" }] },
    });
    let pod = host
        .post(&format!("/api/v1/namespaces/{namespace}/pods"), &pod)
        .await?
        .expect(201)?;
    let uid = text(&pod["metadata"]["uid"])?;
    host.post(
        &requests_of(&namespace),
        &eviction_request(&namespace, "held", &uid),
    )
    .await?
    .expect(201)?;
    let item = format!("{}/{uid}", requests_of(&namespace));
    eventually("the guard to be active", PATIENCE, async || {
        let request = host.get(&item).await?.expect(200)?;
        ensure!(
            request["status"]["activeInterceptors"] == json!([guard]),
            "{}",
            request["status"]
        );
        Ok(Some(()))
    })
    .await?;
    let forbid = json!({ "status": { "evictionRequestCancellationPolicy": "Forbid" } });
    host.patch(&format!("{item}/status"), MERGE_PATCH, &forbid)
        .await?
        .expect(200)?;
    assert_eq!(host.delete(&item).await?.status, 403);
    stage
        .kubectl()
        .ok(&["delete", "namespace", &namespace, "--wait=false"])
        .await?;
    // The pod still exists, but in a terminating namespace the request can be deleted.
    let conditions = eventually("the request to be deletable", PATIENCE, async || {
        let request = host.get(&item).await?.expect(200)?;
        host.delete(&item).await?.expect(200)?;
        Ok(Some(request["status"]["conditions"].clone()))
    })
    .await?;
    ensure!(
        !conditions.to_string().contains("Evicted"),
        "it was deleted because its pod was evicted: {conditions}"
    );
    let pod = format!("/api/v1/namespaces/{namespace}/pods/held");
    host.get(&pod).await?.expect(200)?;
    let free = json!({ "metadata": { "finalizers": null } });
    host.patch(&pod, MERGE_PATCH, &free).await?.expect(200)?;
    gone(&stage, &format!("/api/v1/namespaces/{namespace}")).await
}

/// Deletes an owner, and checks that the policy is applied to its dependent.
async fn delete_owner(stage: &Stage, policy: &str, owner: &str, dependent: &str) -> Result<()> {
    let host = stage.host()?;
    let options = json!({ "propagationPolicy": policy });
    host.delete_with(owner, &options).await?.expect(200)?;
    gone(stage, owner).await?;
    if policy != "Orphan" {
        return gone(stage, dependent).await;
    }
    let left = host.get(dependent).await?.expect(200)?;
    assert_eq!(left["metadata"]["ownerReferences"], Value::Null, "{left}");
    Ok(())
}

#[tokio::test]
async fn dependents_of_our_objects_are_collected() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let host = stage.host()?;
    let namespace = stage.namespace("harm-owned").await?;
    let path = config_maps(&namespace);
    for policy in ["Background", "Foreground", "Orphan"] {
        let name = format!("harm-owner-{}", policy.to_lowercase());
        let owner = host
            .post(
                &format!("{ROOT}/nodemaintenances"),
                &idle_maintenance(&name, "nowhere"),
            )
            .await?
            .expect(201)?;
        host.post(&path, &config_map(&name, Some(&owner)))
            .await?
            .expect(201)?;
    }
    for policy in ["Background", "Foreground", "Orphan"] {
        let name = format!("harm-owner-{}", policy.to_lowercase());
        let (owner, dependent) = (
            format!("{ROOT}/nodemaintenances/{name}"),
            format!("{path}/{name}"),
        );
        delete_owner(&stage, policy, &owner, &dependent).await?;
    }
    Ok(())
}

#[tokio::test]
async fn our_objects_are_collected_with_their_owners() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let host = stage.host()?;
    let namespace = stage.namespace("harm-owners").await?;
    let (owners, requests) = (config_maps(&namespace), requests_of(&namespace));
    let mut pairs = Vec::new();
    for (number, policy) in ["Background", "Foreground", "Orphan"].into_iter().enumerate() {
        let name = policy.to_lowercase();
        let owner = host.post(&owners, &config_map(&name, None)).await?.expect(201)?;
        let uid = uid(UIDS, 1000 + number as u64);
        let mut request = eviction_request(&namespace, "absent", &uid);
        request["metadata"]["ownerReferences"] = json!([reference(&owner)]);
        host.post(&requests, &request).await?.expect(201)?;
        pairs.push((policy, format!("{owners}/{name}"), format!("{requests}/{uid}")));
    }
    // The dependent of an owner that never existed is deleted.
    let lost = uid(UIDS, 2000);
    let mut request = eviction_request(&namespace, "absent", &lost);
    request["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "never-was", "uid": "00000000-0000-4000-8000-00000000dead",
    }]);
    host.post(&requests, &request).await?.expect(201)?;
    gone(&stage, &format!("{requests}/{lost}")).await?;
    for (policy, owner, dependent) in pairs {
        host.get(&dependent).await?.expect(200)?;
        delete_owner(&stage, policy, &owner, &dependent).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_quota_counts_requests() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let host = stage.host()?;
    let namespace = stage.namespace("harm-quota").await?;
    let key = "count/evictionrequests.coordination.k8s.io";
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": { "name": "requests", "namespace": namespace }, "spec": { "hard": { key: "50" } },
    });
    stage.kubectl().apply(&quota.to_string()).await?;
    let used = async |expected: &str| {
        let path = format!("/api/v1/namespaces/{namespace}/resourcequotas/requests");
        eventually(&format!("{expected} to be counted"), COLLECTION, async || {
            let quota = host.get(&path).await?.expect(200)?;
            ensure!(quota["status"]["used"][key] == expected, "{}", quota["status"]);
            Ok(Some(()))
        })
        .await
    };
    // The quota controller discovers new kinds every 30 s, and recounts a quota only when it changes.
    let mut attempt = 50;
    eventually(
        "the quota controller to discover our kind",
        COLLECTION,
        async || {
            attempt += 1;
            let patch = json!({ "spec": { "hard": { key: attempt.to_string() } } });
            let path = format!("/api/v1/namespaces/{namespace}/resourcequotas/requests");
            let quota = host.patch(&path, MERGE_PATCH, &patch).await?.expect(200)?;
            ensure!(quota["status"]["used"][key] == "0", "{}", quota["status"]);
            Ok(Some(()))
        },
    )
    .await?;
    let path = requests_of(&namespace);
    for number in 3000..3003 {
        let request = eviction_request(&namespace, "absent", &uid(UIDS, number));
        host.post(&path, &request).await?.expect(201)?;
    }
    // It recounts after deletions, not after creations: those are counted by admission.
    host.delete(&format!("{path}/{}", uid(UIDS, 3000)))
        .await?
        .expect(200)?;
    used("2").await
}

#[tokio::test]
async fn the_cluster_works_while_the_server_is_down() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    let (host, kubectl) = (stage.host()?, stage.kubectl());
    let namespace = stage.namespace("harm-absence").await?;
    host.post(
        &format!("{ROOT}/nodemaintenances"),
        &idle_maintenance("harm-absence", "nowhere"),
    )
    .await?
    .expect(201)?;
    let status = stage
        .drydock
        .stop_part(Part::ApiServer)
        .await?
        .context("the server ran")?;
    ensure!(status.success(), "{status}");

    let response = host.get(&format!("{ROOT}/nodemaintenances")).await?;
    assert_eq!(response.status, 503, "{}", response.text());
    kubectl.ok(&["get", "pods", "-A"]).await?;
    stage.pod(&namespace, "unrelated").await?;
    kubectl
        .ok(&["delete", "pod", "unrelated", "-n", &namespace, "--timeout=50s"])
        .await?;
    // Garbage collection of other kinds works too.
    let owner = host
        .post(&config_maps(&namespace), &config_map("owner", None))
        .await?
        .expect(201)?;
    host.post(&config_maps(&namespace), &config_map("dependent", Some(&owner)))
        .await?
        .expect(201)?;
    host.delete(&format!("{}/owner", config_maps(&namespace)))
        .await?
        .expect(200)?;
    gone(&stage, &format!("{}/dependent", config_maps(&namespace))).await?;

    let started = Instant::now();
    stage.drydock.start_part(Part::ApiServer).await?;
    stage.drydock.available().await?;
    ensure!(
        started.elapsed() < Duration::from_secs(30),
        "Available after {:?}",
        started.elapsed()
    );
    kubectl.ok(&["get", "nm", "harm-absence"]).await?;
    kubectl
        .ok(&["delete", "namespace", &namespace, "--timeout=55s"])
        .await?;
    Ok(())
}
