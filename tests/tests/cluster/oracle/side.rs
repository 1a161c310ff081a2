//! One of the two servers that are compared: how it is called, and its responses without what may differ.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use drydock_tests::calls::{Caller, Response};
use http::Method;
use serde_json::{Value, json};

use super::{OURS, VERSION};

/// The headers that are compared.
const HEADERS: [&str; 4] = ["content-type", "cache-control", "warning", "retry-after"];

/// The length of a UID that a server chooses, in bytes.
const UID_LENGTH: usize = 36;

/// A request in the terms of both servers: `{group}` in the path, the body and the header values is replaced by the
/// server's group; `{uid}` and `{resourceVersion}` by those of the object that the server returned last.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) media_type: String,
    pub(crate) accept: String,
    pub(crate) body: String,
}

/// What is compared of a response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<&'static str, String>,
    pub(crate) body: Value,
}

impl Outcome {
    /// The JSON pointers at which two outcomes differ, with both values, a line each.
    pub(crate) fn differences(&self, other: &Self) -> String {
        let whole = |outcome: &Self| {
            json!({
                "status": outcome.status,
                "headers": outcome.headers,
                "body": outcome.body,
            })
        };
        let mut lines = Vec::new();
        differences("", &whole(self), &whole(other), &mut lines);
        lines.join("\n")
    }
}

fn differences(path: &str, ours: &Value, oracle: &Value, lines: &mut Vec<String>) {
    if ours == oracle {
        return;
    }
    match (ours, oracle) {
        (Value::Object(own), Value::Object(others)) => {
            let names: BTreeSet<_> = own.keys().chain(others.keys()).collect();
            for name in names {
                let path = format!("{path}/{name}");
                differences(
                    &path,
                    own.get(name).unwrap_or(&Value::Null),
                    others.get(name).unwrap_or(&Value::Null),
                    lines,
                );
            }
        }
        (Value::Array(own), Value::Array(others)) if own.len() == others.len() => {
            for (index, (own, other)) in own.iter().zip(others).enumerate() {
                differences(&format!("{path}/{index}"), own, other, lines);
            }
        }
        _ => lines.push(format!("  {path}\n    ours:   {ours}\n    oracle: {oracle}")),
    }
}

/// A server, and the UIDs and resourceVersions that it has returned so far.
pub(crate) struct Side {
    caller: Caller,
    group: &'static str,
    uids: Vec<String>,
    versions: Vec<String>,
    /// The object in the last successful response, as it was.
    pub(crate) last: Value,
}

impl Side {
    pub(crate) fn new(caller: Caller, group: &'static str) -> Self {
        Self {
            caller,
            group,
            uids: Vec::new(),
            versions: Vec::new(),
            last: Value::Null,
        }
    }

    /// Forgets the last object and the names of earlier ones.
    pub(crate) fn forget(&mut self) {
        self.uids.clear();
        self.versions.clear();
        self.last = Value::Null;
    }

    /// The group and version of the compared kinds.
    pub(crate) fn api_version(&self) -> String {
        format!("{}/{VERSION}", self.group)
    }

    pub(crate) async fn send(&mut self, call: &Call) -> Result<Outcome> {
        let caller = if call.accept.is_empty() {
            self.caller.clone()
        } else {
            let accept = self.fill(&call.accept);
            self.caller.clone().with_header("accept", &accept)?
        };
        let response = caller
            .call(
                call.method.clone(),
                &self.fill(&call.path),
                &call.media_type,
                self.fill(&call.body),
            )
            .await
            .with_context(|| format!("{call:?}"))?;
        Ok(self.outcome(&response))
    }

    fn fill(&self, text: &str) -> String {
        let metadata = &self.last["metadata"];
        text.replace("{group}", self.group)
            .replace("{uid}", metadata["uid"].as_str().unwrap_or("none"))
            .replace(
                "{resourceVersion}",
                metadata["resourceVersion"].as_str().unwrap_or("0"),
            )
    }

    fn outcome(&mut self, response: &Response) -> Outcome {
        let headers = HEADERS
            .into_iter()
            .map(|name| (name, response.header(name).replace(self.group, "GROUP")))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let text = response.text();
        // The same document may be quoted in another way.
        let is_yaml = response.header("content-type") == "application/yaml";
        let yaml = is_yaml.then(|| serde_saphyr::from_str(&text).ok()).flatten();
        let body = yaml
            .or_else(|| response.json().ok())
            .unwrap_or_else(|| json!(text));
        if response.status < 300 && body["metadata"]["uid"].is_string() {
            if self.group != OURS {
                self.pass_over_unchanged_write(&body);
            }
            self.last = body.clone();
        }
        self.note_identities(&body);
        let mut body = body;
        self.normalize("", &mut body);
        Outcome {
            status: response.status,
            headers,
            body,
        }
    }

