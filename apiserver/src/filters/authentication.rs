//! Who asks?
//!
//! Front-proxy headers, then the client's own certificate, then a bearer token; the first that succeeds counts. Only
//! who shows nothing is anonymous: a bad credential is 401, never a step down. Identity is found per request, never
//! kept with a connection.

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
        AuthenticationConfig, TokenVerdict,
        request_header::strip_standard,
        reviews::{Reviews, Source},
    },
    http::connection::Connection,
    metrics::{Metrics, Outcome},
    request::{UserInfo, Warnings},
};

/// Token reviews a single address may have in flight. Bad tokens are never cached, so without a bound one client could
/// keep the host busy.
const REVIEWS_PER_ADDRESS: usize = 32;
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
const EXTRA_SPACE: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// Finds out who asks.
pub struct Authenticator {
    config: watch::Receiver<Arc<AuthenticationConfig>>,
    reviews: Arc<Reviews>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    asking: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator").finish_non_exhaustive()
    }
}

/// An authenticated request.
#[derive(Clone, Debug)]
pub(super) struct Authenticated {
    pub(super) user: Arc<UserInfo>,
    /// Whether the front proxy spoke: its connection carries many users and must outlive an anonymous one.
    pub(super) by_front_proxy: bool,
}

type Fault = Box<dyn Error + Send + Sync>;

impl Authenticator {
    /// An authenticator that believes what `reviews`' host publishes.
    #[must_use]
    pub fn new(reviews: Arc<Reviews>, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Self {
            config: reviews.host().authentication(),
            reviews,
            clock,
            metrics,
            asking: Arc::default(),
        }
    }

    /// Authenticates and removes every credential and identity header.
    pub(super) async fn authenticate(
        &self,
        connection: &Connection,
        headers: &mut HeaderMap,
        warnings: &Warnings,
    ) -> Result<Authenticated, ApiError> {
        let before = Instant::now();
        let config = Arc::clone(&self.config.borrow());
        let result = self.identify(&config, connection, headers, warnings).await;
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
        result.map_err(|faults| {
            let faults: Vec<String> = faults.iter().map(|fault| chain(&**fault)).collect();
            tracing::info!(remote = %connection.remote, ?faults, "unable to authenticate the request");
            ApiError::unauthorized()
        })
    }

    async fn identify(
        &self,
        config: &AuthenticationConfig,
        connection: &Connection,
        headers: &HeaderMap,
        warnings: &Warnings,
    ) -> Result<Authenticated, Vec<Fault>> {
        let mut faults: Vec<Fault> = Vec::new();
        let found = |mut user: UserInfo, by_front_proxy| {
            user.mark_authenticated();
            Ok(Authenticated {
                user: Arc::new(user),
                by_front_proxy,
            })
        };
        match self.by_request_header(config, connection, headers) {
            Ok(Some(user)) => return found(user, true),
            Ok(None) => {}
            Err(fault) => faults.push(fault),
        }
        match self.by_certificate(config, connection) {
            Ok(Some(user)) => return found(user, false),
            Ok(None) => {}
            Err(fault) => faults.push(fault),
        }
        if let Some(token) = bearer_token(headers, warnings) {
            match self.by_token(token, connection.remote.ip()).await {
                Ok(user) => {
                    return Ok(Authenticated {
                        user,
                        by_front_proxy: false,
                    });
                }
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() {
            return Ok(Authenticated {
                user: Arc::new(UserInfo::anonymous()),
                by_front_proxy: false,
            });
        }
        Err(faults)
    }

    fn by_request_header(
        &self,
        config: &AuthenticationConfig,
        connection: &Connection,
        headers: &HeaderMap,
    ) -> Result<Option<UserInfo>, Fault> {
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
    ) -> Result<Option<UserInfo>, Fault> {
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

    async fn by_token(&self, token: &str, address: IpAddr) -> Result<Arc<UserInfo>, Fault> {
        let _asking = self
            .asking(address)
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

    fn asking(&self, address: IpAddr) -> Option<Asking> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let count = asking.entry(address).or_default();
        if *count >= REVIEWS_PER_ADDRESS {
            return None;
        }
        *count += 1;
        Some(Asking {
            asking: Arc::clone(&self.asking),
            address,
        })
    }
}

struct Asking {
    asking: Arc<Mutex<HashMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = asking.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                asking.remove(&self.address);
            }
        }
    }
}

/// The token of the first Authorization line. Two spaces in front of it make it no credential at all.
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
