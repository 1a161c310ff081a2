//! Which events does a watch deliver, and where does it begin and end?

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Road, causes, version};
use crate::calls::Watch;

const INITIAL_EVENTS: &str = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
const END: &str = "k8s.io/initial-events-end";

async fn labelled(road: &Road, name: &str, key: &str, value: Value) -> Result<Value> {
    let patch = json!({ "metadata": { "labels": { key: value } } });
    road.merge(name, &patch).await?.expect(200)
}

fn added(name: String) -> (String, String) {
    ("ADDED".to_owned(), name)
}

/// Without a version the state comes first, with one only what is later.
///
/// # Errors
/// The rule does not hold.
pub async fn a_watch_starts_where_it_is_told(road: &Road) -> Result<()> {
    let first = road.create("a").await?;
    let second = road.create("b").await?;
    for parameters in ["", "&resourceVersion=0", "&resourceVersion="] {
        let mut watch = road.watch(parameters).await?;
        let mut told = [watch.told().await?, watch.told().await?];
        told.sort_unstable();
        assert_eq!(
            told,
            [added(road.name("a")), added(road.name("b"))],
            "{parameters}"
        );
    }
    let mut from_first = road
        .watch(&format!("&resourceVersion={}", version(&first)?))
        .await?;
    let event = from_first.event().await?;
    assert_eq!(event["type"], "ADDED");
    assert_eq!(event["object"], second);
    assert_eq!(from_first.headers["content-type"], "application/json");
    let mut from_now = road
        .watch("&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=")
        .await?;
    let changed = labelled(road, "a", "more", json!("label")).await?;
    for watch in [&mut from_first, &mut from_now] {
        let event = watch.event().await?;
        assert_eq!((&event["type"], &event["object"]), (&json!("MODIFIED"), &changed));
    }
    Ok(())
}

