use drydock_storage::Revision;

use super::*;
use crate::{
    error::ApiError,
    request::{
        freshness::{Freshness, ListState, WatchStart},
        query::Query,
    },
};

fn causes<T: std::fmt::Debug>(parsed: Result<T, ApiError>) -> Vec<(String, String)> {
    let details = parsed.unwrap_err().status().details.clone().unwrap();
    details
        .causes
        .into_iter()
        .map(|cause| (cause.field, cause.message))
        .collect()
}

#[test]
fn the_state_of_a_list_depends_on_version_match_and_limit() {
    let newest = |freshness: Freshness| ListStart::State(freshness.into());
    let not_older_than_7 = || newest(Freshness::NotOlderThan(Revision(7)));
    let exactly_7 = || ListStart::State(ListState::Exactly(Revision(7)));
    let token = || ListStart::Token("abc".to_owned());
    for (query, start) in [
        ("", newest(Freshness::MostRecent)),
        ("resourceVersion=0", newest(Freshness::Any)),
        (
            "resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=5",
            newest(Freshness::Any),
        ),
        ("resourceVersion=7", not_older_than_7()),
        ("resourceVersion=7&limit=2", exactly_7()),
        ("resourceVersion=7&resourceVersionMatch=Exact", exactly_7()),
        (
            "resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=2",
            not_older_than_7(),
        ),
        ("continue=abc", token()),
        ("continue=abc&resourceVersion=0", token()),
    ] {
        let parsed = ListOptions::parse(&Query::parse(query)).unwrap();
        assert_eq!(parsed.start, start, "{query}");
    }
}

#[test]
fn invalid_list_options_are_rejected() {
    for (query, text) in [
        ("resourceVersionMatch=Exact", "unless resourceVersion is provided"),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            "is forbidden for resourceVersion \"0\"",
        ),
        (
            "resourceVersionMatch=NotOlderThan&resourceVersion=1&continue=a",
            "when continue is provided",
        ),
        (
            "resourceVersionMatch=Foo&resourceVersion=1",
            "supported values: \"Exact\", \"NotOlderThan\", \"\"",
        ),
        (
            "sendInitialEvents=false",
            "sendInitialEvents is forbidden for list",
        ),
    ] {
        let found = causes(ListOptions::parse(&Query::parse(query)));
        assert!(
            found.iter().any(|(_, message)| message.contains(text)),
            "{query}: {found:?}"
        );
    }
    for query in [
        "resourceVersion=abc",
        "limit=abc",
        "timeoutSeconds=abc",
        "continue=x&resourceVersion=5",
        "resourceVersion=-1",
    ] {
        assert_eq!(
            ListOptions::parse(&Query::parse(query)).unwrap_err().code(),
            400,
            "{query}"
        );
    }
}

#[test]
fn watches_without_a_version_send_initial_events() {
    let initial = WatchStart::InitialEvents;
    for (query, start) in [
        ("", initial(Freshness::MostRecent)),
        ("resourceVersion=0", initial(Freshness::Any)),
        ("resourceVersion=9", WatchStart::After(Revision(9))),
        (
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            initial(Freshness::MostRecent),
        ),
        (
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=9",
            initial(Freshness::NotOlderThan(Revision(9))),
        ),
        (
            "sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
            WatchStart::Now,
        ),
        (
            "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=4",
            WatchStart::After(Revision(4)),
        ),
    ] {
        assert_eq!(
            WatchOptions::parse(&Query::parse(query)).unwrap().start,
            start,
            "{query}"
        );
    }
}

#[test]
fn invalid_watch_options_are_rejected() {
    for (query, count) in [
        ("sendInitialEvents=true", 1),
        ("sendInitialEvents=false", 1),
        ("resourceVersionMatch=NotOlderThan", 1),
        ("sendInitialEvents=true&resourceVersionMatch=Exact", 2),
        ("continue=a", 1),
    ] {
        assert_eq!(
            causes(WatchOptions::parse(&Query::parse(query))).len(),
            count,
            "{query}"
        );
    }
}

#[test]
fn delete_options_come_from_the_body_or_the_query() {
    let body =
        serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"});
    let query = Query::parse("propagationPolicy=Foreground&dryRun=All");
    let parsed = DeleteOptions::parse(&query, Some(body), "g/v").unwrap();
    assert_eq!(
        (parsed.propagation, parsed.dry_run),
        (Some(Propagation::Orphan), false)
    );
    let parsed = DeleteOptions::parse(&query, None, "g/v").unwrap();
    assert_eq!(
        (parsed.propagation, parsed.dry_run),
        (Some(Propagation::Foreground), true)
    );
}

#[test]
fn invalid_delete_options_are_rejected() {
    for (query, text) in [
        (
            "propagationPolicy=Later",
            "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
        ),
        (
            "propagationPolicy=Orphan&orphanDependents=true",
            "cannot be both set",
        ),
        (
            "dryRun=Some",
            "Unsupported value: [\"Some\"]: supported values: \"All\"",
        ),
    ] {
        let found = causes(DeleteOptions::parse(&Query::parse(query), None, "g/v"));
        assert!(
            found.iter().any(|(_, message)| message.contains(text)),
            "{query}: {found:?}"
        );
    }
    for (other, value) in [
        ("dryRun", serde_json::json!(["All"])),
        ("propagationPolicy", "Background".into()),
        ("orphanDependents", false.into()),
        ("gracePeriodSeconds", 0.into()),
        ("preconditions", serde_json::json!({})),
    ] {
        let body = serde_json::json!({UNSAFE_DELETE: true, other: value});
        let found = causes(DeleteOptions::parse(&Query::default(), Some(body), "g/v"));
        let why = format!("Invalid value: true: cannot be set together with .{other}");
        assert_eq!(found, [(UNSAFE_DELETE.to_owned(), why)]);
    }
    let alone = Query::parse(&format!("{UNSAFE_DELETE}=true"));
    let alone = DeleteOptions::parse(&alone, None, "g/v").unwrap();
    assert!(alone.unsafe_delete && alone.check_for_collection().is_err());
    assert!(DeleteOptions::default().check_for_collection().is_ok());
    let foreign = serde_json::json!({"kind": "Pod", "apiVersion": "v1"});
    assert_eq!(
        DeleteOptions::parse(&Query::default(), Some(foreign), "g/v")
            .unwrap_err()
            .code(),
        400
    );
}

#[test]
fn write_options_are_checked() {
    for (kind, query, text) in [
        (
            "CreateOptions",
            "dryRun=Foo".to_owned(),
            "Unsupported value: [\"Foo\"]",
        ),
        (
            "CreateOptions",
            "fieldValidation=Foo".to_owned(),
            "\"\", \"Ignore\", \"Strict\", \"Warn\"",
        ),
        (
            "UpdateOptions",
            format!("fieldManager={}", "x".repeat(129)),
            "may not be more than 128 bytes",
        ),
        (
            "UpdateOptions",
            "fieldManager=%C3%A4%0A".to_owned(),
            "invalid character U+000A (at position 2)",
        ),
        (
            "PatchOptions",
            "force=false".to_owned(),
            "may not be specified for non-apply patch",
        ),
    ] {
        let found = causes(WriteOptions::parse(kind, &Query::parse(&query)));
        assert!(
            found.iter().any(|(_, message)| message.contains(text)),
            "{query}: {found:?}"
        );
    }
}
