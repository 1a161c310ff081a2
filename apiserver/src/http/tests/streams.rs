//! Cancelled, refused and slow requests: what others on the same connection notice of them.

use super::*;

const CANCEL: u32 = 8;
const WATCH: &str = "/apis/g/v/watches?watch=1";

/// An HTTP/2 connection as frames, so that any number of them can be sent at once.
struct Frames {
    stream: TlsStream<TcpStream>,
    read: Vec<u8>,
}

impl Frames {
    async fn over(mut stream: TlsStream<TcpStream>) -> Self {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, &[]));
        // Windows for all responses.
        bytes.extend(frame(8, 0, 0, &0x3fff_ffff_u32.to_be_bytes()));
        stream.write_all(&bytes).await.unwrap();
        stream.flush().await.unwrap();
        Self {
            stream,
            read: Vec::new(),
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// The next frame: its type, flags, stream and payload. None at the end of the connection.
    async fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        loop {
            if let Some((head, rest)) = self.read.split_first_chunk::<9>() {
                let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                if let Some(payload) = rest.get(..length) {
                    let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
                    let frame = (head[3], head[4], stream, payload.to_vec());
                    self.read.drain(..9 + length);
                    return Some(frame);
                }
            }
            if !matches!(self.stream.read_buf(&mut self.read).await, Ok(1..)) {
                return None;
            }
        }
    }

    /// Sends a ping and reads until it is answered; the frames in between, without settings and windows. None if the
    /// connection ends or the server says that it will.
    async fn settled(&mut self) -> Option<Vec<(u8, u32)>> {
        self.send(&frame(6, 0, 0, &[7; 8])).await.ok()?;
        let mut between = Vec::new();
        loop {
            match self.next().await? {
                (6, 1, _, payload) if payload == [7; 8] => return Some(between),
                (6, 0, _, payload) => self.send(&frame(6, 1, 0, &payload)).await.ok()?,
                (7, ..) => return None,
                (4 | 8, ..) => {}
                (kind, _, stream, _) => between.push((kind, stream)),
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header block without compression, as one or several frames.
fn headers(stream: u32, method: &str, path: &str, more: &[(&str, &str)], has_body: bool) -> Vec<u8> {
    let mut block = Vec::new();
    let lines = [
        (":method", method),
        (":scheme", "https"),
        (":authority", "drydock.test"),
        (":path", path),
        ("x-remote-user", "alice"),
    ];
    for (name, value) in lines.iter().chain(more) {
        block.push(0);
        for text in [name, value] {
            let mut rest = text.len();
            if rest < 127 {
                block.push(u8::try_from(rest).unwrap());
            } else {
                block.push(127);
                rest -= 127;
                while rest >= 128 {
                    block.push(u8::try_from(rest % 128).unwrap() | 128);
                    rest /= 128;
                }
                block.push(u8::try_from(rest).unwrap());
            }
            block.extend(text.bytes());
        }
    }
    let chunks: Vec<&[u8]> = block.chunks(16_384).collect();
    let mut bytes = Vec::new();
    for (at, chunk) in chunks.iter().enumerate() {
        let ends_headers = if at + 1 == chunks.len() { 4 } else { 0 };
        let ends_stream = u8::from(at == 0 && !has_body);
        let kind = if at == 0 { 1 } else { 9 };
        bytes.extend(frame(kind, ends_headers | ends_stream, stream, chunk));
    }
    bytes
}

fn reset(stream: u32) -> Vec<u8> {
    frame(3, 0, stream, &CANCEL.to_be_bytes())
}

async fn watching(cluster: &Cluster, identity: &Identity) -> Frames {
    let mut frames = Frames::over(cluster.dial(Some(identity), "h2").await.unwrap()).await;
    frames.send(&headers(1, "GET", WATCH, &[], false)).await.unwrap();
    loop {
        if let (0, _, 1, payload) = frames.next().await.unwrap() {
            assert_eq!(payload, b"{}\n");
            return frames;
        }
    }
}

/// Requests that are cancelled at once, in one piece.
fn cancelled(first: u32, count: u32) -> Vec<u8> {
    (0..count)
        .flat_map(|number| {
            let stream = first + 2 * number;
            let mut bytes = headers(stream, "GET", "/apis/g/v/hangs", &[], false);
            bytes.extend(reset(stream));
            bytes
        })
        .collect()
}

#[tokio::test]
async fn a_burst_of_cancelled_requests_ends_no_watch() {
    let cluster = Cluster::start().await;
    for identity in [cluster.proxy(), cluster.users.issue(&Subject::client("alice"))] {
        let mut frames = watching(&cluster, &identity).await;
        frames.send(&cancelled(3, 3000)).await.unwrap();
        let between = frames.settled().await.expect("the connection goes on");
        assert!(!between.contains(&(3, 1)), "the watch was reset");
    }
}

#[tokio::test]
async fn a_flood_of_cancelled_requests_ends_the_connection() {
    let cluster = Cluster::start().await;
    let alice = cluster.users.issue(&Subject::client("alice"));
    let mut frames = watching(&cluster, &alice).await;
    let mut sent = 0;
    while frames.send(&cancelled(3 + 2 * sent, 1000)).await.is_ok() {
        sent += 1000;
        assert!(sent < 100_000, "the flood has no end");
        if frames.settled().await.is_none() {
            break;
        }
    }
    assert!(sent >= 10_000 || frames.next().await.is_none());
    // Nobody else is affected.
    let mut client = cluster.client(Some(&cluster.proxy()), "h2").await;
    assert_eq!(client.send(request("GET", PATH, "")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn refused_requests_with_bodies_end_no_watch() {
    let cluster = Cluster::start().await;
    let mut frames = watching(&cluster, &cluster.proxy()).await;
    let body = vec![b'x'; 10_000];
    let mut stream = 3;
    for _ in 0..30 {
        // Of each hundred the heads come first, so that all are refused before their bodies arrive.
        let streams: Vec<u32> = (0..100).map(|number| stream + 2 * number).collect();
        stream += 200;
        for stream in &streams {
            let head = headers(*stream, "POST", "/apis/g/v/missing", &[], true);
            frames.send(&head).await.unwrap();
        }
        let between = frames.settled().await.expect("the connection goes on");
        assert!(between.iter().all(|(kind, _)| *kind != 3), "{between:?}");
        for stream in &streams {
            frames.send(&frame(0, 0, *stream, &body)).await.unwrap();
            frames.send(&frame(0, 1, *stream, &body)).await.unwrap();
        }
        let between = frames.settled().await.expect("the connection goes on");
        assert!(between.iter().all(|(kind, _)| *kind != 3), "{between:?}");
    }
}

#[tokio::test]
async fn a_thousand_streams_are_open_at_once() {
    let cluster = Cluster::start().await;
    let mut frames = watching(&cluster, &cluster.proxy()).await;
    for number in 1..1000 {
        let head = headers(1 + 2 * number, "GET", WATCH, &[], false);
        frames.send(&head).await.unwrap();
    }
    let mut open = 1;
    while open < 1000 {
        let (kind, _, stream, payload) = frames.next().await.unwrap();
        assert!(![3, 7].contains(&kind), "stream {stream} was refused");
        open += usize::from(kind == 0 && payload == b"{}\n");
    }
}

#[tokio::test]
async fn responses_reach_clients_that_send_their_body_first() {
    let cluster = Cluster::start().await;
    let mut stream = cluster.dial(Some(&cluster.proxy()), "http/1.1").await.unwrap();
    // Twice over one connection: it stays usable.
    for _ in 0..2 {
        let head = format!(
            "POST /apis/g/v/missing HTTP/1.1\r\nHost: a\r\nX-Remote-User: alice\r\nContent-Length: {BODY_LIMIT}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b'x'; BODY_LIMIT]).await.unwrap();
        stream.flush().await.unwrap();
        let mut response = Vec::new();
        while !String::from_utf8_lossy(&response).contains("\"code\":404") {
            assert!(stream.read_buf(&mut response).await.unwrap() > 0);
        }
        assert!(response.starts_with(b"HTTP/1.1 404 "));
    }
}

#[tokio::test]
async fn a_client_that_waits_for_an_invitation_is_not_invited_to_send_a_refused_body() {
    let cluster = Cluster::start().await;
    let mut stream = cluster.dial(Some(&cluster.proxy()), "http/1.1").await.unwrap();
    let head = "POST /apis/g/v/missing HTTP/1.1\r\nHost: a\r\nX-Remote-User: alice\r\nContent-Length: 9\r\n\
                Expect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    assert!(response.starts_with(b"HTTP/1.1 404 "));
}

#[tokio::test]
async fn a_user_may_have_thousands_of_groups() {
    let cluster = Cluster::start().await;
    for protocol in ["h2", "http/1.1"] {
        let mut client = cluster.client(Some(&cluster.proxy()), protocol).await;
        let mut asking = request("GET", PATH, "");
        for number in 0..12_000 {
            let group = format!("a-group-of-this-user-{number}").parse().unwrap();
            asking.headers_mut().append("x-remote-group", group);
        }
        let response = client.send(asking).await.unwrap();
        assert_eq!(response.status(), 200, "{protocol}");
        assert!(
            text(response).await.contains("a-group-of-this-user-11999"),
            "{protocol}"
        );
    }
}

/// Responds with an endless body that is due in a minute.
struct Due;

impl Service for Due {
    async fn serve(&self, _: &Connection, _: Request<RequestBody>) -> Response<ResponseBody> {
        let frames = futures_util::stream::repeat(Bytes::from_static(&[b'x'; 16 * 1024]));
        let body = ResponseBody::stream(frames).cut_at(Instant::now() + Duration::from_mins(1));
        Response::new(body)
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_does_not_outlive_the_deadline_of_its_request_over_http_1() {
    let (mut client, stream) = tokio::io::duplex(64 * 1024);
    let connection = Connection::new(SocketAddr::from(([127, 0, 0, 1], 1)), false, None);
    let begun = Instant::now();
    let ended = tokio::spawn(async move {
        connection::serve(stream, connection, Arc::new(Due), CancellationToken::new()).await;
        begun.elapsed().as_secs()
    });
    client
        .write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    let reading = tokio::spawn(async move {
        while client.read_u8().await.is_ok() {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    let seconds = ended.await.unwrap();
    assert!((60..=64).contains(&seconds), "{seconds}");
    reading.abort();
}

#[tokio::test]
async fn long_targets_are_refused_and_end_no_watch() {
    let cluster = Cluster::start().await;
    let mut frames = watching(&cluster, &cluster.proxy()).await;
    let path = |length: usize| format!("{PATH}?labelSelector={}", "a".repeat(length));
    for number in 1..=3 {
        let head = headers(1 + 2 * number, "GET", &path(70_000), &[], false);
        frames.send(&head).await.unwrap();
    }
    let mut bodies = 0;
    while bodies < 3 {
        let (kind, _, stream, payload) = frames.next().await.expect("the connection goes on");
        assert!(![3, 7].contains(&kind), "stream {stream} was reset");
        bodies += usize::from(kind == 0 && String::from_utf8_lossy(&payload).contains("\"code\":414"));
    }

    for length in [65_500, 65_536, 100_000, 900_000] {
        let mut stream = cluster.dial(Some(&cluster.proxy()), "http/1.1").await.unwrap();
        let head = format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", path(length));
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut response = Vec::new();
        while !String::from_utf8_lossy(&response).contains("\"code\":414") {
            assert!(stream.read_buf(&mut response).await.unwrap() > 0);
        }
        assert!(response.starts_with(b"HTTP/1.1 414 "), "{length}");
    }
}