/// A streaming list ends with a bookmark, also when it is empty.
///
/// # Errors
/// The rule does not hold.
pub async fn initial_events_end_with_a_bookmark(road: &Road) -> Result<()> {
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
    let (before, _, _) = end_of(road.watch(&parameters).await?).await?;
    assert_eq!(before, 0);
    let created = road.create("a").await?;
    let (before, revision, mut watch) = end_of(road.watch(&parameters).await?).await?;
    assert_eq!(before, 1);
    ensure!(revision >= version(&created)?);
    let changed = labelled(road, "a", "more", json!("label")).await?;
    assert_eq!(watch.event().await?["object"], changed);
    // The bookmark's version is a place to go on from.
    let mut again = road.watch(&format!("&resourceVersion={revision}")).await?;
    assert_eq!(again.event().await?["object"], changed);
    // A watch as older clients start it has the bookmark too.
    for legacy in [
        "&allowWatchBookmarks=true",
        "&resourceVersion=0&allowWatchBookmarks=true",
    ] {
        let (before, _, _) = end_of(road.watch(legacy).await?).await?;
        assert_eq!(before, 1, "{legacy}");
    }
    // At a version that is not there yet nothing can be said.
    let future = format!("{parameters}&resourceVersion={}", u64::MAX / 4);
    let mut watch = road.watch(&future).await?;
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

/// To a watcher with a selector an object comes and goes as it comes to match and ceases to.
///
/// # Errors
/// The rule does not hold.
pub async fn selectors_turn_changes_into_additions_and_deletions(road: &Road) -> Result<()> {
    let start = version(&road.create("a").await?)?;
    let path = format!("{},in%3Dyes&watch=true&resourceVersion={start}", road.own());
    let mut watch = road.caller.watch(&path).await?;
    labelled(road, "a", "other", json!("x")).await?;
    let entered = labelled(road, "a", "in", json!("yes")).await?;
    let stayed = labelled(road, "a", "other", json!("y")).await?;
    let left = labelled(road, "a", "in", json!("no")).await?;
    let last = labelled(road, "a", "in", json!("yes")).await?;
    for (type_, object) in [("ADDED", &entered), ("MODIFIED", &stayed)] {
        let event = watch.event().await?;
        assert_eq!((&event["type"], &event["object"]), (&json!(type_), object));
    }
    let event = watch.event().await?;
    assert_eq!(event["type"], "DELETED");
    assert_eq!(
        event["object"]["metadata"]["labels"], stayed["metadata"]["labels"],
        "as it matched last"
    );
    assert_eq!(
        version(&event["object"])?,
        version(&left)?,
        "at the version of the change"
    );
    assert_eq!(watch.event().await?["object"], last);

    let name = road.name("b");
    let path = format!(
        "{}?watch=true&resourceVersion={start}&fieldSelector=metadata.name%3D{name}",
        road.maintenances()
    );
    let mut watch = road.caller.watch(&path).await?;
    road.create("b").await?;
    assert_eq!(watch.told().await?, added(name));
    Ok(())
}

/// Removal is a version of its own, from which a watch goes on.
///
/// # Errors
/// The rule does not hold.
pub async fn a_deletion_has_its_own_version(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let mut watch = road
        .watch(&format!("&resourceVersion={}", version(&created)?))
        .await?;
    road.caller.delete(&road.path("a")).await?.expect(200)?;
    let event = watch.event().await?;
    assert_eq!(event["type"], "DELETED");
    let mut expected = created.clone();
    expected["metadata"]["resourceVersion"] = event["object"]["metadata"]["resourceVersion"].clone();
    assert_eq!(event["object"], expected, "the last state");
    let removed = version(&event["object"])?;
    ensure!(removed > version(&created)?);
    let mut later = road.watch(&format!("&resourceVersion={removed}")).await?;
    road.create("b").await?;
    assert_eq!(later.told().await?, added(road.name("b")));
    Ok(())
}

/// Refusals before a stream begins.
///
/// # Errors
/// The rule does not hold.
pub async fn bad_watches_are_refused(road: &Road) -> Result<()> {
    let get = async |parameters: &str| {
        road.caller
            .get(&format!("{}&watch=true{parameters}", road.own()))
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
    let answer = get("&resourceVersion=abc").await?;
    ensure!([400, 500].contains(&answer.status), "{}", answer.text());
    let yaml = road.caller.clone().with_header("accept", "application/yaml")?;
    assert_eq!(yaml.get(&format!("{}&watch=true", road.own())).await?.status, 406);
    Ok(())
}

/// `timeoutSeconds` is the end, without an event.
///
/// # Errors
/// The rule does not hold.
pub async fn timeouts_end_a_watch_cleanly(road: &Road) -> Result<()> {
    road.create("a").await?;
    let started = tokio::time::Instant::now();
    let mut watch = road.watch("&timeoutSeconds=1").await?;
    assert_eq!(watch.told().await?, added(road.name("a")));
    assert_eq!(watch.next().await?, None);
    let lasted = started.elapsed();
    ensure!(lasted.as_millis() >= 900 && lasted.as_secs() < 10, "{lasted:?}");
    Ok(())
}

/// A client that did not ask for bookmarks does not know them.
///
/// # Errors
/// The rule does not hold.
pub async fn a_watch_without_bookmarks_has_none(road: &Road) -> Result<()> {
    road.create("a").await?;
    for parameters in [
        format!("{INITIAL_EVENTS}&timeoutSeconds=3"),
        "&timeoutSeconds=3".to_owned(),
    ] {
        let mut watch = road.watch(&parameters).await?;
        while let Some(event) = watch.next().await? {
            assert_eq!(event["type"], "ADDED", "{parameters}: {event}");
        }
    }
    // With them one comes before the end.
    let mut watch = road.watch("&timeoutSeconds=4&allowWatchBookmarks=true").await?;
    let mut bookmarks = Vec::new();
    while let Some(event) = watch.next().await? {
        if event["type"] == "BOOKMARK" {
            bookmarks.push(version(&event["object"])?);
        }
    }
    ensure!(!bookmarks.is_empty() && bookmarks.is_sorted(), "{bookmarks:?}");
    Ok(())
}

/// Each change exactly once and in order, whenever the list was made.
///
/// # Errors
/// The rule does not hold.
pub async fn list_and_watch_miss_nothing_under_load(road: &Road) -> Result<()> {
    const WRITERS: usize = 4;
    const WRITES: usize = 20;
    let write = async |writer: usize| {
        let name = format!("w{writer}");
        road.create(&name).await?;
        for number in 1..WRITES {
            labelled(road, &name, "n", json!(number.to_string())).await?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let read = async {
        let list = road.caller.get(&road.own()).await?.expect(200)?;
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
        let mut watch = road.watch(&format!("&resourceVersion={revision}")).await?;
        while seen.len() < WRITERS || seen.values().any(|number| *number < WRITES - 1) {
            let event = watch.event().await?;
            let (object, name) = (&event["object"], name_of(&event["object"])?);
            ensure!(version(object)? > revision, "not in order: {event}");
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
