//! GET with `watch=true`: streams the events of a collection, as the body of the response or over WebSocket.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use drydock_machinery::clock::Clock;
use drydock_machinery::codec::{self, cbor, protobuf};
use drydock_machinery::websocket::Framing;
use drydock_proto::protobuf::{META_V1_STATUS, Message};
use drydock_storage::{Revision, Store};
use futures_util::{StreamExt as _, stream};
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

use super::call::Call;
use super::response::{self, Shape};
use super::selection::selection;
use crate::cache::{
    CachedObject, EncodeError, EncoderId, EventEncoder, WatchEnd, WatchKind, WatchRequest, Watcher,
};
use crate::error::ApiError;
use crate::http::body::ResponseBody;
use crate::http::websocket::Handshake;
use crate::registry::endpoint::Endpoint;
use crate::request::negotiate::{MediaType, MetaVersion, Representation, ResponseKind, Transform};
use crate::request::options::WatchOptions;
use crate::request::projection::{IncludeObject, Projection};

/// The shortest duration of a watch whose client sets no timeout. The duration is random, up to twice this one, so that not all
/// watches end at the same time.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(30);

/// The length of an event in protobuf comes before it, in this many bytes.
const LENGTH_PREFIX_BYTES: usize = 4;

/// The longest duration of a watch, so that its end is a representable time.
const MAX_TIMEOUT: Duration = Duration::from_hours(24 * 365);

pub(super) async fn watch<S: Store>(call: &Call<'_, S>) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(ResponseKind::Watch)?;
    let options = WatchOptions::parse(&call.context.query)?;
    let include = IncludeObject::parse(&call.context.query, representation)?;
    let selection = selection(call).await?;
    let timeout = timeout(options.timeout_seconds);
    // Before the watch begins, so that a handshake that is refused costs nothing.
    let handshake = Handshake::of(&call.headers)?;
    let request = WatchRequest {
        selection,
        start: options.start,
        bookmarks: options.bookmarks,
        timeout,
    };
    let watcher = call.store.cache.subscribe(request).await?;
    let encoder = encoder(
        call.endpoint.clone(),
        representation,
        include,
        call.store.shared_clock(),
    );
    let media_type = representation.media_type;
    let frames = frames(watcher, encoder, media_type);
    if let Some(handshake) = handshake {
        let messages = frames.flat_map(move |buffer| stream::iter(messages(buffer, media_type)));
        let framing = match media_type {
            MediaType::Json | MediaType::Yaml => Framing::Text,
            MediaType::Protobuf | MediaType::Cbor => Framing::Binary,
        };
        return Ok(handshake.response(ResponseBody::stream(messages), framing));
    }
    let mut response = Response::new(ResponseBody::stream(frames));
    let content_type = HeaderValue::from_static(media_type.watch_content_type());
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}

/// The events in a buffer, one by one, without the framing of a stream.
fn messages(mut buffer: Bytes, media_type: MediaType) -> Vec<Bytes> {
    let mut messages = Vec::new();
    while !buffer.is_empty() {
        let length = match media_type {
            MediaType::Json | MediaType::Yaml => {
                let end = buffer.iter().position(|byte| *byte == b'\n');
                end.map(|end| end + 1)
            }
            MediaType::Protobuf => {
                let prefix = buffer.first_chunk().map(|prefix| u32::from_be_bytes(*prefix));
                buffer.advance(buffer.len().min(LENGTH_PREFIX_BYTES));
                prefix.and_then(|length| usize::try_from(length).ok())
            }
            MediaType::Cbor => cbor::first_length(&buffer),
        };
        // A buffer holds whole events.
        let length = length.unwrap_or(buffer.len()).min(buffer.len());
        messages.push(buffer.split_to(length));
    }
    messages
}

fn timeout(seconds: Option<i64>) -> Duration {
    match seconds {
        None | Some(0) => DEFAULT_TIMEOUT.mul_f64(1.0 + fastrand::f64()),
        Some(seconds) => Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(MAX_TIMEOUT),
    }
}

/// The frames of a watch until it ends. If it ends with an error, that is the last frame.
fn frames<S: Store>(
    watcher: Watcher<S>,
    encoder: Box<dyn EventEncoder>,
    media_type: MediaType,
) -> impl futures_util::Stream<Item = Bytes> + Send {
    stream::unfold(Some((watcher, encoder)), move |state| async move {
        let (mut watcher, encoder) = state?;
        match watcher.next_buffer(&*encoder).await? {
            Ok(bytes) => Some((bytes, Some((watcher, encoder)))),
            Err(end) => Some((error_frame(&end_error(end), media_type), None)),
        }
    })
}

fn end_error(end: WatchEnd) -> ApiError {
    match end {
        WatchEnd::Expired { .. } | WatchEnd::NeverReached { .. } => {
            ApiError::expired(end.to_string(), String::new())
        }
        WatchEnd::TooLargeResourceVersion { requested, current } => {
            ApiError::future_resource_version(requested.0, current.0)
        }
        WatchEnd::Encode(error) => ApiError::storage_read(error.to_string()).because(error),
        WatchEnd::Store(error) => {
            ApiError::internal("events could not be read from the storage").because(error)
        }
    }
}

