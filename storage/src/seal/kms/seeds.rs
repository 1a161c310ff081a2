//! Seeds that were opened by the service.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
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
/// How long the service is not asked again for a seed that it refused, or returned wrongly, after the first time and at most;
/// each time doubles it. All values under the seed fail at once meanwhile, not one after the other.
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
    /// How long it is used although no value has opened with it; none once one has.
    unproven: Option<Pause>,
}

/// A refusal of the service.
struct Refusal {
    error: String,
    pause: Pause,
}

/// How long the service is not asked again.
struct Pause {
    until: Duration,
    /// It ends with the era in which the service was asked.
    era: u64,
}

impl Pause {
    fn lasts(&self, at: At) -> bool {
        self.era == at.era && at.now < self.until
    }
}

/// When something is asked for.
#[derive(Clone, Copy)]
struct At {
    now: Duration,
    era: u64,
}

/// What is known of a seed. Locked while the service is asked for it, so that it is asked once.
#[derive(Default)]
struct Known {
    answer: Option<Answer>,
    refusal: Option<Refusal>,
    /// The length of the last pause; 0: none since a value opened.
    paused: Duration,
    used: Duration,
}

impl Known {
    /// The seed that may be tried.
    fn seed(&self, at: At) -> Option<Seed> {
        let answer = self.answer.as_ref()?;
        let is_usable = answer.unproven.as_ref().is_none_or(|pause| pause.lasts(at));
        is_usable.then(|| answer.seed.clone())
    }

    /// The pause after another answer that no value opened with, asked for in this era.
    fn pause(&mut self, now: Duration, era: u64) -> Pause {
        self.paused = self.paused.saturating_mul(2).clamp(ASK_AGAIN.0, ASK_AGAIN.1);
        Pause {
            until: now.saturating_add(self.paused),
            era,
        }
    }

    /// The seed, from the service if need be.
    fn ask(
        &mut self,
        clock: &dyn Clock,
        era: u64,
        decrypt: impl FnOnce() -> Result<Seed, NoSeed>,
    ) -> Result<Seed, String> {
        let at = At {
            now: clock.uptime(),
            era,
        };
        if let Some(seed) = self.seed(at) {
            return Ok(seed);
        }
        if let Some(refusal) = &self.refusal
            && refusal.pause.lasts(at)
        {
            return Err(refusal.error.clone());
        }
        match decrypt() {
            Ok(seed) => {
                let unproven = Some(self.pause(clock.uptime(), era));
                self.answer = Some(Answer {
                    seed: seed.clone(),
                    unproven,
                });
                Ok(seed)
            }
            Err(NoSeed::NotAsked(error)) => Err(error),
            Err(NoSeed::Refused(error)) => {
                let pause = self.pause(clock.uptime(), era);
                self.refusal = Some(Refusal {
                    error: error.clone(),
                    pause,
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
            answer.unproven = None;
            self.refusal = None;
            self.paused = Duration::ZERO;
        }
    }
}

/// The seeds, by everything that the service needs to open them.
#[derive(Default)]
pub(super) struct Seeds {
    known: Mutex<HashMap<Vec<u8>, Arc<Mutex<Known>>>>,
    /// Counts how often the service became well.
    era: AtomicU64,
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
        known.answer = Some(Answer { seed, unproven: None });
        known.refusal = None;
        known.paused = Duration::ZERO;
    }

    /// Ends every pause: the service may open now what it did not open before. The next ones are as long as they would be.
    pub(super) fn end_pauses(&self) {
        self.era.fetch_add(1, Ordering::AcqRel);
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
        // Before the service is asked: one that becomes well meanwhile is asked again.
        let era = self.era.load(Ordering::Acquire);
        let entry = self.entry(object, now);
        let at_once = entry.try_lock().ok().and_then(|mut known| {
            known.used = now;
            let is_proven = known
                .answer
                .as_ref()
                .is_some_and(|answer| answer.unproven.is_none());
            known.seed(At { now, era }).map(|seed| (seed, is_proven))
        });
        let (seed, is_proven) = match at_once {
            Some(known) => known,
            None => (while_blocking(|| lock(&entry).ask(clock, era, decrypt))?, false),
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
