//! How far the clocks of the members are apart.
//!
//! No call of etcd's API tells a member's time, but a client URL also serves HTTP, and every answer there has a `Date`. It
//! has whole seconds, and the answer takes its time, so that a clock is known as a range. Two members are apart by at least
//! the gap between their ranges: no difference is reported that a slow network could explain.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, join_all, select};
use http::header::{DATE, HOST};
use http::{HeaderValue, Request, Uri};
use http_body_util::Empty;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use jiff::fmt::rfc2822::DateTimeParser;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::error::{CLOCKS_APART, EtcdOpenError};
use super::options::Pem;
use crate::clock::{Clock as _, Stopwatch, SystemClock};

/// How long a member may take to tell its time.
const PATIENCE: Duration = Duration::from_secs(3);
/// What is asked for: any path has a date.
const PATH: &str = "/version";
/// The `Date` of an answer has whole seconds: the clock was at most so much later.
const RESOLUTION_MS: i64 = 1000;

/// Where a clock is, relative to the clock of this process: milliseconds, positive if it is ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reading {
    endpoint: String,
    earliest: i64,
    latest: i64,
}

/// The clock of this process at the start, and a stopwatch since: a clock that is set meanwhile changes nothing.
#[derive(Clone, Copy)]
struct Own {
    began_ms: i64,
    since: Stopwatch,
}

impl Own {
    fn now_ms(self) -> i64 {
        self.began_ms
            .saturating_add(i64::try_from(self.since.elapsed().as_millis()).unwrap_or(i64::MAX))
    }
}

/// Asks these members for their time. Returns those that did not tell it.
///
/// # Errors
/// [`EtcdOpenError::ClocksApart`].
pub(super) async fn check(
    endpoints: impl Iterator<Item = &String>,
    pem: &Pem,
) -> Result<Vec<String>, EtcdOpenError> {
    let own = Own {
        began_ms: i64::try_from(SystemClock.now_ms()).unwrap_or(i64::MAX),
        since: Stopwatch::start(),
    };
    let asked = endpoints.map(async |endpoint| {
        let answer = timeout(PATIENCE, read(endpoint, pem, own)).await;
        (
            endpoint,
            answer.unwrap_or_else(|_| Err("no answer in time".to_owned())),
        )
    });
    let (mut readings, mut unknown) = (Vec::new(), Vec::new());
    for (endpoint, answer) in join_all(asked).await {
        match answer {
            Ok(reading) => readings.push(reading),
            Err(reason) => {
                tracing::info!(endpoint, reason, "the clock of a member of etcd is not compared");
                unknown.push(endpoint.clone());
            }
        }
    }
    compare(&readings)?;
    if let Some(apart) = own_apart(&readings) {
        tracing::warn!(
            ?apart,
            "the clock of this machine is not that of etcd's members: times in objects are those of this machine"
        );
    }
    Ok(unknown)
}

/// Refuses clocks that are apart; names the two that are furthest.
fn compare(readings: &[Reading]) -> Result<(), EtcdOpenError> {
    let (Some(first), Some(second)) = (
        readings.iter().max_by_key(|reading| reading.earliest),
        readings.iter().min_by_key(|reading| reading.latest),
    ) else {
        return Ok(());
    };
    let apart = milliseconds(first.earliest.saturating_sub(second.latest));
    if apart <= CLOCKS_APART {
        return Ok(());
    }
    Err(EtcdOpenError::ClocksApart {
        first: first.endpoint.clone(),
        second: second.endpoint.clone(),
        apart,
    })
}

/// How far the clock of this process is from that of every member, if that is too much.
fn own_apart(readings: &[Reading]) -> Option<Duration> {
    let distances = readings
        .iter()
        .map(|reading| milliseconds(reading.earliest.max(reading.latest.saturating_neg())));
    distances.min().filter(|apart| *apart > CLOCKS_APART)
}

fn milliseconds(positive: i64) -> Duration {
    Duration::from_millis(u64::try_from(positive).unwrap_or_default())
}

async fn read(endpoint: &str, pem: &Pem, own: Own) -> Result<Reading, String> {
    let uri: Uri = endpoint.parse().map_err(said)?;
    let authority = uri.authority().ok_or("it has no host")?;
    let host = authority.host().trim_matches(['[', ']']);
    let is_tls = uri.scheme_str() == Some("https");
    let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let request = Request::get(PATH)
        .header(HOST, authority.as_str())
        .body(Empty::<Bytes>::new())
        .map_err(said)?;
    let stream = TcpStream::connect((host, port)).await.map_err(said)?;
    let (before, date, after) = if is_tls {
        let name = ServerName::try_from(host.to_owned()).map_err(said)?;
        let connector = TlsConnector::from(Arc::new(tls(pem).map_err(said)?));
        let stream = connector.connect(name, stream).await.map_err(said)?;
        ask(stream, request, own).await?
    } else {
        ask(stream, request, own).await?
    };
    Ok(Reading {
        endpoint: endpoint.to_owned(),
        earliest: date.saturating_sub(after),
        latest: date.saturating_add(RESOLUTION_MS).saturating_sub(before),
    })
}

