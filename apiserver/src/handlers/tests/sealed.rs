//! Objects whose value is sealed: with a key that is replaced, missing, and back.

use drydock_storage::conformance::sealing::rules;
use drydock_storage::rocks::RocksStore;
use drydock_storage::seal::{SealMetrics, Sealer};
use drydock_storage::{Key, Options};

use super::*;
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

/// A store in a folder, and the server over it.
async fn served(folder: &std::path::Path, seal: &Arc<Sealer>) -> (RocksStore, Served<RocksStore>) {
    let options = Options {
        seal: Arc::<Sealer>::clone(seal) as _,
        ..Options::for_tests(folder)
    };
    let (store, _) = RocksStore::open(options).unwrap();
    let served = Served::over(store.clone());
    served.ready().await;
    (store, served)
}

async fn stop((store, served): (RocksStore, Served<RocksStore>)) {
    drop(served);
    store.close(Duration::from_mins(1)).await.unwrap();
}

/// Sends what is there, as `kubectl replace` does; returns the revision.
async fn put_again<S: Store>(served: &Served<S>, n: usize) -> u64 {
    let object = served.get(&REQUESTS.item(n)).await.json(200).await;
    let put = served.send(&format!("PUT {}", REQUESTS.item(n)), &object).await;
    revision(&put.json(200).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_changes_nothing_replaces_an_old_key() {
    let folder = tempfile::TempDir::new().unwrap();
    let seal = Arc::new(Sealer::new(
        rules(&[("old", 1)]),
        Arc::default(),
        SealMetrics::new("here"),
    ));
    let (store, served) = served(folder.path(), &seal).await;
    served.create(&REQUESTS, 0).await;
    let created = revision(&served.get(&REQUESTS.item(0)).await.json(200).await);
    assert_eq!(put_again(&served, 0).await, created);

    seal.replace(rules(&[("new", 2), ("old", 1)]));
    let dry = served.get(&REQUESTS.item(0)).await.json(200).await;
    let dry = served
        .send(&format!("PUT {}?dryRun=All", REQUESTS.item(0)), &dry)
        .await;
    assert_eq!(revision(&dry.json(200).await), created);
    let replaced = put_again(&served, 0).await;
    assert_ne!(replaced, created);
    // Once is enough.
    assert_eq!(put_again(&served, 0).await, replaced);

    seal.replace(rules(&[("new", 2)]));
    stop((store, served)).await;
    let (store, served) = self::served(folder.path(), &seal).await;
    let object = served.get(&REQUESTS.item(0)).await.json(200).await;
    assert_eq!(revision(&object), replaced);
    stop((store, served)).await;
}

/// None of three objects opens.
async fn check_nothing_opens<S: Store>(served: &Served<S>) {
    let (item, collection) = (REQUESTS.item(1), REQUESTS.path);
    let why = "no matching key was found for the provided AES transformer";
    let of_one = format!(
        "Internal error occurred: StorageError: corrupt object, Code: 7, Key: /{}, ResourceVersion: 0, \
         AdditionalErrorMsg: data from the storage is not transformable revision=0: {why}",
        key(1)
    );
    let one = (500, "InternalError", of_one.as_str());
    let all = "failed to read one or more evictionrequests.coordination.k8s.io from the storage";
    let list = (500, "StorageReadError", all);
    for (line, expected) in [
        (format!("GET {item}"), one),
        (format!("GET {item}?resourceVersion=0"), one),
        (format!("DELETE {item}"), one),
        (format!("GET {collection}"), list),
        (format!("GET {collection}?limit=1"), list),
        (format!("GET {collection}?resourceVersion=0"), list),
        (format!("DELETE {collection}"), list),
        (
            format!(
                "GET {collection}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
            ),
            list,
        ),
    ] {
        served.refused(&line, &[], "", expected).await;
    }
    let status = served.get(collection).await.json(500).await;
    let causes = at(&status, "/details/causes").as_array().unwrap();
    assert_eq!(causes.len(), 3);
    assert_eq!(causes[1]["field"], format!("/{}", key(1)));
    assert_eq!(causes[1]["reason"], "UnexpectedServerResponse");
    // What can be sealed can be written, and others are not affected.
    served.create(&REQUESTS, 3).await;
    served.get(&REQUESTS.item(3)).await.json(200).await;
    let body = REQUESTS.object(1).to_string();
    let json = [("content-type", "application/json")];
    served
        .refused(&format!("POST {collection}"), &json, &body, one)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_open_fails_and_comes_back_with_its_key() {
    let folder = tempfile::TempDir::new().unwrap();
    let seal = Arc::new(Sealer::new(
        rules(&[("old", 1)]),
        Arc::default(),
        SealMetrics::new("here"),
    ));
    let writer = served(folder.path(), &seal).await;
    for n in 0..3 {
        writer.1.create(&REQUESTS, n).await;
    }
    stop(writer).await;
    seal.replace(rules(&[("new", 2)]));
    let (store, served) = served(folder.path(), &seal).await;
    assert_eq!(store.unopened(), 3);

    check_nothing_opens(&served).await;
    // Given up by hand.
    let gone = format!("DELETE {}?{UNSAFE_DELETE}=true", REQUESTS.item(2));
    served.send(&gone, &Value::Null).await.json(200).await;
    served
        .refused(
            &format!("GET {}", REQUESTS.item(2)),
            &[],
            "",
            (404, "NotFound", "not found"),
        )
        .await;

    // The key is back: the store opens the values, and the cache notices.
    seal.replace(rules(&[("new", 2), ("old", 1)]));
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    loop {
        let response = served.get(REQUESTS.path).await;
        if response.code == 200 {
            let items = response.json(200).await;
            assert_eq!(at(&items, "/items").as_array().unwrap().len(), 3);
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "it does not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    served.get(&REQUESTS.item(1)).await.json(200).await;
    assert_eq!(store.unopened(), 0);
    stop((store, served)).await;
}
