//! Compresses responses over 128 KiB with gzip for clients that accept it; never watches.
//!
//! A list is compressed while it is sent, so that it needs a buffer and not a second copy.

use std::io::Write as _;
use std::pin::Pin;

use bytes::{BufMut as _, Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::Body as _;

use crate::http::body::{ResponseBody, Truncated};

/// Bodies up to this many bytes are sent as they are.
const THRESHOLD: usize = 128 * 1024;
/// Compressed bytes are sent in buffers of about this size.
const BUFFER_BYTES: usize = 64 * 1024;
/// The fastest level, as the reference uses.
const LEVEL: Compression = Compression::new(1);

/// Whether the client accepts gzip, in any Accept-Encoding line.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| {
            value.split(',').any(|token| {
                let (name, quality) = token.split_once(';').unwrap_or((token, ""));
                name.trim().eq_ignore_ascii_case("gzip") && quality.replace(' ', "") != "q=0"
            })
        })
}

/// The response, compressed if it is large enough.
pub(super) async fn compress(response: Response<ResponseBody>, accepts: bool) -> Response<ResponseBody> {
    let body = response.body();
    let is_small = body.size().is_some_and(|size| size <= THRESHOLD as u64);
    if !accepts
        || is_small
        || !body.is_document()
        || response.headers().contains_key(header::CONTENT_ENCODING)
    {
        return response;
    }
    let (mut parts, mut body) = response.into_parts();
    // Guards belong to the body that is sent, not to the one that is read here.
    let (guards, deadline) = (body.release(), body.deadline());
    // A stream does not know its size: read up to the threshold.
    let (mut head, mut length) = (Vec::new(), 0);
    while length <= THRESHOLD {
        match next(&mut body).await {
            Some(Ok(bytes)) => {
                length += bytes.len();
                head.push(bytes);
            }
            Some(Err(error)) => {
                let cut = stream::iter(head.into_iter().map(Ok).chain([Err(error)]));
                return Response::from_parts(parts, ResponseBody::abortable_stream(cut).holding(guards));
            }
            None => return Response::from_parts(parts, ResponseBody::chunks(head).holding(guards)),
        }
    }
    parts
        .headers
        .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts
        .headers
        .append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(
        parts,
        ResponseBody::abortable_stream(gzip(head, body))
            .due(deadline)
            .holding(guards),
    )
}

async fn next(body: &mut ResponseBody) -> Option<Result<Bytes, Truncated>> {
    let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
    Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
}

fn gzip(head: Vec<Bytes>, rest: ResponseBody) -> impl Stream<Item = Result<Bytes, Truncated>> {
    let rest = stream::unfold(rest, |mut rest| async { Some((next(&mut rest).await?, rest)) });
    let plain = Box::pin(stream::iter(head).map(Ok).chain(rest));
    let encoder = GzEncoder::new(BytesMut::new().writer(), LEVEL);
    stream::unfold(Some((encoder, plain)), |state| async {
        let (mut encoder, mut plain) = state?;
        while let Some(bytes) = plain.next().await {
            let written =
                bytes.and_then(|bytes| encoder.write_all(&bytes).map_err(|error| not_compressed(&error)));
            if let Err(error) = written {
                return Some((Err(error), None));
            }
            let ready = encoder.get_mut().get_mut();
            if ready.len() >= BUFFER_BYTES {
                return Some((Ok(ready.split().freeze()), Some((encoder, plain))));
            }
        }
        let end = encoder.finish().map_err(|error| not_compressed(&error));
        Some((end.map(|end| end.into_inner().freeze()), None))
    })
}

