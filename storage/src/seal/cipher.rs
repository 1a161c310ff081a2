//! The ciphers of static keys, with the layout of kube-apiserver: what is stored begins with a random nonce or IV.

use std::fmt;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, AES_CBC_IV_LEN, DecryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use crypto_secretbox::XSalsa20Poly1305;
use crypto_secretbox::aead::{AeadInPlace as _, KeyInit as _};

use super::random;

/// Bytes of the nonce of XSalsa20-Poly1305.
const SECRETBOX_NONCE: usize = 24;
/// Bytes of a block of AES.
const BLOCK: usize = 16;

/// Which cipher, and its name in stored values and in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CipherKind {
    /// AES-GCM. Bound to the object's key.
    AesGcm,
    /// AES-CBC with PKCS#7 padding. It has no integrity: whoever can write to the disk can change values.
    AesCbc,
    /// XSalsa20-Poly1305. Not bound to the object's key.
    Secretbox,
}

impl CipherKind {
    /// The name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AesGcm => "aesgcm",
            Self::AesCbc => "aescbc",
            Self::Secretbox => "secretbox",
        }
    }

    /// What every stored value of this cipher begins with; the name of the key and a colon follow.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::AesGcm => "k8s:enc:aesgcm:v1:",
            Self::AesCbc => "k8s:enc:aescbc:v1:",
            Self::Secretbox => "k8s:enc:secretbox:v1:",
        }
    }

    /// The lengths a key may have, in bytes.
    #[must_use]
    pub fn key_lengths(self) -> &'static [usize] {
        match self {
            Self::AesGcm | Self::AesCbc => &[16, 24, 32],
            Self::Secretbox => &[32],
        }
    }
}

/// A cipher with its key. Dropping it wipes the key.
pub(super) enum Cipher {
    AesGcm(Box<LessSafeKey>),
    AesCbc(Box<(PaddedBlockEncryptingKey, PaddedBlockDecryptingKey)>),
    Secretbox(Box<XSalsa20Poly1305>),
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher")
    }
}

impl Cipher {
    /// A cipher with a key; none if the key has a length that the cipher does not take.
    pub(super) fn new(kind: CipherKind, key: &[u8]) -> Option<Self> {
        match kind {
            CipherKind::AesGcm => aes_gcm(key).map(Box::new).map(Self::AesGcm),
            CipherKind::AesCbc => {
                let unbound = || {
                    let algorithm = match key.len() {
                        16 => &AES_128,
                        24 => &AES_192,
                        32 => &AES_256,
                        _ => return None,
                    };
                    UnboundCipherKey::new(algorithm, key).ok()
                };
                let encrypting = PaddedBlockEncryptingKey::cbc_pkcs7(unbound()?).ok()?;
                let decrypting = PaddedBlockDecryptingKey::cbc_pkcs7(unbound()?).ok()?;
                Some(Self::AesCbc(Box::new((encrypting, decrypting))))
            }
            CipherKind::Secretbox => {
                let cipher = XSalsa20Poly1305::new_from_slice(key).ok()?;
                Some(Self::Secretbox(Box::new(cipher)))
            }
        }
    }

    /// Seals a payload that is stored under `bound`.
    pub(super) fn seal(&self, bound: &[u8], plain: Vec<u8>) -> Result<Vec<u8>, String> {
        match self {
            Self::AesGcm(key) => seal_gcm(key, bound, &plain),
            Self::AesCbc(keys) => {
                let mut text = plain;
                let context = keys.0.encrypt(&mut text).map_err(|_| FAILED.to_owned())?;
                let DecryptionContext::Iv128(iv) = &context else {
                    return Err(FAILED.to_owned());
                };
                let mut sealed = Vec::with_capacity(AES_CBC_IV_LEN + text.len());
                sealed.extend_from_slice(iv.as_ref());
                sealed.extend_from_slice(&text);
                Ok(sealed)
            }
            Self::Secretbox(cipher) => {
                let nonce: [u8; SECRETBOX_NONCE] = random().ok_or_else(|| FAILED.to_owned())?;
                let mut text = plain;
                let tag = cipher.encrypt_in_place_detached(&nonce.into(), b"", &mut text);
                let tag = tag.map_err(|_| FAILED.to_owned())?;
                let mut sealed = Vec::with_capacity(nonce.len() + tag.len() + text.len());
                sealed.extend_from_slice(&nonce);
                sealed.extend_from_slice(&tag);
                sealed.append(&mut text);
                Ok(sealed)
            }
        }
    }

