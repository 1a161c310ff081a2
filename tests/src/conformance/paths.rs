//! Rules of paths, methods and names: which exist, and in which order a request is checked.

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::{Endpoint, ROOT};
use crate::calls::Caller;
use crate::clients::Protocol;

const NO_PATH: &str = "the server could not find the requested resource";
const NO_METHOD: &str = "the server does not allow this method on the requested resource";

/// Paths without a resource are 404.
pub async fn unknown_paths_are_404(api: &Endpoint) -> Result<()> {
    let mut paths = vec![
        format!("{ROOT}/voyages"),
        format!("{ROOT}/namespaces/{}/nodemaintenances", api.namespace),
        format!("{ROOT}/namespaces/{}/nodemaintenances/x", api.namespace),
        format!("{ROOT}/evictionrequests/x"),
        format!("{ROOT}/nodemaintenances/x/scale"),
        format!("{ROOT}/nodemaintenances/x/status/y"),
    ];
    // kube-apiserver serves some of these itself.
    if !api.through_host {
        let more = [
            "/apis/coordination.k8s.io/v1alpha3/namespaces/shop",
            "/apis/coordination.k8s.io/v1alpha3/nodemaintenances//status",
            "/apis/coordination.k8s.io/v1alpha3/nodemaintenances/a%2Fb",
            "/openapi/v3/apis/other/v1",
        ];
        paths.extend(more.map(str::to_owned));
    }
    for path in paths {
        let methods = [Method::GET, Method::PUT, Method::DELETE];
        for method in methods.into_iter().take(if api.through_host { 1 } else { 3 }) {
            let response = api.caller.call(method, &path, "", "").await?;
            let status = response.expect_error(404, "NotFound", NO_PATH)?;
            assert_eq!(status["details"], json!({}), "{path}");
        }
    }
    // Outside every version the page is text, as that of kube-apiserver.
    let outside = [
        "/apis/coordination.k8s.io/v9/evictionrequests",
        "/apis/other/v1alpha3/evictionrequests",
        "/apis/other",
        "/nothing",
    ];
    for path in outside {
        let response = api.caller.get(path).await?;
        assert_eq!(
            (response.status, response.text().as_str()),
            (404, "404 page not found\n"),
            "{path}"
        );
        assert_eq!(
            response.header("content-type"),
            "text/plain; charset=utf-8",
            "{path}"
        );
    }
    Ok(())
}

/// Methods that a path does not have are 405.
pub async fn unknown_methods_are_405(api: &Endpoint) -> Result<()> {
    let all = format!("{ROOT}/evictionrequests");
    let (item, status) = (api.path("x"), format!("{}/status", api.path("x")));
    let mut calls = vec![
        (Method::POST, all.clone()),
        (Method::DELETE, all),
        (Method::PUT, api.maintenances()),
        (Method::POST, item),
        (Method::POST, status.clone()),
        (Method::DELETE, status),
    ];
    if !api.through_host {
        calls.extend([
            (Method::PATCH, api.maintenances()),
            (Method::OPTIONS, api.maintenances()),
            (Method::DELETE, format!("{ROOT}/watch/nodemaintenances")),
            (Method::POST, format!("{ROOT}/watch/nodemaintenances")),
        ]);
        for path in ["/apis", "/apis/coordination.k8s.io", ROOT] {
            calls.push((Method::POST, path.to_owned()));
            calls.push((Method::DELETE, path.to_owned()));
        }
        for path in [api.maintenances(), api.path("x"), ROOT.to_owned()] {
            let response = api.caller.call(Method::HEAD, &path, "", "").await?;
            assert_eq!(response.status, 405, "HEAD {path}");
        }
    }
    for (method, path) in calls {
        let response = api.caller.call(method, &path, "application/json", "{}").await?;
        let status = response.expect_error(405, "MethodNotAllowed", NO_METHOD)?;
        assert_eq!(status["details"], json!({}), "{}", response.what);
    }
    Ok(())
}

/// Slashes at the end of a path are ignored.
pub async fn trailing_slashes_are_ignored(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    for slashes in ["/", "//"].into_iter().take(if api.through_host { 1 } else { 2 }) {
        let path = format!("{}{slashes}", api.path("a"));
        assert_eq!(api.caller.get(&path).await?.expect(200)?, created, "{path}");
    }
    let list = api
        .caller
        .get(&format!("{}/", api.requests()))
        .await?
        .expect(200)?;
    assert_eq!(list["kind"], "EvictionRequestList");
    for path in ["/apis/", "/apis/coordination.k8s.io/"] {
        api.caller.get(path).await?.expect(200)?;
    }
    Ok(())
}

