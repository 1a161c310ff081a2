use http::Method;
use tokio::net::TcpListener;

use super::collector::Collector;
use super::*;
use crate::request::Query;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn headers(flags: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let value = format!("00-{TRACE}-{PARENT}-{flags}");
    headers.insert("traceparent", value.parse().unwrap());
    headers.insert("authorization", HeaderValue::from_static("Bearer a-secret"));
    headers
}

fn info(line: &str) -> RequestInfo {
    let (method, path) = line.split_once(' ').unwrap();
    RequestInfo::parse(&method.parse::<Method>().unwrap(), path, &Query::default()).unwrap()
}

fn user(group: &str) -> UserInfo {
    UserInfo {
        name: "jane".to_owned(),
        groups: vec![group.to_owned()],
        ..UserInfo::default()
    }
}

fn spans(endpoint: &str, per_million: u32) -> Arc<Spans> {
    let settings = TracingSettings {
        endpoint: endpoint.to_owned(),
        per_million,
    };
    Spans::start(&settings, "pod-0").unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

#[test]
fn names_have_the_parts_of_the_path_but_no_names_of_objects() {
    for (line, expected) in [
        ("GET /apis/g/v/rs", "GET /apis/g/v/rs"),
        (
            "PUT /apis/g/v/namespaces/ns/rs/x/status",
            "PUT /apis/g/v/namespaces/{:namespace}/rs/{:name}/status",
        ),
        ("DELETE /api/v1/nodes/n", "DELETE /api/v1/nodes/{:name}"),
        ("GET /metrics", "GET"),
    ] {
        assert_eq!(name(&info(line)), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_arrive_at_the_collector_with_those_inside() {
    let (collector, address) = Collector::start().await;
    let spans = spans(&address, 1_000_000);
    let request = spans.begin(&info("POST /apis/g/v/rs"), &headers("00"), &user("friends"), "id");
    let carried = request
        .around(within("Create", async {
            within("Transact", async {}).await;
            let mut headers = HeaderMap::new();
            propagate(&mut headers);
            headers
        }))
        .await;
    request.responded(201);
    drop(request);
    spans.close().await;

    let (root, create) = (collector.span("POST /apis/g/v/rs"), collector.span("Create"));
    assert_eq!(create.parent_span_id, root.span_id);
    assert_eq!(collector.span("Transact").parent_span_id, create.span_id);
    let expected = format!("00-{}-{}-01", hex(&root.trace_id), hex(&create.span_id));
    assert_eq!(carried["traceparent"], expected);
    let sent = format!("{:?}", collector.0.lock().unwrap());
    for text in ["drydock-apiserver", "pod-0", "\"audit-id\"", "\"id\"", "201"] {
        assert!(sent.contains(text), "{text} is not in {sent}");
    }
    assert!(!sent.contains("a-secret") && !sent.contains("jane"), "{sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_observers_continue_the_trace_that_they_send() {
    for (group, continues) in [
        ("system:monitoring", true),
        ("system:masters", true),
        ("friends", false),
    ] {
        let (collector, address) = Collector::start().await;
        // Nothing is sampled by rate: only a sampled parent counts.
        for per_million in [0, 1_000_000] {
            let spans = spans(&address, per_million);
            drop(spans.begin(&info("GET /apis/g/v/rs"), &headers("01"), &user(group), "id"));
            spans.close().await;
            let found = collector.spans();
            if !continues && per_million == 0 {
                assert_eq!(found, [], "{group}");
                continue;
            }
            let span = found.last().unwrap();
            assert_eq!(hex(&span.trace_id) == TRACE, continues, "{group}");
            assert_eq!(hex(&span.parent_span_id) == PARENT, continues, "{group}");
            let links: Vec<String> = span.links.iter().map(|link| hex(&link.trace_id)).collect();
            assert_eq!(links == [TRACE], !continues, "{group}: {links:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_on_without_a_collector() {
    // Nothing listens on this port: it was given up.
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let spans = spans(&address, 1_000_000);
    for _ in 0..2 * WAITING {
        let request = spans.begin(&info("GET /apis/g/v/rs"), &HeaderMap::new(), &user("g"), "id");
        assert_eq!(request.around(within("List", async { 7 })).await, 7);
    }
    spans.close().await;
}

#[tokio::test]
async fn nothing_is_carried_on_outside_of_a_traced_request() {
    let mut headers = HeaderMap::new();
    assert_eq!(within("Create", async { 7 }).await, 7);
    propagate(&mut headers);
    assert!(headers.is_empty());
}
