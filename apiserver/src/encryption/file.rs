//! The file: `EncryptionConfiguration` of `apiserver.config.k8s.io/v1`, with the checks and texts of kube-apiserver.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drydock_storage::seal::kms::{BadEndpoint, Endpoint, KmsOptions};
use drydock_storage::seal::{CipherKind, StaticKey, StaticKeys};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use crate::request::duration::parse_go_duration;

const API_VERSION: &str = "apiserver.config.k8s.io/v1";
const KIND: &str = "EncryptionConfiguration";
/// The timeout of a call of a key service, unless the file has another one.
const TIMEOUT: &str = "3s";
/// The most rules, and providers and keys in each: far more than anybody rotates through.
const MOST: usize = 256;

/// What is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// It is empty.
    #[error("the file is empty")]
    Empty,
    /// It is no YAML, or has members that are none of a configuration.
    #[error("{0}")]
    Yaml(String),
    /// It is another kind or version.
    #[error(
        "no kind {kind:?} is registered for version {api_version:?}, expected {KIND:?} of {API_VERSION:?}"
    )]
    Kind {
        /// Its kind.
        kind: String,
        /// Its version.
        api_version: String,
    },
    /// Values that are not allowed, each with its path.
    #[error("{}", aggregated(.0))]
    Invalid(Vec<String>),
}

