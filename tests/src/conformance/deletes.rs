//! Rules of deletes.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{Endpoint, PLURAL, causes, names, version};

const KIND: &str = "NodeMaintenance.coordination.k8s.io";

/// A delete returns a Status with the UID, and the object is gone.
pub async fn delete_returns_the_uid(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let deleted = api.caller.delete(&api.path("a")).await?.expect(200)?;
    let expected = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {
            "name": api.name("a"), "group": "coordination.k8s.io", "kind": "nodemaintenances",
            "uid": created["metadata"]["uid"],
        },
    });
    assert_eq!(deleted, expected);
    let message = format!("{PLURAL} \"{}\" not found", api.name("a"));
    for response in [
        api.caller.get(&api.path("a")).await?,
        api.caller.delete(&api.path("a")).await?,
    ] {
        let status = response.expect_error(404, "NotFound", &message)?;
        assert_eq!(
            status["details"],
            json!({ "name": api.name("a"), "group": "coordination.k8s.io", "kind": "nodemaintenances" })
        );
    }
    Ok(())
}

/// An object with finalizers stays until the last one is removed.
pub async fn finalizers_hold_an_object(api: &Endpoint) -> Result<()> {
    let mut wanted = api.maintenance("a");
    wanted["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let created = api.create_from(&wanted).await?;
    let mut watch = api
        .watch(&format!("&resourceVersion={}", version(&created)?))
        .await?;
    // A grace period of 0 does not override finalizers.
    let path = format!("{}?gracePeriodSeconds=0", api.path("a"));
    let marked = api.caller.delete(&path).await?.expect(200)?;
    ensure!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(marked["metadata"]["generation"], 2);
    assert_eq!(
        watch.type_and_name().await?,
        ("MODIFIED".to_owned(), api.name("a"))
    );

    let again = api.caller.delete(&api.path("a")).await?.expect(200)?;
    assert_eq!(again, marked, "a second delete changes nothing");
    let message = format!(
        "object is being deleted: {PLURAL} \"{}\" already exists",
        api.name("a")
    );
    api.caller
        .post(&api.maintenances(), &wanted)
        .await?
        .expect_error(409, "AlreadyExists", &message)?;

    let labelled = json!({ "metadata": { "labels": { "late": "label" } } });
    let before = api.merge("a", &labelled).await?.expect(200)?;
    assert_eq!(watch.type_and_name().await?.0, "MODIFIED");
    let last = api
        .merge("a", &json!({ "metadata": { "finalizers": null } }))
        .await?
        .expect(200)?;
    assert_eq!(last["metadata"]["finalizers"], Value::Null);
    assert_eq!(
        version(&last)?,
        version(&before)?,
        "not the revision of the deletion"
    );
    let event = watch.event().await?;
    assert_eq!(event["type"], "DELETED");
    ensure!(version(&event["object"])? > version(&before)?, "{event}");
    assert_eq!(api.caller.get(&api.path("a")).await?.status, 404);
    Ok(())
}

/// The policies Foreground and Orphan add a finalizer for the garbage collector.
pub async fn propagation_policies_become_finalizers(api: &Endpoint) -> Result<()> {
    if !api.through_host {
        for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
            let name = policy.to_lowercase();
            api.create(&name).await?;
            let options = json!({ "propagationPolicy": policy });
            let held = api
                .caller
                .delete_with(&api.path(&name), &options)
                .await?
                .expect(200)?;
            assert_eq!(held["metadata"]["finalizers"], json!([finalizer]));
            // A later delete may choose another policy.
            let options = json!({ "propagationPolicy": "Background" });
            let gone = api
                .caller
                .delete_with(&api.path(&name), &options)
                .await?
                .expect(200)?;
            assert_eq!(gone["status"], "Success", "{gone}");
        }
    }
    let mut wanted = api.maintenance("held");
    wanted["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.create_from(&wanted).await?;
    let path = api.path("held");
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
        let status = api.caller.delete_with(&path, &options).await?.expect(422)?;
        assert_eq!(status["details"]["kind"], "DeleteOptions");
        assert_eq!(causes(&status), [cause]);
    }
    if !api.through_host {
        for (policy, finalizers) in [
            ("Foreground", json!(["example.com/hold", "foregroundDeletion"])),
            ("Background", json!(["example.com/hold"])),
        ] {
            let query = format!("{path}?propagationPolicy={policy}");
            let held = api.caller.delete(&query).await?.expect(200)?;
            assert_eq!(held["metadata"]["finalizers"], finalizers, "{policy}");
        }
        api.merge("held", &json!({ "metadata": { "finalizers": [] } }))
            .await?
            .expect(200)?;
        api.create_from(&wanted).await?;
    }
    let accepted = api
        .caller
        .delete_with(&path, &json!({ "orphanDependents": false }))
        .await?
        .expect(202)?;
    assert_eq!(accepted["metadata"]["finalizers"], json!(["example.com/hold"]));
    api.merge("held", &json!({ "metadata": { "finalizers": [] } }))
        .await?
        .expect(200)?;
    Ok(())
}

