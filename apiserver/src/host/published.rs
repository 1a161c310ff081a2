//! The authentication settings that the host publishes.
//!
//! The `ConfigMap` `kube-system/extension-apiserver-authentication` names the authorities and the front proxy's headers.
//! A header list that disappears becomes empty. An authority that disappears or is invalid stays as it was, and so do the
//! allowed names, of which an empty list would allow every name; before there are any, none is allowed. Malformed JSON leaves
//! everything as it was. So an error never widens trust.

use std::{collections::BTreeMap, str::FromStr, sync::Arc};

use http::HeaderName;

use super::{AuthenticationConfig, TrustBundle, request_header::RequestHeaderConfig};

/// Namespace of the `ConfigMap`.
pub const NAMESPACE: &str = "kube-system";
/// Name of the `ConfigMap`.
pub const NAME: &str = "extension-apiserver-authentication";

const CLIENT_CA: &str = "client-ca-file";
const FRONT_PROXY_CA: &str = "requestheader-client-ca-file";
const ALLOWED_NAMES: &str = "requestheader-allowed-names";

/// Why the published settings are rejected.
#[derive(Debug, thiserror::Error)]
pub enum PublishedError {
    /// A list that is not a JSON array of strings.
    #[error("key {key} is not a JSON array of strings")]
    List {
        /// Key of the `ConfigMap`.
        key: &'static str,
        /// The error.
        #[source]
        source: serde_json::Error,
    },
    /// A string that is not a header name.
    #[error("key {key} has {name:?}, which is not a header name")]
    Header {
        /// Key of the `ConfigMap`.
        key: &'static str,
        /// The string.
        name: String,
    },
}

/// The settings in `data`, where `old` are those in force.
///
/// # Errors
/// [`PublishedError`]; `old` stays in force.
pub fn take_over(
    data: &BTreeMap<String, String>,
    old: &AuthenticationConfig,
) -> Result<AuthenticationConfig, PublishedError> {
    let old_front_proxy = old.request_header.as_ref();
    Ok(AuthenticationConfig {
        client_ca: bundle(data, CLIENT_CA, old.client_ca.as_ref()),
        request_header: Some(Arc::new(RequestHeaderConfig {
            ca: bundle(
                data,
                FRONT_PROXY_CA,
                old_front_proxy.and_then(|config| config.ca.as_ref()),
            ),
            allowed_names: allowed_names(data, old_front_proxy)?,
            username_headers: headers(data, "requestheader-username-headers")?,
            uid_headers: headers(data, "requestheader-uid-headers")?,
            group_headers: headers(data, "requestheader-group-headers")?,
            extra_prefixes: headers(data, "requestheader-extra-headers-prefix")?
                .iter()
                .map(|name| name.as_str().to_owned())
                .collect(),
        })),
    })
}

/// The bundle under `key`. If the text is unchanged, the old bundle is kept, and with it the cached verifications.
fn bundle(
    data: &BTreeMap<String, String>,
    key: &'static str,
    old: Option<&Arc<TrustBundle>>,
) -> Option<Arc<TrustBundle>> {
    let Some(pem) = data.get(key) else {
        if old.is_some() {
            tracing::warn!(key, "the CA bundle is missing, keeping the old one");
        }
        return old.cloned();
    };
    if let Some(old) = old.filter(|old| old.pem() == pem) {
        return Some(Arc::clone(old));
    }
    match TrustBundle::from_pem(pem) {
        Ok(bundle) => Some(Arc::new(bundle)),
        Err(error) => {
            tracing::error!(key, %error, "invalid CA bundle, keeping the old one");
            old.cloned()
        }
    }
}

/// The allowed names. A host that publishes a front proxy's authority publishes them too, if only an empty list.
fn allowed_names(
    data: &BTreeMap<String, String>,
    old: Option<&Arc<RequestHeaderConfig>>,
) -> Result<Option<Vec<String>>, PublishedError> {
    if data.get(ALLOWED_NAMES).is_some_and(|text| !text.is_empty()) {
        return list(data, ALLOWED_NAMES).map(Some);
    }
    let old = old.and_then(|old| old.allowed_names.clone());
    if data.contains_key(FRONT_PROXY_CA) {
        if old.is_some() {
            tracing::warn!("{ALLOWED_NAMES} is missing, keeping the old names");
        } else {
            tracing::error!("{ALLOWED_NAMES} is missing: no front proxy may name users until it appears");
        }
    }
    Ok(old)
}

fn list(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<String>, PublishedError> {
    match data.get(key).filter(|text| !text.is_empty()) {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text).map_err(|source| PublishedError::List { key, source }),
    }
}

