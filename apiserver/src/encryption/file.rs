//! The file: `EncryptionConfiguration` of `apiserver.config.k8s.io/v1`, with the checks and texts of kube-apiserver.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use drydock_storage::seal::kms::{BadEndpoint, Endpoint, KmsOptions};
use drydock_storage::seal::{CipherKind, StaticKey, StaticKeys};
use serde::{Deserialize, Deserializer};
use serde_json::json;
use zeroize::Zeroizing;

use crate::request::duration::parse_go_duration;

const API_VERSION: &str = "apiserver.config.k8s.io/v1";
const KIND: &str = "EncryptionConfiguration";
/// The timeout of a call of a key service, unless the file has another one.
const TIMEOUT: &str = "3s";
/// The wildcard of everything.
const ANYTHING: Pattern<'static> = Pattern {
    resource: "*",
    group: "*",
};
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
    /// A rule that would never take effect.
    #[error("resource {resource:?} is masked by earlier rule {by:?}")]
    Masked {
        /// Of the rule.
        resource: String,
        /// The wildcard before it that covers it.
        by: String,
    },
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
    #[serde(default, deserialize_with = "or_default")]
    api_version: String,
    #[serde(default, deserialize_with = "or_default")]
    kind: String,
    #[serde(default, deserialize_with = "or_default")]
    resources: Vec<ResourceConfiguration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceConfiguration {
    #[serde(default, deserialize_with = "or_default")]
    resources: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
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
    #[serde(default, deserialize_with = "or_default")]
    keys: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    #[serde(default, deserialize_with = "secret")]
    secret: Zeroizing<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KmsConfiguration {
    #[serde(default, deserialize_with = "or_default")]
    api_version: String,
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    cachesize: Option<i64>,
    #[serde(default, deserialize_with = "or_default")]
    endpoint: String,
    timeout: Option<String>,
}

/// A member that is null is as one that is not there.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<String>, D::Error> {
    or_default::<D, String>(deserializer).map(Zeroizing::new)
}

/// As Go decodes: line breaks do not count, and neither do the last bits that belong to no byte.
fn decode_base64(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
    );
    let mut one_line = Zeroizing::new(String::with_capacity(text.len()));
    one_line.extend(text.chars().filter(|char| !matches!(char, '\r' | '\n')));
    LENIENT.decode(one_line.as_bytes()).map(Zeroizing::new).ok()
}

/// A resource of a rule, or a wildcard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pattern<'a> {
    resource: &'a str,
    group: &'a str,
}

impl<'a> Pattern<'a> {
    fn parse(text: &'a str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        Self { resource, group }
    }

    /// The wildcards that cover it, or are it.
    fn wildcards(self) -> [Self; 2] {
        let any = "*";
        [
            Self {
                resource: any,
                group: self.group,
            },
            Self {
                resource: any,
                group: any,
            },
        ]
    }
}

impl fmt::Display for Pattern<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.resource, self.group) {
            ("*", "") => f.write_str("*."),
            (resource, "") => f.write_str(resource),
            (resource, group) => write!(f, "{resource}.{group}"),
        }
    }
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
    let elements = check.elements(configuration.resources);
    if check.errors.is_empty() {
        rules(elements)
    } else {
        Err(ConfigurationError::Invalid(check.errors))
    }
}

