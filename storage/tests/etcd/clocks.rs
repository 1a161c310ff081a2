//! Clocks of members, as their HTTP endpoints tell them.

use std::net::SocketAddr;

use drydock_storage::etcd::{EtcdOpenError, EtcdOptions, EtcdStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};

use crate::etcd_process::{EtcdProcess, free_port};

const LONG_AGO: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// The answer of a member up to its body, with another date if it is HTTP/1.1 and has one.
async fn answer(from: &mut OwnedReadHalf, date: Option<&str>) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let http = b"HTTP/1.1 ";
    while head.len() < http.len() || (head.starts_with(http) && !head.ends_with(b"\r\n\r\n")) {
        head.push(from.read_u8().await?);
    }
    let Some(date) = date.filter(|_| head.starts_with(http)) else {
        return Ok(head);
    };
    let text = String::from_utf8(head).unwrap();
    let (before, rest) = text.split_once("Date: ").unwrap();
    let (_, after) = rest.split_once("\r\n").unwrap();
    Ok(format!("{before}Date: {date}\r\n{after}").into_bytes())
}

/// The member behind a proxy that puts another date into its answers; its URL.
async fn with_date(member: &EtcdProcess, date: Option<&'static str>) -> String {
    let upstream: SocketAddr = member
        .endpoint()
        .strip_prefix("http://")
        .unwrap()
        .parse()
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(upstream).await else {
                continue;
            };
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move {
                // A client that is gone ends both ways.
                drop(copy(&mut from_client, &mut to_server).await);
            });
            tokio::spawn(async move {
                let Ok(answer) = answer(&mut from_server, date).await else {
                    return;
                };
                if to_client.write_all(&answer).await.is_ok() {
                    drop(copy(&mut from_server, &mut to_client).await);
                }
            });
        }
    });
    url
}

fn options(others: [&EtcdProcess; 2], last: &str) -> EtcdOptions {
    EtcdOptions {
        endpoints: vec![others[0].endpoint(), others[1].endpoint(), last.to_owned()],
        ..others[0].options()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_whose_clocks_are_apart_are_refused() {
    let members = EtcdProcess::start_three().await;
    let [one, two, three] = members.as_slice() else {
        panic!("there are three");
    };
    let slow = with_date(three, Some(LONG_AGO)).await;
    let error = EtcdStore::open(options([one, two], &slow)).await.unwrap_err();
    let EtcdOpenError::ClocksApart { first, second, apart } = &error else {
        panic!("{error}");
    };
    assert!(
        [members[0].endpoint(), members[1].endpoint()].contains(first),
        "{error}"
    );
    assert_eq!((second, apart.as_secs() > 900_000_000), (&slow, true), "{error}");
    let found = one.etcdctl(&["get", "x", "--write-out=fields"]);
    assert!(found.contains("\"Revision\" : 1\n"), "{found}");

    let right = with_date(three, None).await;
    let (_, opened) = EtcdStore::open(options([one, two], &right)).await.unwrap();
    assert!(opened.without_clock.is_empty(), "{opened:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_serves_http_elsewhere_is_not_compared() {
    let http = format!("--listen-client-http-urls=http://{}", free_port());
    let etcd = EtcdProcess::start_with(&["--unsafe-no-fsync", &http]).await;
    let (_, opened) = EtcdStore::open(etcd.options()).await.unwrap();
    assert_eq!(opened.without_clock, [etcd.endpoint()]);
}
