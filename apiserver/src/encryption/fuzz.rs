//! Fuzz targets: the file, and what is read from a disk that somebody else may have written to.

use std::sync::{Arc, OnceLock};

use drydock_storage::seal::kms::decode_envelope;
use drydock_storage::seal::{
    CipherKind, Provider, Rule, Seal as _, SealMetrics, Sealer, StaticKey, StaticKeys,
};
use zeroize::Zeroizing;

use super::check;

/// Checks a configuration file. The error is short, whatever the file holds.
///
/// # Panics
/// If a rule is broken.
pub fn fuzz_configuration(bytes: &[u8]) {
    if let Err(error) = check(bytes) {
        // Each wrong value takes a line, and names what it is about.
        assert!(error.to_string().len() <= 1024 + 1024 * bytes.len());
    }
}

/// Opens sealed values of every provider: the first byte chooses it.
///
/// # Panics
/// If a rule is broken.
pub fn fuzz_sealed_value(bytes: &[u8]) {
    static SEALER: OnceLock<Option<Sealer>> = OnceLock::new();
    let Some(all) = SEALER.get_or_init(sealer) else {
        return;
    };
    let Some((kind, sealed)) = bytes.split_first() else {
        return;
    };
    let prefix = match kind % 4 {
        0 => "k8s:enc:aesgcm:v1:k:",
        1 => "k8s:enc:aescbc:v1:k:",
        2 => "k8s:enc:secretbox:v1:k:",
        _ => {
            if let Ok(object) = decode_envelope(sealed) {
                assert!(!object.key_id.is_empty() && object.key_id.len() <= 1024);
            }
            return;
        }
    };
    let key = "g/r/n/a";
    // Only CBC, which has no integrity, opens what was not sealed.
    let opened = all.open(key, prefix, sealed.to_vec());
    assert!(opened.is_err() || kind % 4 == 1);
    all.is_stale(key, prefix, sealed);
}

fn sealer() -> Option<Sealer> {
    let keys = |kind| {
        let key = StaticKey::new(kind, "k", &Zeroizing::new(vec![7; 32]))?;
        Some(Provider::Static(Arc::new(StaticKeys {
            kind,
            keys: vec![key],
        })))
    };
    let rule = Rule {
        resources: vec!["*.*".to_owned()],
        providers: vec![
            keys(CipherKind::AesGcm)?,
            keys(CipherKind::AesCbc)?,
            keys(CipherKind::Secretbox)?,
        ],
    };
    Some(Sealer::new(vec![rule], Arc::default(), SealMetrics::new("fuzz")))
}
