//! Watches pods over protobuf, for a client that reads JSON.
//!
//! kube-apiserver encodes an event once for all watchers of the same media type. Its own components read protobuf, so a
//! watch in JSON costs it an encoding of every pod that nobody else uses. The client of [`protobuf_client`] asks for
//! protobuf and hands on what controllers read of each pod as JSON, so that the library that keeps the watch up need not
//! know.
//!
//! Protobuf names fields by numbers. A field of a later release that says who intercepts an eviction would be overlooked,
//! so a pod with a field that is not known here ends the watch, and the next ones are in JSON.

mod event;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use bytes::Bytes;
use drydock_machinery::codec::protobuf::MEDIA_TYPE;
use futures_util::{StreamExt, TryStreamExt};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use kube::Client;
use kube::client::Body;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::io::StreamReader;
use tower::BoxError;

use crate::watch_health::is_watch;
use event::{Object, json_line};

/// What the watches ask for. A server without protobuf answers in JSON.
const ACCEPTED: HeaderValue =
    HeaderValue::from_static("application/vnd.kubernetes.protobuf,application/json");
/// The largest event, in bytes. etcd takes objects of 1.5 MiB.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;
/// The largest error, in bytes.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// A client whose watches of pods are over protobuf. Whatever else it sends is unchanged.
#[must_use]
pub fn protobuf_client(client: Client) -> Client {
    let is_json = Arc::<AtomicBool>::default();
    let is_told = Arc::new(Once::new());
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (client, is_json, is_told) = (client.clone(), Arc::clone(&is_json), Arc::clone(&is_told));
        async move {
            let is_watch = is_watch(request.uri().query().unwrap_or_default());
            if is_watch && !is_json.load(Ordering::Relaxed) {
                request.headers_mut().insert(ACCEPT, ACCEPTED);
            }
            let response = client.send(request).await?;
            let media_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
            let is_protobuf = media_type.is_some_and(|value| value.starts_with(MEDIA_TYPE.as_bytes()));
            if !is_watch || !is_protobuf {
                return Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()));
            }
            let (parts, body) = response.into_parts();
            let body = if parts.status.is_success() {
                is_told.call_once(|| tracing::info!("pods are watched over protobuf"));
                lines(body, is_json)
            } else {
                error(body).await
            };
            Ok::<_, kube::Error>(Response::from_parts(parts, body))
        }
    });
    Client::new(service, "default")
}

/// The events of a body as lines of JSON. Sets `is_json` for an event that cannot be translated.
fn lines(body: Body, is_json: Arc<AtomicBool>) -> UnsyncBoxBody<Bytes, BoxError> {
    let bytes = StreamReader::new(body.into_data_stream().map_err(io::Error::other));
    let mut codec = LengthDelimitedCodec::new();
    codec.set_max_frame_length(MAX_EVENT_BYTES);
    let lines = FramedRead::new(bytes, codec).map(move |event| {
        json_line(&event?).map_err(|error| {
            is_json.store(true, Ordering::Relaxed);
            tracing::warn!(%error, "pods are watched in JSON from now on");
            BoxError::from(error)
        })
    });
    StreamBody::new(lines.map_ok(Frame::data)).boxed_unsync()
}

/// The body of an error in JSON, empty if it is not one: then the code tells what it can.
async fn error(body: Body) -> UnsyncBoxBody<Bytes, BoxError> {
    let body = Limited::new(body, MAX_ERROR_BYTES).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let status = Object::parse(&body).ok();
    let json = status
        .and_then(|status| serde_json::to_vec(&status).ok())
        .unwrap_or_default();
    Full::from(json).map_err(BoxError::from).boxed_unsync()
}

#[cfg(test)]
mod tests;
