//! Our kinds in their older versions: the same objects in other shapes, and Evacuations under names of their own.

use drydock_proto::kinds::evictionrequest::evacuation::{self, HOLD_FINALIZER};

use super::*;
use crate::host::{AccessVerdict, HostError};

const V1ALPHA1: &str = "/apis/coordination.k8s.io/v1alpha1/namespaces/shop/evictionrequests";
pub(super) const EVACUATIONS: &str = "/apis/coordination.k8s.io/v1alpha1/namespaces/shop/evacuations";
const INSTIGATOR: &str = "evacuation.coordination.k8s.io/instigator_a.example.com";

/// A server with the pods `web-0` to `web-9`, whose uids are the names of the sample requests. Each has the interceptors of
/// [`active`].
async fn served() -> Served {
    let served = Served::new().await;
    let mut pods = served.host.pods.lock().unwrap();
    for n in 0..10 {
        let annotations = json!({"evictionrequest.coordination.k8s.io/interceptors": "first.example.com"});
        let pod =
            json!({"metadata": {"name": format!("web-{n}"), "uid": uid(n), "annotations": annotations}});
        pods.insert(format!("web-{n}"), pod);
    }
    drop(pods);
    served
}

fn uid(n: usize) -> String {
    (REQUESTS.name)(n)
}

fn name(n: usize) -> String {
    format!("{}-web-{n}", uid(n))
}

fn request(n: usize) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1alpha1", "kind": "EvictionRequest", "metadata": {"name": uid(n)},
        "spec": {"target": {"podRef": {"name": format!("web-{n}"), "uid": uid(n)}}, "requesters": [{"name": "a.example.com"}]}})
}

pub(super) fn evacuation(n: usize) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1alpha1", "kind": "Evacuation",
        "metadata": {"name": name(n), "finalizers": [INSTIGATOR]},
        "spec": {"podRef": {"name": format!("web-{n}"), "uid": uid(n)}}})
}

async fn post(served: &Served, path: &str, object: &Value) -> Value {
    served.send(&format!("POST {path}"), object).await.json(201).await
}

async fn get(served: &Served, path: &str, name: &str) -> Value {
    served.get(&format!("{path}/{name}")).await.json(200).await
}

/// Fields and messages of the causes of a 422.
fn causes(status: &Value) -> Vec<(&str, &str)> {
    let causes = status["details"]["causes"].as_array().unwrap();
    let text = |cause: &'_ Value, member: &str| cause[member].as_str().unwrap().to_owned().leak() as &str;
    causes
        .iter()
        .map(|cause| (text(cause, "field"), text(cause, "message")))
        .collect()
}

async fn invalid(served: &Served, line: &str, object: &Value) -> Value {
    served.send(line, object).await.json(422).await
}

/// A status as the controller writes it: the first of two interceptors is active.
fn active() -> Value {
    json!({"status": {
        "targetInterceptors": [{"name": "first.example.com"}, {"name": "imperative-eviction.k8s.io"}],
        "activeInterceptors": ["first.example.com"],
        "interceptors": [{"name": "first.example.com", "activationTime": "2026-06-01T12:00:00Z"},
            {"name": "imperative-eviction.k8s.io"}],
    }})
}

async fn activate(served: &Served, n: usize) {
    let line = format!("PATCH {}/status?fieldManager=controller", REQUESTS.item(n));
    served.send(&line, &active()).await.json(200).await;
}

