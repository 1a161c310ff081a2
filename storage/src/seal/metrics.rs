//! Metrics of encryption at rest, with the names of kube-apiserver where it has them.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use sha2::{Digest as _, Sha256};

use crate::export::hex;

/// Labels of transformations.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Transformed {
    resource: String,
    status: &'static str,
    transformation_type: &'static str,
    transformer_prefix: String,
}

/// Labels of their durations.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransformedIn {
    transformation_type: &'static str,
    transformer_prefix: String,
}

/// Label: the prefix of the values of one static key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKey {
    key: String,
}

/// Labels of calls of a KMS plugin.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Called {
    provider_name: String,
    method_name: &'static str,
    grpc_status_code: String,
}

/// Labels of the uses of a key of a KMS.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKeyId {
    transformation_type: &'static str,
    provider_name: String,
    key_id_hash: String,
    apiserver_id_hash: String,
}

/// Labels of the keys that the status of a KMS names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNamedKey {
    provider_name: String,
    key_id_hash: String,
    apiserver_id_hash: String,
}

/// Label: a KMS provider.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfProvider {
    provider_name: String,
}

/// Labels: a KMS provider and what was wrong with the key ID it told.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBadKeyId {
    provider_name: String,
    error: &'static str,
}

/// Labels of reloads of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reloaded {
    status: &'static str,
    apiserver_id_hash: String,
}

/// In which direction a value passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToStorage,
    FromStorage,
}

impl Direction {
    fn label(self) -> &'static str {
        match self {
            Self::ToStorage => "to_storage",
            Self::FromStorage => "from_storage",
        }
    }
}

fn micros() -> Histogram {
    Histogram::new(exponential_buckets(5e-6, 2.0, 25))
}

fn calls() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 2.0, 15))
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics of encryption at rest. Key IDs of a KMS appear as hashes only.
#[derive(Debug, Clone)]
pub struct SealMetrics {
    server: String,
    operations: Family<Transformed, Counter>,
    durations: Histograms<TransformedIn>,
    sealed_by_key: Family<OfKey, Counter>,
    cache_misses: Counter,
    key_generation: Histogram,
    key_generation_failures: Counter,
    kms_calls: Histograms<Called>,
    key_ids: Family<OfKeyId, Counter>,
    key_id_times: Family<OfKeyId, Gauge<f64, AtomicU64>>,
    named_key_times: Family<OfNamedKey, Gauge<f64, AtomicU64>>,
    bad_key_ids: Family<OfBadKeyId, Counter>,
    cached_seeds: Family<OfProvider, Gauge>,
    reloads: Family<Reloaded, Counter>,
    reload_times: Family<Reloaded, Gauge<f64, AtomicU64>>,
}

