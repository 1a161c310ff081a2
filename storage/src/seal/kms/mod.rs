//! Keys of a key management service, version 2 of Kubernetes' protocol.
//!
//! The service seals nothing but a *seed*, once when it is reached first and once for each key it changes to. Every value has
//! a key of its own, derived from the seed, so writes never wait for the service, and reads only for the first value under a
//! seed that this process does not know: seeds are kept for a day after their last use.
//!
//! A thread asks the service for its status, every 20 s while it is well and every 3 s while it is not. That answers the
//! health check, notices another key, and extends the permission to seal: it ends 3 minutes after the last good answer, so
//! that a key which was withdrawn is not used for long. Values under known seeds open all the while.

mod client;
mod envelope;
#[cfg(feature = "conformance")]
pub mod plugin;
mod seeds;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use drydock_proto::kms::v2::{EncryptResponse, EncryptedDekSourceType, EncryptedObject, StatusResponse};
use zeroize::Zeroizing;

use super::cipher::{Cipher, CipherKind, derived};
use super::metrics::{Direction, SealMetrics, hash};
use super::random;
use crate::clock::{Clock, Stopwatch};
use crate::sync::lock;
use client::Client;
pub use client::{BadEndpoint, Endpoint};
use seeds::Seeds;

pub use envelope::decode as decode_envelope;

/// How long values may be sealed after the last good status.
const SEAL_FOR: Duration = Duration::from_mins(3);
/// How often the status is asked for while the service is well, and while it is not.
const ASK_EVERY: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(3));
/// The versions of the protocol.
const VERSIONS: [&str; 2] = ["v2", "v2beta1"];

/// What the service does, for the part that does not care how it is reached. All calls block, for a bounded time.
trait KeyService: Send + Sync {
    fn status(&self) -> Result<StatusResponse, String>;
    fn encrypt(&self, plaintext: &[u8]) -> Result<EncryptResponse, String>;
    fn decrypt(
        &self,
        ciphertext: &[u8],
        key_id: &str,
        annotations: &BTreeMap<String, Vec<u8>>,
    ) -> Result<Zeroizing<Vec<u8>>, String>;
}

/// Where a key service is, and how long a call may take.
#[derive(Debug, Clone)]
pub struct KmsOptions {
    /// Its name in the configuration, part of what is stored.
    pub name: String,
    /// Its socket.
    pub endpoint: Endpoint,
    /// The deadline of a call.
    pub timeout: Duration,
}

/// The seed that seals, with everything that is stored beside a value.
struct State {
    key_id: String,
    key_id_hash: String,
    source: Vec<u8>,
    annotations: BTreeMap<String, Vec<u8>>,
    seed: Zeroizing<Vec<u8>>,
    /// Until when it seals: milliseconds of the clock's uptime and of its wall time.
    until_ms: AtomicU64,
    until_wall_ms: AtomicU64,
}

/// What the last question for the status found.
#[derive(Debug, Clone, Default)]
struct Health {
    /// Why it is not well; none if it is. Not well before the first answer.
    trouble: Option<String>,
    /// The version of the protocol of the first good answer.
    version: Option<String>,
    /// Whether the service was asked at all.
    is_asked: bool,
}

/// A key service.
pub struct Kms {
    name: String,
    prefix: String,
    service: Box<dyn KeyService>,
    state: ArcSwapOption<State>,
    seeds: Seeds,
    health: Mutex<Health>,
    /// One question for the status at a time.
    asking: Mutex<()>,
    clock: Arc<dyn Clock>,
    metrics: SealMetrics,
    generation: Arc<AtomicU64>,
    /// Dropped with this: ends the thread.
    stop: Mutex<Option<SyncSender<()>>>,
}

