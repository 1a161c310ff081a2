//! Errors of connecting to the host, and the time limit of a single call.

use std::{future::Future, path::PathBuf, sync::Arc, time::Duration};

use kube::config::{InClusterError, KubeconfigError};
use tokio::time::timeout;

use crate::host::{HostError, published, published::PublishedError, trust::TrustError};

/// Time limit of a call that is not a review.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the server cannot use the host.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// No kubeconfig, and no service account of a pod either.
    #[error("no kubeconfig is given and the process does not run in a pod of a cluster")]
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

pub(super) fn host_error(error: kube::Error) -> HostError {
    match error {
        kube::Error::Api(status) => HostError::Status {
            code: status.code,
            message: status.message,
        },
        other => HostError::Unreachable(Arc::new(other)),
    }
}

/// Runs a call with a time limit.
pub(super) async fn bounded<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, HostError> {
    match timeout(CALL_TIMEOUT, call).await {
        Ok(result) => result.map_err(host_error),
        Err(_) => Err(HostError::Timeout),
    }
}
