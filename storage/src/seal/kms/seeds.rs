//! Seeds that were opened by the service.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_proto::kms::v2::EncryptedObject;
use prost::Message as _;
use tokio::runtime::{Handle, RuntimeFlavor};
use zeroize::Zeroizing;

use crate::clock::Clock;
use crate::sync::lock;

/// How long a seed is kept after its last use.
const KEEP: Duration = Duration::from_hours(24);
/// How long the service is not asked again for a seed that it did not open, after its first refusal and at most; each refusal
/// doubles it. All values under the seed fail at once meanwhile, not one after the other.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// The most seeds that are kept. A server adds one at each start and each change of the key.
const MOST: usize = 10_000;

type Seed = Zeroizing<Vec<u8>>;

/// Why there is no seed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoSeed {
    /// The service did not return one.
    Refused(String),
    /// The service was not asked.
    NotAsked(String),
}

/// What the service returned for a seed.
struct Answer {
    seed: Seed,
    /// Until when it is used although no value has opened with it; none once one has.
    unproven_until: Option<Duration>,
}

/// A refusal of the service.
struct Refusal {
    error: String,
    /// How long it is not asked again, and until when.
    pause: Duration,
    until: Duration,
}

/// What is known of a seed. Locked while the service is asked for it, so that it is asked once.
#[derive(Default)]
struct Known {
    answer: Option<Answer>,
    refusal: Option<Refusal>,
    used: Duration,
}

impl Known {
    /// The seed that may be tried.
    fn seed(&self, now: Duration) -> Option<Seed> {
        let answer = self.answer.as_ref()?;
        let is_usable = answer.unproven_until.is_none_or(|until| now < until);
        is_usable.then(|| answer.seed.clone())
    }

    /// The seed, from the service if need be.
    fn ask(
        &mut self,
        clock: &dyn Clock,
        decrypt: impl FnOnce() -> Result<Seed, NoSeed>,
    ) -> Result<Seed, String> {
        if let Some(seed) = self.seed(clock.uptime()) {
            return Ok(seed);
        }
        if let Some(refusal) = &self.refusal
            && clock.uptime() < refusal.until
        {
            return Err(refusal.error.clone());
        }
        match decrypt() {
            Ok(seed) => {
                self.answer = Some(Answer {
                    seed: seed.clone(),
                    unproven_until: Some(clock.uptime() + ASK_AGAIN.0),
                });
                Ok(seed)
            }
            Err(NoSeed::NotAsked(error)) => Err(error),
            Err(NoSeed::Refused(error)) => {
                let pause = self.refusal.as_ref().map_or(ASK_AGAIN.0, |before| {
                    before.pause.saturating_mul(2).min(ASK_AGAIN.1)
                });
                self.refusal = Some(Refusal {
                    error: error.clone(),
                    pause,
                    until: clock.uptime() + pause,
                });
                Err(error)
            }
        }
    }

    /// A value opened with the seed.
    fn prove(&mut self, seed: &Seed) {
        if let Some(answer) = &mut self.answer
            && answer.seed == *seed
        {
            answer.unproven_until = None;
            self.refusal = None;
        }
    }
}

/// The seeds, by everything that the service needs to open them.
#[derive(Default)]
pub(super) struct Seeds {
    known: Mutex<HashMap<Vec<u8>, Arc<Mutex<Known>>>>,
}

/// What names a seed: everything of an object but its data.
fn name(object: &EncryptedObject) -> Vec<u8> {
    EncryptedObject {
        encrypted_data: Vec::new(),
        key_id: object.key_id.clone(),
        encrypted_dek_source: object.encrypted_dek_source.clone(),
        annotations: object.annotations.clone(),
        encrypted_dek_source_type: object.encrypted_dek_source_type,
    }
    .encode_to_vec()
}

impl Seeds {
    /// How many seeds are kept.
    pub(super) fn count(&self) -> usize {
        lock(&self.known).len()
    }

    /// Keeps a seed that the service is known to open.
    pub(super) fn put(&self, object: &EncryptedObject, seed: Seed, now: Duration) {
        let known = self.entry(object, now);
        let mut known = lock(&known);
        known.answer = Some(Answer {
            seed,
            unproven_until: None,
        });
        known.refusal = None;
    }

    /// The place of a seed; makes room for a new one.
    fn entry(&self, object: &EncryptedObject, now: Duration) -> Arc<Mutex<Known>> {
        let name = name(object);
        let mut all = lock(&self.known);
        if let Some(known) = all.get(&name) {
            return Arc::clone(known);
        }
        // One that is locked is in use.
        let used = |known: &Arc<Mutex<Known>>| known.try_lock().map_or(now, |known| known.used);
        all.retain(|_, known| now.saturating_sub(used(known)) < KEEP);
        if all.len() >= MOST
            && let Some(oldest) = all
                .iter()
                .min_by_key(|(_, known)| used(known))
                .map(|(name, _)| name.clone())
        {
            all.remove(&oldest);
        }
        let known = Arc::new(Mutex::new(Known {
            used: now,
            ..Known::default()
        }));
        all.insert(name, Arc::clone(&known));
        known
    }

    /// Opens an object with its seed; `decrypt` asks the service for it. A seed is kept once a value opened with it, and a
    /// wrong one for a moment only: the service may know better the next time.
    pub(super) fn open(
        &self,
        object: &EncryptedObject,
        clock: &dyn Clock,
        decrypt: impl FnOnce() -> Result<Seed, NoSeed>,
        attempt: impl Fn(&[u8]) -> Result<Vec<u8>, String>,
    ) -> Result<Vec<u8>, String> {
        let now = clock.uptime();
        let entry = self.entry(object, now);
        let at_once = entry.try_lock().ok().and_then(|mut known| {
            known.used = now;
            let is_proven = known
                .answer
                .as_ref()
                .is_some_and(|answer| answer.unproven_until.is_none());
            known.seed(now).map(|seed| (seed, is_proven))
        });
        let (seed, is_proven) = match at_once {
            Some(known) => known,
            None => (while_blocking(|| lock(&entry).ask(clock, decrypt))?, false),
        };
        let plain = attempt(&seed)?;
        if !is_proven {
            lock(&entry).prove(&seed);
        }
        Ok(plain)
    }
}

/// Waits without holding up the tasks of a runtime.
fn while_blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
