//! Rules of watches: where they start, what they deliver, and how they end.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Endpoint, causes, version};
use crate::calls::Watch;

const INITIAL_EVENTS: &str = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
const END: &str = "k8s.io/initial-events-end";

async fn labelled(api: &Endpoint, name: &str, key: &str, value: Value) -> Result<Value> {
    let patch = json!({ "metadata": { "labels": { key: value } } });
    api.merge(name, &patch).await?.expect(200)
}

fn added(name: String) -> (String, String) {
    ("ADDED".to_owned(), name)
}

/// Without a resourceVersion a watch starts with initial events, with one after it.
pub async fn a_watch_starts_at_its_resource_version(api: &Endpoint) -> Result<()> {
    let first = api.create("a").await?;
    let second = api.create("b").await?;
    for parameters in ["", "&resourceVersion=0", "&resourceVersion="] {
        let mut watch = api.watch(parameters).await?;
        let mut found = [watch.type_and_name().await?, watch.type_and_name().await?];
        found.sort_unstable();
        assert_eq!(
            found,
            [added(api.name("a")), added(api.name("b"))],
            "{parameters}"
        );
    }
    let mut from_first = api
        .watch(&format!("&resourceVersion={}", version(&first)?))
        .await?;
    let event = from_first.event().await?;
    assert_eq!(event["type"], "ADDED");
    assert_eq!(event["object"], second);
    assert_eq!(from_first.headers["content-type"], "application/json");
    let mut from_now = api
        .watch("&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=")
        .await?;
    let changed = labelled(api, "a", "more", json!("label")).await?;
    for watch in [&mut from_first, &mut from_now] {
        let event = watch.event().await?;
        assert_eq!((&event["type"], &event["object"]), (&json!("MODIFIED"), &changed));
    }
    Ok(())
}

