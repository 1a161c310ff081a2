//! Keys of a key management service, version 2 of Kubernetes' protocol.
//!
//! The service seals nothing but a *seed*, once when it is reached first and once for each key it changes to. Every value has
//! a key of its own, derived from the seed, so writes never wait for the service, and reads only for the first value under a
//! seed that this process does not know: seeds are kept for a day after their last use.
//!
//! A thread asks the service for its status, every 20 s while it is well and every 3 s while it is not. That answers the
//! health check, notices another key, and extends the permission to seal: it ends 3 minutes after the last good answer, so
//! that a key which was withdrawn is not used for long. Values under known seeds open all the while. A service is well only
//! once it sealed a seed under the key it names, and opened it again.
//!
//! A call that gets no answer begins an *outage*: further seeds are refused at once, instead of each after the timeout of a
//! call, until the thread finds that the service answers again. A service that answers need not be well.

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
use seeds::{NoSeed, Seeds};

pub use envelope::decode as decode_envelope;

/// How long values may be sealed after the last good status.
const SEAL_FOR: Duration = Duration::from_mins(3);
/// How often the status is asked for while the service is well, and while it is not.
const ASK_EVERY: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(3));
/// What Decrypt returned is not what Encrypt was given.
const OTHER_SEED: &str = "the service returned another DEK than it was given";
/// What Decrypt returned is no key.
const BAD_KEY: &str = "the DEK has an invalid length";
/// The versions of the protocol.
const VERSIONS: [&str; 2] = ["v2", "v2beta1"];

/// Why a call of the service failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
struct CallError {
    /// As Go's gRPC shows it.
    text: String,
    /// The service did not answer, or hardly in time. Otherwise it refused this one request.
    is_outage: bool,
}

impl CallError {
    /// The service answered, and did something else than it should.
    fn wrong(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_outage: false,
        }
    }

    /// The same, with what was tried before its text.
    fn within(self, what: &str) -> Self {
        Self {
            text: format!("{what}, error: {}", self.text),
            ..self
        }
    }
}

