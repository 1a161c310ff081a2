//! Rules of lists: the snapshot, pages, and selectors.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{Endpoint, causes, names, version};

/// An empty list has a resourceVersion.
pub async fn an_empty_list_has_a_resource_version(api: &Endpoint) -> Result<()> {
    let list = api.caller.get(&api.requests()).await?.expect(200)?;
    assert_eq!(list["kind"], "EvictionRequestList");
    assert_eq!(list["apiVersion"], super::GROUP_VERSION);
    assert_eq!(list["items"], json!([]));
    ensure!(version(&list)? > 0);
    // A namespace that does not exist is empty.
    let nowhere = format!("{}/namespaces/no-such-namespace/evictionrequests", super::ROOT);
    assert_eq!(api.caller.get(&nowhere).await?.expect(200)?["items"], json!([]));
    Ok(())
}

/// All pages show the snapshot of the first.
pub async fn pages_are_one_snapshot(api: &Endpoint) -> Result<()> {
    let mut created = Vec::new();
    for _ in 0..5 {
        let object = api
            .caller
            .post(&api.requests(), &api.request())
            .await?
            .expect(201)?;
        created.push(object["metadata"]["name"].as_str().context("a name")?.to_owned());
    }
    created.sort_unstable();
    let first = api
        .caller
        .get(&format!("{}?limit=1", api.requests()))
        .await?
        .expect(200)?;
    // Writes between pages are not seen.
    api.caller
        .post(&api.requests(), &api.request())
        .await?
        .expect(201)?;
    let gone = format!("{}/{}", api.requests(), created.last().context("five")?);
    api.caller.delete(&gone).await?.expect(200)?;

    let (mut page, mut seen, mut left) = (first.clone(), Vec::new(), vec![]);
    loop {
        seen.extend(names(&page));
        left.push(page["metadata"]["remainingItemCount"].clone());
        assert_eq!(version(&page)?, version(&first)?);
        let Some(token) = page["metadata"]["continue"].as_str() else {
            break;
        };
        let path = format!("{}?limit=1&continue={token}", api.requests());
        page = api.caller.get(&path).await?.expect(200)?;
    }
    assert_eq!(seen, created);
    assert_eq!(left, [json!(4), json!(3), json!(2), json!(1), Value::Null]);

    let token = first["metadata"]["continue"].as_str().context("a token")?;
    let path = format!("{}?limit=2&continue={token}&resourceVersion=5", api.requests());
    api.caller.get(&path).await?.expect_error(
        400,
        "BadRequest",
        "specifying resource version is not allowed when using continue",
    )?;
    for garbage in ["garbage", "e30"] {
        let path = format!("{}?continue={garbage}", api.requests());
        let status = api.caller.get(&path).await?.expect(400)?;
        assert_eq!(status["reason"], "BadRequest", "{garbage}");
    }
    let selected = format!("{}?limit=1&fieldSelector=metadata.name!%3Dx", api.requests());
    let page = api.caller.get(&selected).await?.expect(200)?;
    assert_eq!(
        page["metadata"]["remainingItemCount"],
        Value::Null,
        "with a selector there is no count"
    );
    Ok(())
}

/// `resourceVersion` and `resourceVersionMatch` select the snapshot of a list.
pub async fn resource_version_parameters_select_the_snapshot(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let then = version(&api.caller.get(&api.own()).await?.expect(200)?)?;
    api.create("b").await?;
    let list = async |parameters: &str| api.caller.get(&format!("{}{parameters}", api.own())).await;
    let both = [api.name("a"), api.name("b")];
    for parameters in [
        String::new(),
        "&resourceVersion=0".to_owned(),
        // resourceVersion 0 ignores the limit.
        "&resourceVersion=0&limit=1".to_owned(),
        format!("&resourceVersion={then}"),
        format!("&resourceVersion={then}&resourceVersionMatch=NotOlderThan"),
    ] {
        let found = list(&parameters).await?.expect(200)?;
        // Not older than: here the newest state.
        assert_eq!(names(&found), both, "{parameters}");
        ensure!(version(&found)? >= then);
        assert_eq!(found["metadata"]["continue"], Value::Null, "{parameters}");
    }
    for parameters in [
        format!("&resourceVersion={then}&resourceVersionMatch=Exact"),
        format!("&resourceVersion={then}&limit=10"),
    ] {
        let found = list(&parameters).await?.expect(200)?;
        assert_eq!(names(&found), [api.name("a")], "{parameters}");
        assert_eq!(version(&found)?, then, "{parameters}");
    }
    for (parameters, cause) in [
        (
            "&resourceVersionMatch=Exact",
            "resourceVersionMatch: FieldValueForbidden",
        ),
        (
            "&resourceVersionMatch=Exact&resourceVersion=0",
            "resourceVersionMatch: FieldValueForbidden",
        ),
        (
            "&resourceVersionMatch=Whatever&resourceVersion=1",
            "resourceVersionMatch: FieldValueNotSupported",
        ),
        (
            "&sendInitialEvents=true",
            "sendInitialEvents: FieldValueForbidden",
        ),
    ] {
        let status = list(parameters).await?.expect(422)?;
        assert_eq!(causes(&status), [cause], "{parameters}");
        assert_eq!(status["details"]["kind"], "ListOptions");
    }
    let future = format!("&resourceVersion={}", u64::MAX / 4);
    let response = list(&future).await?;
    let status = response.expect(504)?;
    assert_eq!(status["reason"], "Timeout");
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    assert_eq!(response.header("retry-after"), "1");

    let unreadable = api
        .caller
        .get(&format!("{}?resourceVersion=abc", api.path("a")))
        .await?;
    assert_eq!(
        unreadable.expect(500)?["message"],
        "resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax"
    );
    Ok(())
}

