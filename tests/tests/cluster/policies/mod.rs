//! Admission policies apply to our kinds as to others: the same policies, for a kind of ours and for custom resources with its
//! schema, give the same responses.

mod mutating;
mod validating;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::{ControlPlane, Drydock, Options};
use http::Method;
use serde_json::{Value, json};

use crate::oracle::side::{Call, Outcome, Side};
use crate::oracle::subject::Subject;
use crate::oracle::{GROUP, OURS, crd};
use crate::stage::together;

/// The namespace that all bindings select.
const NAMESPACE: &str = "policies";
/// The prefix of the UIDs of this file.
const UIDS: &str = "4a700000-0000-4000-8000";
/// The label by which the binding of a policy selects objects.
const LABEL: &str = "policies.drydock.test/policy";
/// The deadline until both servers apply a policy.
const PATIENCE: Duration = Duration::from_mins(2);

/// Policies that hosts of some releases reject, since their CEL is older, with the functions that they do not know. This server
/// would run them.
const UNKNOWN_TO: [(&str, &[&str]); 4] = [
    // lists.range
    ("cost.outcomes.test", &["1.32", "1.34"]),
    // semver
    ("semver.libraries.test", &["1.32"]),
    // loops with two variables
    ("two-variables.libraries.test", &["1.32"]),
    // variables of a MutatingAdmissionPolicy in a JSON patch
    ("conditional.patch.test", &["1.32"]),
];

/// Whether hosts of a release accept a policy.
fn is_known_to(release: &str, policy: &str) -> bool {
    let mut unknown = UNKNOWN_TO.iter().filter(|(name, _)| *name == policy);
    !unknown.any(|(_, releases)| releases.contains(&release))
}

/// A policy with its binding, and what is sent to both servers.
struct Row {
    /// The policy has this name, and objects its label.
    name: &'static str,
    /// Members of the spec of the policy.
    policy: Value,
    /// Members of the spec of the binding.
    binding: Value,
    /// Changes of the base object, each created as a dry run.
    objects: Vec<Value>,
}

/// The kinds of policy.
#[derive(Clone, Copy)]
enum Kind {
    Validating,
    Mutating,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Validating => "ValidatingAdmissionPolicy",
            Self::Mutating => "MutatingAdmissionPolicy",
        }
    }

    const fn plural(self) -> &'static str {
        match self {
            Self::Validating => "validatingadmissionpolic",
            Self::Mutating => "mutatingadmissionpolic",
        }
    }
}

/// Policies of a kind at a host, in a version that it serves.
struct Policies {
    host: Caller,
    kind: Kind,
    version: &'static str,
}

impl Policies {
    /// The policies in the newest version that the host serves; `None` if it serves none.
    async fn at(host: Caller, kind: Kind) -> Result<Option<Self>> {
        for version in ["v1", "v1beta1", "v1alpha1"] {
            let policies = Self {
                host: host.clone(),
                kind,
                version,
            };
            let response = host.get(&policies.path("ies")).await?;
            match response.status {
                200 => return Ok(Some(policies)),
                404 => {}
                _ => anyhow::bail!("{}", response.text()),
            }
        }
        Ok(None)
    }

    fn path(&self, what: &str) -> String {
        let (version, plural) = (self.version, self.kind.plural());
        format!("/apis/admissionregistration.k8s.io/{version}/{plural}{what}")
    }

    fn api_version(&self) -> String {
        format!("admissionregistration.k8s.io/{}", self.version)
    }

    /// Creates a policy for both groups, bound to objects of our namespace with its label.
    async fn create(&self, row: &Row) -> Result<()> {
        let rule = json!({
            "apiGroups": [OURS, GROUP], "apiVersions": ["*"], "operations": ["*"], "resources": ["evictionrequests"],
        });
        let mut policy = json!({
            "apiVersion": self.api_version(),
            "kind": self.kind.name(),
            "metadata": { "name": row.name },
            "spec": { "failurePolicy": "Fail", "matchConstraints": {
                "resourceRules": [rule], "objectSelector": { "matchLabels": { LABEL: row.name } },
            } },
        });
        merge(&mut policy["spec"], &row.policy);
        let mut binding = json!({
            "apiVersion": self.api_version(),
            "kind": format!("{}Binding", self.kind.name()),
            "metadata": { "name": format!("{}-binding", row.name) },
            "spec": {
                "policyName": row.name,
                "matchResources": {
                    "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": NAMESPACE } },
                    "objectSelector": { "matchLabels": { LABEL: row.name } },
                },
            },
        });
        merge(&mut binding["spec"], &row.binding);
        for (path, object) in [(self.path("ies"), policy), (self.path("ybindings"), binding)] {
            let created = self.host.post(&path, &object).await?;
            created.expect(201).with_context(|| row.name)?;
        }
        Ok(())
    }

    async fn remove(&self, rows: &[Row]) -> Result<()> {
        for row in rows {
            for path in [
                format!("{}/{}-binding", self.path("ybindings"), row.name),
                format!("{}/{}", self.path("ies"), row.name),
            ] {
                self.host.call(Method::DELETE, &path, "", String::new()).await?;
            }
        }
        Ok(())
    }
}

