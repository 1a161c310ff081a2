//! The rights that RBAC on our kinds alone does not give: to act as an interceptor, to decide about requests, and to maintain
//! nodes. Each is checked through kube-apiserver and at our own port.

use std::time::Duration;

use anyhow::{Result, ensure};
use drydock_machinery::clock::{Clock as _, SystemClock};
use drydock_tests::calls::{APPLY_PATCH, Caller, MERGE_PATCH};
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::Server;
use drydock_tests::cluster::pki::Credential;
use serde_json::{Value, json};

use crate::security::{grant, person};
use crate::stage::{
    PATIENCE, ROOT, Stage, eviction_request, idle_maintenance, interceptor, requests_of, text, together,
};

/// A refusal is cached for 10 s by our server.
const GRANTED: Duration = Duration::from_secs(40);

fn callers(stage: &Stage, user: &Credential) -> Result<[Caller; 2]> {
    Ok([
        stage.host_as(Some(user))?,
        stage.direct_as(Some(user), Protocol::Http2)?,
    ])
}

/// Grants verbs on cluster-scoped objects.
async fn grant_everywhere(stage: &Stage, user: &str, rules: &Value) -> Result<()> {
    let role = json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": user }, "rules": rules,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": user },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        },
    ] });
    stage.kubectl().apply(&role.to_string()).await?;
    Ok(())
}

/// A request whose interceptor `acme.io/guard` is active; returns its path and name.
async fn intercepted(stage: &Stage, namespace: &str) -> Result<(String, String)> {
    let host = stage.host()?;
    let pod = json!({
        "metadata": {
            "name": "guarded",
            "annotations": { "evictionrequest.coordination.k8s.io/interceptors": "acme.io/guard" },
        },
        "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "main" }] },
    });
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let uid = text(&host.post(&pods, &pod).await?.expect(201)?["metadata"]["uid"])?;
    let request = eviction_request(namespace, "guarded", &uid);
    host.post(&requests_of(namespace), &request).await?.expect(201)?;
    let path = format!("{}/{uid}", requests_of(namespace));
    eventually("the guard to be active", PATIENCE, async || {
        let request = host.get(&path).await?.expect(200)?;
        ensure!(
            request["status"]["activeInterceptors"] == json!(["acme.io/guard"]),
            "{request}"
        );
        Ok(Some(()))
    })
    .await?;
    Ok((path, uid))
}

