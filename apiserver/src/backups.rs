//! Backups of a running server: `POST /storage/backups`.
//!
//! The path is no resource: who may post to it is said by RBAC for non-resource URLs. A backup lands below the data
//! folder, where its files can be linked instead of copied, and is read whole before it counts. It goes on when the
//! client leaves; only one is taken at a time.

use std::path::PathBuf;
use std::sync::Arc;

use drydock_storage::rocks::RocksStore;
use http::{HeaderMap, Method, StatusCode};
use tokio::sync::Semaphore;

use crate::error::ApiError;
use crate::handlers::{Answered, Extension};
use crate::http::body::{RequestBody, ResponseBody};
use crate::request::{Query, RequestContext, ResourceRequest};

/// The path.
const PATH: &str = "/storage/backups";
/// The folder of backups below the data folder.
const FOLDER: &str = "backups";
/// How many backups are kept unless `?keep=` says otherwise.
const KEEP: usize = 3;

/// Takes backups of a store.
pub(crate) struct Backups {
    store: RocksStore,
    folder: PathBuf,
    one: Arc<Semaphore>,
}

impl Backups {
    /// Backups of `store`, whose data folder is given.
    pub(crate) fn new(store: RocksStore, data_dir: &std::path::Path) -> Self {
        Self {
            store,
            folder: data_dir.join(FOLDER),
            one: Arc::new(Semaphore::new(1)),
        }
    }

    async fn take(&self, query: &Query) -> Result<http::Response<ResponseBody>, ApiError> {
        let keep = match query.integer("keep")? {
            None => KEEP,
            Some(count) => usize::try_from(count)
                .map_err(|_| ApiError::bad_request("keep must not be negative; 0 keeps all backups"))?,
        };
        let permit = Arc::clone(&self.one)
            .try_acquire_owned()
            .map_err(|_| ApiError::too_many_requests("a backup is being taken already", 10))?;
        let (store, folder) = (self.store.clone(), self.folder.clone());
        let taken = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            store.backup(&folder, keep, &|progress| {
                tracing::debug!(step = progress.step, done = progress.done, "backup");
            })
        })
        .await
        .map_err(|error| ApiError::internal("the backup was broken off").because(error))?;
        let report = taken
            .map_err(|error| ApiError::internal(format!("no backup was taken: {error}")).because(error))?;
        tracing::info!(path = %report.path.display(), "backup taken");
        let value = serde_json::to_value(&report)
            .map_err(|error| ApiError::internal("the report cannot be written").because(error))?;
        let mut body = drydock_machinery::codec::encode_pretty(&value);
        body.push(b'\n');
        let mut response = http::Response::new(ResponseBody::full(body));
        *response.status_mut() = StatusCode::CREATED;
        response.headers_mut().insert(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("application/json"),
        );
        Ok(response)
    }
}

impl Extension for Backups {
    fn claims(&self, _: &ResourceRequest) -> bool {
        false
    }

    fn claims_path(&self, path: &str) -> bool {
        path.trim_end_matches('/') == PATH
    }

    fn answer(&self, context: RequestContext, _: HeaderMap, _: RequestBody) -> Answered<'_> {
        Box::pin(async move {
            if context.info.method != Method::POST {
                return Err(ApiError::method_not_allowed());
            }
            self.take(&context.query).await
        })
    }
}

#[cfg(test)]
mod tests {
    use drydock_storage::{Key, Options, Store as _, Transaction, Value};

    use super::*;

    #[tokio::test]
    async fn a_running_server_is_backed_up_and_the_newest_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let backups = Backups::new(store.clone(), folder.path());
        for name in ["a", "b", "c"] {
            let value = Value {
                bytes: "{}".into(),
                form: "v1".into(),
                splice_offset: 0,
            };
            let key = Key::new("g", "r", "ns", name).unwrap();
            store.transact(Transaction::create(key, value)).await.unwrap();
            let response = backups.take(&Query::parse("keep=2")).await.unwrap();
            assert_eq!(response.status(), StatusCode::CREATED);
        }
        let kept: Vec<_> = std::fs::read_dir(folder.path().join(FOLDER))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(kept.len(), 2, "{kept:?}");
        for backup in kept {
            let manifest = drydock_storage::rocks::verify_backup(&backup, &|_| {}).unwrap();
            assert!(manifest.objects >= 2);
        }
    }

    #[tokio::test]
    async fn one_backup_at_a_time_and_no_nonsense() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let backups = Backups::new(store, folder.path());
        assert_eq!(
            backups.take(&Query::parse("keep=-1")).await.unwrap_err().code(),
            400
        );
        let _running = backups.one.acquire().await.unwrap();
        assert_eq!(backups.take(&Query::default()).await.unwrap_err().code(), 429);
    }

    #[test]
    fn only_its_own_path_is_claimed() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let backups = Backups::new(store, folder.path());
        for (path, claimed) in [
            (PATH, true),
            ("/storage/backups/", true),
            ("/storage", false),
            ("/apis", false),
        ] {
            assert_eq!(backups.claims_path(path), claimed, "{path}");
        }
    }
}
