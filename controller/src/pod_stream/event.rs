//! An event of a watch of pods: from protobuf to JSON with what [`Pod`](crate::pod::Pod) reads.
//!
//! Fields have the numbers of `k8s.io/api/core/v1/generated.proto` and of the one of `meta/v1`.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use drydock_machinery::codec::protobuf::{self, Envelope, Malformed, MessageView};
use drydock_proto::protobuf::{Field, FieldKind, META_V1_OWNER_REFERENCE, META_V1_STATUS, Message};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::pod::OwnedFields;

/// The last field of a `PodSpec` that is known: `evictionResponders` of Kubernetes 1.37.
const LAST_SPEC_FIELD: u64 = 44;
/// The parts of a `Pod`.
const METADATA_FIELD: u64 = 1;
const SPEC_FIELD: u64 = 2;
const STATUS_FIELD: u64 = 3;
/// The managed fields in `ObjectMeta`, the field set in one of their entries, and its text.
const MANAGED_FIELDS: u64 = 17;
const FIELDS_V1: u64 = 7;
const RAW: u64 = 1;
/// The member of a field set that says that its manager named the node.
const NODE_NAME: &str = "\"f:nodeName\"";

pub(super) static METADATA: Message = Message {
    name: "k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta",
    fields: &[
        Field::one(1, "name", FieldKind::Text),
        Field::one(3, "namespace", FieldKind::Text),
        Field::one(5, "uid", FieldKind::Text),
        Field::one(6, "resourceVersion", FieldKind::Text),
        Field::one(8, "creationTimestamp", FieldKind::Time),
        Field::one(9, "deletionTimestamp", FieldKind::Time),
        Field::one(11, "labels", FieldKind::Map),
        Field::one(12, "annotations", FieldKind::Map),
        Field::list(
            13,
            "ownerReferences",
            FieldKind::Message(&META_V1_OWNER_REFERENCE),
        ),
        Field::list(14, "finalizers", FieldKind::Text),
    ],
};

pub(super) static POD_SPEC: Message = Message {
    name: "k8s.io.api.core.v1.PodSpec",
    fields: &[
        Field::one(4, "terminationGracePeriodSeconds", FieldKind::Int64),
        Field::one(10, "nodeName", FieldKind::Text),
        Field::list(22, "tolerations", FieldKind::Message(&TOLERATION)),
        Field::one(25, "priority", FieldKind::Int32),
        // Of Kubernetes 1.35 and 1.36.
        Field::one(42, "workloadRef", FieldKind::Message(&REFERENCE)),
        Field::one(43, "schedulingGroup", FieldKind::Message(&REFERENCE)),
        Field::list(44, "evictionResponders", FieldKind::Message(&REFERENCE)),
    ],
};

static TOLERATION: Message = Message {
    name: "k8s.io.api.core.v1.Toleration",
    fields: &[
        Field::one(1, "key", FieldKind::Text),
        Field::one(2, "operator", FieldKind::Text),
        Field::one(3, "value", FieldKind::Text),
        Field::one(4, "effect", FieldKind::Text),
        Field::one(5, "tolerationSeconds", FieldKind::Int64),
    ],
};

/// A message of which only the first field is read, a name.
static REFERENCE: Message = Message {
    name: "k8s.io.api.core.v1.EvictionResponder",
    fields: &[Field::one(1, "name", FieldKind::Text)],
};

pub(super) static POD_STATUS: Message = Message {
    name: "k8s.io.api.core.v1.PodStatus",
    fields: &[
        Field::one(1, "phase", FieldKind::Text),
        Field::list(2, "conditions", FieldKind::Message(&POD_CONDITION)),
    ],
};

static POD_CONDITION: Message = Message {
    name: "k8s.io.api.core.v1.PodCondition",
    fields: &[
        Field::one(1, "type", FieldKind::Text),
        Field::one(2, "status", FieldKind::Text),
    ],
};

