//! How does a real cluster answer?
//!
//! Three clients (general, authentication, authorization), mirrors of namespaces and nodes that hold metadata alone, and
//! the published authentication settings: read once before the server listens, then followed.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drydock_machinery::clock::Clock;
use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture};
use http::Request;
use http::header::{HeaderValue, USER_AGENT};
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Namespace as KubeNamespace, Node, ObjectReference},
        events::v1::Event as KubeEvent,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client, Config as ClientConfig,
    api::PostParams,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    AccessReview, AccessVerdict, Attributes, AuthenticationConfig, Host, HostError, HostEvent, Namespace,
    NodeMetadata, SelectorRequirement, TokenVerdict, TrustBundle,
    published::{self, PublishedError},
    request_header::RequestHeaderConfig,
    trust::TrustError,
};
use crate::{
    config::{AuthenticationOverrides, HostConfig, RequestHeaderOverrides},
    health::Mark,
    metrics::Metrics,
    request::UserInfo,
};

/// Time of a review, retries included.
const REVIEW_TIME: Duration = Duration::from_secs(10);
/// Time of any other question.
const CALL_TIME: Duration = Duration::from_secs(10);
/// Attempts of a review, and the first pause between them.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// How long a namespace that was created a moment ago gets to appear in the mirror.
const NAMESPACE_PAUSE: Duration = Duration::from_millis(50);
/// Events on their way to the host; more are dropped.
const EVENTS_IN_FLIGHT: usize = 16;
/// Characters of an object's name in the name of its event, which ends in a dot and 16 digits.
const EVENT_NAME_START: usize = 230;
/// How often authority files given by flags are read again.
const FILE_POLL: Duration = Duration::from_mins(1);
/// How long a watch may be silent before its connection is taken for dead, in seconds.
const WATCH_SECONDS: u32 = 290;

/// Why the host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A kubeconfig that does not work.
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// Not inside a pod.
    #[error("no kubeconfig is given and this is no pod of a cluster")]
    InCluster(#[source] InClusterError),
    /// The client cannot be built.
    #[error("the client of the host cannot be built")]
    Client(#[source] kube::Error),
    /// The role that lets us read the authentication settings is missing.
    #[error(
        "the host forbids reading the ConfigMap {}/{}: bind the Role extension-apiserver-authentication-reader \
         there to the service account of this server",
        published::NAMESPACE,
        published::NAME
    )]
    Forbidden,
    /// The authentication settings cannot be read.
    #[error("the host's authentication settings cannot be read")]
    Lookup(#[source] HostError),
    /// The authentication settings are malformed.
    #[error("the host's authentication settings are malformed")]
    Published(#[source] PublishedError),
    /// A file given by a flag cannot be read.
    #[error("cannot read {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file given by a flag holds no authorities.
    #[error("cannot use the authorities in {path}")]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: TrustError,
    },
}

/// A cluster behind its kube-apiserver.
pub struct KubeHost {
    client: Client,
    authentication_client: Client,
    authorization_client: Client,
    authentication: watch::Sender<Arc<AuthenticationConfig>>,
    namespaces: Arc<Mirror<MirroredNamespace>>,
    nodes: Arc<Mirror<NodeMetadata>>,
    events: Arc<Semaphore>,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
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
    /// [`StartError`]. The server must not listen before this has succeeded: until the authorities are known, every
    /// certificate would look like a stranger's.
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

        let mut settings = AuthenticationConfig::default();
        if !config.skip_lookup {
            match look_up(&authentication_client, &settings).await {
                Ok(found) => settings = found,
                Err(error) if config.tolerate_lookup_failure => {
                    tracing::error!(%error, "continuing without the host's authentication settings");
                }
                Err(error) => return Err(error),
            }
        }
        let forced = Forced::read(overrides).await?;
        settings = forced.over(settings);
        published::warn_of_open_doors(&settings);

