//! Encryption as it is configured: for each resource a list of providers, of which the first one seals and all open.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use zeroize::Zeroizing;

use super::cipher::{Cipher, CipherKind};
use super::kms::Kms;
use super::metrics::{Direction, SealMetrics};
use super::{READ_SEALED, Seal, SealError, Sealed};
use crate::clock::Stopwatch;

/// A key of a cipher, with its name.
pub struct StaticKey {
    /// Prefix of the cipher, name and colon.
    prefix: String,
    cipher: Cipher,
}

impl StaticKey {
    /// A key; none if it has a length that the cipher does not take.
    #[must_use]
    pub fn new(kind: CipherKind, name: &str, secret: &Zeroizing<Vec<u8>>) -> Option<Self> {
        Some(Self {
            prefix: format!("{}{name}:", kind.prefix()),
            cipher: Cipher::new(kind, secret)?,
        })
    }
}

impl fmt::Debug for StaticKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StaticKey").field(&self.prefix).finish()
    }
}

/// The keys of a cipher, the one that seals first.
#[derive(Debug)]
pub struct StaticKeys {
    /// Their cipher.
    pub kind: CipherKind,
    /// The keys; never empty.
    pub keys: Vec<StaticKey>,
}

/// What seals and opens values.
#[derive(Debug, Clone)]
pub enum Provider {
    /// Nothing is sealed.
    Identity,
    /// Keys that the configuration holds.
    Static(Arc<StaticKeys>),
    /// A key service.
    Kms(Arc<Kms>),
}

/// How the values of some resources are sealed.
#[derive(Debug, Clone)]
pub struct Rule {
    /// `<resource>.<group>`, `*.<group>`, `*.` for the core group, or `*.*`.
    pub resources: Vec<String>,
    /// The first one seals, all open; never empty.
    pub providers: Vec<Provider>,
}

impl Rule {
    fn covers(&self, resource: &str) -> bool {
        let group = resource.split_once('.').map_or("", |(_, group)| group);
        self.resources
            .iter()
            .any(|pattern| match pattern.strip_prefix("*.") {
                Some("*") => true,
                Some(of_group) => of_group == group,
                None => pattern == resource,
            })
    }
}

/// Rules that are in force together.
type Rules = Arc<Vec<Rule>>;

/// Seals as configured, until another configuration is put into force.
pub struct Sealer {
    rules: ArcSwap<Vec<Rule>>,
    generation: Arc<AtomicU64>,
    metrics: SealMetrics,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sealer").field(&self.rules.load()).finish()
    }
}

/// How keys spell the core group, whose name is empty.
const CORE: &str = "core";

/// The resource of a key, `<resource>.<group>`; in the core group the resource alone.
fn resource_of(key: &str) -> String {
    let mut parts = key.split('/');
    let (group, resource) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if group == CORE {
        return resource.to_owned();
    }
    format!("{resource}.{group}")
}

impl Sealer {
    /// With its first rules. `generation` is counted up by them, too: see [`Seal::generation`].
    #[must_use]
    pub fn new(rules: Vec<Rule>, generation: Arc<AtomicU64>, metrics: SealMetrics) -> Self {
        Self {
            rules: ArcSwap::from_pointee(rules),
            generation,
            metrics,
        }
    }

    /// Puts other rules into force. What is under way ends under the old ones.
    pub fn replace(&self, rules: Vec<Rule>) {
        self.rules.store(Arc::new(rules));
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> &SealMetrics {
        &self.metrics
    }

    /// The key services in force, in the order of the configuration.
    #[must_use]
    pub fn key_services(&self) -> Vec<Arc<Kms>> {
        key_services(&self.rules.load())
    }

    fn rules(&self) -> Rules {
        self.rules.load_full()
    }
}

/// The key services of some rules, each once, in the order of the rules.
#[must_use]
pub fn key_services(rules: &[Rule]) -> Vec<Arc<Kms>> {
    let mut services: Vec<Arc<Kms>> = Vec::new();
    for provider in rules.iter().flat_map(|rule| &rule.providers) {
        if let Provider::Kms(kms) = provider
            && !services.iter().any(|known| Arc::ptr_eq(known, kms))
        {
            services.push(Arc::clone(kms));
        }
    }
    services
}

/// The rule of a resource: the first one that covers it.
fn rule<'a>(rules: &'a Rules, resource: &str) -> Option<&'a Rule> {
    rules.iter().find(|rule| rule.covers(resource))
}

