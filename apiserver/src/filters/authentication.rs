//! Identifies the user of a request.
//!
//! Front-proxy headers are tried first, then the client's own certificate, then a bearer token, which a WebSocket may carry
//! as a subprotocol; the first that succeeds counts. A request without any credential is anonymous. An invalid credential is 401 and never becomes anonymous.
//! Identity is established per request and never kept with a connection.

use std::{
    collections::HashMap,
    error::Error,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use drydock_machinery::clock::Clock;
use http::{HeaderMap, header};
use tokio::{sync::watch, time::Instant};

use crate::{
    error::ApiError,
    host::{
        AuthenticationConfig, TokenVerdict, TrustBundle,
        request_header::strip_standard,
        reviews::{Reviews, Source},
    },
    http::{certificate::PeerCertificates, connection::Connection, streams::PeerKind, websocket},
    metrics::{Metrics, Outcome},
    request::{UserInfo, Warnings},
};

/// Token reviews that a single address may have in flight. Rejected tokens are not cached, so without a limit one client
/// could overload the host.
const REVIEWS_PER_ADDRESS: usize = 32;
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
const EXTRA_SPACE: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// Identifies users.
pub struct Authenticator {
    config: watch::Receiver<Arc<AuthenticationConfig>>,
    reviews: Arc<Reviews>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    reviews_by_address: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator").finish_non_exhaustive()
    }
}

/// The outcome of an authentication.
#[derive(Clone, Debug)]
pub(super) struct Authenticated {
    pub(super) user: Arc<UserInfo>,
    /// Whether the front proxy named the user: its connection carries many users and must not be closed for one.
    pub(super) by_front_proxy: bool,
    /// Whether there is a front proxy and the request came without it.
    pub(super) is_direct: bool,
}

impl Authenticated {
    /// Whether the client has no credential of its own.
    pub(super) fn is_stranger(&self) -> bool {
        self.user.is_anonymous() && !self.by_front_proxy
    }
}

type Cause = Box<dyn Error + Send + Sync>;

impl Authenticator {
    /// An authenticator with the settings that the host of `reviews` publishes.
    #[must_use]
    pub fn new(reviews: Arc<Reviews>, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Self {
            config: reviews.host().authentication(),
            reviews,
            clock,
            metrics,
            reviews_by_address: Arc::default(),
        }
    }

    /// Who a peer with these certificates is at this moment, for the limits of its connection.
    pub(super) fn peer(&self, certificates: &PeerCertificates) -> PeerKind {
        let config = Arc::clone(&self.config.borrow());
        let now = self.clock.now();
        let by = |ca: &Arc<TrustBundle>| certificates.verified(ca, now).ok();
        if let Some(front_proxy) = &config.request_header
            && let Some(leaf) = front_proxy.ca.as_ref().and_then(by)
            && front_proxy.allows(&leaf.common_name)
        {
            return PeerKind::FrontProxy;
        }
        match config.client_ca.as_ref().and_then(by) {
            Some(_) => PeerKind::Client,
            None => PeerKind::Stranger,
        }
    }

    /// The user of a request. Removes every credential and identity header.
    ///
    /// A client without an identity of its own gets one response per HTTP/2 connection, as over HTTP/1.1 without
    /// keep-alive: abuse then costs it handshakes.
    pub(super) async fn filter(
        &self,
        connection: &Connection,
        headers: &mut HeaderMap,
        warnings: &Warnings,
    ) -> Result<Authenticated, ApiError> {
        let before = Instant::now();
        let result = self.authenticate(connection, headers, warnings).await;
        self.metrics.filtered("authentication", before.elapsed());
        if connection.http2 && result.as_ref().map_or(true, Authenticated::is_stranger) {
            connection.close();
        }
        if result.as_ref().is_ok_and(|found| !found.is_stranger()) {
            connection.set_known();
        }
        result
    }

    async fn authenticate(
        &self,
        connection: &Connection,
        headers: &mut HeaderMap,
        warnings: &Warnings,
    ) -> Result<Authenticated, ApiError> {
        let before = Instant::now();
        let config = Arc::clone(&self.config.borrow());
        let carried = websocket::take_token(headers);
        let result = self
            .identify(&config, connection, headers, carried, warnings)
            .await;
        match &config.request_header {
            Some(front_proxy) => front_proxy.strip(headers),
            None => strip_standard(headers),
        }
        let (outcome, user) = match &result {
            Ok(found) if found.user.is_anonymous() => (Outcome::Failure, None),
            Ok(found) => (Outcome::Success, Some(found.user.name.as_str())),
            Err(_) => (Outcome::Error, None),
        };
        self.metrics.authenticated(outcome, user, before.elapsed());
        result.map_err(|causes| {
            let causes: Vec<String> = causes.iter().map(|cause| chain(&**cause)).collect();
            tracing::info!(remote = %connection.remote, ?causes, "unable to authenticate the request");
            ApiError::unauthorized()
        })
    }

