//! Encryption at rest as `--encryption-provider-config` configures it: the file, its reload, health and metrics. The work is
//! done by [`drydock_storage::seal`].

mod file;
mod fuzz;
mod reload;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use aws_lc_rs::digest::{SHA256, digest};
use drydock_storage::clock::{Clock, SystemClock};
use drydock_storage::seal::kms::{Kms, KmsOptions};
use drydock_storage::seal::{Provider, Rule, Seal, SealMetrics, Sealer, Unsealed};
use prometheus_client::registry::Registry;
use uuid::Uuid;
use zeroize::Zeroizing;

pub use self::file::{ConfigurationError, check};
use self::file::{ProviderPlan, RulePlan};
pub use self::fuzz::{fuzz_configuration, fuzz_sealed_value};

/// The name of the health check of the key services.
const KEY_SERVICES: &str = "kms-providers";
/// The largest file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// Why encryption cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    /// The file cannot be read.
    #[error("error opening encryption provider configuration file {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Everybody may change the file, and so the keys.
    #[error("encryption provider configuration file {path:?} may be written by everybody (mode {mode:o})")]
    OpenToAll {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is larger than any configuration.
    #[error("encryption provider configuration file {path:?} has more than {MOST_BYTES} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The content is no configuration.
    #[error("error while parsing file {path:?}: {source}")]
    Configuration {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ConfigurationError,
    },
    /// A key service has no thread to be asked from.
    #[error("the key service {name} cannot be asked")]
    Service {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A key service of another configuration is not well, so that the configuration is not put into force.
    #[error("{0}")]
    Unwell(String),
    /// The work panicked.
    #[error("reading the encryption provider configuration panicked")]
    Panicked,
}

/// A file that was read, and its digest.
struct Content {
    bytes: Zeroizing<Vec<u8>>,
    digest: Vec<u8>,
}

/// Encryption at rest of this process.
pub struct Encryption {
    configured: Option<Configured>,
}

struct Configured {
    path: PathBuf,
    /// Of the file in force.
    digest: Vec<u8>,
    sealer: Arc<Sealer>,
    services: Services,
}

/// What key services are made with.
#[derive(Clone)]
struct Services {
    generation: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    metrics: SealMetrics,
}

impl Encryption {
    /// Reads the configuration, if there is one, and asks its key services for their status once. One that does not answer
    /// does not prevent a start. Values that it sealed do not open until it does.
    ///
    /// # Errors
    /// [`EncryptionError`].
    pub async fn load(path: Option<PathBuf>) -> Result<Self, EncryptionError> {
        let Some(path) = path else {
            return Ok(Self { configured: None });
        };
        let load = move || {
            let services = Services {
                generation: Arc::default(),
                clock: Arc::new(SystemClock),
                metrics: SealMetrics::new(&Uuid::new_v4().to_string()),
            };
            let content = read(&path)?;
            let rules = rules(&path, &content, &services)?;
            let (generation, metrics) = (Arc::clone(&services.generation), services.metrics.clone());
            Ok(Self {
                configured: Some(Configured {
                    path,
                    digest: content.digest,
                    sealer: Arc::new(Sealer::new(rules, generation, metrics)),
                    services,
                }),
            })
        };
        let loaded = tokio::task::spawn_blocking(load).await;
        loaded.unwrap_or(Err(EncryptionError::Panicked))
    }

    /// What seals and opens values.
    #[must_use]
    pub fn seal(&self) -> Arc<dyn Seal> {
        match &self.configured {
            Some(configured) => Arc::<Sealer>::clone(&configured.sealer),
            None => Arc::new(Unsealed),
        }
    }

    /// Adds the metrics to those of the server.
    pub(crate) fn register_metrics(&self, registry: &mut Registry) {
        if let Some(configured) = &self.configured {
            configured.services.metrics.register(registry);
        }
    }

    /// The health check of the key services, if there are any, or may be with another file.
    pub(crate) fn check(&self, is_reloaded: bool) -> Option<(&'static str, Probe)> {
        let sealer = &self.configured.as_ref()?.sealer;
        if !is_reloaded && sealer.key_services().is_empty() {
            return None;
        }
        let sealer = Arc::clone(sealer);
        let probe: Probe = Box::new(move || {
            let services = sealer.key_services();
            let services = services.iter().enumerate();
            let troubles =
                services.filter_map(|(index, kms)| Some(format!("kms-provider-{index}: {}", kms.trouble()?)));
            match troubles.collect::<Vec<_>>().as_slice() {
                [] => Ok(()),
                [one] => Err(one.clone()),
                several => Err(format!("[{}]", several.join(", "))),
            }
        });
        Some((KEY_SERVICES, probe))
    }
}

/// A health check.
pub(crate) type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Reads the file, which holds keys.
fn read(path: &Path) -> Result<Content, EncryptionError> {
    use std::io::Read as _;
    let failed = |source| EncryptionError::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o002 != 0 {
        return Err(EncryptionError::OpenToAll {
            path: path.to_owned(),
            mode,
        });
    }
    if mode & 0o004 != 0 {
        tracing::warn!(
            path = %path.display(),
            mode = format!("{mode:o}"),
            "everybody on this machine may read the file with the encryption keys"
        );
    }
    // All at once, so that no copy of the keys is left behind where it grows.
    let mut bytes = Zeroizing::new(Vec::with_capacity(
        usize::try_from(metadata.len().min(MOST_BYTES)).unwrap_or_default() + 1,
    ));
    let limit = MOST_BYTES + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 == limit {
        return Err(EncryptionError::TooLarge {
            path: path.to_owned(),
        });
    }
    let digest = digest(&SHA256, &bytes).as_ref().to_vec();
    Ok(Content { bytes, digest })
}

/// The rules of a file, with their key services, each of which has been asked for its status once. Blocks.
fn rules(path: &Path, content: &Content, services: &Services) -> Result<Vec<Rule>, EncryptionError> {
    let plans = file::parse(&content.bytes).map_err(|source| EncryptionError::Configuration {
        path: path.to_owned(),
        source,
    })?;
    let started = start(&plans, services)?;
    let provider = |plan: ProviderPlan| {
        Ok(match plan {
            ProviderPlan::Identity => Provider::Identity,
            ProviderPlan::Static(keys) => Provider::Static(keys),
            ProviderPlan::Kms(options) => Provider::Kms(match started.get(&options.name) {
                Some(kms) => Arc::clone(kms),
                None => start_one(options, services)?,
            }),
        })
    };
    let rule = |plan: RulePlan| {
        Ok(Rule {
            resources: plan.resources,
            providers: plan
                .providers
                .into_iter()
                .map(provider)
                .collect::<Result<_, EncryptionError>>()?,
        })
    };
    plans.into_iter().map(rule).collect()
}

/// The key services of the plans by name, each of which may be named by several rules. All are asked at once, so that several
/// that do not answer take no longer than one.
fn start(plans: &[RulePlan], services: &Services) -> Result<BTreeMap<String, Arc<Kms>>, EncryptionError> {
    let providers = plans.iter().flat_map(|plan| &plan.providers);
    let options = providers.filter_map(|provider| match provider {
        ProviderPlan::Kms(options) => Some((options.name.as_str(), options)),
        ProviderPlan::Identity | ProviderPlan::Static(_) => None,
    });
    let options: BTreeMap<_, _> = options.collect();
    std::thread::scope(|scope| {
        let asked = options.into_iter().map(|(name, options)| {
            let ask = move || start_one(options.clone(), services);
            let name = name.to_owned();
            match std::thread::Builder::new().spawn_scoped(scope, ask) {
                Ok(asked) => Ok((name, asked)),
                Err(source) => Err(EncryptionError::Service { name, source }),
            }
        });
        let asked: Vec<_> = asked.collect::<Result<_, _>>()?;
        let started = asked.into_iter().map(|(name, asked)| {
            let started = asked.join().unwrap_or(Err(EncryptionError::Panicked))?;
            Ok((name, started))
        });
        started.collect()
    })
}

fn start_one(options: KmsOptions, services: &Services) -> Result<Arc<Kms>, EncryptionError> {
    let name = options.name.clone();
    let started = Kms::start(
        options,
        Arc::clone(&services.generation),
        Arc::clone(&services.clock),
        services.metrics.clone(),
    );
    started.map_err(|source| EncryptionError::Service { name, source })
}

#[cfg(test)]
mod tests;