/// Names that are not path segments are 400, other impossible names 404.
pub async fn impossible_names_are_400_or_404(api: &Endpoint) -> Result<()> {
    // kube-apiserver cleans paths before it passes them on.
    if api.through_host {
        return Ok(());
    }
    let long = "x".repeat(3000);
    for (name, code, text) in [
        ("..", 400, "Name parameter invalid: \"..\": may not be '..'"),
        (".", 400, "Name parameter invalid: \".\": may not be '.'"),
        ("a%25", 400, "may not contain '%'"),
        ("UPPER", 404, "\"UPPER\" not found"),
        ("a%00b", 404, "not found"),
        ("%F0%9F%90%B8", 404, "not found"),
        (&long, 404, "not found"),
    ] {
        for collection in [api.maintenances(), api.requests()] {
            for method in [Method::GET, Method::DELETE] {
                let path = format!("{collection}/{name}");
                let status = api.caller.call(method, &path, "", "").await?.expect(code)?;
                let message = status["message"].as_str().unwrap_or_default();
                ensure!(message.contains(text), "{name}: {message}");
            }
        }
    }
    for namespace in ["UPPER", "a%25b", "..", "%20"] {
        let path = format!("{ROOT}/namespaces/{namespace}/evictionrequests");
        let list = api.caller.get(&path).await?.expect(200)?;
        assert_eq!(list["items"], json!([]), "{namespace}");
    }
    Ok(())
}

const XML: &str = "text/xml";
const JSON: &str = "application/json";
const MERGE: &str = crate::calls::MERGE_PATCH;
/// A body beyond the limit.
const LARGE: &str = "a body beyond the limit";

/// Requests with several errors, and the code of the one that is reported: method, whether it is for the collection,
/// query, `accept`, `content-type`, body, code.
const ORDER: &[(Method, bool, &str, &str, &str, &str, u16)] = &[
    (Method::POST, true, "?dryRun=x", XML, XML, LARGE, 406),
    (Method::POST, true, "?dryRun=x", JSON, XML, LARGE, 415),
    (Method::POST, true, "?dryRun=x", JSON, JSON, LARGE, 413),
    (Method::POST, true, "?dryRun=x", JSON, JSON, "{", 422),
    (Method::POST, true, "", JSON, JSON, "{", 400),
    (Method::PUT, false, "?dryRun=x", XML, XML, LARGE, 406),
    (Method::PUT, false, "?dryRun=x", JSON, XML, LARGE, 413),
    (Method::PUT, false, "?dryRun=x", JSON, XML, "{", 422),
    (Method::PUT, false, "", JSON, XML, "{", 415),
    (Method::PUT, false, "", JSON, JSON, "{", 400),
    (Method::PATCH, false, "?dryRun=x", XML, XML, LARGE, 415),
    (Method::PATCH, false, "?dryRun=x", XML, MERGE, LARGE, 406),
    (Method::PATCH, false, "?dryRun=x", JSON, MERGE, LARGE, 413),
    (Method::PATCH, false, "?force=true", JSON, MERGE, "{", 422),
    (Method::PATCH, false, "", JSON, MERGE, "{", 400),
    (Method::PATCH, false, "", JSON, MERGE, "{}", 404),
    (Method::DELETE, false, "?dryRun=x", XML, JSON, "{", 406),
    (Method::DELETE, false, "", JSON, JSON, "{", 400),
    (Method::DELETE, false, "", JSON, XML, "{", 415),
    (
        Method::DELETE,
        false,
        "?propagationPolicy=Later",
        JSON,
        "",
        "",
        422,
    ),
    (Method::GET, false, "?resourceVersion=abc", XML, "", "", 406),
    (Method::GET, false, "?resourceVersion=abc", JSON, "", "", 500),
    (Method::GET, false, "?export=1", JSON, "", "", 400),
];

/// Of several errors, the one of the earliest check is reported.
pub async fn checks_have_an_order(api: &Endpoint) -> Result<()> {
    // kube-apiserver has checks of its own.
    if api.through_host {
        return Ok(());
    }
    let large = Bytes::from(vec![b' '; 3 * 1024 * 1024 + 1]);
    for (method, is_collection, query, accept, content_type, body, code) in ORDER {
        // Over HTTP/1.1 a response that comes before the end of the body may be lost with the connection.
        if *body == LARGE && *code != 413 && api.caller.protocol() == Protocol::Http1 {
            continue;
        }
        let path = if *is_collection {
            api.maintenances()
        } else {
            api.path("missing")
        };
        let caller: Caller = api.caller.clone().with_header("accept", accept)?;
        let body = if *body == LARGE {
            large.clone()
        } else {
            Bytes::from_static(body.as_bytes())
        };
        let line = format!("{path}{query}");
        let response = caller.call(method.clone(), &line, content_type, body).await?;
        let status: Value = response.expect(*code)?;
        assert_eq!(
            (&status["kind"], &status["code"]),
            (&json!("Status"), &json!(code)),
            "{}",
            response.what
        );
        // Where no offered form can be served, the Status is indented JSON.
        let is_indented = response.text().starts_with("{\n");
        ensure!(
            is_indented == (*accept == XML),
            "{}: {}",
            response.what,
            response.text()
        );
    }
    Ok(())
}