fn headers(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<HeaderName>, PublishedError> {
    list(data, key)?
        .into_iter()
        .map(|name| HeaderName::from_str(&name).map_err(|_| PublishedError::Header { key, name }))
        .collect()
}

/// Logs a configuration that operators should fix: with the same authority for users and front proxies and no allowed names,
/// any user with a certificate can impersonate any other.
pub fn warn_about_open_trust(config: &AuthenticationConfig) {
    let Some(front_proxy) = &config.request_header else {
        return;
    };
    let Some(front_proxy_ca) = &front_proxy.ca else {
        return;
    };
    if front_proxy
        .allowed_names
        .as_ref()
        .is_none_or(|names| !names.is_empty())
    {
        return;
    }
    let shared = config.client_ca.as_ref().is_some_and(|clients| {
        clients.subjects().iter().any(|subject| {
            front_proxy_ca
                .subjects()
                .iter()
                .any(|other| other.as_ref() == subject.as_ref())
        })
    });
    if shared {
        tracing::error!(
            "users and the front proxy share an authority and requestheader-allowed-names is empty: \
             ANY USER WITH A CLIENT CERTIFICATE CAN IMPERSONATE ANY OTHER"
        );
    } else {
        tracing::warn!(
            "requestheader-allowed-names is empty: any certificate of its authority may name users"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::Authority;

    fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn published(clients: &str, proxies: &str) -> BTreeMap<String, String> {
        data(&[
            (CLIENT_CA, clients),
            (FRONT_PROXY_CA, proxies),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
            ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
        ])
    }

    #[test]
    fn published_settings_are_applied_and_names_are_lower_case() {
        let (clients, proxies) = (Authority::new("clients").pem(), Authority::new("proxies").pem());
        let config = take_over(&published(&clients, &proxies), &AuthenticationConfig::default()).unwrap();
        assert_eq!(config.client_ca.as_ref().unwrap().pem(), clients);
        let front_proxy = config.request_header.as_ref().unwrap();
        assert_eq!(front_proxy.ca.as_ref().unwrap().pem(), proxies);
        assert!(front_proxy.allows("front-proxy-client") && !front_proxy.allows("other"));
        assert_eq!(front_proxy.username_headers, ["x-remote-user"]);
        assert_eq!(front_proxy.uid_headers, [""; 0]);
        assert_eq!(front_proxy.extra_prefixes, ["x-remote-extra-"]);

        let again = take_over(&published(&clients, &proxies), &config).unwrap();
        assert!(Arc::ptr_eq(
            again.client_ca.as_ref().unwrap(),
            config.client_ca.as_ref().unwrap()
        ));
    }

    #[test]
    fn without_published_settings_no_certificate_is_trusted() {
        let config = take_over(&BTreeMap::new(), &AuthenticationConfig::default()).unwrap();
        assert_eq!(config.client_ca, None);
        let front_proxy = config.request_header.unwrap();
        assert!(front_proxy.ca.is_none() && front_proxy.username_headers.is_empty());
    }

    #[test]
    fn missing_allowed_names_widen_no_trust() {
        let (clients, proxies) = (Authority::new("clients").pem(), Authority::new("proxies").pem());
        let complete = published(&clients, &proxies);
        let mut without = complete.clone();
        without.remove(ALLOWED_NAMES);
        let allows = |data: &BTreeMap<String, String>, old: &AuthenticationConfig, name: &str| {
            let config = take_over(data, old).unwrap();
            config.request_header.unwrap().allows(name)
        };
        let start = AuthenticationConfig::default();
        assert!(!allows(&without, &start, "front-proxy-client"));
        let running = take_over(&complete, &start).unwrap();
        assert!(allows(&without, &running, "front-proxy-client"));
        assert!(!allows(&without, &running, "somebody"));
        let mut any = complete;
        any.insert(ALLOWED_NAMES.to_owned(), "[]".to_owned());
        assert!(allows(&any, &start, "somebody"));
    }

    #[test]
    fn invalid_authorities_leave_the_old_ones() {
        let (clients, proxies) = (Authority::new("clients").pem(), Authority::new("proxies").pem());
        let old = take_over(&published(&clients, &proxies), &AuthenticationConfig::default()).unwrap();
        for broken in [
            "",
            "not PEM",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            assert_eq!(
                take_over(&published(broken, broken), &old).unwrap(),
                old,
                "{broken}"
            );
        }
        let without = take_over(&BTreeMap::new(), &old).unwrap();
        assert_eq!(without.client_ca, old.client_ca);
        let front_proxy = without.request_header.unwrap();
        assert!(front_proxy.ca.is_some() && front_proxy.username_headers.is_empty());
    }

    #[test]
    fn malformed_lists_are_errors() {
        for broken in ["[", r#""X-Remote-User""#, r#"["a b"]"#] {
            let data = data(&[("requestheader-username-headers", broken)]);
            take_over(&data, &AuthenticationConfig::default()).unwrap_err();
        }
    }
}
