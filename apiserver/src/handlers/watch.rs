//! Following a collection.

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

use super::selection::selection;
use super::{Call, response};
use crate::cache::{
    CachedObject, EncodeError, EncoderId, EventEncoder, WatchEnd, WatchKind, WatchRequest, Watcher,
};
use crate::error::ApiError;
use crate::http::body::ResponseBody;
use crate::registry::resource::Resource;
use crate::request::negotiate::{Answer, MetaVersion, Representation, Transform};
use crate::request::options::WatchOptions;

/// Without a timeout of the client's, a watch lasts this long or up to twice as long, so that not all end at once.
const SHORTEST: Duration = Duration::from_mins(30);

/// No watch lasts longer: later moments need not be representable.
const LONGEST: Duration = Duration::from_hours(24 * 365);

pub(super) async fn watch<S: Store>(call: &Call<'_, S>) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(Answer::Watch)?;
    let options = WatchOptions::parse(&call.context.query)?;
    let include = response::IncludeObject::of(&call.context.query, representation)?;
    let selection = selection(call)?;
    let timeout = timeout(options.timeout_seconds);
    let request = WatchRequest {
        selection,
        start: options.start,
        bookmarks: options.bookmarks,
        timeout,
    };
    let watcher = call.store.cache.subscribe(request).await?;
    let encoder = encoder(
        Arc::clone(&call.store.resource),
        &call.version.api_version,
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
        None | Some(0) => SHORTEST.mul_f64(1.0 + fastrand::f64()),
        Some(seconds) => Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(LONGEST),
    }
}

/// The frames of a watch until it ends; a fault is the last frame.
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

/// The encoder of a request. Its id is one for everything that changes the bytes.
fn encoder(
    resource: Arc<Resource>,
    api_version: &str,
    representation: Representation,
    include: response::IncludeObject,
    clock: Arc<dyn Clock>,
) -> Box<dyn EventEncoder> {
    let bookmark = Bookmark {
        kind: resource.kind,
        api_version: api_version.to_owned(),
    };
    match representation.transform {
        Transform::Table(version) => {
            let following = TableEncoder {
                resource: Arc::clone(&resource),
                version,
                include,
                clock: Arc::clone(&clock),
                columns: false,
                following: None,
            };
            Box::new(TableEncoder {
                resource,
                version,
                include,
                clock,
                columns: true,
                following: Some(Box::new(following)),
            })
        }
        Transform::PartialObject(version) | Transform::PartialObjectList(version) => {
            Box::new(PartialEncoder { version })
        }
        Transform::None => Box::new(ObjectEncoder { bookmark }),
    }
}

struct Bookmark {
    kind: &'static str,
    api_version: String,
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

fn decoded(object: &CachedObject, revision: Revision) -> Result<Value, EncodeError> {
    response::served_value(object.value(), Some(revision)).map_err(|error| EncodeError {
        key: object.key().to_string(),
        source: Arc::new(error),
    })
}

/// Objects as they are: nothing is encoded, the stored bytes are copied with their resourceVersion.
struct ObjectEncoder {
    bookmark: Bookmark,
}

impl EventEncoder for ObjectEncoder {
    fn id(&self) -> EncoderId {
        EncoderId(0)
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
        object.write_at(revision, out);
        out.extend_from_slice(b"}\n");
        Ok(())
    }

    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut) {
        let object = json!({
            "kind": self.bookmark.kind,
            "apiVersion": self.bookmark.api_version,
            "metadata": bookmark_metadata(revision, ends_initial_events),
        });
        write_frame(out, "BOOKMARK", &object);
    }
}

/// Only metadata.
struct PartialEncoder {
    version: MetaVersion,
}

impl EventEncoder for PartialEncoder {
    fn id(&self) -> EncoderId {
        EncoderId(1 + meta_index(self.version))
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
            &response::partial(&decoded(object, revision)?, self.version),
        );
        Ok(())
    }

    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut) {
        let object = json!({ "metadata": bookmark_metadata(revision, ends_initial_events) });
        write_frame(out, "BOOKMARK", &response::partial(&object, self.version));
    }
}

const fn meta_index(version: MetaVersion) -> u32 {
    match version {
        MetaVersion::V1 => 0,
        MetaVersion::V1beta1 => 1,
    }
}

/// Rows for people. Columns stand in the first frame of a stream only.
struct TableEncoder {
    resource: Arc<Resource>,
    version: MetaVersion,
    include: response::IncludeObject,
    clock: Arc<dyn Clock>,
    columns: bool,
    following: Option<Box<TableEncoder>>,
}

impl TableEncoder {
    fn frame(
        &self,
        type_: &str,
        object: &Value,
        cells: &[Value],
        include: response::IncludeObject,
        out: &mut BytesMut,
    ) {
        let revision = object
            .pointer("/metadata/resourceVersion")
            .cloned()
            .unwrap_or_default();
        let columns = self.columns.then(|| self.resource.strategy.columns());
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
        let include = match self.include {
            response::IncludeObject::None => 0,
            response::IncludeObject::Metadata => 1,
            response::IncludeObject::Object => 2,
        };
        EncoderId(3 + meta_index(self.version) + 2 * include + 6 * u32::from(self.columns))
    }

    fn event(
        &self,
        kind: WatchKind,
        object: &CachedObject,
        revision: Revision,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        let served = decoded(object, revision)?;
        let cells = self.resource.strategy.cells(&served, self.clock.now());
        self.frame(event_type(kind), &served, &cells, self.include, out);
        Ok(())
    }

    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut) {
        let object = json!({ "metadata": bookmark_metadata(revision, ends_initial_events) });
        let cells: Vec<Value> = self.resource.strategy.columns().iter().map(zero_cell).collect();
        self.frame(
            "BOOKMARK",
            &object,
            &cells,
            response::IncludeObject::Metadata,
            out,
        );
    }

    fn following(&self) -> Option<&dyn EventEncoder> {
        self.following
            .as_deref()
            .map(|encoder| encoder as &dyn EventEncoder)
    }
}

/// The cell of a row that shows no object.
fn zero_cell(column: &drydock_machinery::table::Column) -> Value {
    use drydock_machinery::table::ColumnType::{Boolean, Date, Integer, Number, String};
    match column.type_ {
        String => json!(""),
        Integer | Number => json!(0),
        Boolean => json!(false),
        Date => json!("0001-01-01T00:00:00Z"),
    }
}