fn error_frame(error: &ApiError, media_type: MediaType) -> Bytes {
    if matches!(media_type, MediaType::Protobuf | MediaType::Cbor) {
        // A Status has only strings and numbers, so it can be encoded.
        let status = serde_json::to_value(error.status()).unwrap_or_default();
        let mut frame = BytesMut::new();
        let written = write_binary_event("ERROR", &status, Some(&META_V1_STATUS), media_type, &mut frame);
        if let Err(error) = written {
            tracing::error!(%error, "the error of a watch cannot be encoded");
        }
        return frame.freeze();
    }
    let mut frame = BytesMut::from(&b"{\"type\":\"ERROR\",\"object\":"[..]);
    let status = error.json(false);
    frame.extend_from_slice(status.trim_ascii_end());
    frame.extend_from_slice(b"}\n");
    frame.freeze()
}

const fn event_type(kind: WatchKind) -> &'static str {
    match kind {
        WatchKind::Added => "ADDED",
        WatchKind::Modified => "MODIFIED",
        WatchKind::Deleted => "DELETED",
    }
}

/// The encoder for a request.
fn encoder(
    endpoint: Endpoint,
    representation: Representation,
    include: IncludeObject,
    clock: Arc<dyn Clock>,
) -> Box<dyn EventEncoder> {
    if matches!(representation.media_type, MediaType::Protobuf | MediaType::Cbor) {
        return Box::new(BinaryEncoder(Shape {
            endpoint,
            representation,
        }));
    }
    match representation.transform {
        Transform::Table(version) => {
            let following = TableEncoder {
                endpoint: endpoint.clone(),
                version,
                include,
                clock: Arc::clone(&clock),
                following: None,
            };
            Box::new(TableEncoder {
                endpoint,
                version,
                include,
                clock,
                following: Some(Box::new(following)),
            })
        }
        Transform::PartialObject(version) | Transform::PartialObjectList(version) => {
            Box::new(PartialEncoder { endpoint, version })
        }
        Transform::None => Box::new(ObjectEncoder { endpoint }),
    }
}

fn bookmark_metadata(revision: Revision, ends_initial_events: bool) -> Value {
    let mut metadata = json!({ "resourceVersion": revision.to_string() });
    if ends_initial_events && let Some(members) = metadata.as_object_mut() {
        members.insert(
            "annotations".to_owned(),
            json!({ "k8s.io/initial-events-end": "true" }),
        );
    }
    metadata
}

fn write_frame(out: &mut BytesMut, type_: &str, object: &Value) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(type_.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out.extend_from_slice(&codec::encode(object));
    out.extend_from_slice(b"}\n");
}

fn encode_error(object: &CachedObject, error: ApiError) -> EncodeError {
    EncodeError {
        key: object.key().to_string(),
        source: Arc::new(error),
    }
}

fn served(endpoint: &Endpoint, object: &CachedObject, revision: Revision) -> Result<Value, EncodeError> {
    endpoint
        .served(object.value(), Some(revision))
        .map_err(|error| encode_error(object, error))
}

/// Encodes whole objects. Bytes that are stored in the version of the endpoint are copied.
struct ObjectEncoder {
    endpoint: Endpoint,
}

impl EventEncoder for ObjectEncoder {
    fn id(&self) -> EncoderId {
        EncoderId {
            face: self.endpoint.face().id(),
            projection: Projection::Object,
            media_type: MediaType::Json,
        }
    }

    fn event(
        &self,
        kind: WatchKind,
        object: &CachedObject,
        revision: Revision,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(event_type(kind).as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        self.endpoint
            .write_served(object.value(), Some(revision), out)
            .map_err(|error| encode_error(object, error))?;
        out.extend_from_slice(b"}\n");
        Ok(())
    }

    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut) {
        let object = json!({
            "kind": self.endpoint.kind(),
            "apiVersion": &*self.endpoint.face().api_version,
            "metadata": bookmark_metadata(revision, ends_initial_events),
        });
        write_frame(out, "BOOKMARK", &object);
    }
}

/// Appends an event in protobuf or CBOR.
fn write_binary_event(
    type_: &str,
    object: &Value,
    message: Option<&Message>,
    media_type: MediaType,
    out: &mut BytesMut,
) -> Result<(), ApiError> {
    let mut event = Vec::with_capacity(1024);
    if media_type == MediaType::Protobuf {
        let message = message.ok_or_else(response::no_message)?;
        let envelope = protobuf::encode(object, message).map_err(response::not_protobuf)?;
        protobuf::write_event(type_, &envelope, &mut event);
    } else {
        cbor::write_start(&mut event);
        cbor::write_map(2, &mut event);
        cbor::write_text("type", &mut event);
        cbor::write_text(type_, &mut event);
        cbor::write_text("object", &mut event);
        cbor::write(object, &mut event);
    }
    out.extend_from_slice(&event);
    Ok(())
}

