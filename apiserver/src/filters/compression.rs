//! Which responses are compressed? Whole bodies over 128 KiB for clients that ask for gzip; never watches.

use std::io::Write as _;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Response, header};

use crate::http::body::ResponseBody;

/// Bodies up to this many bytes are sent as they are.
const THRESHOLD: u64 = 128 * 1024;
/// The fastest level, as the reference uses.
const LEVEL: Compression = Compression::new(1);

/// Whether the client takes gzip: the token stands in any Accept-Encoding line.
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

pub(super) async fn compress(response: Response<ResponseBody>, accepts: bool) -> Response<ResponseBody> {
    let large = response.body().size().is_some_and(|size| size > THRESHOLD);
    if !accepts || !large || response.headers().contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    let buffers: Vec<Bytes> = response.body().buffers().cloned().collect();
    // Compressing takes milliseconds: not on a thread that serves others.
    let Ok(Some(compressed)) = tokio::task::spawn_blocking(move || gzip(&buffers)).await else {
        return response;
    };
    let (mut parts, whole) = response.into_parts();
    parts
        .headers
        .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts
        .headers
        .append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, whole.replaced_by(compressed))
}

fn gzip(buffers: &[Bytes]) -> Option<Bytes> {
    let size: usize = buffers.iter().map(Bytes::len).sum();
    let mut encoder = GzEncoder::new(BytesMut::with_capacity(size / 4).writer(), LEVEL);
    for buffer in buffers {
        encoder.write_all(buffer).ok()?;
    }
    Some(encoder.finish().ok()?.into_inner().freeze())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    async fn compressed(body: ResponseBody, accept: &'static str) -> Option<Vec<u8>> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(accept));
        let response = compress(Response::new(body), accepts_gzip(&headers)).await;
        let encoding = response.headers().get(header::CONTENT_ENCODING).cloned();
        encoding.map(|encoding| {
            assert_eq!(encoding, "gzip");
            assert_eq!(response.headers()[header::VARY], "Accept-Encoding");
            response.body().buffers().flatten().copied().collect()
        })
    }

    #[tokio::test]
    async fn only_bodies_over_128_kib_are_compressed() {
        let size = 128 * 1024;
        assert_eq!(
            compressed(ResponseBody::full(vec![b'x'; size]), "gzip").await,
            None
        );
        let body = || ResponseBody::chunks([Bytes::from(vec![b'x'; size]), Bytes::from_static(b"y")]);
        let bytes = compressed(body(), "gzip").await.unwrap();
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(bytes.as_slice())
            .read_to_end(&mut plain)
            .unwrap();
        assert_eq!((plain.len(), plain.last()), (size + 1, Some(&b'y')));
        for accept in ["br", "", "gzip;q=0", "xgzip"] {
            assert_eq!(compressed(body(), accept).await, None, "{accept}");
        }
        assert!(compressed(body(), "br, GZIP;q=0.5").await.is_some());
    }

    #[tokio::test]
    async fn streams_are_never_compressed() {
        let stream = ResponseBody::stream(futures_util::stream::iter([Bytes::from(vec![b'x'; 1 << 20])]));
        assert_eq!(compressed(stream, "gzip").await, None);
    }
}