/// Initial events end with a bookmark, also when there are none.
pub async fn initial_events_end_with_a_bookmark(api: &Endpoint) -> Result<()> {
    let end_of = async |mut watch: Watch| {
        let mut before = 0;
        loop {
            let event = watch.event().await?;
            if event["type"] != "BOOKMARK" {
                before += 1;
                continue;
            }
            let object = &event["object"];
            assert_eq!(object["metadata"]["annotations"][END], "true");
            assert_eq!(object["kind"], "NodeMaintenance");
            assert_eq!(object["apiVersion"], super::GROUP_VERSION);
            return Ok::<_, anyhow::Error>((before, version(object)?, watch));
        }
    };
    let parameters = format!("{INITIAL_EVENTS}&allowWatchBookmarks=true");
    let (before, _, _) = end_of(api.watch(&parameters).await?).await?;
    assert_eq!(before, 0);
    let created = api.create("a").await?;
    let (before, revision, mut watch) = end_of(api.watch(&parameters).await?).await?;
    assert_eq!(before, 1);
    ensure!(revision >= version(&created)?);
    let changed = labelled(api, "a", "more", json!("label")).await?;
    assert_eq!(watch.event().await?["object"], changed);
    // A watch can resume from the bookmark.
    let mut again = api.watch(&format!("&resourceVersion={revision}")).await?;
    assert_eq!(again.event().await?["object"], changed);
    // Watches of older clients have the bookmark too.
    for legacy in [
        "&allowWatchBookmarks=true",
        "&resourceVersion=0&allowWatchBookmarks=true",
        "&resourceVersion=0&allowWatchBookmarks=yes",
    ] {
        let (before, _, _) = end_of(api.watch(legacy).await?).await?;
        assert_eq!(before, 1, "{legacy}");
    }
    // A future resourceVersion is an error.
    let future = format!("{parameters}&resourceVersion={}", u64::MAX / 4);
    let mut watch = api.watch(&future).await?;
    let event = watch.event().await?;
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["code"], 504);
    assert_eq!(
        event["object"]["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    assert_eq!(watch.next().await?, None);
    Ok(())
}

/// With a selector, an object is added when it begins to match and deleted when it ceases to.
pub async fn selectors_turn_changes_into_additions_and_deletions(api: &Endpoint) -> Result<()> {
    let start = version(&api.create("a").await?)?;
    let path = format!("{},in%3Dyes&watch=true&resourceVersion={start}", api.own());
    let mut watch = api.caller.watch(&path).await?;
    labelled(api, "a", "other", json!("x")).await?;
    let entered = labelled(api, "a", "in", json!("yes")).await?;
    let stayed = labelled(api, "a", "other", json!("y")).await?;
    let left = labelled(api, "a", "in", json!("no")).await?;
    let last = labelled(api, "a", "in", json!("yes")).await?;
    for (type_, object) in [("ADDED", &entered), ("MODIFIED", &stayed)] {
        let event = watch.event().await?;
        assert_eq!((&event["type"], &event["object"]), (&json!(type_), object));
    }
    let event = watch.event().await?;
    assert_eq!(event["type"], "DELETED");
    assert_eq!(
        event["object"]["metadata"]["labels"], stayed["metadata"]["labels"],
        "the last labels that matched"
    );
    assert_eq!(
        version(&event["object"])?,
        version(&left)?,
        "the revision of the change"
    );
    assert_eq!(watch.event().await?["object"], last);

    let name = api.name("b");
    let path = format!(
        "{}?watch=true&resourceVersion={start}&fieldSelector=metadata.name%3D{name}",
        api.maintenances()
    );
    let mut watch = api.caller.watch(&path).await?;
    api.create("b").await?;
    assert_eq!(watch.type_and_name().await?, added(name.clone()));
    // The older path of a watch of one object.
    let path = format!("{}/watch/nodemaintenances/{name}", super::ROOT);
    assert_eq!(api.caller.watch(&path).await?.type_and_name().await?, added(name));
    Ok(())
}

/// A deletion has a revision of its own, from which a watch can resume.
pub async fn a_deletion_has_its_own_revision(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let mut watch = api
        .watch(&format!("&resourceVersion={}", version(&created)?))
        .await?;
    api.caller.delete(&api.path("a")).await?.expect(200)?;
    let event = watch.event().await?;
    assert_eq!(event["type"], "DELETED");
    let mut expected = created.clone();
    expected["metadata"]["resourceVersion"] = event["object"]["metadata"]["resourceVersion"].clone();
    assert_eq!(event["object"], expected, "the last state");
    let removed = version(&event["object"])?;
    ensure!(removed > version(&created)?);
    let mut later = api.watch(&format!("&resourceVersion={removed}")).await?;
    api.create("b").await?;
    assert_eq!(later.type_and_name().await?, added(api.name("b")));
    Ok(())
}

/// Invalid parameters are rejected before the stream begins.
pub async fn invalid_watches_are_rejected(api: &Endpoint) -> Result<()> {
    let get = async |parameters: &str| {
        api.caller
            .get(&format!("{}&watch=true{parameters}", api.own()))
            .await
    };
    for (parameters, expected) in [
        (
            "&sendInitialEvents=true",
            vec!["resourceVersionMatch: FieldValueForbidden"],
        ),
        (
            "&sendInitialEvents=false",
            vec!["resourceVersionMatch: FieldValueForbidden"],
        ),
        (
            "&resourceVersionMatch=NotOlderThan&resourceVersion=1",
            vec!["resourceVersionMatch: FieldValueForbidden"],
        ),
        (
            "&resourceVersionMatch=Exact&resourceVersion=1",
            vec![
                "resourceVersionMatch: FieldValueForbidden",
                "resourceVersionMatch: FieldValueNotSupported",
            ],
        ),
    ] {
        let status = get(parameters).await?.expect(422)?;
        assert_eq!(causes(&status), expected, "{parameters}");
        assert_eq!(status["details"]["kind"], "ListOptions");
    }
    let status = get("&fieldSelector=spec.nothing%3Dx").await?.expect(400)?;
    assert_eq!(status["reason"], "BadRequest");
    let status = get("&timeoutSeconds=abc").await?.expect(400)?;
    assert_eq!(status["reason"], "BadRequest");
    let status = get("&limit=abc").await?.expect(400)?;
    assert_eq!(status["reason"], "BadRequest");
    let status = api
        .caller
        .get(&format!("{}?watch=true&labelSelector=%3D", api.maintenances()))
        .await?;
    assert_eq!(status.expect(400)?["reason"], "BadRequest");
    let response = get("&resourceVersion=abc").await?;
    let codes: &[u16] = if api.through_host { &[400, 500] } else { &[500] };
    ensure!(codes.contains(&response.status), "{}", response.text());
    let yaml = api.caller.clone().with_header("accept", "application/yaml")?;
    let response = yaml.get(&format!("{}&watch=true", api.own())).await?;
    ensure!(
        response.status == 406 && response.text().contains("application/json;stream=watch"),
        "{}",
        response.text()
    );
    let mismatch = format!(
        "{}/watch/nodemaintenances/a?fieldSelector=metadata.name%3Db",
        super::ROOT
    );
    api.caller.get(&mismatch).await?.expect_error(
        400,
        "BadRequest",
        "fieldSelector metadata.name doesn't match requested name",
    )?;
    Ok(())
}

/// A watch ends after `timeoutSeconds`, without an event.
pub async fn timeouts_end_a_watch_cleanly(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let started = tokio::time::Instant::now();
    let mut watch = api.watch("&timeoutSeconds=1").await?;
    assert_eq!(watch.type_and_name().await?, added(api.name("a")));
    assert_eq!(watch.next().await?, None);
    let lasted = started.elapsed();
    ensure!(lasted.as_millis() >= 900 && lasted.as_secs() < 10, "{lasted:?}");
    // Nothing happens at a future resourceVersion before the end.
    let future = format!("&timeoutSeconds=1&resourceVersion={}", u64::MAX);
    assert_eq!(api.watch(&future).await?.next().await?, None);
    let mut long = api.watch(&format!("&timeoutSeconds={}", i64::MAX)).await?;
    assert_eq!(long.type_and_name().await?, added(api.name("a")));
    if !api.through_host {
        assert_eq!(api.watch("&timeoutSeconds=-1").await?.next().await?, None);
    }
    Ok(())
}

/// Bookmarks come only if they are requested; then one precedes the end.
pub async fn a_watch_without_bookmarks_has_none(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    for parameters in [
        format!("{INITIAL_EVENTS}&timeoutSeconds=3"),
        "&timeoutSeconds=3".to_owned(),
    ] {
        let mut watch = api.watch(&parameters).await?;
        while let Some(event) = watch.next().await? {
            assert_eq!(event["type"], "ADDED", "{parameters}: {event}");
        }
    }
    let mut watch = api.watch("&timeoutSeconds=4&allowWatchBookmarks=true").await?;
    let mut bookmarks = Vec::new();
    while let Some(event) = watch.next().await? {
        if event["type"] == "BOOKMARK" {
            bookmarks.push(version(&event["object"])?);
        }
    }
    ensure!(!bookmarks.is_empty() && bookmarks.is_sorted(), "{bookmarks:?}");
    Ok(())
}

/// A list and a watch from its resourceVersion deliver each change exactly once and in order.
pub async fn list_and_watch_miss_nothing_under_load(api: &Endpoint) -> Result<()> {
    const WRITERS: usize = 4;
    const WRITES: usize = 20;
    let write = async |writer: usize| {
        let name = format!("w{writer}");
        api.create(&name).await?;
        for number in 1..WRITES {
            labelled(api, &name, "n", json!(number.to_string())).await?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let read = async {
        let list = api.caller.get(&api.own()).await?.expect(200)?;
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let number = |object: &Value| {
            let label = object["metadata"]["labels"]["n"].as_str();
            label.map_or(Ok(0), str::parse::<usize>)
        };
        for item in items {
            seen.insert(name_of(&item)?, number(&item)?);
        }
        let mut revision = version(&list)?;
        let mut watch = api.watch(&format!("&resourceVersion={revision}")).await?;
        while seen.len() < WRITERS || seen.values().any(|number| *number < WRITES - 1) {
            let event = watch.event().await?;
            let (object, name) = (&event["object"], name_of(&event["object"])?);
            ensure!(version(object)? > revision, "out of order: {event}");
            revision = version(object)?;
            let expected = seen.get(&name).map_or(0, |number| number + 1);
            assert_eq!(number(object)?, expected, "{name}");
            seen.insert(name, expected);
        }
        Ok::<_, anyhow::Error>(())
    };
    let writers = futures_util::future::try_join_all((0..WRITERS).map(write));
    let (written, ()) = tokio::try_join!(writers, read)?;
    assert_eq!(written.len(), WRITERS);
    Ok(())
}

fn name_of(object: &Value) -> Result<String> {
    object["metadata"]["name"]
        .as_str()
        .map(str::to_owned)
        .context("a name")
}
