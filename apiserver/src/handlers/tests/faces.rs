//! A kind in two versions: objects written in one version are read, listed, watched and owned in both.

use drydock_storage::{Key, Outcome, Transaction};

use super::*;
use crate::fixtures::foo;
use crate::registry::endpoint::Endpoint;

pub(super) const V1: Sample = Sample {
    version: "v1",
    ..Sample::new(
        &foo::REGISTRATION,
        "/apis/coordination.k8s.io/v1/namespaces/shop/foos",
    )
};

pub(super) const V1ALPHA1: Sample = Sample {
    version: "v1alpha1",
    path: "/apis/coordination.k8s.io/v1alpha1/namespaces/shop/foos",
    spec: |n| json!({"magnitude": n, "steps": ["second", "first"]}),
    change: || json!({"magnitude": 100}),
    ..V1
};

async fn served() -> Served {
    let served = Served::of_kinds(&[V1], MemoryStore::new());
    served.ready().await;
    served
}

async fn get(served: &Served, path: &str) -> Value {
    served.get(path).await.json(200).await
}

#[tokio::test]
async fn an_object_written_in_one_version_is_read_in_both() {
    let served = served().await;
    for sample in [V1, V1ALPHA1] {
        let n = if sample.version == "v1" { 1 } else { 2 };
        let created = served.create(&sample, n).await;
        assert_eq!(
            created["apiVersion"],
            format!("coordination.k8s.io/{}", sample.version)
        );
        assert_eq!(created["spec"], (sample.spec)(n));
        let (old, new) = (
            get(&served, &V1ALPHA1.item(n)).await,
            get(&served, &V1.item(n)).await,
        );
        assert_eq!(old["apiVersion"], "coordination.k8s.io/v1alpha1");
        assert_eq!(old["spec"], json!({"magnitude": n, "steps": ["second", "first"]}));
        assert_eq!(new["apiVersion"], "coordination.k8s.io/v1");
        assert_eq!(new["spec"], json!({"size": n, "steps": ["first", "second"]}));
        assert_eq!(old["metadata"], new["metadata"]);
    }
}

#[tokio::test]
async fn each_version_has_its_own_defaults_and_rejects_fields_of_the_other() {
    let served = served().await;
    for (sample, n, field, default) in [(V1, 1, "size", 1), (V1ALPHA1, 2, "magnitude", 5)] {
        let mut object = sample.object(n);
        object["spec"] = json!({});
        let created = served
            .send(&format!("POST {}", sample.path), &object)
            .await
            .json(201)
            .await;
        assert_eq!(created["spec"], json!({field: default}));
        let foreign = if field == "size" { "magnitude" } else { "size" };
        let mut object = sample.object(n + 2);
        object["spec"] = json!({foreign: 1});
        let message = format!("unknown field \"spec.{foreign}\"");
        let line = format!("POST {}?fieldValidation=Strict", sample.path);
        served
            .refused(&line, &[], &object.to_string(), (400, "BadRequest", &message))
            .await;
    }
}

#[tokio::test]
async fn lists_and_watches_of_both_versions_show_the_same_history() {
    let served = served().await;
    let first = revision(&served.create(&V1, 1).await);
    served.create(&V1ALPHA1, 2).await;
    let change = json!({"spec": {"magnitude": 7}});
    served
        .send(&format!("PATCH {}", V1ALPHA1.item(1)), &change)
        .await
        .json(200)
        .await;
    served
        .send(&format!("DELETE {}", V1.item(2)), &Value::Null)
        .await
        .json(200)
        .await;
    let lists = [get(&served, V1.path).await, get(&served, V1ALPHA1.path).await];
    assert_eq!(lists[0]["metadata"], lists[1]["metadata"]);
    assert_eq!(
        (names(&lists[0]), names(&lists[1])),
        (vec!["foo-1"], vec!["foo-1"])
    );
    assert_eq!(lists[0]["items"][0]["spec"]["size"], 7);
    assert_eq!(lists[1]["items"][0]["spec"]["magnitude"], 7);
    assert_eq!(lists[1]["apiVersion"], "coordination.k8s.io/v1alpha1");

    let mut histories = Vec::new();
    for (sample, field) in [(V1, "size"), (V1ALPHA1, "magnitude")] {
        let query = format!("watch=true&resourceVersion={first}&timeoutSeconds=60");
        let mut watch = served.get(&format!("{}?{query}", sample.path)).await;
        let mut history = Vec::new();
        for _ in 0..3 {
            let event = watch.event().await.unwrap();
            let object = &event["object"];
            assert_eq!(
                object["apiVersion"],
                format!("coordination.k8s.io/{}", sample.version)
            );
            history.push((
                event["type"].clone(),
                object["metadata"]["name"].clone(),
                revision(object),
                object["spec"][field].clone(),
            ));
        }
        histories.push(history);
    }
    assert_eq!(histories[0], histories[1]);
    let kinds: Vec<&Value> = histories[0].iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, ["ADDED", "MODIFIED", "DELETED"]);
}

