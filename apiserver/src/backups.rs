//! Backups of a running server: `POST /storage/backups`.
//!
//! The path is not a resource: RBAC rules for non-resource URLs decide who may post to it. A backup is written below the
//! data folder, where files can be linked instead of copied, and is read back in full before it counts. With
//! `?incremental=true` it goes to the folder of `--incremental-backup-dir` instead, which may be another volume: only
//! missing files are copied. A backup continues when the client disconnects; only one runs at a time.
//!
//! Only callers who may also `delete` the path remove older backups: all but the newest three, or as many as `?keep=` says.
//! For others nothing is removed, and there is an end of backups when [`MOST`] exist.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode};
use tokio::sync::Semaphore;

use crate::authorization::{Authorizer, Decision, denial};
use crate::backend::Backend;
use crate::config::StorageConfig;
use crate::error::ApiError;
use crate::handlers::{Extension, ResponseFuture};
use crate::host::{AccessReview, Attributes};
use crate::http::body::{RequestBody, ResponseBody};
use crate::request::{Query, RequestContext, ResourceRequest, UserInfo};

const PATH: &str = "/storage/backups";
/// The folder of whole backups below the data folder.
const FOLDER: &str = "backups";
/// How many backups are kept without `?keep=`.
const KEEP: usize = 3;
/// How many backups may exist when a caller who may not remove any takes one more.
const MOST: usize = 10;

/// Takes backups of a store.
pub(crate) struct Backups<S> {
    store: S,
    folder: PathBuf,
    incremental_folder: Option<PathBuf>,
    authorizer: Arc<Authorizer>,
    /// One permit: backups run one at a time.
    permit: Arc<Semaphore>,
}

impl<S: Backend> Backups<S> {
    /// Backups of `store`, whose settings are given.
    pub(crate) fn new(store: S, config: &StorageConfig, authorizer: Arc<Authorizer>) -> Self {
        Self {
            store,
            folder: config.data_dir.join(FOLDER),
            incremental_folder: config.incremental_backup_dir.clone(),
            authorizer,
            permit: Arc::new(Semaphore::new(1)),
        }
    }

    /// How many backups are kept; `None` if the caller may not remove any.
    ///
    /// # Errors
    /// 403 for a caller who names a number and may not remove backups, 400 for a negative number, 500 if the host cannot be
    /// asked.
    async fn kept(&self, query: &Query, user: &Arc<UserInfo>) -> Result<Option<usize>, ApiError> {
        let named = match query.integer("keep")? {
            None => None,
            Some(count) => Some(
                usize::try_from(count)
                    .map_err(|_| ApiError::bad_request("keep must not be negative; 0 keeps all backups"))?,
            ),
        };
        let review = AccessReview {
            user: Arc::clone(user),
            attributes: Attributes::Path {
                verb: "delete".to_owned(),
                path: PATH.to_owned(),
            },
        };
        let decision = self.authorizer.decide(&review).await.map_err(|error| {
            ApiError::internal("the permission to remove backups could not be reviewed").because(error)
        })?;
        match (decision, named) {
            (Decision::Allow, named) => Ok(Some(named.unwrap_or(KEEP))),
            (Decision::Forbid(_), None) => Ok(None),
            (Decision::Forbid(reason), Some(_)) => Err(denial(&review, &reason)),
        }
    }

    async fn take(
        &self,
        query: &Query,
        user: &Arc<UserInfo>,
    ) -> Result<http::Response<ResponseBody>, ApiError> {
        if let Some(elsewhere) = self.store.backups_are_elsewhere() {
            return Err(ApiError::bad_request(elsewhere));
        }
        let keep = self.kept(query, user).await?;
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
            if keep.is_none() && count(&folder, incremental) >= MOST {
                return None;
            }
            let keep = keep.unwrap_or(0);
            let report = if incremental {
                store.back_up_incrementally(&folder, keep)
            } else {
                store.back_up(&folder, keep)
            };
            if let Ok(report) = &report {
                tracing::info!(path = %report.path.display(), incremental, "backup taken");
            }
            Some(report)
        })
        .await
        .map_err(|error| ApiError::internal("the backup panicked").because(error))?
        .ok_or_else(|| {
            let message =
                format!("{MOST} backups exist, and removing one requires the verb \"delete\" on {PATH}");
            ApiError::too_many_requests(message, 60)
        })?;
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
            self.take(&context.query, &context.user).await
        })
    }
}