/// Encodes objects, or their metadata, in protobuf or CBOR.
struct BinaryEncoder(Shape);

impl BinaryEncoder {
    fn write(&self, type_: &str, object: &Value, out: &mut BytesMut) -> Result<(), ApiError> {
        let media_type = self.0.representation.media_type;
        write_binary_event(type_, object, self.0.message(), media_type, out)
    }
}

impl EventEncoder for BinaryEncoder {
    fn id(&self) -> EncoderId {
        EncoderId {
            face: self.0.endpoint.face().id(),
            projection: match self.0.metadata_version() {
                Some(version) => Projection::Metadata(version),
                None => Projection::Object,
            },
            media_type: self.0.representation.media_type,
        }
    }

    fn event(
        &self,
        kind: WatchKind,
        object: &CachedObject,
        revision: Revision,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        self.0
            .of(object.value(), Some(revision))
            .and_then(|shown| self.write(event_type(kind), &shown, out))
            .map_err(|error| encode_error(object, error))
    }

    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut) {
        let metadata = bookmark_metadata(revision, ends_initial_events);
        let object = match self.0.metadata_version() {
            Some(version) => response::partial(&json!({ "metadata": metadata }), version),
            None => json!({
                "kind": self.0.endpoint.kind(),
                "apiVersion": &*self.0.endpoint.face().api_version,
                "metadata": metadata,
            }),
        };
        // A bookmark has only strings, which every encoding can represent.
        if let Err(error) = self.write("BOOKMARK", &object, out) {
            tracing::error!(%error, "a bookmark cannot be encoded");
        }
    }
}

/// Encodes the metadata of objects.
struct PartialEncoder {
    endpoint: Endpoint,
    version: MetaVersion,
}

impl EventEncoder for PartialEncoder {
    fn id(&self) -> EncoderId {
        EncoderId {
            face: self.endpoint.face().id(),
            projection: Projection::Metadata(self.version),
            media_type: MediaType::Json,
        }
    }

    fn event(
        &self,
        kind: WatchKind,
        object: &CachedObject,
        revision: Revision,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        write_frame(
            out,
            event_type(kind),
            &response::partial(&served(&self.endpoint, object, revision)?, self.version),
        );
        Ok(())
    }

    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut) {
        let object = json!({ "metadata": bookmark_metadata(revision, ends_initial_events) });
        write_frame(out, "BOOKMARK", &response::partial(&object, self.version));
    }
}

/// Encodes tables of one row. Only the first event of a stream has column definitions: its encoder has a `following` one for
/// the other events.
struct TableEncoder {
    endpoint: Endpoint,
    version: MetaVersion,
    include: IncludeObject,
    clock: Arc<dyn Clock>,
    following: Option<Box<TableEncoder>>,
}

impl TableEncoder {
    fn with_columns(&self) -> bool {
        self.following.is_some()
    }

    fn frame(
        &self,
        type_: &str,
        object: &Value,
        cells: &[Value],
        include: IncludeObject,
        out: &mut BytesMut,
    ) {
        let revision = object
            .pointer("/metadata/resourceVersion")
            .cloned()
            .unwrap_or_default();
        let columns = self.with_columns().then_some(self.endpoint.face().table.columns);
        let row = response::row(object, cells, include, self.version);
        let table = response::table(
            self.version,
            &json!({ "resourceVersion": revision }),
            columns,
            &[row],
        );
        write_frame(out, type_, &table);
    }
}

impl EventEncoder for TableEncoder {
    fn id(&self) -> EncoderId {
        EncoderId {
            face: self.endpoint.face().id(),
            projection: Projection::Table {
                version: self.version,
                include: self.include,
                with_columns: self.with_columns(),
            },
            media_type: MediaType::Json,
        }
    }

    fn event(
        &self,
        kind: WatchKind,
        object: &CachedObject,
        revision: Revision,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        let served = served(&self.endpoint, object, revision)?;
        let cells = (self.endpoint.face().table.cells)(&served, self.clock.now());
        self.frame(event_type(kind), &served, &cells, self.include, out);
        Ok(())
    }

    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut) {
        let object = json!({ "metadata": bookmark_metadata(revision, ends_initial_events) });
        let columns = self.endpoint.face().table.columns;
        let cells: Vec<Value> = columns.iter().map(zero_cell).collect();
        self.frame("BOOKMARK", &object, &cells, IncludeObject::Metadata, out);
    }

    fn following(&self) -> Option<&dyn EventEncoder> {
        self.following
            .as_deref()
            .map(|encoder| encoder as &dyn EventEncoder)
    }
}

/// The cell of a row without an object, as in a bookmark.
fn zero_cell(column: &drydock_machinery::table::Column) -> Value {
    use drydock_machinery::table::ColumnType::{Boolean, Date, Integer, Number, String};
    match column.type_ {
        String => json!(""),
        Integer | Number => json!(0),
        Boolean => json!(false),
        Date => json!("0001-01-01T00:00:00Z"),
    }
}
