//! Moving objects: export into a file, and import of a file into a prefix without objects.
//!
//! An import writes many objects in one transaction. Revisions must only grow for clients, also when they move here from
//! another store: an import is refused while etcd is below the revisions that the source can have assigned.

use std::path::{Path, PathBuf};
use std::pin::pin;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::compactor;
use super::error::EtcdOpenError;
use super::failure::Failure;
use super::members::{Connection, Request, revision_of};
use super::parts::Shared;
use super::store::EtcdStore;
use super::transact::REQUEST_BYTES;
use super::{revision, scan};
use crate::export::{self, ExportError, ExportReader, ExportReport, Exported};
use crate::{At, Key, KeyRange, Page, Revision, StoreError, Value};

/// The most objects of a transaction: etcd accepts 128 operations, one is for the marker.
const MOST_OBJECTS: usize = 100;
/// About how many bytes a transaction may have.
const BATCH_BYTES: usize = REQUEST_BYTES / 2;
/// How many batches are read ahead, and how many are under way.
const READ_AHEAD: usize = 4;
const CONCURRENT: usize = 4;
/// How many objects a page of the comparison has.
const PAGE: usize = 1_000;

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
    #[error("etcd failed: the import is not complete; remove what it wrote before the next one")]
    Store(#[from] StoreError),
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

/// Objects of one transaction.
type Batch = Vec<(Key, Value)>;

impl EtcdStore {
    /// Writes the newest state into one file. `now_ms` is wall time.
    ///
    /// # Errors
    /// The disk, etcd, or a damaged value.
    pub async fn export(
        &self,
        path: &Path,
        now_ms: u64,
        progress: EtcdProgress<'_>,
    ) -> Result<ExportReport, EtcdTransferError> {
        let parts = self.parts();
        let found = scan::scan(parts, &KeyRange::all(), At::Latest, &Page::default()).await?;
        let total = found.entries.len() as u64;
        let exported = Exported {
            store: parts.marker.store(),
            revision: found.revision,
            entries: &found.entries,
            now_ms,
        };
        let report = |done| progress("write", done, total);
        tokio::task::block_in_place(|| Ok(export::write(path, &exported, &report)?))
    }

    /// Writes every object of an export, reads all of them back and compares them. History before them is compacted, so that
    /// clients must list again.
    ///
    /// # Errors
    /// A prefix with objects, a damaged export, an etcd below the revisions of the source, etcd.
    pub async fn import(
        &self,
        path: &Path,
        now_ms: u64,
        progress: EtcdProgress<'_>,
    ) -> Result<EtcdImportReport, EtcdTransferError> {
        let parts = self.parts();
        if parts.marker.written().is_some() {
            let prefix = parts.keys.prefix().to_owned();
            return Err(EtcdOpenError::NotEmpty { prefix }.into());
        }
        check_export(path).await?;
        let header = ExportReader::open(path)?;
        let current = revision::current(parts).await?;
        let needed = header.newest_possible(now_ms);
        if current < needed {
            return Err(EtcdTransferError::RevisionTooLow { current, needed });
        }
        let (sender, mut batches) = mpsc::channel(READ_AHEAD);
        let file = path.to_owned();
        let reading = tokio::task::spawn_blocking(move || read(&file, &sender));
        let mut objects = 0;
        // The first one writes the marker that the others are conditional on.
        if let Some(first) = batches.recv().await {
            objects += put(parts, first).await?;
            progress("write", objects, header.count);
        }
        let rest = stream::unfold(batches, |mut batches| async move {
            let batch = batches.recv().await?;
            Some((batch, batches))
        });
        let mut writes = pin!(rest.map(|batch| put(parts, batch)).buffer_unordered(CONCURRENT));
        while let Some(written) = writes.try_next().await? {
            objects += written;
            progress("write", objects, header.count);
        }
        reading.await.map_err(|_| EtcdTransferError::Panicked {
            path: path.to_owned(),
        })??;
        compare(parts, path, progress).await?;
        let revision = revision::current(parts).await?;
        compactor::compact(parts, revision).await?;
        Ok(EtcdImportReport {
            store: parts.marker.store(),
            source: header.source,
            source_revision: header.revision.0,
            revision: revision.0,
            objects,
        })
    }
}

/// Reads an export to its end before anything is written.
async fn check_export(path: &Path) -> Result<(), EtcdTransferError> {
    let file = path.to_owned();
    let check = move || -> Result<(), ExportError> {
        let mut objects = ExportReader::open(&file)?;
        while objects.next()?.is_some() {}
        Ok(())
    };
    let checked = tokio::task::spawn_blocking(check).await;
    Ok(checked.map_err(|_| EtcdTransferError::Panicked {
        path: path.to_owned(),
    })??)
}

/// Reads an export in batches.
fn read(path: &Path, batches: &mpsc::Sender<Batch>) -> Result<(), ExportError> {
    let mut objects = ExportReader::open(path)?;
    let (mut batch, mut bytes) = (Batch::new(), 0);
    while let Some((key, value)) = objects.next()? {
        let size = key.as_str().len() + value.bytes.len();
        if !batch.is_empty() && (batch.len() == MOST_OBJECTS || bytes + size > BATCH_BYTES) {
            bytes = 0;
            if batches.blocking_send(std::mem::take(&mut batch)).is_err() {
                return Ok(());
            }
        }
        bytes += size;
        batch.push((key, value));
    }
    if !batch.is_empty() {
        // A writer that is gone has an error of its own.
        let _gone = batches.blocking_send(batch);
    }
    Ok(())
}

/// Writes a batch and returns how many objects it had. The first one writes the marker, so that two imports cannot mix.
async fn put(parts: &Shared, batch: Batch) -> Result<u64, EtcdTransferError> {
    let marker = parts.marker.written();
    let at = marker.map_or(0, super::parts::number);
    let mut effects = Vec::with_capacity(batch.len() + 1);
    for (key, value) in &batch {
        effects.push(TxnOp::put(parts.keys.object(key), parts.body(key, value)?, None));
    }
    if marker.is_none() {
        effects.push(TxnOp::put(parts.keys.marker(), parts.marker.bytes(), None));
    }
    let txn = Txn::new()
        .when([Compare::mod_revision(parts.keys.marker(), CompareOp::Equal, at)])
        .and_then(effects);
    let txn = &txn;
    let call = |mut connection: Connection| async move { connection.kv.txn(txn.clone()).await };
    let request = Request {
        operation: "create",
        resource: "",
    };
    let answer = parts
        .members
        .write(request, call)
        .await?
        .map_err(Failure::of_write)?;
    if !answer.succeeded() {
        let prefix = parts.keys.prefix().to_owned();
        return Err(EtcdOpenError::NotEmpty { prefix }.into());
    }
    if marker.is_none() {
        parts.marker.note_written(revision_of(&answer));
    }
    Ok(batch.len() as u64)
}

/// Compares every object with the export.
async fn compare(parts: &Shared, path: &Path, progress: EtcdProgress<'_>) -> Result<(), EtcdTransferError> {
    let mut expected = ExportReader::open(path)?;
    let (mut after, mut done) = (String::new(), 0);
    loop {
        let page = Page {
            after: after.clone(),
            limit: PAGE,
            ..Page::default()
        };
        let found = scan::scan(parts, &KeyRange::all(), At::Latest, &page).await?;
        for (key, entry) in &found.entries {
            let object = expected.next()?;
            if object.as_ref().map(|(key, value)| (key, value)) != Some((key, &entry.value)) {
                return Err(EtcdTransferError::Differs { key: key.to_string() });
            }
            done += 1;
        }
        progress("verify", done, expected.count);
        match found.entries.last() {
            Some((key, _)) if found.more => key.as_str().clone_into(&mut after),
            _ => break,
        }
    }
    match expected.next()? {
        None => Ok(()),
        Some((key, _)) => Err(EtcdTransferError::Differs { key: key.to_string() }),
    }
}