/// Parameters that a list or deletecollection rejects: the addition to the path, code, reason, and a part of the
/// message.
const REJECTED: &[(&str, u16, &str, &str)] = &[
    (
        "&limit=abc",
        400,
        "BadRequest",
        "strconv.ParseInt: parsing \"abc\": invalid syntax",
    ),
    (
        "&limit=99999999999999999999",
        400,
        "BadRequest",
        "value out of range",
    ),
    (",a+b", 400, "BadRequest", "unable to parse requirement"),
    ("&fieldSelector=metadata.uid%3Dx", 400, "BadRequest", ""),
    (
        "&fieldSelector=nonsense",
        400,
        "BadRequest",
        "invalid selector: 'nonsense'; can't understand 'nonsense'",
    ),
    (
        "&continue=abc",
        400,
        "BadRequest",
        "invalid continue token: continue key is not valid",
    ),
    (
        "&continue=abc&resourceVersion=5",
        400,
        "BadRequest",
        "specifying resource version is not allowed when using continue",
    ),
    (
        "&resourceVersion=abc",
        400,
        "BadRequest",
        "invalid resource version",
    ),
    (
        "&resourceVersion=-5",
        400,
        "BadRequest",
        "invalid resource version",
    ),
    (
        "&resourceVersion=900000000000",
        504,
        "Timeout",
        "Too large resource version: 900000000000, current: ",
    ),
    (
        "&resourceVersion=900000000000&limit=1",
        504,
        "Timeout",
        "Too large resource version: 900000000000, current: ",
    ),
    (
        "&resourceVersionMatch=Exact",
        422,
        "Invalid",
        "resourceVersionMatch is forbidden unless resourceVersion is provided",
    ),
    (
        "&sendInitialEvents=true",
        422,
        "Invalid",
        "sendInitialEvents is forbidden for list",
    ),
];

/// Parameters that a list ignores.
const IGNORED: &[&str] = &[
    "&limit=-1",
    "&limit=",
    "&limit=9223372036854775807",
    "&includeObject=Some",
    "&unknown=1",
    "&allowWatchBookmarks=true",
];

/// Invalid parameters are rejected, and a deletecollection with them deletes nothing.
pub async fn invalid_parameters_are_rejected(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let own = &api.own();
    let check = async |(query, code, reason, text): &(&str, u16, &str, &str)| {
        for method in [Method::GET, Method::DELETE] {
            let path = format!("{own}{query}");
            let status = api.caller.call(method, &path, "", "").await?.expect(*code)?;
            assert_eq!(status["reason"], *reason, "{query}");
            let message = status["message"].as_str().unwrap_or_default();
            ensure!(message.contains(text), "{query}: {message}");
        }
        Ok(())
    };
    // At once, since future resource versions are waited for.
    futures_util::future::try_join_all(REJECTED.iter().map(check)).await?;
    for query in IGNORED {
        let list = api.caller.get(&format!("{own}{query}")).await?.expect(200)?;
        assert_eq!(names(&list), [api.name("a")], "{query}");
    }
    let future = format!("{}?resourceVersion=900000000000", api.path("a"));
    let status = api.caller.get(&future).await?.expect(504)?;
    ensure!(
        status["message"]
            .as_str()
            .is_some_and(|it| it.contains("Too large resource version: 900000000000, current: ")),
        "{status}"
    );
    Ok(())
}

