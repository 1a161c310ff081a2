//! GET of a collection.
//!
//! A list is a cursor over a snapshot. Objects are encoded into buffers of 64 KiB at the rate at which the client reads. A list
//! holds no lock, and its memory does not depend on the number of objects.

use bytes::{Bytes, BytesMut};
use drydock_machinery::codec;
use drydock_storage::Store;
use futures_util::stream;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::call::Call;
use super::list_binary::BinaryEncoder;
use super::page::{Head, Objects, Page, PageEncoder};
use super::response::{self, Shape};
use super::selection::selection;
use crate::cache::{
    CachedObject, ContinueToken, EXPIRED_WITH_TOKEN, Freshness, ListState, PageOf, Query, ReadError,
};
use crate::error::ApiError;
use crate::http::body::ResponseBody;
use crate::registry::endpoint::Endpoint;
use crate::request::negotiate::{MediaType, Representation, ResponseKind, Transform};
use crate::request::options::{ListOptions, ListStart};
use crate::request::projection::IncludeObject;
use crate::telemetry::spans::{self, OpenSpan};

/// The size of an encoded buffer.
const BUFFER_BYTES: usize = 64 * 1024;

pub(super) async fn list<S: Store>(call: &Call<'_, S>) -> Result<Response<ResponseBody>, ApiError> {
    let representation = call.negotiate(ResponseKind::List)?;
    let include = IncludeObject::parse(&call.context.query, representation)?;
    let page = page(call).await?;
    render(call, representation, include, page).await
}

/// The page that a request selects.
///
/// # Errors
/// 400 and 422 for parameters, 410 for a compacted revision, 429 and 504 for a future one.
pub(super) async fn page<S: Store>(call: &Call<'_, S>) -> Result<Page, ApiError> {
    let options = ListOptions::parse(&call.context.query)?;
    let selection = selection(call).await?;
    let (state, start) = match options.start {
        ListStart::State(state) => (state, None),
        ListStart::Token(text) => {
            let token = ContinueToken::decode(&text)
                .map_err(|error| ApiError::bad_request(format!("invalid continue token: {error}")))?;
            let state = match token.of {
                PageOf::Latest => Freshness::MostRecent.into(),
                PageOf::Revision(revision) => ListState::Continued(revision),
            };
            (state, Some(token))
        }
    };
    let inconsistent = start.as_ref().is_some_and(|token| token.of == PageOf::Latest);
    let query = Query {
        selection,
        start: start.as_ref().map(|token| token.start.clone()),
        limit: options.limit,
    };
    let read = spans::within("cacher.GetList", call.store.cache.list(&query, state));
    let page = match (read.await, start) {
        (Err(ReadError::Expired { .. }), Some(token)) => {
            return Err(ApiError::expired(EXPIRED_WITH_TOKEN, token.at_latest().encode()));
        }
        (page, _) => page?,
    };
    let continue_token = page.next.map(|start| {
        // After a page of an inconsistent list, all later pages are inconsistent too: they read the current state.
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

/// Writes a page in the negotiated representation.
///
/// # Errors
/// 500 for a stored object that cannot be decoded or converted, if that is found before the response begins.
pub(super) async fn render<S: Store>(
    call: &Call<'_, S>,
    representation: Representation,
    include: IncludeObject,
    page: Page,
) -> Result<Response<ResponseBody>, ApiError> {
    let endpoint = call.endpoint.clone();
    let media_type = representation.media_type;
    if matches!(media_type, MediaType::Protobuf | MediaType::Cbor) {
        let shape = Shape {
            endpoint,
            representation,
        };
        let (encoder, objects) = BinaryEncoder::prepare(shape, page.objects).await?;
        return stream_page(encoder, &page.head, objects, media_type);
    }
    let encoder = ListEncoder {
        endpoint,
        representation,
        include,
        now: call.store.clock().now(),
    };
    stream_page(encoder, &page.head, page.objects, media_type)
}

/// Encodes the objects of a list.
struct ListEncoder {
    endpoint: Endpoint,
    representation: Representation,
    include: IncludeObject,
    now: Timestamp,
}

impl ListEncoder {
    /// The member that contains the objects. It is the last one of the document.
    fn member(&self) -> &'static str {
        if matches!(self.representation.transform, Transform::Table(_)) {
            "rows"
        } else {
            "items"
        }
    }

    /// The document without its objects.
    fn envelope(&self, head: &Head) -> Value {
        let metadata = head.metadata();
        match self.representation.transform {
            Transform::Table(version) => {
                let columns = Some(self.endpoint.face().table.columns);
                let mut table = response::table(version, &metadata, columns, &[]);
                if let Some(members) = table.as_object_mut() {
                    members.remove(self.member());
                }
                table
            }
            Transform::PartialObjectList(version) | Transform::PartialObject(version) => json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": version.api_version(),
                "metadata": metadata,
            }),
            Transform::None => json!({
                "kind": format!("{}List", self.endpoint.kind()),
                "apiVersion": &*self.endpoint.face().api_version,
                "metadata": metadata,
            }),
        }
    }

    fn value(&self, object: &CachedObject) -> Result<Value, ApiError> {
        let served = self.endpoint.served(object.value(), Some(object.modified()))?;
        Ok(match self.representation.transform {
            Transform::Table(version) => response::row(
                &served,
                &(self.endpoint.face().table.cells)(&served, self.now),
                self.include,
                version,
            ),
            Transform::PartialObjectList(version) | Transform::PartialObject(version) => {
                response::partial(&served, version)
            }
            Transform::None => served,
        })
    }

    const fn layout(&self) -> Layout {
        match (self.representation.media_type, self.representation.pretty) {
            (MediaType::Yaml, _) => Layout::Yaml,
            (_, false) => Layout::Compact,
            (_, true) => Layout::Indented,
        }
    }
}

