//! Moving objects: export into a file, and import of a file into a prefix without objects.
//!
//! An import writes many objects in one transaction. The marker comes first and says that the import is unfinished, and the
//! marker of a store replaces it once every object was read back and compared: servers refuse the prefix until then. Revisions
//! must only grow for clients, also when they move here from another store: an import is refused while etcd is below the
//! revisions that the source can have assigned.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, DeleteOptions, Txn, TxnOp};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::compactor;
use super::error::EtcdOpenError;
use super::failure::Failure;
use super::members::{Connection, Request, revision_of};
use super::open::{self, IMPORT_OPERATIONS, Purpose};
use super::options::EtcdOptions;
use super::parts::{Parts, Shared, number, revision};
use super::scan::{self, Pages};
use super::store::EtcdStore;
use super::transact::BODY_BYTES;
use crate::export::{ExportError, ExportReader, ExportReport, ExportWriter, Exported};
use crate::{At, Key, KeyRange, Revision, StoreError, Value};

/// About how many bytes the objects of a transaction may have, unless a single one has more: two thirds of a request.
const BATCH_BYTES: usize = 1 << 20;
/// What an object needs in a request besides its key and its body.
const OPERATION_BYTES: usize = 32;
/// How many batches are read ahead, and how many are under way.
const READ_AHEAD: usize = 4;
const CONCURRENT: usize = 4;
/// After how many objects the check of a file reports progress.
const CHECKED: u64 = 1_000;

/// Why objects could not be moved.
#[derive(Debug, thiserror::Error)]
pub enum EtcdTransferError {
    /// The prefix cannot be used.
    #[error(transparent)]
    Open(#[from] EtcdOpenError),
    /// The file cannot be used.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// etcd refused a request.
    #[error("etcd failed: what was being moved is not complete, repeat it")]
    Store(#[from] StoreError),
    /// A value cannot be stored in etcd.
    #[error("the value of {key} cannot be stored in etcd")]
    Value {
        /// Whose value.
        key: String,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// Another import into the same prefix began, or a server wrote into it.
    #[error(
        "the prefix {prefix} was written by another import or by a server meanwhile: this import is not complete"
    )]
    Overtaken {
        /// The prefix.
        prefix: String,
    },
    /// etcd is below the revisions of the source.
    #[error(
        "etcd is at revision {current}, and clients know revisions up to {needed}: raise it with etcdutl snapshot restore \
         --bump-revision={needed} --mark-compacted before anything is imported"
    )]
    RevisionTooLow {
        /// etcd's revision.
        current: Revision,
        /// The newest revision that a client can know.
        needed: Revision,
    },
    /// What was read back differs from the file.
    #[error("{key} was read back with another value than it was imported with")]
    Differs {
        /// The first key that differs.
        key: String,
    },
    /// The work panicked.
    #[error("reading {path} panicked")]
    Panicked {
        /// The file.
        path: PathBuf,
    },
}

/// The result of an import.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdImportReport {
    /// The identity of the new store.
    pub store: Uuid,
    /// The identity of the store the objects come from.
    pub source: Uuid,
    /// The revision of the source.
    pub source_revision: u64,
    /// The revision of the new store.
    pub revision: u64,
    /// How many objects were written, read back and compared.
    pub objects: u64,
}

