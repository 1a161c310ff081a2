//! Rules of content negotiation: tables, partial metadata, YAML, pretty and compressed JSON.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{Endpoint, version};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const PARTIAL_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const INITIAL_EVENTS: &str =
    "&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

/// Tables, which `kubectl get` prints.
pub async fn tables(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let caller = api.caller.clone().with_header("accept", TABLE)?;
    let names = |table: &Value| {
        let columns = table["columnDefinitions"].as_array().cloned().unwrap_or_default();
        columns
            .iter()
            .map(|it| it["name"].as_str().unwrap_or_default().to_lowercase())
            .collect::<Vec<_>>()
    };
    let table = caller.get(&api.own()).await?.expect(200)?;
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
        "node names",
        "reason",
    ];
    assert_eq!(names(&table), expected);
    let row = &table["rows"][0];
    assert_eq!(row["cells"][0], api.name("a"));
    assert_eq!(row["cells"][1], "Idle");
    assert_eq!(row["cells"].as_array().map(Vec::len), Some(expected.len()));
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(row["object"]["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(row["object"]["metadata"]["name"], api.name("a"));
    ensure!(version(&table)? > 0);
    for column in table["columnDefinitions"].as_array().context("columns")? {
        for member in ["name", "type", "format", "description", "priority"] {
            ensure!(!column[member].is_null(), "{member} of {column}");
        }
    }

    let single = caller.get(&api.path("a")).await?.expect(200)?;
    assert_eq!(single["rows"].as_array().map(Vec::len), Some(1));
    let empty = caller
        .get(&format!("{}&fieldSelector=metadata.name%3Dnobody", api.own()))
        .await?;
    let empty = empty.expect(200)?;
    ensure!(empty["rows"].as_array().is_none_or(Vec::is_empty), "{empty}");
    assert_eq!(names(&empty), expected);

    api.caller
        .post(&api.requests(), &api.request())
        .await?
        .expect(201)?;
    let table = caller.get(&api.requests()).await?.expect(200)?;
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

/// `includeObject` chooses the objects of a table's rows; older versions of Table are served too.
pub async fn table_options(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let caller = api.caller.clone().with_header("accept", TABLE)?;
    for (include, kind) in [("None", Value::Null), ("Object", json!("NodeMaintenance"))] {
        let path = format!("{}&includeObject={include}", api.own());
        let table = caller.get(&path).await?.expect(200)?;
        assert_eq!(table["rows"][0]["object"]["kind"], kind, "{include}");
    }
    for path in [
        format!("{}&includeObject=Foo", api.own()),
        format!("{}?includeObject=Foo", api.path("a")),
    ] {
        caller.get(&path).await?.expect_error(
            400,
            "BadRequest",
            "Unable to convert to Table as requested: includeObject: Invalid value: \"Foo\": must be 'Metadata', \
             'Object', 'None', or empty",
        )?;
    }
    // An error is a Status, never a table.
    let missing = caller.get(&api.path("nobody")).await?.expect(404)?;
    assert_eq!(missing["kind"], "Status");
    let old = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
    let table = api
        .caller
        .clone()
        .with_header("accept", old)?
        .get(&api.own())
        .await?
        .expect(200)?;
    assert_eq!(table["apiVersion"], "meta.k8s.io/v1beta1");
    Ok(())
}

/// Metadata only, for the garbage collector and the namespace controller.
pub async fn partial_metadata(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let one = api.caller.clone().with_header("accept", PARTIAL)?;
    let many = api.caller.clone().with_header("accept", PARTIAL_LIST)?;
    let expected = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": created["metadata"],
    });
    assert_eq!(one.get(&api.path("a")).await?.expect(200)?, expected);
    let list = many.get(&api.own()).await?.expect(200)?;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(list["items"], json!([expected]));
    ensure!(version(&list)? > 0);

    let only = |accept: &str| accept.split(',').next().unwrap_or_default().to_owned();
    let not_a_list = "you requested PartialObjectMetadataList, but the requested object is not a list";
    let a_list = "you requested PartialObjectMetadata, but the requested object is a list";
    for (accept, path, text) in [
        (PARTIAL_LIST, api.path("a"), not_a_list),
        (PARTIAL, api.own(), a_list),
    ] {
        let caller = api.caller.clone().with_header("accept", &only(accept))?;
        let response = caller.get(&path).await?;
        let status = response.expect(406)?;
        assert_eq!(status["reason"], "NotAcceptable");
        ensure!(status["message"].to_string().contains(text), "{status}");
    }

    // The metadata client of the controllers prefers protobuf.
    let accept = format!(
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{PARTIAL_LIST}"
    );
    let response = api
        .caller
        .clone()
        .with_header("accept", &accept)?
        .get(&api.own())
        .await?;
    assert_eq!(
        (response.status, response.header("content-type")),
        (200, "application/vnd.kubernetes.protobuf")
    );
    let accept = "application/vnd.kubernetes.protobuf,application/json";
    let deleter = api.caller.clone().with_header("accept", accept)?;
    assert_eq!(deleter.delete(&api.own()).await?.status, 200);
    Ok(())
}

