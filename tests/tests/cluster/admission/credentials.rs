//! Webhooks that demand a client certificate. Our server and kube-apiserver have the same file of
//! `--admission-control-config-file`, on a control plane of their own, and behave alike.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drydock_tests::calls::Caller;
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::pki::{Authority, Validity};
use drydock_tests::cluster::{ControlPlane, Drydock, Options, shared};
use http::Method;
use serde_json::{Value, json};

use super::hooks::rules;
use super::reviewer::Reviewer;
use super::{LABEL, call, collection, object};
use crate::oracle::side::{Call, Outcome, Side};
use crate::oracle::subject::Subject;
use crate::oracle::{GROUP, OURS, crd};
use crate::stage::{PATIENCE, text};

const NAMESPACE: &str = "default";
/// The kinds of configurations, and the plugin of each.
const KINDS: [(&str, &str); 2] = [
    ("ValidatingWebhookConfiguration", "ValidatingAdmissionWebhook"),
    ("MutatingWebhookConfiguration", "MutatingAdmissionWebhook"),
];

/// A webhook, by what the API servers have for it.
struct Hook {
    name: &'static str,
    /// The certificate in the file: none, one that the webhook accepts, or one of another authority.
    shown: Shown,
    failure_policy: &'static str,
    /// What creates are answered.
    status: u16,
    /// What the message of a refusal ends with.
    reason: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum Shown {
    Nothing,
    Accepted,
    Foreign,
}

const HOOKS: [Hook; 4] = [
    Hook {
        name: "nothing",
        shown: Shown::Nothing,
        failure_policy: "Fail",
        status: 500,
        reason: ": remote error: tls: certificate required",
    },
    Hook {
        name: "nothing-open",
        shown: Shown::Nothing,
        failure_policy: "Ignore",
        status: 201,
        reason: "",
    },
    Hook {
        name: "foreign",
        shown: Shown::Foreign,
        failure_policy: "Fail",
        status: 500,
        reason: ": remote error: tls: unknown certificate authority",
    },
    Hook {
        name: "accepted",
        shown: Shown::Accepted,
        failure_policy: "Fail",
        status: 201,
        reason: "",
    },
];

/// The label of the objects that a webhook is for.
fn case(kind: &str, hook: &Hook) -> String {
    format!("{}-{}", hook.name, kind.to_lowercase())
}

/// Writes the file with both plugins, and a kubeconfig with a user for each webhook that gets a certificate.
fn write(folder: &Path, users: &[Value]) -> Result<String> {
    let kubeconfig = folder.join("webhooks.kubeconfig");
    let plugins = KINDS.map(|(_, plugin)| {
        json!({ "name": plugin, "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": kubeconfig,
        } })
    });
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins,
    });
    let users = json!({ "apiVersion": "v1", "kind": "Config", "users": users });
    let path = folder.join("admission.json");
    for (path, content) in [(&kubeconfig, users), (&path, configuration)] {
        std::fs::write(path, content.to_string()).with_context(|| path.display().to_string())?;
    }
    Ok(format!("--admission-control-config-file={}", path.display()))
}

async fn install(cluster: &ControlPlane, reviewers: &[Reviewer]) -> Result<()> {
    for (kind, _) in KINDS {
        let webhooks = HOOKS.iter().zip(reviewers).map(|(hook, reviewer)| {
            json!({
                "name": format!("{}.example.com", case(kind, hook)),
                "clientConfig": reviewer.client_config("allow"),
                "rules": rules("*", &json!(["CREATE"])),
                "objectSelector": { "matchLabels": { LABEL: case(kind, hook) } },
                "failurePolicy": hook.failure_policy,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            })
        });
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": "credentials" },
            "webhooks": webhooks.collect::<Vec<_>>(),
        });
        cluster.admin().apply(&configuration.to_string()).await?;
    }
    Ok(())
}

/// A create that a webhook reviews, and that stores nothing.
fn create(kind: &str, hook: &Hook) -> Call {
    let path = format!("{}?dryRun=All", collection(NAMESPACE));
    let object = object(NAMESPACE, Some(&case(kind, hook)), 1);
    call(Method::POST, path, "application/json", &object)
}

/// Creates until the answer has the status of the webhook: before the first one its configuration may not be in force.
async fn answered(side: &mut Side, kind: &str, hook: &Hook) -> Result<Outcome> {
    let side = tokio::sync::Mutex::new(side);
    eventually(&format!("{} answers", case(kind, hook)), PATIENCE, async || {
        let outcome = side.lock().await.send(&create(kind, hook)).await?;
        ensure!(outcome.status == hook.status, "{outcome:?}");
        if hook.status != 201 {
            let message = text(&outcome.body["message"])?;
            ensure!(message.ends_with(hook.reason), "{message}");
        }
        Ok(Some(outcome))
    })
    .await
}

#[tokio::test]
async fn a_webhook_gets_the_client_certificate_that_is_configured_for_it() -> Result<()> {
    if shared().await?.is_none() {
        return Ok(());
    }
    let (clients, others) = (Authority::new("webhook-clients")?, Authority::new("others")?);
    let (mut reviewers, mut users) = (Vec::new(), Vec::new());
    for hook in &HOOKS {
        let reviewer = Reviewer::start_for_clients_of(&clients).await?;
        let issuer = match hook.shown {
            Shown::Nothing => None,
            Shown::Accepted => Some(&clients),
            Shown::Foreign => Some(&others),
        };
        if let Some(issuer) = issuer {
            let shown = issuer.client("api-server", None, Validity::Current)?;
            users.push(json!({ "name": reviewer.address.to_string(), "user": {
                "client-certificate-data": STANDARD.encode(shown.certificate),
                "client-key-data": STANDARD.encode(shown.key),
            } }));
        }
        reviewers.push(reviewer);
    }
    let folder = tempfile::tempdir().context("a folder")?;
    let flag = write(folder.path(), &users)?;
    let cluster = ControlPlane::start(Options {
        apiserver_flags: vec![flag.clone()],
        server_flags: vec![flag],
        ..Options::default()
    })
    .await?;
    let drydock = Drydock::start(&cluster).await?;
    let admin = Some(&cluster.pki().admin);
    let host = Caller::new(cluster.raw_client(admin)?);
    let subject = Subject::Request;
    let server = Caller::new(drydock.raw_client(admin, Protocol::Http2)?);
    crd::install(&server, &host, subject).await?;
    install(&cluster, &reviewers).await?;

    let (mut ours, mut oracle) = (Side::new(host.clone(), OURS), Side::new(host, GROUP));
    for (kind, _) in KINDS {
        for (hook, reviewer) in HOOKS.iter().zip(&reviewers) {
            let mut outcomes = Vec::new();
            for side in [&mut ours, &mut oracle] {
                outcomes.push(answered(side, kind, hook).await?);
                let seen = reviewer.taken("allow").len();
                let expected = usize::from(hook.shown == Shown::Accepted);
                ensure!(seen == expected, "{}: {seen} reviews", case(kind, hook));
            }
            let [ours, oracle] = outcomes.as_slice() else {
                anyhow::bail!("two outcomes");
            };
            ensure!(
                hook.status == 201 || ours == oracle,
                "{}",
                ours.differences(oracle)
            );
        }
    }
    Ok(())
}
