//! The clients of both servers.
//!
//! | clients | for | connections |
//! | --- | --- | --- |
//! | calls | what controllers read and write | HTTP/2, one to each server, which costs both sides less; HTTP/1.1 where a server does not offer it, or behind a proxy |
//! | watches | the informers | HTTP/1.1, one for each watch: one that is read slowly holds up nothing else |
//! | unfenced | what needs no Lease: the Lease itself and Events | HTTP/1.1: a call that times out takes its connection with it, and renewals do not wait behind other calls |
//! | served | what requests to the secure port need: reviews, and the bridge's calls | HTTP/1.1, kept up by the threads of that port |

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use hyper_rustls::{DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config as ClientConfig};
use rustls_pki_types::ServerName;
use tower::{BoxError, ServiceBuilder};

use crate::api::Clients;
use crate::config::Config;
use crate::transport::TransportLayer;

/// For how long nothing may come over a shared connection with calls in flight before a ping is sent, and how long the
/// answer may take. Together less than the deadline of a call, so that the next one does not wait on a dead connection.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The protocols that are offered, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Why there are no clients.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// There is no kubeconfig and no service account.
    #[error("--kubeconfig is not set and there is no pod service account")]
    InCluster(#[source] Box<kube::config::InClusterError>),
    /// A client cannot be created.
    #[error("cannot create a client")]
    Client(#[source] Box<kube::Error>),
    /// The name in `tls-server-name` is none.
    #[error("tls-server-name is invalid")]
    ServerName(#[source] rustls_pki_types::InvalidDnsNameError),
}

/// The clients.
#[derive(Debug)]
pub struct Connections {
    /// For the calls of controllers. Writes pass the fence of the Lease.
    pub calls: Clients,
    /// For watches.
    pub watches: Clients,
    /// For what needs no Lease.
    pub unfenced: Clients,
    /// For what answers requests to the secure port.
    pub served: Clients,
}

impl Connections {
    /// Clients as configured.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn new(config: &Config, transport: &TransportLayer) -> Result<Self, Error> {
        let host = match &config.kubeconfig {
            Some(path) => client_config(path).await?,
            None => ClientConfig::incluster().map_err(|error| Error::InCluster(Box::new(error)))?,
        };
        let drydock = match &config.apiserver_kubeconfig {
            Some(path) => Some(client_config(path).await?),
            None => None,
        };
        let clients = |client: &dyn Fn(ClientConfig) -> Result<Client, Error>| {
            let host = client(host.clone())?;
            let drydock = match &drydock {
                Some(config) => client(config.clone())?,
                None => host.clone(),
            };
            Ok(Clients { host, drydock })
        };
        Ok(Self {
            calls: clients(&|config| sharing(config, transport))?,
            watches: clients(&|config| Ok(builder(config)?.with_layer(transport).build()))?,
            unfenced: clients(&|config| Ok(builder(config)?.build()))?,
            served: clients(&|config| Ok(builder(config)?.build()))?,
        })
    }
}

async fn client_config(path: &Path) -> Result<ClientConfig, Error> {
    let invalid = |source| Error::Kubeconfig {
        path: path.display().to_string(),
        source: Box::new(source),
    };
    let file = Kubeconfig::read_from(path).map_err(invalid)?;
    ClientConfig::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(invalid)
}

/// The service of a client, as its builder makes it.
type GenericService =
    tower::util::BoxService<http::Request<Body>, http::Response<Box<kube::client::DynBody>>, BoxError>;

fn builder(mut config: ClientConfig) -> Result<ClientBuilder<GenericService>, Error> {
    // Rejections by the eviction API are expected responses, and controllers retry at their own pace.
    config.default_retry = false;
    config.headers.push(agent());
    ClientBuilder::try_from(config).map_err(client_error)
}

/// The user agent names this program as the manager of the fields it writes.
fn agent() -> (http::HeaderName, HeaderValue) {
    let agent = HeaderValue::from_static(concat!("drydock-controller/", env!("CARGO_PKG_VERSION")));
    (USER_AGENT, agent)
}

fn client_error(error: kube::Error) -> Error {
    Error::Client(Box::new(error))
}

/// A client whose calls share a connection. It differs from those of [`builder`] only in that, and in that it logs nothing.
fn sharing(mut config: ClientConfig, transport: &TransportLayer) -> Result<Client, Error> {
    if config.proxy_url.is_some() {
        return Ok(builder(config)?.with_layer(transport).build());
    }
    config.headers.push(agent());
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    let mut tls = config.rustls_client_config().map_err(client_error)?;
    tls.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    let server_name: Arc<dyn ResolveServerName + Send + Sync> = match config.tls_server_name.clone() {
        Some(name) => Arc::new(FixedServerNameResolver::new(
            ServerName::try_from(name).map_err(Error::ServerName)?,
        )),
        None => Arc::new(DefaultServerNameResolver::default()),
    };
    let connector = HttpsConnector::new(connector, tls, false, server_name);
    let connections = hyper_util::client::legacy::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_INTERVAL)
        .build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(transport)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(client_error)?)
        .layer(config.extra_headers_layer().map_err(client_error)?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(Client::new(service, config.default_namespace))
}

#[cfg(test)]
mod tests;
