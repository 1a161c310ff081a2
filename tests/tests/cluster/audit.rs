//! The audit log of the server against that of kube-apiserver: the same requests, to our kind and to a custom resource of the
//! same schema, have the same events under the same policy.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{APPLY_PATCH, Caller, JSON_PATCH, MERGE_PATCH};
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::{AUDITED_GROUP, AUDITED_RULES, Server};

use drydock_tests::cluster::pki::{Credential, Validity};
use http::Method;
use serde_json::{Value, json};

use crate::oracle::{self, GROUP};
use crate::stage::{PATIENCE, Stage, together};

const OURS: &str = "coordination.k8s.io";
const PLURAL: &str = "evictioninterceptors";
/// Only requests of this agent are compared: it runs through `userAgent` of every event.
const AGENT: &str = "audit-comparison/1.0";
/// The requests, in the terms of both servers.
const REQUESTS: [(&str, &str, &str, &str); 16] = [
    (
        "POST",
        "",
        "application/json",
        r#"{"apiVersion":"{group}/v1alpha3","kind":"EvictionInterceptor","metadata":{"name":"{name}"},"spec":SPEC}"#,
    ),
    (
        "POST",
        "?dryRun=All",
        "application/json",
        r#"{"apiVersion":"{group}/v1alpha3","kind":"EvictionInterceptor","metadata":{"name":"{name}"},"spec":SPEC}"#,
    ),
    (
        "POST",
        "",
        "application/json",
        r#"{"apiVersion":"{group}/v1alpha3","kind":"EvictionInterceptor","metadata":{"name":"{name}","labels":{"-":"-"}},"spec":SPEC}"#,
    ),
    ("POST", "", "application/json", "{"),
    ("GET", "/{name}", "", ""),
    ("GET", "?limit=1&fieldSelector=metadata.name={name}", "", ""),
    ("GET", "/{name}-absent", "", ""),
    (
        "PUT",
        "/{name}",
        "application/json",
        r#"{"apiVersion":"{group}/v1alpha3","kind":"EvictionInterceptor","metadata":{"name":"{name}","uid":"{uid}","resourceVersion":"{resourceVersion}","labels":{"a":"b"}},"spec":SPEC}"#,
    ),
    (
        "PUT",
        "/{name}",
        "application/json",
        r#"{"apiVersion":"{group}/v1alpha3","kind":"EvictionInterceptor","metadata":{"name":"{name}","resourceVersion":"1"},"spec":SPEC}"#,
    ),
    (
        "PATCH",
        "/{name}",
        MERGE_PATCH,
        r#"{ "metadata": { "labels": { "a": "c" } } }"#,
    ),
    (
        "PATCH",
        "/{name}",
        JSON_PATCH,
        r#"[{"op":"remove","path":"/metadata/labels"}]"#,
    ),
    (
        "PATCH",
        "/{name}?fieldManager=m&force=true",
        APPLY_PATCH,
        "apiVersion: {group}/v1alpha3\nkind: EvictionInterceptor\nmetadata: {name: \"{name}\", labels: {d: e}}\n",
    ),
    (
        "PATCH",
        "/{name}/status",
        MERGE_PATCH,
        r#"{"metadata":{"labels":{"x":"y"}}}"#,
    ),
    (
        "DELETE",
        "/{name}",
        "application/json",
        r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#,
    ),
    ("DELETE", "/{name}", "", ""),
    ("DELETE", "?fieldSelector=metadata.name={name}", "", ""),
];

/// The event that older hosts lose: that of the apply, since they cannot write a body in YAML.
const LOST: (&str, [&str; 2]) = ("\"NAME-11\" \"ResponseComplete\"", ["1.32", "1.34"]);

/// Where events of the two servers differ, and why.
const DEVIATIONS: [(&str, &str); 2] = [
    (
        "/requestObject/apiVersion",
        "options of a delete: kube-apiserver writes the name of an internal version, `meta.k8s.io/__internal`",
    ),
    (
        "/responseObject/metadata/continue",
        "a list of custom resources has an empty token, one of compiled-in kinds none",
    ),
];

/// Where events of older hosts differ too: they write the creation time of an object that has none, as null.
const OLDER: (&str, &str) = ("/requestObject/metadata/creationTimestamp", "1.32");

