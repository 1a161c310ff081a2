//! Events as the reference encodes them: `audit.k8s.io/v1`, kind `Event`, and the older form of one line of text.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::policy::Stage;
use crate::error::{Status, StatusDetails};
use crate::request::UserInfo;

/// What an annotation says when the bodies of an event were left out for their size.
pub(super) const TRUNCATED: &str = "audit.k8s.io/truncated";

/// An event, as it is encoded.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event<'a> {
    pub(super) level: &'static str,
    #[serde(rename = "auditID")]
    pub(super) audit_id: &'a str,
    pub(super) stage: &'static str,
    #[serde(rename = "requestURI")]
    pub(super) request_uri: &'a str,
    pub(super) verb: &'a str,
    pub(super) user: User<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) impersonated_user: Option<User<'a>>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[_]>::is_empty")]
    pub(super) source_ips: &'a [IpAddr],
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) user_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object_ref: Option<ObjectReference<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_status: Option<ResponseStatus<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_object: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_object: Option<&'a RawValue>,
    pub(super) request_received_timestamp: String,
    pub(super) stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
}

/// `authentication.k8s.io/v1.UserInfo`; of nobody, `{}`.
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct User<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<&'a BTreeMap<String, Vec<String>>>,
}

impl<'a> From<&'a UserInfo> for User<'a> {
    fn from(user: &'a UserInfo) -> Self {
        Self {
            username: &user.name,
            uid: &user.uid,
            groups: &user.groups,
            extra: (!user.extra.is_empty()).then_some(&user.extra),
        }
    }
}

/// The object that a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectReference<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) uid: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) api_group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) api_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) resource_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) subresource: &'a str,
}

/// The bounded members of the Status of a response; of a response without a Status, the code alone.
#[derive(Serialize)]
pub(super) struct ResponseStatus<'a> {
    metadata: BTreeMap<&'static str, &'static str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    status: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a StatusDetails>,
    code: u16,
}

impl<'a> ResponseStatus<'a> {
    pub(super) fn new(code: u16, status: Option<&'a Status>) -> Self {
        Self {
            metadata: BTreeMap::new(),
            status: status.map_or("", |status| &status.status),
            message: status.map_or("", |status| &status.message),
            reason: status.map_or("", |status| &status.reason),
            details: status.and_then(|status| status.details.as_ref()),
            code,
        }
    }
}

impl Event<'_> {
    /// The event as a JSON object without `kind` and `apiVersion`, as in a list of events.
    pub(super) fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// The event as the reference's log format `legacy` prints it.
    pub(super) fn to_line(&self) -> String {
        let user = match self.user.username {
            "" => "<none>",
            name => name,
        };
        let groups = match (self.user.username, self.user.groups) {
            ("", _) | (_, []) => "<none>".to_owned(),
            (_, groups) => quoted_list(groups),
        };
        let (as_user, as_groups) = match &self.impersonated_user {
            None => ("<self>", "<lookup>".to_owned()),
            Some(user) => (
                user.username,
                match user.groups {
                    [] => "<lookup>".to_owned(),
                    groups => quoted_list(groups),
                },
            ),
        };
        let namespace = match &self.object_ref {
            Some(object) if !object.namespace.is_empty() => object.namespace,
            _ => "<none>",
        };
        let response = match &self.response_status {
            Some(status) => status.code.to_string(),
            None => "<deferred>".to_owned(),
        };
        let ip = self
            .source_ips
            .first()
            .map_or_else(|| "<unknown>".to_owned(), ToString::to_string);
        format!(
            "{} AUDIT: id={:?} stage={:?} ip={ip:?} method={:?} user={user:?} groups={groups:?} as={as_user:?} \
             asgroups={as_groups:?} user-agent={:?} namespace={namespace:?} uri={:?} response=\"{response}\"",
            self.request_received_timestamp,
            self.audit_id,
            self.stage,
            self.verb,
            self.user_agent,
            self.request_uri,
        )
    }
}

fn quoted_list(items: &[String]) -> String {
    let quoted: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
    quoted.join(",")
}

/// A time as `MicroTime` encodes it: RFC 3339 with six digits.
pub(super) fn micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// The name of the stage in events.
pub(super) const fn stage_name(stage: Stage) -> &'static str {
    stage.as_str()
}