/// Several errors as Kubernetes shows them.
fn aggregated(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Configuration {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    resources: Vec<ResourceConfiguration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceConfiguration {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    providers: Vec<ProviderConfiguration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderConfiguration {
    aesgcm: Option<Keys>,
    aescbc: Option<Keys>,
    secretbox: Option<Keys>,
    identity: Option<Identity>,
    kms: Option<KmsConfiguration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    #[serde(default)]
    keys: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    #[serde(default)]
    name: String,
    #[serde(default, deserialize_with = "secret")]
    secret: Zeroizing<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KmsConfiguration {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    name: String,
    cachesize: Option<i64>,
    #[serde(default)]
    endpoint: String,
    timeout: Option<String>,
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<String>, D::Error> {
    String::deserialize(deserializer).map(Zeroizing::new)
}

/// How the values of some resources are sealed, before key services are reached.
pub(super) struct RulePlan {
    pub(super) resources: Vec<String>,
    pub(super) providers: Vec<ProviderPlan>,
}

/// A provider, before its key service is reached.
#[derive(Clone)]
pub(super) enum ProviderPlan {
    Identity,
    Static(Arc<StaticKeys>),
    Kms(KmsOptions),
}

/// Whether the content of a file is a configuration that this server uses.
///
/// # Errors
/// [`ConfigurationError`].
pub fn check(content: &[u8]) -> Result<(), ConfigurationError> {
    parse(content).map(drop)
}

/// Reads the content of a file.
pub(super) fn parse(content: &[u8]) -> Result<Vec<RulePlan>, ConfigurationError> {
    if content.is_empty() {
        return Err(ConfigurationError::Empty);
    }
    let text = std::str::from_utf8(content).map_err(|error| ConfigurationError::Yaml(error.to_string()))?;
    let configuration: Configuration =
        serde_saphyr::from_str(text).map_err(|error| ConfigurationError::Yaml(place_of(&error)))?;
    if (configuration.api_version.as_str(), configuration.kind.as_str()) != (API_VERSION, KIND) {
        return Err(ConfigurationError::Kind {
            kind: configuration.kind,
            api_version: configuration.api_version,
        });
    }
    let mut check = Check::default();
    let rules = check.rules(configuration.resources);
    if check.errors.is_empty() {
        Ok(rules)
    } else {
        Err(ConfigurationError::Invalid(check.errors))
    }
}

/// An error of the parser without the lines around it and without what it quotes, which may be a key: of a value of the wrong
/// type, or of a field's name where a blank is missing.
fn place_of(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    match line.find("invalid ") {
        Some(at) => format!("{}invalid value", line.get(..at).unwrap_or_default()),
        None => line
            .split(['`', '"', '\''])
            .step_by(2)
            .collect::<Vec<_>>()
            .join("…"),
    }
}

/// Collects what is wrong.
#[derive(Default)]
struct Check {
    errors: Vec<String>,
    kms_names: BTreeSet<String>,
}

impl Check {
    fn required(&mut self, path: &str, text: &str) {
        self.errors.push(format!("{path}: Required value: {text}"));
    }

    fn invalid(&mut self, path: &str, value: &str, text: &str) {
        self.errors
            .push(format!("{path}: Invalid value: {value}: {text}"));
    }

    fn count(&mut self, path: &str, count: usize) -> bool {
        if count > MOST {
            self.errors.push(format!(
                "{path}: Too many: {count}: must have at most {MOST} items"
            ));
        }
        count <= MOST
    }

    fn rules(&mut self, configured: Vec<ResourceConfiguration>) -> Vec<RulePlan> {
        if configured.is_empty() {
            self.required("resources", "at least one resources is required");
        }
        if !self.count("resources", configured.len()) {
            return Vec::new();
        }
        let mut rules: Vec<RulePlan> = Vec::new();
        for (index, one) in configured.into_iter().enumerate() {
            let resources_path = format!("resources[{index}].resources");
            let providers_path = format!("resources[{index}].providers");
            self.resources(&resources_path, &one.resources);
            if one.providers.is_empty() {
                let text = format!("at least one {providers_path} is required");
                self.required(&providers_path, &text);
            }
            if !self.count(&providers_path, one.providers.len()) {
                continue;
            }
            let mut providers = Vec::new();
            for (at, provider) in one.providers.into_iter().enumerate() {
                providers.extend(self.provider(&format!("{providers_path}[{at}]"), provider));
            }
            for resource in one.resources {
                self.add(&mut rules, resource, &providers);
            }
        }
        rules
    }

    /// Adds a rule for one pattern. What an earlier wildcard covers would never take effect. A pattern that is named again
    /// gets the further providers for reading.
    fn add(&mut self, rules: &mut Vec<RulePlan>, resource: String, providers: &[ProviderPlan]) {
        let names = |rule: &RulePlan, pattern: &str| rule.resources.iter().any(|one| one == pattern);
        let group = resource.split_once('.').map_or("", |(_, group)| group);
        let in_group = format!("*.{group}");
        for wildcard in [in_group.as_str(), "*.*"] {
            if resource != wildcard && rules.iter().any(|rule| names(rule, wildcard)) {
                self.errors.push(format!(
                    "resource {resource:?} is masked by earlier rule {wildcard:?}"
                ));
                return;
            }
        }
        match rules.iter_mut().find(|rule| names(rule, &resource)) {
            Some(rule) => rule.providers.extend(providers.iter().cloned()),
            None => rules.push(RulePlan {
                resources: vec![resource],
                providers: providers.to_vec(),
            }),
        }
    }

    fn resources(&mut self, path: &str, resources: &[String]) {
        if resources.is_empty() {
            self.required(path, &format!("at least one {path} is required"));
        }
        if !self.count(path, resources.len()) {
            return;
        }
        let shown = || format!("{resources:?}");
        let unique: BTreeSet<_> = resources.iter().collect();
        if unique.len() < resources.len() {
            self.invalid(
                path,
                &shown(),
                "the same resource cannot be specified multiple times",
            );
        }
        if resources
            .iter()
            .any(|one| resources.iter().any(|other| overlaps(one, other)))
        {
            self.invalid(
                path,
                &shown(),
                "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they \
                 will be masked",
            );
        }
        for (index, resource) in resources.iter().enumerate() {
            let group = resource.split_once('.').map(|(_, group)| group);
            let is_wildcard = resource.starts_with("*.") || resource == "*";
            let text = if resource.chars().any(char::is_uppercase) {
                "resource name should not contain capital letters"
            } else if resource == "*" {
                "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
            } else if [
                "apiserveripinfo",
                "serviceipallocations",
                "servicenodeportallocations",
            ]
            .contains(&resource.as_str())
            {
                "resources which do not have REST API/s cannot be encrypted"
            } else if group == Some("events.k8s.io") {
                "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the \
                 config file"
            } else if group == Some("extensions") {
                "'extensions' group has been removed and cannot be used for encryption"
            } else if group == Some("*") && !is_wildcard {
                "encrypting the same resource across groups is not supported"
            } else {
                continue;
            };
            self.invalid(&format!("{path}[{index}]"), &format!("{resource:?}"), text);
        }
    }

    fn provider(&mut self, path: &str, provider: ProviderConfiguration) -> Option<ProviderPlan> {
        let ProviderConfiguration {
            aesgcm,
            aescbc,
            secretbox,
            identity,
            kms,
        } = provider;
        let given = [
            aesgcm.is_some(),
            aescbc.is_some(),
            secretbox.is_some(),
            identity.is_some(),
            kms.is_some(),
        ];
        match given.into_iter().filter(|given| *given).count() {
            0 => {
                self.invalid(
                    path,
                    "{}",
                    "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
                );
                return None;
            }
            1 => {}
            _ => {
                self.invalid(
                    path,
                    "\"REDACTED\"",
                    "more than one provider specified in a single element, should split into different list elements",
                );
                return None;
            }
        }
        if identity.is_some() {
            return Some(ProviderPlan::Identity);
        }
        if let Some(kms) = kms {
            return self.kms(&format!("{path}.kms"), kms).map(ProviderPlan::Kms);
        }
        let keys = [
            (CipherKind::AesGcm, aesgcm),
            (CipherKind::AesCbc, aescbc),
            (CipherKind::Secretbox, secretbox),
        ];
        let (kind, keys) = keys.into_iter().find_map(|(kind, keys)| Some((kind, keys?)))?;
        let keys = self.keys(&format!("{path}.{}.keys", kind.name()), kind, keys.keys);
        Some(ProviderPlan::Static(Arc::new(StaticKeys { kind, keys })))
    }

    fn keys(&mut self, path: &str, kind: CipherKind, keys: Vec<Key>) -> Vec<StaticKey> {
        if keys.is_empty() {
            self.required(path, "at least one keys is required");
        }
        if !self.count(path, keys.len()) {
            return Vec::new();
        }
        let mut usable = Vec::new();
        for (index, key) in keys.into_iter().enumerate() {
            if key.name.is_empty() {
                self.required(
                    &format!("{path}[{index}].name"),
                    "name is a mandatory field for a key",
                );
            }
            let path = format!("{path}[{index}].secret");
            if key.secret.is_empty() {
                self.required(&path, "secret is a mandatory field for a key");
                continue;
            }
            let Ok(secret) = STANDARD.decode(key.secret.as_bytes()).map(Zeroizing::new) else {
                self.invalid(&path, "\"REDACTED\"", "secrets must be base64 encoded");
                continue;
            };
            if let Some(key) = StaticKey::new(kind, &key.name, &secret) {
                usable.push(key);
                continue;
            }
            let lengths: Vec<_> = kind.key_lengths().iter().map(ToString::to_string).collect();
            let text = format!(
                "secret is not of the expected length, got {}, expected one of [{}]",
                secret.len(),
                lengths.join(" ")
            );
            self.invalid(&path, "\"REDACTED\"", &text);
        }
        usable
    }

    fn kms(&mut self, path: &str, kms: KmsConfiguration) -> Option<KmsOptions> {
        let before = self.errors.len();
        let at = |field: &str| format!("{path}.{field}");
        let quoted = |text: &str| format!("{text:?}");
        match kms.api_version.as_str() {
            "v2" => {}
            "v1" | "" => self.invalid(
                &at("apiVersion"),
                "\"v1\"",
                "KMS v1 is deprecated and not served, use v2",
            ),
            other => self.invalid(
                &at("apiVersion"),
                &quoted(other),
                "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported",
            ),
        }
        if kms.name.is_empty() {
            self.required(&at("name"), "name is a mandatory field for a provider");
        }
        if kms.name.contains(':') {
            let text = format!("invalid KMS provider name {}, must not contain ':'", kms.name);
            self.invalid(&at("name"), &quoted(&kms.name), &text);
        }
        if !self.kms_names.insert(kms.name.clone()) {
            let text = format!("duplicate KMS provider name {}, names must be unique", kms.name);
            self.invalid(&at("name"), &quoted(&kms.name), &text);
        }
        if let Some(size) = kms.cachesize {
            self.invalid(
                &at("cachesize"),
                &size.to_string(),
                "cachesize is not supported in v2",
            );
        }
        let timeout = kms.timeout.unwrap_or_else(|| TIMEOUT.to_owned());
        let nanos = parse_go_duration(&timeout)
            .ok()
            .and_then(|nanos| u64::try_from(nanos).ok());
        let nanos = nanos.unwrap_or_default();
        if nanos == 0 {
            self.invalid(
                &at("timeout"),
                &quoted(&timeout),
                "timeout should be a positive value",
            );
        }
        let endpoint = if kms.endpoint.is_empty() {
            self.invalid(&at("endpoint"), "\"\"", "endpoint is a mandatory field for a kms");
            None
        } else {
            let endpoint: Result<Endpoint, BadEndpoint> = kms.endpoint.parse();
            if let Err(error) = &endpoint {
                self.invalid(&at("endpoint"), &quoted(&kms.endpoint), &error.to_string());
            }
            endpoint.ok()
        };
        if self.errors.len() > before {
            return None;
        }
        Some(KmsOptions {
            name: kms.name,
            endpoint: endpoint?,
            timeout: Duration::from_nanos(nanos),
        })
    }
}

/// Whether `one` covers everything that `other` does, and more.
fn overlaps(one: &str, other: &str) -> bool {
    let group = |name: &str| name.split_once('.').map_or("", |(_, group)| group).to_owned();
    one != other && (one == "*.*" || (one.starts_with("*.") && group(one) == group(other)))
}
