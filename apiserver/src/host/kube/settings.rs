//! Follows the authentication settings: what the host publishes, replaced where flags say otherwise.
//!
//! The settings are read once before the server listens, since until the authorities are known no certificate can be
//! verified. Afterwards a watch follows the host's `ConfigMap`, and files named by flags are read every minute.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use tokio::{sync::watch, time::timeout};

use super::{
    error::{CALL_TIMEOUT, StartError, host_error},
    mirror::WATCH_SECONDS,
    options::{AuthenticationOverrides, HostConfig, RequestHeaderOverrides},
};
use crate::host::{
    AuthenticationConfig, HostError, published, request_header::RequestHeaderConfig, trust::TrustBundle,
};

/// How often authority files named by flags are read again.
const FILE_POLL_INTERVAL: Duration = Duration::from_mins(1);

/// The settings in force, and where they come from.
pub(super) struct Settings {
    client: Client,
    skip_lookup: bool,
    overrides: AuthenticationOverrides,
    forced: Forced,
    current: watch::Sender<Arc<AuthenticationConfig>>,
}

impl Settings {
    /// Reads the settings for the first time. `client` is the one for authentication.
    pub(super) async fn load(
        client: Client,
        config: &HostConfig,
        overrides: &AuthenticationOverrides,
    ) -> Result<Self, StartError> {
        let mut settings = AuthenticationConfig::default();
        if !config.skip_lookup {
            match look_up(&client).await {
                Ok(found) => settings = found,
                Err(error) if config.tolerate_lookup_failure => {
                    tracing::error!(%error, "continuing without the host's authentication settings");
                }
                Err(error) => return Err(error),
            }
        }
        let forced = Forced::read(overrides).await?;
        settings = forced.over(settings);
        published::warn_about_open_trust(&settings);
        Ok(Self {
            client,
            skip_lookup: config.skip_lookup,
            overrides: overrides.clone(),
            forced,
            current: watch::Sender::new(Arc::new(settings)),
        })
    }

    /// Follows the settings in force.
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<AuthenticationConfig>> {
        self.current.subscribe()
    }

    /// Applies changes of the published settings and of the authority files until dropped.
    pub(super) async fn follow(mut self) {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), published::NAMESPACE);
        let only = watcher::Config::default()
            .timeout(WATCH_SECONDS)
            .fields(&format!("metadata.name={}", published::NAME));
        let mut maps = watcher::watcher(maps, only).default_backoff().boxed();
        let mut poll = tokio::time::interval(FILE_POLL_INTERVAL);
        loop {
            tokio::select! {
                event = maps.next(), if !self.skip_lookup => match event {
                    Some(Ok(Event::Apply(map) | Event::InitApply(map))) => {
                        self.apply_published(&map.data.unwrap_or_default());
                    }
                    // A deleted map clears nothing: the host restores it at once.
                    Some(Ok(Event::Delete(_) | Event::Init | Event::InitDone)) => {}
                    Some(Err(error)) => {
                        tracing::warn!(%error, "watching the host's authentication settings failed");
                    }
                    None => return,
                },
                _ = poll.tick() => match Forced::read(&self.overrides).await {
                    Ok(read) if read != self.forced => {
                        self.forced = read;
                        self.change(|old| Some(self.forced.over(old.clone())));
                    }
                    Ok(_) => {}
                    Err(error) => tracing::error!(%error, "cannot read the authorities, keeping those in use"),
                },
            }
        }
    }

    fn apply_published(&self, data: &BTreeMap<String, String>) {
        self.change(|old| match published::take_over(data, old) {
            Ok(settings) => Some(self.forced.over(settings)),
            Err(error) => {
                tracing::error!(%error, "malformed authentication settings, keeping those in use");
                None
            }
        });
    }

    fn change(&self, change: impl FnOnce(&AuthenticationConfig) -> Option<AuthenticationConfig>) {
        self.current.send_if_modified(|current| {
            let Some(next) = change(current).filter(|next| *next != **current) else {
                return false;
            };
            published::warn_about_open_trust(&next);
            tracing::info!("authentication settings changed");
            *current = Arc::new(next);
            true
        });
    }
}

async fn look_up(client: &Client) -> Result<AuthenticationConfig, StartError> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), published::NAMESPACE);
    let map = match timeout(CALL_TIMEOUT, maps.get_opt(published::NAME)).await {
        Ok(Ok(map)) => map,
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => return Err(StartError::Forbidden),
        Ok(Err(error)) => return Err(StartError::Lookup(host_error(error))),
        Err(_) => return Err(StartError::Lookup(HostError::Timeout)),
    };
    let Some(map) = map else {
        tracing::warn!(
            "the host does not publish authentication settings yet: its users cannot authenticate until it does"
        );
        return Ok(AuthenticationConfig::default());
    };
    published::take_over(&map.data.unwrap_or_default(), &AuthenticationConfig::default())
        .map_err(StartError::Published)
}

/// Settings from flags, which replace those of the host.
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
    // The names were validated when the flags were parsed.
    let headers = |names: &[String]| names.iter().filter_map(|name| name.parse().ok()).collect();
    RequestHeaderConfig {
        ca: Some(ca),
        allowed_names: Some(flags.allowed_names.clone()),
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