/// Removes `metadata.managedFields` of an object, of the items of a list and of the objects of a table.
pub(super) fn remove_managed_fields(object: &mut Value) {
    fn remove(object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    }
    remove(object);
    for (list, member) in [("items", None), ("rows", Some("object"))] {
        let items = object.get_mut(list).and_then(Value::as_array_mut);
        for item in items.into_iter().flatten() {
            match member {
                None => remove(item),
                Some(member) => item.get_mut(member).into_iter().for_each(remove),
            }
        }
    }
}

/// JSON on one line: the same without white space between its tokens. A log has a line per event, and a body may be indented.
pub(super) fn on_one_line(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len());
    let (mut in_text, mut escaped) = (false, false);
    for &byte in json {
        if in_text {
            in_text = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else if byte.is_ascii_whitespace() {
            continue;
        } else {
            in_text = byte == b'"';
        }
        out.push(byte);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event<'a>(user: &'a UserInfo, ips: &'a [IpAddr]) -> Event<'a> {
        Event {
            level: "Metadata",
            audit_id: "id",
            stage: stage_name(Stage::ResponseComplete),
            request_uri: "/apis/g/v/namespaces/ns/rs?limit=1",
            verb: "list",
            user: user.into(),
            impersonated_user: None,
            source_ips: ips,
            user_agent: "kubectl/v1",
            object_ref: Some(ObjectReference {
                resource: "rs",
                namespace: "ns",
                api_group: "g",
                api_version: "v",
                ..ObjectReference::default()
            }),
            response_status: Some(ResponseStatus::new(200, None)),
            request_object: None,
            response_object: None,
            request_received_timestamp: micro_time("2026-06-01T12:00:00.5Z".parse().unwrap()),
            stage_timestamp: micro_time("2026-06-01T12:00:00.5000017Z".parse().unwrap()),
            annotations: BTreeMap::new(),
        }
    }

    #[test]
    fn members_have_the_names_and_the_order_of_the_reference() {
        let user = UserInfo {
            name: "jane".to_owned(),
            groups: vec!["g\"1".to_owned(), "g2".to_owned()],
            ..UserInfo::default()
        };
        let ips = ["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()];
        let event = event(&user, &ips);
        assert_eq!(
            String::from_utf8(event.to_json().unwrap()).unwrap(),
            r#"{"level":"Metadata","auditID":"id","stage":"ResponseComplete","requestURI":"/apis/g/v/namespaces/ns/rs?limit=1","verb":"list","user":{"username":"jane","groups":["g\"1","g2"]},"sourceIPs":["10.0.0.1","::1"],"userAgent":"kubectl/v1","objectRef":{"resource":"rs","namespace":"ns","apiGroup":"g","apiVersion":"v"},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-06-01T12:00:00.500000Z","stageTimestamp":"2026-06-01T12:00:00.500001Z"}"#
        );
        assert_eq!(
            event.to_line(),
            r#"2026-06-01T12:00:00.500000Z AUDIT: id="id" stage="ResponseComplete" ip="10.0.0.1" method="list" user="jane" groups="\"g\\\"1\",\"g2\"" as="<self>" asgroups="<lookup>" user-agent="kubectl/v1" namespace="ns" uri="/apis/g/v/namespaces/ns/rs?limit=1" response="200""#
        );
    }

    #[test]
    fn managed_fields_are_removed_from_objects_lists_and_tables() {
        let object = |managed: bool| {
            let mut metadata = json!({ "name": "x" });
            if managed {
                metadata["managedFields"] = json!([{}]);
            }
            json!({ "metadata": metadata })
        };
        for wrap in [
            |object: Value| object,
            |object: Value| json!({ "metadata": {}, "items": [object] }),
            |object: Value| json!({ "metadata": {}, "rows": [{ "cells": [], "object": object }, { "object": null }] }),
        ] {
            let mut value = wrap(object(true));
            remove_managed_fields(&mut value);
            assert_eq!(value, wrap(object(false)));
        }
    }

    #[test]
    fn white_space_between_tokens_is_removed() {
        for (json, expected) in [
            ("{ \"a\" : [ 1,\n 2 ] }\n", r#"{"a":[1,2]}"#),
            (r#"{"a \" b": "c\\" }"#, r#"{"a \" b":"c\\"}"#),
            ("\" \\\\\" ", r#"" \\""#),
        ] {
            assert_eq!(on_one_line(json.as_bytes()), expected.as_bytes(), "{json}");
        }
    }
}
