//! How are payloads kept secret on disk?
//!
//! A hook: values are sealed after compression, in the task of the request, and opened by readers. The object's
//! key is bound to the ciphertext (associated data of an AEAD), so that it cannot be moved to another object.

use thiserror::Error;

/// A payload could not be sealed or opened.
#[derive(Debug, Error)]
#[error("the payload cannot be {action} with key {key_id:?}: {reason}")]
pub struct SealError {
    /// `sealed` or `opened`.
    pub action: &'static str,
    /// The encryption key.
    pub key_id: String,
    /// Why, for people.
    pub reason: String,
}

/// A payload as it goes to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Names the key that sealed it; empty = not sealed.
    pub key_id: String,
    /// What is written.
    pub bytes: Vec<u8>,
}

/// Encryption at rest.
pub trait Seal: Send + Sync + 'static {
    /// Seals what is stored under `key`.
    ///
    /// # Errors
    /// The key service failed; nothing is written then.
    fn seal(&self, key: &str, plain: Vec<u8>) -> Result<Sealed, SealError>;

    /// Opens what was stored under `key`.
    ///
    /// # Errors
    /// The encryption key is not known, or the bytes were not sealed for this object.
    fn open(&self, key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError>;
}

/// No encryption: the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unsealed;

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
        Err(SealError {
            action: "opened",
            key_id: key_id.to_owned(),
            reason: "no encryption is configured".to_owned(),
        })
    }
}