/// Options in the body replace those of the query; the body's media type must be supported.
pub async fn options_come_from_the_body_or_the_query(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let path = api.path("a");
    let dry = |path: &str| format!("{path}?dryRun=All");
    api.caller.delete(&dry(&path)).await?.expect(200)?;
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
        let response = api
            .caller
            .call(Method::DELETE, &path, media_type, body.clone())
            .await?;
        assert_eq!(response.expect(200)?["status"], "Success", "{media_type} {body}");
    }
    api.read("a").await?;
    let response = api.caller.call(Method::DELETE, &path, "text/plain", "{}").await?;
    assert_eq!(response.expect(415)?["reason"], "UnsupportedMediaType");
    let response = api
        .caller
        .call(Method::DELETE, &path, "application/json", "{")
        .await?;
    assert_eq!(response.expect(400)?["reason"], "BadRequest");
    api.read("a").await?;
    // With a body, the query's dryRun is ignored.
    api.caller
        .delete_with(&dry(&path), &json!({}))
        .await?
        .expect(200)?;
    assert_eq!(api.caller.get(&path).await?.status, 404);
    Ok(())
}

/// A failed precondition is a 409 with the message that clients match.
pub async fn preconditions_are_checked(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let (uid, revision) = (
        created["metadata"]["uid"].as_str().context("uid")?,
        version(&created)?,
    );
    let name = api.name("a");
    let delete = async |preconditions: Value| {
        let options = json!({ "preconditions": preconditions });
        api.caller.delete_with(&api.path("a"), &options).await
    };
    let message = format!(
        "Operation cannot be fulfilled on {KIND} \"{name}\": the UID in the precondition (other) does not match the \
         UID in record ({uid}). The object might have been deleted and then recreated"
    );
    delete(json!({ "uid": "other" }))
        .await?
        .expect_error(409, "Conflict", &message)?;
    let message = format!(
        "Operation cannot be fulfilled on {KIND} \"{name}\": the ResourceVersion in the precondition (1) does not \
         match the ResourceVersion in record ({revision}). The object might have been modified"
    );
    delete(json!({ "resourceVersion": "1" }))
        .await?
        .expect_error(409, "Conflict", &message)?;
    delete(json!({ "uid": uid, "resourceVersion": revision.to_string() }))
        .await?
        .expect(200)?;
    Ok(())
}

/// A terminating object takes no new finalizer.
pub async fn a_terminating_object_takes_no_new_finalizer(api: &Endpoint) -> Result<()> {
    let mut wanted = api.maintenance("a");
    wanted["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.create_from(&wanted).await?;
    api.caller.delete(&api.path("a")).await?.expect(200)?;
    let more = json!({ "metadata": { "finalizers": ["example.com/hold", "example.com/new"] } });
    let status = api.merge("a", &more).await?.expect(422)?;
    assert_eq!(causes(&status), ["metadata.finalizers: FieldValueForbidden"]);
    assert_eq!(
        status["details"]["causes"][0]["message"],
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers \
         []string{\"example.com/new\"}"
    );
    api.merge("a", &json!({ "metadata": { "finalizers": null } }))
        .await?
        .expect(200)?;
    assert_eq!(api.caller.get(&api.path("a")).await?.status, 404);
    Ok(())
}

/// A deletecollection obeys selectors and limits.
pub async fn collections_are_deleted_by_selection(api: &Endpoint) -> Result<()> {
    for name in ["a", "b", "c", "d"] {
        let mut wanted = api.maintenance(name);
        wanted["metadata"]["labels"]["letter"] = json!(name);
        if name == "d" {
            wanted["metadata"]["finalizers"] = json!(["example.com/hold"]);
        }
        api.create_from(&wanted).await?;
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let caller = api.caller.clone().with_header("accept", table)?;
    let unknown = format!("{}&includeObject=Some", api.own());
    let status = caller.delete(&unknown).await?.expect(400)?;
    assert_eq!(status["reason"], "BadRequest", "before anything is deleted");
    let some = format!("{},letter+in+(a)", api.own());
    let deleted = api.caller.delete(&some).await?.expect(200)?;
    assert_eq!(deleted["kind"], "NodeMaintenanceList");
    assert_eq!(names(&deleted), [api.name("a")]);
    ensure!(version(&deleted)? > 0);
    let left = async || Ok::<_, anyhow::Error>(names(&api.caller.get(&api.own()).await?.expect(200)?));
    assert_eq!(left().await?, [api.name("b"), api.name("c"), api.name("d")]);
    let status = api
        .caller
        .delete(&format!("{}&fieldSelector=spec.nothing%3Dx", api.own()))
        .await?;
    assert_eq!(status.expect(400)?["reason"], "BadRequest");

    api.caller
        .delete(&format!("{}&limit=1", api.own()))
        .await?
        .expect(200)?;
    assert_eq!(left().await?, [api.name("c"), api.name("d")]);
    // As the namespace controller deletes, but for the encoding of the response.
    let caller = &api.caller;
    let options = json!({ "propagationPolicy": "Background" });
    let deleted = caller.delete_with(&api.own(), &options).await?.expect(200)?;
    assert_eq!(names(&deleted), [api.name("c"), api.name("d")]);
    assert_eq!(left().await?, [api.name("d")], "its finalizer is left");
    api.merge("d", &json!({ "metadata": { "finalizers": null } }))
        .await?
        .expect(200)?;
    assert_eq!(left().await?, Vec::<String>::new());
    Ok(())
}
