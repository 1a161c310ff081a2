//! What the storage engine writes to disk; see `proto/storage/v1/record.proto` for each field.

/// Records of the first format.
pub mod v1 {
    #![expect(
        missing_docs,
        clippy::pedantic,
        reason = "generated from record.proto, which documents the fields"
    )]
    include!(concat!(env!("OUT_DIR"), "/drydock.storage.v1.rs"));
}
