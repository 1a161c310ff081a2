//! What a request tells the audit log while it is handled.
//!
//! The audit filter decides the level of a request and makes its [`AuditRecord`]; handlers add the object that was sent, and
//! authorization and admission add annotations. A record of a request that is not audited costs nothing and keeps nothing.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use drydock_proto::protobuf::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Annotation: `allow` or `forbid`, the outcome of authorization.
pub const DECISION: &str = "authorization.k8s.io/decision";
/// Annotation: why, as the authorizer put it.
pub const REASON: &str = "authorization.k8s.io/reason";
/// Annotation: whether the user had the rights on the pod or the nodes that a write is about.
pub const TARGET_AUTHORIZATION: &str = "evictionrequest.coordination.k8s.io/target-authorization";

/// The most bytes of all annotations of a request: they are made from policies and responses of webhooks.
const ANNOTATION_BYTES: usize = 256 * 1024;

/// How much of a request is recorded. Each level includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AuditLevel {
    /// Nothing.
    #[default]
    None,
    /// Who did what to which object, and with which outcome; no bodies.
    Metadata,
    /// The body of the request too.
    Request,
    /// The body of the response too.
    RequestResponse,
}

impl AuditLevel {
    /// The spelling in policies and events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// The record of one request; clones share it. The default records nothing.
#[derive(Clone, Default)]
pub struct AuditRecord(Option<Arc<Record>>);

struct Record {
    level: AuditLevel,
    contents: Mutex<AuditContents>,
}

/// What a record holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditContents {
    /// Annotations of the event.
    pub annotations: BTreeMap<String, String>,
    /// `metadata.namespace` of the object that was sent.
    pub namespace: String,
    /// `metadata.name` of the object that was sent.
    pub name: String,
    /// `metadata.uid` of the object that was sent.
    pub uid: String,
    /// `metadata.resourceVersion` of the object that was sent.
    pub resource_version: String,
    /// What was sent, from [`AuditLevel::Request`] up.
    pub request: Option<RecordedRequest>,
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordedRequest {
    /// A decoded object or options.
    Object(Value),
    /// A patch in JSON, as it was sent.
    Patch(Bytes),
}

/// The protobuf message of a response, in the extensions of the response: the audit log records responses as JSON.
#[derive(Clone, Copy)]
pub struct ResponseMessage(pub &'static Message);

impl fmt::Debug for AuditRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditRecord")
            .field("level", &self.level())
            .finish_non_exhaustive()
    }
}

impl AuditRecord {
    /// The record of a request that is audited at this level.
    #[must_use]
    pub fn new(level: AuditLevel) -> Self {
        Self((level > AuditLevel::None).then(|| {
            Arc::new(Record {
                level,
                contents: Mutex::default(),
            })
        }))
    }

    /// The level of the request.
    #[must_use]
    pub fn level(&self) -> AuditLevel {
        self.0.as_ref().map_or(AuditLevel::None, |record| record.level)
    }

    /// Whether the request is audited at this level or above: what is recorded only then need not be computed otherwise.
    #[must_use]
    pub fn includes(&self, level: AuditLevel) -> bool {
        self.level() >= level
    }

    /// Adds an annotation to the event of the request. The first value of a key stays; another one is logged and dropped, as
    /// are annotations above 256 KiB in all.
    pub fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        self.annotate_at(AuditLevel::Metadata, key, value);
    }

    /// Adds an annotation if the request is audited at `level` or above.
    pub fn annotate_at(&self, level: AuditLevel, key: impl Into<String>, value: impl Into<String>) {
        if !self.includes(level) {
            return;
        }
        let (key, value) = (key.into(), value.into());
        self.change(|contents| {
            if let Some(first) = contents.annotations.get(&key) {
                if *first != value {
                    tracing::warn!(key, "an audit annotation has another value already");
                }
                return;
            }
            let held: usize = contents.annotations.iter().map(|(k, v)| k.len() + v.len()).sum();
            if held + key.len() + value.len() > ANNOTATION_BYTES {
                tracing::warn!(
                    key,
                    "an audit annotation is dropped: those of the request are too large"
                );
                return;
            }
            contents.annotations.insert(key, value);
        });
    }

    /// Records the object, or the options, that the client sent. They complete what the path says of the object.
    pub fn sent(&self, object: &Value) {
        if !self.includes(AuditLevel::Metadata) {
            return;
        }
        let text = |member: &str| {
            let value = object.get("metadata").and_then(|metadata| metadata.get(member));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let request = self
            .includes(AuditLevel::Request)
            .then(|| RecordedRequest::Object(object.clone()));
        self.change(|contents| {
            contents.namespace = text("namespace");
            contents.name = text("name");
            contents.uid = text("uid");
            contents.resource_version = text("resourceVersion");
            contents.request = request;
        });
    }

    /// Records a patch, which is JSON.
    pub fn sent_patch(&self, patch: &Bytes) {
        if self.includes(AuditLevel::Request) {
            self.change(|contents| contents.request = Some(RecordedRequest::Patch(patch.clone())));
        }
    }

    /// Records a configuration that is applied.
    pub fn sent_configuration(&self, configuration: &Value) {
        if self.includes(AuditLevel::Request) {
            let request = RecordedRequest::Object(configuration.clone());
            self.change(|contents| contents.request = Some(request));
        }
    }

    /// What is recorded so far.
    #[must_use]
    pub fn contents(&self) -> AuditContents {
        match &self.0 {
            Some(record) => record
                .contents
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            None => AuditContents::default(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut AuditContents)) {
        if let Some(record) = &self.0 {
            change(&mut record.contents.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_value_of_an_annotation_stays() {
        let record = AuditRecord::new(AuditLevel::Metadata);
        record.annotate("a", "1");
        record.clone().annotate("a", "2");
        record.annotate("large", "x".repeat(ANNOTATION_BYTES));
        record.annotate_at(AuditLevel::Request, "b", "1");
        let kept = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        assert_eq!(record.contents().annotations, kept);
    }

    #[test]
    fn bodies_are_recorded_from_the_level_request_up() {
        let object = json!({ "metadata": { "name": "x", "uid": "u", "resourceVersion": "7" } });
        for (level, name, request) in [
            (AuditLevel::None, "", None),
            (AuditLevel::Metadata, "x", None),
            (
                AuditLevel::Request,
                "x",
                Some(RecordedRequest::Object(object.clone())),
            ),
        ] {
            let record = AuditRecord::new(level);
            record.sent(&object);
            let contents = record.contents();
            assert_eq!(
                (contents.name.as_str(), contents.request),
                (name, request),
                "{level:?}"
            );
        }
        let record = AuditRecord::new(AuditLevel::Metadata);
        record.sent_patch(&Bytes::from_static(b"{}"));
        record.sent_configuration(&object);
        assert_eq!(record.contents(), AuditContents::default());
    }
}