    /// Opens what was sealed for `bound`. The errors are those of kube-apiserver.
    pub(super) fn open(&self, bound: &[u8], sealed: Vec<u8>) -> Result<Vec<u8>, String> {
        match self {
            Self::AesGcm(key) => open_gcm(key, bound, sealed),
            Self::AesCbc(keys) => open_cbc(&keys.1, sealed),
            Self::Secretbox(cipher) => open_secretbox(cipher, sealed),
        }
    }
}

/// The cipher, or the source of its nonces, does not work.
const FAILED: &str = "the cipher does not work";
const TOO_SHORT: &str = "the stored data was shorter than the required size";

fn aes_gcm(key: &[u8]) -> Option<LessSafeKey> {
    let algorithm = match key.len() {
        16 => &AES_128_GCM,
        24 => &AES_192_GCM,
        32 => &AES_256_GCM,
        _ => return None,
    };
    UnboundKey::new(algorithm, key).ok().map(LessSafeKey::new)
}

fn seal_gcm(key: &LessSafeKey, bound: &[u8], plain: &[u8]) -> Result<Vec<u8>, String> {
    let nonce: [u8; NONCE_LEN] = random().ok_or_else(|| FAILED.to_owned())?;
    let mut sealed = Vec::with_capacity(NONCE_LEN + plain.len() + key.algorithm().tag_len());
    sealed.extend_from_slice(&nonce);
    sealed.extend_from_slice(plain);
    let text = sealed.get_mut(NONCE_LEN..).unwrap_or_default();
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(bound), text);
    sealed.extend_from_slice(tag.map_err(|_| FAILED.to_owned())?.as_ref());
    Ok(sealed)
}

fn open_gcm(key: &LessSafeKey, bound: &[u8], mut sealed: Vec<u8>) -> Result<Vec<u8>, String> {
    let Some((nonce, text)) = sealed.split_first_chunk_mut::<NONCE_LEN>() else {
        return Err(TOO_SHORT.to_owned());
    };
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let opened = key.open_in_place(nonce, Aad::from(bound), text);
    let length = opened
        .map_err(|_| "cipher: message authentication failed".to_owned())?
        .len();
    sealed.drain(..NONCE_LEN);
    sealed.truncate(length);
    Ok(sealed)
}

fn open_cbc(key: &PaddedBlockDecryptingKey, mut sealed: Vec<u8>) -> Result<Vec<u8>, String> {
    let Some((iv, text)) = sealed.split_first_chunk_mut::<AES_CBC_IV_LEN>() else {
        return Err(TOO_SHORT.to_owned());
    };
    if text.len() % BLOCK != 0 {
        return Err("the stored data is not a multiple of the block size".to_owned());
    }
    if text.is_empty() {
        return Err("the stored data is empty".to_owned());
    }
    let context = DecryptionContext::Iv128(FixedLength::from(*iv));
    // One text for every failure: which padding was wrong would help to guess a value.
    let opened = key.decrypt(text, context);
    let length = opened.map_err(|_| "invalid padding on input".to_owned())?.len();
    sealed.drain(..AES_CBC_IV_LEN);
    sealed.truncate(length);
    Ok(sealed)
}

fn open_secretbox(cipher: &XSalsa20Poly1305, mut sealed: Vec<u8>) -> Result<Vec<u8>, String> {
    const TAG: usize = 16;
    let Some((nonce, rest)) = sealed.split_first_chunk_mut::<SECRETBOX_NONCE>() else {
        return Err(TOO_SHORT.to_owned());
    };
    let Some((tag, text)) = rest.split_first_chunk_mut::<TAG>() else {
        return Err(TOO_SHORT.to_owned());
    };
    cipher
        .decrypt_in_place_detached(&(*nonce).into(), b"", text, &(*tag).into())
        .map_err(|_| "the stored data does not authenticate".to_owned())?;
    sealed.drain(..SECRETBOX_NONCE + TAG);
    Ok(sealed)
}

/// AES-GCM with a key of its own for every value, derived from a seed: HKDF-SHA256 in its expand step, with the seed as
/// pseudorandom key and 32 random bytes as info, which are stored before nonce, ciphertext and tag. Nonces of two values
/// never meet under one key, however many values are sealed.
pub(super) mod derived {
    use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
    use zeroize::Zeroizing;

    use super::{FAILED, TOO_SHORT, aes_gcm, open_gcm, random, seal_gcm};

