//! The host as a real cluster, reached through its kube-apiserver.
//!
//! Three clients (general, authentication, authorization), mirrors of namespaces and nodes, and the authentication
//! settings. Start at [`KubeHost::start`].

mod error;
mod event;
mod follow;
mod mapping;
mod mirror;
mod options;
mod review;
mod settings;

use std::{fmt, panic::AssertUnwindSafe, path::Path, sync::Arc, time::Duration};

use drydock_machinery::clock::Clock;
use futures_util::{FutureExt, future::BoxFuture};
use http::Request;
use http::header::{HeaderValue, USER_AGENT};
use k8s_openapi::api::{
    core::v1::{Namespace as KubeNamespace, Node},
    events::v1::Event as KubeEvent,
};
use kube::{
    Api, Client, Config as ClientConfig,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
    core::PartialObjectMeta,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::{
    error::StartError,
    options::{AuthenticationOverrides, HostConfig, RequestHeaderOverrides},
};
use self::{
    error::bounded,
    event::kube_event,
    mapping::Mapping,
    mirror::{Mirror, MirroredNamespace, mirror, mirrored_namespace, mirrored_node, watch_all},
    review::{access_verdict, post_review, subject_access_review, token_verdict},
    settings::Settings,
};
use super::{
    AccessReview, AccessVerdict, AuthenticationConfig, Followed, FollowedKind, Host, HostError, HostEvent,
    HostResource, Namespace, NodeMetadata, TokenVerdict,
};
use crate::metrics::Metrics;

/// How long a namespace that was just created gets to appear in the mirror.
const NAMESPACE_PAUSE: Duration = Duration::from_millis(50);
/// Events being sent to the host at a time; more are dropped.
const EVENTS_IN_FLIGHT: usize = 16;

/// A cluster behind its kube-apiserver.
pub struct KubeHost {
    client: Client,
    authentication_client: Client,
    authorization_client: Client,
    authentication: watch::Receiver<Arc<AuthenticationConfig>>,
    namespaces: Arc<Mirror<MirroredNamespace>>,
    nodes: Arc<Mirror<NodeMetadata>>,
    mapping: Mapping,
    events: Arc<Semaphore>,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
    /// Cancelled when the loops that follow the host have to end.
    stop: CancellationToken,
    /// Cancelled when a loop that follows the host has ended before it should.
    failed: CancellationToken,
}

impl fmt::Debug for KubeHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeHost")
            .field("synced", &self.is_synced())
            .finish_non_exhaustive()
    }
}

