//! Encryption at rest.
//!
//! Values are sealed after compression, in the task of the request, and opened by readers. The object's key is bound to the
//! ciphertext (associated data of an AEAD), so that a ciphertext cannot be moved to another object.

use thiserror::Error;

/// A payload could not be sealed or opened.
#[derive(Debug, Error)]
pub enum SealError {
    /// The encryption key is not available: it is unknown, or its service does not respond. Says nothing about the payload.
    #[error("the encryption key {key_id:?} is not available: {reason}")]
    Unavailable {
        /// The encryption key; empty if none has been chosen yet.
        key_id: String,
        /// Why, for people.
        reason: String,
    },
    /// The key is available, and the bytes are not what was sealed with it for this object.
    #[error("the payload was not sealed for this object with the encryption key {key_id:?}")]
    Rejected {
        /// The encryption key.
        key_id: String,
    },
}

/// A payload as written to disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The key that sealed it; empty: not sealed.
    pub key_id: String,
    /// The sealed payload.
    pub bytes: Vec<u8>,
}

/// Encryption at rest.
pub trait Seal: Send + Sync + 'static {
    /// Seals the payload stored under `key`.
    ///
    /// # Errors
    /// [`SealError::Unavailable`]; nothing is written then.
    fn seal(&self, key: &str, plain: Vec<u8>) -> Result<Sealed, SealError>;

    /// Opens a payload stored under `key`.
    ///
    /// # Errors
    /// [`SealError::Unavailable`] if the encryption key is not available. [`SealError::Rejected`] makes the value count as
    /// damaged, so it must not be returned for a missing key.
    fn open(&self, key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError>;
}

/// No encryption, the default.
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
        Err(SealError::Unavailable {
            key_id: key_id.to_owned(),
            reason: "no encryption is configured".to_owned(),
        })
    }
}