    /// Bytes of a seed, of the info of a value and of a derived key.
    pub(in crate::seal) const LENGTH: usize = 32;

    struct KeyLength;

    impl KeyType for KeyLength {
        fn len(&self) -> usize {
            LENGTH
        }
    }

    fn key(seed: &[u8], info: &[u8]) -> Result<aws_lc_rs::aead::LessSafeKey, String> {
        let mut key = Zeroizing::new([0; LENGTH]);
        let derived = Prk::new_less_safe(HKDF_SHA256, seed);
        let filled = derived
            .expand(&[info], KeyLength)
            .and_then(|okm| okm.fill(key.as_mut_slice()));
        filled.map_err(|_| FAILED.to_owned())?;
        aes_gcm(key.as_slice()).ok_or_else(|| FAILED.to_owned())
    }

    /// Seals a payload that is stored under `bound`.
    pub(in crate::seal) fn seal(seed: &[u8], bound: &[u8], plain: &[u8]) -> Result<Vec<u8>, String> {
        let info: [u8; LENGTH] = random().ok_or_else(|| FAILED.to_owned())?;
        let text = seal_gcm(&key(seed, &info)?, bound, plain)?;
        let mut sealed = Vec::with_capacity(info.len() + text.len());
        sealed.extend_from_slice(&info);
        sealed.extend_from_slice(&text);
        Ok(sealed)
    }

    /// Opens what was sealed for `bound`.
    pub(in crate::seal) fn open(seed: &[u8], bound: &[u8], mut sealed: Vec<u8>) -> Result<Vec<u8>, String> {
        let Some((info, _)) = sealed.split_first_chunk::<LENGTH>() else {
            return Err(TOO_SHORT.to_owned());
        };
        let key = key(seed, info)?;
        sealed.drain(..LENGTH);
        open_gcm(&key, bound, sealed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [CipherKind; 3] = [CipherKind::AesGcm, CipherKind::AesCbc, CipherKind::Secretbox];

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len() / 2)
            .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
            .collect()
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_again(
            plain in prop::collection::vec(any::<u8>(), 0..200),
            bound in ".{0,40}",
            key in prop::collection::vec(any::<u8>(), 32),
        ) {
            for kind in KINDS {
                for length in kind.key_lengths() {
                    let cipher = Cipher::new(kind, &key[..*length]).unwrap();
                    let sealed = cipher.seal(bound.as_bytes(), plain.clone()).unwrap();
                    prop_assert_eq!(cipher.open(bound.as_bytes(), sealed), Ok(plain.clone()));
                }
            }
            let sealed = derived::seal(&key, bound.as_bytes(), &plain).unwrap();
            prop_assert_eq!(derived::open(&key, bound.as_bytes(), sealed), Ok(plain));
        }

        #[test]
        fn no_bytes_make_a_cipher_panic(sealed in prop::collection::vec(any::<u8>(), 0..120)) {
            for kind in KINDS {
                let cipher = Cipher::new(kind, &[7; 32]).unwrap();
                let opened = cipher.open(b"k", sealed.clone());
                // CBC has no integrity.
                prop_assert!(kind == CipherKind::AesCbc || opened.is_err());
            }
            prop_assert!(derived::open(&[7; 32], b"k", sealed).is_err());
        }

        #[test]
        fn no_changed_byte_passes(at in any::<prop::sample::Index>(), by in 1..=255_u8) {
            for kind in [CipherKind::AesGcm, CipherKind::Secretbox] {
                let cipher = Cipher::new(kind, &[7; 32]).unwrap();
                let mut sealed = cipher.seal(b"k", b"something secret".to_vec()).unwrap();
                let at = at.index(sealed.len());
                sealed[at] ^= by;
                prop_assert!(cipher.open(b"k", sealed).is_err());
            }
            let mut sealed = derived::seal(&[7; 32], b"k", b"something secret").unwrap();
            let at = at.index(sealed.len());
            sealed[at] ^= by;
            prop_assert!(derived::open(&[7; 32], b"k", sealed).is_err());
        }
    }

    #[test]
    fn keys_have_the_lengths_that_are_named() {
        for kind in KINDS {
            for length in 0..40 {
                let key = vec![1; length];
                assert_eq!(
                    Cipher::new(kind, &key).is_some(),
                    kind.key_lengths().contains(&length),
                    "{kind:?} {length}"
                );
            }
        }
    }

