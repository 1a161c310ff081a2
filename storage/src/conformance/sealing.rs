//! What tests of several backends seal with.

use std::sync::Arc;

use zeroize::Zeroizing;

use crate::seal::{CipherKind, Provider, Rule, Seal, SealError, Sealed, StaticKey, StaticKeys, Unsealed};

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

/// Keys of 32 equal bytes, each with its name and that byte. The first one seals.
///
/// # Panics
/// Two keys have the same name, or one has a name that none can have.
#[must_use]
pub fn static_keys(kind: CipherKind, keys: &[(&str, u8)]) -> Provider {
    let keys = keys
        .iter()
        .map(|(name, byte)| StaticKey::new(kind, name, &Zeroizing::new(vec![*byte; 32])).unwrap());
    Provider::Static(Arc::new(StaticKeys {
        kind,
        keys: keys.collect(),
    }))
}

/// The rule that every value is sealed by these providers, the first of which seals.
#[must_use]
pub fn for_everything(providers: Vec<Provider>) -> Vec<Rule> {
    vec![Rule {
        resources: vec!["*.*".to_owned()],
        providers,
    }]
}

/// The rule that every value is sealed by AES-GCM with [`static_keys`].
#[must_use]
pub fn rules(keys: &[(&str, u8)]) -> Vec<Rule> {
    for_everything(vec![static_keys(CipherKind::AesGcm, keys)])
}