fn merge(target: &mut Value, change: &Value) {
    match (target, change) {
        (Value::Object(members), Value::Object(changes)) => {
            for (name, change) in changes {
                merge(members.entry(name).or_insert(Value::Null), change);
            }
        }
        (target, change) => target.clone_from(change),
    }
}

/// Both servers.
struct Pair {
    ours: Side,
    oracle: Side,
}

impl Pair {
    /// Our server, and kube-apiserver with the custom resource.
    async fn new(server: Caller, host: Caller) -> Result<Self> {
        let namespace = json!({ "metadata": { "name": NAMESPACE, "labels": { "environment": "staging" } } });
        host.post("/api/v1/namespaces", &namespace).await?;
        crd::install(&server, &host, Subject::Request).await?;
        let agent = |caller: Caller| caller.with_header("user-agent", "policies/1.0");
        Ok(Self {
            ours: Side::new(agent(server)?, OURS),
            oracle: Side::new(agent(host)?, GROUP),
        })
    }

    async fn send(&mut self, call: &Call) -> Result<(Outcome, Outcome)> {
        self.ours.forget();
        self.oracle.forget();
        tokio::try_join!(self.ours.send(call), self.oracle.send(call))
    }
}

/// The create of an object as a dry run.
fn dry_run(name: &str, change: &Value) -> Call {
    let uid = format!("{UIDS}-000000000001");
    let mut object = json!({
        "apiVersion": "{group}/v1alpha3",
        "kind": "EvictionRequest",
        "metadata": { "name": uid, "namespace": NAMESPACE, "labels": { LABEL: name } },
        "spec": {
            "target": { "pod": { "name": "pod", "uid": uid } },
            "requesters": [{ "name": "first.example.com" }],
        },
    });
    merge(&mut object, change);
    Call {
        method: Method::POST,
        path: format!("/apis/{{group}}/v1alpha3/namespaces/{NAMESPACE}/evictionrequests?dryRun=All"),
        media_type: "application/json".to_owned(),
        accept: String::new(),
        body: object.to_string(),
    }
}

/// Waits until both servers apply the last policy, and know the objects that it and those before it read.
async fn applied(pair: &mut Pair, sentinel: &str, is_applied: impl Fn(&Outcome) -> bool) -> Result<()> {
    let call = dry_run(sentinel, &json!({}));
    for side in [&mut pair.ours, &mut pair.oracle] {
        let mut outcome = side.send(&call).await?;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !is_applied(&outcome) {
            ensure!(tokio::time::Instant::now() < deadline, "{sentinel}: {outcome:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
            outcome = side.send(&call).await?;
        }
    }
    Ok(())
}

async fn compare(pair: &mut Pair, rows: &[Row]) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for row in rows {
        for (index, object) in row.objects.iter().enumerate() {
            let (ours, oracle) = pair.send(&dry_run(row.name, object)).await?;
            if ours != oracle {
                failures.push(format!("{} {index}\n{}", row.name, ours.differences(&oracle)));
            }
        }
    }
    Ok(failures)
}

/// The objects that policies read, and the right to read them.
async fn create_params(host: &Caller) -> Result<()> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": "policies-test-params",
            "labels": { "drydock.dev/aggregate-to-policy-params": "true" },
        },
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"] }],
    });
    let response = host
        .post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role)
        .await?;
    ensure!([201, 409].contains(&response.status), "{}", response.text());
    for (name, tier, data) in [
        ("limits", "one", json!({ "max": "300", "labels": "owner,team" })),
        ("other-limits", "two", json!({ "max": "100" })),
        ("third-limits", "two", json!({ "max": "50" })),
    ] {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "tier": tier } },
            "data": data,
        });
        let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
        let response = host.post(&path, &object).await?;
        ensure!([201, 409].contains(&response.status), "{}", response.text());
    }
    Ok(())
}

