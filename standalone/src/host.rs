//! The [`Host`] of standalone mode.
//!
//! Namespaces, pods and nodes are read from the server's own storage. Users authenticate with client certificates signed by
//! the authority in the data directory; tokens are never accepted. Members of `system:masters` may do everything, other
//! users nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drydock_apiserver::error::ApiError;
use drydock_apiserver::host::{
    AccessReview, AccessVerdict, AuthenticationConfig, Host, HostError, HostEvent, Namespace, NodeMetadata,
    TokenVerdict, TrustBundle,
};
use drydock_apiserver::registry::resource::CORE_KEY_GROUP;
use drydock_apiserver::request::user::MASTERS;
use drydock_storage::{At, Found, Key, Page, Store, StoreError};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use crate::object::{is_terminating, labels};
use crate::objects::{Kind, read};

/// Why access is denied.
pub(crate) const DENIED: &str = "standalone mode allows everything to system:masters and nothing to others";

/// How long reads are tried again while the storage is not available, and the pause before each.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// How many reported events may be queued; more are dropped.
const EVENT_QUEUE: usize = 256;

/// Whether a user of these groups is allowed everything.
pub(crate) fn is_allowed<'a>(mut groups: impl Iterator<Item = &'a str>) -> bool {
    groups.any(|group| group == MASTERS)
}

/// The embedded host.
pub(crate) struct StandaloneHost<S: Store> {
    store: S,
    authentication: watch::Sender<Arc<AuthenticationConfig>>,
    events: mpsc::Sender<HostEvent>,
    built_in: Vec<(&'static str, &'static str)>,
}

impl<S: Store> StandaloneHost<S> {
    /// A host over a store. `client_ca` signs client certificates, and `built_in` are the group-versions the host serves.
    /// Returns the queue of reported events, too.
    #[must_use]
    pub(crate) fn new(
        store: S,
        client_ca: TrustBundle,
        built_in: Vec<(&'static str, &'static str)>,
    ) -> (Self, mpsc::Receiver<HostEvent>) {
        let config = AuthenticationConfig {
            client_ca: Some(Arc::new(client_ca)),
            request_header: None,
        };
        let (events, reported) = mpsc::channel(EVENT_QUEUE);
        (
            Self {
                store,
                authentication: watch::Sender::new(Arc::new(config)),
                events,
                built_in,
            },
            reported,
        )
    }

    /// Reads an object. A member of etcd that goes away fails a read, which another member answers a moment later; a host
    /// with an etcd of its own would not show that.
    async fn get(&self, key: &Key) -> Result<Found, StoreError> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.store.get(key).await {
                Err(StoreError::Unavailable { .. }) if Instant::now() < until => sleep(PAUSE).await,
                found => return found,
            }
        }
    }

    async fn find(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Value>, HostError> {
        // An invalid name cannot name an object.
        let Ok(key) = Key::new(CORE_KEY_GROUP, kind.plural, namespace, name) else {
            return Ok(None);
        };
        let found = self.get(&key).await.map_err(|error| storage_error(&error))?;
        found
            .entry
            .map(|entry| read(&key, &entry))
            .transpose()
            .map_err(|error| api_error(&error))
    }
}

fn storage_error(error: &StoreError) -> HostError {
    if matches!(error, StoreError::Unavailable { .. }) {
        return HostError::Unavailable(error.to_string());
    }
    HostError::Status {
        code: 500,
        message: error.to_string(),
    }
}

fn api_error(error: &ApiError) -> HostError {
    HostError::Status {
        code: error.code().as_u16(),
        message: error.to_string(),
    }
}

impl<S: Store> Host for StandaloneHost<S> {
    fn authentication(&self) -> watch::Receiver<Arc<AuthenticationConfig>> {
        self.authentication.subscribe()
    }

    fn review_token<'a>(&'a self, _token: &'a str) -> BoxFuture<'a, Result<TokenVerdict, HostError>> {
        ready(Ok(TokenVerdict::Unknown)).boxed()
    }

    fn review_access<'a>(
        &'a self,
        review: &'a AccessReview,
    ) -> BoxFuture<'a, Result<AccessVerdict, HostError>> {
        let allowed = is_allowed(review.user.groups.iter().map(String::as_str));
        let verdict = if allowed {
            AccessVerdict::Allowed(String::new())
        } else {
            AccessVerdict::NoOpinion(DENIED.to_owned())
        };
        ready(Ok(verdict)).boxed()
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Namespace, HostError>> {
        async move {
            let Some(namespace) = self.find(Kind::NAMESPACES, "", name).await? else {
                return Ok(Namespace::Missing);
            };
            let labels: Arc<BTreeMap<String, String>> = Arc::new(labels(&namespace));
            Ok(if is_terminating(&namespace) {
                Namespace::Terminating(labels)
            } else {
                Namespace::Active(labels)
            })
        }
        .boxed()
    }

    fn pod<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, HostError>> {
        self.find(Kind::PODS, namespace, name).boxed()
    }

    fn nodes(&self) -> BoxFuture<'_, Result<Arc<[NodeMetadata]>, HostError>> {
        async move {
            let range = drydock_storage::KeyRange::resource(CORE_KEY_GROUP, Kind::NODES.plural);
            let scan = self
                .store
                .scan(&range, At::Latest, Page::default())
                .await
                .map_err(|error| storage_error(&error))?;
            let nodes = scan.entries.iter().map(|(key, entry)| {
                let node = read(key, entry).map_err(|error| api_error(&error))?;
                Ok(NodeMetadata {
                    name: key.name().to_owned(),
                    labels: labels(&node),
                })
            });
            nodes.collect()
        }
        .boxed()
    }

    fn served_locally<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<Vec<String>, HostError>> {
        let of_group = self.built_in.iter().filter(|(own, _)| *own == group);
        ready(Ok(of_group.map(|(_, version)| (*version).to_owned()).collect())).boxed()
    }

    fn record_event(&self, event: HostEvent) {
        if self.events.try_send(event).is_err() {
            tracing::debug!("event dropped: the queue is full");
        }
    }

    fn is_synced(&self) -> bool {
        true
    }
}