/// One step of progress: what is done, and how many objects of how many.
pub type EtcdProgress<'a> = &'a (dyn Fn(&'static str, u64, u64) + Send + Sync);

/// Keys and bodies of the objects of one transaction.
type Batch = Vec<(String, Vec<u8>)>;

impl EtcdStore {
    /// Writes the newest state into one file, page by page: no more than a page is in memory. It begins again, a few times,
    /// where the state is compacted before it was read. `now_ms` is wall time.
    ///
    /// # Errors
    /// The disk, etcd, or a damaged value.
    pub async fn export(
        &self,
        path: &Path,
        now_ms: u64,
        progress: EtcdProgress<'_>,
    ) -> Result<ExportReport, EtcdTransferError> {
        let mut attempts = 1;
        loop {
            match export(self.parts(), path, now_ms, progress).await {
                Err(EtcdTransferError::Store(StoreError::Compacted { .. })) if attempts < scan::ATTEMPTS => {
                    attempts += 1;
                }
                outcome => return outcome,
            }
        }
    }
}

async fn export(
    parts: &Shared,
    path: &Path,
    now_ms: u64,
    progress: EtcdProgress<'_>,
) -> Result<ExportReport, EtcdTransferError> {
    use tokio::task::block_in_place;
    let (revision, count) = scan::count(parts).await?;
    let exported = Exported {
        store: parts.marker.store(),
        revision,
        count,
        now_ms,
        records: &parts.records,
    };
    let mut writer = block_in_place(|| ExportWriter::begin(path, exported))?;
    let mut pages = Pages::of(parts, At::Exactly(revision));
    while let Some(page) = pages.next().await? {
        block_in_place(|| page.iter().try_for_each(|(key, entry)| writer.put(key, entry)))?;
        progress("write", writer.written(), count);
    }
    Ok(block_in_place(|| writer.finish())?)
}

/// Writes every object of an export into a prefix without a store, reads all of them back and compares them. History before
/// them is compacted, so that clients must list again. What an unfinished import left in the prefix is removed first.
///
/// Until everything was compared the prefix does not open as a store: see [`EtcdOpenError::ImportUnfinished`]. `now_ms` is
/// wall time.
///
/// # Errors
/// A prefix with a store, a damaged export, a value that is too large for etcd, an etcd below the revisions of the source,
/// etcd.
pub async fn import(
    options: EtcdOptions,
    path: &Path,
    now_ms: u64,
    progress: EtcdProgress<'_>,
) -> Result<EtcdImportReport, EtcdTransferError> {
    let (parts, _) = open::open(options, Purpose::Import).await?;
    let _close = parts.closed.clone().drop_guard();
    check_export(&parts, path, progress)?;
    let header = ExportReader::open(path, &parts.options.seal)?;
    let found = current(&parts).await?;
    let needed = header.newest_possible(now_ms);
    if found < needed {
        return Err(EtcdTransferError::RevisionTooLow {
            current: found,
            needed,
        });
    }
    begin(&parts).await?;
    let objects = write(&parts, path, header.count, progress).await?;
    compare(&parts, path, progress).await?;
    let through = current(&parts).await?;
    compactor::compact(&parts, through).await?;
    let revision = finish(&parts).await?;
    Ok(EtcdImportReport {
        store: parts.marker.store(),
        source: header.source,
        source_revision: header.revision.0,
        revision: revision.0,
        objects,
    })
}

const REQUEST: Request<'_> = Request::of_store("create");

/// The current revision, while the marker is as this import knows it.
async fn current(parts: &Parts) -> Result<Revision, EtcdTransferError> {
    let key = parts.keys.marker();
    let call = |mut connection: Connection| async move { connection.kv.get(key, None).await };
    let answer = parts.members.read(Request::of_store("revision"), call).await?;
    let answer = answer.map_err(Failure::of_read)?;
    let found = answer.kvs().first().map(|stored| revision(stored.mod_revision()));
    if found == parts.marker.written() {
        Ok(revision_of(&answer))
    } else {
        Err(overtaken(parts))
    }
}

fn overtaken(parts: &Parts) -> EtcdTransferError {
    EtcdTransferError::Overtaken {
        prefix: parts.keys.prefix().to_owned(),
    }
}

/// Writes the marker of an unfinished import. It replaces that of an earlier one, together with the objects, so that the
/// earlier one cannot go on: what it writes is conditional on its marker. Only the marker of an unfinished import that was
/// found when the prefix was opened is replaced: whoever wrote into the prefix since then keeps what is there.
async fn begin(parts: &Shared) -> Result<(), EtcdTransferError> {
    let marker = parts.marker.unfinished_bytes();
    let mut effects = vec![TxnOp::put(parts.keys.marker(), marker, None)];
    let earlier = parts.marker.written();
    if earlier.is_some()
        && let Some(objects) = parts.keys.range(&KeyRange::all(), "")
    {
        let options = DeleteOptions::new().with_range(objects.end);
        effects.push(TxnOp::delete(objects.start, Some(options)));
    }
    let began = transact(parts, earlier.map_or(0, number), effects).await?;
    parts.marker.note_written(began);
    Ok(())
}

/// Writes the marker of a store.
async fn finish(parts: &Shared) -> Result<Revision, EtcdTransferError> {
    let at = parts.marker.written().map_or(0, number);
    let marker = TxnOp::put(parts.keys.marker(), parts.marker.bytes(), None);
    let finished = transact(parts, at, vec![marker]).await?;
    parts.marker.note_written(finished);
    Ok(finished)
}

/// A transaction while the marker is as it was written at `at`; 0: absent.
async fn transact(parts: &Parts, at: i64, effects: Vec<TxnOp>) -> Result<Revision, EtcdTransferError> {
    let txn = Txn::new()
        .when([Compare::mod_revision(parts.keys.marker(), CompareOp::Equal, at)])
        .and_then(effects);
    let txn = &txn;
    let call = |mut connection: Connection| async move { connection.kv.txn(txn.clone()).await };
    let answer = parts.members.write(REQUEST, call).await?;
    let answer = answer.map_err(Failure::of_write)?;
    if answer.succeeded() {
        Ok(revision_of(&answer))
    } else {
        Err(overtaken(parts))
    }
}

/// Writes every object; returns how many there are.
async fn write(
    parts: &Shared,
    path: &Path,
    count: u64,
    progress: EtcdProgress<'_>,
) -> Result<u64, EtcdTransferError> {
    let (sender, batches) = mpsc::channel(READ_AHEAD);
    let (file, shared) = (path.to_owned(), Arc::clone(parts));
    let reading = tokio::task::spawn_blocking(move || read(&shared, &file, &sender));
    let at = parts.marker.written().map_or(0, number);
    let batches = stream::unfold(batches, |mut batches| async move {
        let batch: Batch = batches.recv().await?;
        Some((batch, batches))
    });
    let put = |batch: Batch| async move {
        let objects = batch.len() as u64;
        let effects = batch.into_iter().map(|(key, body)| TxnOp::put(key, body, None));
        transact(parts, at, effects.collect()).await.map(|_| objects)
    };
    let mut writes = pin!(batches.map(put).buffer_unordered(CONCURRENT));
    let mut objects = 0;
    while let Some(written) = writes.try_next().await? {
        objects += written;
        progress("write", objects, count);
    }
    reading.await.map_err(|_| panicked(path))??;
    Ok(objects)
}

fn panicked(path: &Path) -> EtcdTransferError {
    EtcdTransferError::Panicked {
        path: path.to_owned(),
    }
}

/// Reads an export to its end, and checks that etcd can hold its largest values, before anything is written.
fn check_export(parts: &Parts, path: &Path, progress: EtcdProgress<'_>) -> Result<(), EtcdTransferError> {
    tokio::task::block_in_place(|| {
        let mut objects = ExportReader::open(path, &parts.options.seal)?;
        let mut done: u64 = 0;
        while let Some((key, value)) = objects.next()? {
            // Neither compression nor encryption makes a smaller value too large.
            if value.bytes.len() > BODY_BYTES / 2 {
                body(parts, &key, &value)?;
            }
            done += 1;
            if done.is_multiple_of(CHECKED) {
                progress("check", done, objects.count);
            }
        }
        progress("check", done, objects.count);
        Ok(())
    })
}

fn body(parts: &Parts, key: &Key, value: &Value) -> Result<Vec<u8>, EtcdTransferError> {
    parts.body(key, value).map_err(|source| EtcdTransferError::Value {
        key: key.to_string(),
        source,
    })
}

/// Reads an export in batches.
fn read(parts: &Parts, path: &Path, batches: &mpsc::Sender<Batch>) -> Result<(), EtcdTransferError> {
    let mut objects = ExportReader::open(path, &parts.options.seal)?;
    let (mut batch, mut bytes) = (Batch::new(), 0);
    while let Some((key, value)) = objects.next()? {
        let body = body(parts, &key, &value)?;
        let key = parts.keys.object(&key);
        let size = key.len() + body.len() + OPERATION_BYTES;
        if is_full(batch.len(), bytes, size) {
            bytes = 0;
            if batches.blocking_send(std::mem::take(&mut batch)).is_err() {
                return Ok(());
            }
        }
        bytes += size;
        batch.push((key, body));
    }
    if !batch.is_empty() {
        // A writer that is gone has an error of its own.
        let _gone = batches.blocking_send(batch);
    }
    Ok(())
}

/// Whether a batch of so many objects and bytes is written before another object of `size` bytes. The first one fits always.
fn is_full(objects: usize, bytes: usize, size: usize) -> bool {
    objects > 0 && (objects == IMPORT_OPERATIONS || bytes + size > BATCH_BYTES)
}

/// Compares every object with the export.
async fn compare(parts: &Shared, path: &Path, progress: EtcdProgress<'_>) -> Result<(), EtcdTransferError> {
    let mut expected = ExportReader::open(path, &parts.options.seal)?;
    let mut done = 0;
    let mut pages = Pages::of(parts, At::Latest);
    while let Some(page) = pages.next().await? {
        for (key, entry) in &page {
            let object = expected.next()?;
            if object.as_ref().map(|(key, value)| (key, value)) != Some((key, &entry.value)) {
                return Err(EtcdTransferError::Differs { key: key.to_string() });
            }
            done += 1;
        }
        progress("verify", done, expected.count);
    }
    match expected.next()? {
        None => Ok(()),
        Some((key, _)) => Err(EtcdTransferError::Differs { key: key.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_bounded_by_operations_and_by_bytes() {
        assert!(
            !is_full(0, 0, 2 * BATCH_BYTES),
            "a single large object is written alone"
        );
        assert!(!is_full(IMPORT_OPERATIONS - 1, 100, 100));
        assert!(is_full(IMPORT_OPERATIONS, 100, 100));
        assert!(!is_full(1, BATCH_BYTES - 100, 100));
        assert!(is_full(1, BATCH_BYTES - 100, 101));
    }
}
