//! GET with `watch=true`: streams the events of a collection.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use drydock_machinery::clock::Clock;
use drydock_machinery::codec;
use drydock_storage::{Revision, Store};
use futures_util::stream;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

use super::call::Call;
use super::response;
use super::selection::selection;
use crate::cache::{
    CachedObject, EncodeError, EncoderId, EventEncoder, WatchEnd, WatchKind, WatchRequest, Watcher,
};
use crate::error::ApiError;
use crate::http::body::ResponseBody;
use crate::registry::endpoint::Endpoint;
use crate::request::negotiate::{MetaVersion, Representation, ResponseKind, Transform};
use crate::request::options::WatchOptions;
use crate::request::projection::{IncludeObject, Projection};

/// The shortest duration of a watch whose client sets no timeout. The duration is random, up to twice this one, so that not all
/// watches end at the same time.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(30);

/// The longest duration of a watch, so that its end is a representable time.
const MAX_TIMEOUT: Duration = Duration::from_hours(24 * 365);

pub(super) async fn watch<S: Store>(call: &Call<'_, S>) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(ResponseKind::Watch)?;
    let options = WatchOptions::parse(&call.context.query)?;
    let include = IncludeObject::parse(&call.context.query, representation)?;
    let selection = selection(call).await?;
    let timeout = timeout(options.timeout_seconds);
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
    let mut response = Response::new(ResponseBody::stream(frames(watcher, encoder)));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
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
) -> impl futures_util::Stream<Item = Bytes> + Send {
    stream::unfold(Some((watcher, encoder)), |state| async move {
        let (mut watcher, encoder) = state?;
        match watcher.next_buffer(&*encoder).await? {
            Ok(bytes) => Some((bytes, Some((watcher, encoder)))),
            Err(end) => Some((error_frame(&end_error(end)), None)),
        }
    })
}

fn end_error(end: WatchEnd) -> ApiError {
    match end {
        WatchEnd::Expired { .. } => ApiError::expired(end.to_string(), String::new()),
        WatchEnd::TooLargeResourceVersion { requested, current } => {
            ApiError::future_resource_version(requested.0, current.0)
        }
        WatchEnd::Encode(error) => ApiError::storage_read(error.to_string()).because(error),
        WatchEnd::Store(error) => {
            ApiError::internal("events could not be read from the storage").because(error)
        }
    }
}

fn error_frame(error: &ApiError) -> Bytes {
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
            "kind": self.endpoint.face().names.kind,
            "apiVersion": &*self.endpoint.face().api_version,
            "metadata": bookmark_metadata(revision, ends_initial_events),
        });
        write_frame(out, "BOOKMARK", &object);
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
