//! The records that the storage engine writes to disk; `proto/storage/v1/record.proto` documents each field.

/// Records of format version 1.
pub mod v1 {
    #![expect(
        missing_docs,
        clippy::pedantic,
        reason = "generated from record.proto, which documents the fields"
    )]
    include!(concat!(env!("OUT_DIR"), "/drydock.storage.v1.rs"));
}
