//! Rules for every kind, so that no kind is served without its strategy, columns and schema.
//!
//! They run only where no controller acts on the objects, that is, not through kube-apiserver.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Endpoint, GROUP_VERSION, ROOT, names, version};
use crate::calls::MERGE_PATCH;

/// What the rules need to know of a kind.
struct Sample {
    kind: &'static str,
    plural: &'static str,
    /// The path of its objects.
    collection: String,
    name: String,
    spec: Value,
    /// A merge patch of the spec.
    change: Value,
}

impl Sample {
    fn object(&self) -> Value {
        json!({
            "apiVersion": GROUP_VERSION,
            "kind": self.kind,
            "metadata": { "name": self.name },
            "spec": self.spec,
        })
    }

    fn item(&self) -> String {
        format!("{}/{}", self.collection, self.name)
    }

    /// The path to list or watch the object.
    fn list(&self) -> String {
        format!("{}?fieldSelector=metadata.name%3D{}", self.collection, self.name)
    }
}

fn samples(api: &Endpoint) -> Vec<Sample> {
    let request = api.request();
    let interceptor = format!("{}.example.com", api.namespace);
    vec![
        Sample {
            kind: "EvictionRequest",
            plural: "evictionrequests",
            collection: api.requests(),
            name: request["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            spec: request["spec"].clone(),
            change: json!({ "requesters": [{ "name": "suite.example.com" }, { "name": "other.example.com" }] }),
        },
        Sample {
            kind: "NodeMaintenance",
            plural: "nodemaintenances",
            collection: api.maintenances(),
            name: api.name("a"),
            spec: api.maintenance("a")["spec"].clone(),
            change: json!({ "reason": "kernel" }),
        },
        Sample {
            kind: "EvictionInterceptor",
            plural: "evictioninterceptors",
            collection: format!("{ROOT}/evictioninterceptors"),
            spec: json!({ "interceptorName": interceptor }),
            name: interceptor,
            change: json!({ "priority": 5 }),
        },
    ]
}

/// A status that every kind takes.
fn status(type_: &str) -> Value {
    json!({ "conditions": [{
        "type": format!("example.com/{type_}"), "status": "True", "reason": "Test", "message": "",
        "lastTransitionTime": "2026-06-01T12:00:00Z",
    }] })
}

/// Create, update, status update, and delete.
pub async fn every_kind_is_served(api: &Endpoint) -> Result<()> {
    if api.through_host {
        return Ok(());
    }
    for sample in samples(api) {
        let item = sample.item();
        let mut wanted = sample.object();
        wanted["status"] = status("Created");
        let created = api.caller.post(&sample.collection, &wanted).await?.expect(201)?;
        assert_eq!(created["metadata"]["generation"], 1);
        assert_eq!(created.get("status"), None);
        assert_eq!(api.caller.get(&item).await?.expect(200)?, created);
        assert_eq!(api.caller.put(&item, &created).await?.expect(200)?, created);

        let patch = json!({ "spec": sample.change, "status": status("Changed") });
        let changed = api.caller.patch(&item, MERGE_PATCH, &patch).await?.expect(200)?;
        assert_eq!(changed["metadata"]["generation"], 2);
        assert_eq!(changed.get("status"), None);

        let patch = json!({ "metadata": { "finalizers": ["example.com/f"] }, "spec": null, "status": status("Reported") });
        let path = format!("{item}/status");
        let reported = api.caller.patch(&path, MERGE_PATCH, &patch).await?.expect(200)?;
        assert_eq!(reported["spec"], changed["spec"]);
        assert_eq!(reported["metadata"].get("finalizers"), None);
        assert_eq!(reported["metadata"]["generation"], 2);
        assert_eq!(
            reported["status"]["conditions"][0]["type"],
            "example.com/Reported"
        );
        assert_eq!(api.caller.get(&path).await?.expect(200)?, reported);
        for path in [&item, &path] {
            let status = api.caller.put(path, &created).await?.expect(409)?;
            assert_eq!(status["reason"], "Conflict");
        }

        let deleted = api.caller.delete(&item).await?.expect(200)?;
        let details = json!({
            "name": sample.name, "group": "coordination.k8s.io", "kind": sample.plural,
            "uid": created["metadata"]["uid"],
        });
        assert_eq!(deleted["details"], details);
        assert_eq!(api.caller.get(&item).await?.status, 404);
    }
    Ok(())
}

/// Lists, tables, metadata and watches.
pub async fn every_kind_has_every_representation(api: &Endpoint) -> Result<()> {
    if api.through_host {
        return Ok(());
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let initial =
        "&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let accepting = |media_type| api.caller.clone().with_header("accept", media_type);
    for sample in samples(api) {
        let created = api
            .caller
            .post(&sample.collection, &sample.object())
            .await?
            .expect(201)?;
        let list = api.caller.get(&sample.list()).await?.expect(200)?;
        assert_eq!(list["kind"], format!("{}List", sample.kind));
        assert_eq!(
            (names(&list), &list["items"][0]["kind"]),
            (vec![sample.name.clone()], &json!(sample.kind))
        );
        for path in [sample.item(), sample.list()] {
            let table = accepting(table)?.get(&path).await?.expect(200)?;
            let columns = table["columnDefinitions"].as_array().context("columns")?;
            for column in columns {
                let members = column.as_object().map(serde_json::Map::len);
                assert_eq!(members, Some(5), "{column}");
            }
            assert_eq!(
                table["rows"][0]["cells"].as_array().map(Vec::len),
                Some(columns.len())
            );
            assert_eq!(version(&table["rows"][0]["object"])?, version(&created)?);
        }
        let metadata = accepting(partial)?.get(&sample.list()).await?.expect(200)?;
        assert_eq!(metadata["items"][0]["metadata"], created["metadata"]);

        let mut watch = api.caller.watch(&format!("{}{initial}", sample.list())).await?;
        assert_eq!(
            watch.event().await?,
            json!({ "type": "ADDED", "object": created })
        );
        let bookmark = watch.event().await?;
        assert_eq!(
            (&bookmark["type"], &bookmark["object"]["kind"]),
            (&json!("BOOKMARK"), &json!(sample.kind))
        );
        ensure!(version(&bookmark["object"])? >= version(&created)?, "{bookmark}");
        api.caller.delete(&sample.item()).await?.expect(200)?;
        assert_eq!(watch.event().await?["type"], "DELETED");
    }
    Ok(())
}

/// Duplicate owner references are dropped; the garbage collector replaces them with a merge patch.
pub async fn owner_references_are_unique_and_can_be_patched(api: &Endpoint) -> Result<()> {
    if api.through_host {
        return Ok(());
    }
    for sample in samples(api) {
        let owner = |uid: &str| json!({ "apiVersion": "v1", "kind": "Pod", "name": uid, "uid": uid });
        let mut wanted = sample.object();
        wanted["metadata"]["ownerReferences"] = json!([owner("a"), owner("b"), owner("a")]);
        let created = api.caller.post(&sample.collection, &wanted).await?.expect(201)?;
        let metadata = &created["metadata"];
        assert_eq!(metadata["ownerReferences"], json!([owner("a"), owner("b")]));
        let patch = json!({ "metadata": {
            "resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"], "ownerReferences": [owner("b")],
        } });
        let patched = api.caller.patch(&sample.item(), MERGE_PATCH, &patch).await?;
        assert_eq!(
            patched.expect(200)?["metadata"]["ownerReferences"],
            json!([owner("b")])
        );
        let again = api.caller.patch(&sample.item(), MERGE_PATCH, &patch).await?;
        assert_eq!(again.expect(409)?["reason"], "Conflict");
        api.caller.delete(&sample.item()).await?.expect(200)?;
    }
    Ok(())
}
