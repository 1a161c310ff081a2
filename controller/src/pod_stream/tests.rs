use drydock_machinery::codec::protobuf::{self, Envelope};
use drydock_proto::protobuf::{Field, FieldKind, Message};
use futures_util::StreamExt;
use http::StatusCode;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use serde_json::{Value, json};

use super::*;
use crate::pod::Pod;

/// The managed fields of `ObjectMeta`, whose field sets are texts.
static MANAGED: Message = Message {
    name: "ObjectMeta",
    fields: &[Field::list(17, "managedFields", FieldKind::Message(&ENTRY))],
};
static ENTRY: Message = Message {
    name: "ManagedFieldsEntry",
    fields: &[Field::one(7, "fieldsV1", FieldKind::Message(&FIELDS))],
};
static FIELDS: Message = Message {
    name: "FieldsV1",
    fields: &[Field::one(1, "raw", FieldKind::Text)],
};

/// What the double of kube-apiserver was asked for.
type Asked = Arc<std::sync::Mutex<Vec<String>>>;

/// An event with an object of this kind.
fn event(type_: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut envelope = Vec::new();
    Envelope::write_start("v1", kind, raw.len(), &mut envelope);
    envelope.extend_from_slice(raw);
    let mut event = Vec::new();
    protobuf::write_event(type_, &envelope, &mut event);
    event
}

fn pod_message(object: &Value) -> Vec<u8> {
    let mut raw = Vec::new();
    let parts: [(_, _, &[&Message]); 3] = [
        (1, "metadata", &[&event::METADATA, &MANAGED]),
        (2, "spec", &[&event::POD_SPEC]),
        (3, "status", &[&event::POD_STATUS]),
    ];
    for (number, name, messages) in parts {
        let mut part = Vec::new();
        for message in messages {
            protobuf::encode_message(&object[name], message, &mut part).unwrap();
        }
        protobuf::write_bytes_key(number, part.len(), &mut raw);
        raw.extend(part);
    }
    raw
}

/// The `Status` of a revision that is too old.
fn gone() -> Vec<u8> {
    let parts: [&[u8]; 7] = [
        &[0x12, 7],
        b"Failure",
        &[0x1a, 7],
        b"too old",
        &[0x22, 4],
        b"Gone",
        &[0x30, 0x9a, 3],
    ];
    parts.concat()
}

/// A client of a server that answers with this body, and what it was asked for.
fn server(media_type: &'static str, body: Vec<u8>) -> (Client, Asked) {
    failing_server(StatusCode::OK, media_type, body)
}

fn failing_server(code: StatusCode, media_type: &'static str, body: Vec<u8>) -> (Client, Asked) {
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let accept = request
            .headers()
            .get(ACCEPT)
            .map(|value| value.to_str().unwrap().to_owned());
        seen.lock().unwrap().push(accept.unwrap_or_default());
        // In pieces that split frames.
        let pieces: Vec<_> = body
            .chunks(7)
            .map(|piece| Ok::<_, io::Error>(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        let body = StreamBody::new(futures_util::stream::iter(pieces)).boxed_unsync();
        let response = Response::builder()
            .status(code)
            .header(CONTENT_TYPE, media_type)
            .body(body);
        std::future::ready(response.map_err(kube::Error::HttpError))
    });
    (protobuf_client(Client::new(service, "default")), asked)
}

fn from_json(object: &Value) -> Pod {
    serde_json::from_value(object.clone()).unwrap()
}

async fn watched(client: &Client) -> Vec<Result<WatchEvent<Pod>, kube::Error>> {
    let pods: Api<Pod> = Api::all(client.clone());
    let events = pods.watch(&WatchParams::default(), "0").await.unwrap();
    events.collect().await
}

