//! Starts the server with the embedded host instead of a cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use drydock_apiserver::admission::AdmissionSettings;
use drydock_apiserver::backend;
use drydock_apiserver::encryption::Encryption;
use drydock_apiserver::host::trust::{TrustBundle, TrustError};
use drydock_apiserver::http::tls::CertificateSource;
use drydock_apiserver::registry::registration::UnusableSchema;
use drydock_apiserver::registry::resource::Resource;
use drydock_apiserver::server::{self, Base, Extend, Extended, ServerParts};
use drydock_apiserver::telemetry::{self, TelemetryError};
use drydock_machinery::clock::{Clock, SystemClock};
use drydock_machinery::schema::SchemaError;

use crate::certificates::{CertificateError, Certificates};
use crate::embedded::EmbeddedHost;
use crate::flags::StandaloneConfig;
use crate::host::StandaloneHost;
use crate::{kinds, kubeconfig};

/// The first log line.
const WARNING: &str = "STANDALONE MODE: there is no cluster behind this server. No container runs, nodes are only \
     names, and the holder of the kubeconfig may do everything. For first looks, demos and tests only.";

/// Why standalone mode did not start, or stopped because of a failure.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The schema of a built-in kind cannot be read: a bug of this program.
    #[error("a built-in kind has an unusable schema")]
    BuiltIn(#[source] SchemaError),
    /// A schema of our own kinds cannot be read: a bug of this program.
    #[error(transparent)]
    Schema(#[from] UnusableSchema),
    /// The certificates cannot be generated or stored.
    #[error("the certificates of standalone mode cannot be used")]
    Certificates(#[from] CertificateError),
    /// The authority cannot verify certificates.
    #[error("the authority in the data directory cannot be used")]
    Authority(#[from] TrustError),
    /// The server did not start, or stopped because of a failure.
    #[error(transparent)]
    Server(#[from] server::RunError),
}

/// Serves with an embedded host over the server's own storage until a signal arrives. The kubeconfig is written once
/// the caches are filled.
///
/// # Errors
/// [`RunError`].
pub async fn serve(mut config: StandaloneConfig) -> Result<(), RunError> {
    telemetry::init(&config.server.log)?;
    tracing::warn!("{WARNING}");
    if !config.server.address.ip().is_loopback() {
        tracing::warn!(
            address = %config.server.address,
            "listening on an address that other machines can reach: whoever has the kubeconfig may do everything"
        );
    }
    // The data need not survive a crash, and temporary folders often are in memory.
    config.server.storage.any_file_system = true;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let built_in = kinds::resources().map_err(RunError::BuiltIn)?;
    let built_in: Vec<Arc<Resource>> = built_in.into_iter().map(Arc::new).collect();
    let mut resources = server::own_resources(&config.server)?;
    resources.extend(built_in.iter().cloned());
    let base = Base::new(Arc::clone(&clock), &resources);
    let encryption = Encryption::load(config.server.storage.encryption.clone())
        .await
        .map_err(server::RunError::Encryption)?;
    let store = backend::open(&config.server.storage, &encryption)
        .await
        .map_err(server::RunError::Open)?;
    let certificates = Certificates::load_or_generate(&config.server.storage.data_dir, clock.now())?;
    let (host, reported) = StandaloneHost::new(
        store.clone(),
        TrustBundle::from_pem(&certificates.authority)?,
        group_versions(&built_in),
    );
    let certificate = CertificateSource::Pem {
        certificate: certificates.serving.certificate.clone(),
        key: certificates.serving.key.clone(),
    };
    let stopped = base.stages.stopped().clone();
    let own_store = store.clone();
    let extend: Extend<_> = Box::new(move |stores, address| {
        let embedded = EmbeddedHost::new(own_store, stores.to_vec(), clock, reported);
        Extended {
            extensions: embedded.extensions(),
            task: Box::pin(async move {
                if let Err(error) = embedded.prepare().await {
                    tracing::error!(%error, "the embedded host cannot start");
                    return;
                }
                let path = config.write_kubeconfig;
                match kubeconfig::write(&path, &format!("https://{address}"), &certificates) {
                    Ok(()) => tracing::warn!(path = %path.display(), "kubeconfig written"),
                    Err(error) => {
                        tracing::error!(path = %path.display(), %error, "the kubeconfig cannot be written");
                    }
                }
                embedded.run(stopped).await;
            }),
        }
    });
    let parts = ServerParts {
        encryption: Arc::new(encryption),
        host: Arc::new(host),
        certificate,
        resources,
        // There is no cluster whose policy could apply.
        plugins: AdmissionSettings::default(),
        extend,
    };
    Ok(base.serve(config.server, store, parts).await?)
}

/// The group-versions of resources, each once.
pub(crate) fn group_versions(resources: &[Arc<Resource>]) -> Vec<(&'static str, &'static str)> {
    let versions: BTreeSet<_> = resources
        .iter()
        .flat_map(|resource| resource.faces.iter().map(|face| (resource.group, face.version)))
        .collect();
    versions.into_iter().collect()
}