/// A server, and the events of its audit log.
struct Side<'a> {
    group: &'static str,
    name: &'static str,
    caller: Caller,
    log: &'a Path,
}

impl Side<'_> {
    /// Sends every request, then a watch, and returns their events without what may differ.
    async fn run(&self) -> Result<Vec<Value>> {
        let mut last = Value::Null;
        for (number, (method, suffix, media_type, body)) in REQUESTS.into_iter().enumerate() {
            let path = format!("/apis/{}/v1alpha3/{PLURAL}{suffix}", self.group);
            let caller = self
                .caller
                .clone()
                .with_header("audit-id", &format!("{}-{number}", self.name))?;
            let response = caller
                .call(
                    Method::from_bytes(method.as_bytes())?,
                    &self.fill(&path, &last),
                    media_type,
                    self.fill(body, &last),
                )
                .await?;
            if let Ok(object) = response.json()
                && object["metadata"]["uid"].is_string()
            {
                last = object;
            }
        }
        let path = format!("/apis/{}/v1alpha3/{PLURAL}?watch=1&timeoutSeconds=1", self.group);
        let caller = self
            .caller
            .clone()
            .with_header("audit-id", &format!("{}-watch", self.name))?;
        let mut watch = caller.watch(&path).await?;
        while watch.next().await?.is_some() {}
        let last_id = format!("{}-watch", self.name);
        let what = format!("the events of {}", self.group);
        let events = eventually(&what, PATIENCE, async || {
            let events = self.events()?;
            let is_complete =
                |event: &Value| event["auditID"] == *last_id && event["stage"] == "ResponseComplete";
            Ok(events.iter().any(is_complete).then_some(events))
        })
        .await?;
        events.iter().map(|event| self.neutral(event)).collect()
    }

    fn fill(&self, text: &str, last: &Value) -> String {
        let metadata = &last["metadata"];
        text.replace("{group}", self.group)
            .replace(
                "SPEC",
                r#"{"interceptorName":"{name}","matchConditions":[{"name":"first","expression":"true"}]}"#,
            )
            .replace("{name}", self.name)
            .replace("{uid}", metadata["uid"].as_str().unwrap_or("none"))
            .replace(
                "{resourceVersion}",
                metadata["resourceVersion"].as_str().unwrap_or("0"),
            )
    }

    /// The events of the requests of this test.
    fn events(&self) -> Result<Vec<Value>> {
        let log = std::fs::read_to_string(self.log).with_context(|| self.log.display().to_string())?;
        // The last line may be incomplete.
        let events = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let prefix = format!("{}-", self.name);
        Ok(events
            .filter(|event| event["userAgent"] == AGENT)
            .filter(|event| {
                event["auditID"]
                    .as_str()
                    .is_some_and(|id| id.starts_with(&prefix))
            })
            .collect())
    }

    /// An event without times, addresses, UIDs, versions and the name of the group.
    fn neutral(&self, event: &Value) -> Result<Value> {
        let mut text = event
            .to_string()
            .replace(self.group, "GROUP")
            .replace(self.name, "NAME");
        for uid in uids(event) {
            text = text.replace(&uid, "UID");
        }
        let mut event: Value = serde_json::from_str(&text)?;
        blank(&mut event);
        if let Some(annotations) = event.get("annotations")
            && annotations.as_object().is_some_and(serde_json::Map::is_empty)
        {
            event["annotations"].take();
        }
        Ok(event)
    }
}

fn uids(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        match value {
            Value::Object(members) => {
                found.extend(members.get("uid").and_then(Value::as_str).map(str::to_owned));
                rest.extend(members.values());
            }
            Value::Array(items) => rest.extend(items),
            _ => {}
        }
    }
    found.remove("none");
    found
}

