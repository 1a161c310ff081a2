//! Rules of protobuf and CBOR: the same objects, lists, events and errors as in JSON.

use anyhow::{Context as _, Result, ensure};
use drydock_machinery::codec::{cbor, protobuf};
use drydock_proto::protobuf::{
    COORDINATION_V1ALPHA3_EVICTION_REQUEST, COORDINATION_V1ALPHA3_EVICTION_REQUEST_LIST,
    COORDINATION_V1ALPHA3_NODE_MAINTENANCE, COORDINATION_V1ALPHA3_NODE_MAINTENANCE_LIST,
    META_V1_PARTIAL_OBJECT_METADATA_LIST, META_V1_STATUS, Message,
};
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::Endpoint;
use crate::calls::{Caller, Response};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const CBOR: &str = "application/cbor";

fn decoded(response: &Response, code: u16, message: &Message) -> Result<Value> {
    ensure!(
        response.status == code,
        "{}: {} {}",
        response.what,
        response.status,
        response.text()
    );
    let media_type = response.header("content-type");
    Ok(match media_type {
        PROTOBUF => protobuf::decode(&response.body, message, None)?,
        CBOR => cbor::decode(&response.body)?,
        other => anyhow::bail!("{}: {other}", response.what),
    })
}

fn encoded(object: &Value, media_type: &str, message: &Message) -> Result<Vec<u8>> {
    Ok(if media_type == CBOR {
        cbor::encode(object)
    } else {
        protobuf::encode(object, message)?
    })
}

fn accepting(api: &Endpoint, media_type: &str) -> Result<Caller> {
    api.caller.clone().with_header("accept", media_type)
}

/// Objects are created, read, updated and deleted in protobuf and in CBOR.
pub async fn objects_are_exchanged_in_binary_encodings(api: &Endpoint) -> Result<()> {
    let message = &COORDINATION_V1ALPHA3_NODE_MAINTENANCE;
    for (name, media_type) in [("a", PROTOBUF), ("b", CBOR)] {
        let caller = accepting(api, media_type)?;
        let send = async |method: Method, path: &str, object: &Value| {
            let body = encoded(object, media_type, message)?;
            caller.call(method, path, media_type, body).await
        };
        let mut object = api.maintenance(name);
        object["metadata"]["annotations"] = json!({ "b": "2", "a": "<>" });
        let created = send(Method::POST, &api.maintenances(), &object).await?;
        let mut created = decoded(&created, 201, message)?;
        assert_eq!(created, api.read(name).await?);
        assert_eq!(
            decoded(&caller.get(&api.path(name)).await?, 200, message)?,
            created
        );

        created["spec"]["reason"] = "kernel".into();
        let updated = send(Method::PUT, &api.path(name), &created).await?;
        let updated = decoded(&updated, 200, message)?;
        assert_eq!(updated["metadata"]["generation"], 2);
        assert_eq!(updated["spec"]["reason"], "kernel");
        let stale = send(Method::PUT, &api.path(name), &created).await?;
        assert_eq!(decoded(&stale, 409, &META_V1_STATUS)?["reason"], "Conflict");
        let patched = caller
            .patch(
                &api.path(name),
                crate::calls::MERGE_PATCH,
                &json!({"spec": {"reason": ""}}),
            )
            .await?;
        assert_eq!(decoded(&patched, 200, message)?["metadata"]["generation"], 3);

        let deleted = decoded(&caller.delete(&api.path(name)).await?, 200, &META_V1_STATUS)?;
        assert_eq!(deleted["details"]["uid"], created["metadata"]["uid"]);
        let missing = decoded(&caller.get(&api.path(name)).await?, 404, &META_V1_STATUS)?;
        assert_eq!(missing["details"]["name"], api.name(name));
        let other = caller
            .call(
                Method::POST,
                &api.maintenances(),
                media_type,
                "\u{1}not an object",
            )
            .await?;
        let message = decoded(&other, 400, &META_V1_STATUS)?["message"].to_string();
        ensure!(
            message.contains("is unrecognized (must be of type NodeMaintenance)"),
            "{message}"
        );
    }
    Ok(())
}

/// Without the types of items, which protobuf does not have.
fn without_item_types(mut list: Value) -> Value {
    for item in list["items"].as_array_mut().into_iter().flatten() {
        if let Some(members) = item.as_object_mut() {
            members.remove("kind");
            members.remove("apiVersion");
        }
    }
    list
}

