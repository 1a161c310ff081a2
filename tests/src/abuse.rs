//! Abuse: what users with few rights, and strangers with none, can do to everybody else.
//!
//! An [`Abuser`] cancels requests, sends bodies that are refused, opens and drops watches, and sends targets and selectors
//! that are too long, and the bodies of [`heavy`]. An [`Honest`] client works meanwhile, and no request of it may fail, nor its watch end.

pub mod heavy;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures_util::future::{Either, join_all, select, try_join_all};
use http::Method;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use crate::calls::{Caller, MERGE_PATCH};
use crate::clients::{Protocol, RawClient};
use crate::load::{Call, Pool};

/// The pause after which a request is cancelled: long enough for it to be sent.
const CANCEL_AFTER: Duration = Duration::from_millis(3);
/// Requests of an abuser that run at a time.
const AT_ONCE: usize = 50;
/// The size of a body that is refused.
const REFUSED_BYTES: usize = 20_000;
/// More than any server accepts as a request target.
const TARGET_BYTES: usize = 100_000;
/// Terms of a long selector.
const TERMS: usize = 5000;

/// How often an abuser does what it does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Volume {
    /// Requests that are cancelled before their response.
    pub cancelled: usize,
    /// Requests that are refused: bodies of a media type that is not served, bodies that are no object, objects that are
    /// missing, and methods that are not allowed.
    pub refused: usize,
    /// Watches that are opened together and dropped.
    pub watches: usize,
    /// How often.
    pub drops: usize,
    /// Requests with a target that is too long.
    pub targets: usize,
    /// Lists with a selector of many terms.
    pub selectors: usize,
    /// How often each of [`heavy::calls`] is sent.
    pub heavy: usize,
}

/// A user who abuses a server.
pub struct Abuser {
    client: RawClient,
    collection: String,
}

impl Abuser {
    /// A user of a client that speaks HTTP/2, and a collection that the user may read and write.
    #[must_use]
    pub fn new(client: RawClient, collection: impl Into<String>) -> Self {
        Self {
            client,
            collection: collection.into(),
        }
    }

    /// Does everything once. Whatever the server refuses is fine.
    ///
    /// # Errors
    /// The server takes no connection, or it answers 5xx: then a connection behind it was lost.
    pub async fn abuse(&self, volume: Volume) -> Result<()> {
        self.cancel(volume.cancelled).await?;
        self.send_each(volume.refused, &self.refused(), refused).await?;
        for _ in 0..volume.drops {
            self.watch(volume.watches).await?;
        }
        let terms: Vec<String> = (0..TERMS).map(|number| format!("k{number}")).collect();
        let selecting = format!("{}?labelSelector={}", self.collection, terms.join("%2C"));
        self.send(volume.selectors, &Call::get(selecting)).await?;
        for _ in 0..volume.targets {
            self.exceed().await?;
        }
        for _ in 0..volume.heavy {
            for call in heavy::calls("default", "00000000-0000-4000-ab05-00000000beef") {
                self.send(1, &call).await?;
            }
        }
        Ok(())
    }

    async fn cancel(&self, count: usize) -> Result<()> {
        for start in (0..count).step_by(AT_ONCE) {
            // The server may end the connection of a user who cancels that much, but not those of others.
            let pool = Pool::open(&self.client, 1).await?;
            let batch = (start..count.min(start + AT_ONCE)).map(async |number| {
                let call = Call::get(format!("{}/cancelled-{number}", self.collection));
                let mut sender = pool.sender(0)?;
                match timeout(CANCEL_AFTER, sender.send(call)).await {
                    Ok(Ok(response)) => served(response.status.as_u16()),
                    Ok(Err(_)) | Err(_) => Ok(()),
                }
            });
            try_join_all(batch).await.context("cancelled requests")?;
        }
        Ok(())
    }

