//! Encryption at rest.
//!
//! Values are sealed inside their records, after compression, in the task of the request, and opened by readers
//! (`record`). That is the one place through which every value passes on its way to a disk: both backends, the log, the
//! history of watches, backups and exports hold what [`Seal::seal`] returned. Keys of objects, revisions and the name of the
//! stored API version stay in clear.
//!
//! [`Sealer`] does what `--encryption-provider-config` says; [`Unsealed`] is what runs without it. The form of what is
//! stored is that of kube-apiserver: a prefix that names provider and key, then what the provider makes of the value. Static
//! keys are in [`cipher`], those of a KMS in [`kms`].

mod cipher;
pub mod kms;
mod metrics;
mod sealer;
mod staleness;

use std::sync::Arc;

use thiserror::Error;

pub use cipher::CipherKind;
pub use metrics::SealMetrics;
pub use sealer::{Provider, Rule, Sealer, StaticKey, StaticKeys, key_services};
pub(crate) use staleness::StoredSeal;

/// What sealed values of every provider begin with.
pub const SEALED_PREFIX: &str = "k8s:enc:";

/// A payload could not be sealed or opened. This says nothing about the bytes on disk, whose checksum is compared before:
/// the key may come back with another configuration or when its service answers.
#[derive(Debug, Clone, Error)]
#[error("{reason}")]
pub struct SealError {
    /// Why, in the words of kube-apiserver. Never holds key material.
    pub reason: Arc<str>,
}

impl SealError {
    /// With its reason.
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self {
            reason: reason.into(),
        }
    }
}

/// A payload as written to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The prefix that names provider and key; empty: not sealed. With the payload behind it, it is what kube-apiserver stores.
    pub key_id: String,
    /// The sealed payload.
    pub bytes: Vec<u8>,
}

/// Encryption at rest.
pub trait Seal: Send + Sync + 'static {
    /// Seals the payload stored under `key`, which is bound to it where the provider can. One that is not sealed is returned as
    /// it is.
    ///
    /// # Errors
    /// [`SealError`]; nothing is written then.
    fn seal(&self, key: &str, plain: Vec<u8>) -> Result<Sealed, SealError>;

    /// Opens a payload stored under `key`. May wait for a key service, but only for the first value under one of its keys.
    ///
    /// # Errors
    /// [`SealError`].
    fn open(&self, key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError>;

    /// Whether the payload was sealed by anything but what [`Seal::seal`] uses now, so that a write should replace it.
    fn is_stale(&self, key: &str, key_id: &str, sealed: &[u8]) -> bool {
        let _ = (key, key_id, sealed);
        false
    }

    /// Whether a payload can be stale at all: otherwise nobody has to look.
    fn has_stale(&self) -> bool {
        false
    }

    /// Changes when payloads that did not open may open now: another configuration, a key service that answers again.
    fn generation(&self) -> u64 {
        0
    }
}

/// No encryption, the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unsealed;

/// As kube-apiserver says it.
pub(crate) const READ_SEALED: &str = "identity transformer tried to read encrypted data";

impl Seal for Unsealed {
    fn seal(&self, _key: &str, plain: Vec<u8>) -> Result<Sealed, SealError> {
        Ok(Sealed {
            key_id: String::new(),
            bytes: plain,
        })
    }

    fn open(&self, _key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
        if key_id.is_empty() {
            return Ok(sealed);
        }
        Err(SealError::new(READ_SEALED))
    }
}

/// Random bytes; none if the system provides none.
fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    Some(bytes)
}