#[tokio::test]
async fn tables_have_the_columns_of_their_version() {
    let served = served().await;
    served.create(&V1, 3).await;
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for (sample, column) in [(V1, "Size"), (V1ALPHA1, "Magnitude")] {
        for path in [sample.path.to_owned(), sample.item(3)] {
            let table = served
                .send_with(&format!("GET {path}"), &accept, "")
                .await
                .json(200)
                .await;
            assert_eq!(table["columnDefinitions"][1]["name"], column);
            assert_eq!(table["rows"][0]["cells"], json!(["foo-3", 3]));
        }
        let line = format!(
            "GET {}?watch=true&resourceVersion=0&timeoutSeconds=60",
            sample.path
        );
        let mut watch = served.send_with(&line, &accept, "").await;
        let event = watch.event().await.unwrap();
        assert_eq!(event["object"]["columnDefinitions"][1]["name"], column);
    }
}

/// The managed fields of an object: manager, version, and fields of the spec.
fn owners(object: &Value) -> Vec<(String, String, Vec<String>)> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let text = |entry: &Value, member: &str| entry[member].as_str().unwrap().to_owned();
    let fields = |entry: &Value| match entry["fieldsV1"]["f:spec"].as_object() {
        Some(fields) => fields.keys().filter(|field| *field != ".").cloned().collect(),
        None => Vec::new(),
    };
    entries
        .iter()
        .map(|entry| (text(entry, "manager"), text(entry, "apiVersion"), fields(entry)))
        .collect()
}

#[tokio::test]
async fn managed_fields_have_the_version_of_the_writer_and_change_owner_across_versions() {
    let served = served().await;
    let line = format!("POST {}?fieldManager=first", V1ALPHA1.path);
    let created = served.send(&line, &V1ALPHA1.object(1)).await.json(201).await;
    let entry = |manager: &str, version: &str, fields: &[&str]| {
        let fields = fields.iter().map(|field| format!("f:{field}")).collect();
        (
            manager.to_owned(),
            format!("coordination.k8s.io/{version}"),
            fields,
        )
    };
    assert_eq!(
        owners(&created),
        [entry("first", "v1alpha1", &["magnitude", "steps"])]
    );

    // The second manager becomes the owner of the size through the other version.
    let line = format!("PATCH {}?fieldManager=second", V1.item(1));
    served
        .send(&line, &json!({"spec": {"size": 9}}))
        .await
        .json(200)
        .await;
    let line = format!("PATCH {}?fieldManager=third", V1ALPHA1.item(1));
    let labels = json!({"metadata": {"labels": {"third": "yes"}}});
    served.send(&line, &labels).await.json(200).await;
    for path in [V1.item(1), V1ALPHA1.item(1)] {
        let mut found = owners(&get(&served, &path).await);
        found.sort();
        assert_eq!(
            found,
            [
                entry("first", "v1alpha1", &["steps"]),
                entry("second", "v1", &["size"]),
                entry("third", "v1alpha1", &[]),
            ]
        );
    }
}

#[tokio::test]
async fn status_is_converted_too() {
    let served = served().await;
    served.create(&V1, 1).await;
    let line = format!("PATCH {}/status", V1ALPHA1.item(1));
    let changed = served
        .send(&line, &json!({"status": {"state": "Ready"}}))
        .await
        .json(200)
        .await;
    assert_eq!(changed["status"], json!({"state": "Ready"}));
    assert_eq!(
        get(&served, &V1.item(1)).await["status"],
        json!({"phase": "Ready"})
    );
}