/// A rule for each pattern of each element. One that is named again gets the further providers for reading.
fn rules(elements: Vec<RulePlan>) -> Result<Vec<RulePlan>, ConfigurationError> {
    let mut rules: Vec<RulePlan> = Vec::new();
    let position = |rules: &[RulePlan], name: &str| {
        let is_named = |rule: &RulePlan| rule.resources.iter().any(|one| one == name);
        rules.iter().position(is_named)
    };
    for element in elements {
        for resource in &element.resources {
            let pattern = Pattern::parse(resource);
            let resource = pattern.to_string();
            for by in pattern.wildcards().map(|wildcard| wildcard.to_string()) {
                if position(&rules, &by).is_some() {
                    return Err(ConfigurationError::Masked { resource, by });
                }
            }
            let providers = element.providers.iter().cloned();
            match position(&rules, &resource).and_then(|at| rules.get_mut(at)) {
                Some(rule) => rule.providers.extend(providers),
                None => rules.push(RulePlan {
                    resources: vec![resource],
                    providers: providers.collect(),
                }),
            }
        }
    }
    Ok(rules)
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

    fn elements(&mut self, configured: Vec<ResourceConfiguration>) -> Vec<RulePlan> {
        if configured.is_empty() {
            self.required("resources", "at least one resources is required");
        }
        if !self.count("resources", configured.len()) {
            return Vec::new();
        }
        let mut elements = Vec::new();
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
            elements.push(RulePlan {
                resources: one.resources,
                providers,
            });
        }
        elements
    }

    fn resources(&mut self, path: &str, resources: &[String]) {
        if resources.is_empty() {
            self.required(path, &format!("at least one {path} is required"));
        }
        if !self.count(path, resources.len()) {
            return;
        }
        let (has_duplicates, has_overlaps) = clashes(resources);
        for (is_so, text) in [
            (
                has_duplicates,
                "the same resource cannot be specified multiple times",
            ),
            (
                has_overlaps,
                "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they \
                 will be masked",
            ),
        ] {
            if is_so {
                let shown = json!(resources).to_string();
                self.invalid(path, &shown, text);
            }
        }
        for (index, resource) in resources.iter().enumerate() {
            let pattern = Pattern::parse(resource);
            let text = if resource.to_lowercase() != *resource {
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
            } else if pattern.group == "events.k8s.io" {
                "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the \
                 config file"
            } else if pattern.group == "extensions" {
                "'extensions' group has been removed and cannot be used for encryption"
            } else if pattern.group == "*" && pattern.resource != "*" {
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
            0 => self.invalid(
                path,
                r#"{"AESGCM":null,"AESCBC":null,"Secretbox":null,"Identity":null,"KMS":null}"#,
                "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity",
            ),
            1 => {}
            // kube-apiserver shows the element, with its keys.
            _ => self.invalid(
                path,
                "\"REDACTED\"",
                "more than one provider specified in a single element, should split into different list elements",
            ),
        }
        if let Some(kms) = kms {
            return self.kms(&format!("{path}.kms"), kms).map(ProviderPlan::Kms);
        }
        let keys = [
            (CipherKind::AesGcm, aesgcm),
            (CipherKind::AesCbc, aescbc),
            (CipherKind::Secretbox, secretbox),
        ];
        let keys = keys.into_iter().find_map(|(kind, keys)| Some((kind, keys?)));
        let Some((kind, keys)) = keys else {
            return identity.map(|Identity {}| ProviderPlan::Identity);
        };
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
            let Some(secret) = decode_base64(&key.secret) else {
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
        let is_v1 = matches!(kms.api_version.as_str(), "v1" | "");
        if kms.name.is_empty() {
            self.required(&at("name"), "name is a mandatory field for a provider");
        }
        if !is_v1 && kms.name.contains(':') {
            let text = format!("invalid KMS provider name {}, must not contain ':'", kms.name);
            self.invalid(&at("name"), &quoted(&kms.name), &text);
        }
        if !self.kms_names.insert(kms.name.clone()) && !is_v1 {
            let text = format!("duplicate KMS provider name {}, names must be unique", kms.name);
            self.invalid(&at("name"), &quoted(&kms.name), &text);
        }
        let timeout = self.timeout(&at("timeout"), kms.timeout.as_deref().unwrap_or(TIMEOUT));
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
        if let Some(size) = kms.cachesize
            && !is_v1
        {
            self.invalid(
                &at("cachesize"),
                &size.to_string(),
                "cachesize is not supported in v2",
            );
        }
        if is_v1 {
            self.invalid(
                &at("apiVersion"),
                "\"v1\"",
                "KMSv1 is deprecated and not served. Use KMSv2 instead.",
            );
        } else if kms.api_version != "v2" {
            self.invalid(
                &at("apiVersion"),
                &quoted(&kms.api_version),
                "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported",
            );
        }
        if self.errors.len() > before {
            return None;
        }
        Some(KmsOptions {
            name: kms.name,
            endpoint: endpoint?,
            timeout: timeout?,
        })
    }

    fn timeout(&mut self, path: &str, text: &str) -> Option<Duration> {
        let Ok(nanos) = parse_go_duration(text) else {
            self.errors
                .push(format!("{path}: time: invalid duration {text:?}"));
            return None;
        };
        let nanos = u64::try_from(nanos).unwrap_or_default();
        if nanos == 0 {
            self.invalid(path, &format!("{text:?}"), "timeout should be a positive value");
            return None;
        }
        Some(Duration::from_nanos(nanos))
    }
}

/// Whether patterns of one list are the same, and whether one covers another, as kube-apiserver finds out: a wildcard that is
/// named twice does both.
fn clashes(resources: &[String]) -> (bool, bool) {
    let patterns: Vec<_> = resources.iter().map(|text| Pattern::parse(text)).collect();
    let (mut has_duplicates, mut has_overlaps) = (false, false);
    for (index, one) in patterns.iter().enumerate() {
        for (_, other) in patterns.iter().enumerate().filter(|(at, _)| *at != index) {
            if one == other && !has_duplicates {
                has_duplicates = true;
                continue;
            }
            let is_wildcard = one.resource == "*" || other.resource == "*";
            has_overlaps |= *one == ANYTHING || (one.group == other.group && is_wildcard);
        }
    }
    (has_duplicates, has_overlaps)
}
