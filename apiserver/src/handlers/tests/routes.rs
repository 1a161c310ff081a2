//! Which paths and methods lead somewhere?

use super::*;

const NO_ROUTE: (u16, &str, &str) = (
    404,
    "NotFound",
    "the server could not find the requested resource",
);
const NO_METHOD: (u16, &str, &str) = (
    405,
    "MethodNotAllowed",
    "the server does not allow this method on the requested resource",
);

#[tokio::test(start_paused = true)]
async fn paths_that_are_none_of_ours_are_not_found() {
    let served = Served::new().await;
    for path in [
        "/apis/coordination.k8s.io/v1alpha3/leases",
        "/apis/coordination.k8s.io/v9/evictionrequests",
        "/apis/other/v1alpha3/evictionrequests",
        "/apis/coordination.k8s.io/v1alpha3/namespaces/shop",
        "/apis/coordination.k8s.io/v1alpha3/namespaces/shop/nodemaintenances",
        "/apis/coordination.k8s.io/v1alpha3/namespaces/shop/nodemaintenances/x",
        "/apis/coordination.k8s.io/v1alpha3/evictionrequests/x",
        "/apis/coordination.k8s.io/v1alpha3/nodemaintenances/x/scale",
        "/apis/coordination.k8s.io/v1alpha3/nodemaintenances/x/status/more",
        "/apis/coordination.k8s.io/v1alpha3/nodemaintenances//status",
        "/apis/coordination.k8s.io/v1alpha3/nodemaintenances/a%2Fb",
        "/apis/other",
        "/openapi/v3/apis/other/v1",
        "/nothing",
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            served
                .refused(&format!("{method} {path}"), &[], "", NO_ROUTE)
                .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn paths_of_ours_take_their_methods_alone() {
    let served = Served::new().await;
    for sample in kinds() {
        let item = sample.item(1);
        let all = format!("{ROOT}/{}", sample.kind.plural);
        let mut lines = vec![
            format!("PUT {}", sample.path),
            format!("PATCH {}", sample.path),
            format!("HEAD {}", sample.path),
            format!("OPTIONS {}", sample.path),
            format!("POST {item}"),
            format!("HEAD {item}"),
            format!("POST {item}/status"),
            format!("DELETE {item}/status"),
            format!("DELETE {ROOT}/watch/{}", sample.kind.plural),
            format!("POST {ROOT}/watch/{}", sample.kind.plural),
        ];
        if sample.path != all {
            lines.extend([format!("POST {all}"), format!("DELETE {all}")]);
        }
        for line in lines {
            served.refused(&line, &[], "", NO_METHOD).await;
        }
    }
    for path in ["/apis", "/apis/coordination.k8s.io", ROOT] {
        for method in ["POST", "HEAD", "DELETE"] {
            served
                .refused(&format!("{method} {path}"), &[], "", NO_METHOD)
                .await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slashes_at_the_end_say_nothing() {
    let served = Served::new().await;
    for sample in kinds() {
        let created = served.create(&sample, 1).await;
        for path in [sample.item(1) + "/", sample.item(1) + "//"] {
            assert_eq!(served.get(&path).await.json(200).await, created);
        }
        let list = served.get(&format!("{}/", sample.path)).await.json(200).await;
        assert_eq!(list["kind"], format!("{}List", sample.kind.kind));
    }
    for path in ["/apis/", "/apis/coordination.k8s.io/"] {
        served.get(path).await.json(200).await;
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_no_object_can_have_are_refused_or_not_found() {
    let served = Served::new().await;
    for sample in kinds() {
        for (name, code, text) in [
            ("..", 400, "Name parameter invalid: \"..\": may not be '..'"),
            (".", 400, "Name parameter invalid: \".\": may not be '.'"),
            ("a%25", 400, "may not contain '%'"),
            ("UPPER", 404, "\"UPPER\" not found"),
            ("a%00b", 404, "not found"),
            ("%F0%9F%90%B8", 404, "not found"),
            (&"x".repeat(3000), 404, "not found"),
        ] {
            let reason = if code == 400 { "BadRequest" } else { "NotFound" };
            for method in ["GET", "DELETE"] {
                let line = format!("{method} {}/{name}", sample.path);
                served.refused(&line, &[], "", (code, reason, text)).await;
            }
        }
    }
    // A namespace that cannot be holds nothing.
    for namespace in ["UPPER", "a%25b", "..", "%20"] {
        let path = format!("{ROOT}/namespaces/{namespace}/evictionrequests");
        let list = served.get(&path).await.json(200).await;
        assert_eq!(list["items"], json!([]));
    }
}

#[tokio::test(start_paused = true)]
async fn discovery_is_the_same_bytes_and_tagged() {
    let served = Served::new().await;
    let list = served.get(ROOT).await.json(200).await;
    let found: Vec<&str> = list["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        found,
        [
            "evictioninterceptors",
            "evictioninterceptors/status",
            "evictionrequests",
            "evictionrequests/status",
            "nodemaintenances",
            "nodemaintenances/status"
        ]
    );
    let accept = (
        "accept",
        "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io;profile=nopeer,application/json",
    );
    let first = served.send_with("GET /apis", &[accept], "").await;
    let tag = first.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(
        first.headers["content-type"],
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    );
    let groups = first.json(200).await;
    assert_eq!(groups["items"][0]["metadata"]["name"], "coordination.k8s.io");
    let again = served
        .send_with("GET /apis", &[accept, ("if-none-match", &tag)], "")
        .await;
    assert_eq!(again.text(304).await, "");
    let old = served
        .send_with("GET /apis", &[("accept", "application/json")], "")
        .await;
    assert_eq!(old.json(200).await["kind"], "APIGroupList");
}

#[tokio::test(start_paused = true)]
async fn openapi_describes_every_kind_and_is_kept_by_its_hash() {
    let served = Served::new().await;
    let index = served.get("/openapi/v3").await.json(200).await;
    let root = "apis/coordination.k8s.io/v1alpha3";
    let url = at(&index["paths"][root], "/serverRelativeURL").as_str().unwrap();
    let hashed = served.get(url).await;
    assert_eq!(hashed.headers["cache-control"], "public, immutable");
    assert!(hashed.headers.contains_key("expires"));
    let tag = hashed.headers["etag"].to_str().unwrap().to_owned();
    let document = hashed.json(200).await;
    let line = format!("GET {url}");
    let again = served.send_with(&line, &[("if-none-match", &tag)], "").await;
    assert_eq!(again.text(304).await, "");
    let other = served.get(&format!("/openapi/v3/{root}?hash=OLD")).await;
    assert!(!other.headers.contains_key("cache-control"));
    assert_eq!(other.json(200).await, document);
    served
        .send_with("GET /openapi/v2", &[("accept", "text/html")], "")
        .await
        .text(406)
        .await;

    let v2 = served.get("/openapi/v2").await.json(200).await;
    for (schemas, paths) in [
        (&document["components"]["schemas"], &document["paths"]),
        (&v2["definitions"], &v2["paths"]),
    ] {
        let mut references = Vec::new();
        collect_references(schemas, &mut references);
        collect_references(paths, &mut references);
        for reference in references {
            let name = reference.rsplit('/').next().unwrap();
            assert!(schemas.get(name).is_some(), "{reference} leads nowhere");
        }
        for sample in kinds() {
            let kind =
                json!([{"group": "coordination.k8s.io", "version": "v1alpha3", "kind": sample.kind.kind}]);
            let described = schemas.as_object().unwrap().values();
            let ours = described.filter(|schema| schema["x-kubernetes-group-version-kind"] == kind);
            assert_eq!(ours.count(), 1, "{}", sample.kind.kind);
            let item = sample.path.replace("shop", "{namespace}") + "/{name}";
            let patch = &paths[&item]["patch"];
            assert_eq!(patch["x-kubernetes-group-version-kind"], kind[0], "{item}");
            let parameters: Vec<&str> = patch["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|parameter| parameter["name"].as_str())
                .collect();
            for parameter in ["dryRun", "fieldManager", "fieldValidation", "force"] {
                assert!(parameters.contains(&parameter), "{item}: {parameters:?}");
            }
        }
    }
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