/// Sends the request; returns the date of the answer, in milliseconds since 1970, and the own time before and after.
async fn ask(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Empty<Bytes>>,
    own: Own,
) -> Result<(i64, i64, i64), String> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(said)?;
    let before = own.now_ms();
    let answer = Box::pin(sender.send_request(request));
    let answer = match select(answer, Box::pin(connection)).await {
        Either::Left((answer, _)) => answer,
        // It ended after the answer, or the answer says why there is none.
        Either::Right((_, answer)) => answer.await,
    };
    let after = own.now_ms();
    let answer = answer.map_err(said)?;
    let date = answer.headers().get(DATE).ok_or("its answer has no Date")?;
    let date = parse(date).ok_or("the Date of its answer cannot be read")?;
    Ok((before, date, after))
}

fn parse(date: &HeaderValue) -> Option<i64> {
    let time = DateTimeParser::new().parse_timestamp(date.as_bytes()).ok()?;
    Some(time.as_millisecond())
}

/// The same trust and the same identity as for requests.
fn tls(pem: &Pem) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.ca.as_deref().unwrap_or_default()) {
        let certificate = certificate.map_err(io::Error::other)?;
        roots.add(certificate).map_err(io::Error::other)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let (Some(certificate), Some(key)) = (&pem.certificate, &pem.key) else {
        return Ok(config.with_no_client_auth());
    };
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>();
    let chain = chain.map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(io::Error::other)?;
    config.with_client_auth_cert(chain, key).map_err(io::Error::other)
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn reading(endpoint: &str, earliest: i64, latest: i64) -> Reading {
        Reading {
            endpoint: endpoint.to_owned(),
            earliest,
            latest,
        }
    }

    fn apart(readings: &[(&str, i64, i64)]) -> Option<(String, String, u128)> {
        let readings: Vec<_> = readings.iter().map(|it| reading(it.0, it.1, it.2)).collect();
        match compare(&readings) {
            Ok(()) => None,
            Err(EtcdOpenError::ClocksApart { first, second, apart }) => {
                Some((first, second, apart.as_millis()))
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn only_a_gap_that_nothing_else_explains_is_refused() {
        let found = |first: &str, second: &str, ms| Some((first.to_owned(), second.to_owned(), ms));
        assert_eq!(apart(&[]), None);
        assert_eq!(apart(&[("a", 90_000, 91_000)]), None);
        assert_eq!(apart(&[("a", 0, 1_000), ("b", 6_000, 7_000)]), None);
        assert_eq!(
            apart(&[("a", 0, 1_000), ("b", 6_001, 7_000)]),
            found("b", "a", 5_001)
        );
        // A slow answer widens its range.
        assert_eq!(apart(&[("a", 0, 1_000), ("b", 4_000, 7_000)]), None);
        assert_eq!(
            apart(&[("a", 0, 900), ("b", -20_000, -19_000), ("c", 10, 800)]),
            found("c", "b", 19_010)
        );
    }

    #[test]
    fn the_own_clock_is_apart_if_it_is_from_every_member() {
        let apart = |ranges: &[(i64, i64)]| {
            let readings: Vec<_> = ranges.iter().map(|it| reading("a", it.0, it.1)).collect();
            own_apart(&readings).map(|apart| apart.as_millis())
        };
        assert_eq!(apart(&[]), None);
        assert_eq!(apart(&[(-500, 500)]), None);
        assert_eq!(apart(&[(8_000, 9_000), (-500, 500)]), None);
        assert_eq!(apart(&[(8_000, 9_000), (7_500, 8_500)]), Some(7_500));
        assert_eq!(apart(&[(-9_000, -8_000)]), Some(8_000));
    }

    /// Answers one request on a port of its own; returns its URL.
    async fn endpoint(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            assert!(request.starts_with(b"GET /version HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        url
    }

    #[tokio::test]
    async fn a_clock_is_read_from_the_date_of_an_answer() {
        let own = Own {
            began_ms: 784_111_777_000,
            since: Stopwatch::start(),
        };
        // Ten minutes after the own clock: 1994-11-06 08:49:37 UTC.
        let url =
            endpoint("HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:59:37 GMT\r\nContent-Length: 2\r\n\r\n{}")
                .await;
        let found = read(&url, &Pem::default(), own).await.unwrap();
        let took = i64::try_from(own.since.elapsed().as_millis()).unwrap();
        assert_eq!(found.endpoint, url);
        assert!((600_000 - took..=600_000).contains(&found.earliest), "{found:?}");
        assert!((601_000 - took..=601_000).contains(&found.latest), "{found:?}");
    }

    #[tokio::test]
    async fn members_without_a_date_are_not_compared() {
        let fast = endpoint(
            "HTTP/1.1 404 Not Found\r\nDate: Sun, 06 Nov 1994 08:59:37 GMT\r\nContent-Length: 0\r\n\r\n",
        );
        let slow =
            endpoint("HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 0\r\n\r\n");
        let mute = endpoint("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let odd = endpoint("HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: 0\r\n\r\n");
        let (fast, slow, mute, odd, gone) =
            (fast.await, slow.await, mute.await, odd.await, endpoint("").await);
        let listed = [&mute, &odd, &gone, &slow];
        let unknown = check(listed.into_iter(), &Pem::default()).await.unwrap();
        assert_eq!(unknown, [mute, odd, gone]);
        let slow =
            endpoint("HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 0\r\n\r\n")
                .await;
        let refused = check([&slow, &fast].into_iter(), &Pem::default())
            .await
            .unwrap_err();
        let text = refused.to_string();
        let expected = format!("the clocks of {fast} and {slow} are at least 59");
        assert!(
            text.starts_with(&expected) && text.contains("at most 5 s"),
            "{text}"
        );
    }
}
