//! In which forms does the server read and answer?

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{Road, version};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const PARTIAL_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// The tables that `kubectl get` prints.
///
/// # Errors
/// The rule does not hold.
pub async fn tables(road: &Road) -> Result<()> {
    road.create("a").await?;
    let caller = road.caller.clone().with_header("accept", TABLE)?;
    let names = |table: &Value| {
        let columns = table["columnDefinitions"].as_array().cloned().unwrap_or_default();
        columns
            .iter()
            .map(|it| it["name"].as_str().unwrap_or_default().to_lowercase())
            .collect::<Vec<_>>()
    };
    let table = caller.get(&road.own()).await?.expect(200)?;
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["apiVersion"], "meta.k8s.io/v1");
    let expected = [
        "name",
        "stage",
        "nodes",
        "drained",
        "pods left",
        "message",
        "age",
        "reason",
    ];
    assert_eq!(names(&table), expected);
    let row = &table["rows"][0];
    assert_eq!(row["cells"][0], road.name("a"));
    assert_eq!(row["cells"][1], "Idle");
    assert_eq!(row["cells"].as_array().map(Vec::len), Some(expected.len()));
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(row["object"]["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(row["object"]["metadata"]["name"], road.name("a"));
    ensure!(version(&table)? > 0);
    for column in table["columnDefinitions"].as_array().context("columns")? {
        for member in ["name", "type", "format", "description", "priority"] {
            ensure!(!column[member].is_null(), "{member} of {column}");
        }
    }

    let single = caller.get(&road.path("a")).await?.expect(200)?;
    assert_eq!(single["rows"].as_array().map(Vec::len), Some(1));
    let empty = caller
        .get(&format!("{}&fieldSelector=metadata.name%3Dnobody", road.own()))
        .await?;
    let empty = empty.expect(200)?;
    ensure!(empty["rows"].as_array().is_none_or(Vec::is_empty), "{empty}");
    assert_eq!(names(&empty), expected);

    for (include, kind) in [("None", Value::Null), ("Object", json!("NodeMaintenance"))] {
        let path = format!("{}&includeObject={include}", road.own());
        let table = caller.get(&path).await?.expect(200)?;
        assert_eq!(table["rows"][0]["object"]["kind"], kind, "{include}");
    }
    let status = caller.get(&format!("{}&includeObject=Foo", road.own())).await?;
    status.refused(
        400,
        "BadRequest",
        "Unable to convert to Table as requested: includeObject: Invalid value: \"Foo\": must be 'Metadata', \
         'Object', 'None', or empty",
    )?;
    // A refusal is a Status, never a table.
    let missing = caller.get(&road.path("nobody")).await?.expect(404)?;
    assert_eq!(missing["kind"], "Status");
    let old = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
    let table = road
        .caller
        .clone()
        .with_header("accept", old)?
        .get(&road.own())
        .await?
        .expect(200)?;
    assert_eq!(table["apiVersion"], "meta.k8s.io/v1beta1");

    road.caller
        .post(&road.requests(), &road.request())
        .await?
        .expect(201)?;
    let table = caller.get(&road.requests()).await?.expect(200)?;
    assert_eq!(
        names(&table),
        [
            "name",
            "pod",
            "active",
            "state",
            "requesters",
            "retries",
            "eta",
            "age",
            "uid",
            "message"
        ]
    );
    Ok(())
}

/// Metadata alone, for the collectors.
///
/// # Errors
/// The rule does not hold.
pub async fn partial_metadata(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let one = road.caller.clone().with_header("accept", PARTIAL)?;
    let many = road.caller.clone().with_header("accept", PARTIAL_LIST)?;
    let expected = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": created["metadata"],
    });
    assert_eq!(one.get(&road.path("a")).await?.expect(200)?, expected);
    let list = many.get(&road.own()).await?.expect(200)?;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(list["items"], json!([expected]));
    ensure!(version(&list)? > 0);

    let only = |accept: &str| accept.split(',').next().unwrap_or_default().to_owned();
    let single = road.caller.clone().with_header("accept", &only(PARTIAL_LIST))?;
    assert_eq!(single.get(&road.path("a")).await?.status, 406);
    let list = road.caller.clone().with_header("accept", &only(PARTIAL))?;
    assert_eq!(list.get(&road.own()).await?.status, 406);

    // What the metadata client of the controllers sends: protobuf first.
    let accept = format!(
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{PARTIAL_LIST}"
    );
    let answer = road
        .caller
        .clone()
        .with_header("accept", &accept)?
        .get(&road.own())
        .await?;
    assert_eq!(answer.status, 200);
    if answer.header("content-type") == "application/json" {
        assert_eq!(answer.json()?["kind"], "PartialObjectMetadataList");
    }
    let accept = "application/vnd.kubernetes.protobuf,application/json";
    let deleter = road.caller.clone().with_header("accept", accept)?;
    assert_eq!(deleter.delete(&road.own()).await?.status, 200);
    Ok(())
}