#[tokio::test]
async fn an_object_that_the_hub_cannot_represent_is_rejected() {
    let served = served().await;
    let mut object = V1ALPHA1.object(1);
    object["spec"]["magnitude"] = json!(1_001);
    let expected = (400, "BadRequest", "spec.magnitude: must be 1000 or less");
    let line = format!("POST {}", V1ALPHA1.path);
    served.refused(&line, &[], &object.to_string(), expected).await;
}

/// Stores an object in the given version, as an older or newer server would have.
async fn store_as(served: &Served, n: usize, form: &str, mut object: Value) {
    object["apiVersion"] = json!(form);
    object["metadata"] = json!({"name": (V1.name)(n), "namespace": "shop", "uid": format!("uid-{n}"),
        "labels": {"all": "yes"}});
    let stored = drydock_machinery::codec::encode_stored(&object).unwrap();
    let value = drydock_storage::Value {
        bytes: stored.bytes.into(),
        form: form.into(),
        splice_offset: u32::try_from(stored.resource_version_at).unwrap(),
    };
    let key = Key::new("coordination.k8s.io", "foos", "shop", &(V1.name)(n)).unwrap();
    let outcome = served
        .store
        .transact(Transaction::create(key, value))
        .await
        .unwrap();
    assert!(matches!(outcome, Outcome::Committed { .. }));
}

#[tokio::test]
async fn values_stored_in_another_served_version_are_converted_on_read_and_rewritten_on_write() {
    let served = served().await;
    store_as(&served, 1, "coordination.k8s.io/v1alpha1", V1ALPHA1.object(1)).await;
    let before = get(&served, &V1.item(1)).await;
    assert_eq!(before["spec"], (V1.spec)(1));
    assert_eq!(get(&served, V1.path).await["items"][0], before);
    assert_eq!(get(&served, &V1ALPHA1.item(1)).await["spec"], (V1ALPHA1.spec)(1));

    // An update without changes rewrites the object in the storage version.
    let written = served
        .send(&format!("PUT {}", V1.item(1)), &before)
        .await
        .json(200)
        .await;
    assert!(revision(&written) > revision(&before));
    assert_eq!(written["spec"], before["spec"]);
    let key = Key::new("coordination.k8s.io", "foos", "shop", &(V1.name)(1)).unwrap();
    let stored = served.store.get(&key).await.unwrap().entry.unwrap();
    assert_eq!(&*stored.value.form, "coordination.k8s.io/v1");
    let again = served
        .send(&format!("PUT {}", V1.item(1)), &written)
        .await
        .json(200)
        .await;
    assert_eq!(revision(&again), revision(&written));
}

#[tokio::test]
async fn a_value_in_a_version_that_is_not_served_fails_only_requests_for_it() {
    let served = served().await;
    served.create(&V1, 1).await;
    store_as(&served, 2, "coordination.k8s.io/v2", V1.object(2)).await;
    let error = served.get(&V1.item(2)).await.json(500).await;
    assert!(
        error["message"].as_str().unwrap().contains("cannot be decoded"),
        "{error}"
    );
    let change = json!({"spec": {"size": 2}}).to_string();
    let line = format!("PATCH {}", V1.item(2));
    let patch = [("content-type", "application/merge-patch+json")];
    served
        .refused(
            &line,
            &patch,
            &change,
            (500, "StorageReadError", "cannot be decoded"),
        )
        .await;
    assert_eq!(get(&served, &V1.item(1)).await["spec"], (V1.spec)(1));
}

#[test]
fn objects_of_either_version_survive_a_round_trip() {
    let resource = Arc::new(foo::REGISTRATION.resource(&Arc::default()).unwrap());
    let versions = ["v1", "v1alpha1"].map(|version| Endpoint::of(&resource, "foos", version).unwrap());
    for n in 0..20 {
        for (endpoint, sample) in versions.iter().zip([V1, V1ALPHA1]) {
            let mut object = sample.object(n);
            endpoint.conform(&mut object).unwrap();
            for other in &versions {
                let hub = endpoint.into_hub(object.clone(), None, noon()).unwrap();
                assert_eq!(hub["apiVersion"], "coordination.k8s.io/v1");
                let shown = other.from_hub(hub).unwrap();
                let back = endpoint
                    .from_hub(other.into_hub(shown, None, noon()).unwrap())
                    .unwrap();
                assert_eq!(back, object);
            }
        }
    }
}
