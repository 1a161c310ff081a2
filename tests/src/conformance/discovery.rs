//! What does the server say of itself?

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{ROOT, Road};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
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

/// Legacy discovery: names, verbs and hashes.
///
/// # Errors
/// The rule does not hold.
pub async fn resources_are_listed(road: &Road) -> Result<()> {
    for path in [ROOT.to_owned(), format!("{ROOT}/")] {
        let list = road.caller.get(&path).await?.expect(200)?;
        assert_eq!(list["kind"], "APIResourceList");
        assert_eq!(list["groupVersion"], super::GROUP_VERSION);
        let resources = list["resources"].as_array().context("resources")?;
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

/// The group list in its legacy and its aggregated form.
///
/// # Errors
/// The rule does not hold.
pub async fn groups_are_listed_in_both_forms(road: &Road) -> Result<()> {
    let find = |list: &Value, member: &str, name: &dyn Fn(&Value) -> Value| {
        let groups = list[member].as_array().cloned().unwrap_or_default();
        groups
            .into_iter()
            .find(|group| name(group) == "coordination.k8s.io")
            .with_context(|| format!("the group is not listed: {list}"))
    };
    let legacy = road.caller.get("/apis").await?.expect(200)?;
    assert_eq!(legacy["kind"], "APIGroupList");
    let group = find(&legacy, "groups", &|group| group["name"].clone())?;
    let versions = group["versions"].as_array().context("versions")?;
    ensure!(
        versions
            .iter()
            .any(|version| version["groupVersion"] == super::GROUP_VERSION),
        "{group}"
    );

    let caller = road.caller.clone().with_header("accept", AGGREGATED)?;
    let answer = caller.get("/apis").await?;
    let aggregated = answer.expect(200)?;
    assert_eq!(answer.header("content-type"), AGGREGATED);
    assert_eq!(aggregated["kind"], "APIGroupDiscoveryList");
    let group = find(&aggregated, "items", &|group| group["metadata"]["name"].clone())?;
    let versions = group["versions"].as_array().context("versions")?;
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

    let tag = answer.header("etag").to_owned();
    ensure!(tag.len() > 2 && tag.starts_with('"'), "{tag}");
    assert!(answer.header("vary").to_lowercase().contains("accept"));
    let again = caller.with_header("if-none-match", &tag)?.get("/apis").await?;
    assert_eq!((again.status, again.body.len()), (304, 0));
    Ok(())
}

/// Both generations of OpenAPI describe the kinds.
///
/// # Errors
/// The rule does not hold.
pub async fn openapi_describes_every_kind(road: &Road) -> Result<()> {
    let index = road.caller.get("/openapi/v3").await?.expect(200)?;
    let url = index["paths"]["apis/coordination.k8s.io/v1alpha3"]["serverRelativeURL"]
        .as_str()
        .with_context(|| format!("not in the index: {index}"))?;
    let document = road.caller.get(url).await?.expect(200)?;
    let schemas = document["components"]["schemas"].as_object().context("schemas")?;
    for kind in ["EvictionRequest", "NodeMaintenance", "EvictionInterceptor"] {
        let is_named = schemas.values().any(|schema| {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|it| it["kind"] == kind))
        });
        ensure!(is_named, "no schema names the kind {kind}");
    }
    let path = format!("{ROOT}/nodemaintenances/{{name}}");
    let patch = &document["paths"][&path]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"]["kind"],
        "NodeMaintenance"
    );
    assert_eq!(patch["x-kubernetes-action"], "patch");
    let empty = Vec::new();
    let parameters = patch["parameters"].as_array().unwrap_or(&empty);
    for name in ["dryRun", "fieldManager", "fieldValidation", "force"] {
        ensure!(
            parameters.iter().any(|it| it["name"] == name),
            "PATCH has no {name}"
        );
    }
    let second = road.caller.get("/openapi/v2").await?;
    ensure!(
        second.expect(200)?["paths"][&path].is_object(),
        "{path} is not in v2"
    );
    if !road.through_host {
        let tag = second.header("etag").to_owned();
        let again = road.caller.clone().with_header("if-none-match", &tag)?;
        assert_eq!(again.get("/openapi/v2").await?.status, 304);
        let unknown = road.caller.clone().with_header("accept", "text/html")?;
        assert_eq!(unknown.get("/openapi/v2").await?.status, 406);
    }
    Ok(())
}

/// 404 for what is nowhere, 405 for what cannot be done there.
///
/// # Errors
/// The rule does not hold.
pub async fn unknown_paths_and_methods_are_told_apart(road: &Road) -> Result<()> {
    let nowhere = "the server could not find the requested resource";
    let forbidden = "the server does not allow this method on the requested resource";
    for path in [
        format!("{ROOT}/voyages"),
        format!("{ROOT}/namespaces/{}/nodemaintenances", road.namespace),
        format!("{ROOT}/namespaces/{}/nodemaintenances/x", road.namespace),
        format!("{ROOT}/evictionrequests/x"),
        format!("{ROOT}/nodemaintenances/x/scale"),
        format!("{ROOT}/nodemaintenances/x/status/y"),
    ] {
        let status = road.caller.get(&path).await?.refused(404, "NotFound", nowhere)?;
        assert_eq!(status["details"], json!({}), "{path}");
    }
    let body = json!({});
    let all = format!("{ROOT}/evictionrequests");
    for answer in [
        road.caller.post(&all, &body).await?,
        road.caller.delete(&all).await?,
        road.caller.post(&road.path("x"), &body).await?,
        road.caller
            .post(&format!("{}/status", road.path("x")), &body)
            .await?,
        road.caller.delete(&format!("{}/status", road.path("x"))).await?,
        road.caller.put(&road.maintenances(), &body).await?,
    ] {
        let status = answer.refused(405, "MethodNotAllowed", forbidden)?;
        assert_eq!(status["details"], json!({}), "{}", answer.what);
    }
    Ok(())
}

/// Headers that every answer carries.
///
/// # Errors
/// The rule does not hold.
pub async fn every_answer_has_an_audit_id_and_is_not_cached(road: &Road) -> Result<()> {
    let named = road.caller.clone().with_header("audit-id", "a-chosen-id")?;
    for path in [road.maintenances(), road.path("nobody")] {
        let answer = named.get(&path).await?;
        assert_eq!(answer.header("audit-id"), "a-chosen-id", "{path}");
        assert_eq!(answer.header("cache-control"), "no-cache, private", "{path}");
        let answer = road.caller.get(&path).await?;
        ensure!(answer.header("audit-id").len() == 36, "{:?}", answer.headers);
    }
    Ok(())
}