/// Label selectors filter; errors of their grammar are 400.
pub async fn label_selectors_filter(api: &Endpoint) -> Result<()> {
    for (name, number) in [("a", "1"), ("b", "2"), ("c", "")] {
        let mut wanted = api.maintenance(name);
        wanted["metadata"]["labels"]["number"] = json!(number);
        wanted["metadata"]["labels"][name] = json!("here");
        api.create_from(&wanted).await?;
    }
    for (selector, expected) in [
        ("number%3D1", "a"),
        ("number%3D%3D2", "b"),
        ("number!%3D1", "b c"),
        ("number+in+(1,2)", "a b"),
        ("number+notin+(1)", "b c"),
        ("a", "a"),
        ("!a", "b c"),
        ("number%3E1", "b"),
        ("number%3C2", "a"),
        ("number%3D", "c"),
        ("number%3D1,b", ""),
        ("nothing!%3Dx", "a b c"),
    ] {
        let path = format!("{},{selector}", api.own());
        let found = names(&api.caller.get(&path).await?.expect(200)?);
        let expected: Vec<_> = expected.split_whitespace().map(|name| api.name(name)).collect();
        assert_eq!(found, expected, "{selector}");
    }
    for (selector, text) in [
        (
            "a+b",
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
        ),
        ("%3Da", "found '=', expected: !, identifier, or 'end of string'"),
    ] {
        let path = format!("{}?labelSelector={selector}", api.maintenances());
        let status = api.caller.get(&path).await?.expect(400)?;
        let message = status["message"].as_str().unwrap_or_default();
        ensure!(message.contains(text), "{selector}: {message}");
    }
    let path = format!("{}?labelSelector=-a%3Db", api.maintenances());
    let status = api.caller.get(&path).await?.expect(400)?;
    ensure!(
        status["message"]
            .as_str()
            .is_some_and(|it| it.starts_with("unable to parse requirement: ")),
        "{status}"
    );
    Ok(())
}

/// Field selectors know the name, the namespace, and no other field.
pub async fn field_selectors_filter(api: &Endpoint) -> Result<()> {
    for name in ["a", "b"] {
        api.create(name).await?;
    }
    let a = api.name("a");
    for (selector, expected) in [
        (format!("metadata.name%3D{a}"), "a"),
        (format!("metadata.name%3D%3D{a}"), "a"),
        (format!("metadata.name!%3D{a}"), "b"),
        (format!("metadata.name%3D{a},metadata.name!%3D{a}"), ""),
        (String::new(), "a b"),
    ] {
        let path = format!("{}&fieldSelector={selector}", api.own());
        let found = names(&api.caller.get(&path).await?.expect(200)?);
        let expected: Vec<_> = expected.split_whitespace().map(|name| api.name(name)).collect();
        assert_eq!(found, expected, "{selector}");
    }
    let request = api
        .caller
        .post(&api.requests(), &api.request())
        .await?
        .expect(201)?;
    let all = format!(
        "{}/evictionrequests?fieldSelector=metadata.namespace%3D{}",
        super::ROOT,
        api.namespace
    );
    let found = names(&api.caller.get(&all).await?.expect(200)?);
    assert_eq!(found, [request["metadata"]["name"].as_str().context("a name")?]);
    for method in [Method::GET, Method::DELETE] {
        let path = format!("{}&fieldSelector=spec.nothing%3Dx", api.own());
        let status = api.caller.call(method, &path, "", "").await?.expect(400)?;
        let message = status["message"].as_str().unwrap_or_default();
        ensure!(
            message.contains("is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
                || message.starts_with("field label not supported: spec.nothing"),
            "{message}"
        );
    }
    let path = format!("{}&fieldSelector=metadata.name", api.own());
    api.caller.get(&path).await?.expect_error(
        400,
        "BadRequest",
        "invalid selector: 'metadata.name'; can't understand 'metadata.name'",
    )?;
    Ok(())
}

/// Lists are in the order of keys: namespace `x-y` comes before `x`, since `-` comes before `/`.
pub async fn lists_are_in_key_order(api: &Endpoint) -> Result<()> {
    let mut wanted = api.request();
    wanted["metadata"]["labels"] = json!({ "order": api.namespace });
    api.caller.post(&api.requests(), &wanted).await?.expect(201)?;
    // Keys are compared with a slash after the namespace.
    let mut elsewhere = api.request();
    elsewhere["metadata"]["labels"] = json!({ "order": api.namespace });
    elsewhere["metadata"]["namespace"] = json!("default");
    let path = format!("{}/namespaces/default/evictionrequests", super::ROOT);
    api.caller.post(&path, &elsewhere).await?.expect(201)?;
    let all = format!(
        "{}/evictionrequests?labelSelector=order%3D{}",
        super::ROOT,
        api.namespace
    );
    let list = api.caller.get(&all).await?.expect(200)?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let found: Vec<_> = items
        .iter()
        .map(|item| format!("{}/", item["metadata"]["namespace"].as_str().unwrap_or_default()))
        .collect();
    let mut expected = vec![format!("{}/", api.namespace), "default/".to_owned()];
    expected.sort_unstable();
    assert_eq!(found, expected);
    Ok(())
}

/// A list contains every write that was acknowledged before.
pub async fn a_list_contains_every_acknowledged_write(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    for number in 0..25 {
        let patch = json!({ "metadata": { "annotations": { "n": number.to_string() } } });
        let written = api.merge("a", &patch).await?.expect(200)?;
        let list = api.caller.get(&api.own()).await?.expect(200)?;
        assert_eq!(
            list["items"][0]["metadata"]["annotations"]["n"],
            number.to_string()
        );
        ensure!(version(&list)? >= version(&written)?);
    }
    Ok(())
}