    #[test]
    fn a_value_moved_to_another_key_does_not_open_where_it_is_bound() {
        let gcm = Cipher::new(CipherKind::AesGcm, &[7; 32]).unwrap();
        let sealed = gcm.seal(b"g/r/n/a", b"x".to_vec()).unwrap();
        let refused = gcm.open(b"g/r/n/b", sealed).unwrap_err();
        assert_eq!(refused, "cipher: message authentication failed");
        let sealed = derived::seal(&[7; 32], b"g/r/n/a", b"x").unwrap();
        assert!(derived::open(&[7; 32], b"g/r/n/b", sealed).is_err());
    }

    #[test]
    fn another_key_does_not_open() {
        for kind in [CipherKind::AesGcm, CipherKind::Secretbox] {
            let sealed = Cipher::new(kind, &[7; 32]).unwrap().seal(b"k", b"x".to_vec());
            assert!(
                Cipher::new(kind, &[8; 32])
                    .unwrap()
                    .open(b"k", sealed.unwrap())
                    .is_err()
            );
        }
        let sealed = derived::seal(&[7; 32], b"k", b"x").unwrap();
        assert!(derived::open(&[8; 32], b"k", sealed).is_err());
    }

    #[test]
    fn the_layout_is_nonce_then_text_then_tag() {
        // NIST SP 800-38D, test case 4 of AES-128.
        let key = unhex("feffe9928665731c6d6a8f9467308308");
        let bound = unhex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let plain = unhex(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        );
        let sealed = unhex(
            "cafebabefacedbaddecaf88842831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e0915bc94fbc3221a5db94fae95ae7121a47",
        );
        let cipher = Cipher::new(CipherKind::AesGcm, &key).unwrap();
        assert_eq!(cipher.open(&bound, sealed), Ok(plain));

        // NaCl's own test of crypto_secretbox: nonce, tag, text.
        let key = unhex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389");
        let sealed = unhex(concat!(
            "69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37",
            "f3ffc7703f9400e52a7dfb4b3d3305d9",
            "8e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186ac0dfc17c98dce87b4da7f011ec48c97271",
            "d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae90224368517acfeabd6bb3732bc0e9da9983",
            "2b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5",
        ));
        let plain = unhex(concat!(
            "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c61296c",
            "dc3c01233561f41db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde0489",
            "77eb48f59ffd4924ca1c60902e52f0a089bc76897040e082f937763848645e0705",
        ));
        let cipher = Cipher::new(CipherKind::Secretbox, &key).unwrap();
        assert_eq!(cipher.open(b"", sealed), Ok(plain));
    }

    #[test]
    fn cbc_is_iv_then_padded_blocks() {
        // NIST SP 800-38A F.2.1, first block, with a block of padding behind it.
        let key = unhex("2b7e151628aed2a6abf7158809cf4f3c");
        let cipher = Cipher::new(CipherKind::AesCbc, &key).unwrap();
        let sealed = unhex(
            "000102030405060708090a0b0c0d0e0f7649abac8119b246cee98e9b12e9197d8964e0b149c10b7b682e6e39aaeb731c",
        );
        assert_eq!(
            cipher.open(b"", sealed),
            Ok(unhex("6bc1bee22e409f96e93d7e117393172a"))
        );
        let refused = |sealed: &[u8]| cipher.open(b"", sealed.to_vec()).unwrap_err();
        assert_eq!(refused(&[0; 15]), TOO_SHORT);
        assert_eq!(
            refused(&[0; 17]),
            "the stored data is not a multiple of the block size"
        );
        assert_eq!(refused(&[0; 16]), "the stored data is empty");
        assert_eq!(refused(&[0; 32]), "invalid padding on input");
    }

    #[test]
    fn the_derived_key_is_hkdf_expand_of_seed_and_info() {
        // RFC 5869, test case 1: its PRK as seed would give its OKM with its info; here the info has 32 bytes, so the
        // derivation is checked against HMAC: T(1) = HMAC(PRK, info || 0x01).
        let (seed, info) = ([3_u8; 32], [9_u8; 32]);
        let hmac = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &seed);
        let mut message = info.to_vec();
        message.push(1);
        let expected = aws_lc_rs::hmac::sign(&hmac, &message);
        let cipher = Cipher::new(CipherKind::AesGcm, expected.as_ref()).unwrap();
        let mut sealed = info.to_vec();
        sealed.extend(cipher.seal(b"k", b"plain".to_vec()).unwrap());
        assert_eq!(derived::open(&seed, b"k", sealed), Ok(b"plain".to_vec()));
    }
}
