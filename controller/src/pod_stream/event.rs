//! An event of a watch of pods: from protobuf to JSON with what [`Pod`](crate::pod::Pod) reads.
//!
//! Fields have the numbers of `k8s.io/api/core/v1/generated.proto` and of the one of `meta/v1`.

use bytes::{BufMut, Bytes, BytesMut};
use drydock_machinery::codec::protobuf::{self, Envelope, Malformed};
use drydock_proto::protobuf::{Field, FieldKind, META_V1_OWNER_REFERENCE, META_V1_STATUS, Message};
use serde_json::{Map, Value, json};

/// The last field of a `PodSpec` that is known: `evictionResponders` of Kubernetes 1.37.
const LAST_SPEC_FIELD: u64 = 44;
/// The field of the spec in a `Pod`.
const SPEC: u64 = 2;
/// The member of managed fields that says that their manager named the node.
const NODE_NAME: &str = "\"f:nodeName\"";

pub(super) static POD: Message = Message {
    name: "k8s.io.api.core.v1.Pod",
    fields: &[
        Field::one(1, "metadata", FieldKind::Message(&METADATA)),
        Field::one(2, "spec", FieldKind::Message(&POD_SPEC)),
        Field::one(3, "status", FieldKind::Message(&POD_STATUS)),
    ],
};

static METADATA: Message = Message {
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
        Field::list(17, "managedFields", FieldKind::Message(&MANAGED_FIELDS)),
    ],
};

/// The field set stays text: few have what is read of them.
static MANAGED_FIELDS: Message = Message {
    name: "k8s.io.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry",
    fields: &[Field::one(7, "fieldsV1", FieldKind::Message(&FIELDS_V1))],
};

static FIELDS_V1: Message = Message {
    name: "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1",
    fields: &[Field::one(1, "raw", FieldKind::Text)],
};

static POD_SPEC: Message = Message {
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

static POD_STATUS: Message = Message {
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
    let object = object(envelope)?;
    // The type comes first: a reader that meets the object before it has to keep it until it knows the type.
    let mut line = BytesMut::from(&b"{\"type\":"[..]).writer();
    serde_json::to_writer(&mut line, &type_)?;
    line.get_mut().extend_from_slice(b",\"object\":");
    serde_json::to_writer(&mut line, &object)?;
    line.get_mut().extend_from_slice(b"}\n");
    Ok(line.into_inner().freeze())
}

/// The object of an event, or the body of an error, in its envelope.
///
/// # Errors
///
/// [`EventError`].
pub(super) fn object(envelope: &[u8]) -> Result<Map<String, Value>, EventError> {
    let envelope = Envelope::parse(envelope)?;
    let mut object = Map::new();
    match envelope.kind.as_str() {
        "Pod" => {
            check_spec(envelope.raw)?;
            protobuf::decode_message(envelope.raw, &POD, None, &mut object)?;
            tidy(&mut object);
        }
        "Status" => protobuf::decode_message(envelope.raw, &META_V1_STATUS, None, &mut object)?,
        _ => return Err(EventError::Kind(envelope.kind)),
    }
    object.insert("apiVersion".to_owned(), envelope.api_version.into());
    object.insert("kind".to_owned(), envelope.kind.into());
    Ok(object)
}

/// Checks that every field of the spec of a pod is known.
fn check_spec(pod: &[u8]) -> Result<(), EventError> {
    for field in protobuf::fields(pod) {
        let (SPEC, Some(spec)) = field? else { continue };
        for field in protobuf::fields(spec) {
            let (number, _) = field?;
            if number > LAST_SPEC_FIELD {
                return Err(EventError::UnknownField(number));
            }
        }
    }
    Ok(())
}

/// Drops the empty texts that Go writes for what is absent, and the managed fields of those who did not name the node.
fn tidy(pod: &mut Map<String, Value>) {
    if let Some(entries) = member(pod, "metadata", "managedFields").and_then(Value::as_array_mut) {
        entries.retain_mut(|entry| {
            let raw = entry.pointer("/fieldsV1/raw").and_then(Value::as_str);
            let fields = raw.filter(|raw| raw.contains(NODE_NAME));
            let fields: Option<Value> = fields.and_then(|fields| serde_json::from_str(fields).ok());
            let is_kept = fields.is_some();
            *entry = json!({ "fieldsV1": fields });
            is_kept
        });
    }
    let tolerations = member(pod, "spec", "tolerations").and_then(Value::as_array_mut);
    for toleration in tolerations.into_iter().flatten().filter_map(Value::as_object_mut) {
        drop_empty_texts(toleration);
    }
    for part in ["spec", "status"] {
        if let Some(part) = pod.get_mut(part).and_then(Value::as_object_mut) {
            drop_empty_texts(part);
        }
    }
}

fn member<'a>(pod: &'a mut Map<String, Value>, part: &str, name: &str) -> Option<&'a mut Value> {
    pod.get_mut(part)?.get_mut(name)
}

fn drop_empty_texts(members: &mut Map<String, Value>) {
    members.retain(|_, value| value != "");
}
