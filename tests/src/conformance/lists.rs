//! What does a list hold, and of which moment?

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{Road, causes, names, version};

/// Empty is a list too.
///
/// # Errors
/// The rule does not hold.
pub async fn an_empty_list_has_a_version(road: &Road) -> Result<()> {
    let list = road.caller.get(&road.requests()).await?.expect(200)?;
    assert_eq!(list["kind"], "EvictionRequestList");
    assert_eq!(list["apiVersion"], super::GROUP_VERSION);
    assert_eq!(list["items"], json!([]));
    ensure!(version(&list)? > 0);
    // A namespace that is not there is empty.
    let nowhere = format!("{}/namespaces/no-such-namespace/evictionrequests", super::ROOT);
    assert_eq!(road.caller.get(&nowhere).await?.expect(200)?["items"], json!([]));
    Ok(())
}

/// Pages show the state of the first one.
///
/// # Errors
/// The rule does not hold.
pub async fn pages_are_one_snapshot(road: &Road) -> Result<()> {
    let mut created = Vec::new();
    for _ in 0..5 {
        let object = road
            .caller
            .post(&road.requests(), &road.request())
            .await?
            .expect(201)?;
        created.push(object["metadata"]["name"].as_str().context("a name")?.to_owned());
    }
    created.sort_unstable();
    let first = road
        .caller
        .get(&format!("{}?limit=1", road.requests()))
        .await?
        .expect(200)?;
    // What happens between pages is not seen.
    road.caller
        .post(&road.requests(), &road.request())
        .await?
        .expect(201)?;
    let gone = format!("{}/{}", road.requests(), created.last().context("five")?);
    road.caller.delete(&gone).await?.expect(200)?;

    let (mut page, mut seen, mut left) = (first.clone(), Vec::new(), vec![]);
    loop {
        seen.extend(names(&page));
        left.push(page["metadata"]["remainingItemCount"].clone());
        assert_eq!(version(&page)?, version(&first)?);
        let Some(token) = page["metadata"]["continue"].as_str() else {
            break;
        };
        let path = format!("{}?limit=1&continue={token}", road.requests());
        page = road.caller.get(&path).await?.expect(200)?;
    }
    assert_eq!(seen, created);
    assert_eq!(left, [json!(4), json!(3), json!(2), json!(1), Value::Null]);

    let token = first["metadata"]["continue"].as_str().context("a token")?;
    let path = format!("{}?limit=2&continue={token}&resourceVersion=5", road.requests());
    road.caller.get(&path).await?.refused(
        400,
        "BadRequest",
        "specifying resource version is not allowed when using continue",
    )?;
    for garbage in ["garbage", "e30"] {
        let path = format!("{}?continue={garbage}", road.requests());
        let status = road.caller.get(&path).await?.expect(400)?;
        assert_eq!(status["reason"], "BadRequest", "{garbage}");
    }
    let selected = format!("{}?limit=1&fieldSelector=metadata.name!%3Dx", road.requests());
    let page = road.caller.get(&selected).await?.expect(200)?;
    assert_eq!(
        page["metadata"]["remainingItemCount"],
        Value::Null,
        "a selector hides the rest"
    );
    Ok(())
}