        let host = Arc::new(Self {
            client,
            authentication_client,
            authorization_client,
            authentication: watch::Sender::new(Arc::new(settings)),
            namespaces: Arc::default(),
            nodes: Arc::default(),
            events: Arc::new(Semaphore::new(EVENTS_IN_FLIGHT)),
            metrics,
            clock,
            tasks: TaskTracker::new(),
        });
        host.follow(config.skip_lookup, overrides.clone(), forced, &stop);
        Ok(host)
    }

    /// Waits for the loops to end after their stop.
    pub async fn join(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn follow(
        self: &Arc<Self>,
        skip_lookup: bool,
        overrides: AuthenticationOverrides,
        forced: Forced,
        stop: &CancellationToken,
    ) {
        let until = |work: BoxFuture<'static, ()>| {
            let stop = stop.clone();
            self.tasks.spawn(async move {
                tokio::select! { () = stop.cancelled() => {}, () = work => {} }
            });
        };
        let namespaces = Api::<PartialObjectMeta<KubeNamespace>>::all(self.client.clone());
        until(
            mirror(
                watch_all(namespaces),
                Arc::clone(&self.namespaces),
                "namespaces",
                mirrored_namespace,
            )
            .boxed(),
        );
        let nodes = Api::<PartialObjectMeta<Node>>::all(self.client.clone());
        until(mirror(watch_all(nodes), Arc::clone(&self.nodes), "nodes", mirrored_node).boxed());
        until(
            Arc::clone(self)
                .follow_settings(skip_lookup, overrides, forced)
                .boxed(),
        );
    }

    /// Takes over what the host publishes and what authority files say, as they change.
    async fn follow_settings(
        self: Arc<Self>,
        skip_lookup: bool,
        overrides: AuthenticationOverrides,
        mut forced: Forced,
    ) {
        let maps: Api<ConfigMap> = Api::namespaced(self.authentication_client.clone(), published::NAMESPACE);
        let only = watcher::Config::default()
            .timeout(WATCH_SECONDS)
            .fields(&format!("metadata.name={}", published::NAME));
        let mut maps = watcher::watcher(maps, only).default_backoff().boxed();
        let mut poll = tokio::time::interval(FILE_POLL);
        loop {
            tokio::select! {
                event = maps.next(), if !skip_lookup => match event {
                    Some(Ok(Event::Apply(map) | Event::InitApply(map))) => {
                        self.settings_published(&map.data.unwrap_or_default(), &forced);
                    }
                    // A deleted map clears nothing: the host restores it at once.
                    Some(Ok(Event::Delete(_) | Event::Init | Event::InitDone)) => {}
                    Some(Err(error)) => {
                        tracing::warn!(%error, "following the host's authentication settings");
                    }
                    None => return,
                },
                _ = poll.tick() => match Forced::read(&overrides).await {
                    Ok(read) if read != forced => {
                        forced = read;
                        self.change_settings(|old| Some(forced.over(old.clone())));
                    }
                    Ok(_) => {}
                    Err(error) => tracing::error!(%error, "the authorities in use stay"),
                },
            }
        }
    }

    fn settings_published(&self, data: &BTreeMap<String, String>, forced: &Forced) {
        self.change_settings(|old| match published::take_over(data, old) {
            Ok(settings) => Some(forced.over(settings)),
            Err(error) => {
                tracing::error!(%error, "the authentication settings in use stay");
                None
            }
        });
    }

    fn change_settings(&self, change: impl FnOnce(&AuthenticationConfig) -> Option<AuthenticationConfig>) {
        self.authentication.send_if_modified(|current| {
            let Some(next) = change(current).filter(|next| *next != **current) else {
                return false;
            };
            published::warn_of_open_doors(&next);
            tracing::info!("authentication settings changed");
            *current = Arc::new(next);
            true
        });
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
    // Reviews retry by their own rules and everything else fails fast.
    config.default_retry = false;
    // So that the host's audit log says who asks.
    let agent = HeaderValue::from_static(concat!("drydock-apiserver/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));
    Client::try_from(config).map_err(StartError::Client)
}

async fn look_up(client: &Client, old: &AuthenticationConfig) -> Result<AuthenticationConfig, StartError> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), published::NAMESPACE);
    let map = match timeout(CALL_TIME, maps.get_opt(published::NAME)).await {
        Ok(Ok(map)) => map,
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => return Err(StartError::Forbidden),
        Ok(Err(error)) => return Err(StartError::Lookup(host_error(error))),
        Err(_) => return Err(StartError::Lookup(HostError::Timeout)),
    };
    let Some(map) = map else {
        tracing::warn!(
            "the host publishes no authentication settings yet: its users cannot authenticate until it does"
        );
        return Ok(old.clone());
    };
    published::take_over(&map.data.unwrap_or_default(), old).map_err(StartError::Published)
}

