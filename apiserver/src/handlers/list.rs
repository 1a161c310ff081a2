//! Reading a collection.
//!
//! A list is a cursor over a snapshot that is encoded into buffers of 64 KiB as the socket takes them: it holds no
//! lock and costs the same memory for ten objects as for a hundred thousand.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use drydock_storage::{Revision, Store};
use futures_util::stream;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::selection::selection;
use super::{Call, response};
use crate::cache::{CachedObject, ContinueToken, EXPIRED_WITH_TOKEN, PageOf, Query, ReadError, Snapshot};
use crate::error::ApiError;
use crate::http::body::ResponseBody;
use crate::registry::resource::{Resource, api_version};
use crate::request::negotiate::{Answer, MediaType, Representation, Transform};
use crate::request::options::{ListOptions, ListState};

/// How much is encoded before the socket is asked again.
const BUFFER_BYTES: usize = 64 * 1024;

/// Objects in order.
pub(super) type Objects = Box<dyn Iterator<Item = Arc<CachedObject>> + Send>;

/// What a list says beside its objects.
#[derive(Debug, Clone, Default)]
pub(super) struct Head {
    revision: Revision,
    continue_token: Option<String>,
    remaining: Option<u64>,
}

/// A page of objects.
pub(super) struct Page {
    pub(super) head: Head,
    pub(super) objects: Objects,
}

pub(super) async fn list<S: Store>(call: &Call<'_, S>) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(Answer::List)?;
    let page = page(call).await?;
    render(call, representation, page)
}

/// Finds the page a request asks for.
///
/// # Errors
/// 400 and 422 for parameters, 410 for a state that is gone, 429 and 504 for one that is not there yet.
pub(super) async fn page<S: Store>(call: &Call<'_, S>) -> Result<Page, ApiError> {
    let options = ListOptions::parse(&call.context.query)?;
    let selection = selection(call)?;
    let cache = &call.store.cache;
    let (snapshot, start, inconsistent) = match options.state {
        ListState::MostRecent => (cache.fresh().await?, None, false),
        ListState::Any => (cache.newest()?, None, false),
        ListState::NotOlderThan(revision) => (cache.not_older_than(Revision(revision)).await?, None, false),
        ListState::Exactly(revision) => (cache.exactly(Revision(revision)).await?, None, false),
        ListState::Continue(text) => {
            let token = ContinueToken::decode(&text)
                .map_err(|error| ApiError::bad_request(format!("invalid continue token: {error}")))?;
            let snapshot = continued(call, &token).await?;
            (snapshot, Some(token.start), token.of == PageOf::Latest)
        }
    };
    let query = Query {
        selection,
        start,
        limit: options.limit,
    };
    let page = snapshot.select(&query);
    let continue_token = page.next.map(|start| {
        // A list that has become inconsistent stays so: every later page shows the newest state.
        let of = if inconsistent {
            PageOf::Latest
        } else {
            PageOf::Revision(page.revision)
        };
        ContinueToken { of, start }.encode()
    });
    Ok(Page {
        head: Head {
            revision: page.revision,
            continue_token,
            remaining: page.remaining,
        },
        objects: Box::new(page.objects),
    })
}

async fn continued<S: Store>(call: &Call<'_, S>, token: &ContinueToken) -> Result<Snapshot, ApiError> {
    let cache = &call.store.cache;
    match token.of {
        PageOf::Latest => Ok(cache.fresh().await?),
        PageOf::Revision(revision) => match cache.continued(revision).await {
            Err(ReadError::Expired { .. }) => {
                Err(ApiError::expired(EXPIRED_WITH_TOKEN, token.at_latest().encode()))
            }
            other => Ok(other?),
        },
    }
}

/// Writes a page in the form the client asked for.
///
/// # Errors
/// 400 for `includeObject`, 500 for stored bytes that cannot be decoded.
pub(super) fn render<S: Store>(
    call: &Call<'_, S>,
    representation: Representation,
    page: Page,
) -> Result<Response<ResponseBody>, ApiError> {
    let include = response::IncludeObject::parse(&call.context.query)?;
    let resource = Arc::clone(&call.store.resource);
    let now = call.store.clock().now();
    if representation.media_type == MediaType::Json && !representation.pretty {
        let items = Items {
            resource,
            representation,
            include,
            now,
        };
        return Ok(stream_page(
            &api_version(call.store.resource.group, call.version.name),
            items,
            page,
        ));
    }
    let items = Items {
        resource,
        representation,
        include,
        now,
    };
    let values: Vec<Value> = page
        .objects
        .map(|object| items.value(&object))
        .collect::<Result<_, _>>()?;
    let mut list = items.envelope(
        &api_version(call.store.resource.group, call.version.name),
        &page.head,
    );
    if let Some(members) = list.as_object_mut() {
        members.insert(items.member().to_owned(), Value::Array(values));
    }
    Ok(response::respond(
        StatusCode::OK,
        representation.media_type,
        response::encode(&list, representation)?,
    ))
}

