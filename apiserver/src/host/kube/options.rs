//! How the host is reached, and which of its authentication settings are replaced.

use std::path::PathBuf;

/// How the host is reached; absent files mean the service account of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// For namespaces, pods, nodes and events.
    pub kubeconfig: Option<PathBuf>,
    /// For token reviews and the authentication settings; else as `kubeconfig`.
    pub authentication_kubeconfig: Option<PathBuf>,
    /// For access reviews; else as `kubeconfig`.
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Do not read the authentication settings from the host.
    pub skip_lookup: bool,
    /// Start though the authentication settings cannot be read.
    pub tolerate_lookup_failure: bool,
}

/// Authentication settings from flags instead of the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthenticationOverrides {
    /// Authorities of users' certificates.
    pub client_ca_file: Option<PathBuf>,
    /// Settings of the front proxy, when its authority is given by a flag.
    pub request_header: Option<RequestHeaderOverrides>,
}

/// Settings of the front proxy from flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeaderOverrides {
    /// Authorities of the front-proxy certificate.
    pub ca_file: PathBuf,
    /// Allowed common names; empty = any.
    pub allowed_names: Vec<String>,
    /// Headers with the user name.
    pub username_headers: Vec<String>,
    /// Headers with the uid; none unless asked for.
    pub uid_headers: Vec<String>,
    /// Headers with groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with extras.
    pub extra_headers_prefixes: Vec<String>,
}
