//! Messages of KMS plugins, and of values that were sealed with one; `proto/kms/v2/api.proto` documents each field.

/// Version 2.
pub mod v2 {
    #![expect(
        missing_docs,
        clippy::pedantic,
        reason = "generated from api.proto, which documents the fields"
    )]
    include!(concat!(env!("OUT_DIR"), "/v2.rs"));
}