/// Why an event cannot be translated.
#[derive(Debug, thiserror::Error)]
pub(super) enum EventError {
    /// The bytes are no event.
    #[error("an event of the watch is malformed")]
    Malformed(#[from] Malformed),
    /// The object is not what was asked for.
    #[error("an event of the watch has an object of kind {0:?}")]
    Kind(String),
    /// The pod has a field that is not known here.
    #[error("a pod has the unknown field {0} in its spec")]
    UnknownField(u64),
    /// The object cannot be written as JSON.
    #[error("a pod cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// An event as a line of JSON.
///
/// # Errors
///
/// [`EventError`].
pub(super) fn json_line(event: &[u8]) -> Result<Bytes, EventError> {
    let (type_, envelope) = protobuf::read_event(event)?;
    let object = Object::parse(envelope)?;
    let mut line = BytesMut::with_capacity(envelope.len()).writer();
    serde_json::to_writer(&mut line, &Line { type_, object })?;
    line.get_mut().put_u8(b'\n');
    Ok(line.into_inner().freeze())
}

/// An event. The type comes first: a reader that meets the object before it has to keep it until it knows the type.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    type_: Cow<'a, str>,
    object: Object<'a>,
}

/// The object of an event, or the body of an error.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object<'a> {
    api_version: String,
    kind: String,
    #[serde(flatten)]
    content: Content<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Pod {
        metadata: Metadata<'a>,
        spec: MessageView<'a>,
        status: MessageView<'a>,
    },
    Status(MessageView<'a>),
}

impl<'a> Object<'a> {
    /// The object in an envelope.
    ///
    /// # Errors
    ///
    /// [`EventError`].
    pub(super) fn parse(envelope: &'a [u8]) -> Result<Self, EventError> {
        let envelope = Envelope::parse(envelope)?;
        let content = match envelope.kind.as_str() {
            "Pod" => pod(envelope.raw)?,
            "Status" => Content::Status(MessageView::new(envelope.raw, &META_V1_STATUS)?),
            _ => return Err(EventError::Kind(envelope.kind)),
        };
        Ok(Self {
            api_version: envelope.api_version,
            kind: envelope.kind,
            content,
        })
    }
}

/// A pod. Every field of its spec must be known.
fn pod(raw: &[u8]) -> Result<Content<'_>, EventError> {
    let part = |number| members(raw, number).last().unwrap_or(Ok(&[]));
    let (metadata, spec) = (part(METADATA_FIELD)?, part(SPEC_FIELD)?);
    for field in protobuf::fields(spec) {
        let (number, _) = field?;
        if number > LAST_SPEC_FIELD {
            return Err(EventError::UnknownField(number));
        }
    }
    Ok(Content::Pod {
        metadata: Metadata {
            fields: MessageView::new(metadata, &METADATA)?,
            is_placed_by_creator: is_placed_by_creator(metadata)?,
        },
        spec: MessageView::new(spec, &POD_SPEC)?,
        status: MessageView::new(part(STATUS_FIELD)?, &POD_STATUS)?,
    })
}

/// The metadata, with the managed field that says who named the node.
struct Metadata<'a> {
    fields: MessageView<'a>,
    is_placed_by_creator: bool,
}

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        self.fields.serialize_into(&mut object)?;
        if self.is_placed_by_creator {
            let fields = json!({ "f:spec": { "f:nodeName": {} } });
            object.serialize_entry("managedFields", &[json!({ "fieldsV1": fields })])?;
        }
        object.end()
    }
}

/// Whether somebody owns the field that names the node.
fn is_placed_by_creator(metadata: &[u8]) -> Result<bool, Malformed> {
    for entry in members(metadata, MANAGED_FIELDS) {
        for field_set in members(entry?, FIELDS_V1) {
            for raw in members(field_set?, RAW) {
                // Few do, so other field sets are not parsed.
                let text = std::str::from_utf8(raw?).ok();
                let text = text.filter(|text| text.contains(NODE_NAME));
                let fields: Option<OwnedFields> = text.and_then(|text| serde_json::from_str(text).ok());
                if fields.is_some_and(|fields| fields.has_node_name()) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// The values of a field that have a length.
fn members(message: &[u8], number: u64) -> impl Iterator<Item = Result<&[u8], Malformed>> {
    protobuf::fields(message).filter_map(move |field| match field {
        Ok((found, bytes)) => bytes.filter(|_| found == number).map(Ok),
        Err(error) => Some(Err(error)),
    })
}
