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
/// How long the service is not asked again for a seed that it did not open: all values under it fail at once, not one after
/// the other, each after the timeout of a call.
const REMEMBER_FAILURE: Duration = Duration::from_secs(1);
/// The most seeds that are kept. A server adds one at each start and each change of the key.
const MOST: usize = 10_000;

type Seed = Zeroizing<Vec<u8>>;

/// What is known of a seed. Locked while the service is asked for it, so that it is asked once.
#[derive(Default)]
struct Known {
    seed: Option<Seed>,
    /// Why the service did not open it, and until when it is not asked again.
    failure: Option<(String, Duration)>,
    used: Duration,
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

    /// Keeps a seed.
    pub(super) fn put(&self, object: &EncryptedObject, seed: Seed, now: Duration) {
        let known = self.entry(object, now);
        let mut known = lock(&known);
        (known.seed, known.failure) = (Some(seed), None);
    }

    /// Forgets that seeds did not open: the service is well again.
    pub(super) fn forget_failures(&self) {
        let known: Vec<_> = lock(&self.known).values().map(Arc::clone).collect();
        for one in known {
            // One that is locked is being asked for.
            if let Ok(mut one) = one.try_lock() {
                one.failure = None;
            }
        }
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

    /// The seed of an object; `decrypt` asks the service for it.
    pub(super) fn get(
        &self,
        object: &EncryptedObject,
        clock: &dyn Clock,
        decrypt: impl FnOnce() -> Result<Seed, String>,
    ) -> Result<Seed, String> {
        let now = clock.uptime();
        let known = self.entry(object, now);
        if let Ok(mut known) = known.try_lock() {
            known.used = now;
            if let Some(seed) = &known.seed {
                return Ok(seed.clone());
            }
        }
        while_blocking(|| {
            let mut known = lock(&known);
            if let Some(seed) = &known.seed {
                return Ok(seed.clone());
            }
            if let Some((error, until)) = &known.failure
                && clock.uptime() < *until
            {
                return Err(error.clone());
            }
            match decrypt() {
                Ok(seed) => {
                    known.failure = None;
                    Ok(known.seed.insert(seed).clone())
                }
                Err(error) => {
                    known.failure = Some((error.clone(), clock.uptime() + REMEMBER_FAILURE));
                    Err(error)
                }
            }
        })
    }
}

/// Waits without holding up the tasks of a runtime.
fn while_blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
