//! Calls to a server, many at a time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use drydock_tests::clients::RawClient;
use drydock_tests::load::{Call, Pool, Response};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;
use tokio::sync::Mutex;

/// The connections to a server.
const CONNECTIONS: usize = 4;
/// The calls in flight while objects are created.
const IN_FLIGHT: usize = 32;
/// The timeout of waits, enough for 150,000 objects on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_hours(1);

/// A server, with connections that are opened again when the server has closed them.
pub(crate) struct Endpoint {
    client: RawClient,
    pool: Mutex<Option<Arc<Pool>>>,
}

impl Endpoint {
    /// The server of this client.
    pub(crate) fn new(client: RawClient) -> Self {
        Self {
            client,
            pool: Mutex::default(),
        }
    }

    /// Open connections.
    pub(crate) async fn pool(&self) -> Result<Arc<Pool>> {
        let mut pool = self.pool.lock().await;
        if let Some(open) = pool.as_ref().filter(|pool| pool.is_open()) {
            return Ok(Arc::clone(open));
        }
        let opened = Arc::new(Pool::open(&self.client, CONNECTIONS).await?);
        *pool = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

/// Sends one request, which must succeed.
pub(crate) async fn send(server: &Endpoint, call: Call) -> Result<Response> {
    let what = format!("{} {}", call.method, call.path);
    let mut sender = server.pool().await?.sender(0)?;
    let response = sender.send_keeping(call, usize::MAX).await?;
    response.succeeded().context(what)
}

/// Reads an object or a list.
pub(crate) async fn get(server: &Endpoint, path: &str) -> Result<Value> {
    let response = send(server, Call::get(path)).await?;
    serde_json::from_slice(&response.start).with_context(|| format!("parse the response to GET {path}"))
}

/// Sends requests `0..count`, each of which must succeed, and returns what `read` makes of the responses, in any order.
pub(crate) async fn send_all<T>(
    server: &Endpoint,
    count: u64,
    call: impl Fn(u64) -> Call,
    read: impl Fn(u64, &Response) -> Result<T>,
) -> Result<Vec<T>> {
    let pool = server.pool().await?;
    stream::iter(0..count)
        .map(|number| {
            let sender = usize::try_from(number).map_or_else(|error| Err(error.into()), |it| pool.sender(it));
            let (call, read) = (call(number), &read);
            async move {
                let what = format!("{} {}", call.method, call.path);
                let response = sender?.send(call).await?.succeeded().context(what)?;
                read(number, &response)
            }
        })
        .buffer_unordered(IN_FLIGHT)
        .try_collect()
        .await
}

/// The number of objects in a list. The path ends with the first parameter, if there are any.
pub(crate) async fn count(server: &Endpoint, path: &str) -> Result<u64> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let list = get(server, &format!("{path}{separator}limit=1")).await?;
    let items = list.get("items").and_then(Value::as_array).map_or(0, Vec::len);
    let remaining = list.pointer("/metadata/remainingItemCount");
    Ok(items as u64 + remaining.and_then(Value::as_u64).unwrap_or_default())
}
