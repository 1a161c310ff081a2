//! What the tests of the HTTP side share: certificate authorities, a host that answers as told, a handler that says what
//! it saw.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use drydock_machinery::clock::ManualClock;
use futures_util::future::{BoxFuture, FutureExt};
use http::{HeaderName, Request, Response, StatusCode};
use prometheus_client::registry::Registry;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    authorization::{Authorizer, DEFAULT_ALWAYS_ALLOW},
    error::ApiError,
    filters::{Authenticator, Chain, ChainParts, Handler, InFlightLimits},
    health::{HealthBuilder, Mark, Scope},
    host::{
        AccessReview, AccessVerdict, AuthenticationConfig, Host, HostError, HostEvent, Namespace,
        NodeMetadata, TokenVerdict, TrustBundle,
        request_header::RequestHeaderConfig,
        reviews::{ReviewTtls, Reviews},
    },
    http::{
        body::{RequestBody, ResponseBody},
        certificate::PeerCertificates,
        connection::{Connection, Service},
        shutdown::Stages,
    },
    metrics::{Exposition, Metrics, ServedResource},
    request::{RequestContext, UserInfo},
};

/// Noon of a day in 2026: the time of every test.
pub(crate) fn noon() -> jiff::Timestamp {
    "2026-06-01T12:00:00Z".parse().unwrap()
}

/// An authority of a test.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate to issue.
pub(crate) struct Subject {
    pub(crate) common_name: &'static str,
    pub(crate) organization: Option<&'static str>,
    pub(crate) alternative_names: &'static [&'static str],
    pub(crate) usages: Vec<ExtendedKeyUsagePurpose>,
    pub(crate) until: (i32, u8, u8),
}

impl Subject {
    pub(crate) fn client(common_name: &'static str) -> Self {
        Self {
            common_name,
            organization: None,
            alternative_names: &[],
            usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
            until: (2027, 1, 1),
        }
    }

    pub(crate) fn server() -> Self {
        Self {
            alternative_names: &["drydock.test"],
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth],
            until: (2099, 1, 1),
            ..Self::client("server")
        }
    }
}

/// A certificate with its key.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
}

impl Identity {
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from_pem_slice(self.certificate_pem.as_bytes()).unwrap()]
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).unwrap()
    }
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn bundle(&self) -> Arc<TrustBundle> {
        Arc::new(TrustBundle::from_pem(&self.pem()).unwrap())
    }

    pub(crate) fn issue(&self, subject: &Subject) -> Identity {
        let names: Vec<String> = subject
            .alternative_names
            .iter()
            .map(|name| (*name).to_owned())
            .collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, subject.common_name);
        if let Some(organization) = subject.organization {
            params
                .distinguished_name
                .push(DnType::OrganizationName, organization);
        }
        params.extended_key_usages.clone_from(&subject.usages);
        let (year, month, day) = subject.until;
        params.not_after = rcgen::date_time_ymd(year, month, day);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }
}

type Decide = Box<dyn Fn(&AccessReview) -> Result<AccessVerdict, HostError> + Send + Sync>;

/// A host that answers as told and counts.
pub(crate) struct FakeHost {
    pub(crate) authentication: watch::Sender<Arc<AuthenticationConfig>>,
    pub(crate) tokens: Mutex<HashMap<String, UserInfo>>,
    pub(crate) decide: Mutex<Decide>,
    /// Namespaces that are not simply there.
    pub(crate) namespaces: Mutex<HashMap<String, Namespace>>,
    pub(crate) token_reviews: AtomicUsize,
    pub(crate) access_reviews: AtomicUsize,
}

impl FakeHost {
    pub(crate) fn new(config: AuthenticationConfig) -> Arc<Self> {
        Arc::new(Self {
            authentication: watch::Sender::new(Arc::new(config)),
            tokens: Mutex::default(),
            decide: Mutex::new(Box::new(|_| Ok(AccessVerdict::Allowed(String::new())))),
            namespaces: Mutex::default(),
            token_reviews: AtomicUsize::default(),
            access_reviews: AtomicUsize::default(),
        })
    }