/// What flags say instead of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Forced {
    client_ca: Option<Arc<TrustBundle>>,
    request_header: Option<Arc<RequestHeaderConfig>>,
}

impl Forced {
    async fn read(overrides: &AuthenticationOverrides) -> Result<Self, StartError> {
        let client_ca = match &overrides.client_ca_file {
            Some(path) => Some(read_bundle(path).await?),
            None => None,
        };
        let request_header = match &overrides.request_header {
            Some(front_proxy) => Some(Arc::new(request_header(
                front_proxy,
                read_bundle(&front_proxy.ca_file).await?,
            ))),
            None => None,
        };
        Ok(Self {
            client_ca,
            request_header,
        })
    }

    fn over(&self, settings: AuthenticationConfig) -> AuthenticationConfig {
        AuthenticationConfig {
            client_ca: self.client_ca.clone().or(settings.client_ca),
            request_header: self.request_header.clone().or(settings.request_header),
        }
    }
}

async fn read_bundle(path: &Path) -> Result<Arc<TrustBundle>, StartError> {
    let pem = tokio::fs::read_to_string(path)
        .await
        .map_err(|source| StartError::File {
            path: path.to_owned(),
            source,
        })?;
    TrustBundle::from_pem(&pem)
        .map(Arc::new)
        .map_err(|source| StartError::Authorities {
            path: path.to_owned(),
            source,
        })
}

fn request_header(flags: &RequestHeaderOverrides, ca: Arc<TrustBundle>) -> RequestHeaderConfig {
    // The flags were validated: whatever is no header name was refused at start.
    let headers = |names: &[String]| names.iter().filter_map(|name| name.parse().ok()).collect();
    RequestHeaderConfig {
        ca: Some(ca),
        allowed_names: flags.allowed_names.clone(),
        username_headers: headers(&flags.username_headers),
        uid_headers: headers(&flags.uid_headers),
        group_headers: headers(&flags.group_headers),
        extra_prefixes: flags
            .extra_headers_prefixes
            .iter()
            .map(|prefix| prefix.to_ascii_lowercase())
            .collect(),
    }
}

/// A copy of some objects of the host, by name.
struct Mirror<T> {
    objects: Mutex<HashMap<String, Arc<T>>>,
    synced: Mark,
}

impl<T> Default for Mirror<T> {
    fn default() -> Self {
        Self {
            objects: Mutex::default(),
            synced: Mark::default(),
        }
    }
}

impl<T> Mirror<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<T>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, name: &str) -> Option<Arc<T>> {
        self.lock().get(name).cloned()
    }
}

#[derive(Debug)]
struct MirroredNamespace {
    terminating: bool,
    labels: Arc<BTreeMap<String, String>>,
}

impl MirroredNamespace {
    fn state(&self) -> Namespace {
        let labels = Arc::clone(&self.labels);
        if self.terminating {
            Namespace::Terminating(labels)
        } else {
            Namespace::Active(labels)
        }
    }
}

fn mirrored_namespace(metadata: ObjectMeta) -> MirroredNamespace {
    MirroredNamespace {
        terminating: metadata.deletion_timestamp.is_some(),
        labels: Arc::new(metadata.labels.unwrap_or_default()),
    }
}

fn mirrored_node(metadata: ObjectMeta) -> NodeMetadata {
    NodeMetadata {
        name: metadata.name.unwrap_or_default(),
        labels: metadata.labels.unwrap_or_default(),
    }
}

type Events<K> = std::pin::Pin<Box<dyn Stream<Item = watcher::Result<Event<PartialObjectMeta<K>>>> + Send>>;

fn watch_all<K>(api: Api<PartialObjectMeta<K>>) -> Events<K>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + fmt::Debug
        + Send
        + Sync
        + serde::de::DeserializeOwned
        + 'static,
{
    watcher::watcher(api, watcher::Config::default().timeout(WATCH_SECONDS))
        .default_backoff()
        .boxed()
}

