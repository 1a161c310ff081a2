//! What tests of several backends seal with.

use crate::seal::{Seal, SealError, Sealed, Unsealed};

/// Seals nothing, and changes every payload on its way into a store.
#[derive(Clone, Copy, Debug)]
pub struct Changing;

impl Seal for Changing {
    fn seal(&self, key: &str, mut plain: Vec<u8>) -> Result<Sealed, SealError> {
        // What ends the payload is for sealed values alone.
        if let Some(first) = plain.first_mut() {
            *first ^= 1;
        }
        Unsealed.seal(key, plain)
    }

    fn open(&self, key: &str, key_id: &str, sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
        Unsealed.open(key, key_id, sealed)
    }
}