impl KubeHost {
    /// Connects, reads the authentication settings, and follows the host until `stop`.
    ///
    /// # Errors
    /// [`StartError`]. The server must not listen before this has succeeded: until the authorities are known, no
    /// certificate can be verified.
    pub async fn start(
        config: &HostConfig,
        overrides: &AuthenticationOverrides,
        metrics: Metrics,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, StartError> {
        let general = config.kubeconfig.as_deref();
        let client = connect(general).await?;
        let authentication_client = connect(config.authentication_kubeconfig.as_deref().or(general)).await?;
        let authorization_client = connect(config.authorization_kubeconfig.as_deref().or(general)).await?;
        let settings = Settings::load(authentication_client.clone(), config, overrides).await?;
        let host = Arc::new(Self {
            client,
            authentication_client,
            authorization_client,
            authentication: settings.subscribe(),
            namespaces: Arc::default(),
            nodes: Arc::default(),
            mapping: Mapping::default(),
            events: Arc::new(Semaphore::new(EVENTS_IN_FLIGHT)),
            metrics,
            clock,
            tasks: TaskTracker::new(),
            stop,
            failed: CancellationToken::new(),
        });
        host.follow_always(settings);
        Ok(host)
    }

    /// Waits for the loops to end after `stop`.
    pub async fn join(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn spawn(&self, name: String, work: BoxFuture<'static, ()>) {
        let (stop, failed) = (self.stop.clone(), self.failed.clone());
        self.tasks.spawn(follow_until(stop, failed, name, work));
    }

    fn follow_always(&self, settings: Settings) {
        let until = |name: &str, work| self.spawn(name.to_owned(), work);
        let events = watch_all(Api::<PartialObjectMeta<KubeNamespace>>::all(self.client.clone()));
        let namespaces = Arc::clone(&self.namespaces);
        until(
            "namespaces",
            mirror(events, namespaces, "namespaces", mirrored_namespace).boxed(),
        );
        let events = watch_all(Api::<PartialObjectMeta<Node>>::all(self.client.clone()));
        until(
            "nodes",
            mirror(events, Arc::clone(&self.nodes), "nodes", mirrored_node).boxed(),
        );
        until("authentication settings", settings.follow().boxed());
    }
}

/// Runs `work` until `stop`. If it ends or panics before, what it follows is stale from then on: that is logged, and `failed`
/// is cancelled.
async fn follow_until(
    stop: CancellationToken,
    failed: CancellationToken,
    name: String,
    work: BoxFuture<'static, ()>,
) {
    tokio::select! {
        () = stop.cancelled() => {}
        ended = AssertUnwindSafe(work).catch_unwind() => {
            let panicked = ended.is_err();
            tracing::error!(panicked, "the host's {name} are no longer followed");
            failed.cancel();
        }
    }
}

async fn connect(kubeconfig: Option<&Path>) -> Result<Client, StartError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let wrong = |source| StartError::Kubeconfig {
                path: path.to_owned(),
                source: Box::new(source),
            };
            let file = Kubeconfig::read_from(path).map_err(wrong)?;
            ClientConfig::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(wrong)?
        }
        None => ClientConfig::incluster().map_err(StartError::InCluster)?,
    };
    // Reviews have their own retries, and everything else fails at once.
    config.default_retry = false;
    // Names this server in the host's audit log.
    let agent = HeaderValue::from_static(concat!("drydock-apiserver/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));
    Client::try_from(config).map_err(StartError::Client)
}

impl Host for KubeHost {
    fn authentication(&self) -> watch::Receiver<Arc<AuthenticationConfig>> {
        self.authentication.clone()
    }

    fn review_token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenVerdict, HostError>> {
        async move {
            let review = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
            });
            let reviewed = post_review(
                &self.authentication_client,
                "/apis/authentication.k8s.io/v1/tokenreviews",
                &review,
                |code, took| self.metrics.token_review(code, took),
            )
            .await?;
            token_verdict(reviewed)
        }
        .boxed()
    }

    fn review_access<'a>(
        &'a self,
        review: &'a AccessReview,
    ) -> BoxFuture<'a, Result<AccessVerdict, HostError>> {
        async move {
            let reviewed = post_review(
                &self.authorization_client,
                "/apis/authorization.k8s.io/v1/subjectaccessreviews?timeout=10s",
                &subject_access_review(review),
                |code, took| self.metrics.access_review(code, took),
            )
            .await?;
            access_verdict(reviewed)
        }
        .boxed()
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Namespace, HostError>> {
        async move {
            if !self.namespaces.is_synced() {
                return Err(HostError::NotSynced("namespaces"));
            }
            if let Some(namespace) = self.namespaces.get(name) {
                return Ok(namespace.state());
            }
            sleep(NAMESPACE_PAUSE).await;
            if let Some(namespace) = self.namespaces.get(name) {
                return Ok(namespace.state());
            }
            let api = Api::<PartialObjectMeta<KubeNamespace>>::all(self.client.clone());
            let live = bounded(api.get_opt(name)).await?;
            Ok(live.map_or(Namespace::Missing, |object| {
                mirrored_namespace(object.metadata).state()
            }))
        }
        .boxed()
    }

    fn pod<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, HostError>> {
        async move {
            let path = format!(
                "/api/v1/namespaces/{}/pods/{}",
                percent_encoding::utf8_percent_encode(namespace, percent_encoding::NON_ALPHANUMERIC),
                percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC),
            );
            let request = Request::get(path)
                .body(Vec::new())
                .map_err(|error| HostError::Unreachable(Arc::new(error)))?;
            match bounded(self.client.request::<Value>(request)).await {
                Ok(pod) => Ok(Some(pod)),
                Err(HostError::Status { code: 404, .. }) => Ok(None),
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    fn nodes(&self) -> BoxFuture<'_, Result<Arc<[NodeMetadata]>, HostError>> {
        let result = if self.nodes.is_synced() {
            let mut nodes: Vec<NodeMetadata> = self
                .nodes
                .lock()
                .values()
                .map(|node| NodeMetadata::clone(node))
                .collect();
            nodes.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(nodes.into())
        } else {
            Err(HostError::NotSynced("nodes"))
        };
        std::future::ready(result).boxed()
    }

    fn served_locally<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<Vec<String>, HostError>> {
        async move {
            let request = Request::get("/apis/apiregistration.k8s.io/v1/apiservices")
                .body(Vec::new())
                .map_err(|error| HostError::Unreachable(Arc::new(error)))?;
            let list: ApiServices = bounded(self.client.request(request)).await?;
            let local = list
                .items
                .into_iter()
                .filter(|item| item.spec.group == group && item.spec.service.is_none());
            Ok(local.map(|item| item.spec.version).collect())
        }
        .boxed()
    }

    fn resources_of<'a>(
        &'a self,
        api_version: &'a str,
        kind: &'a str,
    ) -> BoxFuture<'a, Result<Vec<HostResource>, HostError>> {
        self.mapping.resources_of(&self.client, api_version, kind).boxed()
    }

    fn record_event(&self, event: HostEvent) {
        let Ok(permit) = Arc::clone(&self.events).try_acquire_owned() else {
            tracing::debug!(reason = event.reason, "event dropped: too many in flight");
            return;
        };
        let namespace = if event.namespace.is_empty() {
            "default"
        } else {
            &event.namespace
        };
        let api: Api<KubeEvent> = Api::namespaced(self.client.clone(), namespace);
        let object = kube_event(&event, namespace, self.clock.now());
        self.tasks.spawn(async move {
            let _permit = permit;
            if let Err(error) = bounded(api.create(&PostParams::default(), &object)).await {
                tracing::debug!(%error, "event not recorded");
            }
        });
    }

    fn is_synced(&self) -> bool {
        self.namespaces.is_synced() && self.nodes.is_synced() && !self.failed.is_cancelled()
    }

    fn follow(&self, kind: FollowedKind) -> Option<Arc<Followed>> {
        let name = kind.resource.clone().into_owned();
        let followed = Arc::new(Followed::new(kind));
        let work = follow::follow(self.client.clone(), Arc::downgrade(&followed)).boxed();
        let (stop, failed) = (self.stop.clone(), self.failed.clone());
        let unused = followed.unused();
        self.tasks.spawn(async move {
            // Objects that are not used any more need not be followed.
            unused
                .run_until_cancelled_owned(follow_until(stop, failed, name, work))
                .await;
        });
        Some(followed)
    }

    fn failed(&self) -> BoxFuture<'_, ()> {
        self.failed.cancelled().boxed()
    }
}

#[derive(Deserialize)]
struct ApiServices {
    items: Vec<ApiServiceItem>,
}

#[derive(Deserialize)]
struct ApiServiceItem {
    spec: ApiServiceSpec,
}

#[derive(Deserialize)]
struct ApiServiceSpec {
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
    service: Option<Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_loop_that_ends_too_early_is_a_failure() {
        let works: [(BoxFuture<'static, ()>, bool); 3] = [
            (async { panic!("a bug") }.boxed(), true),
            (std::future::ready(()).boxed(), true),
            (std::future::pending().boxed(), false),
        ];
        for (work, expected) in works {
            let (stop, failed) = (CancellationToken::new(), CancellationToken::new());
            if !expected {
                stop.cancel();
            }
            follow_until(stop, failed.clone(), "settings".to_owned(), work).await;
            assert_eq!(failed.is_cancelled(), expected);
        }
    }
}
