//! Rules of creates.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{Endpoint, GROUP_VERSION, PLURAL, causes, version};

/// System metadata in the body of a create is ignored.
pub async fn create_sets_system_metadata(api: &Endpoint) -> Result<()> {
    let mut wanted = api.maintenance("a");
    let metadata = wanted["metadata"].as_object_mut().context("metadata")?;
    for (member, value) in [
        ("uid", json!("11111111-1111-4111-8111-111111111111")),
        ("creationTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionGracePeriodSeconds", json!(5)),
        ("selfLink", json!("/somewhere")),
        ("generation", json!(42)),
        ("resourceVersion", json!("0")),
    ] {
        metadata.insert(member.to_owned(), value);
    }
    wanted["status"] =
        json!({ "stageStatuses": [{ "name": "Drain", "startTimestamp": "2001-01-01T00:00:00Z" }] });
    let created = api.create_from(&wanted).await?;
    let metadata = &created["metadata"];
    assert_eq!(created["apiVersion"], GROUP_VERSION);
    assert_eq!(created["kind"], "NodeMaintenance");
    assert_eq!(metadata["generation"], 1);
    let uid = metadata["uid"].as_str().context("uid")?;
    ensure!(
        uid.len() == 36 && uid != "11111111-1111-4111-8111-111111111111",
        "{uid}"
    );
    let time = metadata["creationTimestamp"]
        .as_str()
        .context("creationTimestamp")?;
    ensure!(
        time.len() == 20 && time.ends_with('Z') && !time.starts_with("2001"),
        "{time}"
    );
    for absent in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        assert_eq!(metadata[absent], Value::Null, "{absent}");
    }
    assert_eq!(created["status"]["stageStatuses"], Value::Null);
    assert_eq!(created["spec"]["stage"], "Idle", "defaults are applied");
    ensure!(version(&created)? > 0);
    assert_eq!(api.read("a").await?, created);
    Ok(())
}

/// 409 for an existing name; 400, 422 and 500 for bodies that contradict the request.
pub async fn create_rejects_duplicates_and_invalid_bodies(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let (name, path) = (api.name("a"), api.maintenances());
    let message = format!("{PLURAL} \"{name}\" already exists");
    let status = api
        .caller
        .post(&path, &api.maintenance("a"))
        .await?
        .expect_error(409, "AlreadyExists", &message)?;
    assert_eq!(
        status["details"],
        json!({ "name": name, "group": "coordination.k8s.io", "kind": "nodemaintenances" })
    );

    let mut versioned = api.maintenance("b");
    versioned["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"].clone();
    let response = api.caller.post(&path, &versioned).await?.expect(500)?;
    assert_eq!(
        response["message"],
        "resourceVersion should not be set on objects to be created"
    );
    let dry_run = format!("{path}?dryRun=All");
    api.caller.post(&dry_run, &versioned).await?.expect(201)?;
    let mut unreadable = api.maintenance("d");
    unreadable["metadata"]["resourceVersion"] = json!("abc");
    api.create_from(&unreadable).await?;

    let mut foreign = api.maintenance("b");
    foreign["apiVersion"] = json!("coordination.k8s.io/v9");
    let response = api.caller.post(&path, &foreign).await?.expect(400)?;
    assert_eq!(response["reason"], "BadRequest");
    ensure!(
        response["message"]
            .to_string()
            .contains("NodeMaintenance in version \\\"v9\\\""),
        "{response}"
    );
    let mut other = api.maintenance("b");
    other["kind"] = json!("EvictionRequest");
    api.caller.post(&path, &other).await?.expect(400)?;

    let mut unnamed = api.maintenance("b");
    unnamed["metadata"]
        .as_object_mut()
        .context("metadata")?
        .remove("name");
    let response = api.caller.post(&path, &unnamed).await?.expect(422)?;
    assert_eq!(causes(&response), ["metadata.name: FieldValueRequired"]);
    assert_eq!(
        response["message"],
        "NodeMaintenance.coordination.k8s.io \"\" is invalid: metadata.name: Required value: name or \
         generateName is required"
    );
    assert_eq!(api.caller.get(&api.path("b")).await?.status, 404);

    // Without kind and apiVersion, those of the URL apply.
    let mut bare = api.maintenance("c");
    let members = bare.as_object_mut().context("an object")?;
    members.remove("kind");
    members.remove("apiVersion");
    assert_eq!(api.create_from(&bare).await?["kind"], "NodeMaintenance");
    Ok(())
}

