//! Rules of discovery, OpenAPI, and the headers of every response.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Endpoint, ROOT};

const OLD_ROOT: &str = "/apis/coordination.k8s.io/v1alpha1";

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const RESOURCES: [&str; 6] = [
    "evictioninterceptors",
    "evictioninterceptors/status",
    "evictionrequests",
    "evictionrequests/status",
    "nodemaintenances",
    "nodemaintenances/status",
];
const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// The resource list has names, verbs and hashes.
pub async fn resources_are_listed(api: &Endpoint) -> Result<()> {
    for path in [ROOT.to_owned(), format!("{ROOT}/")] {
        let list = api.caller.get(&path).await?.expect(200)?;
        assert_eq!(list["kind"], "APIResourceList");
        assert_eq!(list["groupVersion"], super::GROUP_VERSION);
        let resources = list["resources"].as_array().context("resources")?;
        let names: Vec<_> = resources
            .iter()
            .filter_map(|resource| resource["name"].as_str())
            .collect();
        assert_eq!(names, RESOURCES);
        let find = |name: &str| {
            let found = resources.iter().find(|resource| resource["name"] == name);
            found.cloned().with_context(|| format!("{name} is not listed"))
        };
        for (plural, kind, short, is_namespaced) in [
            ("evictionrequests", "EvictionRequest", "er", true),
            ("nodemaintenances", "NodeMaintenance", "nm", false),
            ("evictioninterceptors", "EvictionInterceptor", "ei", false),
        ] {
            let resource = find(plural)?;
            let hash = resource["storageVersionHash"].as_str().unwrap_or_default();
            ensure!(hash.len() == 12, "{resource}");
            let expected = json!({
                "name": plural, "singularName": kind.to_lowercase(), "namespaced": is_namespaced, "kind": kind,
                "verbs": VERBS, "shortNames": [short], "categories": ["drydock"], "storageVersionHash": hash,
            });
            assert_eq!(resource, expected);
            let status = json!({
                "name": format!("{plural}/status"), "singularName": "", "namespaced": is_namespaced,
                "kind": kind, "verbs": ["get", "patch", "update"],
            });
            assert_eq!(find(&format!("{plural}/status"))?, status);
        }
    }
    Ok(())
}

