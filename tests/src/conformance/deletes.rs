//! What becomes of deletes?

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{PLURAL, Road, causes, names, version};

const KIND: &str = "NodeMaintenance.coordination.k8s.io";

/// Success is a Status with the uid; then the object is not there.
///
/// # Errors
/// The rule does not hold.
pub async fn delete_answers_with_the_uid(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let deleted = road.caller.delete(&road.path("a")).await?.expect(200)?;
    let expected = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {
            "name": road.name("a"), "group": "coordination.k8s.io", "kind": "nodemaintenances",
            "uid": created["metadata"]["uid"],
        },
    });
    assert_eq!(deleted, expected);
    let message = format!("{PLURAL} \"{}\" not found", road.name("a"));
    for answer in [
        road.caller.get(&road.path("a")).await?,
        road.caller.delete(&road.path("a")).await?,
    ] {
        let status = answer.refused(404, "NotFound", &message)?;
        assert_eq!(
            status["details"],
            json!({ "name": road.name("a"), "group": "coordination.k8s.io", "kind": "nodemaintenances" })
        );
    }
    Ok(())
}

/// With a finalizer the object stays until the last one goes.
///
/// # Errors
/// The rule does not hold.
pub async fn finalizers_hold_an_object(road: &Road) -> Result<()> {
    let mut wanted = road.maintenance("a");
    wanted["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let created = road.create_from(&wanted).await?;
    let mut watch = road
        .watch(&format!("&resourceVersion={}", version(&created)?))
        .await?;
    // No grace shortens that.
    let path = format!("{}?gracePeriodSeconds=0", road.path("a"));
    let marked = road.caller.delete(&path).await?.expect(200)?;
    ensure!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(marked["metadata"]["generation"], 2);
    assert_eq!(watch.told().await?, ("MODIFIED".to_owned(), road.name("a")));

    let again = road.caller.delete(&road.path("a")).await?.expect(200)?;
    assert_eq!(again, marked, "a second delete changes nothing");
    let message = format!(
        "object is being deleted: {PLURAL} \"{}\" already exists",
        road.name("a")
    );
    road.caller
        .post(&road.maintenances(), &wanted)
        .await?
        .refused(409, "AlreadyExists", &message)?;

    let labelled = json!({ "metadata": { "labels": { "late": "label" } } });
    road.merge("a", &labelled).await?.expect(200)?;
    assert_eq!(watch.told().await?.0, "MODIFIED");
    let last = road
        .merge("a", &json!({ "metadata": { "finalizers": null } }))
        .await?
        .expect(200)?;
    assert_eq!(last["metadata"]["finalizers"], Value::Null);
    let event = watch.event().await?;
    assert_eq!(event["type"], "DELETED");
    assert_eq!(road.caller.get(&road.path("a")).await?.status, 404);
    Ok(())
}

/// Foreground and Orphan leave work to the garbage collector.
///
/// # Errors
/// The rule does not hold.
pub async fn propagation_policies_become_finalizers(road: &Road) -> Result<()> {
    if !road.through_host {
        for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
            let name = policy.to_lowercase();
            road.create(&name).await?;
            let options = json!({ "propagationPolicy": policy });
            let held = road
                .caller
                .delete_with(&road.path(&name), &options)
                .await?
                .expect(200)?;
            assert_eq!(held["metadata"]["finalizers"], json!([finalizer]));
            // Another policy is honoured.
            let options = json!({ "propagationPolicy": "Background" });
            let gone = road
                .caller
                .delete_with(&road.path(&name), &options)
                .await?
                .expect(200)?;
            assert_eq!(gone["status"], "Success", "{gone}");
        }
    }
    let mut wanted = road.maintenance("held");
    wanted["metadata"]["finalizers"] = json!(["example.com/hold"]);
    road.create_from(&wanted).await?;
    let path = road.path("held");
    for (options, cause) in [
        (
            json!({ "propagationPolicy": "Later" }),
            "propagationPolicy: FieldValueNotSupported",
        ),
        (
            json!({ "propagationPolicy": "Background", "orphanDependents": false }),
            "propagationPolicy: FieldValueInvalid",
        ),
    ] {
        let status = road.caller.delete_with(&path, &options).await?.expect(422)?;
        assert_eq!(status["details"]["kind"], "DeleteOptions");
        assert_eq!(causes(&status), [cause]);
    }
    let accepted = road
        .caller
        .delete_with(&path, &json!({ "orphanDependents": false }))
        .await?
        .expect(202)?;
    assert_eq!(accepted["metadata"]["finalizers"], json!(["example.com/hold"]));
    road.merge("held", &json!({ "metadata": { "finalizers": [] } }))
        .await?
        .expect(200)?;
    Ok(())
}

