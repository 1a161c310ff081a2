//! The events of one request.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use drydock_machinery::codec::{cbor, protobuf, yaml};
use drydock_proto::protobuf::Message;
use http::header::HeaderMap;
use http::{HeaderValue, Uri};
use jiff::Timestamp;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Auditor;
use super::event::{
    Event, ObjectReference, ResponseStatus, TRUNCATED, micro_time, on_one_line, remove_managed_fields,
    stage_name,
};
use super::policy::{Decision, Stage};
use super::sink::{Encoded, NotStored};
use crate::error::{Status, StatusDetails};
use crate::request::audit::{AuditContents, RecordedRequest};
use crate::request::info::user_agent;
use crate::request::{AuditLevel, AuditRecord, RequestInfo, UserInfo};

/// The most bytes of `User-Agent` that an event has.
const USER_AGENT_BYTES: usize = 1024;
const CUT: &str = "...TRUNCATED";
/// The most addresses of an event: a client may send as many as its headers hold.
const ADDRESSES: usize = 64;
/// The largest response that is recorded.
pub const RESPONSE_BYTES: u64 = 10 << 20;
/// The time above which a request has an annotation with its time.
const SLOW: Duration = Duration::from_millis(500);
/// The annotation.
const LATENCY: &str = "apiserver.latency.k8s.io/total";
/// The code of a request whose client disconnected before there was a response. There is no HTTP status for it; proxies log
/// this one.
const CLIENT_GONE: u16 = 499;

/// A request when it arrives at the audit log.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// Its id.
    pub audit_id: &'a HeaderValue,
    /// Verb, resource and name.
    pub info: &'a RequestInfo,
    /// The authenticated user; none if the credentials are not valid.
    pub user: Option<&'a Arc<UserInfo>>,
    /// The target as it was sent.
    pub uri: &'a Uri,
    /// The headers, of which some name addresses and the agent.
    pub headers: &'a HeaderMap,
    /// The peer.
    pub remote: SocketAddr,
    /// When it arrived, on the runtime's clock.
    pub received: Instant,
}

/// A response as the audit log sees it.
#[derive(Clone, Default)]
pub struct Outcome {
    /// HTTP code.
    pub code: u16,
    /// The Status that the response has, if any.
    pub status: Option<Arc<Status>>,
    /// The body, if it is recorded.
    pub body: Option<ResponseContents>,
    /// Whether the body was too large to be recorded.
    pub is_truncated: bool,
}

/// The body of a response, in its encoding.
#[derive(Clone, Default)]
pub struct ResponseContents {
    /// `Content-Type` without parameters.
    pub media_type: String,
    /// Its bytes, in order.
    pub chunks: Vec<Bytes>,
    /// How protobuf is decoded. Lists have none, and are left out.
    pub message: Option<&'static Message>,
}

/// The audit events of a request. Dropped before its last event, it writes that the connection was closed.
pub struct Trail {
    auditor: Arc<Auditor>,
    decision: Decision,
    record: AuditRecord,
    info: RequestInfo,
    user: Option<Arc<UserInfo>>,
    impersonated: OnceLock<Arc<UserInfo>>,
    audit_id: String,
    uri: String,
    agent: String,
    addresses: Vec<IpAddr>,
    received: Instant,
    received_at: Timestamp,
    is_complete: AtomicBool,
}

impl Trail {
    pub(super) fn new(auditor: &Arc<Auditor>, decision: Decision, arrival: &Arrival<'_>) -> Self {
        let target = arrival.uri.path_and_query().map_or("/", |target| target.as_str());
        let now = auditor.clock.now();
        Self {
            record: AuditRecord::new(decision.level),
            decision,
            info: arrival.info.clone(),
            user: arrival.user.cloned(),
            impersonated: OnceLock::new(),
            audit_id: String::from_utf8_lossy(arrival.audit_id.as_bytes()).into_owned(),
            uri: target.to_owned(),
            agent: agent(arrival.headers),
            addresses: addresses(arrival.headers, arrival.remote.ip()),
            received: arrival.received,
            received_at: now.checked_sub(arrival.received.elapsed()).unwrap_or(now),
            auditor: Arc::clone(auditor),
            is_complete: AtomicBool::new(false),
        }
    }

    /// What handlers add to.
    #[must_use]
    pub fn record(&self) -> &AuditRecord {
        &self.record
    }

