//! Protobuf and CBOR of every kind: the same objects, lists, events and errors as in JSON.

use drydock_machinery::codec::{cbor, protobuf};
use drydock_proto::protobuf::{
    MESSAGES, META_V1_DELETE_OPTIONS, META_V1_PARTIAL_OBJECT_METADATA, META_V1_PARTIAL_OBJECT_METADATA_LIST,
    META_V1_STATUS, META_V1_WATCH_EVENT, Message, message_of_kind,
};

use super::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const CBOR: &str = "application/cbor";
const METADATA: &str = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Every kind with a protobuf form.
fn kinds_with_messages() -> Vec<Sample> {
    let mut kinds = kinds();
    kinds.retain(|sample| message_of_kind(sample.version, sample.kind.kind).is_some());
    kinds
}

fn message(sample: &Sample, suffix: &str) -> &'static Message {
    let name = format!(
        "k8s.io.api.coordination.{}.{}{suffix}",
        sample.version, sample.kind.kind
    );
    MESSAGES.iter().find(|message| message.name == name).unwrap()
}

/// A document in either encoding, as JSON.
fn decoded(bytes: &[u8], media_type: &str, message: &Message) -> Value {
    if media_type.starts_with(CBOR) {
        assert!(bytes.starts_with(b"\xd9\xd9\xf7"), "not self-described");
        cbor::decode(bytes).unwrap()
    } else {
        protobuf::decode(bytes, message, None).unwrap()
    }
}

fn encoded(object: &Value, media_type: &str, message: &Message) -> Vec<u8> {
    if media_type == CBOR {
        cbor::encode(object)
    } else {
        protobuf::encode(object, message).unwrap()
    }
}

/// Without the types of items, which protobuf does not have.
fn without_item_types(mut list: Value) -> Value {
    for item in list["items"].as_array_mut().unwrap() {
        let members = item.as_object_mut().unwrap();
        members.remove("kind");
        members.remove("apiVersion");
    }
    list
}

async fn read(served: &Served, path: &str, accept: &str, message: &Message) -> Value {
    let answer = served
        .send_with(&format!("GET {path}"), &[("accept", accept)], "")
        .await;
    let media_type = accept.split(';').next().unwrap();
    assert_eq!(answer.body.headers()["content-type"], media_type);
    decoded(&answer.bytes(200).await, accept, message)
}