fn now() -> String {
    SystemClock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The status members by which the guard reports that it has started.
fn report(request: &Value) -> Value {
    let now = now();
    let mut interceptors = request["status"]["interceptors"].clone();
    for entry in interceptors.as_array_mut().into_iter().flatten() {
        if entry["name"] == "acme.io/guard" && entry["startTime"].is_null() {
            entry["startTime"] = json!(now);
            entry["heartbeatTime"] = json!(now);
        }
    }
    json!({ "status": { "interceptors": interceptors } })
}

fn condition(type_: &str) -> Value {
    let now = now();
    let condition = json!({ "type": type_, "status": "True", "reason": "Test", "message": "", "lastTransitionTime": now });
    json!({ "status": { "conditions": [condition] } })
}

/// The 403 of `reporter` for a request.
fn may_not(name: &str, verb: &str, resource: &str, rest: &str) -> String {
    format!(
        "evictionrequests.coordination.k8s.io \"{name}\" is forbidden: User \"reporter\" cannot {verb} resource \
         \"{resource}\" in API group \"coordination.k8s.io\" {rest}"
    )
}

/// A user who has only the right to write the status can change nothing in it.
async fn nothing_without_rights(caller: &Caller, path: &str, name: &str, may_not_decide: &str) -> Result<()> {
    let may_not_intercept = may_not(
        name,
        "intercept",
        "evictioninterceptors",
        "at the cluster scope: interceptor \"acme.io/guard\"",
    );
    let status = format!("{path}/status");
    let live = eventually("the role to be in force", GRANTED, async || {
        caller.get(path).await?.expect(200).map(Some)
    })
    .await?;
    caller
        .patch(&status, MERGE_PATCH, &report(&live))
        .await?
        .expect_error(403, "Forbidden", &may_not_intercept)?;
    let hold = json!({ "status": { "evictionRequestCancellationPolicy": "Forbid" } });
    caller
        .patch(&format!("{status}?dryRun=All"), MERGE_PATCH, &hold)
        .await?
        .expect_error(403, "Forbidden", &may_not_intercept)?;
    for decision in ["Evicted", "Blocked", "example.com/Mine"] {
        caller
            .patch(&status, MERGE_PATCH, &condition(decision))
            .await?
            .expect_error(403, "Forbidden", may_not_decide)?;
    }
    // What changes nothing needs no right.
    caller.put(&status, &live).await?.expect(200)?;
    Ok(())
}

#[tokio::test]
async fn the_status_of_a_request_belongs_to_its_interceptor_and_its_coordinator() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("rights-status").await?;
    let user = person(&stage, "reporter", None)?;
    let callers = callers(&stage, &user)?;
    let on_requests = json!([{
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["evictionrequests", "evictionrequests/status"],
        "verbs": ["get", "update", "patch"],
    }]);
    grant(&stage, &namespace, "reporter", &on_requests).await?;
    let (path, name) = intercepted(&stage, &namespace).await?;
    let status = format!("{path}/status");
    let may_not_decide = may_not(
        &name,
        "coordinate",
        "evictionrequests",
        &format!("in the namespace \"{namespace}\""),
    );
    for caller in &callers {
        nothing_without_rights(caller, &path, &name, &may_not_decide).await?;
    }

    let intercept = json!([{
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["evictioninterceptors"],
        "resourceNames": ["acme.io.guard"],
        "verbs": ["intercept"],
    }]);
    grant_everywhere(&stage, "reporter", &intercept).await?;
    for caller in &callers {
        eventually("the interceptor to report", GRANTED, async || {
            let live = caller.get(&path).await?.expect(200)?;
            let reported = caller.patch(&status, MERGE_PATCH, &report(&live)).await?;
            let reported = reported.expect(200)?;
            let entry = &reported["status"]["interceptors"][0];
            ensure!(entry["heartbeatTime"].is_string(), "{entry}");
            Ok(Some(()))
        })
        .await?;
        eventually(
            "a condition of its own beside those of the controller",
            PATIENCE,
            async || {
                let live = caller.get(&path).await?.expect(200)?;
                let mut own = condition("example.com/Mine");
                let others = live["status"]["conditions"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                if let Some(all) = own["status"]["conditions"].as_array_mut() {
                    all.extend(others.into_iter().filter(|it| it["type"] != "example.com/Mine"));
                }
                own["metadata"] = json!({ "resourceVersion": live["metadata"]["resourceVersion"] });
                caller
                    .patch(&status, MERGE_PATCH, &own)
                    .await?
                    .expect(200)
                    .map(Some)
            },
        )
        .await?;
        for decision in [condition("Evicted"), condition("Canceled")] {
            caller
                .patch(&status, MERGE_PATCH, &decision)
                .await?
                .expect_error(403, "Forbidden", &may_not_decide)?;
        }
    }
    Ok(())
}

fn of_node(name: &str, node: &str) -> Value {
    let mut maintenance = idle_maintenance(name, "none");
    let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    maintenance["spec"]["nodeSelector"]["nodeSelectorTerms"] = json!([{ "matchFields": [field] }]);
    maintenance
}

/// The same answer whether or not the selector matches a node.
#[tokio::test]
async fn planning_a_maintenance_needs_the_right_to_maintain_the_nodes() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let host = stage.host()?;
    let label = json!({ "rights-node": "yes" });
    let node =
        json!({ "metadata": { "name": "rights-node", "labels": label }, "spec": { "unschedulable": true } });
    host.post("/api/v1/nodes", &node).await?.expect(201)?;
    let user = person(&stage, "planner", None)?;
    let callers = callers(&stage, &user)?;
    let on_maintenances =
        json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["nodemaintenances"], "verbs": ["*"] });
    grant_everywhere(&stage, "planner", &json!([on_maintenances])).await?;
    let all = format!("{ROOT}/nodemaintenances");
    for caller in &callers {
        eventually("the role to be in force", GRANTED, async || {
            caller.get(&all).await?.expect(200).map(Some)
        })
        .await?;
    }
    let refused = |about: &str| {
        format!(
            "nodemaintenances.coordination.k8s.io \"rights\" is forbidden: User \"planner\" cannot maintain resource \
             \"nodes\" in API group \"\" at the cluster scope: {about}"
        )
    };
    let general = refused(
        "a selector other than matchFields of metadata.name with In requires the right for all nodes",
    );
    let mut by_label = idle_maintenance("rights", "none");
    let matching = json!({ "key": "rights-node", "operator": "Exists" });
    by_label["spec"]["nodeSelector"]["nodeSelectorTerms"] = json!([{ "matchExpressions": [matching] }]);
    for caller in &callers {
        for (object, message) in [
            (idle_maintenance("rights", "no-such-node"), &general),
            (by_label.clone(), &general),
            (
                of_node("rights", "rights-node"),
                &refused("nodes \"rights-node\""),
            ),
            (
                of_node("rights", "no-such-node"),
                &refused("nodes \"no-such-node\""),
            ),
        ] {
            for path in [all.clone(), format!("{all}?dryRun=All")] {
                let response = caller.post(&path, &object).await?;
                assert_eq!(response.header("warning"), "");
                response.expect_error(403, "Forbidden", message)?;
            }
        }
    }
    let one_node = json!({
        "apiGroups": [""], "resources": ["nodes"], "resourceNames": ["rights-node"], "verbs": ["maintain"],
    });
    grant_everywhere(&stage, "planner", &json!([on_maintenances, one_node])).await?;
    for caller in &callers {
        eventually("the right to be in force", GRANTED, async || {
            let path = format!("{all}?dryRun=All");
            caller
                .post(&path, &of_node("rights", "rights-node"))
                .await?
                .expect(201)
                .map(Some)
        })
        .await?;
        let response = caller.post(&all, &by_label).await?;
        response.expect_error(403, "Forbidden", &general)?;
    }
    host.post(&all, &by_label).await?.expect(201)?;
    let path = format!("{all}/rights");
    labels_only(&callers, &path, &general).await?;
    host.delete(&path).await?.expect(200)?;
    Ok(())
}