impl Provider {
    /// What values of this provider begin with.
    fn prefix(&self) -> &str {
        match self {
            Self::Identity => "",
            Self::Static(keys) => keys.kind.prefix(),
            Self::Kms(kms) => kms.prefix(),
        }
    }

    /// The prefix as metrics show it.
    fn label(&self) -> &str {
        match self {
            Self::Identity => "identity",
            other => other.prefix(),
        }
    }

    fn seal(&self, key: &str, plain: Vec<u8>, metrics: &SealMetrics) -> Result<Sealed, String> {
        match self {
            Self::Identity => Ok(Sealed {
                key_id: String::new(),
                bytes: plain,
            }),
            Self::Static(keys) => {
                let first = keys.keys.first().ok_or("the provider has no key")?;
                let bytes = first.cipher.seal(key.as_bytes(), plain)?;
                metrics.sealed_by(&first.prefix);
                Ok(Sealed {
                    key_id: first.prefix.clone(),
                    bytes,
                })
            }
            Self::Kms(kms) => Ok(Sealed {
                key_id: kms.prefix().to_owned(),
                bytes: kms.seal(key, &plain)?,
            }),
        }
    }

    /// Whether values with this prefix are for this provider.
    fn is_for(&self, key_id: &str) -> bool {
        match self {
            Self::Identity => key_id.is_empty(),
            Self::Static(keys) => key_id.starts_with(keys.kind.prefix()),
            Self::Kms(kms) => key_id == kms.prefix(),
        }
    }

    fn open(&self, key: &str, key_id: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::Identity => Ok(sealed.to_vec()),
            Self::Static(keys) => {
                let mut errors = Vec::new();
                for one in keys.keys.iter().filter(|one| one.prefix == key_id) {
                    match one.cipher.open(key.as_bytes(), sealed.to_vec()) {
                        Ok(plain) => return Ok(plain),
                        Err(error) => errors.push(error),
                    }
                }
                let of = match keys.kind {
                    CipherKind::AesGcm | CipherKind::AesCbc => "AES",
                    CipherKind::Secretbox => "Secretbox",
                };
                Err(reduce(errors).unwrap_or_else(|| {
                    format!("no matching key was found for the provided {of} transformer")
                }))
            }
            Self::Kms(kms) => kms.open(key, sealed),
        }
    }
}

