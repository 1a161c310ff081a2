//! kube-apiserver presents a client certificate to the eviction bridge, as docs/neighbours.md says, on a control plane of its own.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, Response};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::pki::{Authority, Validity};
use drydock_tests::cluster::{Component, ControlPlane, Drydock, Lifetime, Options, Part, Process, shared};
use serde_json::json;

use crate::bridge::{BRIDGED, REQUESTER, pod, webhook};
use crate::plugin_page::{blocks, repository};
use crate::stage::{PATIENCE, requests_of};

/// The folder of the page, which is another one here.
const FOLDER: &str = "/etc/kubernetes/drydock";
const SERVICE: &str = "drydock-controller.drydock-system.svc";
const ADMISSION: &str = "admission.yaml";
const USERS: &str = "webhooks.kubeconfig";

/// The files that the page describes, in a folder of this test.
struct Files {
    folder: tempfile::TempDir,
    page: String,
}

impl Files {
    /// The configuration, which names no user yet, and the certificates.
    fn new() -> Result<Self> {
        let page =
            std::fs::read_to_string(repository()?.join("docs/neighbours.md")).context("read the page")?;
        let folder = tempfile::tempdir().context("a folder")?;
        let files = Self { folder, page };
        let authority = Authority::new("webhook-clients")?;
        let client = authority.client("kube-apiserver", None, Validity::Current)?;
        for (name, text) in [
            (ADMISSION, files.of_page(ADMISSION)?),
            (USERS, "apiVersion: v1\nkind: Config\n".to_owned()),
            ("client.crt", client.certificate),
            ("client.key", client.key),
            ("client-ca.crt", authority.certificate()),
        ] {
            files.write(name, &text)?;
        }
        Ok(files)
    }

    /// The file of this name among the YAML blocks of the page, which begin with a comment that names them.
    fn of_page(&self, name: &str) -> Result<String> {
        let head = format!("# {name}");
        let mut named = blocks(&self.page, "yaml").into_iter();
        let file = named.find(|block| block.lines().next() == Some(&head));
        let folder = self.folder.path().display().to_string();
        Ok(file
            .with_context(|| format!("{name} in the page"))?
            .replace(FOLDER, &folder))
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        std::fs::write(self.folder.path().join(name), text).with_context(|| format!("write {name}"))
    }
}

/// A namespace whose evictions the bridge must review, with an intercepted pod.
async fn prepare(cluster: &ControlPlane, port: u16) -> Result<()> {
    let mut webhook = webhook(cluster, port, BRIDGED)?;
    // So that an answer that fails is seen.
    webhook["items"][1]["webhooks"][0]["failurePolicy"] = json!("Fail");
    let kubectl = cluster.admin();
    kubectl.apply(&webhook.to_string()).await?;
    kubectl.ok(&["create", "namespace", "guarded"]).await?;
    kubectl
        .ok(&["label", "namespace", "guarded", &format!("{BRIDGED}=yes")])
        .await?;
    eventually("the namespace to take pods", PATIENCE, async || {
        let manifest = pod("guarded", "web", None, true).to_string();
        kubectl.apply(&manifest).await.map(|_| Some(()))
    })
    .await
}

fn admin(cluster: &ControlPlane) -> Result<Caller> {
    Ok(Caller::new(cluster.raw_client(Some(&cluster.pki().admin))?))
}

async fn evict(cluster: &ControlPlane) -> Result<Response> {
    let eviction = json!({ "metadata": { "name": "web" } });
    let path = "/api/v1/namespaces/guarded/pods/web/eviction";
    admin(cluster)?.post(path, &eviction).await
}

/// Waits until an eviction is answered so.
async fn is_answered(cluster: &ControlPlane, status: u16, words: &str) -> Result<()> {
    eventually(&format!("the answer {status}"), PATIENCE, async || {
        let answer = evict(cluster).await?;
        ensure!(
            answer.status == status && answer.text().contains(words),
            "{} {}",
            answer.status,
            answer.text()
        );
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn kube_apiserver_presents_a_client_certificate_as_the_page_says() -> Result<()> {
    if shared().await?.is_none() {
        return Ok(());
    }
    let files = Files::new()?;
    let cluster = ControlPlane::start(Options {
        apiserver_flags: vec![format!(
            "--admission-control-config-file={}",
            files.path(ADMISSION)
        )],
        ..Options::default()
    })
    .await?;
    let drydock = Drydock::start(&cluster).await?;
    drydock.stop_part(Part::Controller).await?;
    let mut command = drydock.command_of(Part::Controller);
    command
        .args(["--eviction-bridge-client-ca-file", &files.path("client-ca.crt")])
        .arg("--eviction-bridge-client-names=kube-apiserver");
    let folder = files.folder.path();
    let _controller = Process::spawn(command, "with-a-client-authority", folder, Lifetime::WithParent)?;
    let port = drydock.controller_address().port();
    prepare(&cluster, port).await?;
    is_answered(&cluster, 500, "asked for the client to provide credentials").await?;

    // The port is not 443 here, so kube-apiserver looks for the name with the port.
    let users = files.of_page(USERS)?;
    ensure!(users.contains(SERVICE), "{users}");
    files.write(USERS, &users.replace(SERVICE, &format!("{SERVICE}:{port}")))?;
    cluster.kill_component(Component::ApiServer);
    cluster.start_component(Component::ApiServer).await?;
    drydock.available().await?;
    is_answered(&cluster, 429, "Eviction triggered evacuation").await?;
    let requests = admin(&cluster)?.get(&requests_of("guarded")).await?.expect(200)?;
    assert_eq!(
        requests["items"][0]["spec"]["requesters"],
        json!([{ "name": REQUESTER }])
    );
    Ok(())
}