/// A body wins over the query; its type must be known.
///
/// # Errors
/// The rule does not hold.
pub async fn options_come_from_the_body_or_the_query(road: &Road) -> Result<()> {
    road.create("a").await?;
    let path = road.path("a");
    let dry = |path: &str| format!("{path}?dryRun=All");
    road.caller.delete(&dry(&path)).await?.expect(200)?;
    let bodies = [
        ("application/json", "{\"dryRun\":[\"All\"]}".to_owned()),
        (
            "application/json",
            "{\"kind\":\"DeleteOptions\",\"apiVersion\":\"v1\",\"dryRun\":[\"All\"]}".to_owned(),
        ),
        (
            "application/json",
            format!(
                "{{\"kind\":\"DeleteOptions\",\"apiVersion\":\"{}\",\"dryRun\":[\"All\"]}}",
                super::GROUP_VERSION
            ),
        ),
        ("application/yaml", "dryRun: [All]\n".to_owned()),
        ("", "{\"dryRun\":[\"All\"]}".to_owned()),
    ];
    for (media_type, body) in bodies {
        let answer = road
            .caller
            .call(Method::DELETE, &path, media_type, body.clone())
            .await?;
        assert_eq!(answer.expect(200)?["status"], "Success", "{media_type} {body}");
    }
    road.read("a").await?;
    let answer = road
        .caller
        .call(Method::DELETE, &path, "text/plain", "{}")
        .await?;
    assert_eq!(answer.expect(415)?["reason"], "UnsupportedMediaType");
    let answer = road
        .caller
        .call(Method::DELETE, &path, "application/json", "{")
        .await?;
    assert_eq!(answer.expect(400)?["reason"], "BadRequest");
    road.read("a").await?;
    // The query's dry run does not count beside a body.
    road.caller
        .delete_with(&dry(&path), &json!({}))
        .await?
        .expect(200)?;
    assert_eq!(road.caller.get(&path).await?.status, 404);
    Ok(())
}

/// 409 with the texts that clients know.
///
/// # Errors
/// The rule does not hold.
pub async fn preconditions_are_checked(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let (uid, revision) = (
        created["metadata"]["uid"].as_str().context("uid")?,
        version(&created)?,
    );
    let name = road.name("a");
    let delete = async |preconditions: Value| {
        let options = json!({ "preconditions": preconditions });
        road.caller.delete_with(&road.path("a"), &options).await
    };
    let message = format!(
        "Operation cannot be fulfilled on {KIND} \"{name}\": the UID in the precondition (other) does not match the \
         UID in record ({uid}). The object might have been deleted and then recreated"
    );
    delete(json!({ "uid": "other" }))
        .await?
        .refused(409, "Conflict", &message)?;
    let message = format!(
        "Operation cannot be fulfilled on {KIND} \"{name}\": the ResourceVersion in the precondition (1) does not \
         match the ResourceVersion in record ({revision}). The object might have been modified"
    );
    delete(json!({ "resourceVersion": "1" }))
        .await?
        .refused(409, "Conflict", &message)?;
    delete(json!({ "uid": uid, "resourceVersion": revision.to_string() }))
        .await?
        .expect(200)?;
    Ok(())
}

/// Nothing may come to hold what is leaving; a later policy may.
///
/// # Errors
/// The rule does not hold.
pub async fn a_terminating_object_takes_no_new_finalizer(road: &Road) -> Result<()> {
    let mut wanted = road.maintenance("a");
    wanted["metadata"]["finalizers"] = json!(["example.com/hold"]);
    road.create_from(&wanted).await?;
    road.caller.delete(&road.path("a")).await?.expect(200)?;
    let more = json!({ "metadata": { "finalizers": ["example.com/hold", "example.com/new"] } });
    let status = road.merge("a", &more).await?.expect(422)?;
    assert_eq!(causes(&status), ["metadata.finalizers: FieldValueForbidden"]);
    assert_eq!(
        status["details"]["causes"][0]["message"],
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers \
         []string{\"example.com/new\"}"
    );
    road.merge("a", &json!({ "metadata": { "finalizers": null } }))
        .await?
        .expect(200)?;
    assert_eq!(road.caller.get(&road.path("a")).await?.status, 404);
    Ok(())
}

/// Selectors and limits bound a deletecollection.
///
/// # Errors
/// The rule does not hold.
pub async fn collections_are_deleted_by_selection(road: &Road) -> Result<()> {
    for name in ["a", "b", "c", "d"] {
        let mut wanted = road.maintenance(name);
        wanted["metadata"]["labels"]["letter"] = json!(name);
        if name == "d" {
            wanted["metadata"]["finalizers"] = json!(["example.com/hold"]);
        }
        road.create_from(&wanted).await?;
    }
    let some = format!("{},letter+in+(a)", road.own());
    let deleted = road.caller.delete(&some).await?.expect(200)?;
    assert_eq!(deleted["kind"], "NodeMaintenanceList");
    assert_eq!(names(&deleted), [road.name("a")]);
    ensure!(version(&deleted)? > 0);
    let left = async || Ok::<_, anyhow::Error>(names(&road.caller.get(&road.own()).await?.expect(200)?));
    assert_eq!(left().await?, [road.name("b"), road.name("c"), road.name("d")]);
    let status = road
        .caller
        .delete(&format!("{}&fieldSelector=spec.nothing%3Dx", road.own()))
        .await?;
    assert_eq!(status.expect(400)?["reason"], "BadRequest");

    road.caller
        .delete(&format!("{}&limit=1", road.own()))
        .await?
        .expect(200)?;
    assert_eq!(left().await?, [road.name("c"), road.name("d")]);
    road.caller.delete(&road.own()).await?.expect(200)?;
    assert_eq!(left().await?, [road.name("d")], "a finalizer holds it");
    road.merge("d", &json!({ "metadata": { "finalizers": null } }))
        .await?
        .expect(200)?;
    assert_eq!(left().await?, Vec::<String>::new());
    Ok(())
}