    /// Gives the new resourceVersion of an object that is otherwise as before the number of the old one.
    ///
    /// A custom resource whose last label or annotation an apply removed is stored with `null` in its place. No response shows
    /// it, but the next write that changes nothing removes it and so makes a revision. A typed object has nothing to remove.
    fn pass_over_unchanged_write(&mut self, body: &Value) {
        const POINTER: &str = "/metadata/resourceVersion";
        let mut before = self.last.clone();
        let (Some(old), Some(new)) = (before.pointer_mut(POINTER), body.pointer(POINTER)) else {
            return;
        };
        let old = std::mem::replace(old, new.clone());
        if before == *body
            && let (Some(old), Some(new)) = (old.as_str(), new.as_str())
            && let Some(known) = self.versions.iter_mut().find(|it| *it == old)
        {
            new.clone_into(known);
        }
    }

    /// Numbers UIDs and resourceVersions in the order of their appearance, so that two servers that return the same
    /// object twice, or a changed one, look alike.
    fn note_identities(&mut self, body: &Value) {
        match body {
            Value::Object(members) => {
                for (name, value) in members {
                    let known = match name.as_str() {
                        "uid" => &mut self.uids,
                        "resourceVersion" => &mut self.versions,
                        _ => {
                            self.note_identities(value);
                            continue;
                        }
                    };
                    if let Some(text) = value.as_str()
                        && (name == "resourceVersion" || text.len() == UID_LENGTH)
                        && !known.iter().any(|it| it == text)
                    {
                        known.push(text.to_owned());
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.note_identities(item)),
            _ => {}
        }
    }

    fn normalize(&self, name: &str, value: &mut Value) {
        match value {
            Value::Object(members) => {
                for (name, value) in members.iter_mut() {
                    self.normalize(name, value);
                }
                if members.contains_key("items")
                    && let Some(metadata) = members.get_mut("metadata").and_then(Value::as_object_mut)
                {
                    // The revision of a whole store. A list of custom resources has an empty continue token.
                    metadata.remove("resourceVersion");
                    metadata.retain(|name, value| name != "continue" || value != "");
                }
                if let Some(entries) = members.get_mut("managedFields").and_then(Value::as_array_mut) {
                    // Their order depends on the second of each write.
                    entries.sort_by_key(identity);
                }
                if let Some(causes) = members.get_mut("causes").and_then(Value::as_array_mut) {
                    // Conflicts of an apply are in the order of a map in Go.
                    causes.sort_by_key(|cause| (cause["field"].to_string(), cause["message"].to_string()));
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.normalize(name, item)),
            Value::String(text) => {
                if name == "resourceVersion" {
                    let number = self.versions.iter().position(|it| it == text);
                    *text = number.map_or_else(|| text.clone(), |number| format!("VERSION-{number}"));
                } else {
                    *text = without_times(&text.replace(self.group, "GROUP"));
                    for (number, version) in self.versions.iter().enumerate() {
                        let replacement = format!("VERSION-{number}");
                        *text = text
                            .replace(&format!("({version})"), &replacement)
                            .replace(&format!("\"resourceVersion\":\"{version}\""), &replacement);
                    }
                    for (number, uid) in self.uids.iter().enumerate() {
                        *text = text.replace(uid, &format!("UID-{number}"));
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The identity of a managed fields entry.
fn identity(entry: &Value) -> [String; 4] {
    ["operation", "manager", "apiVersion", "subresource"]
        .map(|name| entry[name].as_str().unwrap_or_default().to_owned())
}

/// The text with `TIME` for every time as servers write it: `2026-11-28T12:58:49Z`.
fn without_times(text: &str) -> String {
    const SHAPE: &[u8] = b"0000-00-00T00:00:00Z";
    let is_time = |part: &[u8]| {
        let mut pairs = part.iter().zip(SHAPE);
        pairs.all(|(byte, shape)| byte == shape || (*shape == b'0' && byte.is_ascii_digit()))
    };
    let mut written = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.as_bytes().windows(SHAPE.len()).position(is_time) {
        // A match is ASCII, so its ends are character boundaries.
        let (before, time) = rest.split_at(start);
        written.push_str(before);
        written.push_str("TIME");
        rest = &time[SHAPE.len()..];
    }
    written.push_str(rest);
    written
}