    /// Whether the user was authenticated.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.user.is_some()
    }

    /// As whom the request runs, if not as who sent it.
    pub fn impersonates(&self, user: &Arc<UserInfo>) {
        // A request is impersonated once.
        self.impersonated.set(Arc::clone(user)).ok();
    }

    /// Writes the event of a stage, and waits as the modes of the destinations say.
    ///
    /// # Errors
    /// A destination in mode `blocking-strict` has not stored it.
    pub async fn write(self: &Arc<Self>, stage: Stage, outcome: Option<Outcome>) -> Result<(), StoreFailed> {
        let Some(encoded) = self.encode(stage, outcome).await else {
            return Ok(());
        };
        self.auditor
            .store(&encoded)
            .await
            .map_err(|NotStored| StoreFailed)
    }

    /// Writes the event of a stage without waiting for it.
    pub fn write_later(self: &Arc<Self>, stage: Stage, outcome: Outcome) {
        let trail = Arc::clone(self);
        let write = async move {
            if let Some(encoded) = trail.encode(stage, Some(outcome)).await {
                trail.auditor.offer(&encoded);
            }
        };
        self.auditor.late.spawn(write);
    }

    /// The event of a stage, unless the policy omits the stage.
    async fn encode(self: &Arc<Self>, stage: Stage, outcome: Option<Outcome>) -> Option<Encodings> {
        if matches!(stage, Stage::ResponseComplete | Stage::Panic) || !self.is_authenticated() {
            self.is_complete.store(true, Ordering::Relaxed);
        }
        if self.decision.omit_stages.contains(&stage) {
            return None;
        }
        let has_bodies = stage != Stage::RequestReceived && self.record.includes(AuditLevel::Request);
        if !has_bodies {
            return self.encode_now(stage, outcome.as_ref());
        }
        // Bodies may be large: they are encoded beside the threads that serve requests.
        let trail = Arc::clone(self);
        let encode = move || trail.encode_now(stage, outcome.as_ref());
        tokio::task::spawn_blocking(encode).await.ok().flatten()
    }

    fn encode_now(&self, stage: Stage, outcome: Option<&Outcome>) -> Option<Encodings> {
        let contents = self.record.contents();
        let omit = self.decision.omit_managed_fields;
        let request = contents
            .request
            .as_ref()
            .and_then(|request| request_json(request, omit));
        let response = outcome
            .and_then(|outcome| outcome.body.as_ref())
            .and_then(|body| response_json(body, omit));
        let mut event = self.event(stage, outcome, &contents);
        let is_binary_list = outcome.is_some_and(|outcome| {
            let body = outcome.body.as_ref();
            body.is_some_and(|body| body.media_type == protobuf::MEDIA_TYPE && body.message.is_none())
        });
        if is_binary_list {
            event.annotations.insert(TRUNCATED.to_owned(), "true".to_owned());
        }
        event.request_object = request.as_deref();
        event.response_object = response.as_deref();
        self.auditor.encode(&mut event)
    }

    fn event<'a>(
        &'a self,
        stage: Stage,
        outcome: Option<&'a Outcome>,
        contents: &'a AuditContents,
    ) -> Event<'a> {
        let stage_time = match stage {
            Stage::RequestReceived => self.received_at,
            _ => self.auditor.clock.now(),
        };
        let mut annotations = contents.annotations.clone();
        if outcome.is_some_and(|outcome| outcome.is_truncated) {
            annotations.insert(TRUNCATED.to_owned(), "true".to_owned());
        }
        let took = self.received.elapsed();
        if stage == Stage::ResponseComplete && took > SLOW && !self.info.is_long_running() {
            annotations.insert(LATENCY.to_owned(), format!("{}s", took.as_secs_f64()));
        }
        Event {
            level: self.decision.level.as_str(),
            audit_id: &self.audit_id,
            stage: stage_name(stage),
            request_uri: &self.uri,
            verb: self.verb(),
            user: self.user.as_deref().map(Into::into).unwrap_or_default(),
            impersonated_user: self.impersonated.get().map(|user| (&**user).into()),
            source_ips: &self.addresses,
            user_agent: &self.agent,
            object_ref: self.object_reference(contents),
            response_status: outcome
                .map(|outcome| ResponseStatus::new(outcome.code, outcome.status.as_deref())),
            request_object: None,
            response_object: None,
            request_received_timestamp: micro_time(self.received_at),
            stage_timestamp: micro_time(stage_time),
            annotations,
        }
    }

    fn verb(&self) -> &str {
        match (&self.info.resource, self.info.method.as_str()) {
            (Some(resource), _) => resource.verb.as_str(),
            (None, "GET") => "get",
            (None, "HEAD") => "head",
            (None, "POST") => "post",
            (None, "PUT") => "put",
            (None, "PATCH") => "patch",
            (None, "DELETE") => "delete",
            (None, "OPTIONS") => "options",
            (None, _) => "other",
        }
    }

    /// The object by the path, completed by what was sent.
    fn object_reference<'a>(&'a self, contents: &'a AuditContents) -> Option<ObjectReference<'a>> {
        let request = self.info.resource.as_ref()?;
        let or = |first: &'a str, second: &'a str| if first.is_empty() { second } else { first };
        Some(ObjectReference {
            resource: &request.resource,
            namespace: or(&request.namespace, &contents.namespace),
            name: or(request.review_name(), &contents.name),
            uid: &contents.uid,
            api_group: &request.group,
            api_version: &request.version,
            resource_version: &contents.resource_version,
            subresource: &request.subresource,
        })
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        if *self.is_complete.get_mut() {
            return;
        }
        let status = Status {
            status: "Failure".into(),
            message: "Connection closed early".into(),
            details: None,
            ..Status::success(StatusDetails::default())
        };
        let outcome = Outcome {
            code: CLIENT_GONE,
            status: Some(Arc::new(status)),
            ..Outcome::default()
        };
        if !self.decision.omit_stages.contains(&Stage::ResponseComplete)
            && let Some(encoded) = self.encode_now(Stage::ResponseComplete, Some(&outcome))
        {
            self.auditor.offer(&encoded);
        }
    }
}