#[tokio::test]
async fn pods_are_those_of_a_watch_in_json() {
    let object = json!({
        "metadata": {
            "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
            "labels": {"app": "web", "empty": ""}, "annotations": {"kubernetes.io/config.mirror": ""},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "uid": "o", "apiVersion": "apps/v1", "controller": true}],
            "finalizers": ["example.com/f"],
        },
        "spec": {
            "terminationGracePeriodSeconds": 0, "nodeName": "node-1", "priority": -1,
            "tolerations": [{"key": "", "operator": "Exists", "value": "", "effect": ""}],
            "schedulingGroup": {"name": "group"},
            "evictionResponders": [{"name": "a.example.com"}, {"name": "b.example.com"}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let fields = [
        r#"{"f:metadata":{"f:labels":{}}}"#,
        r#"{"f:spec":{"f:nodeName":{}}}"#,
    ];
    let mut sent = object.clone();
    sent["metadata"]["managedFields"] = fields.map(|raw| json!({"fieldsV1": {"raw": raw}})).into();
    let mut read = object;
    read["metadata"]["managedFields"] = fields
        .map(|raw| json!({"fieldsV1": serde_json::from_str::<Value>(raw).unwrap()}))
        .into();
    read["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    let bare = json!({"metadata": {"name": "bare", "resourceVersion": "8"}, "spec": {"nodeName": ""}, "status": {"phase": ""}});

    let body = [
        event("ADDED", "Pod", &pod_message(&sent)),
        event("DELETED", "Pod", &pod_message(&bare)),
        event("ERROR", "Status", &gone()),
    ];
    let (client, asked) = server(MEDIA_TYPE, body.concat());
    let events: Vec<_> = watched(&client).await.into_iter().map(Result::unwrap).collect();
    let [
        WatchEvent::Added(added),
        WatchEvent::Deleted(deleted),
        WatchEvent::Error(error),
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(*added, from_json(&read));
    assert!(added.is_placed_by_creator);
    assert_eq!(
        *deleted,
        from_json(&json!({"metadata": {"name": "bare", "resourceVersion": "8"}}))
    );
    assert_eq!(
        (error.code, error.reason.as_str(), error.message.as_str()),
        (410, "Gone", "too old")
    );
    assert_eq!(*asked.lock().unwrap(), [ACCEPTED.to_str().unwrap()]);
}

#[tokio::test]
async fn pods_with_an_unknown_field_are_watched_in_json() {
    static LATER: Message = Message {
        name: "Pod",
        fields: &[Field::one(2, "spec", FieldKind::Message(&SPEC))],
    };
    static SPEC: Message = Message {
        name: "PodSpec",
        fields: &[Field::one(45, "later", FieldKind::Boolean)],
    };
    let mut raw = Vec::new();
    protobuf::encode_message(&json!({"spec": {"later": true}}), &LATER, &mut raw).unwrap();
    let (client, asked) = server(MEDIA_TYPE, event("ADDED", "Pod", &raw));
    let events = watched(&client).await;
    assert!(matches!(&events[..], [Err(_)]), "{events:?}");
    watched(&client).await;
    assert_eq!(*asked.lock().unwrap(), [ACCEPTED.to_str().unwrap(), ""]);
}

#[tokio::test]
async fn malformed_events_end_the_watch() {
    let bodies = [
        event("ADDED", "Pod", b"\x0a\x7f"),
        event("ADDED", "Node", b""),
        vec![0, 0, 0, 1, 8],
        // Longer than any event.
        vec![0xff, 0, 0, 0, 8],
        // Cut off.
        vec![0, 0, 0, 9, 8],
    ];
    for body in bodies {
        let (client, _) = server(MEDIA_TYPE, body.clone());
        let events = watched(&client).await;
        assert!(matches!(&events[..], [Err(_)]), "{body:?}: {events:?}");
    }
}

#[tokio::test]
async fn errors_are_those_of_the_server() {
    let refused = async |body: Vec<u8>| {
        let (client, _) = failing_server(StatusCode::GONE, MEDIA_TYPE, body);
        let pods: Api<Pod> = Api::all(client);
        let Err(kube::Error::Api(status)) = pods.watch(&WatchParams::default(), "1").await.map(drop) else {
            panic!("not refused");
        };
        (status.code, status.message.clone())
    };
    let mut envelope = Vec::new();
    Envelope::write_start("v1", "Status", gone().len(), &mut envelope);
    envelope.extend(gone());
    assert_eq!(refused(envelope).await, (410, "too old".to_owned()));
    assert_eq!(refused(b"k8s".to_vec()).await.0, 410);
}

#[tokio::test]
async fn json_and_other_requests_are_handed_on() {
    let line = json!({"type": "ADDED", "object": {"metadata": {"name": "web"}}}).to_string() + "\n";
    let (client, _) = server("application/json", line.into_bytes());
    let events = watched(&client).await;
    assert!(
        matches!(&events[..], [Ok(WatchEvent::Added(pod))] if pod.name() == "web"),
        "{events:?}"
    );

    let list = json!({"metadata": {}, "items": []}).to_string();
    let (client, asked) = server("application/json", list.into_bytes());
    Api::<Pod>::all(client)
        .list(&kube::api::ListParams::default())
        .await
        .unwrap();
    assert_eq!(*asked.lock().unwrap(), [""]);
}
