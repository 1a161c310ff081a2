//! Objects of up to 1.5 MiB are accepted, to the byte.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::Protocol;
use drydock_tests::conformance::version;
use drydock_tests::objects::{eviction_request, requests_of};
use drydock_tests::standalone::shared;
use serde_json::{Value, json};
use tokio::time::timeout;

/// The largest payload that is stored.
const LIMIT: usize = 3 << 19;
const NAMESPACE: &str = "large";

fn collection() -> String {
    requests_of(NAMESPACE)
}

/// A request whose size grows with `filling`.
fn request(number: u8, filling: usize) -> Value {
    let uid = format!("1a59e000-0000-4000-8000-0000000000{number:02x}");
    let mut request = eviction_request(NAMESPACE, "pod", &uid);
    request["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "Node", "uid": uid, "name": "n".repeat(filling) }]);
    request
}

/// The stored size of an object: all but its resourceVersion.
fn stored_bytes(object: &Value) -> Result<usize> {
    let mut object = object.clone();
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    metadata.context("metadata")?.remove("resourceVersion");
    Ok(object.to_string().len())
}

fn path_of(object: &Value) -> Result<String> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    Ok(format!("{}/{}", collection(), name.context("a name")?))
}

#[tokio::test]
async fn objects_up_to_the_limit_are_served_and_larger_ones_are_413() -> Result<()> {
    let standalone = shared().await?;
    for (number, protocol) in [(0x10, Protocol::Http1), (0x20, Protocol::Http2)] {
        eprintln!("{protocol:?}");
        let caller = standalone.caller(protocol)?;
        let namespace = json!({ "metadata": { "name": NAMESPACE } });
        caller.post("/api/v1/namespaces", &namespace).await?;
        let small = caller
            .post(&collection(), &request(number, 1))
            .await?
            .expect(201)?;
        let room = LIMIT - stored_bytes(&small)? + 1;
        let from = version(&small)?;
        let mut watch = caller
            .watch(&format!("{}?watch=true&resourceVersion={from}", collection()))
            .await?;

        let too_large = caller.post(&collection(), &request(number + 1, room + 1)).await?;
        let status = too_large.expect(413)?;
        ensure!(status["reason"] == "RequestEntityTooLarge", "{status}");
        let largest = caller
            .post(&collection(), &request(number + 1, room))
            .await?
            .expect(201)?;
        assert_eq!(stored_bytes(&largest)?, LIMIT);

        let path = path_of(&largest)?;
        assert_eq!(caller.get(&path).await?.expect(200)?, largest);
        let event = watch.event().await?;
        assert_eq!((&event["type"], &event["object"]), (&json!("ADDED"), &largest));
        let list = caller.get(&collection()).await?.expect(200)?;
        let items = list["items"].as_array().context("items")?;
        ensure!(items.contains(&largest) && items.contains(&small));

        // An update beyond the limit fails and changes nothing.
        let mut larger = largest.clone();
        larger["metadata"]["ownerReferences"][0]["name"] = json!("n".repeat(room + 1));
        caller.put(&path, &larger).await?.expect(413)?;
        assert_eq!(caller.get(&path).await?.expect(200)?, largest);
        caller.delete(&path).await?.expect(200)?;
        let event = timeout(Duration::from_secs(30), watch.event()).await??;
        assert_eq!(event["type"], "DELETED");
        assert_eq!(event["object"]["metadata"]["uid"], largest["metadata"]["uid"]);
        caller.delete(&path_of(&small)?).await?.expect(200)?;
    }
    Ok(())
}