    pub(crate) fn decide_by(
        &self,
        decide: impl Fn(&AccessReview) -> Result<AccessVerdict, HostError> + Send + Sync + 'static,
    ) {
        *self.decide.lock().unwrap() = Box::new(decide);
    }
}

impl Host for FakeHost {
    fn authentication(&self) -> watch::Receiver<Arc<AuthenticationConfig>> {
        self.authentication.subscribe()
    }

    fn review_token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<TokenVerdict, HostError>> {
        self.token_reviews.fetch_add(1, Ordering::Relaxed);
        let known = self.tokens.lock().unwrap().get(token).cloned();
        let verdict = match (token, known) {
            ("unreachable", _) => Err(HostError::Timeout),
            (_, Some(user)) => Ok(TokenVerdict::Authenticated(Arc::new(user))),
            (_, None) => Ok(TokenVerdict::Refused("invalid bearer token".to_owned())),
        };
        std::future::ready(verdict).boxed()
    }

    fn review_access<'a>(
        &'a self,
        review: &'a AccessReview,
    ) -> BoxFuture<'a, Result<AccessVerdict, HostError>> {
        self.access_reviews.fetch_add(1, Ordering::Relaxed);
        let verdict = (self.decide.lock().unwrap())(review);
        std::future::ready(verdict).boxed()
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Namespace, HostError>> {
        let known = self.namespaces.lock().unwrap().get(name).cloned();
        std::future::ready(Ok(known.unwrap_or_else(|| Namespace::Active(Arc::default())))).boxed()
    }

    fn pod<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<Option<Value>, HostError>> {
        std::future::ready(Ok(None)).boxed()
    }

    fn nodes(&self) -> BoxFuture<'_, Result<Arc<[NodeMetadata]>, HostError>> {
        std::future::ready(Ok(Arc::default())).boxed()
    }

    fn served_locally<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<String>, HostError>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }

    fn record_event(&self, _: HostEvent) {}

    fn is_synced(&self) -> bool {
        true
    }
}

/// Says as JSON what reached it. Resource `panics` panics, `hangs` never answers, `watches` and `large` stream and list.
pub(crate) struct Echo;

impl Handler for Echo {
    async fn handle(&self, context: RequestContext, request: Request<RequestBody>) -> Response<ResponseBody> {
        let resource = context
            .info
            .resource
            .as_ref()
            .map_or("", |resource| resource.resource.as_str())
            .to_owned();
        let headers: Vec<String> = request.headers().keys().map(ToString::to_string).collect();
        match resource.as_str() {
            "panics" => panic!("as asked"),
            "hangs" => std::future::pending().await,
            "missing" => return ApiError::no_route().into_response(),
            "warns" => {
                context.warnings.add("careful");
                return ApiError::bad_request("no").into_response();
            }
            "large" => return Response::new(ResponseBody::full(vec![b'x'; 200_000])),
            "watches" => {
                let first = futures_util::stream::iter([Bytes::from_static(b"{}\n")]);
                let ended = context.ending.clone();
                let rest = futures_util::stream::once(async move {
                    ended.cancelled().await;
                    Bytes::from_static(b"{\"end\":true}\n")
                });
                return Response::new(ResponseBody::stream(futures_util::StreamExt::chain(first, rest)));
            }
            _ => {}
        }
        let body = match request.into_body().read().await {
            Ok(body) => body,
            Err(error) => return error.into_response(),
        };
        let user = &context.user;
        let seen = json!({
            "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            "impersonator": context.impersonator.as_ref().map(|user| user.name.clone()),
            "verb": context.info.review_verb(), "headers": headers, "bytes": body.len(),
            "seconds": context.deadline.map(|deadline| (deadline - context.received).as_secs()),
        });
        Response::new(ResponseBody::full(seen.to_string()))
    }
}