/// Rows as events: `kubectl get -w`.
///
/// # Errors
/// The rule does not hold.
pub async fn table_watch(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let caller = road.caller.clone().with_header("accept", TABLE)?;
    let mut watch = caller.watch(&format!("{}&watch=true", road.own())).await?;
    let first = watch.event().await?;
    assert_eq!(first["type"], "ADDED");
    assert_eq!(first["object"]["kind"], "Table");
    ensure!(first["object"]["columnDefinitions"].is_array());
    assert_eq!(version(&first["object"])?, version(&created)?);
    assert_eq!(first["object"]["rows"][0]["cells"][0], road.name("a"));
    road.merge("a", &json!({ "spec": { "reason": "why" } }))
        .await?
        .expect(200)?;
    let second = watch.event().await?;
    assert_eq!(second["type"], "MODIFIED");
    assert_eq!(second["object"]["columnDefinitions"], Value::Null);
    assert_eq!(second["object"]["rows"][0]["cells"][7], "why");
    Ok(())
}

/// Metadata as events: what the garbage collector watches.
///
/// # Errors
/// The rule does not hold.
pub async fn partial_metadata_watch(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let accept = format!(
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;stream=watch,{PARTIAL}"
    );
    let caller = road.caller.clone().with_header("accept", &accept)?;
    let parameters =
        "&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = caller.watch(&format!("{}{parameters}", road.own())).await?;
    if watch.headers["content-type"] != "application/json" {
        return Ok(());
    }
    let event = watch.event().await?;
    assert_eq!(event["type"], "ADDED");
    let expected = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": created["metadata"],
    });
    assert_eq!(event["object"], expected);
    let event = watch.event().await?;
    assert_eq!(event["type"], "BOOKMARK");
    assert_eq!(event["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(
        event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    Ok(())
}

/// YAML is read and written.
///
/// # Errors
/// The rule does not hold.
pub async fn yaml_in_and_out(road: &Road) -> Result<()> {
    let text = format!(
        "apiVersion: {}\nkind: NodeMaintenance\nmetadata:\n  name: {}\n  labels: {{road: {}}}\nspec:\n  nodeSelector:\n    \
         nodeSelectorTerms:\n    - matchExpressions:\n      - {{key: a, operator: Exists}}\n---\nignored: true\n",
        super::GROUP_VERSION,
        road.name("a"),
        road.namespace
    );
    let answer = road
        .caller
        .call(Method::POST, &road.maintenances(), "application/yaml", text)
        .await?;
    let created = answer.expect(201)?;
    assert_eq!(
        created["spec"]["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"][0]["key"],
        "a"
    );
    let yaml = road.caller.clone().with_header("accept", "application/yaml")?;
    let answer = yaml.get(&road.path("a")).await?;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "application/yaml")
    );
    let read: Value = serde_saphyr::from_str(&answer.text()).context("read YAML")?;
    assert_eq!(read, created);
    Ok(())
}

/// 406 where no offered form can be served.
///
/// # Errors
/// The rule does not hold.
pub async fn what_cannot_be_served_is_refused(road: &Road) -> Result<()> {
    road.create("a").await?;
    for accept in ["application/xml", "application/json;as=Table;g=meta.k8s.io;v=v9"] {
        let caller = road.caller.clone().with_header("accept", accept)?;
        for path in [road.path("a"), road.own()] {
            let answer = caller.get(&path).await?;
            let status = answer.expect(406)?;
            assert_eq!(status["reason"], "NotAcceptable", "{accept}");
            ensure!(
                answer.text().contains("\n  \""),
                "a refusal without a form is indented JSON"
            );
        }
    }
    for accept in [
        "*/*",
        "",
        "text/html, application/json;q=0.5",
        "application/json;odd=parameter",
    ] {
        let caller = road.caller.clone().with_header("accept", accept)?;
        let answer = caller.get(&road.path("a")).await?;
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, "application/json"),
            "{accept}"
        );
    }
    Ok(())
}

/// Indented for people, compressed where it is large.
///
/// # Errors
/// The rule does not hold.
pub async fn pretty_and_compressed(road: &Road) -> Result<()> {
    road.create("a").await?;
    let is_pretty = async |path: &str, agent: &str| {
        let caller = road.caller.clone().with_header("user-agent", agent)?;
        Ok::<_, anyhow::Error>(caller.get(path).await?.text().contains("\n  \"metadata\""))
    };
    let path = road.path("a");
    assert!(!is_pretty(&path, "kubectl/v1.37.2").await?);
    assert!(is_pretty(&path, "curl/8.0").await?);
    assert!(is_pretty(&format!("{path}?pretty=true"), "kubectl/v1.37.2").await?);
    assert!(!is_pretty(&format!("{path}?pretty=false"), "curl/8.0").await?);

    let caller = road.caller.clone().with_header("accept-encoding", "gzip")?;
    let small = caller.get(&path).await?;
    assert_eq!(small.header("content-encoding"), "");
    let large = json!({ "metadata": { "annotations": { "large": "x".repeat(140_000) } } });
    road.merge("a", &large).await?.expect(200)?;
    for path in [path, road.own()] {
        let answer = caller.get(&path).await?;
        assert_eq!(answer.header("content-encoding"), "gzip", "{path}");
        assert_eq!(answer.body.get(..2), Some(&[0x1f, 0x8b][..]), "{path}");
        ensure!(answer.body.len() < 100_000, "{path}");
        ensure!(
            answer.header("vary").to_lowercase().contains("accept-encoding"),
            "{path}: {:?}",
            answer.headers
        );
    }
    Ok(())
}