/// Lists in protobuf and CBOR, whole and in pages, of objects and of metadata.
pub async fn lists_are_served_in_binary_encodings(api: &Endpoint) -> Result<()> {
    let list = &COORDINATION_V1ALPHA3_NODE_MAINTENANCE_LIST;
    for name in ["a", "b", "c"] {
        api.create(name).await?;
    }
    let names = |list: &Value| super::names(list);
    let plain = api.caller.get(&api.own()).await?.expect(200)?;
    for media_type in [PROTOBUF, CBOR] {
        let caller = accepting(api, media_type)?;
        let found = decoded(&caller.get(&api.own()).await?, 200, list)?;
        assert_eq!(found["kind"], "NodeMaintenanceList");
        assert_eq!(
            without_item_types(found)["items"],
            without_item_types(plain.clone())["items"]
        );
        let first = decoded(&caller.get(&format!("{}&limit=2", api.own())).await?, 200, list)?;
        let token = first["metadata"]["continue"].as_str().context("a token")?;
        let second = format!("{}&limit=2&continue={token}", api.own());
        let second = decoded(&caller.get(&second).await?, 200, list)?;
        assert_eq!([names(&first), names(&second)].concat(), names(&plain));

        let accept = format!("{media_type};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
        let partial = accepting(api, &accept)?.get(&api.own()).await?;
        let partial = decoded(&partial, 200, &META_V1_PARTIAL_OBJECT_METADATA_LIST)?;
        assert_eq!(partial["kind"], "PartialObjectMetadataList");
        assert_eq!(partial["items"][1]["metadata"], plain["items"][1]["metadata"]);
        assert_eq!(partial["items"][1].get("spec"), None);

        let empty = caller.get(&api.requests()).await?;
        let empty = decoded(&empty, 200, &COORDINATION_V1ALPHA3_EVICTION_REQUEST_LIST)?;
        ensure!(empty["items"].as_array().is_none_or(Vec::is_empty), "{empty}");
    }
    let request = api
        .caller
        .post(&api.requests(), &api.request())
        .await?
        .expect(201)?;
    let path = format!(
        "{}/{}",
        api.requests(),
        request["metadata"]["name"].as_str().context("a name")?
    );
    let found = accepting(api, PROTOBUF)?.get(&path).await?;
    let found = decoded(&found, 200, &COORDINATION_V1ALPHA3_EVICTION_REQUEST)?;
    assert_eq!(found["spec"], request["spec"]);
    let deleted = accepting(api, PROTOBUF)?.delete(&api.own()).await?;
    assert_eq!(names(&decoded(&deleted, 200, list)?), names(&plain));
    Ok(())
}

/// Watches in protobuf are frames with their length, and in CBOR a sequence.
pub async fn watches_are_served_in_binary_encodings(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    for (media_type, content_type) in [
        (PROTOBUF, "application/vnd.kubernetes.protobuf;stream=watch"),
        (CBOR, "application/cbor-seq"),
    ] {
        let path = format!("{}&watch=true&timeoutSeconds=1", api.own());
        let (content, mut body) = accepting(api, media_type)?.stream(&path).await?;
        assert_eq!(content, content_type);
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            read.extend_from_slice(&frame?.into_data().unwrap_or_default());
        }
        if media_type == CBOR {
            let event = cbor::decode(&read)?;
            assert_eq!(event, json!({ "type": "ADDED", "object": created }));
            continue;
        }
        let prefix = read.first_chunk().context("a length")?;
        assert_eq!(u32::from_be_bytes(*prefix) as usize, read.len() - 4);
        let object = read
            .windows(4)
            .position(|window| window == b"k8s\0")
            .context("an envelope")?;
        let object = read.get(object..).context("an object")?;
        let object = protobuf::decode(object, &COORDINATION_V1ALPHA3_NODE_MAINTENANCE, None)?;
        assert_eq!(object, created);
    }
    Ok(())
}

/// Server-side apply takes CBOR too.
pub async fn applies_may_be_cbor(api: &Endpoint) -> Result<()> {
    let path = format!("{}?fieldManager=suite", api.path("a"));
    let media_type = "application/apply-patch+cbor";
    let body = cbor::encode(&api.maintenance("a"));
    let applied = api
        .caller
        .call(Method::PATCH, &path, media_type, body.clone())
        .await?;
    let applied = applied.expect(201)?;
    assert_eq!(applied["metadata"]["managedFields"][0]["operation"], "Apply");
    let again = api.caller.call(Method::PATCH, &path, media_type, body).await?;
    assert_eq!(again.expect(200)?, applied);
    let broken = api.caller.call(Method::PATCH, &path, media_type, "{").await?;
    assert_eq!(broken.expect(400)?["reason"], "BadRequest");
    Ok(())
}