/// What the service does, for the part that does not care how it is reached. All calls block, for a bounded time.
trait KeyService: Send + Sync {
    fn status(&self) -> Result<StatusResponse, CallError>;
    fn encrypt(&self, plaintext: &[u8]) -> Result<EncryptResponse, CallError>;
    fn decrypt(
        &self,
        ciphertext: &[u8],
        key_id: &str,
        annotations: &BTreeMap<String, Vec<u8>>,
    ) -> Result<Zeroizing<Vec<u8>>, CallError>;
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

impl State {
    /// Goes on sealing, for a while from the moment of the question that had a good answer.
    fn extend(&self, asked: Moment) {
        let until = asked.uptime.saturating_add(SEAL_FOR);
        self.until_ms.store(millis(until), Ordering::Release);
        let wall = asked.wall_ms.saturating_add(millis(SEAL_FOR));
        self.until_wall_ms.store(wall, Ordering::Release);
    }
}

/// A moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct Moment {
    uptime: Duration,
    wall_ms: u64,
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
    /// Why seeds are not asked for: a call got no answer, and none since did.
    outage: Mutex<Option<String>>,
    /// One question for the status at a time.
    asking: Mutex<()>,
    clock: Arc<dyn Clock>,
    metrics: SealMetrics,
    generation: Arc<AtomicU64>,
    /// Makes the thread ask now; dropped with this, ends it.
    wake: Mutex<Option<SyncSender<()>>>,
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
        let (wake, woken) = sync_channel::<()>(1);
        let weak: Weak<Self> = Arc::downgrade(&kms);
        let run = move || {
            let mut pause = ASK_EVERY.1;
            loop {
                if let Err(RecvTimeoutError::Disconnected) = woken.recv_timeout(pause) {
                    return;
                }
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
        *lock(&kms.wake) = Some(wake);
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
            outage: Mutex::default(),
            asking: Mutex::default(),
            clock,
            metrics,
            generation,
            wake: Mutex::default(),
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

    /// Asks for the status now, and follows it: seals and opens a seed under another key, and opens the current one again after
    /// an outage. Blocks for at most the timeouts of three calls.
    pub fn ask(&self) {
        let _one = lock(&self.asking);
        let asked = Moment {
            uptime: self.clock.uptime(),
            wall_ms: self.clock.now_ms(),
        };
        // One that begins meanwhile is a matter of the next question.
        let was_out = lock(&self.outage).is_some();
        let outcome = self.service.status();
        let (trouble, answers) = match &outcome {
            Err(error) => {
                if error.is_outage {
                    self.begin_outage(&error.text);
                }
                let name = &self.name;
                let what =
                    format!("failed to perform status section of the healthz check for KMS Provider {name}");
                let answers = !error.is_outage && self.answers_again(was_out);
                (Some(error.clone().within(&what).text), answers)
            }
            Ok(status) => match self.unwell(status) {
                Some(trouble) => (Some(trouble), self.answers_again(was_out)),
                None => self.follow(&status.key_id, asked, was_out),
            },
        };
        let was_well = {
            let mut health = lock(&self.health);
            let was_well = health.is_asked && health.trouble.is_none();
            if let Ok(status) = &outcome
                && trouble.is_none()
            {
                health.version.get_or_insert_with(|| status.version.clone());
            }
            (health.is_asked, health.trouble) = (true, trouble.clone());
            was_well
        };
        if answers && was_out {
            *lock(&self.outage) = None;
            tracing::info!(provider = self.name, "the KMS answers again");
        }
        if trouble.is_none() && (was_out || !was_well) {
            self.seeds.end_pauses();
        }
        if (answers && was_out) || (trouble.is_none() && !was_well) {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        match trouble {
            Some(trouble) if was_well => {
                tracing::error!(provider = self.name, trouble, "the KMS is not well");
            }
            Some(trouble) => {
                tracing::debug!(provider = self.name, trouble, "the KMS is not well");
            }
            None if !was_well => tracing::info!(provider = self.name, "the KMS is well"),
            None => {}
        }
    }

    /// No seed is asked for until a question for the status finds that the service answers.
    fn begin_outage(&self, why: &str) {
        let mut outage = lock(&self.outage);
        if outage.is_none() {
            tracing::warn!(
                provider = self.name,
                why,
                "the KMS does not answer: seeds are not asked for until it does"
            );
            *outage = Some(why.to_owned());
        }
    }

    /// Asks on the thread now, instead of at its next turn.
    fn wake(&self) {
        if let Some(wake) = &*lock(&self.wake) {
            // Full: it will ask.
            let _woken = wake.try_send(());
        }
    }

    /// Why a status is none of a service that is well.
    fn unwell(&self, status: &StatusResponse) -> Option<String> {
        let mut errors = Vec::new();
        if status.healthz != "ok" {
            errors.push(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !VERSIONS.contains(&status.version.as_str()) {
            let [expected, _] = VERSIONS;
            let version = &status.version;
            errors.push(format!("expected KMSv2 API version {expected}, got {version}"));
        } else if let Some(before) = &lock(&self.health).version
            && *before != status.version
        {
            errors.push(format!(
                "KMSv2 API version should not change after the initial status response version {before}, got {}",
                status.version
            ));
        }
        match envelope::check_key_id(&status.key_id) {
            Ok(()) => self
                .metrics
                .named_key(&self.name, &hash(&status.key_id), self.clock.now_ms()),
            Err((code, error)) => {
                self.metrics.bad_key_id(&self.name, code);
                errors.push(format!(
                    "got invalid KMSv2 KeyID hash {:?}: {error}",
                    hash(&status.key_id)
                ));
            }
        }
        match errors.as_slice() {
            [] => None,
            [one] => Some(self.not_healthy(one)),
            several => Some(self.not_healthy(&format!("[{}]", several.join(", ")))),
        }
    }

    fn not_healthy(&self, error: &str) -> String {
        format!("kmsv2 Provider {} is not healthy, error: {error}", self.name)
    }

    /// Goes on sealing under the current key, or begins to seal under another one. Returns why the service is not well, if it
    /// does not do what it says: then the seed before is used until it expires. Returns, too, whether it answers.
    fn follow(&self, key_id: &str, asked: Moment, was_out: bool) -> (Option<String>, bool) {
        if let Some(state) = &*self.state.load()
            && state.key_id == key_id
        {
            state.extend(asked);
            return match was_out.then(|| self.open_again(state)) {
                Some(Err(error)) => (Some(error.text), !error.is_outage),
                Some(Ok(())) | None => (None, true),
            };
        }
        let since = Stopwatch::start();
        match self.new_state(key_id, asked) {
            Ok(state) => {
                self.metrics.generated(Some(since.elapsed().as_secs_f64()));
                tracing::info!(
                    provider = self.name,
                    key = state.key_id_hash,
                    "values are sealed under another key of the KMS from now on"
                );
                self.state.store(Some(Arc::new(state)));
                self.generation.fetch_add(1, Ordering::AcqRel);
                (None, true)
            }
            Err(error) => {
                self.metrics.generated(None);
                let answers = !error.is_outage && self.answers_again(was_out);
                let before = self.state.load();
                let before = before.as_ref().map_or("", |state| &state.key_id_hash);
                let trouble = self.not_healthy(&format!(
                    "failed to rotate DEK: {error}, statusKeyIDHash={:?}, stateKeyIDHash={before:?}",
                    hash(key_id)
                ));
                (Some(trouble), answers)
            }
        }
    }

    /// Whether a service that is not well, and that just answered, answers Decrypt, too, after an outage.
    fn answers_again(&self, was_out: bool) -> bool {
        let state = self.state.load();
        match &*state {
            Some(state) if was_out => !matches!(self.open_again(state), Err(error) if error.is_outage),
            // Nothing is asked of a service that was never well.
            _ => true,
        }
    }

    /// Has the service open the current seed, after an outage: its status alone does not show that it would open another one.
    /// Returns why it does not.
    fn open_again(&self, state: &State) -> Result<(), CallError> {
        let opened = self
            .service
            .decrypt(&state.source, &state.key_id, &state.annotations);
        let error = match opened {
            Ok(seed) if *seed == *state.seed => return Ok(()),
            Ok(_) => CallError::wrong(OTHER_SEED),
            Err(error) => error,
        };
        let name = &self.name;
        Err(error.within(&format!(
            "failed to perform decrypt section of the healthz check for KMS Provider {name}"
        )))
    }

    /// A new seed under the service's key, which the service has opened again.
    fn new_state(&self, key_id: &str, asked: Moment) -> Result<State, CallError> {
        let seed: [u8; derived::LENGTH] =
            random().ok_or_else(|| CallError::wrong("the system provides no randomness"))?;
        let seed = Zeroizing::new(seed.to_vec());
        let answer = self
            .service
            .encrypt(&seed)
            .map_err(|error| error.within("failed to encrypt DEK"))?;
        if answer.key_id != key_id {
            return Err(CallError::wrong(format!(
                "keyID hash {} from Encrypt does not match {} from Status",
                hash(&answer.key_id),
                hash(key_id)
            )));
        }
        let object = EncryptedObject {
            // Anything that is not empty.
            encrypted_data: vec![0],
            key_id: answer.key_id,
            encrypted_dek_source: answer.ciphertext,
            annotations: answer.annotations,
            encrypted_dek_source_type: EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed.into(),
        };
        envelope::check(&object).map_err(CallError::wrong)?;
        // What it does not open would be lost with this process.
        let opened = self
            .service
            .decrypt(&object.encrypted_dek_source, &object.key_id, &object.annotations)
            .map_err(|error| error.within("failed to decrypt DEK"))?;
        if *opened != *seed {
            return Err(CallError::wrong(OTHER_SEED));
        }
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
        state.extend(asked);
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
        let bound = key.as_bytes();
        let attempt = |seed: &[u8]| {
            let data = object.encrypted_data.clone();
            if is_seed(&object) {
                return derived::open(seed, bound, data);
            }
            let cipher = Cipher::new(CipherKind::AesGcm, seed).ok_or(BAD_KEY)?;
            cipher.open(bound, data)
        };
        let opened = self
            .seeds
            .open(&object, self.clock.as_ref(), || self.decrypt(&object), attempt);
        self.metrics.cached(&self.name, self.seeds.count());
        if opened.is_ok() {
            let now = self.clock.now_ms();
            self.metrics
                .used_key(Direction::FromStorage, &self.name, &hash(&object.key_id), now);
        }
        opened
    }

    /// Has the service open a seed, unless it is known not to answer.
    fn decrypt(&self, object: &EncryptedObject) -> Result<Zeroizing<Vec<u8>>, NoSeed> {
        let failed = |error: &str| format!("failed to decrypt DEK, error: {error}");
        if let Some(why) = &*lock(&self.outage) {
            return Err(NoSeed::NotAsked(failed(why)));
        }
        self.metrics.missed();
        let opened = self
            .service
            .decrypt(&object.encrypted_dek_source, &object.key_id, &object.annotations);
        let seed = opened.map_err(|error| {
            if error.is_outage {
                self.begin_outage(&error.text);
                self.wake();
            }
            NoSeed::Refused(failed(&error.text))
        })?;
        let length = seed.len();
        if is_seed(object) && length < derived::LENGTH {
            let error = format!("invalid seed length {length} used for key generation");
            return Err(NoSeed::Refused(error));
        }
        if !is_seed(object) && !CipherKind::AesGcm.key_lengths().contains(&length) {
            return Err(NoSeed::Refused(BAD_KEY.to_owned()));
        }
        Ok(seed)
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
