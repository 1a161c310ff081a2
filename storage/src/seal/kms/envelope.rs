//! What is stored of a value, and the limits of what a service may return.

use drydock_proto::kms::v2::{EncryptedDekSourceType, EncryptedObject};
use prost::Message as _;

/// Bytes of a key ID.
const KEY_ID: usize = 1 << 10;
/// Bytes of a seed as the service sealed it.
const SOURCE: usize = 1 << 10;
/// Bytes of all annotations, names and values.
const ANNOTATIONS: usize = 32 << 10;

/// Checks a key ID. The code is the label of a metric.
pub(super) fn check_key_id(key_id: &str) -> Result<(), (&'static str, String)> {
    if key_id.is_empty() {
        return Err(("empty", "keyID is empty".to_owned()));
    }
    let length = key_id.len();
    if length > KEY_ID {
        let error = format!("keyID is {length} bytes, which exceeds the max size of {KEY_ID}");
        return Err(("too_long", error));
    }
    Ok(())
}

/// Whether a name is a fully qualified domain name: at least two labels of DNS.
fn is_domain(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    name.len() <= 253 && name.contains('.') && name.split('.').all(is_label)
}

/// Checks what is stored beside and around a value.
pub(super) fn check(object: &EncryptedObject) -> Result<(), String> {
    let kind = object.encrypted_dek_source_type;
    if EncryptedDekSourceType::try_from(kind).is_err() {
        return Err(format!("unknown encryptedDEKSourceType: {kind}"));
    }
    if object.encrypted_data.is_empty() {
        return Err("encrypted data is empty".to_owned());
    }
    let length = object.encrypted_dek_source.len();
    let source = |error: String| Err(format!("failed to validate encrypted DEK source: {error}"));
    if length == 0 {
        return source("encrypted DEK source is empty".to_owned());
    }
    if length > SOURCE {
        return source(format!(
            "encrypted DEK source is {length} bytes, which exceeds the max size of {SOURCE}"
        ));
    }
    check_key_id(&object.key_id).map_err(|(_, error)| format!("failed to validate key id: {error}"))?;
    let annotations = |error: String| Err(format!("failed to validate annotations: {error}"));
    let mut total = 0;
    for (name, value) in &object.annotations {
        if !is_domain(name) {
            let name: String = name.chars().take(253).collect();
            return annotations(format!(
                "annotations: Invalid value: {name:?}: should be a domain with at least two segments separated by dots"
            ));
        }
        total += name.len() + value.len();
    }
    if total > ANNOTATIONS {
        return annotations(format!(
            "total size of annotations is {total}, which exceeds the max size of {ANNOTATIONS}"
        ));
    }
    Ok(())
}

/// As it is stored.
pub(super) fn encode(object: &EncryptedObject) -> Vec<u8> {
    object.encode_to_vec()
}

/// Reads what is stored.
///
/// # Errors
/// Bytes that are no such object, or one beyond the limits.
pub fn decode(sealed: &[u8]) -> Result<EncryptedObject, String> {
    let object = EncryptedObject::decode(sealed).map_err(|error| error.to_string())?;
    check(&object)?;
    Ok(object)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object() -> EncryptedObject {
        EncryptedObject {
            encrypted_data: vec![1],
            key_id: "k".to_owned(),
            encrypted_dek_source: vec![2],
            annotations: [("a.example.com".to_owned(), vec![3])].into(),
            encrypted_dek_source_type: 1,
        }
    }

    #[test]
    fn what_is_beyond_the_limits_is_refused() {
        assert_eq!(check(&object()), Ok(()));
        let refused = |change: &dyn Fn(&mut EncryptedObject)| {
            let mut changed = object();
            change(&mut changed);
            let error = check(&changed).unwrap_err();
            assert_eq!(decode(&encode(&changed)).unwrap_err(), error);
            error
        };
        assert_eq!(
            refused(&|it| it.key_id = "k".repeat(1025)),
            "failed to validate key id: keyID is 1025 bytes, which exceeds the max size of 1024"
        );
        assert_eq!(
            refused(&|it| it.key_id.clear()),
            "failed to validate key id: keyID is empty"
        );
        assert_eq!(
            refused(&|it| it.encrypted_dek_source = vec![0; 1025]),
            "failed to validate encrypted DEK source: encrypted DEK source is 1025 bytes, which exceeds the max size of 1024"
        );
        assert_eq!(
            refused(&|it| it.encrypted_dek_source.clear()),
            "failed to validate encrypted DEK source: encrypted DEK source is empty"
        );
        assert_eq!(
            refused(&|it| it.encrypted_data.clear()),
            "encrypted data is empty"
        );
        assert_eq!(
            refused(&|it| it.encrypted_dek_source_type = 2),
            "unknown encryptedDEKSourceType: 2"
        );
        assert_eq!(
            refused(&|it| {
                it.annotations
                    .insert("b.example.com".to_owned(), vec![0; 32 << 10]);
            }),
            "failed to validate annotations: total size of annotations is 32795, which exceeds the max size of 32768"
        );
        for name in ["", "example", "A.example.com", "a..com", "-a.example.com"] {
            let error = refused(&|it| {
                it.annotations.insert(name.to_owned(), Vec::new());
            });
            assert!(
                error.starts_with("failed to validate annotations: "),
                "{name}: {error}"
            );
        }
        let at_most = EncryptedObject {
            key_id: "k".repeat(1024),
            encrypted_dek_source: vec![0; 1024],
            ..object()
        };
        assert_eq!(check(&at_most), Ok(()));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(object) = decode(&bytes) {
                prop_assert_eq!(decode(&encode(&object)), Ok(object));
            }
        }
    }
}