    /// One request of each kind that is refused. Where a body is refused, the server has not read it before.
    fn refused(&self) -> Vec<Call> {
        let body = Bytes::from(vec![b'x'; REFUSED_BYTES]);
        let item = format!("{}/refused.example.com", self.collection);
        let post = |path: &str| Call::post(path.to_owned(), body.clone());
        vec![
            Call {
                content_type: Some("text/plain"),
                ..post(&self.collection)
            },
            post(&self.collection),
            post(&item),
            Call {
                method: Method::PUT,
                ..post(&self.collection)
            },
            Call::merge_patch(item.clone(), body.clone()),
            Call::get(item),
        ]
    }

    async fn send(&self, count: usize, call: &Call) -> Result<()> {
        self.send_each(count, std::slice::from_ref(call), served).await
    }

    /// Sends `count` requests, of each call in turn, and checks their status codes.
    async fn send_each(&self, count: usize, calls: &[Call], check: fn(u16) -> Result<()>) -> Result<()> {
        let pool = Pool::open(&self.client, 1).await?;
        for start in (0..count).step_by(AT_ONCE) {
            let numbers = start..count.min(start + AT_ONCE);
            let batch = numbers.zip(calls.iter().cycle().skip(start % calls.len().max(1)));
            let batch = batch.map(async |(_, call)| {
                let what = || format!("{} {:.80}", call.method, call.path);
                let sent = pool.sender(0)?.send(call.clone()).await;
                let response = sent.with_context(what)?;
                check(response.status.as_u16()).with_context(what)
            });
            try_join_all(batch).await?;
        }
        Ok(())
    }

    async fn watch(&self, count: usize) -> Result<()> {
        let pool = Pool::open(&self.client, count.div_ceil(AT_ONCE)).await?;
        let watches = (0..count).map(async |number| {
            let call = Call::get(format!("{}?watch=true", self.collection));
            let response = pool.sender(number)?.stream(call).await?;
            served(response.status().as_u16())?;
            Ok::<_, anyhow::Error>(response)
        });
        let open = try_join_all(watches).await.context("watches")?;
        drop(open);
        Ok(())
    }

    /// Over HTTP/1.1 and byte by byte, since the client's own library cannot represent such a target.
    async fn exceed(&self) -> Result<()> {
        let begun = Instant::now();
        let mut stream = self.client.speaking(Protocol::Http1).open().await?;
        let target = format!("{}?labelSelector={}", self.collection, "x".repeat(TARGET_BYTES));
        let head = format!("GET {target} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
        stream
            .write_all(head.as_bytes())
            .await
            .context("send a long target")?;
        // What the socket had no room for is still in the buffer of TLS.
        stream.flush().await.context("send a long target")?;
        let mut response = Vec::new();
        // The end may come without a TLS close.
        let end = stream.read_to_end(&mut response).await;
        let text = String::from_utf8_lossy(&response);
        ensure!(
            text.starts_with("HTTP/1.1 414 ") && text.contains("\"code\":414"),
            "a target of {TARGET_BYTES} bytes, {:?} after the connection was begun: {end:?}, {text:.300}",
            begun.elapsed()
        );
        Ok(())
    }
}

/// Checks that a server served or refused a request, and did not fail.
fn served(status: u16) -> Result<()> {
    ensure!(status < 500, "the server failed with {status}");
    Ok(())
}

/// Checks that a server refused a request.
fn refused(status: u16) -> Result<()> {
    ensure!((400..500).contains(&status), "refused with {status}");
    Ok(())
}

/// A client that does nothing wrong.
pub struct Honest {
    caller: Caller,
    collection: String,
    object: Box<dyn Fn(usize) -> Value + Send + Sync>,
}

/// How an honest client fared.
#[derive(Clone, Copy, Debug)]
pub struct Fared {
    /// How often it created, changed, read and deleted an object.
    pub rounds: usize,
    /// Its slowest request.
    pub slowest: Duration,
    /// What 99 of 100 of its requests were faster than.
    pub p99: Duration,
}

/// The duration that 99 of 100 do not exceed.
fn p99(durations: &mut [Duration]) -> Duration {
    durations.sort_unstable();
    let at = durations.len().saturating_sub(1) * 99 / 100;
    durations.get(at).copied().unwrap_or_default()
}

impl Honest {
    /// A client that works on objects of a collection; `object` makes the object of a round.
    #[must_use]
    pub fn new(
        caller: Caller,
        collection: impl Into<String>,
        object: impl Fn(usize) -> Value + Send + Sync + 'static,
    ) -> Self {
        Self {
            caller,
            collection: collection.into(),
            object: Box::new(object),
        }
    }