/// The server's side of a test.
pub(crate) struct Server {
    pub(crate) chain: Arc<Chain<Echo>>,
    pub(crate) host: Arc<FakeHost>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) metrics: Metrics,
    pub(crate) stages: Stages,
}

impl Server {
    pub(crate) fn new(config: AuthenticationConfig) -> Self {
        Self::with_limits(config, InFlightLimits::default())
    }

    pub(crate) fn with_limits(config: AuthenticationConfig, limits: InFlightLimits) -> Self {
        let host = FakeHost::new(config);
        let clock = Arc::new(ManualClock::new(noon()));
        let mut registry = Registry::default();
        let served = ServedResource {
            group: "g",
            version: "v",
            resource: "rs",
        };
        let metrics = Metrics::register(&mut registry, [served]);
        let reviews = Arc::new(Reviews::new(Arc::clone(&host) as _, ReviewTtls::default()).unwrap());
        let always_allow = DEFAULT_ALWAYS_ALLOW.map(str::to_owned).to_vec();
        let stages = Stages::new();
        let stopping = stages.unready().clone();
        let routes_installed = Mark::default();
        routes_installed.set();
        let chain = Chain::new(ChainParts {
            authenticator: Authenticator::new(Arc::clone(&reviews), Arc::clone(&clock) as _, metrics.clone()),
            authorizer: Arc::new(Authorizer::new(reviews, always_allow, metrics.clone())),
            limits,
            request_timeout: Duration::from_mins(1),
            routes_installed,
            health: HealthBuilder::new()
                .check("shutdown", Scope::Ready, move || {
                    if stopping.is_cancelled() {
                        Err("stopping".to_owned())
                    } else {
                        Ok(())
                    }
                })
                .build(),
            exposition: Exposition::new(registry),
            metrics: metrics.clone(),
            stages: stages.clone(),
            handler: Echo,
        });
        Self {
            chain: Arc::new(chain),
            host,
            clock,
            metrics,
            stages,
        }
    }

    /// Sends a request past the socket.
    pub(crate) async fn send(&self, connection: &Connection, request: Request<&'static str>) -> Answer {
        let response = self
            .chain
            .serve(connection, request.map(RequestBody::from_bytes))
            .await;
        Answer::of(&response)
    }
}

/// A response without its body's type.
pub(crate) struct Answer {
    pub(crate) code: StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    fn of(response: &Response<ResponseBody>) -> Self {
        let bytes: Vec<u8> = response.body().buffers().flatten().copied().collect();
        Self {
            code: response.status(),
            headers: response.headers().clone(),
            text: String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

/// A connection of a client with or without a certificate.
pub(crate) fn connection(identity: Option<&Identity>) -> Connection {
    let remote = SocketAddr::from(([127, 0, 0, 1], 40_000));
    let certificates = identity.and_then(|identity| PeerCertificates::new(&identity.chain()));
    Connection::new(remote, true, certificates)
}

/// Headers as the host configures them, with the given front-proxy authority.
pub(crate) fn front_proxy(ca: &Authority, allowed: &[&str]) -> Arc<RequestHeaderConfig> {
    Arc::new(RequestHeaderConfig {
        ca: Some(ca.bundle()),
        allowed_names: allowed.iter().map(|name| (*name).to_owned()).collect(),
        username_headers: vec![HeaderName::from_static("x-remote-user")],
        uid_headers: Vec::new(),
        group_headers: vec![HeaderName::from_static("x-remote-group")],
        extra_prefixes: vec!["x-remote-extra-".to_owned()],
    })
}

/// A GET with header lines.
pub(crate) fn get(target: &str, lines: &[(&str, &str)]) -> Request<&'static str> {
    let mut request = Request::get(target);
    for (name, value) in lines {
        request = request.header(*name, *value);
    }
    request.body("").unwrap()
}