/// Keeps a mirror current. The first list fills a copy that is swapped in whole: readers never see half a list.
async fn mirror<K, T>(
    mut events: Events<K>,
    mirror: Arc<Mirror<T>>,
    what: &'static str,
    convert: fn(ObjectMeta) -> T,
) {
    let mut listing = HashMap::new();
    let entry = |object: PartialObjectMeta<K>| {
        let name = object.metadata.name.clone().unwrap_or_default();
        (name, Arc::new(convert(object.metadata)))
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(object)) => {
                let (name, object) = entry(object);
                listing.insert(name, object);
            }
            Ok(Event::InitDone) => {
                *mirror.lock() = std::mem::take(&mut listing);
                mirror.synced.set();
                tracing::debug!(what, "mirror complete");
            }
            Ok(Event::Apply(object)) => {
                let (name, object) = entry(object);
                mirror.lock().insert(name, object);
            }
            Ok(Event::Delete(object)) => {
                mirror
                    .lock()
                    .remove(object.metadata.name.as_deref().unwrap_or_default());
            }
            Err(error) => tracing::warn!(what, %error, "watching the host"),
        }
    }
}

fn host_error(error: kube::Error) -> HostError {
    match error {
        kube::Error::Api(status) => HostError::Answered {
            code: status.code,
            message: status.message,
        },
        other => HostError::Unreachable(Arc::new(other)),
    }
}

async fn bounded<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, HostError> {
    match timeout(CALL_TIME, call).await {
        Ok(result) => result.map_err(host_error),
        Err(_) => Err(HostError::Timeout),
    }
}

fn is_worth_a_retry(error: &HostError) -> bool {
    match error {
        HostError::Answered { code, .. } => matches!(code, 429 | 500 | 504),
        HostError::Unreachable(_) => true,
        HostError::Timeout | HostError::NotConfigured | HostError::NotSynced(_) => false,
    }
}

/// Posts a review, trying again for as long as a review may take.
async fn post_review(
    client: &Client,
    path: &str,
    review: &Value,
    counted: impl Fn(Option<u16>, Duration),
) -> Result<Value, HostError> {
    let body = review.to_string().into_bytes();
    let attempts = async {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let request = Request::post(path)
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(body.clone())
                .map_err(|error| HostError::Unreachable(Arc::new(error)))?;
            let before = Instant::now();
            let result = client.request::<Value>(request).await.map_err(host_error);
            let code = match &result {
                Ok(_) => Some(201),
                Err(HostError::Answered { code, .. }) => Some(*code),
                Err(_) => None,
            };
            counted(code, before.elapsed());
            match result {
                Err(error) if attempt < ATTEMPTS && is_worth_a_retry(&error) => {
                    tracing::debug!(%error, path, attempt, "trying the review again");
                    sleep(pause.mul_f64(1.0 + 0.2 * fastrand::f64())).await;
                    pause = pause.mul_f64(1.5);
                    attempt += 1;
                }
                result => return result,
            }
        }
    };
    timeout(REVIEW_TIME, attempts)
        .await
        .unwrap_or(Err(HostError::Timeout))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    error: String,
    user: ReviewedUser,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedUser {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
    reason: String,
}

fn status<T: for<'de> Deserialize<'de>>(mut answer: Value) -> Result<T, HostError> {
    let status = answer.get_mut("status").map(Value::take).unwrap_or_default();
    serde_json::from_value(status).map_err(|error| HostError::Unreachable(Arc::new(error)))
}

fn token_verdict(answer: Value) -> Result<TokenVerdict, HostError> {
    let status: TokenStatus = status(answer)?;
    Ok(match (status.authenticated, status.error.is_empty()) {
        (true, _) if !status.user.username.is_empty() => {
            let ReviewedUser {
                username: name,
                uid,
                groups,
                extra,
            } = status.user;
            TokenVerdict::Authenticated(Arc::new(UserInfo {
                name,
                uid,
                groups,
                extra,
            }))
        }
        (_, false) => TokenVerdict::Refused(status.error),
        (_, true) => TokenVerdict::Unknown,
    })
}

fn access_verdict(answer: Value) -> Result<AccessVerdict, HostError> {
    let status: AccessStatus = status(answer)?;
    Ok(match (status.denied, status.allowed) {
        (true, _) => AccessVerdict::Denied(status.reason),
        (false, true) => AccessVerdict::Allowed(status.reason),
        (false, false) => AccessVerdict::NoOpinion(status.reason),
    })
}