/// A watch of tables, as for `kubectl get -w`.
pub async fn table_watch(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let caller = api.caller.clone().with_header("accept", TABLE)?;
    let mut watch = caller.watch(&format!("{}&watch=true", api.own())).await?;
    let first = watch.event().await?;
    assert_eq!(first["type"], "ADDED");
    assert_eq!(first["object"]["kind"], "Table");
    ensure!(first["object"]["columnDefinitions"].is_array());
    assert_eq!(version(&first["object"])?, version(&created)?);
    assert_eq!(first["object"]["rows"][0]["cells"][0], api.name("a"));
    api.merge("a", &json!({ "spec": { "reason": "why" } }))
        .await?
        .expect(200)?;
    let second = watch.event().await?;
    assert_eq!(second["type"], "MODIFIED");
    assert_eq!(second["object"]["columnDefinitions"], Value::Null);
    assert_eq!(second["object"]["rows"][0]["cells"][8], "why");
    // The bookmark is a row too, without cells of an object.
    for include in ["", "&includeObject=None", "&includeObject=Object"] {
        let parameters = format!("{INITIAL_EVENTS}{include}");
        let mut watch = caller.watch(&format!("{}{parameters}", api.own())).await?;
        let first = watch.event().await?["object"].clone();
        let columns = first["columnDefinitions"].as_array().map(Vec::len);
        assert_eq!(first["rows"][0]["cells"].as_array().map(Vec::len), columns);
        let bookmark = watch.event().await?;
        assert_eq!(bookmark["type"], "BOOKMARK");
        let table = &bookmark["object"];
        assert_eq!(table["columnDefinitions"], Value::Null);
        assert_eq!(table["rows"][0]["cells"].as_array().map(Vec::len), columns);
        let metadata = &table["rows"][0]["object"]["metadata"];
        assert_eq!(
            metadata["annotations"]["k8s.io/initial-events-end"], "true",
            "{include}"
        );
    }
    Ok(())
}