    async fn identify(
        &self,
        config: &AuthenticationConfig,
        connection: &Connection,
        headers: &HeaderMap,
        carried: Result<Option<String>, &'static str>,
        warnings: &Warnings,
    ) -> Result<Authenticated, Vec<Cause>> {
        let mut causes: Vec<Cause> = Vec::new();
        let found = |mut user: UserInfo, by_front_proxy| {
            user.mark_authenticated();
            Ok(Authenticated {
                user: Arc::new(user),
                by_front_proxy,
                is_direct: !by_front_proxy && config.request_header.is_some(),
            })
        };
        match self.by_request_header(config, connection, headers) {
            Ok(Some(user)) => return found(user, true),
            Ok(None) => {}
            Err(cause) => causes.push(cause),
        }
        match self.by_certificate(config, connection) {
            Ok(Some(user)) => return found(user, false),
            Ok(None) => {}
            Err(cause) => causes.push(cause),
        }
        let carried = carried.unwrap_or_else(|cause| {
            causes.push(cause.into());
            None
        });
        for token in bearer_token(headers, warnings)
            .into_iter()
            .chain(carried.as_deref())
        {
            match self.by_token(token, connection.remote.ip()).await {
                Ok(user) => {
                    return Ok(Authenticated {
                        user,
                        by_front_proxy: false,
                        is_direct: config.request_header.is_some(),
                    });
                }
                Err(cause) => causes.push(cause),
            }
        }
        if causes.is_empty() {
            return Ok(Authenticated {
                user: Arc::new(UserInfo::anonymous()),
                by_front_proxy: false,
                is_direct: config.request_header.is_some(),
            });
        }
        Err(causes)
    }

    fn by_request_header(
        &self,
        config: &AuthenticationConfig,
        connection: &Connection,
        headers: &HeaderMap,
    ) -> Result<Option<UserInfo>, Cause> {
        let Some(certificates) = &connection.certificates else {
            return Ok(None);
        };
        let Some(front_proxy) = &config.request_header else {
            return Ok(None);
        };
        let Some(ca) = &front_proxy.ca else {
            return Ok(None);
        };
        let leaf = certificates.verified(ca, self.clock.now())?;
        if !front_proxy.allows(&leaf.common_name) {
            return Err(format!(
                "x509: subject with cn={} is not in the allowed list",
                leaf.common_name
            )
            .into());
        }
        Ok(front_proxy.user(headers)?)
    }

    fn by_certificate(
        &self,
        config: &AuthenticationConfig,
        connection: &Connection,
    ) -> Result<Option<UserInfo>, Cause> {
        let Some(certificates) = &connection.certificates else {
            return Ok(None);
        };
        let Some(ca) = &config.client_ca else {
            return Ok(None);
        };
        let now = self.clock.now();
        let leaf = certificates.verified(ca, now)?;
        self.metrics.client_certificate(leaf.not_after - now.as_second());
        if leaf.common_name.is_empty() {
            return Ok(None);
        }
        let mut user = UserInfo {
            name: leaf.common_name.clone(),
            uid: leaf.uid.clone(),
            groups: leaf.organizations.clone(),
            ..UserInfo::default()
        };
        user.extra.insert(
            CREDENTIAL_ID.to_owned(),
            vec![format!("X509SHA256={}", leaf.fingerprint)],
        );
        Ok(Some(user))
    }

    async fn by_token(&self, token: &str, address: IpAddr) -> Result<Arc<UserInfo>, Cause> {
        let _slot = self
            .begin_review(address)
            .ok_or("too many token reviews in flight for this address")?;
        let (verdict, source) = self.reviews.token(token).await;
        match verdict {
            Ok(TokenVerdict::Authenticated(user)) => {
                tracing::trace!(cached = source == Source::Cache, "token review");
                let mut marked = UserInfo::clone(&user);
                marked.mark_authenticated();
                Ok(Arc::new(marked))
            }
            Ok(TokenVerdict::Unknown | TokenVerdict::Refused(_)) => Err("invalid bearer token".into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Counts a review of the address; none when it has too many.
    fn begin_review(&self, address: IpAddr) -> Option<ReviewSlot> {
        let mut counts = self
            .reviews_by_address
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= REVIEWS_PER_ADDRESS {
            return None;
        }
        *count += 1;
        Some(ReviewSlot {
            counts: Arc::clone(&self.reviews_by_address),
            address,
        })
    }
}

/// A token review in flight, until dropped.
struct ReviewSlot {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Drop for ReviewSlot {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// The token of the first Authorization header. With two spaces before it, the header is ignored.
fn bearer_token<'a>(headers: &'a HeaderMap, warnings: &Warnings) -> Option<&'a str> {
    let line = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let mut parts = line.splitn(3, ' ');
    if !parts.next()?.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let token = parts.next()?;
    if token.is_empty() {
        if parts.next().is_some() {
            warnings.add(EXTRA_SPACE);
        }
        return None;
    }
    Some(token)
}

/// The error with its sources, on one line.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