/// `generateName` applies where no name is given.
pub async fn create_generates_names(api: &Endpoint) -> Result<()> {
    let mut wanted = api.maintenance("a");
    let long = format!("{}-{}", api.namespace, "x".repeat(60));
    wanted["metadata"]["generateName"] = json!(long);
    let named = api.create_from(&wanted).await?;
    assert_eq!(named["metadata"]["name"], api.name("a"), "a name wins");
    let message = format!(
        "{PLURAL} \"{}\" already exists, the server was not able to generate a unique name for the object",
        api.name("a")
    );
    let response = api.caller.post(&api.maintenances(), &wanted).await?;
    let status = response.expect_error(409, "AlreadyExists", &message)?;
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert_eq!(response.header("retry-after"), "1");

    wanted["metadata"]
        .as_object_mut()
        .context("metadata")?
        .remove("name");
    for _ in 0..3 {
        let generated = api.create_from(&wanted).await?;
        let name = generated["metadata"]["name"].as_str().context("a name")?;
        let (base, random) = name.split_at(name.len() - 5);
        assert_eq!(base, &long[..58]);
        ensure!(
            random
                .chars()
                .all(|it| "bcdfghjklmnpqrstvwxz2456789".contains(it)),
            "{name}"
        );
        assert_eq!(generated["metadata"]["generateName"], long);
    }
    Ok(())
}

/// The namespace of the URL applies; it must exist and match the body's.
pub async fn create_checks_the_namespace(api: &Endpoint) -> Result<()> {
    let mut request = api.request();
    request["metadata"]
        .as_object_mut()
        .context("metadata")?
        .remove("namespace");
    let created = api.caller.post(&api.requests(), &request).await?.expect(201)?;
    assert_eq!(created["metadata"]["namespace"], api.namespace);

    let mut elsewhere = api.request();
    elsewhere["metadata"]["namespace"] = json!("default");
    api.caller.post(&api.requests(), &elsewhere).await?.expect_error(
        400,
        "BadRequest",
        "the namespace of the provided object does not match the namespace sent on the request",
    )?;

    let missing = format!("{}/namespaces/no-such-namespace/evictionrequests", super::ROOT);
    let mut request = api.request();
    request["metadata"]["namespace"] = json!("no-such-namespace");
    let status = api.caller.post(&missing, &request).await?.expect_error(
        404,
        "NotFound",
        "namespaces \"no-such-namespace\" not found",
    )?;
    assert_eq!(
        status["details"],
        json!({ "name": "no-such-namespace", "kind": "namespaces" })
    );

    // The namespace of a cluster-scoped object is dropped.
    let mut wanted = api.maintenance("a");
    wanted["metadata"]["namespace"] = json!("default");
    assert_eq!(
        api.create_from(&wanted).await?["metadata"]["namespace"],
        Value::Null
    );
    Ok(())
}

/// 400 and 422 for bodies that are not objects of the kind.
pub async fn undecodable_bodies_are_rejected(api: &Endpoint) -> Result<()> {
    let (path, json) = (api.maintenances(), "application/json");
    let post = async |media_type: &str, body: &[u8]| {
        let body = bytes::Bytes::copy_from_slice(body);
        api.caller.call(Method::POST, &path, media_type, body).await
    };
    let nested = "{\"a\":".repeat(20_000);
    for body in ["7", "{\"kind\":", "{} {}", "not json", nested.as_str()] {
        let status = post(json, body.as_bytes()).await?.expect(400)?;
        assert_eq!(status["reason"], "BadRequest", "{body:.20}: {status}");
    }
    for body in ["", "{", "[]", "a: b"] {
        let status = post(json, body.as_bytes()).await?.expect(400)?;
        ensure!(
            status["message"].as_str().is_some_and(|it| it
                .starts_with("the object provided is unrecognized (must be of type NodeMaintenance): ")),
            "{body:?}: {status}"
        );
    }
    // Null is an empty object.
    for body in ["null", "{}"] {
        let status = post(json, body.as_bytes()).await?.expect(422)?;
        ensure!(
            status["message"]
                .as_str()
                .is_some_and(|it| it.starts_with("NodeMaintenance.coordination.k8s.io \"\" is invalid")),
            "{body}: {status}"
        );
    }
    let deep = format!("{}{}", "[".repeat(10_001), "]".repeat(10_001));
    let status = post(json, format!("{{\"spec\":{deep}}}").as_bytes())
        .await?
        .expect(400)?;
    ensure!(
        status["message"]
            .as_str()
            .is_some_and(|it| it.contains("exceeded max depth")),
        "{status}"
    );

    for (member, value) in [
        ("kind", json!("Pod")),
        ("metadata", json!("x")),
        ("spec", json!([1])),
        ("spec", json!("text")),
        ("spec", json!({ "stage": 7 })),
        ("spec", json!({ "reason": { "a": 1 } })),
        ("metadata", json!({ "name": 7 })),
        (
            "metadata",
            json!({ "name": "a", "creationTimestamp": "yesterday" }),
        ),
        ("metadata", json!({ "name": "a", "labels": { "a": 1 } })),
    ] {
        let mut object = api.maintenance("a");
        object[member] = value;
        let status = post(json, object.to_string().as_bytes()).await?.expect(400)?;
        let message = status["message"].as_str().unwrap_or_default();
        let kind = object["kind"].as_str().unwrap_or_default();
        let expected = format!("{kind} in version \"v1alpha3\" cannot be handled as a NodeMaintenance: ");
        ensure!(message.starts_with(&expected), "{object}: {message}");
    }

    Ok(())
}