impl SealMetrics {
    /// For the server with this id, of which only a hash is shown.
    #[must_use]
    pub fn new(server_id: &str) -> Self {
        Self {
            server: hash(server_id),
            operations: Family::default(),
            durations: Family::new_with_constructor(micros),
            sealed_by_key: Family::default(),
            cache_misses: Counter::default(),
            key_generation: micros(),
            key_generation_failures: Counter::default(),
            kms_calls: Family::new_with_constructor(calls),
            key_ids: Family::default(),
            key_id_times: Family::default(),
            named_key_times: Family::default(),
            bad_key_ids: Family::default(),
            cached_seeds: Family::default(),
            reloads: Family::default(),
            reload_times: Family::default(),
        }
    }

    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "drydock_storage_sealed_values",
            "Values that this process sealed with a static key; for aesgcm a key must be replaced long before 2^32",
            self.sealed_by_key.clone(),
        );
        let storage = registry.sub_registry_with_prefix("apiserver_storage");
        storage.register(
            "transformation_operations",
            "Total number of transformations. Successful transformation will have a status 'OK' and a varied status string when the transformation fails.",
            self.operations.clone(),
        );
        storage.register_with_unit(
            "transformation_duration",
            "Latencies in seconds of value transformation operations",
            Unit::Seconds,
            self.durations.clone(),
        );
        storage.register(
            "envelope_transformation_cache_misses",
            "Total number of cache misses while accessing key decryption key(KEK).",
            self.cache_misses.clone(),
        );
        storage.register_with_unit(
            "data_key_generation_duration",
            "Latencies in seconds of data encryption key(DEK) generation operations",
            Unit::Seconds,
            self.key_generation.clone(),
        );
        storage.register(
            "data_key_generation_failures",
            "Total number of failed data encryption key(DEK) generation operations",
            self.key_generation_failures.clone(),
        );
        let envelope = registry.sub_registry_with_prefix("apiserver_envelope_encryption");
        envelope.register_with_unit(
            "kms_operations_latency",
            "KMS operation duration with gRPC error code status total.",
            Unit::Seconds,
            self.kms_calls.clone(),
        );
        envelope.register(
            "key_id_hash",
            "Number of times a keyID is used split by transformation type, provider, and apiserver identity.",
            self.key_ids.clone(),
        );
        envelope.register_with_unit(
            "key_id_hash_last_timestamp",
            "The last time in seconds when a keyID was used.",
            Unit::Seconds,
            self.key_id_times.clone(),
        );
        envelope.register_with_unit(
            "key_id_hash_status_last_timestamp",
            "The last time in seconds when a keyID was returned by the Status RPC call.",
            Unit::Seconds,
            self.named_key_times.clone(),
        );
        envelope.register(
            "invalid_key_id_from_status",
            "Number of times an invalid keyID is returned by the Status RPC call split by error.",
            self.bad_key_ids.clone(),
        );
        envelope.register(
            "dek_source_cache_size",
            "Number of records in data encryption key (DEK) source cache.",
            self.cached_seeds.clone(),
        );
        let reloads = registry.sub_registry_with_prefix("apiserver_encryption_config_controller");
        reloads.register(
            "automatic_reloads",
            "Total number of reload successes and failures of encryption configuration split by apiserver identity.",
            self.reloads.clone(),
        );
        reloads.register_with_unit(
            "automatic_reload_last_timestamp",
            "Timestamp of the last successful or failed automatic reload of encryption configuration split by apiserver identity.",
            Unit::Seconds,
            self.reload_times.clone(),
        );
    }

    /// A value passed, or did not.
    pub(super) fn transformed(
        &self,
        direction: Direction,
        resource: String,
        prefix: &str,
        succeeded: bool,
        seconds: f64,
    ) {
        let transformation_type = direction.label();
        let labels = Transformed {
            resource,
            status: if succeeded { "OK" } else { "Unknown" },
            transformation_type,
            transformer_prefix: prefix.to_owned(),
        };
        self.operations.get_or_create(&labels).inc();
        let labels = TransformedIn {
            transformation_type,
            transformer_prefix: prefix.to_owned(),
        };
        self.durations.get_or_create(&labels).observe(seconds);
    }

    /// A static key sealed a value.
    pub(super) fn sealed_by(&self, key: &str) {
        let labels = OfKey { key: key.to_owned() };
        self.sealed_by_key.get_or_create(&labels).inc();
    }

    /// The plugin is asked, since the cache has no such seed.
    pub(super) fn missed(&self) {
        self.cache_misses.inc();
    }

    /// A seed was made, or not.
    pub(super) fn generated(&self, seconds: Option<f64>) {
        match seconds {
            Some(seconds) => self.key_generation.observe(seconds),
            None => {
                self.key_generation_failures.inc();
            }
        }
    }

    /// A call of a plugin ended.
    pub(super) fn called(&self, provider: &str, method_name: &'static str, code: String, seconds: f64) {
        let labels = Called {
            provider_name: provider.to_owned(),
            method_name,
            grpc_status_code: code,
        };
        self.kms_calls.get_or_create(&labels).observe(seconds);
    }

    /// A value was sealed or opened under a key of a plugin.
    pub(super) fn used_key(&self, direction: Direction, provider: &str, key_id_hash: &str, now_ms: u64) {
        let labels = OfKeyId {
            transformation_type: direction.label(),
            provider_name: provider.to_owned(),
            key_id_hash: key_id_hash.to_owned(),
            apiserver_id_hash: self.server.clone(),
        };
        self.key_ids.get_or_create(&labels).inc();
        self.key_id_times.get_or_create(&labels).set(seconds(now_ms));
    }

    /// The status of a plugin named a key.
    pub(super) fn named_key(&self, provider: &str, key_id_hash: &str, now_ms: u64) {
        let labels = OfNamedKey {
            provider_name: provider.to_owned(),
            key_id_hash: key_id_hash.to_owned(),
            apiserver_id_hash: self.server.clone(),
        };
        self.named_key_times.get_or_create(&labels).set(seconds(now_ms));
    }

    /// A plugin told a key ID that is not one.
    pub(super) fn bad_key_id(&self, provider: &str, error: &'static str) {
        let provider_name = provider.to_owned();
        self.bad_key_ids
            .get_or_create(&OfBadKeyId { provider_name, error })
            .inc();
    }

    /// How many seeds of a plugin are in memory.
    pub(super) fn cached(&self, provider: &str, seeds: usize) {
        let provider_name = provider.to_owned();
        let count = i64::try_from(seeds).unwrap_or(i64::MAX);
        self.cached_seeds
            .get_or_create(&OfProvider { provider_name })
            .set(count);
    }

    /// The configuration was loaded again, or could not be.
    pub fn reloaded(&self, succeeded: bool, now_ms: u64) {
        let labels = Reloaded {
            status: if succeeded { "success" } else { "failure" },
            apiserver_id_hash: self.server.clone(),
        };
        self.reloads.get_or_create(&labels).inc();
        self.reload_times.get_or_create(&labels).set(seconds(now_ms));
    }
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}

/// How an id is shown: `sha256:` and its digest.
pub(super) fn hash(id: &str) -> String {
    if id.is_empty() {
        return String::new();
    }
    format!("sha256:{}", hex(&Sha256::digest(id.as_bytes())))
}