/// Several errors in one text, as in Kubernetes; none if there are none.
fn reduce(mut errors: Vec<String>) -> Option<String> {
    errors.dedup();
    match errors.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

impl Seal for Sealer {
    fn seal(&self, key: &str, plain: Vec<u8>) -> Result<Sealed, SealError> {
        let rules = self.rules();
        let resource = resource_of(key);
        let identity = Provider::Identity;
        let providers = rule(&rules, &resource).map(|rule| rule.providers.as_slice());
        let provider = providers.and_then(<[Provider]>::first).unwrap_or(&identity);
        let since = Stopwatch::start();
        let sealed = provider.seal(key, plain, &self.metrics);
        if providers.is_some() {
            let took = since.elapsed().as_secs_f64();
            let succeeded = sealed.is_ok();
            self.metrics
                .transformed(Direction::ToStorage, resource, provider.label(), succeeded, took);
        }
        sealed.map_err(SealError::new)
    }

    fn open(&self, key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
        let rules = self.rules();
        let resource = resource_of(key);
        let Some(rule) = rule(&rules, &resource) else {
            if key_id.is_empty() {
                return Ok(sealed);
            }
            return Err(SealError::new(READ_SEALED));
        };
        let since = Stopwatch::start();
        let mut errors = Vec::new();
        for provider in rule.providers.iter().filter(|provider| provider.is_for(key_id)) {
            let opened = provider.open(key, key_id, &sealed);
            self.metrics.transformed(
                Direction::FromStorage,
                resource.clone(),
                provider.label(),
                opened.is_ok(),
                since.elapsed().as_secs_f64(),
            );
            match opened {
                Ok(plain) => return Ok(plain),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() {
            let took = since.elapsed().as_secs_f64();
            self.metrics
                .transformed(Direction::FromStorage, resource, "unknown", false, took);
        }
        Err(SealError::new(
            reduce(errors).unwrap_or_else(|| "no matching prefix found".to_owned()),
        ))
    }

    fn is_stale(&self, key: &str, key_id: &str, sealed: &[u8]) -> bool {
        let rules = self.rules();
        let Some(first) = rule(&rules, &resource_of(key)).and_then(|rule| rule.providers.first()) else {
            return false;
        };
        match first {
            Provider::Identity => !key_id.is_empty(),
            Provider::Static(keys) => keys.keys.first().is_some_and(|first| {
                // The same name may have had another secret before.
                first.prefix != key_id || first.cipher.open(key.as_bytes(), sealed.to_vec()).is_err()
            }),
            Provider::Kms(kms) => key_id != kms.prefix() || kms.is_stale(sealed),
        }
    }

    fn has_stale(&self) -> bool {
        true
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "g.io/things/n/a";

    fn keys(kind: CipherKind, names: &[(&str, u8)]) -> Provider {
        let key =
            |(name, byte): &(&str, u8)| StaticKey::new(kind, name, &Zeroizing::new(vec![*byte; 32])).unwrap();
        Provider::Static(Arc::new(StaticKeys {
            kind,
            keys: names.iter().map(key).collect(),
        }))
    }

    fn sealer(rules: &[(&[&str], Vec<Provider>)]) -> Sealer {
        let rules = rules.iter().map(|(resources, providers)| Rule {
            resources: resources.iter().map(ToString::to_string).collect(),
            providers: providers.clone(),
        });
        Sealer::new(rules.collect(), Arc::default(), SealMetrics::new("here"))
    }

    fn of(providers: Vec<Provider>) -> Sealer {
        sealer(&[(&["things.g.io"], providers)])
    }

    fn open(sealer: &Sealer, stored: &Sealed) -> Result<Vec<u8>, String> {
        sealer
            .open(KEY, &stored.key_id, stored.bytes.clone())
            .map_err(|error| error.to_string())
    }

    fn is_stale(sealer: &Sealer, stored: &Sealed) -> bool {
        sealer.is_stale(KEY, &stored.key_id, &stored.bytes)
    }

    #[test]
    fn the_first_key_of_the_first_provider_seals_and_all_open() {
        use CipherKind::{AesGcm, Secretbox};
        let before = of(vec![keys(AesGcm, &[("old", 1)]), Provider::Identity]);
        let old = before.seal(KEY, b"x".to_vec()).unwrap();
        assert_eq!(old.key_id, "k8s:enc:aesgcm:v1:old:");
        assert!(!is_stale(&before, &old));
        let plain = Unsealed.seal(KEY, b"x".to_vec()).unwrap();
        assert!(is_stale(&before, &plain));

        for after in [
            of(vec![keys(AesGcm, &[("new", 2), ("old", 1)]), Provider::Identity]),
            of(vec![keys(Secretbox, &[("s", 3)]), keys(AesGcm, &[("old", 1)])]),
            of(vec![Provider::Identity, keys(AesGcm, &[("old", 1)])]),
            // The same name with another secret: the later one is found.
            of(vec![keys(AesGcm, &[("old", 2)]), keys(AesGcm, &[("old", 1)])]),
        ] {
            assert_eq!(open(&after, &old), Ok(b"x".to_vec()), "{after:?}");
            assert!(is_stale(&after, &old), "{after:?}");
            let new = after.seal(KEY, b"y".to_vec()).unwrap();
            assert_eq!(open(&after, &new), Ok(b"y".to_vec()));
            assert!(!is_stale(&after, &new), "{after:?}");
        }
    }

    use super::super::Unsealed;

    #[test]
    fn what_no_provider_opens_is_refused_in_the_words_of_kubernetes() {
        use CipherKind::{AesGcm, Secretbox};
        let old = of(vec![keys(AesGcm, &[("old", 1)])])
            .seal(KEY, b"x".to_vec())
            .unwrap();
        for (providers, text) in [
            (vec![Provider::Identity], "no matching prefix found"),
            (
                vec![keys(Secretbox, &[("s", 1)]), Provider::Identity],
                "no matching prefix found",
            ),
            (
                vec![keys(AesGcm, &[("new", 1)])],
                "no matching key was found for the provided AES transformer",
            ),
            (
                vec![keys(AesGcm, &[("old", 9)])],
                "cipher: message authentication failed",
            ),
            (
                vec![keys(AesGcm, &[("old", 9)]), keys(AesGcm, &[("new", 9)])],
                "[cipher: message authentication failed, no matching key was found for the provided AES transformer]",
            ),
        ] {
            assert_eq!(open(&of(providers), &old), Err(text.to_owned()));
        }
        let none = sealer(&[(&["others.g.io"], vec![Provider::Identity])]);
        assert_eq!(open(&none, &old), Err(READ_SEALED.to_owned()));
        let plain = Unsealed.seal(KEY, b"x".to_vec()).unwrap();
        let strict = of(vec![keys(AesGcm, &[("old", 1)])]);
        assert_eq!(open(&strict, &plain), Err("no matching prefix found".to_owned()));
    }

    #[test]
    fn the_first_rule_that_covers_a_resource_decides() {
        let gcm = || vec![keys(CipherKind::AesGcm, &[("k", 1)])];
        let plain = || vec![Provider::Identity];
        for (rules, is_sealed) in [
            (vec![(&["things.g.io"][..], gcm())], true),
            (vec![(&["*.g.io"][..], gcm())], true),
            (vec![(&["*.*"][..], gcm())], true),
            (vec![(&["others.g.io", "*.h.io"][..], gcm())], false),
            (vec![(&["things"][..], gcm())], false),
            (
                vec![(&["things.g.io"][..], plain()), (&["*.*"][..], gcm())],
                false,
            ),
            (vec![(&["others.g.io"][..], plain()), (&["*.*"][..], gcm())], true),
        ] {
            let sealed = sealer(&rules).seal(KEY, b"x".to_vec()).unwrap();
            assert_eq!(!sealed.key_id.is_empty(), is_sealed, "{rules:?}");
        }
        for pattern in ["secrets", "*.", "*.*"] {
            let core = sealer(&[(&[pattern], gcm())]);
            let sealed = core.seal("core/secrets/n/a", Vec::new()).unwrap();
            assert!(!sealed.key_id.is_empty(), "{pattern}");
        }
    }

    #[test]
    fn other_rules_take_effect_at_once() {
        let sealer = of(vec![Provider::Identity]);
        let before = sealer.generation();
        let gcm = of(vec![keys(CipherKind::AesGcm, &[("k", 1)])]);
        let stored = gcm.seal(KEY, b"x".to_vec()).unwrap();
        assert!(open(&sealer, &stored).is_err());
        sealer.replace(gcm.rules().to_vec());
        assert_eq!(open(&sealer, &stored), Ok(b"x".to_vec()));
        assert_ne!(sealer.generation(), before);
    }

    #[test]
    fn no_key_is_shown() {
        let shown = format!("{:?}", of(vec![keys(CipherKind::AesGcm, &[("k", 65)])]));
        assert!(
            shown.contains("k8s:enc:aesgcm:v1:k:") && !shown.contains("65, 65") && !shown.contains("AAAA")
        );
    }
}