/// 413 for large bodies, 415 for unknown media types, and 400 for YAML that expands without bound.
pub async fn large_and_unknown_bodies_are_rejected(api: &Endpoint) -> Result<()> {
    let (path, json) = (api.maintenances(), "application/json");
    let post = async |media_type: &str, body: &[u8]| {
        let body = bytes::Bytes::copy_from_slice(body);
        api.caller.call(Method::POST, &path, media_type, body).await
    };
    let large = vec![b' '; 3 * 1024 * 1024 + 1];
    post(json, &large).await?.expect_error(
        413,
        "RequestEntityTooLarge",
        "Request entity too large: limit is 3145728",
    )?;
    let status = post("text/plain", b"{}").await?.expect(415)?;
    assert_eq!(status["reason"], "UnsupportedMediaType");
    ensure!(
        status["message"].as_str().is_some_and(|it| {
            it.starts_with(
                "the body of the request was in an unknown format - accepted media types include: ",
            )
        }),
        "{status}"
    );
    // YAML aliases that would expand to 9^8 items.
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (name, before) in ["b", "c", "d", "e", "f", "g", "h"]
        .iter()
        .zip(["a", "b", "c", "d", "e", "f", "g"])
    {
        let nine = vec![format!("*{before}"); 9].join(",");
        writeln!(bomb, "{name}: &{name} [{nine}]").context("text grows")?;
    }
    let status = post("application/yaml", bomb.as_bytes()).await?.expect(400)?;
    assert_eq!(status["reason"], "BadRequest");
    Ok(())
}

/// Names, labels, annotations, finalizers and owner references are validated.
pub async fn metadata_is_validated(api: &Endpoint) -> Result<()> {
    let owner = |name: &str, uid: &str| json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": true });
    for (member, value, expected) in [
        ("name", json!("Upper"), "metadata.name: FieldValueInvalid"),
        ("name", json!("x".repeat(254)), "metadata.name: FieldValueInvalid"),
        (
            "labels",
            json!({ "-a": "b" }),
            "metadata.labels: FieldValueInvalid",
        ),
        (
            "labels",
            json!({ "a": "-b" }),
            "metadata.labels: FieldValueInvalid",
        ),
        (
            "labels",
            json!({ "a": "x".repeat(64) }),
            "metadata.labels: FieldValueInvalid",
        ),
        (
            "annotations",
            json!({ "a b": "" }),
            "metadata.annotations: FieldValueInvalid",
        ),
        (
            "annotations",
            json!({ "a": "x".repeat(262_144) }),
            "metadata.annotations: FieldValueTooLong",
        ),
        (
            "finalizers",
            json!(["a b"]),
            "metadata.finalizers: FieldValueInvalid",
        ),
        (
            "finalizers",
            json!(["orphan", "foregroundDeletion"]),
            "metadata.finalizers: FieldValueInvalid",
        ),
        (
            "ownerReferences",
            json!([owner("a", "1"), owner("b", "2")]),
            "metadata.ownerReferences: FieldValueInvalid",
        ),
        (
            "ownerReferences",
            json!([{ "apiVersion": "v1", "kind": "Node", "name": "", "uid": "1" }]),
            "metadata.ownerReferences[0].name: FieldValueRequired",
        ),
        (
            "ownerReferences",
            json!([{ "apiVersion": "v1", "kind": "Event", "name": "e", "uid": "1" }]),
            "metadata.ownerReferences[0]: FieldValueInvalid",
        ),
    ] {
        let mut object = api.maintenance("a");
        object["metadata"][member] = value;
        let response = api.caller.post(&api.maintenances(), &object).await?;
        let status = response.expect(422)?;
        let causes = causes(&status);
        // Some invalid names have two causes.
        ensure!(
            causes.first().is_some_and(|cause| cause == expected),
            "{member}: {status}"
        );
        assert_eq!(status["details"]["kind"], "NodeMaintenance");
    }
    Ok(())
}