/// Labels need no right on nodes, whoever made the maintenance; a change of the spec and a deletion do.
async fn labels_only(callers: &[Caller], path: &str, general: &str) -> Result<()> {
    for caller in callers {
        let labels = json!({ "metadata": { "labels": { "changed": "yes" } } });
        caller.patch(path, MERGE_PATCH, &labels).await?.expect(200)?;
        let stage = json!({ "spec": { "stage": "Drain" } });
        let response = caller.patch(path, MERGE_PATCH, &stage).await?;
        response.expect_error(403, "Forbidden", general)?;
        caller
            .delete(path)
            .await?
            .expect_error(403, "Forbidden", general)?;
    }
    Ok(())
}

/// A PUT never creates, so it needs no such review: the object is not found.
#[tokio::test]
async fn an_apply_that_creates_needs_the_right_to_create() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("rights-apply").await?;
    let applier = person(&stage, "applier", None)?;
    let verbs = json!(["get", "list", "patch", "update"]);
    let requests =
        json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["evictionrequests"], "verbs": verbs });
    let pods = json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["delete"] });
    grant(&stage, &namespace, "applier", &json!([requests, pods])).await?;
    let callers = callers(&stage, &applier)?;
    eventually("the role to be in force", PATIENCE, async || {
        callers[0].get(&requests_of(&namespace)).await?.expect(200)?;
        Ok(Some(()))
    })
    .await?;
    let uid = "00004a53-0000-4000-8000-000000000001";
    let object = eviction_request(&namespace, "web-0", uid);
    let path = format!("{}/{uid}", requests_of(&namespace));
    let message = format!(
        "evictionrequests.coordination.k8s.io \"{uid}\" is forbidden: User \"applier\" cannot create resource \
         \"evictionrequests\" in API group \"coordination.k8s.io\" in the namespace \"{namespace}\""
    );
    for caller in &callers {
        let applied = caller
            .patch(&format!("{path}?fieldManager=m"), APPLY_PATCH, &object)
            .await?;
        applied.expect_error(403, "Forbidden", &message)?;
        ensure!(caller.put(&path, &object).await?.status == 404);
    }
    ensure!(stage.host()?.get(&path).await?.status == 404);
    Ok(())
}

#[tokio::test]
async fn blocking_the_deletion_of_an_owner_needs_the_right_to_its_finalizers() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let flag = "--enable-admission-plugins=NamespaceLifecycle,OwnerReferencesPermissionEnforcement";
    let server = Server::start_with(stage.drydock, "owner-references", &[flag]).await?;
    let user = person(&stage, "blocker", None)?;
    let interceptors = json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["evictioninterceptors"], "verbs": ["*"] });
    grant_everywhere(&stage, "blocker", &json!([interceptors])).await?;
    let collection = format!("{ROOT}/evictioninterceptors");
    let caller = Caller::new(server.raw_client(Some(&user), Protocol::Http2)?);
    eventually("the role to be in force", PATIENCE, async || {
        caller.get(&collection).await?.expect(200)?;
        Ok(Some(()))
    })
    .await?;
    let owned = |kind: &str| {
        let mut object = interceptor("blocker.example.com", "blocker");
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": kind, "name": "absent", "uid": "00004a53-0000-4000-8000-000000000002",
            "blockOwnerDeletion": true,
        }]);
        object
    };
    let head = "evictioninterceptors.coordination.k8s.io \"blocker.example.com\" is forbidden: cannot set blockOwnerDeletion";
    for (kind, rest) in [
        (
            "Node",
            "if an ownerReference refers to a resource you can't set finalizers on: , <nil>",
        ),
        (
            "Nothing",
            "in this case because cannot find RESTMapping for APIVersion v1 Kind Nothing: no matches for kind \"Nothing\" in \
             version \"v1\"",
        ),
    ] {
        let response = caller.post(&collection, &owned(kind)).await?;
        response.expect_error(403, "Forbidden", &format!("{head} {rest}"))?;
    }
    let finalizers = json!({ "apiGroups": [""], "resources": ["nodes/finalizers"], "verbs": ["update"] });
    grant_everywhere(&stage, "blocker", &json!([interceptors, finalizers])).await?;
    eventually("the right to be in force", GRANTED, async || {
        caller.post(&collection, &owned("Node")).await?.expect(201)?;
        Ok(Some(()))
    })
    .await?;
    server.stop().await?;
    Ok(())
}
