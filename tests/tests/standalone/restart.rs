//! A killed server restarts with everything it acknowledged.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::conformance::{Endpoint, names, version};
use drydock_tests::standalone::Standalone;
use drydock_tests::websocket::{Frame, HANDSHAKE};
use futures_util::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use serde_json::json;

#[tokio::test]
async fn a_killed_server_restarts_with_its_state() -> Result<()> {
    let standalone = Standalone::start().await?;
    let api = Endpoint::in_default(standalone.caller(Protocol::Http2)?);
    let mut written = Vec::new();
    for name in ["a", "b", "c"] {
        written.push(api.create(name).await?);
    }
    let from = version(&written[0])?;
    standalone.kill();
    ensure!(api.caller.get("/readyz").await.is_err());
    standalone.start_again().await?;
    let list = api.caller.get(&api.own()).await?.expect(200)?;
    assert_eq!(names(&list), ["default-a", "default-b", "default-c"]);
    for (name, before) in ["a", "b", "c"].into_iter().zip(&written) {
        assert_eq!(&api.read(name).await?, before);
    }
    // A watch resumes from before the kill.
    let mut watch = api.watch(&format!("&resourceVersion={from}")).await?;
    for before in &written[1..] {
        assert_eq!(&watch.event().await?["object"], before);
    }
    let later = api
        .merge("a", &json!({ "spec": { "reason": "later" } }))
        .await?
        .expect(200)?;
    ensure!(version(&later)? > version(&written[2])?);
    assert_eq!(watch.event().await?["object"], later);

    let path = format!("{}&watch=true&resourceVersion={}", api.own(), version(&later)?);
    let socket = api.caller.websocket(&path, &HANDSHAKE).await?;
    let mut socket = socket.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;

    let status = standalone.stop().await?;
    ensure!(status.is_some_and(|status| status.success()), "{status:?}");
    assert_eq!(watch.next().await?, None, "the watch ends cleanly");
    assert_eq!(socket.next().await?, Frame::Close(1000));
    Ok(())
}

/// A client's cache of maintenances, filled by kube-rs.
async fn client_cache(standalone: &Standalone) -> Result<reflector::Store<DynamicObject>> {
    let kind = GroupVersionKind::gvk("coordination.k8s.io", "v1alpha3", "NodeMaintenance");
    let resource = ApiResource::from_gvk_with_plural(&kind, "nodemaintenances");
    let objects: Api<DynamicObject> = Api::all_with(standalone.client().await?, &resource);
    let writer = reflector::store::Writer::new(resource);
    let cache = writer.as_reader();
    let events = watcher(objects, watcher::Config::default()).default_backoff();
    tokio::spawn(reflector::reflector(writer, events).for_each(async |_| {}));
    Ok(cache)
}

/// The data folder was lost, and its server begins anew at the first revision. The revisions that clients know lie in the future,
/// and a watch from there would be silent until the store had counted up to them.
#[tokio::test(flavor = "multi_thread")]
async fn clients_recover_from_an_emptied_store() -> Result<()> {
    let standalone = Standalone::start().await?;
    let api = Endpoint::in_default(standalone.caller(Protocol::Http2)?);
    for number in 0..20 {
        api.create(&format!("lost-{number}")).await?;
    }
    let cache = client_cache(&standalone).await?;
    let names = |cache: &reflector::Store<DynamicObject>| -> Vec<_> {
        let objects = cache.state();
        objects
            .iter()
            .filter_map(|object| object.metadata.name.clone())
            .collect()
    };
    eventually("the cache to be filled", Duration::from_secs(30), async || {
        Ok((names(&cache).len() == 20).then_some(()))
    })
    .await?;
    standalone.stop().await?.context("it ran")?;
    for entry in std::fs::read_dir(standalone.data())? {
        let entry = entry?;
        match entry.file_name().to_string_lossy().as_ref() {
            // The client knows them.
            "certificates" => {}
            _ if entry.file_type()?.is_dir() => std::fs::remove_dir_all(entry.path())?,
            _ => std::fs::remove_file(entry.path())?,
        }
    }
    standalone.start_again().await?;
    let created = api.create("new").await?;
    ensure!(version(&created)? < 20, "{created}");
    eventually(
        "the cache to have the new state",
        Duration::from_mins(2),
        async || Ok((names(&cache) == [api.name("new")]).then_some(())),
    )
    .await
}