/// The older version lists its resources: the same ones, and Evacuations.
pub async fn resources_of_the_older_version_are_listed(api: &Endpoint) -> Result<()> {
    let list = api.caller.get(OLD_ROOT).await?.expect(200)?;
    let resources = list["resources"].as_array().context("resources")?;
    let shown: Vec<_> = resources
        .iter()
        .map(|it| {
            (
                it["name"].as_str().unwrap_or_default(),
                it["kind"].as_str().unwrap_or_default(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("evacuations", "Evacuation"),
            ("evacuations/status", "Evacuation"),
            ("evictionrequests", "EvictionRequest"),
            ("evictionrequests/status", "EvictionRequest"),
            ("nodemaintenances", "NodeMaintenance"),
            ("nodemaintenances/status", "NodeMaintenance"),
        ]
    );
    let evacuations = resources.first().context("evacuations")?;
    assert_eq!(evacuations["shortNames"], json!(["evac"]));
    assert_eq!(evacuations["categories"], json!(["drydock"]));
    assert_eq!(evacuations["verbs"], json!(VERBS));
    assert_eq!(evacuations["singularName"], "evacuation");
    assert_eq!(evacuations["namespaced"], true);
    Ok(())
}

/// The group list has a legacy and an aggregated form.
pub async fn groups_are_listed_in_both_forms(api: &Endpoint) -> Result<()> {
    let find = |list: &Value, member: &str, name: &dyn Fn(&Value) -> Value| {
        let groups = list[member].as_array().cloned().unwrap_or_default();
        groups
            .into_iter()
            .find(|group| name(group) == "coordination.k8s.io")
            .with_context(|| format!("the group is not listed: {list}"))
    };
    let legacy = api.caller.get("/apis").await?.expect(200)?;
    assert_eq!(legacy["kind"], "APIGroupList");
    let group = find(&legacy, "groups", &|group| group["name"].clone())?;
    let versions = group["versions"].as_array().context("versions")?;
    ensure!(
        versions
            .iter()
            .any(|version| version["groupVersion"] == super::GROUP_VERSION),
        "{group}"
    );

    let caller = api.caller.clone().with_header("accept", AGGREGATED)?;
    let response = caller.get("/apis").await?;
    let aggregated = response.expect(200)?;
    assert_eq!(response.header("content-type"), AGGREGATED);
    assert_eq!(aggregated["kind"], "APIGroupDiscoveryList");
    let group = find(&aggregated, "items", &|group| group["metadata"]["name"].clone())?;
    let versions = group["versions"].as_array().context("versions")?;
    let place = |name: &str| versions.iter().position(|version| version["version"] == name);
    ensure!(
        place("v1alpha3")
            .zip(place("v1alpha1"))
            .is_some_and(|(new, old)| new < old),
        "v1alpha3 is not preferred: {group}"
    );
    let version = versions
        .iter()
        .find(|version| version["version"] == "v1alpha3")
        .with_context(|| format!("v1alpha3 is not listed: {group}"))?;
    assert_eq!(version["freshness"], "Current");
    let resources = version["resources"].as_array().context("resources")?;
    assert_eq!(resources.len(), 3);
    for resource in resources {
        assert_eq!(resource["verbs"], json!(VERBS));
        ensure!(
            resource["responseKind"]["kind"]
                .as_str()
                .is_some_and(|kind| !kind.is_empty())
        );
        assert_eq!(resource["subresources"][0]["subresource"], "status");
    }

    // As kubectl asks.
    let accept = format!("{AGGREGATED};profile=nopeer,application/json");
    let kubectl = api.caller.clone().with_header("accept", &accept)?;
    assert_eq!(
        kubectl.get("/apis").await?.expect(200)?["kind"],
        "APIGroupDiscoveryList"
    );

    let tag = response.header("etag").to_owned();
    ensure!(tag.len() > 2 && tag.starts_with('"'), "{tag}");
    assert!(response.header("vary").to_lowercase().contains("accept"));
    let again = caller.with_header("if-none-match", &tag)?.get("/apis").await?;
    assert_eq!((again.status, again.body.len()), (304, 0));
    Ok(())
}

/// OpenAPI v2 and v3 describe every kind, and every reference resolves.
pub async fn openapi_describes_every_kind(api: &Endpoint) -> Result<()> {
    let index = api.caller.get("/openapi/v3").await?.expect(200)?;
    let url = index["paths"]["apis/coordination.k8s.io/v1alpha3"]["serverRelativeURL"]
        .as_str()
        .with_context(|| format!("not in the index: {index}"))?;
    let document = api.caller.get(url).await?.expect(200)?;
    let second = api.caller.get("/openapi/v2").await?;
    let v2 = second.expect(200)?;
    let maintenance = format!("{ROOT}/nodemaintenances/{{name}}");
    ensure!(
        v2["paths"][&maintenance].is_object(),
        "{maintenance} is not in v2"
    );
    let mut documents = vec![(&document["components"]["schemas"], &document["paths"])];
    // kube-apiserver merges v2 of all servers.
    if !api.through_host {
        documents.push((&v2["definitions"], &v2["paths"]));
    }
    for (schemas, paths) in documents {
        let all = schemas.as_object().context("schemas")?;
        let mut references = Vec::new();
        collect_references(schemas, &mut references);
        collect_references(paths, &mut references);
        for reference in references {
            let name = reference.rsplit('/').next().unwrap_or_default();
            ensure!(all.contains_key(name), "{reference} does not resolve");
        }
        for (kind, plural) in [
            ("EvictionRequest", "namespaces/{namespace}/evictionrequests"),
            ("NodeMaintenance", "nodemaintenances"),
            ("EvictionInterceptor", "evictioninterceptors"),
        ] {
            let gvk = json!({ "group": "coordination.k8s.io", "version": "v1alpha3", "kind": kind });
            let count = all
                .values()
                .filter(|schema| schema["x-kubernetes-group-version-kind"] == json!([gvk]))
                .count();
            assert_eq!(count, 1, "schemas of {kind}");
            let path = format!("{ROOT}/{plural}/{{name}}");
            let patch = &paths[&path]["patch"];
            assert_eq!(patch["x-kubernetes-group-version-kind"], gvk, "{path}");
            assert_eq!(patch["x-kubernetes-action"], "patch", "{path}");
            let parameters = patch["parameters"].as_array().context("parameters")?;
            for name in ["dryRun", "fieldManager", "fieldValidation", "force"] {
                let resolve = |it: &Value| {
                    it["name"] == name || it["$ref"].as_str().is_some_and(|it| it.contains(name))
                };
                ensure!(
                    parameters.iter().any(resolve),
                    "PATCH {path} has no parameter {name}"
                );
            }
        }
    }
    Ok(())
}

fn collect_references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(reference) if name == "$ref" => found.push(reference),
                    _ => collect_references(member, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
        _ => {}
    }
}

/// OpenAPI documents have entity tags; a URL with the document's hash may be cached forever.
pub async fn openapi_can_be_cached(api: &Endpoint) -> Result<()> {
    // kube-apiserver serves documents of its own.
    if api.through_host {
        return Ok(());
    }
    let second = api.caller.get("/openapi/v2").await?;
    let tag = second.header("etag").to_owned();
    let again = api.caller.clone().with_header("if-none-match", &tag)?;
    assert_eq!(again.get("/openapi/v2").await?.status, 304);
    let unknown = api.caller.clone().with_header("accept", "text/html")?;
    assert_eq!(unknown.get("/openapi/v2").await?.status, 406);

    // A document with its hash in the URL never changes.
    let index = api.caller.get("/openapi/v3").await?.expect(200)?;
    let url = index["paths"]["apis/coordination.k8s.io/v1alpha3"]["serverRelativeURL"]
        .as_str()
        .context("a URL")?;
    let hashed = api.caller.get(url).await?;
    assert_eq!(hashed.header("cache-control"), "public, immutable");
    ensure!(!hashed.header("expires").is_empty(), "{:?}", hashed.headers);
    let again = api
        .caller
        .clone()
        .with_header("if-none-match", hashed.header("etag"))?;
    let again = again.get(url).await?;
    assert_eq!((again.status, again.body.len()), (304, 0));
    let other = api
        .caller
        .get("/openapi/v3/apis/coordination.k8s.io/v1alpha3?hash=OLD")
        .await?;
    ensure!(
        other.header("cache-control") != "public, immutable",
        "{:?}",
        other.headers
    );
    assert_eq!(other.expect(200)?, hashed.expect(200)?);
    Ok(())
}

/// Every response has an audit ID and may not be cached.
pub async fn every_response_has_an_audit_id_and_is_not_cached(api: &Endpoint) -> Result<()> {
    let named = api.caller.clone().with_header("audit-id", "a-chosen-id")?;
    for path in [api.maintenances(), api.path("nobody")] {
        let response = named.get(&path).await?;
        assert_eq!(response.header("audit-id"), "a-chosen-id", "{path}");
        assert_eq!(response.header("cache-control"), "no-cache, private", "{path}");
        let response = api.caller.get(&path).await?;
        ensure!(response.header("audit-id").len() == 36, "{:?}", response.headers);
    }
    Ok(())
}
