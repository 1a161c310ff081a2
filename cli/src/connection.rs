//! The connection flags of kubectl, and the [`Session`] that they lead to.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::api::Session;
use crate::error::Error;
use crate::times::parse_duration;

/// How long one call may take when `--request-timeout` does not say it.
const DEFAULT_CALL_DEADLINE: Duration = Duration::from_secs(30);

/// kubectl's flags that choose cluster, user and namespace. They mean here what they mean there.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectionFlags {
    /// Path to the kubeconfig file to use.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The name of the kubeconfig context to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// The name of the kubeconfig cluster to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,
    /// The name of the kubeconfig user to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,
    /// The namespace of pods that are named.
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// The user to impersonate.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,
    /// A group to impersonate; can be repeated.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub impersonate_groups: Vec<String>,
    /// The UID to impersonate.
    #[arg(long = "as-uid", global = true, value_name = "UID")]
    pub impersonate_uid: Option<String>,
    /// How long a single call may take, such as 10s or 1m; 0 is the default of 30s.
    #[arg(long, global = true, value_name = "DURATION", value_parser = parse_duration)]
    pub request_timeout: Option<Duration>,
    /// The address of the API server.
    #[arg(short, long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// A bearer token for the API server.
    #[arg(long, global = true, value_name = "TOKEN", hide_short_help = true)]
    pub token: Option<String>,
    /// Path to the certificate of the authority that signed the server's certificate.
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub certificate_authority: Option<String>,
    /// Path to a client certificate for TLS.
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub client_certificate: Option<String>,
    /// Path to the key of the client certificate.
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub client_key: Option<String>,
    /// The name that the server's certificate must have.
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub tls_server_name: Option<String>,
    /// Do not check the server's certificate. Insecure.
    #[arg(long, global = true, hide_short_help = true)]
    pub insecure_skip_tls_verify: bool,
}

impl ConnectionFlags {
    /// Reads the kubeconfig and makes a client. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`Error::Kubeconfig`].
    pub async fn connect(&self) -> Result<Session, Error> {
        let mut config = match self.read_kubeconfig()? {
            Some(kubeconfig) => {
                let options = KubeConfigOptions {
                    context: self.context.clone(),
                    cluster: self.cluster.clone(),
                    user: self.user.clone(),
                };
                let kubeconfig = self.overridden(kubeconfig, &options);
                Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .map_err(|error| Error::Kubeconfig(error.to_string()))?
            }
            // As kubectl does in a pod without a kubeconfig.
            None => Config::incluster().map_err(|error| {
                Error::Kubeconfig(format!(
                    "there is none, and this is not a pod of a cluster: {error}"
                ))
            })?,
        };
        // A person wants to know now that a server is away. The session repeats what was refused for load.
        config.default_retry = false;
        let namespace = self
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Error::Kubeconfig(error.to_string()))?;
        let deadline = self.request_timeout.filter(|timeout| !timeout.is_zero());
        Ok(Session::new(
            client,
            namespace,
            deadline.unwrap_or(DEFAULT_CALL_DEADLINE),
        ))
    }

    /// The kubeconfig of the flag, else of `KUBECONFIG`, else of the home folder, else one of the flags alone.
    fn read_kubeconfig(&self) -> Result<Option<Kubeconfig>, Error> {
        let read = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        match read {
            Ok(kubeconfig) => Ok(Some(kubeconfig)),
            Err(_) if self.kubeconfig.is_none() && self.server.is_some() => Ok(Some(Kubeconfig::default())),
            Err(kube::config::KubeconfigError::ReadConfig(..) | kube::config::KubeconfigError::FindPath)
                if self.kubeconfig.is_none() && std::env::var_os("KUBECONFIG").is_none() =>
            {
                Ok(None)
            }
            Err(error) => Err(Error::Kubeconfig(error.to_string())),
        }
    }

    /// The kubeconfig with the values of flags in the chosen cluster and user.
    fn overridden(&self, mut kubeconfig: Kubeconfig, options: &KubeConfigOptions) -> Kubeconfig {
        const NAME: &str = "flags";
        if kubeconfig.contexts.is_empty() && self.server.is_some() {
            // Without contexts, the flags alone describe cluster and user.
            let named = serde_json::json!({
                "clusters": [{"name": NAME, "cluster": {}}],
                "users": [{"name": NAME, "user": {}}],
                "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
                "current-context": NAME,
            });
            if let Ok(from_flags) = serde_json::from_value(named) {
                kubeconfig = from_flags;
            }
        }
        let context = options
            .context
            .clone()
            .or_else(|| kubeconfig.current_context.clone());
        let context = kubeconfig
            .contexts
            .iter()
            .find(|named| Some(&named.name) == context.as_ref())
            .and_then(|named| named.context.clone());
        let cluster = options
            .cluster
            .clone()
            .or_else(|| Some(context.as_ref()?.cluster.clone()));
        let user = options.user.clone().or_else(|| context.as_ref()?.user.clone());
        for named in &mut kubeconfig.clusters {
            if Some(&named.name) == cluster.as_ref() {
                self.override_cluster(named.cluster.get_or_insert_default());
            }
        }
        for named in &mut kubeconfig.auth_infos {
            if Some(&named.name) == user.as_ref() {
                self.override_user(named.auth_info.get_or_insert_default());
            }
        }
        kubeconfig
    }

    fn override_cluster(&self, cluster: &mut Cluster) {
        replace(&mut cluster.server, self.server.as_ref());
        replace(&mut cluster.tls_server_name, self.tls_server_name.as_ref());
        if self.certificate_authority.is_some() {
            cluster.certificate_authority_data = None;
            cluster
                .certificate_authority
                .clone_from(&self.certificate_authority);
        }
        if self.insecure_skip_tls_verify {
            cluster.insecure_skip_tls_verify = Some(true);
        }
    }

    fn override_user(&self, user: &mut AuthInfo) {
        replace(&mut user.impersonate, self.impersonate.as_ref());
        replace(&mut user.impersonate_uid, self.impersonate_uid.as_ref());
        if !self.impersonate_groups.is_empty() {
            user.impersonate_groups = Some(self.impersonate_groups.clone());
        }
        if let Some(token) = &self.token {
            user.token = Some(token.clone().into());
            user.token_file = None;
        }
        if self.client_certificate.is_some() {
            user.client_certificate_data = None;
            user.client_certificate.clone_from(&self.client_certificate);
        }
        if self.client_key.is_some() {
            user.client_key_data = None;
            user.client_key.clone_from(&self.client_key);
        }
    }
}