fn not_compressed(error: &std::io::Error) -> Truncated {
    tracing::error!(%error, "compressing a response failed");
    Truncated("the response could not be compressed")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// The compressed body, if any, and the plain one.
    async fn sent(body: ResponseBody, accept: &'static str) -> (Option<Vec<u8>>, Vec<u8>) {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(accept));
        let response = compress(Response::new(body), accepts_gzip(&headers)).await;
        let encoding = response.headers().get(header::CONTENT_ENCODING).cloned();
        let vary = response.headers().get(header::VARY).cloned();
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(frame) = next(&mut body).await {
            bytes.extend_from_slice(&frame.unwrap());
        }
        if encoding.is_none() {
            return (None, bytes);
        }
        assert_eq!(
            (encoding.unwrap(), vary.unwrap()),
            ("gzip".parse().unwrap(), "Accept-Encoding".parse().unwrap())
        );
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(bytes.as_slice())
            .read_to_end(&mut plain)
            .unwrap();
        (Some(bytes), plain)
    }

    fn parts(sizes: &[usize]) -> Vec<Bytes> {
        let part = |(index, size): (usize, &usize)| {
            let letter = b'a' + u8::try_from(index % 26).unwrap();
            Bytes::from(vec![letter; *size])
        };
        sizes.iter().enumerate().map(part).collect()
    }

    #[tokio::test]
    async fn documents_over_128_kib_are_compressed_whether_buffered_or_streamed() {
        const KIB: usize = 1024;
        let check = async |sizes: &[usize], compressed: bool| {
            let parts = parts(sizes);
            let plain: Vec<u8> = parts.iter().flatten().copied().collect();
            let whole = ResponseBody::chunks(parts.clone());
            let streamed = ResponseBody::abortable_stream(stream::iter(parts).map(Ok));
            for body in [whole, streamed] {
                let (encoded, same) = sent(body, "gzip").await;
                assert_eq!(
                    (encoded.is_some(), same),
                    (compressed, plain.clone()),
                    "{sizes:?}"
                );
            }
        };
        check(&[], false).await;
        check(&[128 * KIB], false).await;
        check(&[64 * KIB, 64 * KIB], false).await;
        check(&[128 * KIB, 1], true).await;
        check(&[64 * KIB; 40], true).await;
    }

    #[tokio::test]
    async fn only_clients_that_accept_gzip_get_it() {
        let large = || ResponseBody::chunks(parts(&[1 << 20]));
        for accept in ["br", "", "gzip;q=0", "xgzip"] {
            assert_eq!(sent(large(), accept).await.0, None, "{accept}");
        }
        assert!(sent(large(), "br, GZIP;q=0.5").await.0.is_some());
    }

    #[tokio::test]
    async fn watches_are_never_compressed() {
        let watch = ResponseBody::stream(stream::iter(parts(&[1 << 20])));
        assert_eq!(sent(watch, "gzip").await.0, None);
    }

    #[tokio::test]
    async fn guards_are_held_until_the_body_is_sent() {
        for sizes in [&[1024][..], &[64 * 1024; 4]] {
            let (guard, mut dropped) = tokio::sync::oneshot::channel::<()>();
            let plain = stream::iter(parts(sizes)).map(Ok);
            let body = ResponseBody::abortable_stream(plain).holding(guard);
            let mut body = compress(Response::new(body), true).await.into_body();
            assert_eq!(
                dropped.try_recv(),
                Err(tokio::sync::oneshot::error::TryRecvError::Empty)
            );
            while next(&mut body).await.is_some() {}
            assert_eq!(
                dropped.try_recv(),
                Err(tokio::sync::oneshot::error::TryRecvError::Closed)
            );
        }
    }

    #[tokio::test]
    async fn a_truncated_document_is_truncated_when_compressed() {
        for before in [0, 1, 10] {
            let parts = parts(&vec![64 * 1024; before]).into_iter().map(Ok);
            let broken = parts.chain([Err(Truncated("gone"))]);
            let body = ResponseBody::abortable_stream(stream::iter(broken.collect::<Vec<_>>()));
            let response = compress(Response::new(body), true).await;
            let mut body = response.into_body();
            let last = loop {
                match next(&mut body).await {
                    Some(Ok(_)) => {}
                    other => break other,
                }
            };
            assert!(last.unwrap().is_err(), "{before}");
        }
    }
}