/// Sends the objects of all rows to both servers.
async fn compared(
    server: Caller,
    policies: &Policies,
    rows: Vec<Row>,
    is_applied: impl Fn(&Outcome) -> bool,
) -> Result<()> {
    let mut pair = Pair::new(server, policies.host.clone()).await?;
    create_params(&policies.host).await?;
    let mut failures = Vec::new();
    let options = Options::default();
    let release = options.minor_release();
    let (rows, unknown): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| is_known_to(release, row.name));
    for row in &unknown {
        let error = policies.create(row).await.err().map(|error| format!("{error:#}"));
        let is_refused = error
            .as_ref()
            .is_some_and(|error| error.contains("compilation failed"));
        ensure!(is_refused, "{}: {release} accepts it: {error:?}", row.name);
    }
    for row in &rows {
        if let Err(error) = policies.create(row).await {
            failures.push(format!("{error:#}"));
        }
    }
    let sentinel = rows.last().context("rows")?.name;
    applied(&mut pair, sentinel, is_applied).await?;
    failures.extend(compare(&mut pair, &rows).await?);
    policies.remove(&rows).await?;
    let count: usize = rows.iter().map(|row| row.objects.len()).sum();
    ensure!(
        failures.is_empty(),
        "{} of {count} requests:\n{}",
        failures.len(),
        failures.join("\n")
    );
    Ok(())
}

#[tokio::test]
async fn validating_policies_give_the_same_responses_as_for_custom_resources() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let policies = Policies::at(stage.host()?, Kind::Validating).await?;
    let policies = policies.context("every host serves validating policies")?;
    let server = stage.unmanaged(Protocol::Http2).await?;
    let is_applied = |outcome: &Outcome| {
        let message = outcome.body["message"].as_str();
        message.is_some_and(|message| message.ends_with(validating::IN_FORCE))
    };
    Box::pin(compared(server, &policies, validating::rows(), is_applied)).await
}

#[tokio::test]
async fn mutating_policies_give_the_same_responses_as_for_custom_resources() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let is_applied = |outcome: &Outcome| outcome.body["metadata"]["labels"]["last"] == "yes";
    if let Some(policies) = Policies::at(stage.host()?, Kind::Mutating).await? {
        let server = stage.unmanaged(Protocol::Http2).await?;
        return Box::pin(compared(server, &policies, mutating::rows(), is_applied)).await;
    }
    // A host before 1.36 serves them only behind a feature gate. Without it the server is ready all the same.
    let server = stage.direct_as(None, Protocol::Http1)?;
    let ready = server.get("/readyz?verbose").await?;
    ensure!(
        ready.status == 200 && ready.text().contains("[+]informer-sync ok"),
        "{}",
        ready.text()
    );
    drop(stage);
    let control_plane = ControlPlane::start(Options {
        apiserver_flags: vec![
            "--feature-gates=MutatingAdmissionPolicy=true".to_owned(),
            "--runtime-config=admissionregistration.k8s.io/v1beta1=true,admissionregistration.k8s.io/v1alpha1=true"
                .to_owned(),
        ],
        ..Options::default()
    })
    .await?;
    let drydock = Drydock::start(&control_plane).await?;
    let admin = Some(&control_plane.pki().admin);
    let policies = Policies::at(Caller::new(control_plane.raw_client(admin)?), Kind::Mutating).await?;
    let policies = policies.context("the host serves mutating policies with its feature gate")?;
    let server = Caller::new(drydock.raw_client(admin, Protocol::Http2)?);
    Box::pin(compared(server, &policies, mutating::rows(), is_applied)).await
}

/// A policy that the host accepts and this server cannot compile is not skipped, and named.
#[tokio::test]
async fn a_policy_that_cannot_be_compiled_is_refused_and_reported() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let host = stage.host()?;
    let policies = Policies::at(host.clone(), Kind::Validating).await?;
    let policies = policies.context("every host serves validating policies")?;
    let mut pair = Pair::new(stage.unmanaged(Protocol::Http2).await?, host.clone()).await?;
    let long = format!("'{}' != object.metadata.name", "x".repeat(17_000));
    let row = Row {
        name: "not-compiled.policies.drydock.test",
        policy: json!({ "validations": [{ "expression": long }] }),
        binding: json!({ "validationActions": ["Deny"] }),
        objects: vec![json!({})],
    };
    policies.create(&row).await?;
    let call = dry_run(row.name, &json!({}));
    eventually("the policy refuses", PATIENCE, async || {
        let outcome = pair.ours.send(&call).await?;
        Ok((outcome.status == 422).then_some(()))
    })
    .await?;
    let outcome = pair.ours.send(&call).await?;
    ensure!(
        outcome.body["message"]
            .as_str()
            .is_some_and(|message| message.ends_with("is too complex: more than 16384 bytes")),
        "{outcome:?}"
    );
    eventually("an event names it", PATIENCE, async || {
        let path = "/apis/events.k8s.io/v1/namespaces/default/events";
        let events = host.get(path).await?.expect(200)?;
        let mut events = events["items"].as_array().into_iter().flatten();
        let is_named =
            |event: &Value| event["regarding"]["name"] == row.name && event["reason"] == "PolicyNotCompiled";
        Ok(events.any(is_named).then_some(()))
    })
    .await?;
    policies.remove(&[row]).await
}