fn replace(field: &mut Option<String>, flag: Option<&String>) {
    if let Some(value) = flag {
        *field = Some(value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig() -> Kubeconfig {
        let text = "
clusters:
- {name: one, cluster: {server: 'https://one:1', certificate-authority-data: AAAA}}
- {name: two, cluster: {server: 'https://two:2'}}
users:
- {name: ann, user: {token: a}}
- {name: bob, user: {token: b}}
contexts:
- {name: first, context: {cluster: one, user: ann, namespace: shop}}
current-context: first
";
        Kubeconfig::from_yaml(text).unwrap()
    }

    #[test]
    fn flags_change_only_the_chosen_cluster_and_user() {
        let flags = ConnectionFlags {
            server: Some("https://other:3".to_owned()),
            impersonate: Some("carol".to_owned()),
            impersonate_groups: vec!["ops".to_owned()],
            certificate_authority: Some("/ca".to_owned()),
            user: Some("bob".to_owned()),
            ..ConnectionFlags::default()
        };
        let options = KubeConfigOptions {
            user: flags.user.clone(),
            ..KubeConfigOptions::default()
        };
        let changed = flags.overridden(kubeconfig(), &options);
        let cluster = |at: usize| changed.clusters[at].cluster.clone().unwrap();
        assert_eq!(cluster(0).server.as_deref(), Some("https://other:3"));
        assert_eq!(cluster(0).certificate_authority.as_deref(), Some("/ca"));
        assert_eq!(cluster(0).certificate_authority_data, None);
        assert_eq!(cluster(1).server.as_deref(), Some("https://two:2"));
        let user = |at: usize| changed.auth_infos[at].auth_info.clone().unwrap();
        assert_eq!(user(0).impersonate, None);
        assert_eq!(user(1).impersonate.as_deref(), Some("carol"));
        assert_eq!(user(1).impersonate_groups, Some(vec!["ops".to_owned()]));
    }

    #[test]
    fn a_server_alone_is_enough() {
        let flags = ConnectionFlags {
            server: Some("https://one:1".to_owned()),
            token: Some("t".to_owned()),
            ..ConnectionFlags::default()
        };
        let changed = flags.overridden(Kubeconfig::default(), &KubeConfigOptions::default());
        assert_eq!(
            changed.clusters[0].cluster.clone().unwrap().server.as_deref(),
            Some("https://one:1")
        );
        assert!(changed.auth_infos[0].auth_info.clone().unwrap().token.is_some());
    }
}
