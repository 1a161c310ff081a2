//! Compacts history, in one of all servers at a time.
//!
//! The protocol is that of kube-apiserver. Once per interval every server tries to write the current revision to a key, on
//! the condition that nobody else has since its last look. The one that succeeds compacts to the revision it found there,
//! which is one interval old. Where kube-apiserver itself compacts this etcd, nothing is done.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};

use super::failure::Failure;
use super::members::{Connection, Request, revision_of};
use super::parts::{Shared, number};
use super::revision;
use crate::{Revision, StoreError};

/// The key of the same protocol that kube-apiserver uses.
const KEY_OF_KUBE_APISERVER: &str = "compact_rev_key";

/// What a server saw at its last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    /// The version of the key; 0: absent.
    version: i64,
    /// The revision in it, or that was current when the key was absent.
    revision: Revision,
}

/// Compacts without end, once per interval.
pub(super) async fn run(parts: &Shared, period: Duration) {
    if period.is_zero() {
        return std::future::pending().await;
    }
    let mut seen = Seen::default();
    let mut is_left_to_others = false;
    loop {
        tokio::time::sleep(period).await;
        match is_compacted_by_kube_apiserver(parts).await {
            Ok(false) => is_left_to_others = false,
            Ok(true) => {
                if !std::mem::replace(&mut is_left_to_others, true) {
                    tracing::info!("kube-apiserver compacts this etcd: its compaction is left to it");
                }
                continue;
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "history was not compacted"
                );
                continue;
            }
        }
        match round(parts, seen).await {
            Ok(next) => seen = next,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "history was not compacted"
                );
            }
        }
    }
}

const REQUEST: Request<'_> = Request::of_store("compact");

async fn is_compacted_by_kube_apiserver(parts: &Shared) -> Result<bool, StoreError> {
    let call = |mut connection: Connection| async move {
        let options = GetOptions::new().with_count_only();
        connection.kv.get(KEY_OF_KUBE_APISERVER, Some(options)).await
    };
    let answer = parts.members.read(REQUEST, call).await?;
    Ok(answer.map_err(Failure::of_read)?.count() > 0)
}

/// One round: returns what is to be seen at the next one.
async fn round(parts: &Shared, seen: Seen) -> Result<Seen, StoreError> {
    let current = revision::current(parts).await?;
    let key = parts.keys.compactor();
    let txn = Txn::new()
        .when([Compare::version(key.as_str(), CompareOp::Equal, seen.version)])
        .and_then([TxnOp::put(key.as_str(), current.to_string(), None)])
        .or_else([TxnOp::get(key.as_str(), None)]);
    let txn = &txn;
    let call = |mut connection: Connection| async move { connection.kv.txn(txn.clone()).await };
    let answer = parts
        .members
        .write(REQUEST, call)
        .await?
        .map_err(Failure::of_write)?;
    if !answer.succeeded() {
        let found = answer
            .op_responses()
            .into_iter()
            .find_map(|response| match response {
                TxnOpResponse::Get(mut answer) => answer.take_kvs().pop(),
                _ => None,
            });
        return Ok(Seen {
            version: found.as_ref().map_or(0, KeyValue::version),
            revision: revision_of(&answer),
        });
    }
    if seen.revision > Revision::INITIAL {
        compact(parts, seen.revision).await?;
        parts.metrics.compactions.inc();
        tracing::info!(through = %seen.revision, "history compacted");
    }
    Ok(Seen {
        version: seen.version + 1,
        revision: current,
    })
}

/// Compacts through `through`, which must not be in the future.
pub(super) async fn compact(parts: &Shared, through: Revision) -> Result<(), StoreError> {
    parts.check_open()?;
    if through.next() <= parts.floors.floors().listable_from {
        return Ok(());
    }
    let call = |mut connection: Connection| async move { connection.kv.compact(number(through), None).await };
    match parts.members.write(REQUEST, call).await? {
        // Somebody compacted more.
        Ok(_) | Err(Failure::Compacted) => {
            parts.floors.note(through);
            parts.metrics.listable_from.set(number(through.next()));
            Ok(())
        }
        Err(Failure::Future) => Err(StoreError::Future {
            requested: through,
            current: revision::current(parts).await?,
        }),
        Err(failure) => Err(failure.of_write()),
    }
}
