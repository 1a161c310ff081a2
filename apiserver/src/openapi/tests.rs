//! The published documents, compared with the files in `golden`: a change of what clients see is a change of a file.
//!
//! `DRYDOCK_UPDATE_GOLDEN=1` writes the files instead.

use std::path::Path;

use super::*;
use crate::discovery::Discovery;
use crate::fixtures::noon;
use crate::registry::kinds;

/// Compares a value with a file.
#[track_caller]
fn check(name: &str, found: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/openapi/golden")
        .join(name);
    let text = serde_json::to_string_pretty(found).unwrap() + "\n";
    if std::env::var_os("DRYDOCK_UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = expected
        .lines()
        .zip(text.lines())
        .position(|(expected, found)| expected != found);
    assert!(
        expected == text,
        "{} differs from line {}; DRYDOCK_UPDATE_GOLDEN=1 updates it",
        path.display(),
        differs.unwrap_or_else(|| expected.lines().count()) + 1
    );
}

fn catalog() -> Catalog {
    Catalog::new(kinds::resources(&Arc::default()).unwrap())
}

async fn body(response: Response<ResponseBody>) -> Value {
    use http_body_util::BodyExt as _;
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn discovery_is_as_recorded() {
    let discovery = Discovery::new(&catalog());
    for (name, path) in [
        ("discovery.json", "/apis"),
        ("discovery-group.json", "/apis/coordination.k8s.io"),
        ("discovery-v1alpha1.json", "/apis/coordination.k8s.io/v1alpha1"),
        ("discovery-v1alpha3.json", "/apis/coordination.k8s.io/v1alpha3"),
    ] {
        check(
            name,
            &body(discovery.respond(path, &HeaderMap::new()).unwrap()).await,
        );
    }
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let accept = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(aggregated))]);
    let found = body(discovery.respond("/apis", &accept).unwrap()).await;
    check("discovery-aggregated.json", &found);
}

/// The definitions of our kinds, and each path with its verbs.
fn summary(definitions: &Value, paths: &Value) -> Value {
    let own = definitions.as_object().unwrap().iter();
    let own = own.filter(|(name, _)| name.starts_with("io.drydock.api."));
    let own: Map<String, Value> = own
        .map(|(name, definition)| (name.clone(), definition.clone()))
        .collect();
    let verbs = |item: &Value| {
        let members = item.as_object().unwrap().keys();
        json!(members.filter(|name| *name != "parameters").collect::<Vec<_>>())
    };
    let paths = paths.as_object().unwrap().iter();
    let paths: Map<String, Value> = paths.map(|(path, item)| (path.clone(), verbs(item))).collect();
    json!({ "definitions": own, "paths": paths })
}

#[test]
fn schemas_and_paths_are_as_recorded() {
    let catalog = catalog();
    for version in ["v1alpha1", "v1alpha3"] {
        let document = v3(&catalog, "coordination.k8s.io", version);
        let found = summary(&document["components"]["schemas"], &document["paths"]);
        check(&format!("openapi-{version}.json"), &found);
    }
    let document = v2(&catalog);
    let found = summary(&document["definitions"], &document["paths"]);
    check("openapi-v2-paths.json", &found["paths"]);
}

#[test]
fn every_definition_is_ours_or_shared_and_every_reference_resolves() {
    let catalog = catalog();
    let clock = Arc::new(drydock_machinery::clock::ManualClock::new(noon()));
    let openapi = OpenApi::new(&catalog, clock);
    assert_eq!(openapi.group_versions.len(), 2);
    let document: Value = serde_json::from_slice(&openapi.v2.bytes).unwrap();
    let definitions = document["definitions"].as_object().unwrap();
    for reference in document.to_string().split("\"$ref\":\"#/definitions/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(definitions.contains_key(name), "{name}");
    }
    // kube-apiserver merges this document: names that it also has would be renamed.
    assert!(
        definitions.keys().all(|name| name.starts_with("io.drydock.")),
        "{:?}",
        definitions.keys()
    );
}