impl fmt::Debug for Kms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kms").field(&self.prefix).finish()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Kms {
    /// Reaches for a service: asks for its status once, which takes as long as its timeout if it does not answer, and goes on
    /// asking on a thread. `generation` is counted up when values may open that did not before.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(
        options: KmsOptions,
        generation: Arc<AtomicU64>,
        clock: Arc<dyn Clock>,
        metrics: SealMetrics,
    ) -> std::io::Result<Arc<Self>> {
        let name = options.name.clone();
        let client = Client::new(options, metrics.clone())?;
        let kms = Arc::new(Self::over(&name, Box::new(client), generation, clock, metrics));
        kms.ask();
        let (stop, stopped) = sync_channel::<()>(1);
        let weak: Weak<Self> = Arc::downgrade(&kms);
        let run = move || {
            let mut pause = ASK_EVERY.1;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                let Some(kms) = weak.upgrade() else { return };
                kms.ask();
                pause = if kms.trouble().is_none() {
                    ASK_EVERY.0
                } else {
                    ASK_EVERY.1
                };
            }
        };
        std::thread::Builder::new()
            .name("kms-status".to_owned())
            .spawn(run)?;
        *lock(&kms.stop) = Some(stop);
        Ok(kms)
    }

    fn over(
        name: &str,
        service: Box<dyn KeyService>,
        generation: Arc<AtomicU64>,
        clock: Arc<dyn Clock>,
        metrics: SealMetrics,
    ) -> Self {
        Self {
            name: name.to_owned(),
            prefix: format!("k8s:enc:kms:v2:{name}:"),
            service,
            state: ArcSwapOption::empty(),
            seeds: Seeds::default(),
            health: Mutex::default(),
            asking: Mutex::default(),
            clock,
            metrics,
            generation,
            stop: Mutex::default(),
        }
    }

    /// What every value of this provider begins with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name in the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why the service is not well, as of the last question; none if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let health = lock(&self.health);
        if !health.is_asked {
            return Some("its status is not known yet".to_owned());
        }
        health.trouble.clone()
    }

    /// Asks for the status now, and follows it. Blocks for at most the timeouts of two calls.
    pub fn ask(&self) {
        let _one = lock(&self.asking);
        let outcome = self.service.status();
        let trouble = match &outcome {
            Err(error) => Some(format!(
                "failed to perform status section of the healthz check for KMS Provider {}, error: {error}",
                self.name
            )),
            Ok(status) => self.unwell(status),
        };
        let is_well = trouble.is_none();
        let was_well = {
            let mut health = lock(&self.health);
            let was_well = health.is_asked && health.trouble.is_none();
            if let Ok(status) = &outcome
                && is_well
            {
                health.version.get_or_insert_with(|| status.version.clone());
            }
            (health.is_asked, health.trouble) = (true, trouble.clone());
            was_well
        };
        match trouble {
            Some(trouble) if was_well => {
                tracing::error!(provider = self.name, trouble, "the KMS is not well");
            }
            Some(trouble) => {
                tracing::debug!(provider = self.name, trouble, "the KMS is not well");
            }
            None if !was_well => {
                tracing::info!(provider = self.name, "the KMS is well");
            }
            None => {}
        }
        if let Ok(status) = outcome
            && is_well
        {
            self.follow(&status.key_id);
            if !was_well {
                self.seeds.forget_failures();
                self.generation.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Why a status is none of a service that is well.
    fn unwell(&self, status: &StatusResponse) -> Option<String> {
        let mut errors = Vec::new();
        if status.healthz != "ok" {
            errors.push(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !VERSIONS.contains(&status.version.as_str()) {
            let version = &status.version;
            errors.push(format!(
                "expected KMSv2 API version {}, got {version}",
                VERSIONS.join(" or ")
            ));
        } else if let Some(before) = &lock(&self.health).version
            && *before != status.version
        {
            errors.push(format!(
                "KMSv2 API version should not change after the initial status call, expected {before}, got {}",
                status.version
            ));
        }
        if let Err((code, error)) = envelope::check_key_id(&status.key_id) {
            self.metrics.bad_key_id(&self.name, code);
            errors.push(format!("invalid KMSv2 KeyID {error}"));
        }
        match errors.as_slice() {
            [] => None,
            errors => Some(format!(
                "kmsv2 Provider {} is not healthy, error: {}",
                self.name,
                errors.join(", ")
            )),
        }
    }

    /// Goes on sealing under the current key, or begins to seal under another one.
    fn follow(&self, key_id: &str) {
        if let Some(state) = &*self.state.load()
            && state.key_id == key_id
        {
            self.extend(state);
            return;
        }
        let since = Stopwatch::start();
        match self.new_state(key_id) {
            Ok(state) => {
                self.metrics.generated(Some(since.elapsed().as_secs_f64()));
                tracing::info!(
                    provider = self.name,
                    key = state.key_id_hash,
                    "values are sealed under another key of the KMS from now on"
                );
                self.state.store(Some(Arc::new(state)));
                self.generation.fetch_add(1, Ordering::AcqRel);
            }
            Err(error) => {
                self.metrics.generated(None);
                tracing::error!(
                    provider = self.name,
                    error,
                    key = hash(key_id),
                    "the KMS names another key but does not seal with it: the current seed is used until it expires"
                );
            }
        }
    }

    fn extend(&self, state: &State) {
        let until = self.clock.uptime() + SEAL_FOR;
        state.until_ms.store(millis(until), Ordering::Release);
        let wall = self.clock.now_ms().saturating_add(millis(SEAL_FOR));
        state.until_wall_ms.store(wall, Ordering::Release);
    }

    /// A new seed under the service's key.
    fn new_state(&self, key_id: &str) -> Result<State, String> {
        let seed: [u8; derived::LENGTH] = random().ok_or("the system provides no randomness")?;
        let seed = Zeroizing::new(seed.to_vec());
        let answer = self
            .service
            .encrypt(&seed)
            .map_err(|error| format!("failed to encrypt DEK, error: {error}"))?;
        if answer.key_id != key_id {
            return Err(format!(
                "keyID hash {} from Encrypt does not match {} from Status",
                hash(&answer.key_id),
                hash(key_id)
            ));
        }
        let object = EncryptedObject {
            // Anything that is not empty.
            encrypted_data: vec![0],
            key_id: answer.key_id,
            encrypted_dek_source: answer.ciphertext,
            annotations: answer.annotations,
            encrypted_dek_source_type: EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed.into(),
        };
        envelope::check(&object)?;
        self.seeds.put(&object, seed.clone(), self.clock.uptime());
        self.metrics.cached(&self.name, self.seeds.count());
        let state = State {
            key_id_hash: hash(&object.key_id),
            key_id: object.key_id,
            source: object.encrypted_dek_source,
            annotations: object.annotations,
            seed,
            until_ms: AtomicU64::new(0),
            until_wall_ms: AtomicU64::new(0),
        };
        self.extend(&state);
        Ok(state)
    }

    fn state(&self) -> Result<Arc<State>, String> {
        let state = self.state.load_full();
        // As kube-apiserver says it.
        state.ok_or_else(|| "got unexpected nil transformer".to_owned())
    }

    /// Seals a payload. Never calls the service.
    pub(super) fn seal(&self, key: &str, plain: &[u8]) -> Result<Vec<u8>, String> {
        let state = self.state()?;
        if millis(self.clock.uptime()) > state.until_ms.load(Ordering::Acquire) {
            return Err(format!(
                "encryptedDEKSource with keyID hash {:?} expired at {} (current time is {})",
                state.key_id_hash,
                rfc3339(state.until_wall_ms.load(Ordering::Acquire)),
                rfc3339(self.clock.now_ms()),
            ));
        }
        let object = EncryptedObject {
            encrypted_data: derived::seal(&state.seed, key.as_bytes(), plain)?,
            key_id: state.key_id.clone(),
            encrypted_dek_source: state.source.clone(),
            annotations: state.annotations.clone(),
            encrypted_dek_source_type: EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed.into(),
        };
        let now = self.clock.now_ms();
        self.metrics
            .used_key(Direction::ToStorage, &self.name, &state.key_id_hash, now);
        Ok(envelope::encode(&object))
    }

    /// Opens a payload. Calls the service for a seed that is not known.
    pub(super) fn open(&self, key: &str, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let object = envelope::decode(sealed)?;
        // Nothing is asked before the service was found well once: a start would wait for every value.
        self.state()?;
        let decrypt = || {
            self.metrics.missed();
            let seed =
                self.service
                    .decrypt(&object.encrypted_dek_source, &object.key_id, &object.annotations);
            seed.map_err(|error| format!("failed to decrypt DEK, error: {error}"))
        };
        let seed = self.seeds.get(&object, self.clock.as_ref(), decrypt)?;
        self.metrics.cached(&self.name, self.seeds.count());
        let now = self.clock.now_ms();
        self.metrics
            .used_key(Direction::FromStorage, &self.name, &hash(&object.key_id), now);
        let bound = key.as_bytes();
        if is_seed(&object) {
            return derived::open(&seed, bound, object.encrypted_data);
        }
        let cipher = Cipher::new(CipherKind::AesGcm, &seed).ok_or("the DEK has an invalid length")?;
        cipher.open(bound, object.encrypted_data)
    }

    /// Whether a payload of this provider was sealed under another key than the current one, or in the older way.
    pub(super) fn is_stale(&self, sealed: &[u8]) -> bool {
        let Some(state) = &*self.state.load() else {
            return false;
        };
        envelope::decode(sealed).is_ok_and(|object| object.key_id != state.key_id || !is_seed(&object))
    }
}

fn is_seed(object: &EncryptedObject) -> bool {
    object.encrypted_dek_source_type() == EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed
}

/// A time of the wall clock, in seconds.
fn rfc3339(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |time| time.to_string())
}

#[cfg(test)]
mod tests;
