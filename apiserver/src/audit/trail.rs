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
use tokio::runtime::Handle;
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

    /// Writes the event of a stage, and waits as the modes of the destinations say. The event is written even if the caller
    /// stops waiting, as when its client disconnects.
    ///
    /// # Errors
    /// A destination in mode `blocking-strict` has not stored it.
    pub async fn write(self: &Arc<Self>, stage: Stage, outcome: Option<Outcome>) -> Result<(), StoreFailed> {
        if !self.starts(stage) {
            return Ok(());
        }
        if !self.has_bodies(stage) {
            let Some(encoded) = self.encode_now(stage, outcome.as_ref()) else {
                return Ok(());
            };
            let stored = self.auditor.store(&encoded).await;
            return stored.map_err(|NotStored| StoreFailed);
        }
        let trail = Arc::clone(self);
        let write = async move {
            match trail.encode_beside(stage, outcome).await {
                Some(encoded) => trail.auditor.store(&encoded).await,
                None => Ok(()),
            }
        };
        match self.auditor.late.spawn(write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(NotStored)) | Err(_) => Err(StoreFailed),
        }
    }

    /// Writes the event of a stage without waiting for it.
    pub fn write_later(self: &Arc<Self>, stage: Stage, outcome: Outcome) {
        if !self.starts(stage) {
            return;
        }
        let trail = Arc::clone(self);
        let write = async move {
            let encoded = if trail.has_bodies(stage) {
                trail.encode_beside(stage, Some(outcome)).await
            } else {
                trail.encode_now(stage, Some(&outcome))
            };
            if let Some(encoded) = encoded {
                trail.auditor.offer(&encoded);
            }
        };
        // A connection may be dropped after the runtime has ended.
        if let Ok(runtime) = Handle::try_current() {
            self.auditor.late.spawn_on(write, &runtime);
        }
    }

    /// Notes that the event of a stage is written from now on. False if the policy omits the stage.
    fn starts(&self, stage: Stage) -> bool {
        if matches!(stage, Stage::ResponseComplete | Stage::Panic) || !self.is_authenticated() {
            self.is_complete.store(true, Ordering::Relaxed);
        }
        !self.decision.omit_stages.contains(&stage)
    }

    /// Whether the event of a stage may have bodies, which may be large.
    fn has_bodies(&self, stage: Stage) -> bool {
        stage != Stage::RequestReceived && self.record.includes(AuditLevel::Request)
    }

    /// The event of a stage, encoded beside the threads that serve requests.
    async fn encode_beside(self: &Arc<Self>, stage: Stage, outcome: Option<Outcome>) -> Option<Encodings> {
        let trail = Arc::clone(self);
        let encode = move || trail.encode_now(stage, outcome.as_ref());
        let encoded = tokio::task::spawn_blocking(encode).await;
        encoded.unwrap_or_else(|_| {
            self.auditor.lose("an event could not be encoded");
            None
        })
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
    use drydock_machinery::clock::ManualClock;
    use futures_util::FutureExt as _;
    use http::Method;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::audit::{Mode, memory};
    use crate::fixtures::noon;
    use crate::metrics::Metrics;
    use crate::request::query::Query;

    /// The client of a request disconnects while its last event, which has bodies, is encoded.
    #[tokio::test]
    async fn an_event_is_written_although_nobody_waits_for_it() {
        let metrics = Metrics::register(&mut Registry::default(), []);
        let clock = Arc::new(ManualClock::new(noon()));
        let rules = "rules: [{level: RequestResponse}]";
        let (auditor, memory) = memory::auditor(rules, Mode::Blocking, None, clock, metrics.audit());
        let path = "/apis/g/v/namespaces/ns/rs";
        let info = RequestInfo::parse(&Method::GET, path, &Query::default()).unwrap();
        let trail = auditor.begin(&Arrival {
            audit_id: &HeaderValue::from_static("mine"),
            info: &info,
            user: Some(&Arc::default()),
            uri: &Uri::from_static(path),
            headers: &HeaderMap::new(),
            remote: ([127, 0, 0, 1], 1).into(),
            received: Instant::now(),
        });
        let trail = trail.unwrap();
        let outcome = Outcome {
            code: 200,
            body: Some(ResponseContents {
                media_type: "application/json".to_owned(),
                chunks: vec![Bytes::from_static(b"{}")],
                message: None,
            }),
            ..Outcome::default()
        };
        let write = trail.write(Stage::ResponseComplete, Some(outcome)).now_or_never();
        assert!(write.is_none(), "the event is encoded on another thread");
        drop(trail);
        auditor.close().await;
        let events = memory.take();
        assert_eq!(events.len(), 1, "{events:?}");
        let event = &events[0];
        assert_eq!(
            (
                &event["stage"],
                &event["responseStatus"]["code"],
                &event["responseObject"]
            ),
            (&"ResponseComplete".into(), &200.into(), &serde_json::json!({}))
        );
    }

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