#[tokio::test]
async fn a_request_is_the_same_object_in_every_version() {
    let served = served().await;
    let created = post(&served, V1ALPHA1, &request(1)).await;
    assert_eq!(created["spec"]["heartbeatDeadlineSeconds"], 1800);
    assert_eq!(created["spec"]["type"], "Soft");
    activate(&served, 1).await;

    let hub = get(&served, REQUESTS.path, &uid(1)).await;
    assert_eq!(hub["spec"]["heartbeatDeadlineSeconds"], 1800);
    assert_eq!(
        hub["spec"]["target"],
        json!({"pod": {"name": "web-1", "uid": uid(1)}})
    );

    let first = get(&served, V1ALPHA1, &uid(1)).await;
    let interceptors = json!([{"name": "imperative-eviction.k8s.io"}, {"name": "first.example.com"}]);
    assert_eq!(first["spec"]["interceptors"], interceptors);
    assert_eq!(
        first["status"],
        json!({"activeInterceptorName": "first.example.com", "heartbeatTime": "2026-06-01T12:00:00Z", "message": "",
            "evictionRequestCancellationPolicy": "Allow"})
    );
    assert_eq!(first["metadata"]["uid"], hub["metadata"]["uid"]);

    let evacuation = get(&served, EVACUATIONS, &name(1)).await;
    assert_eq!(evacuation["kind"], "Evacuation");
    assert_eq!(evacuation["metadata"]["name"], name(1));
    assert_eq!(evacuation["metadata"]["finalizers"], json!([INSTIGATOR]));
    assert_ne!(evacuation["metadata"]["uid"], hub["metadata"]["uid"]);
    for member in ["resourceVersion", "generation", "creationTimestamp"] {
        assert_eq!(evacuation["metadata"][member], hub["metadata"][member]);
    }
    assert_eq!(
        evacuation["spec"],
        json!({"podRef": {"name": "web-1", "uid": uid(1)}, "progressDeadlineSeconds": 1800, "evacuators": [
            {"evacuatorClass": "first.example.com", "priority": 11000},
            {"evacuatorClass": "imperative-eviction.k8s.io", "priority": 10500}]})
    );
    assert_eq!(
        evacuation["status"],
        json!({"activeEvacuatorClass": "first.example.com", "evacuationProgressTimestamp": "2026-06-01T12:00:00Z",
            "message": "", "evacuationCancellationPolicy": "Allow", "failedEvictionCounter": 0})
    );
    // Put back unchanged, nothing is written.
    for (path, name, object) in [(V1ALPHA1, uid(1), &first), (EVACUATIONS, name(1), &evacuation)] {
        let same = served
            .send(&format!("PUT {path}/{name}"), object)
            .await
            .json(200)
            .await;
        assert_eq!(&same, object);
        let same = served
            .send(&format!("PUT {path}/{name}/status"), object)
            .await
            .json(200)
            .await;
        assert_eq!(&same, object);
    }
    assert_eq!(get(&served, REQUESTS.path, &uid(1)).await, hub);
}

#[tokio::test]
async fn interceptors_report_in_the_version_that_they_speak() {
    let served = served().await;
    for (n, path, name, report, times) in [
        (
            1,
            V1ALPHA1,
            uid(1),
            json!({"heartbeatTime": "2026-06-01T12:00:05Z", "message": "moving",
            "expectedInterceptorFinishTime": "2026-06-01T13:00:00Z", "evictionRequestCancellationPolicy": "Forbid"}),
            json!({"activeInterceptorCompleted": true}),
        ),
        (
            2,
            EVACUATIONS,
            name(2),
            json!({"evacuationProgressTimestamp": "2026-06-01T12:00:05Z", "message": "moving",
            "expectedEvacuationFinishTime": "2026-06-01T13:00:00Z", "evacuationCancellationPolicy": "Forbid"}),
            json!({"activeEvacuatorCompleted": true}),
        ),
    ] {
        served.create(&REQUESTS, n).await;
        activate(&served, n).await;
        let line = format!("PATCH {path}/{name}/status?fieldManager=interceptor");
        let shown = served
            .send(&line, &json!({"status": report}))
            .await
            .json(200)
            .await;
        for (field, value) in report.as_object().unwrap() {
            assert_eq!(shown["status"][field], *value);
        }
        let hub = get(&served, REQUESTS.path, &uid(n)).await;
        assert_eq!(hub["status"]["evictionRequestCancellationPolicy"], "Forbid");
        let mut expected = json!({"name": "first.example.com", "activationTime": "2026-06-01T12:00:00Z",
            "startTime": "2026-06-01T12:00:05Z", "heartbeatTime": "2026-06-01T12:00:05Z",
            "expectedFinishTime": "2026-06-01T13:00:00Z", "message": "moving"});
        assert_eq!(hub["status"]["interceptors"][0], expected);
        let shown = served
            .send(&line, &json!({"status": times}))
            .await
            .json(200)
            .await;
        let (field, _) = times.as_object().unwrap().iter().next().unwrap();
        assert_eq!(shown["status"][field], true);
        let hub = get(&served, REQUESTS.path, &uid(n)).await;
        expected["completionTime"] = json!("2026-06-01T12:00:00Z");
        assert_eq!(hub["status"]["interceptors"][0], expected);
        assert_eq!(
            hub["status"]["targetInterceptors"],
            active()["status"]["targetInterceptors"]
        );
    }
}