/// A watch of metadata only, as the garbage collector opens it.
pub async fn partial_metadata_watch(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let caller = api.caller.clone().with_header("accept", PARTIAL)?;
    let mut watch = caller.watch(&format!("{}{INITIAL_EVENTS}", api.own())).await?;
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

/// YAML is read and written, also for errors.
pub async fn yaml_is_read_and_written(api: &Endpoint) -> Result<()> {
    let text = format!(
        "apiVersion: {}\nkind: NodeMaintenance\nmetadata:\n  name: {}\n  labels: {{api: {}}}\nspec:\n  nodeSelector:\n    \
         nodeSelectorTerms:\n    - matchExpressions:\n      - {{key: a, operator: Exists}}\n---\nignored: true\n",
        super::GROUP_VERSION,
        api.name("a"),
        api.namespace
    );
    let response = api
        .caller
        .call(Method::POST, &api.maintenances(), "application/yaml", text)
        .await?;
    let created = response.expect(201)?;
    assert_eq!(
        created["spec"]["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"][0]["key"],
        "a"
    );
    let yaml = api.caller.clone().with_header("accept", "application/yaml")?;
    let response = yaml.get(&api.path("a")).await?;
    assert_eq!(
        (response.status, response.header("content-type")),
        (200, "application/yaml")
    );
    let read: Value = serde_saphyr::from_str(&response.text()).context("read YAML")?;
    assert_eq!(read, created);
    let missing = yaml.get(&api.path("nobody")).await?;
    assert_eq!(
        (missing.status, missing.header("content-type")),
        (404, "application/yaml")
    );
    ensure!(missing.text().contains("reason: NotFound"), "{}", missing.text());
    Ok(())
}

/// 406 where no accepted media type can be served.
pub async fn unsupported_media_types_are_rejected(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    for accept in ["application/xml", "application/json;as=Table;g=meta.k8s.io;v=v9"] {
        let caller = api.caller.clone().with_header("accept", accept)?;
        for path in [api.path("a"), api.own()] {
            let response = caller.get(&path).await?;
            let status = response.expect(406)?;
            assert_eq!(status["reason"], "NotAcceptable", "{accept}");
            ensure!(
                response.text().contains("\n  \""),
                "a Status of any accepted media type is indented JSON"
            );
        }
    }
    for accept in [
        "*/*",
        "",
        "text/html, application/json;q=0.5",
        "application/json;odd=parameter",
    ] {
        let caller = api.caller.clone().with_header("accept", accept)?;
        let response = caller.get(&api.path("a")).await?;
        assert_eq!(
            (response.status, response.header("content-type")),
            (200, "application/json"),
            "{accept}"
        );
    }
    Ok(())
}

/// The first clause that can be served decides, by weight and then by precision; other parameters are ignored.
pub async fn accept_clauses_are_tried_in_order(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let yaml = "application/yaml";
    let protobuf = "application/vnd.kubernetes.protobuf";
    for (accept, content_type, kind) in [
        ("application/json;q=0.1, application/yaml;q=0.2", yaml, ""),
        ("*/*, application/yaml", yaml, ""),
        ("application/json;q=0, application/yaml;q=0.1", yaml, ""),
        ("application/json;v=v1, application/yaml", yaml, ""),
        ("application/json;stream=other, application/yaml", yaml, ""),
        (
            "application/json;stream=watch, application/yaml",
            "application/json",
            "NodeMaintenance",
        ),
        ("application/json;sv=v9, application/yaml", yaml, ""),
        (
            "application/json;sv=v1;export=1;profile=x, application/yaml",
            "application/json",
            "NodeMaintenance",
        ),
        (
            "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io, application/json;as=Table;v=v1;g=meta.k8s.io",
            "application/json",
            "Table",
        ),
        (
            "application/vnd.kubernetes.protobuf, application/json",
            protobuf,
            "",
        ),
        ("text/html, */*;q=0.1", "application/json", "NodeMaintenance"),
    ] {
        let caller = api.caller.clone().with_header("accept", accept)?;
        let response = caller.get(&api.path("a")).await?;
        assert_eq!(
            (response.status, response.header("content-type")),
            (200, content_type),
            "{accept}"
        );
        if !kind.is_empty() {
            assert_eq!(response.json()?["kind"], kind, "{accept}");
        }
    }
    // Errors are never transformed.
    let caller = api.caller.clone().with_header("accept", TABLE)?;
    let missing = caller.get(&api.path("nobody")).await?;
    assert_eq!(missing.expect(404)?["kind"], "Status");
    ensure!(!missing.text().contains("\n "), "{}", missing.text());
    Ok(())
}

/// Compact JSON, indented JSON and YAML hold the same document, also for an empty list.
pub async fn encodings_hold_the_same_document(api: &Endpoint) -> Result<()> {
    let empty = api.requests();
    api.create("a").await?;
    for path in [api.path("a"), api.own(), format!("{empty}?")] {
        let plain = api.caller.get(&path).await?.expect(200)?;
        // A list is read at one revision, since others write meanwhile.
        let (separator, path) = if plain["items"].is_array() {
            let revision = version(&plain)?;
            let exact = format!("{path}&resourceVersion={revision}&resourceVersionMatch=Exact");
            ('&', exact)
        } else {
            ('?', path)
        };
        let pretty = api.caller.get(&format!("{path}{separator}pretty=true")).await?;
        assert_eq!(pretty.expect(200)?, plain, "{path}");
        let text = pretty.text();
        ensure!(text.starts_with("{\n  \"") && text.ends_with("\n}"), "{text}");
        let is_even = |line: &str| (line.len() - line.trim_start().len()).is_multiple_of(2);
        ensure!(text.lines().all(is_even), "{text}");
        let curl = api.caller.clone().with_header("user-agent", "curl/8")?;
        assert_eq!(curl.get(&path).await?.text(), text, "{path}");
        let yaml = api.caller.clone().with_header("accept", "application/yaml")?;
        let yaml = yaml.get(&path).await?;
        assert_eq!(yaml.header("content-type"), "application/yaml");
        let read: Value = serde_saphyr::from_str(&yaml.text()).context("read YAML")?;
        assert_eq!(read, plain, "{path}");
    }
    let partial = api.caller.clone().with_header("accept", PARTIAL_LIST)?;
    assert_eq!(partial.get(&empty).await?.expect(200)?["items"], json!([]));
    Ok(())
}

/// JSON is indented for browsers and curl, and compressed if it is large.
pub async fn pretty_and_compressed(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let is_pretty = async |path: &str, agent: &str| {
        let caller = api.caller.clone().with_header("user-agent", agent)?;
        Ok::<_, anyhow::Error>(caller.get(path).await?.text().contains("\n  \"metadata\""))
    };
    let path = api.path("a");
    assert!(!is_pretty(&path, "kubectl/v1.37.2").await?);
    assert!(is_pretty(&path, "curl/8.0").await?);
    assert!(is_pretty(&format!("{path}?pretty=true"), "kubectl/v1.37.2").await?);
    assert!(!is_pretty(&format!("{path}?pretty=false"), "curl/8.0").await?);

    let caller = api.caller.clone().with_header("accept-encoding", "gzip")?;
    let small = caller.get(&path).await?;
    assert_eq!(small.header("content-encoding"), "");
    let large = json!({ "metadata": { "annotations": { "large": "x".repeat(140_000) } } });
    api.merge("a", &large).await?.expect(200)?;
    for path in [path, api.own()] {
        let response = caller.get(&path).await?;
        assert_eq!(response.header("content-encoding"), "gzip", "{path}");
        assert_eq!(response.body.get(..2), Some(&[0x1f, 0x8b][..]), "{path}");
        ensure!(response.body.len() < 100_000, "{path}");
        ensure!(
            response.header("vary").to_lowercase().contains("accept-encoding"),
            "{path}: {:?}",
            response.headers
        );
    }
    Ok(())
}