/// The event could not be stored, and the request has to be rejected.
#[derive(Debug, thiserror::Error)]
#[error("failed to store audit event")]
pub struct StoreFailed;

/// An event for each destination, in their order; none where it is too large.
pub(super) struct Encodings(pub(super) Vec<Option<Arc<Encoded>>>);

/// The body of a request as JSON on one line.
fn request_json(request: &RecordedRequest, omit_managed_fields: bool) -> Option<Box<RawValue>> {
    match request {
        RecordedRequest::Patch(patch) => raw(on_one_line(patch)),
        RecordedRequest::Object(object) if omit_managed_fields => {
            let mut object = object.clone();
            remove_managed_fields(&mut object);
            raw(serde_json::to_vec(&object).ok()?)
        }
        RecordedRequest::Object(object) => raw(serde_json::to_vec(object).ok()?),
    }
}

/// The body of a response as JSON on one line; none for text.
fn response_json(body: &ResponseContents, omit_managed_fields: bool) -> Option<Box<RawValue>> {
    let bytes = body.chunks.concat();
    let decoded: Value = match body.media_type.as_str() {
        "application/json" if !omit_managed_fields => return raw(on_one_line(&bytes)),
        "application/json" => serde_json::from_slice(&bytes).ok()?,
        "application/yaml" => yaml::decode(&bytes).ok()?.value,
        "application/cbor" => cbor::decode(&bytes).ok()?,
        protobuf::MEDIA_TYPE => protobuf::decode(&bytes, body.message?, None).ok()?,
        _ => return None,
    };
    let mut decoded = decoded;
    if omit_managed_fields {
        remove_managed_fields(&mut decoded);
    }
    raw(serde_json::to_vec(&decoded).ok()?)
}

fn raw(json: Vec<u8>) -> Option<Box<RawValue>> {
    RawValue::from_string(String::from_utf8(json).ok()?).ok()
}

fn agent(headers: &HeaderMap) -> String {
    let agent = user_agent(headers);
    match agent.get(..USER_AGENT_BYTES) {
        Some(start) if agent.len() > USER_AGENT_BYTES => format!("{start}{CUT}"),
        _ => agent.to_owned(),
    }
}

/// The addresses that a request came from, by its headers and its connection, as the reference lists them. Only the last is
/// certain.
fn addresses(headers: &HeaderMap, remote: IpAddr) -> Vec<IpAddr> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let mut found: Vec<IpAddr> = text("x-forwarded-for")
        .split(',')
        .filter_map(|part| part.trim().parse().ok())
        .take(ADDRESSES)
        .collect();
    if let Ok(address) = text("x-real-ip").trim().parse()
        && !found.contains(&address)
    {
        found.push(address);
    }
    let remote = remote.to_canonical();
    if found.last() != Some(&remote) {
        found.push(remote);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_headers_and_the_peer() {
        for (lines, expected) in [
            (&[][..], &["10.0.0.9"][..]),
            (
                &[("x-forwarded-for", "1.1.1.1, nonsense,2001:db8::1")],
                &["1.1.1.1", "2001:db8::1", "10.0.0.9"],
            ),
            (
                &[("x-forwarded-for", "1.1.1.1,10.0.0.9")],
                &["1.1.1.1", "10.0.0.9"],
            ),
            (
                &[("x-real-ip", "2.2.2.2"), ("x-forwarded-for", "1.1.1.1")],
                &["1.1.1.1", "2.2.2.2", "10.0.0.9"],
            ),
            (
                &[("x-real-ip", "1.1.1.1"), ("x-forwarded-for", "1.1.1.1")],
                &["1.1.1.1", "10.0.0.9"],
            ),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            let found: Vec<String> = addresses(&headers, "10.0.0.9".parse().unwrap())
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(found, expected, "{lines:?}");
        }
        let mut headers = HeaderMap::new();
        let many = vec!["1.1.1.1"; 10_000].join(",");
        headers.insert("x-forwarded-for", many.parse().unwrap());
        assert_eq!(
            addresses(&headers, "10.0.0.9".parse().unwrap()).len(),
            ADDRESSES + 1
        );
    }

    #[test]
    fn a_long_agent_is_cut() {
        let mut headers = HeaderMap::new();
        headers.insert("user-agent", "a".repeat(USER_AGENT_BYTES).parse().unwrap());
        assert_eq!(agent(&headers).len(), USER_AGENT_BYTES);
        headers.insert("user-agent", "a".repeat(USER_AGENT_BYTES + 1).parse().unwrap());
        assert!(agent(&headers).ends_with("aaa...TRUNCATED"));
    }
}
