//! Calls over a pool of connections, many at a time.

use std::time::Duration;

use anyhow::{Context as _, Result};
use drydock_tests::load::{Call, Pool, Response};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;

/// The calls in flight while objects are created.
const IN_FLIGHT: usize = 32;
/// The timeout of waits, enough for 150,000 objects on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_hours(1);

/// Sends one request, which must succeed.
pub(crate) async fn send(pool: &Pool, call: Call) -> Result<Response> {
    let what = format!("{} {}", call.method, call.path);
    let response = pool.sender(0)?.send_keeping(call, usize::MAX).await?;
    response.succeeded().context(what)
}

/// Reads an object or a list.
pub(crate) async fn get(pool: &Pool, path: &str) -> Result<Value> {
    let response = send(pool, Call::get(path)).await?;
    serde_json::from_slice(&response.start).with_context(|| format!("parse the response to GET {path}"))
}

/// Sends requests `0..count`, each of which must succeed, and returns what `read` makes of the responses, in any order.
pub(crate) async fn send_all<T>(
    pool: &Pool,
    count: u64,
    call: impl Fn(u64) -> Call,
    read: impl Fn(u64, &Response) -> Result<T>,
) -> Result<Vec<T>> {
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
pub(crate) async fn count(pool: &Pool, path: &str) -> Result<u64> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let list = get(pool, &format!("{path}{separator}limit=1")).await?;
    let items = list.get("items").and_then(Value::as_array).map_or(0, Vec::len);
    let remaining = list.pointer("/metadata/remainingItemCount");
    Ok(items as u64 + remaining.and_then(Value::as_u64).unwrap_or_default())
}