/// The number of backups in a folder: folders of their own, or manifests beside shared files.
fn count(folder: &Path, incremental: bool) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            if incremental {
                entry.path().extension().is_some()
            } else {
                entry.file_name().to_string_lossy().starts_with("backup-")
            }
        })
        .count()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::registry::Registry;

    use drydock_storage::{Key, Options, Store as _, Transaction, Value};

    use super::*;
    use crate::config::Durability;
    use crate::fixtures::FakeHost;
    use crate::host::reviews::{ReviewTtls, Reviews};
    use crate::host::{AccessVerdict, AuthenticationConfig};
    use crate::metrics::Metrics;
    use crate::request::user::MASTERS;
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
            encryption: None,
        }
    }

    /// An authorizer over a host that forbids everything.
    fn authorizer() -> Arc<Authorizer> {
        let metrics = Metrics::register(&mut Registry::default(), []);
        let host = FakeHost::new(AuthenticationConfig::default());
        host.decide_by(|_| Ok(AccessVerdict::NoOpinion(String::new())));
        let reviews = Reviews::new(host, ReviewTtls::default()).unwrap();
        Arc::new(Authorizer::new(Arc::new(reviews), Vec::new(), metrics))
    }

    fn user(group: &str) -> Arc<UserInfo> {
        Arc::new(UserInfo {
            name: "jane".to_owned(),
            groups: vec![group.to_owned()],
            ..UserInfo::default()
        })
    }

    #[tokio::test]
    async fn a_caller_who_may_not_remove_backups_removes_none() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let backups = Backups::new(store.clone(), &settings(folder.path()), authorizer());
        let jane = user("people");
        for keep in ["keep=0", "keep=1"] {
            let refused = backups.take(&Query::parse(keep), &jane).await.unwrap_err();
            assert_eq!(
                (refused.code().as_u16(), refused.to_string().as_str()),
                (
                    403,
                    "forbidden: User \"jane\" cannot delete path \"/storage/backups\""
                )
            );
        }
        let found = || count(&folder.path().join(FOLDER), false);
        for number in 0..=MOST {
            let value = Value {
                bytes: "{}".into(),
                form: "v1".into(),
                splice_offset: 0,
            };
            let key = Key::new("g", "r", "ns", &format!("n{number}")).unwrap();
            store.transact(Transaction::create(key, value)).await.unwrap();
            let taken = backups.take(&Query::default(), &jane).await;
            assert_eq!(
                taken.map_err(|error| error.code().as_u16()).err(),
                (number == MOST).then_some(429)
            );
        }
        assert_eq!(found(), MOST);
        backups.take(&Query::default(), &user(MASTERS)).await.unwrap();
        assert_eq!(found(), KEEP);
    }

    #[tokio::test]
    async fn incremental_backups_go_to_the_configured_folder_only() {
        let (folder, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let nowhere = Backups::new(store.clone(), &settings(folder.path()), authorizer());
        let query = Query::parse("incremental=true&keep=2");
        assert_eq!(
            nowhere.take(&query, &user(MASTERS)).await.unwrap_err().code(),
            400
        );
        let backups = Backups::new(
            store.clone(),
            &StorageConfig {
                incremental_backup_dir: Some(copies.path().to_owned()),
                ..settings(folder.path())
            },
            authorizer(),
        );
        for _ in 0..3 {
            assert_eq!(
                backups.take(&query, &user(MASTERS)).await.unwrap().status(),
                StatusCode::CREATED
            );
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
        let backups = Backups::new(store.clone(), &settings(folder.path()), authorizer());
        for name in ["a", "b", "c"] {
            let value = Value {
                bytes: "{}".into(),
                form: "v1".into(),
                splice_offset: 0,
            };
            let key = Key::new("g", "r", "ns", name).unwrap();
            store.transact(Transaction::create(key, value)).await.unwrap();
            let response = backups
                .take(&Query::parse("keep=2"), &user(MASTERS))
                .await
                .unwrap();
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
        let backups = Backups::new(store, &settings(folder.path()), authorizer());
        assert_eq!(
            backups
                .take(&Query::parse("keep=-1"), &user(MASTERS))
                .await
                .unwrap_err()
                .code(),
            400
        );
        let _running = backups.permit.acquire().await.unwrap();
        assert_eq!(
            backups
                .take(&Query::default(), &user(MASTERS))
                .await
                .unwrap_err()
                .code(),
            429
        );
    }

    #[test]
    fn only_its_own_path_is_claimed() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = RocksStore::open(Options::for_tests(folder.path())).unwrap();
        let backups = Backups::new(store, &settings(folder.path()), authorizer());
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