#[tokio::test(start_paused = true)]
async fn objects_are_written_and_read() {
    for sample in kinds_with_messages() {
        for media_type in [PROTOBUF, CBOR] {
            let served = Served::new().await;
            let message = message(&sample, "");
            let headers = [("content-type", media_type), ("accept", media_type)];
            let body = encoded(&sample.object(1), media_type, message);
            let line = format!("POST {}", sample.path);
            let created = served.send_with(&line, &headers, body).await.bytes(201).await;
            let mut created = decoded(&created, media_type, message);
            let path = sample.item(1);
            assert_eq!(created, served.get(&path).await.json(200).await, "{media_type}");
            assert_eq!(created, read(&served, &path, media_type, message).await);

            created["metadata"]["labels"]["n"] = "2".into();
            let body = encoded(&created, media_type, message);
            let line = format!("PUT {path}");
            let updated = served.send_with(&line, &headers, body).await.bytes(200).await;
            let updated = decoded(&updated, media_type, message);
            assert_eq!(updated["metadata"]["labels"]["n"], "2");
            assert_eq!(updated["spec"], created["spec"]);

            let accept = format!("{media_type}{METADATA}");
            let partial = read(&served, &path, &accept, &META_V1_PARTIAL_OBJECT_METADATA).await;
            assert_eq!(partial["kind"], "PartialObjectMetadata");
            assert_eq!(partial["metadata"], updated["metadata"]);
            assert_eq!(partial.get("spec"), None);

            let options =
                json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}});
            let body = encoded(&options, media_type, &META_V1_DELETE_OPTIONS);
            let line = format!("DELETE {path}");
            let refused = served.send_with(&line, &headers, body).await.bytes(409).await;
            assert_eq!(
                decoded(&refused, media_type, &META_V1_STATUS)["reason"],
                "Conflict"
            );
            let deleted = served.send_with(&line, &headers, "").await.bytes(200).await;
            let deleted = decoded(&deleted, media_type, &META_V1_STATUS);
            assert_eq!(deleted["details"]["uid"], created["metadata"]["uid"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lists_have_any_length() {
    let served = Served::new().await;
    let path = INTERCEPTORS.path;
    let list = message(&INTERCEPTORS, "List");
    for count in [0, 1, 90] {
        for n in count / 2..count {
            let padding = json!({"annotations": {"padding": "x".repeat(2000)}});
            let object = INTERCEPTORS.object_with(n, &padding);
            let line = format!("POST {path}");
            served.send(&line, &object).await;
        }
        let plain = served.get(path).await.json(200).await;
        assert_eq!(read(&served, path, CBOR, list).await, plain);
        let plain = without_item_types(plain);
        let mut found = read(&served, path, PROTOBUF, list).await;
        found
            .as_object_mut()
            .unwrap()
            .entry("items")
            .or_insert_with(|| json!([]));
        assert_eq!(found, plain);
        for media_type in [PROTOBUF, CBOR] {
            let accept = format!("{media_type}{METADATA_LIST}");
            let partial = read(&served, path, &accept, &META_V1_PARTIAL_OBJECT_METADATA_LIST).await;
            assert_eq!(partial["kind"], "PartialObjectMetadataList");
            let items = partial["items"].as_array().map_or(0, Vec::len);
            assert_eq!(items, plain["items"].as_array().unwrap().len());
        }
    }
    let line = format!("GET {path}?limit=2");
    let page = served.send_with(&line, &[("accept", PROTOBUF)], "").await;
    let page = decoded(&page.bytes(200).await, PROTOBUF, list);
    assert_eq!(page["items"].as_array().map(Vec::len), Some(2));
    assert!(page["metadata"]["remainingItemCount"].as_u64().unwrap() > 40);
    assert!(!page["metadata"]["continue"].as_str().unwrap().is_empty());
}

/// The next event of a watch in protobuf or CBOR.
async fn event(watch: &mut Answer, media_type: &str, message: &Message) -> Value {
    if media_type.starts_with(CBOR) {
        while cbor::first_length(&watch.read).is_none() {
            assert!(watch.more().await, "the watch ended");
        }
        let length = cbor::first_length(&watch.read).unwrap();
        return cbor::decode(&watch.take(length).await).unwrap();
    }
    let length = u32::from_be_bytes(watch.take(4).await.try_into().unwrap());
    let raw = watch.take(length as usize).await;
    let wrapped = {
        let mut out = Vec::new();
        protobuf::Envelope::write_start("", "", raw.len(), &mut out);
        out.extend_from_slice(&raw);
        out
    };
    // The object is an envelope in the bytes of the event.
    let start = raw.windows(4).position(|window| window == b"k8s\0").unwrap();
    let event = protobuf::decode(&wrapped, &META_V1_WATCH_EVENT, None).unwrap();
    json!({"type": event["type"], "object": protobuf::decode(&raw[start..], message, None).unwrap()})
}

#[tokio::test(start_paused = true)]
async fn watches_have_the_events_of_json() {
    let line = format!(
        "GET {}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        REQUESTS.path
    );
    for (accept, content_type, shown) in [
        (
            PROTOBUF,
            "application/vnd.kubernetes.protobuf;stream=watch",
            message(&REQUESTS, ""),
        ),
        (CBOR, "application/cbor-seq", message(&REQUESTS, "")),
        (
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;stream=watch",
            "application/vnd.kubernetes.protobuf;stream=watch",
            &META_V1_PARTIAL_OBJECT_METADATA,
        ),
    ] {
        let served = Served::new().await;
        served.create(&REQUESTS, 1).await;
        let plain_accept = accept
            .replace(PROTOBUF, "application/json")
            .replace(CBOR, "application/json");
        let mut plain = served.send_with(&line, &[("accept", &plain_accept)], "").await;
        let mut watch = served.send_with(&line, &[("accept", accept)], "").await;
        assert_eq!(watch.body.headers()["content-type"], content_type);
        for expected in ["ADDED", "BOOKMARK", "ADDED", "DELETED"] {
            if expected == "DELETED" {
                let delete = format!("DELETE {}", REQUESTS.item(2));
                served.send(&delete, &Value::Null).await.json(200).await;
            }
            let found = event(&mut watch, accept, shown).await;
            assert_eq!(found["type"], expected);
            assert_eq!(Some(found), plain.event().await, "{accept}");
            if expected == "BOOKMARK" {
                served.create(&REQUESTS, 2).await;
            }
        }
        let future = format!(
            "GET {}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=999",
            REQUESTS.path
        );
        let mut watch = served.send_with(&future, &[("accept", accept)], "").await;
        let found = event(&mut watch, accept, &META_V1_STATUS).await;
        assert_eq!(
            (&found["type"], &found["object"]["code"]),
            (&json!("ERROR"), &json!(504))
        );
        assert!(!watch.more().await);
    }
}

#[tokio::test(start_paused = true)]
async fn errors_have_the_encoding_of_the_response() {
    let served = Served::new().await;
    for media_type in [PROTOBUF, CBOR] {
        for (path, code) in [
            (REQUESTS.item(1), 404),
            (format!("{}?limit=x", REQUESTS.path), 400),
        ] {
            let line = format!("GET {path}");
            let answer = served.send_with(&line, &[("accept", media_type)], "").await;
            assert_eq!(answer.body.headers()["content-type"], media_type);
            let status = decoded(&answer.bytes(code).await, media_type, &META_V1_STATUS);
            assert_eq!(
                (&status["kind"], &status["code"]),
                (&json!("Status"), &json!(code))
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_bodies_are_refused() {
    let served = Served::new().await;
    let line = format!("POST {}", REQUESTS.path);
    let wrong_type = {
        let mut body = Vec::new();
        protobuf::Envelope::write_start("", "", 2, &mut body);
        [body, vec![1 << 3, 0]].concat()
    };
    for (media_type, body, expected) in [
        (
            PROTOBUF,
            b"{}".to_vec(),
            "the object provided is unrecognized (must be of type EvictionRequest): provided data does not appear to be \
             a protobuf message, expected prefix [107 56 115 0] ({})",
        ),
        (
            PROTOBUF,
            Vec::new(),
            "the object provided is unrecognized (must be of type EvictionRequest): empty data (<empty>)",
        ),
        (
            PROTOBUF,
            wrong_type,
            "EvictionRequest in version \"v1alpha3\" cannot be handled as a EvictionRequest: proto: wrong wireType = 0 \
             for field metadata",
        ),
        (
            CBOR,
            b"\xa1\x41".to_vec(),
            "the object provided is unrecognized (must be of type EvictionRequest): unexpected EOF (a141)",
        ),
        ("application/json", b"\xa1\x41".to_vec(), "(a141)"),
    ] {
        let answer = served
            .send_with(&line, &[("content-type", media_type)], body)
            .await;
        let status = answer.json(400).await;
        let message = status["message"].as_str().unwrap();
        assert!(message.ends_with(expected), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_apply_may_be_cbor() {
    let served = Served::new().await;
    let headers = [("content-type", "application/apply-patch+cbor")];
    let line = format!("PATCH {}?fieldManager=m", REQUESTS.item(1));
    let body = cbor::encode(&REQUESTS.object(1));
    let applied = served.send_with(&line, &headers, body).await.json(201).await;
    assert_eq!(applied["metadata"]["managedFields"][0]["operation"], "Apply");
    served
        .refused(
            &line,
            &headers,
            "{}",
            (400, "BadRequest", "error decoding patch: "),
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_strategic_merge_patch_follows_the_schema() {
    let served = Served::new().await;
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": uid, "uid": uid});
    let owners = json!({"ownerReferences": [owner("a"), owner("b")]});
    served.create_with(&REQUESTS, 1, &owners).await;
    let headers = [("content-type", "application/strategic-merge-patch+json")];
    let line = format!("PATCH {}", REQUESTS.item(1));
    let patch = json!({
        "metadata": {"ownerReferences": [{"$patch": "delete", "uid": "a"}]},
        "spec": {"requesters": [{"name": "b.example.com"}]},
    });
    let patched = served
        .send_with(&line, &headers, patch.to_string())
        .await
        .json(200)
        .await;
    assert_eq!(patched["metadata"]["ownerReferences"], json!([owner("b")]));
    assert_eq!(
        patched["spec"]["requesters"],
        json!([{"name": "b.example.com"}, {"name": "a.example.com"}])
    );
    served
        .refused(
            &line,
            &headers,
            r#"{"spec":{"requesters":[{"$patch":"turn"}]}}"#,
            (400, "BadRequest", "unknown patch type: turn"),
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn paths_outside_all_versions_are_plain_404() {
    let served = Served::new().await;
    for path in [
        "/nothing",
        "/apis/other",
        "/apis/other/v1/things",
        "/apis/coordination.k8s.io/v9/evictionrequests",
    ] {
        let answer = served.get(path).await;
        assert_eq!(
            answer.body.headers()["content-type"],
            "text/plain; charset=utf-8",
            "{path}"
        );
        assert_eq!(answer.text(404).await, "404 page not found\n", "{path}");
    }
    let inside = served.get("/apis/coordination.k8s.io/v1alpha3/things").await;
    assert_eq!(inside.json(404).await["details"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_upgraded_to_websocket() {
    let served = Served::new().await;
    served.create(&REQUESTS, 1).await;
    served.create(&REQUESTS, 2).await;
    let line = format!("GET {}?watch=1&resourceVersion=0", REQUESTS.path);
    let upgrade = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("origin", "http://localhost"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    for media_type in ["application/json", PROTOBUF, CBOR] {
        let headers = [&upgrade[..], &[("accept", media_type)]].concat();
        let mut watch = served.send_with(&line, &headers, "").await;
        assert_eq!(watch.code, 101);
        // Each chunk of the body becomes a message.
        for _ in 0..2 {
            assert!(watch.more().await);
            let message = std::mem::take(&mut watch.read);
            match media_type {
                PROTOBUF => assert!(message.starts_with(b"\x0a\x05ADDED\x12"), "{message:?}"),
                CBOR => assert_eq!(cbor::decode(&message).unwrap()["type"], "ADDED"),
                _ => {
                    assert!(message.ends_with(b"}\n"));
                    assert_eq!(
                        serde_json::from_slice::<Value>(&message).unwrap()["type"],
                        "ADDED"
                    );
                }
            }
        }
    }
    for (missing, code) in [(4, 400), (2, 400), (3, 403)] {
        let mut headers = upgrade.to_vec();
        headers.remove(missing);
        let status = served.send_with(&line, &headers, "").await.json(code).await;
        assert_eq!(status["code"], code);
    }
}
