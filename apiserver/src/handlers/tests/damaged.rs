//! Objects whose stored value cannot be read, and requests before the caches are filled.

use std::sync::atomic::{AtomicBool, Ordering};

use drydock_storage::rocks::RocksStore;
use drydock_storage::seal::{Seal, SealError, Sealed, Unsealed};
use drydock_storage::{Key, Options};

use super::*;
use crate::host::{AccessVerdict, Attributes};
use crate::request::options::UNSAFE_DELETE;

fn key(n: usize) -> Key {
    Key::new(
        "coordination.k8s.io",
        REQUESTS.kind.plural,
        "shop",
        &(REQUESTS.name)(n),
    )
    .unwrap()
}

fn unsafe_delete(n: usize) -> String {
    format!("DELETE {}?{UNSAFE_DELETE}=true", REQUESTS.item(n))
}

/// Everything about request 1, which cannot be read; 0 and 2 can.
async fn check_set_apart<S: Store>(served: &Served<S>) {
    let (item, collection) = (REQUESTS.item(1), REQUESTS.path);
    let change = json!({"spec": (REQUESTS.change)()}).to_string();
    let patch = [("content-type", "application/merge-patch+json")];
    let body = REQUESTS.object(1).to_string();
    let json = [("content-type", "application/json")];
    let named = format!("the stored data of {} is damaged", key(1));
    let damaged = (500, "StorageReadError", named.as_str());
    for line in [
        format!("GET {item}"),
        format!("GET {item}?resourceVersion=0"),
        format!("GET {collection}"),
        format!("GET {collection}?limit=1"),
        format!("GET {collection}?resourceVersion=0"),
        format!("GET {collection}?labelSelector=n%3D0"),
        format!(
            "GET {collection}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        ),
        format!("DELETE {item}"),
        format!("DELETE {collection}"),
    ] {
        served.refused(&line, &[], "", damaged).await;
    }
    served
        .refused(&format!("PATCH {item}"), &patch, &change, damaged)
        .await;
    served
        .refused(&format!("POST {collection}"), &json, &body, damaged)
        .await;

    assert_eq!(
        served.get(&REQUESTS.item(0)).await.json(200).await["metadata"]["name"],
        (REQUESTS.name)(0)
    );
    let by_name = format!(
        "{collection}?fieldSelector=metadata.name%3D{}",
        (REQUESTS.name)(2)
    );
    assert_eq!(
        at(&served.get(&by_name).await.json(200).await, "/items")
            .as_array()
            .unwrap()
            .len(),
        1
    );
    served
        .send(
            &format!("PATCH {}", REQUESTS.item(0)),
            &json!({"metadata": {"labels": {"x": "y"}}}),
        )
        .await
        .json(200)
        .await;
}

/// It needs a right of its own. Answers of the host are remembered, so nothing else is asked of this server.
async fn check_right<S: Store>(served: &Served<S>) {
    served.host.decide_by(|review| {
        let Attributes::Resource(asked) = &review.attributes else {
            panic!("{review:?}")
        };
        Ok(
            if asked.verb == "unsafe-delete-ignore-read-errors" && asked.name == (REQUESTS.name)(1) {
                assert_eq!(
                    (&*asked.group, &*asked.version),
                    ("coordination.k8s.io", "v1alpha3")
                );
                assert_eq!(
                    (&*asked.resource, &*asked.namespace),
                    (REQUESTS.kind.plural, "shop")
                );
                AccessVerdict::NoOpinion("no rule".to_owned())
            } else {
                AccessVerdict::Allowed(String::new())
            },
        )
    });
    let why = "is forbidden: not permitted to do \"unsafe-delete-ignore-read-errors\", reason: no rule";
    served
        .refused(&unsafe_delete(1), &[], "", (403, "Forbidden", why))
        .await;
}

async fn check_unsafe_delete<S: Store>(served: &Served<S>) {
    served
        .refused(
            &unsafe_delete(0),
            &[],
            "",
            (
                422,
                "Invalid",
                "is exclusively used to delete corrupt object(s), try again by removing this option",
            ),
        )
        .await;
    served
        .refused(&unsafe_delete(9), &[], "", (404, "NotFound", "not found"))
        .await;
    served
        .refused(
            &format!("{}&dryRun=All", unsafe_delete(1)),
            &[],
            "",
            (422, "Invalid", "cannot be set together with .dryRun"),
        )
        .await;
    let all = format!("DELETE {}?{UNSAFE_DELETE}=true", REQUESTS.path);
    served
        .refused(
            &all,
            &[],
            "",
            (422, "Invalid", "is not allowed with DELETECOLLECTION"),
        )
        .await;

    let body = json!({UNSAFE_DELETE: true});
    let gone = served
        .send(&format!("DELETE {}", REQUESTS.item(1)), &body)
        .await
        .json(200)
        .await;
    assert_eq!(
        (&gone["status"], at(&gone, "/details/name")),
        (&json!("Success"), &json!((REQUESTS.name)(1)))
    );
    served
        .refused(&unsafe_delete(1), &[], "", (404, "NotFound", "not found"))
        .await;
    let list = served.get(REQUESTS.path).await.json(200).await;
    assert_eq!(at(&list, "/items").as_array().unwrap().len(), 2);
    served.create(&REQUESTS, 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_is_set_apart_and_removed_by_the_unsafe_delete() {
    let store = MemoryStore::new();
    let writer = Served::over(store.clone());
    writer.ready().await;
    for n in 0..3 {
        writer.create(&REQUESTS, n).await;
    }
    store.damage(&key(1));
    check_right(&Served::over(store.clone())).await;
    let served = Served::over(store);
    served.ready().await;
    check_set_apart(&served).await;
    check_unsafe_delete(&served).await;
}

/// Turns a bit of what comes from the disk for one object, while it is told to.
#[derive(Default)]
struct Flipping(AtomicBool);

impl Seal for Flipping {
    fn seal(&self, key: &str, plain: Vec<u8>) -> Result<Sealed, SealError> {
        Unsealed.seal(key, plain)
    }

    fn open(&self, key: &str, key_id: &str, mut sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
        if self.0.load(Ordering::Relaxed)
            && key.ends_with(&(REQUESTS.name)(1))
            && let Some(last) = sealed.last_mut()
        {
            *last ^= 1;
        }
        Unsealed.open(key, key_id, sealed)
    }
}

/// One flipped bit answered every request for the resource with 429, and the server was never ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_on_disk_costs_one_object_and_not_its_resource() {
    let folder = tempfile::TempDir::new().unwrap();
    let seal = Arc::new(Flipping::default());
    let options = || Options {
        seal: Arc::clone(&seal) as _,
        ..Options::for_tests(folder.path())
    };
    let (store, _) = RocksStore::open(options()).unwrap();
    let served = Served::over(store.clone());
    served.ready().await;
    for n in 0..3 {
        served.create(&REQUESTS, n).await;
    }
    drop(served);
    store.close(Duration::from_secs(10)).await.unwrap();
    drop(store);

    seal.0.store(true, Ordering::Relaxed);
    let (store, opened) = RocksStore::open(options()).unwrap();
    seal.0.store(false, Ordering::Relaxed);
    assert_eq!(opened.damaged, [key(1).to_string()]);
    let served = Served::over(store.clone());
    served.ready().await;
    check_set_apart(&served).await;
    check_unsafe_delete(&served).await;
    drop(served);
    store.close(Duration::from_secs(10)).await.unwrap();
    drop(store);
    let (_, opened) = RocksStore::open(options()).unwrap();
    assert!(opened.damaged.is_empty());
}

/// As with kube-apiserver: what costs the store little is answered, everything else is to be asked again.
#[tokio::test(start_paused = true)]
async fn before_the_caches_are_filled_objects_and_limited_lists_are_served() {
    let store = MemoryStore::new();
    let writer = Served::over(store.clone());
    writer.ready().await;
    for n in 0..3 {
        writer.create(&REQUESTS, n).await;
    }
    // Nothing has been awaited since, so no feeder has run.
    let served = Served::over(store);
    let collection = REQUESTS.path;
    for refused in [
        format!("GET {collection}"),
        format!("GET {collection}?resourceVersion=0"),
        format!("GET {collection}?limit=2&labelSelector=n%3D0"),
        format!("GET {collection}?watch=true"),
    ] {
        let served = Served::over(served.store.clone());
        served
            .refused(
                &refused,
                &[],
                "",
                (429, "TooManyRequests", "storage is (re)initializing"),
            )
            .await;
    }
    let item = served.get(&REQUESTS.item(0)).await.json(200).await;
    assert_eq!(*at(&item, "/metadata/name"), (REQUESTS.name)(0));
    let served = Served::over(served.store.clone());
    let list = served.get(&format!("{collection}?limit=2")).await.json(200).await;
    assert_eq!(at(&list, "/items").as_array().unwrap().len(), 2);
    let token = at(&list, "/metadata/continue").as_str().unwrap();
    served.ready().await;
    let rest = served
        .get(&format!("{collection}?limit=2&continue={token}"))
        .await
        .json(200)
        .await;
    assert_eq!(at(&rest, "/items").as_array().unwrap().len(), 1);
    assert_eq!(revision(&rest), revision(&list));
}