/// Replaces times, versions and identities that each server chooses.
fn blank(value: &mut Value) {
    match value {
        Value::Object(members) => {
            // Times of parts of a request, if it was slow.
            members.retain(|name, _| !name.starts_with("apiserver.latency.k8s.io/"));
            for (name, value) in members {
                let is_chosen = [
                    "requestReceivedTimestamp",
                    "stageTimestamp",
                    "creationTimestamp",
                    "resourceVersion",
                    "sourceIPs",
                ];
                if is_chosen.contains(&name.as_str()) {
                    *value = json!(format!("<{name}>"));
                } else {
                    blank(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blank),
        _ => {}
    }
}

fn differences(path: &str, ours: &Value, others: &Value, lines: &mut Vec<String>) {
    match (ours, others) {
        (Value::Object(own), Value::Object(other)) => {
            for name in own.keys().chain(other.keys()).collect::<BTreeSet<_>>() {
                let of =
                    |members: &serde_json::Map<String, Value>| members.get(name).cloned().unwrap_or_default();
                differences(&format!("{path}/{name}"), &of(own), &of(other), lines);
            }
        }
        _ if ours == others => {}
        _ => lines.push(format!(
            "{path}\n    ours:           {ours}\n    kube-apiserver: {others}"
        )),
    }
}

/// A server of ours with an audit log.
async fn audited(stage: &Stage, name: &str) -> Result<(Server<'static>, std::path::PathBuf)> {
    let folder = stage.control_plane().folder();
    let rules = format!(r#"{AUDITED_RULES}{{"level":"None"}}"#);
    let policy = format!(r#"{{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{rules}]}}"#);
    let policy = folder.write(&format!("{name}-policy.json"), policy)?;
    let log = folder.path().join(format!("{name}-log/audit.log"));
    let flags = [
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
    ];
    let server = Server::start_with(stage.drydock, name, &[&flags[0], &flags[1]]).await?;
    Ok((server, log))
}

/// A user whose requests both servers log, with rights on both kinds except on one object.
async fn auditor(stage: &Stage) -> Result<Credential> {
    let rules = json!([{ "apiGroups": [OURS, GROUP], "resources": [PLURAL, format!("{PLURAL}/status")], "verbs": ["*"] }]);
    let (role, binding) = (
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "auditor" },
            "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "auditor" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "auditor" },
            "subjects": [{ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "auditor" }],
        }),
    );
    stage.kubectl().apply(&role.to_string()).await?;
    stage.kubectl().apply(&binding.to_string()).await?;
    stage
        .control_plane()
        .pki()
        .cluster
        .client("auditor", Some(AUDITED_GROUP), Validity::Current)
}

#[tokio::test]
async fn events_are_those_of_kube_apiserver_for_the_same_requests() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let (server, log) = audited(&stage, "audited").await?;
    oracle::install_interceptors(&stage).await?;
    let user = auditor(&stage).await?;
    let ours = Side {
        group: OURS,
        name: "ours.audit.example.com",
        caller: Caller::new(server.raw_client(Some(&user), Protocol::Http2)?)
            .with_header("user-agent", AGENT)?,
        log: &log,
    };
    let host_log = stage.control_plane().audit_log();
    let theirs = Side {
        group: GROUP,
        name: "them.audit.example.com",
        caller: stage.host_as(Some(&user))?.with_header("user-agent", AGENT)?,
        log: &host_log,
    };
    let (mut ours, theirs) = tokio::try_join!(ours.run(), theirs.run())?;
    let key = |event: &Value| format!("{} {}", event["auditID"], event["stage"]);
    let (lost, releases) = LOST;
    if releases.contains(&stage.control_plane().options().minor_release()) {
        ensure!(!theirs.iter().any(|event| key(event) == lost), "not lost: {lost}");
        ours.retain(|event| key(event) != lost);
    }
    let keys = |events: &[Value]| events.iter().map(key).collect::<Vec<_>>();
    ensure!(
        keys(&ours) == keys(&theirs),
        "ours: {:#?}\nkube-apiserver: {:#?}",
        keys(&ours),
        keys(&theirs)
    );
    let (mut failures, mut deviations) = (Vec::new(), BTreeSet::new());
    for (own, other) in ours.iter().zip(&theirs) {
        let mut lines = Vec::new();
        differences("", own, other, &mut lines);
        let (path, release) = OLDER;
        if stage.control_plane().options().minor_release() == release {
            lines.retain(|line| !line.starts_with(path));
        }
        lines.retain(|line| {
            let known = DEVIATIONS.iter().find(|(path, _)| line.starts_with(path));
            deviations.extend(known.map(|(path, _)| *path));
            known.is_none()
        });
        if !lines.is_empty() {
            failures.push(format!(
                "{} {}\n  {}",
                key(own),
                own["requestURI"],
                lines.join("\n  ")
            ));
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    ensure!(
        deviations.len() == DEVIATIONS.len(),
        "only these differ: {deviations:?}"
    );
    server.stop().await?;
    Ok(())
}