#[tokio::test]
async fn errors_name_the_fields_of_the_version() {
    let served = served().await;
    let mut bad = request(1);
    bad["spec"]["target"]["podRef"]["name"] = json!("");
    bad["spec"]["heartbeatDeadlineSeconds"] = json!(599);
    let status = invalid(&served, &format!("POST {V1ALPHA1}"), &bad).await;
    let fields: Vec<&str> = causes(&status).into_iter().map(|(field, _)| field).collect();
    assert_eq!(
        fields,
        ["spec.target.podRef.name", "spec.heartbeatDeadlineSeconds"]
    );
    let mut bad = request(1);
    bad["spec"]["interceptors"] = json!([{"name": "x.example.com"}]);
    let status = invalid(&served, &format!("POST {V1ALPHA1}"), &bad).await;
    let expected = "Forbidden: may not be set: it is determined from the pod";
    assert_eq!(causes(&status), [("spec.interceptors", expected)]);

    let mut bad = evacuation(1);
    bad["metadata"]["name"] = json!(format!("{}-web", uid(1)));
    bad["spec"]["progressDeadlineSeconds"] = json!(21_601);
    bad["metadata"]["finalizers"] = json!(["example.com/other"]);
    let status = invalid(&served, &format!("POST {EVACUATIONS}"), &bad).await;
    let fields: Vec<&str> = causes(&status).into_iter().map(|(field, _)| field).collect();
    assert_eq!(
        fields,
        [
            "metadata.finalizers",
            "metadata.name",
            "spec.progressDeadlineSeconds"
        ]
    );
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .starts_with("Evacuation.coordination.k8s.io"),
        "{status}"
    );
    let mut bad = evacuation(1);
    bad["metadata"]["finalizers"] = json!(["evacuation.coordination.k8s.io/instigator_x.k8s.io"]);
    let status = invalid(&served, &format!("POST {EVACUATIONS}"), &bad).await;
    assert_eq!(causes(&status)[0].0, "metadata.finalizers");

    post(&served, V1ALPHA1, &request(2)).await;
    let line = format!("PATCH {V1ALPHA1}/{}/status", uid(2));
    let status = invalid(&served, &line, &json!({"status": {"message": "early"}})).await;
    let expected = "Forbidden: may change only while an interceptor is active";
    assert_eq!(causes(&status), [("status.message", expected)]);
    activate(&served, 2).await;
    let late = json!({"status": {"heartbeatTime": "2026-06-01T12:00:11Z"}});
    let status = invalid(&served, &line, &late).await;
    assert!(
        causes(&status)
            .iter()
            .all(|(field, _)| *field == "status.heartbeatTime"),
        "{status}"
    );
    let complete = json!({"status": {"conditions": [{"type": "Complete", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-06-01T12:00:00Z"}]}});
    let status = invalid(&served, &line, &complete).await;
    assert_eq!(causes(&status)[0].0, "status.conditions[0]");
}

#[tokio::test]
async fn a_create_in_an_older_version_looks_its_pod_up() {
    let served = served().await;
    served
        .host
        .pods
        .lock()
        .unwrap()
        .insert("web-2".to_owned(), json!({"metadata": {"uid": "other"}}));
    served.host.pods.lock().unwrap().remove("web-3");
    for (path, objects, field) in [
        (V1ALPHA1, [request(2), request(3)], "spec.target.podRef.uid"),
        (EVACUATIONS, [evacuation(2), evacuation(3)], "spec.podRef.uid"),
    ] {
        let line = format!("POST {path}?dryRun=All");
        let status = invalid(&served, &line, &objects[0]).await;
        assert_eq!(causes(&status)[0].0, field);
        let missing = served.send(&line, &objects[1]).await.json(404).await;
        assert_eq!(missing["details"], json!({"kind": "pods", "name": "web-3"}));
    }
    served.create(&REQUESTS, 3).await;
}

#[tokio::test]
async fn a_user_who_may_not_delete_the_pod_learns_nothing_about_it() {
    let served = served().await;
    served
        .host
        .decide_by(|_| Ok::<_, HostError>(AccessVerdict::NoOpinion(String::new())));
    let answer = served
        .send(&format!("POST {V1ALPHA1}"), &request(4))
        .await
        .json(403)
        .await;
    assert!(
        answer["message"]
            .as_str()
            .unwrap()
            .contains("cannot delete resource"),
        "{answer}"
    );
}

#[tokio::test]
async fn complete_is_true_when_the_request_is_final() {
    let served = served().await;
    served.create(&REQUESTS, 1).await;
    let canceled = json!({"type": "Canceled", "status": "True", "reason": "NoRequesters", "message": "none left",
        "lastTransitionTime": "2026-06-01T12:00:00Z"});
    let line = format!("PATCH {}/status", REQUESTS.item(1));
    served
        .send(&line, &json!({"status": {"conditions": [canceled]}}))
        .await
        .json(200)
        .await;
    let shown = get(&served, V1ALPHA1, &uid(1)).await;
    let mut complete = canceled.clone();
    complete["type"] = json!("Complete");
    assert_eq!(shown["status"]["conditions"], json!([canceled, complete]));
    assert_eq!(shown["status"]["message"], "none left");
    let same = served
        .send(&format!("PUT {V1ALPHA1}/{}/status", uid(1)), &shown)
        .await
        .json(200)
        .await;
    assert_eq!(same, shown);
}

#[tokio::test]
async fn an_evacuation_is_found_by_its_own_name_only() {
    let served = served().await;
    post(&served, EVACUATIONS, &evacuation(1)).await;
    served.create(&REQUESTS, 2).await;
    for wrong in [
        uid(1),
        format!("{}-web", uid(1)),
        format!("{}-web-11", uid(1)),
        "web-1".to_owned(),
    ] {
        for verb in ["GET", "DELETE", "PATCH"] {
            let line = format!("{verb} {EVACUATIONS}/{wrong}");
            let expected = (404, "NotFound", "evacuations.coordination.k8s.io");
            let type_ = [("content-type", "application/merge-patch+json")];
            served
                .refused(&line, &type_, if verb == "PATCH" { "{}" } else { "" }, expected)
                .await;
        }
        let selected = served
            .get(&format!("{EVACUATIONS}?fieldSelector=metadata.name={wrong}"))
            .await
            .json(200)
            .await;
        assert!(names(&selected).is_empty());
        let others = served
            .get(&format!("{EVACUATIONS}?fieldSelector=metadata.name!={wrong}"))
            .await
            .json(200)
            .await;
        assert_eq!(names(&others).len(), 2, "{wrong}");
    }
    let selected = served
        .get(&format!("{EVACUATIONS}?fieldSelector=metadata.name={}", name(2)))
        .await
        .json(200)
        .await;
    assert_eq!(names(&selected), [name(2)]);
    assert_eq!(
        (&selected["kind"], &selected["items"][0]["kind"]),
        (&json!("EvacuationList"), &json!("Evacuation"))
    );
    let others = served
        .get(&format!("{EVACUATIONS}?fieldSelector=metadata.name!={}", name(2)))
        .await
        .json(200)
        .await;
    assert_eq!(names(&others), [name(1)]);
    let taken = served
        .send(&format!("POST {EVACUATIONS}"), &evacuation(2))
        .await
        .json(409)
        .await;
    assert_eq!(taken["details"]["name"], name(2));
    assert_eq!(taken["details"]["kind"], "evacuations");
}

#[tokio::test]
async fn instigator_finalizers_are_the_requesters() {
    let served = served().await;
    let created = post(&served, EVACUATIONS, &evacuation(1)).await;
    let hub = get(&served, REQUESTS.path, &uid(1)).await;
    assert_eq!(hub["spec"]["requesters"], json!([{"name": "a.example.com"}]));
    assert_eq!(hub["metadata"].get("finalizers"), None);
    assert_eq!(created["metadata"]["generation"], 1);
    // A requester whose name is no finalizer is not shown and not lost.
    let line = format!("PATCH {}", REQUESTS.item(1));
    let requesters = json!({"spec": {"requesters": [{"name": "acme.io/a_b"}, {"name": "a.example.com"}, {"name": "acme.io/foo"}]}});
    served.send(&line, &requesters).await.json(200).await;
    let shown = get(&served, EVACUATIONS, &name(1)).await;
    let prefix = evacuation::INSTIGATOR_PREFIX;
    assert_eq!(
        shown["metadata"]["finalizers"],
        json!([INSTIGATOR, format!("{prefix}acme.io_foo")])
    );
    let line = format!("PATCH {EVACUATIONS}/{}", name(1));
    let finalizers = json!({"metadata": {"finalizers": [format!("{prefix}acme.io_foo"), "example.com/own"]}});
    served.send(&line, &finalizers).await.json(200).await;
    let hub = get(&served, REQUESTS.path, &uid(1)).await;
    assert_eq!(
        hub["spec"]["requesters"],
        json!([{"name": "acme.io/a_b"}, {"name": "acme.io/foo"}])
    );
    assert_eq!(hub["metadata"]["finalizers"], json!(["example.com/own"]));
}

#[tokio::test]
async fn a_deleted_evacuation_waits_for_its_instigators() {
    let served = served().await;
    let created = post(&served, EVACUATIONS, &evacuation(1)).await;
    let path = format!("{EVACUATIONS}/{}", name(1));
    let stored_uid = get(&served, REQUESTS.path, &uid(1)).await["metadata"]["uid"].clone();
    let options = json!({"preconditions": {"uid": stored_uid}});
    served
        .send(&format!("DELETE {path}"), &options)
        .await
        .json(409)
        .await;
    let options = json!({"preconditions": {"uid": created["metadata"]["uid"]}});
    let marked = served
        .send(&format!("DELETE {path}"), &options)
        .await
        .json(200)
        .await;
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(
        marked["metadata"]["finalizers"],
        json!([HOLD_FINALIZER, INSTIGATOR])
    );
    let gone = served
        .send(
            &format!("PATCH {path}"),
            &json!({"metadata": {"finalizers": null}}),
        )
        .await
        .json(200)
        .await;
    assert_eq!(gone["metadata"]["name"], name(1));
    served.get(&path).await.json(404).await;
    served.get(&REQUESTS.item(1)).await.json(404).await;

    // The last instigator may also go as a requester, and the end of the request releases the rest.
    for n in [2, 3] {
        post(&served, EVACUATIONS, &evacuation(n)).await;
        served
            .send(&format!("DELETE {EVACUATIONS}/{}", name(n)), &Value::Null)
            .await
            .json(200)
            .await;
    }
    let line = format!("PATCH {}", REQUESTS.item(2));
    served
        .send(&line, &json!({"spec": {"requesters": []}}))
        .await
        .json(200)
        .await;
    served.get(&REQUESTS.item(2)).await.json(404).await;
    let evicted = json!({"status": {"conditions": [{"type": "Evicted", "status": "True", "reason": "PodDeleted",
        "message": "", "lastTransitionTime": "2026-06-01T12:00:00Z"}]}});
    served
        .send(&format!("PATCH {}/status", REQUESTS.item(3)), &evicted)
        .await
        .json(200)
        .await;
    served.get(&REQUESTS.item(3)).await.json(404).await;

    // A delete of the request is not held by requesters.
    post(&served, EVACUATIONS, &evacuation(4)).await;
    served
        .send(&format!("DELETE {EVACUATIONS}/{}", name(4)), &Value::Null)
        .await
        .json(200)
        .await;
    let removed = served
        .send(&format!("DELETE {}", REQUESTS.item(4)), &Value::Null)
        .await
        .json(200)
        .await;
    assert_eq!(removed["kind"], "Status");
    served.get(&REQUESTS.item(4)).await.json(404).await;
}

#[tokio::test]
async fn namespace_deletion_removes_everything_in_either_order() {
    let served = served().await;
    for paths in [[EVACUATIONS, REQUESTS.path], [REQUESTS.path, EVACUATIONS]] {
        for n in 1..4 {
            post(&served, EVACUATIONS, &evacuation(n)).await;
        }
        served
            .send(&format!("DELETE {EVACUATIONS}/{}", name(1)), &Value::Null)
            .await
            .json(200)
            .await;
        let terminating = Namespace::Terminating(Arc::default());
        served
            .host
            .namespaces
            .lock()
            .unwrap()
            .insert("shop".to_owned(), terminating);
        for path in paths {
            served
                .send(&format!("DELETE {path}"), &Value::Null)
                .await
                .json(200)
                .await;
            let left = served.get(path).await.json(200).await;
            assert_eq!(names(&left), Vec::<&str>::new(), "{path}");
        }
        served.host.namespaces.lock().unwrap().clear();
    }
    // In an active namespace too, the second kind of the collection removes what the first has marked.
    for n in 1..4 {
        post(&served, EVACUATIONS, &evacuation(n)).await;
    }
    let marked = served
        .send(&format!("DELETE {EVACUATIONS}"), &Value::Null)
        .await
        .json(200)
        .await;
    assert_eq!(names(&marked).len(), 3);
    served
        .send(&format!("DELETE {}", REQUESTS.path), &Value::Null)
        .await
        .json(200)
        .await;
    assert_eq!(
        names(&served.get(EVACUATIONS).await.json(200).await),
        Vec::<&str>::new()
    );
}

#[tokio::test]
async fn each_resource_has_its_own_finalizers_of_the_garbage_collector() {
    let served = served().await;
    served.create(&REQUESTS, 1).await;
    let foreground = json!({"propagationPolicy": "Foreground"});
    served
        .send(&format!("DELETE {}", REQUESTS.item(1)), &foreground)
        .await
        .json(200)
        .await;
    let shown = get(&served, EVACUATIONS, &name(1)).await;
    let collection = "evictionrequest.coordination.k8s.io/foregroundDeletion";
    assert_eq!(shown["metadata"]["finalizers"], json!([collection, INSTIGATOR]));
    let orphan = json!({"propagationPolicy": "Orphan"});
    served
        .send(&format!("DELETE {EVACUATIONS}/{}", name(1)), &orphan)
        .await
        .json(200)
        .await;
    let hub = get(&served, REQUESTS.path, &uid(1)).await;
    let finalizers = json!([
        "foregroundDeletion",
        HOLD_FINALIZER,
        "evacuation.coordination.k8s.io/orphan"
    ]);
    assert_eq!(hub["metadata"]["finalizers"], finalizers);
    let shown = get(&served, EVACUATIONS, &name(1)).await;
    assert_eq!(
        shown["metadata"]["finalizers"],
        json!([collection, HOLD_FINALIZER, "orphan", INSTIGATOR])
    );
    // Each collector removes its own.
    let keep = json!({"metadata": {"finalizers": [collection, HOLD_FINALIZER]}});
    served
        .send(&format!("PATCH {EVACUATIONS}/{}", name(1)), &keep)
        .await
        .json(200)
        .await;
    let hub = get(&served, REQUESTS.path, &uid(1)).await;
    assert_eq!(
        hub["metadata"]["finalizers"],
        json!(["foregroundDeletion", HOLD_FINALIZER])
    );
    let line = format!("PATCH {}", REQUESTS.item(1));
    served
        .send(&line, &json!({"metadata": {"finalizers": [HOLD_FINALIZER]}}))
        .await
        .json(200)
        .await;
    served.get(&REQUESTS.item(1)).await.json(404).await;
}

/// Type, name, uid and revision of the next events.
async fn events(watch: &mut Answer, count: usize) -> Vec<(String, String, String, u64)> {
    let mut found = Vec::new();
    for _ in 0..count {
        let event = watch.event().await.unwrap();
        let object = &event["object"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        found.push((
            text(&event["type"]),
            text(&object["metadata"]["name"]),
            text(&object["metadata"]["uid"]),
            revision(object),
        ));
    }
    found
}

#[tokio::test]
async fn watches_of_every_version_show_the_same_history() {
    let served = served().await;
    let first = revision(&served.create(&REQUESTS, 1).await);
    post(&served, EVACUATIONS, &evacuation(2)).await;
    post(&served, V1ALPHA1, &request(3)).await;
    activate(&served, 2).await;
    served
        .send(&format!("DELETE {}", REQUESTS.item(3)), &Value::Null)
        .await
        .json(200)
        .await;
    let query = format!("watch=true&resourceVersion={first}&timeoutSeconds=60");
    let mut histories = Vec::new();
    for path in [REQUESTS.path, V1ALPHA1, EVACUATIONS] {
        let mut watch = served.get(&format!("{path}?{query}")).await;
        histories.push(events(&mut watch, 4).await);
    }
    assert_eq!(histories[0], histories[1]);
    let types: Vec<&str> = histories[0].iter().map(|(type_, ..)| type_.as_str()).collect();
    assert_eq!(types, ["ADDED", "ADDED", "MODIFIED", "DELETED"]);
    for (stored, shown) in histories[0].iter().zip(&histories[2]) {
        assert_eq!((&stored.0, stored.3), (&shown.0, shown.3));
        assert!(shown.1.starts_with(&format!("{}-web-", stored.1)));
        assert_ne!(stored.2, shown.2);
    }
    for selector in [format!("fieldSelector=metadata.name={}", name(2)), String::new()] {
        let path = if selector.is_empty() {
            format!(
                "/apis/coordination.k8s.io/v1alpha1/watch/namespaces/shop/evacuations/{}",
                name(2)
            )
        } else {
            EVACUATIONS.to_owned()
        };
        let mut watch = served.get(&format!("{path}?{query}&{selector}")).await;
        let found = events(&mut watch, 2).await;
        assert_eq!(
            found,
            histories[2][..3]
                .iter()
                .filter(|event| event.1 == name(2))
                .cloned()
                .collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn pages_of_every_version_continue_each_other() {
    let served = served().await;
    for n in 1..4 {
        served.create(&REQUESTS, n).await;
    }
    let first = served
        .get(&format!("{EVACUATIONS}?limit=2"))
        .await
        .json(200)
        .await;
    assert_eq!(names(&first), [name(1), name(2)]);
    let token = first["metadata"]["continue"].as_str().unwrap();
    for (path, expected) in [
        (EVACUATIONS, name(3)),
        (V1ALPHA1, uid(3)),
        (REQUESTS.path, uid(3)),
    ] {
        let rest = served
            .get(&format!("{path}?limit=2&continue={token}"))
            .await
            .json(200)
            .await;
        assert_eq!(names(&rest), [expected]);
    }
}

/// Manager, version and the owned fields that contain `text`.
fn owners(object: &Value, text: &str) -> Vec<(String, String)> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let member = |entry: &Value, name: &str| entry[name].as_str().unwrap().to_owned();
    let owning = entries
        .iter()
        .filter(|entry| entry["fieldsV1"].to_string().contains(text));
    let mut found: Vec<_> = owning
        .map(|entry| (member(entry, "manager"), member(entry, "apiVersion")))
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn fields_are_owned_in_the_version_and_the_shape_of_their_writer() {
    const OLD: &str = "coordination.k8s.io/v1alpha1";
    const NEW: &str = "coordination.k8s.io/v1alpha3";
    let served = served().await;
    let pair = |manager: &str, version: &str| (manager.to_owned(), version.to_owned());
    let apply = async |path: &str, manager: &str, force: bool, object: &Value| {
        let line = format!("PATCH {path}?fieldManager={manager}&force={force}");
        let type_ = [("content-type", "application/apply-patch+yaml")];
        served.send_with(&line, &type_, object.to_string()).await
    };
    let evacuation_path = format!("{EVACUATIONS}/{}", name(1));
    apply(&evacuation_path, "evac", false, &evacuation(1))
        .await
        .json(201)
        .await;
    apply(&format!("{V1ALPHA1}/{}", uid(1)), "first", false, &request(1))
        .await
        .json(200)
        .await;
    let shown = get(&served, EVACUATIONS, &name(1)).await;
    assert_eq!(
        owners(&shown, "f:podRef"),
        [
            pair("evac", OLD),
            pair("first", &format!("evictionrequests.{OLD}"))
        ]
    );
    let hub = get(&served, REQUESTS.path, &uid(1)).await;
    assert_eq!(
        owners(&hub, "f:podRef"),
        [pair("evac", &format!("evacuations.{OLD}")), pair("first", OLD)]
    );

    // Another deadline conflicts across versions.
    let mut other = REQUESTS.object(1);
    other["spec"] = json!({"requesters": [{"name": "b.example.com"}], "target": {"pod": {"name": "web-1", "uid": uid(1)}},
        "ttlSecondsAfterFinished": 60});
    let third = apply(&REQUESTS.item(1), "third", false, &other)
        .await
        .json(200)
        .await;
    assert_eq!(owners(&third, "b.example.com"), [pair("third", NEW)]);
    let mut changed = request(1);
    changed["metadata"]["labels"] = json!({"all": "no"});
    let conflict = apply(&format!("{V1ALPHA1}/{}", uid(1)), "first", false, &changed)
        .await
        .json(409)
        .await;
    assert!(
        conflict["message"].as_str().unwrap().contains("third"),
        "{conflict}"
    );

    // A manager that goes on in the new version owns its fields there, and hides nothing.
    let forced = apply(&REQUESTS.item(1), "first", true, &other)
        .await
        .json(200)
        .await;
    assert_eq!(
        owners(&forced, "ttlSeconds"),
        [pair("first", NEW), pair("third", NEW)]
    );
    assert_eq!(forced["spec"]["ttlSecondsAfterFinished"], 60);
    let requesters: Vec<&Value> = forced["spec"]["requesters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["name"])
        .collect();
    assert_eq!(requesters, ["a.example.com", "b.example.com"]);

    // The instigator that its manager no longer applies goes.
    let mut without = evacuation(1);
    without["metadata"]["finalizers"] = json!([]);
    let shown = apply(&evacuation_path, "evac", false, &without)
        .await
        .json(200)
        .await;
    let left = json!(["evacuation.coordination.k8s.io/instigator_b.example.com"]);
    assert_eq!(shown["metadata"]["finalizers"], left);
    assert!(!shown.to_string().contains("shown-from"), "{shown}");
    let hub = get(&served, REQUESTS.path, &uid(1)).await;
    assert_eq!(hub["spec"]["ttlSecondsAfterFinished"], 60);
}

#[tokio::test]
async fn maintenances_are_served_without_the_fields_of_the_newer_version() {
    let served = served().await;
    let old = "/apis/coordination.k8s.io/v1alpha1/nodemaintenances";
    let new = "/apis/coordination.k8s.io/v1alpha3/nodemaintenances";
    let object = json!({"metadata": {"name": "rack"}, "spec": {"nodeSelector": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["1"]}]}]}}});
    let created = post(&served, old, &object).await;
    assert_eq!(created["apiVersion"], "coordination.k8s.io/v1alpha1");
    assert_eq!(created["spec"]["drainPlan"].as_array().unwrap().len(), 12);
    let status = json!({"status": {"selectedNodes": 3, "drainStatus": {"drainMessage": "Draining", "activeEvictionRequests": 2},
        "nodeStatuses": [{"nodeRef": {"name": "one"}}]}});
    served
        .send(&format!("PATCH {new}/rack/status"), &status)
        .await
        .json(200)
        .await;
    let shown = get(&served, old, "rack").await;
    assert_eq!(
        shown["status"],
        json!({"drainStatus": {"activeEvictionRequests": 2, "podsPendingEvictionRequest": 0}})
    );
    let change = json!({"status": {"drainStatus": {"activeEvictionRequests": 1}}});
    served
        .send(&format!("PATCH {old}/rack/status"), &change)
        .await
        .json(200)
        .await;
    let hub = get(&served, new, "rack").await;
    assert_eq!(hub["status"]["selectedNodes"], 3);
    assert_eq!(hub["status"]["nodeStatuses"][0]["nodeRef"]["name"], "one");
    assert_eq!(hub["status"]["drainStatus"]["drainMessage"], "Draining");
    assert_eq!(hub["status"]["drainStatus"]["activeEvictionRequests"], 1);
}

#[tokio::test]
async fn tables_have_the_columns_of_their_version() {
    let served = served().await;
    served.create(&REQUESTS, 1).await;
    activate(&served, 1).await;
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for (path, expected) in [
        (
            V1ALPHA1,
            json!([
                uid(1),
                "web-1",
                "first.example.com",
                false,
                "",
                1,
                0,
                "",
                "0s",
                uid(1),
                ""
            ]),
        ),
        (
            EVACUATIONS,
            json!([
                name(1),
                "web-1",
                "first.example.com",
                false,
                "",
                1,
                0,
                "",
                "0s",
                ""
            ]),
        ),
    ] {
        let table = served
            .send_with(&format!("GET {path}"), &accept, "")
            .await
            .json(200)
            .await;
        assert_eq!(table["rows"][0]["cells"], expected);
        assert_eq!(
            table["columnDefinitions"].as_array().unwrap().len(),
            expected.as_array().unwrap().len()
        );
    }
}