/// How the objects of a list are written.
struct Items {
    resource: Arc<Resource>,
    representation: Representation,
    include: response::IncludeObject,
    now: Timestamp,
}

impl Items {
    /// The member that holds the objects; the last in the order of the document.
    fn member(&self) -> &'static str {
        if matches!(self.representation.transform, Transform::Table(_)) {
            "rows"
        } else {
            "items"
        }
    }

    fn envelope(&self, api_version: &str, head: &Head) -> Value {
        let mut metadata = json!({ "resourceVersion": head.revision.to_string() });
        if let Some(members) = metadata.as_object_mut() {
            if let Some(token) = &head.continue_token {
                members.insert("continue".to_owned(), token.clone().into());
            }
            if let Some(remaining) = head.remaining {
                members.insert("remainingItemCount".to_owned(), remaining.into());
            }
        }
        match self.representation.transform {
            Transform::Table(version) => response::table(
                version,
                metadata,
                Some(self.resource.strategy.columns()),
                Vec::new(),
            ),
            Transform::PartialObjectList(version) | Transform::PartialObject(version) => json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": version.api_version(),
                "metadata": metadata,
                "items": [],
            }),
            Transform::None => json!({
                "kind": format!("{}List", self.resource.kind),
                "apiVersion": api_version,
                "metadata": metadata,
                "items": [],
            }),
        }
    }

    fn value(&self, object: &CachedObject) -> Result<Value, ApiError> {
        let served = response::served_value(object.value(), Some(object.modified()))?;
        Ok(match self.representation.transform {
            Transform::Table(version) => response::row(
                &served,
                self.resource.strategy.cells(&served, self.now),
                self.include,
                version,
            ),
            Transform::PartialObjectList(version) | Transform::PartialObject(version) => {
                response::partial(&served, version)
            }
            Transform::None => served,
        })
    }

    fn write(&self, out: &mut BytesMut, object: &CachedObject) -> Result<(), ApiError> {
        if self.representation.transform == Transform::None {
            object.write_into(out);
        } else {
            out.extend_from_slice(&drydock_machinery::codec::encode(&self.value(object)?));
        }
        Ok(())
    }
}

/// The page as a body that is made while it is read. Its members are written in the order clients are used to.
fn stream_page(api_version: &str, items: Items, page: Page) -> Response<ResponseBody> {
    let mut envelope = items.envelope(api_version, &page.head);
    if let Some(members) = envelope.as_object_mut() {
        members.remove(items.member());
    }
    let mut start = BytesMut::from(drydock_machinery::codec::encode(&envelope).as_slice());
    start.truncate(start.len() - 1);
    start.extend_from_slice(format!(",\"{}\":[", items.member()).as_bytes());

    let state = Rest {
        items,
        objects: Some(page.objects),
        buffer: start,
        first: true,
    };
    let mut state = state;
    // A small page is one buffer with a known length; only larger ones are streams.
    let first = match state.fill() {
        Ok(bytes) => bytes,
        Err(error) => return error.into_response(),
    };
    let body = if state.objects.is_none() {
        ResponseBody::full(first)
    } else {
        let rest = stream::unfold((Some(first), state), |(ready, mut state)| async move {
            if let Some(bytes) = ready {
                return Some((Ok(bytes), (None, state)));
            }
            state.objects.as_ref()?;
            match state.fill() {
                Ok(bytes) => Some((Ok(bytes), (None, state))),
                Err(error) => {
                    tracing::error!(%error, "a list was broken off");
                    state.objects = None;
                    Some((
                        Err(crate::http::body::Truncated("a stored object cannot be decoded")),
                        (None, state),
                    ))
                }
            }
        });
        ResponseBody::abortable_stream(rest)
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static(MediaType::Json.content_type()),
    );
    response
}

/// What of a page is still to be written.
struct Rest {
    items: Items,
    /// None once the last object is written.
    objects: Option<Objects>,
    buffer: BytesMut,
    first: bool,
}

impl Rest {
    fn fill(&mut self) -> Result<Bytes, ApiError> {
        while self.buffer.len() < BUFFER_BYTES {
            let Some(object) = self.objects.as_mut().and_then(Iterator::next) else {
                self.objects = None;
                self.buffer.extend_from_slice(b"]}\n");
                break;
            };
            if !std::mem::take(&mut self.first) {
                self.buffer.extend_from_slice(b",");
            }
            self.items.write(&mut self.buffer, &object)?;
        }
        Ok(self.buffer.split().freeze())
    }
}