/// The wire form of a review; empty members are left out.
fn subject_access_review(review: &AccessReview) -> Value {
    let mut spec = serde_json::Map::new();
    let user = &review.user;
    let mut put = |key: &str, value: Value| {
        let empty = match &value {
            Value::String(text) => text.is_empty(),
            Value::Array(values) => values.is_empty(),
            Value::Object(members) => members.is_empty(),
            _ => false,
        };
        if !empty {
            spec.insert(key.to_owned(), value);
        }
    };
    put("user", json!(user.name));
    put("uid", json!(user.uid));
    put("groups", json!(user.groups));
    put("extra", json!(user.extra));
    match &review.attributes {
        Attributes::Path { verb, path } => {
            put("nonResourceAttributes", json!({"path": path, "verb": verb}));
        }
        Attributes::Resource(r) => {
            let mut attributes = serde_json::Map::new();
            for (key, text) in [
                ("namespace", &r.namespace),
                ("verb", &r.verb),
                ("group", &r.group),
                ("version", &r.version),
                ("resource", &r.resource),
                ("subresource", &r.subresource),
                ("name", &r.name),
            ] {
                if !text.is_empty() {
                    attributes.insert(key.to_owned(), json!(text));
                }
            }
            for (key, requirements) in [
                ("fieldSelector", &r.field_selector),
                ("labelSelector", &r.label_selector),
            ] {
                if !requirements.is_empty() {
                    let requirements: Vec<Value> = requirements.iter().map(requirement).collect();
                    attributes.insert(key.to_owned(), json!({"requirements": requirements}));
                }
            }
            spec.insert("resourceAttributes".to_owned(), Value::Object(attributes));
        }
    }
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
}

fn requirement(requirement: &SelectorRequirement) -> Value {
    let SelectorRequirement {
        key,
        operator,
        values,
    } = requirement;
    if values.is_empty() {
        json!({"key": key, "operator": operator.as_str()})
    } else {
        json!({"key": key, "operator": operator.as_str(), "values": values})
    }
}

impl Host for KubeHost {
    fn authentication(&self) -> watch::Receiver<Arc<AuthenticationConfig>> {
        self.authentication.subscribe()
    }

    fn review_token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenVerdict, HostError>> {
        async move {
            let review = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
            });
            let answer = post_review(
                &self.authentication_client,
                "/apis/authentication.k8s.io/v1/tokenreviews",
                &review,
                |code, took| self.metrics.token_review(code, took),
            )
            .await?;
            token_verdict(answer)
        }
        .boxed()
    }

    fn review_access<'a>(
        &'a self,
        review: &'a AccessReview,
    ) -> BoxFuture<'a, Result<AccessVerdict, HostError>> {
        async move {
            let answer = post_review(
                &self.authorization_client,
                "/apis/authorization.k8s.io/v1/subjectaccessreviews?timeout=10s",
                &subject_access_review(review),
                |code, took| self.metrics.access_review(code, took),
            )
            .await?;
            access_verdict(answer)
        }
        .boxed()
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Namespace, HostError>> {
        async move {
            if !self.namespaces.synced.is_set() {
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
                Err(HostError::Answered { code: 404, .. }) => Ok(None),
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    fn nodes(&self) -> BoxFuture<'_, Result<Arc<[NodeMetadata]>, HostError>> {
        let result = if self.nodes.synced.is_set() {
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

    fn record_event(&self, event: HostEvent) {
        let Ok(permit) = Arc::clone(&self.events).try_acquire_owned() else {
            tracing::debug!(reason = event.reason, "event dropped: too many on their way");
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
        self.namespaces.synced.is_set() && self.nodes.synced.is_set()
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

/// The object's name and the time in hex, as the Go libraries name events; long names lose their end.
fn event_name(object: &str, now: jiff::Timestamp) -> String {
    let start: String = object.chars().take(EVENT_NAME_START).collect();
    let start = start.trim_end_matches(|last: char| !last.is_ascii_alphanumeric());
    format!("{start}.{:x}", now.as_nanosecond())
}

fn kube_event(event: &HostEvent, namespace: &str, now: jiff::Timestamp) -> KubeEvent {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    KubeEvent {
        metadata: ObjectMeta {
            name: Some(event_name(&event.name, now)),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        reporting_controller: Some("drydock.dev/apiserver".to_owned()),
        reporting_instance: Some("drydock-apiserver".to_owned()),
        action: text(&event.action),
        reason: text(&event.reason),
        note: text(&event.note),
        type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
        regarding: Some(ObjectReference {
            api_version: text(&event.api_version),
            kind: text(&event.kind),
            namespace: text(&event.namespace),
            name: text(&event.name),
            uid: text(&event.uid),
            ..ObjectReference::default()
        }),
        ..KubeEvent::default()
    }
}

#[cfg(test)]
mod tests;
