//! Behind kube-apiserver all users share a connection: what one of them does must not reach the others.
//!
//! `DRYDOCK_REFUSALS` sets how many requests are refused beside a watch; `make refusals` sends 100,000.

mod full_store;
mod strangers;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::abuse::{Abuser, Honest, Volume, heavy};
use drydock_tests::calls::Caller;
use drydock_tests::clients::Protocol;
use drydock_tests::cluster::pki::Validity;
use drydock_tests::environment::number;
use http::Method;
use serde_json::json;
use tokio::time::timeout;

use crate::stage::{ROOT, Stage, eviction_request, interceptor, requests_of, together};

/// Groups of a user with very many.
const GROUPS: usize = 1500;

/// Binds users to all rights on our kinds.
async fn grant(stage: &Stage, name: &str, users: &[&str]) -> Result<()> {
    let subjects: Vec<_> = users
        .iter()
        .map(|user| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }))
        .collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name },
            "rules": [{
                "apiGroups": ["coordination.k8s.io"], "verbs": ["*"],
                "resources": ["evictioninterceptors", "evictionrequests", "nodemaintenances"],
            }],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
            "subjects": subjects,
        },
    ] });
    stage.kubectl().apply(&list.to_string()).await?;
    Ok(())
}

/// A user who works, and one who abuses, both with all rights on our kinds and through kube-apiserver.
async fn users(stage: &Stage, name: &'static str) -> Result<(Honest, Abuser)> {
    let users = ["alice", "mallory"].map(|user| format!("{name}-{user}"));
    let [alice, mallory] = &users;
    grant(stage, name, &[alice, mallory]).await?;
    let client = |name: &str| {
        let authority = &stage.control_plane().pki().cluster;
        let credential = authority.client(name, None, Validity::Current)?;
        stage.control_plane().raw_client(Some(&credential))
    };
    let collection = format!("{ROOT}/evictioninterceptors");
    let honest = Honest::new(Caller::new(client(alice)?), collection.clone(), move |round| {
        interceptor(&format!("{name}-{round}.example.com"), "abuse")
    });
    let abuser = Abuser::new(client(mallory)?.speaking(Protocol::Http2), collection);
    Ok((honest, abuser))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_cannot_end_the_watches_of_others() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let (honest, mallory) = users(&stage, "abuse").await?;
    let volume = Volume {
        cancelled: 3000,
        refused: 3000,
        watches: 500,
        drops: 20,
        targets: 20,
        selectors: 20,
        heavy: 3,
    };
    let fared = Box::pin(honest.work_during(mallory.abuse(volume))).await?;
    eprintln!("{fared:?}");
    ensure!(fared.slowest < Duration::from_secs(10), "{fared:?}");
    Ok(())
}

/// HTTP/2 libraries count streams that were refused, some for as long as a connection lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_without_end_end_no_watch_of_others() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let (honest, mallory) = users(&stage, "refusals").await?;
    let volume = Volume {
        refused: number("DRYDOCK_REFUSALS", 2000)?,
        ..Volume::default()
    };
    let fared = Box::pin(honest.work_during(mallory.abuse(volume))).await?;
    eprintln!("{} refusals: {fared:?}", volume.refused);
    ensure!(fared.slowest < Duration::from_secs(10), "{fared:?}");
    Ok(())
}

/// Requests that once cost a server hundreds of megabytes or many seconds, through kube-apiserver and at our port: every response
/// is small and comes in time, and the server keeps its memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_once_cost_much_costs_little_on_both_roads() -> Result<()> {
    /// The largest response, with 100 causes.
    const RESPONSE_BYTES: usize = 128 * 1024;
    const TIME: Duration = Duration::from_secs(20);
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("abuse-heavy").await?;
    let host = stage.host()?;
    let uid = "00000000-0000-4000-ab05-00000000beef";
    let existing = eviction_request(&namespace, "missing", uid);
    host.post(&requests_of(&namespace), &existing)
        .await?
        .expect(201)?;
    let admin = &stage.control_plane().pki().admin;
    let direct = stage.direct_as(Some(admin), Protocol::Http2)?;
    for (road, caller) in [("kube-apiserver", &host), ("our port", &direct)] {
        for call in heavy::calls(&namespace, uid) {
            // kube-apiserver forwards paths of our groups alone.
            if !call.path.starts_with("/apis/") {
                continue;
            }
            let what = format!("{} {:.80} through {road}", call.method, call.path);
            let body = String::from_utf8(call.body.to_vec())?;
            let media_type = call.content_type.unwrap_or("application/json");
            let sent = caller.call(call.method.clone(), &call.path, media_type, body);
            let response = timeout(TIME, sent).await.with_context(|| what.clone())??;
            ensure!(response.status < 500, "{what}: {:.300}", response.text());
            let length = response.text().len();
            ensure!(length <= RESPONSE_BYTES, "{what}: {length} bytes");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_user_with_very_many_groups_reads_and_watches() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let admin = stage
            .control_plane()
            .raw_client(Some(&stage.control_plane().pki().admin))?;
        let mut caller = Caller::new(admin.speaking(protocol)).with_header("Impersonate-User", "many")?;
        for number in 0..GROUPS {
            caller = caller.with_header("Impersonate-Group", &format!("groups-of-a-directory:{number}"))?;
        }
        let caller = caller.with_header("Impersonate-Group", "system:masters")?;
        let path = format!("{ROOT}/evictioninterceptors");
        caller.get(&path).await?.expect(200)?;

        // kube-apiserver sends an upgrade on a connection of its own, over HTTP/1.1.
        let upgrade = caller
            .with_header("Upgrade", "websocket")?
            .with_header("Connection", "Upgrade")?;
        if protocol == Protocol::Http1 {
            // A list is not upgraded: our server refuses it, and has read every line before.
            let response = upgrade.call(Method::GET, &path, "", "").await?;
            ensure!(response.status == 400, "{}: {}", response.status, response.text());
            ensure!(
                response.text().contains("protocol upgrades are not supported"),
                "{}",
                response.text()
            );
        }
    }
    Ok(())
}