/// Every meaning that `resourceVersion` and `resourceVersionMatch` have for a list.
///
/// # Errors
/// The rule does not hold.
pub async fn resource_versions_are_understood(road: &Road) -> Result<()> {
    road.create("a").await?;
    let then = version(&road.caller.get(&road.own()).await?.expect(200)?)?;
    road.create("b").await?;
    let list = async |parameters: &str| road.caller.get(&format!("{}{parameters}", road.own())).await;
    let both = [road.name("a"), road.name("b")];
    for parameters in [
        String::new(),
        "&resourceVersion=0".to_owned(),
        // What is at hand is answered whole, whatever the limit.
        "&resourceVersion=0&limit=1".to_owned(),
        format!("&resourceVersion={then}"),
        format!("&resourceVersion={then}&resourceVersionMatch=NotOlderThan"),
    ] {
        let found = list(&parameters).await?.expect(200)?;
        // Not older than is allowed to be newer, and is here.
        assert_eq!(names(&found), both, "{parameters}");
        ensure!(version(&found)? >= then);
        assert_eq!(found["metadata"]["continue"], Value::Null, "{parameters}");
    }
    for parameters in [
        format!("&resourceVersion={then}&resourceVersionMatch=Exact"),
        format!("&resourceVersion={then}&limit=10"),
    ] {
        let found = list(&parameters).await?.expect(200)?;
        assert_eq!(names(&found), [road.name("a")], "{parameters}");
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
    for parameters in ["&resourceVersion=abc", "&limit=abc"] {
        let status = list(parameters).await?.expect(400)?;
        assert_eq!(status["reason"], "BadRequest", "{parameters}");
    }
    let future = format!("&resourceVersion={}", u64::MAX / 4);
    let answer = list(&future).await?;
    let status = answer.expect(504)?;
    assert_eq!(status["reason"], "Timeout");
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    assert_eq!(answer.header("retry-after"), "1");

    let unreadable = road
        .caller
        .get(&format!("{}?resourceVersion=abc", road.path("a")))
        .await?;
    assert_eq!(
        unreadable.expect(500)?["message"],
        "resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax"
    );
    Ok(())
}

/// The grammar of label selectors.
///
/// # Errors
/// The rule does not hold.
pub async fn labels_select(road: &Road) -> Result<()> {
    for (name, number) in [("a", "1"), ("b", "2"), ("c", "")] {
        let mut wanted = road.maintenance(name);
        wanted["metadata"]["labels"]["number"] = json!(number);
        wanted["metadata"]["labels"][name] = json!("here");
        road.create_from(&wanted).await?;
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
        let path = format!("{},{selector}", road.own());
        let found = names(&road.caller.get(&path).await?.expect(200)?);
        let expected: Vec<_> = expected.split_whitespace().map(|name| road.name(name)).collect();
        assert_eq!(found, expected, "{selector}");
    }
    for (selector, text) in [
        (
            "a+b",
            "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
        ),
        ("%3Da", "found '=', expected: !, identifier, or 'end of string'"),
    ] {
        let path = format!("{}?labelSelector={selector}", road.maintenances());
        let status = road.caller.get(&path).await?.expect(400)?;
        let message = status["message"].as_str().unwrap_or_default();
        ensure!(message.contains(text), "{selector}: {message}");
    }
    let path = format!("{}?labelSelector=-a%3Db", road.maintenances());
    let status = road.caller.get(&path).await?.expect(400)?;
    ensure!(
        status["message"]
            .as_str()
            .is_some_and(|it| it.starts_with("unable to parse requirement: ")),
        "{status}"
    );
    Ok(())
}

/// Name and namespace, and nothing that is not declared.
///
/// # Errors
/// The rule does not hold.
pub async fn fields_select(road: &Road) -> Result<()> {
    for name in ["a", "b"] {
        road.create(name).await?;
    }
    let a = road.name("a");
    for (selector, expected) in [
        (format!("metadata.name%3D{a}"), "a"),
        (format!("metadata.name%3D%3D{a}"), "a"),
        (format!("metadata.name!%3D{a}"), "b"),
        (format!("metadata.name%3D{a},metadata.name!%3D{a}"), ""),
        (String::new(), "a b"),
    ] {
        let path = format!("{}&fieldSelector={selector}", road.own());
        let found = names(&road.caller.get(&path).await?.expect(200)?);
        let expected: Vec<_> = expected.split_whitespace().map(|name| road.name(name)).collect();
        assert_eq!(found, expected, "{selector}");
    }
    let request = road
        .caller
        .post(&road.requests(), &road.request())
        .await?
        .expect(201)?;
    let all = format!(
        "{}/evictionrequests?fieldSelector=metadata.namespace%3D{}",
        super::ROOT,
        road.namespace
    );
    let found = names(&road.caller.get(&all).await?.expect(200)?);
    assert_eq!(found, [request["metadata"]["name"].as_str().context("a name")?]);
    for method in [Method::GET, Method::DELETE] {
        let path = format!("{}&fieldSelector=spec.nothing%3Dx", road.own());
        let status = road.caller.call(method, &path, "", "").await?.expect(400)?;
        let message = status["message"].as_str().unwrap_or_default();
        ensure!(
            message.contains("is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
                || message.starts_with("field label not supported: spec.nothing"),
            "{message}"
        );
    }
    let path = format!("{}&fieldSelector=metadata.name", road.own());
    road.caller.get(&path).await?.refused(
        400,
        "BadRequest",
        "invalid selector: 'metadata.name'; can't understand 'metadata.name'",
    )?;
    Ok(())
}

/// Namespace `x-y` sorts before `x`, as keys do: `-` comes before `/`.
///
/// # Errors
/// The rule does not hold.
pub async fn namespaces_are_in_key_order(road: &Road) -> Result<()> {
    let mut wanted = road.request();
    wanted["metadata"]["labels"] = json!({ "order": road.namespace });
    road.caller.post(&road.requests(), &wanted).await?.expect(201)?;
    // The road's own namespace and `default`: the order of the two is the order of the texts with a slash.
    let mut elsewhere = road.request();
    elsewhere["metadata"]["labels"] = json!({ "order": road.namespace });
    elsewhere["metadata"]["namespace"] = json!("default");
    let path = format!("{}/namespaces/default/evictionrequests", super::ROOT);
    road.caller.post(&path, &elsewhere).await?.expect(201)?;
    let all = format!(
        "{}/evictionrequests?labelSelector=order%3D{}",
        super::ROOT,
        road.namespace
    );
    let list = road.caller.get(&all).await?.expect(200)?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let found: Vec<_> = items
        .iter()
        .map(|item| format!("{}/", item["metadata"]["namespace"].as_str().unwrap_or_default()))
        .collect();
    let mut expected = vec![format!("{}/", road.namespace), "default/".to_owned()];
    expected.sort_unstable();
    assert_eq!(found, expected);
    Ok(())
}

/// What was acknowledged is in the next list.
///
/// # Errors
/// The rule does not hold.
pub async fn a_list_has_every_earlier_write(road: &Road) -> Result<()> {
    road.create("a").await?;
    for number in 0..25 {
        let patch = json!({ "metadata": { "annotations": { "n": number.to_string() } } });
        let written = road.merge("a", &patch).await?.expect(200)?;
        let list = road.caller.get(&road.own()).await?.expect(200)?;
        assert_eq!(
            list["items"][0]["metadata"]["annotations"]["n"],
            number.to_string()
        );
        ensure!(version(&list)? >= version(&written)?);
    }
    Ok(())
}
