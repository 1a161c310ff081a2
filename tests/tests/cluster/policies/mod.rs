//! Admission policies apply to our kinds as to others: the same policies, for a kind of ours and for custom resources with its
//! schema, give the same responses.

mod mutating;
mod validating;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::{Protocol, eventually};
use http::Method;
use serde_json::{Value, json};

use crate::oracle::side::{Call, Outcome, Side};
use crate::oracle::{GROUP, OURS, crd};
use crate::stage::{Stage, together};

/// The namespace that all bindings select.
const NAMESPACE: &str = "policies";
/// The prefix of the UIDs of this file.
const UIDS: &str = "4a700000-0000-4000-8000";
/// The label by which the binding of a policy selects objects.
const LABEL: &str = "policies.drydock.test/policy";
/// The deadline until both servers apply a policy.
const PATIENCE: Duration = Duration::from_mins(2);

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

    fn path(self, what: &str) -> String {
        let plural = match self {
            Self::Validating => "validatingadmissionpolic",
            Self::Mutating => "mutatingadmissionpolic",
        };
        format!("/apis/admissionregistration.k8s.io/v1/{plural}{what}")
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

/// Creates a policy for both groups, bound to objects of our namespace with its label.
async fn create(host: &Caller, kind: Kind, row: &Row) -> Result<()> {
    let rule = json!({
        "apiGroups": [OURS, GROUP], "apiVersions": ["*"], "operations": ["*"], "resources": ["evictionrequests"],
    });
    let mut policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind.name(),
        "metadata": { "name": row.name },
        "spec": { "failurePolicy": "Fail", "matchConstraints": {
            "resourceRules": [rule], "objectSelector": { "matchLabels": { LABEL: row.name } },
        } },
    });
    merge(&mut policy["spec"], &row.policy);
    let mut binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": format!("{}Binding", kind.name()),
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
    host.post(&kind.path("ies"), &policy)
        .await?
        .expect(201)
        .with_context(|| row.name)?;
    host.post(&kind.path("ybindings"), &binding)
        .await?
        .expect(201)
        .with_context(|| row.name)?;
    Ok(())
}

async fn remove(host: &Caller, kind: Kind, rows: &[Row]) -> Result<()> {
    for row in rows {
        for path in [
            format!("{}/{}-binding", kind.path("ybindings"), row.name),
            format!("{}/{}", kind.path("ies"), row.name),
        ] {
            host.call(Method::DELETE, &path, "", String::new()).await?;
        }
    }
    Ok(())
}

/// Both servers.
struct Pair {
    ours: Side,
    oracle: Side,
}

impl Pair {
    async fn new(stage: &Stage) -> Result<Self> {
        let server = stage.unmanaged(Protocol::Http2).await?;
        let host = stage.host()?;
        let namespace = json!({ "metadata": { "name": NAMESPACE, "labels": { "environment": "staging" } } });
        host.post("/api/v1/namespaces", &namespace).await?;
        crd::install(&server, &host, "EvictionRequest", "evictionrequests", true).await?;
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

async fn compared(
    stage: &Stage,
    kind: Kind,
    rows: &[Row],
    is_applied: impl Fn(&Outcome) -> bool,
) -> Result<()> {
    let host = stage.host()?;
    let mut pair = Pair::new(stage).await?;
    create_params(&host).await?;
    let mut failures = Vec::new();
    for row in rows {
        if let Err(error) = create(&host, kind, row).await {
            failures.push(format!("{error:#}"));
        }
    }
    let sentinel = rows.last().context("rows")?.name;
    applied(&mut pair, sentinel, is_applied).await?;
    failures.extend(compare(&mut pair, rows).await?);
    remove(&host, kind, rows).await?;
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
    Box::pin(compared(
        &stage,
        Kind::Validating,
        &validating::rows(),
        |outcome| {
            let message = outcome.body["message"].as_str();
            message.is_some_and(|message| message.ends_with(validating::IN_FORCE))
        },
    ))
    .await
}

#[tokio::test]
async fn mutating_policies_give_the_same_responses_as_for_custom_resources() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    Box::pin(compared(&stage, Kind::Mutating, &mutating::rows(), |outcome| {
        outcome.body["metadata"]["labels"]["last"] == "yes"
    }))
    .await
}

/// A policy that the host accepts and this server cannot compile is not skipped, and named.
#[tokio::test]
async fn a_policy_that_cannot_be_compiled_is_refused_and_reported() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let host = stage.host()?;
    let mut pair = Pair::new(&stage).await?;
    let long = format!("'{}' != object.metadata.name", "x".repeat(17_000));
    let row = Row {
        name: "not-compiled.policies.drydock.test",
        policy: json!({ "validations": [{ "expression": long }] }),
        binding: json!({ "validationActions": ["Deny"] }),
        objects: vec![json!({})],
    };
    create(&host, Kind::Validating, &row).await?;
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
    remove(&host, Kind::Validating, &[row]).await
}