    /// Works until `abuse` has ended, and at least ten rounds, with a watch open from the beginning to the end.
    ///
    /// # Errors
    /// A request failed, the watch ended or missed an event, or the abuse itself met a failure of the server.
    pub async fn work_during(&self, abuse: impl Future<Output = Result<()>>) -> Result<Fared> {
        let listed = self.caller.get(&self.collection).await?.expect(200)?;
        let from = listed
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str);
        let from = from.context("a list has a revision")?;
        let path = format!("{}?watch=true&resourceVersion={from}", self.collection);
        let mut watch = self.caller.watch(&path).await?;
        let mut fared = Fared {
            rounds: 0,
            slowest: Duration::ZERO,
            p99: Duration::ZERO,
        };
        let mut durations = Vec::new();
        let mut abuse = std::pin::pin!(abuse);
        let mut is_over = false;
        while !is_over || fared.rounds < 10 {
            let round = std::pin::pin!(self.round(fared.rounds));
            let took = if is_over {
                round.await?
            } else {
                match select(round, abuse.as_mut()).await {
                    Either::Left((took, _)) => took?,
                    Either::Right((result, round)) => {
                        result?;
                        is_over = true;
                        round.await?
                    }
                }
            };
            durations.extend(took);
            let own = (self.object)(fared.rounds);
            fared.rounds += 1;
            for expected in ["ADDED", "MODIFIED", "DELETED"] {
                // A controller may change the object, too, and abusers create others.
                loop {
                    let (kind, name) = watch.type_and_name().await?;
                    let is_own = own.pointer("/metadata/name").is_some_and(|own| *own == name);
                    if is_own && kind == expected {
                        break;
                    }
                    ensure!(
                        !is_own || kind == "MODIFIED",
                        "{kind} of {name} instead of {expected}"
                    );
                }
            }
        }
        fared.p99 = p99(&mut durations);
        fared.slowest = durations.last().copied().unwrap_or_default();
        Ok(fared)
    }

    /// Creates, changes, reads and deletes an object; how long each of these requests took.
    async fn round(&self, number: usize) -> Result<[Duration; 4]> {
        let object = (self.object)(number);
        let name = object.pointer("/metadata/name").and_then(Value::as_str);
        let path = format!("{}/{}", self.collection, name.context("an object has a name")?);
        let changed = serde_json::json!({ "metadata": { "labels": { "changed": "yes" } } });
        let mut took = [Duration::ZERO; 4];
        let steps = [
            (Method::POST, 201),
            (Method::PATCH, 200),
            (Method::GET, 200),
            (Method::DELETE, 200),
        ];
        for ((method, code), took) in steps.into_iter().zip(&mut took) {
            let begun = Instant::now();
            let response = match method {
                Method::POST => self.caller.post(&self.collection, &object).await?,
                Method::PATCH => self.caller.patch(&path, MERGE_PATCH, &changed).await?,
                Method::GET => self.caller.get(&path).await?,
                _ => self.caller.delete(&path).await?,
            };
            response.expect(code)?;
            *took = begun.elapsed();
        }
        Ok(took)
    }
}

/// Opens connections of a client that are never used, and holds them while `work` runs.
///
/// # Errors
/// The server takes none at all, or `work` fails.
pub async fn holding<T>(
    client: &RawClient,
    count: usize,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut held = Vec::new();
    for start in (0..count).step_by(AT_ONCE) {
        let opened = (start..count.min(start + AT_ONCE)).map(|_| client.open());
        held.extend(join_all(opened).await.into_iter().flatten());
    }
    ensure!(!held.is_empty(), "no connection could be opened");
    let result = work.await;
    drop(held);
    result
}
