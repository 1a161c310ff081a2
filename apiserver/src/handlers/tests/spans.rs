//! The spans of requests with those inside, at a collector.

use super::faces::V1;
use super::webhooks::under;
use super::*;
use crate::telemetry::TracingSettings;
use crate::telemetry::spans::Spans;
use crate::telemetry::spans::collector::Collector;

/// The names of the spans inside each span, in order, of one request.
async fn names(served: &Served, line: &str, object: &Value, code: u16) -> Vec<String> {
    let (collector, endpoint) = Collector::start().await;
    let settings = TracingSettings {
        endpoint,
        per_million: 1_000_000,
    };
    let spans = Spans::start(&settings, "pod-0").unwrap();
    let (method, path) = line.split_once(' ').unwrap();
    let info = RequestInfo::parse(&method.parse().unwrap(), path, &Query::default()).unwrap();
    let span = spans.begin(&info, &HeaderMap::new(), &UserInfo::default(), "id");
    let answer = span.around(served.send(line, object)).await;
    answer.json(code).await;
    drop(span);
    spans.close().await;
    let mut found = collector.spans();
    found.sort_by_key(|span| span.start_time_unix_nano);
    let name_of = |id: &[u8]| {
        let parent = found.iter().find(|span| span.span_id == id);
        parent.map(|span| span.name.clone()).unwrap_or_default()
    };
    let inside = found.iter().filter(|span| !span.parent_span_id.is_empty());
    inside
        .map(|span| format!("{} in {}", span.name, name_of(&span.parent_span_id)))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_the_cache_calls_of_webhooks_and_the_encoding_have_spans() {
    let served = under(&json!({"failurePolicy": "Ignore"}), false).await;
    let root = "/apis/coordination.k8s.io/v1/namespaces/{:namespace}/foos";
    let none = Value::Null;
    let created = names(&served, &format!("POST {}", V1.path), &V1.object(1), 201).await;
    let expected = [
        format!("Create in POST {root}"),
        "Call validating webhook in Create".to_owned(),
        "Transact in Create".to_owned(),
        "SerializeObject in Create".to_owned(),
    ];
    assert_eq!(created, expected);
    let read = names(&served, &format!("GET {}", V1.item(1)), &none, 200).await;
    let expected = [
        format!("Get in GET {root}/{{:name}}"),
        "cacher.Get in Get".to_owned(),
        "SerializeObject in Get".to_owned(),
    ];
    assert_eq!(read, expected);
    let listed = names(&served, &format!("GET {}", V1.path), &none, 200).await;
    let expected = [
        format!("List in GET {root}"),
        "cacher.GetList in List".to_owned(),
        "SerializeObject in List".to_owned(),
    ];
    assert_eq!(listed, expected);
}