impl PageEncoder for ListEncoder {
    fn write_start(&self, out: &mut BytesMut, head: &Head) -> Result<(), ApiError> {
        let envelope = response::encode(&self.envelope(head), self.representation, None)?;
        let member = self.member();
        // The closing brace is removed, so that one more member can follow.
        let open = envelope
            .trim_ascii_end()
            .strip_suffix(b"}")
            .unwrap_or(&envelope)
            .trim_ascii_end();
        let (start, member) = match self.layout() {
            Layout::Compact => (open, format!(",\"{member}\":[")),
            Layout::Indented => (open, format!(",\n  \"{member}\": [")),
            Layout::Yaml => (&*envelope, format!("{member}:")),
        };
        out.extend_from_slice(start);
        out.extend_from_slice(member.as_bytes());
        Ok(())
    }

    fn write(&self, out: &mut BytesMut, object: &CachedObject, first: bool) -> Result<(), ApiError> {
        match self.layout() {
            Layout::Compact => {
                out.extend_from_slice(if first { b"" } else { b"," });
                if self.representation.transform == Transform::None {
                    let revision = Some(object.modified());
                    self.endpoint.write_served(object.value(), revision, out)?;
                } else {
                    out.extend_from_slice(&codec::encode(&self.value(object)?));
                }
            }
            Layout::Indented => {
                out.extend_from_slice(if first { b"\n    " } else { b",\n    " });
                let text = codec::encode_pretty(&self.value(object)?);
                write_indented(out, &text, "    ");
            }
            Layout::Yaml => {
                out.extend_from_slice(b"\n- ");
                let text = response::encode(&self.value(object)?, self.representation, None)?;
                write_indented(out, text.trim_ascii_end(), "  ");
            }
        }
        Ok(())
    }

    fn write_end(&self, out: &mut BytesMut, is_empty: bool) {
        out.extend_from_slice(match (self.layout(), is_empty) {
            (Layout::Compact, _) => b"]}\n",
            (Layout::Indented, true) => b"]\n}",
            (Layout::Indented, false) => b"\n  ]\n}",
            (Layout::Yaml, true) => b" []\n",
            (Layout::Yaml, false) => b"\n",
        });
    }
}

/// The layout of a document.
#[derive(Clone, Copy)]
enum Layout {
    Compact,
    Indented,
    Yaml,
}

/// Writes text with all lines but the first indented.
fn write_indented(out: &mut BytesMut, text: &[u8], indent: &str) {
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if index > 0 {
            out.extend_from_slice(b"\n");
            if !line.is_empty() {
                out.extend_from_slice(indent.as_bytes());
            }
        }
        out.extend_from_slice(line);
    }
}

/// A response with a page. The body is encoded while it is read. The objects come last, as in kube-apiserver.
fn stream_page<E: PageEncoder>(
    encoder: E,
    head: &Head,
    objects: Objects,
    media_type: MediaType,
) -> Result<Response<ResponseBody>, ApiError> {
    let mut start = BytesMut::new();
    encoder.write_start(&mut start, head)?;
    let mut state = PageStream {
        encoder,
        objects: Some(objects),
        buffer: start,
        first: true,
        _span: spans::open(response::SERIALIZE),
    };
    // A page that fits into one buffer is sent with a Content-Length. Only larger ones are streamed.
    let first = state.fill()?;
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
                    tracing::error!(%error, "list response truncated: a stored object cannot be decoded");
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
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media_type.content_type()));
    Ok(response)
}

/// The part of a page that has not been encoded yet.
struct PageStream<E> {
    encoder: E,
    /// `None` once the last object has been encoded.
    objects: Option<Objects>,
    buffer: BytesMut,
    first: bool,
    /// Until the last object has been encoded, or the client is gone.
    _span: Option<OpenSpan>,
}

impl<E: PageEncoder> PageStream<E> {
    fn fill(&mut self) -> Result<Bytes, ApiError> {
        while self.buffer.len() < BUFFER_BYTES {
            let Some(object) = self.objects.as_mut().and_then(Iterator::next) else {
                self.objects = None;
                self.encoder.write_end(&mut self.buffer, self.first);
                break;
            };
            let first = std::mem::take(&mut self.first);
            self.encoder.write(&mut self.buffer, &object, first)?;
        }
        Ok(self.buffer.split().freeze())
    }
}
