//! Backups of a running server: `POST /storage/backups`.
//!
//! The path is not a resource: RBAC rules for non-resource URLs decide who may post to it. A backup is written below the
//! data folder, where files can be linked instead of copied, and is read back in full before it counts. With
//! `?incremental=true` it goes to the folder of `--incremental-backup-dir` instead, which may be another volume: only
//! missing files are copied. `?keep=` is the number of newest backups to keep. A backup continues when the client
//! disconnects; only one runs at a time.

use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode};
use tokio::sync::Semaphore;

use crate::backend::Backend;
use crate::config::StorageConfig;
use crate::error::ApiError;
use crate::handlers::{Extension, ResponseFuture};
use crate::http::body::{RequestBody, ResponseBody};
use crate::request::{Query, RequestContext, ResourceRequest};

const PATH: &str = "/storage/backups";
/// The folder of whole backups below the data folder.
const FOLDER: &str = "backups";
/// How many backups are kept without `?keep=`.
const KEEP: usize = 3;

/// Takes backups of a store.
pub(crate) struct Backups<S> {
    store: S,
    folder: PathBuf,
    incremental_folder: Option<PathBuf>,
    /// One permit: backups run one at a time.
    permit: Arc<Semaphore>,
}

impl<S: Backend> Backups<S> {
    /// Backups of `store`, whose settings are given.
    pub(crate) fn new(store: S, config: &StorageConfig) -> Self {
        Self {
            store,
            folder: config.data_dir.join(FOLDER),
            incremental_folder: config.incremental_backup_dir.clone(),
            permit: Arc::new(Semaphore::new(1)),
        }
    }

    async fn take(&self, query: &Query) -> Result<http::Response<ResponseBody>, ApiError> {
        if let Some(elsewhere) = self.store.backups_are_elsewhere() {
            return Err(ApiError::bad_request(elsewhere));
        }
        let keep = match query.integer("keep")? {
            None => KEEP,
            Some(count) => usize::try_from(count)
                .map_err(|_| ApiError::bad_request("keep must not be negative; 0 keeps all backups"))?,
        };
        let incremental = query.boolean("incremental").unwrap_or(false);
        let folder = if incremental {
            self.incremental_folder.clone().ok_or_else(|| {
                ApiError::bad_request("this server has no --incremental-backup-dir to put the backup into")
            })?
        } else {
            self.folder.clone()
        };
        let permit = Arc::clone(&self.permit)
            .try_acquire_owned()
            .map_err(|_| ApiError::too_many_requests("a backup is being taken already", 10))?;
        let store = self.store.clone();
        let taken = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let report = if incremental {
                store.back_up_incrementally(&folder, keep)
            } else {
                store.back_up(&folder, keep)
            };
            if let Ok(report) = &report {
                tracing::info!(path = %report.path.display(), incremental, "backup taken");
            }
            report
        })
        .await
        .map_err(|error| ApiError::internal("the backup panicked").because(error))?;
        let details = taken
            .map_err(|error| ApiError::internal(format!("no backup was taken: {error}")).because(error))?
            .details
            .map_err(|error| ApiError::internal("the report cannot be written").because(error))?;
        let mut body = drydock_machinery::codec::encode_pretty(&details);
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

impl<S: Backend> Extension for Backups<S> {
    fn claims(&self, _: &ResourceRequest) -> bool {
        false
    }

    fn claims_path(&self, path: &str) -> bool {
        path.trim_end_matches('/') == PATH
    }

    fn handle(&self, context: RequestContext, _: HeaderMap, _: RequestBody) -> ResponseFuture<'_> {
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
    use std::path::Path;
    use std::time::Duration;

    use drydock_storage::{Key, Options, Store as _, Transaction, Value};

    use super::*;
    use crate::config::Durability;
    use drydock_storage::rocks::RocksStore;

    fn settings(folder: &Path) -> StorageConfig {
        StorageConfig {
            etcd: None,
            data_dir: folder.to_owned(),
            durability: Durability::Strict,
            history_window: Duration::from_mins(5),
            object_bytes_limit: 0,
            any_file_system: true,
            incremental_backup_dir: None,
            check_interval: Duration::ZERO,
        }
    }

    #[tokio::test]
    async fn incremental_backups_go_to_the_configured_folder_only() {
        let (folder, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let nowhere = Backups::new(store.clone(), &settings(folder.path()));
        let query = Query::parse("incremental=true&keep=2");
        assert_eq!(nowhere.take(&query).await.unwrap_err().code(), 400);
        let backups = Backups::new(
            store.clone(),
            &StorageConfig {
                incremental_backup_dir: Some(copies.path().to_owned()),
                ..settings(folder.path())
            },
        );
        for _ in 0..3 {
            assert_eq!(backups.take(&query).await.unwrap().status(), StatusCode::CREATED);
        }
        let manifests = std::fs::read_dir(copies.path())
            .unwrap()
            .filter(|found| found.as_ref().unwrap().path().extension().is_some())
            .count();
        assert_eq!(manifests, 2);
        assert!(!folder.path().join(FOLDER).exists());
        let target = tempfile::tempdir().unwrap();
        let restored =
            drydock_storage::rocks::restore(copies.path(), &Options::for_tests(target.path()), &|_| {})
                .unwrap();
        assert_eq!(restored.source, store.uuid());
    }

    #[tokio::test]
    async fn a_running_server_is_backed_up_and_the_newest_backups_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let backups = Backups::new(store.clone(), &settings(folder.path()));
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
        let unsealed: Arc<dyn drydock_storage::seal::Seal> = Arc::new(drydock_storage::seal::Unsealed);
        for backup in kept {
            let manifest = drydock_storage::rocks::verify_backup(&backup, &unsealed, &|_| {}).unwrap();
            assert!(manifest.objects >= 2);
        }
    }

    #[tokio::test]
    async fn backups_run_one_at_a_time_and_a_negative_keep_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let backups = Backups::new(store, &settings(folder.path()));
        assert_eq!(
            backups.take(&Query::parse("keep=-1")).await.unwrap_err().code(),
            400
        );
        let _running = backups.permit.acquire().await.unwrap();
        assert_eq!(backups.take(&Query::default()).await.unwrap_err().code(), 429);
    }

    #[test]
    fn only_its_own_path_is_claimed() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let backups = Backups::new(store, &settings(folder.path()));
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
