//! Lists in protobuf and CBOR.
//!
//! Both begin with the size of what follows: CBOR with the number of objects, protobuf with the length of the encoded list.
//! For protobuf every object is therefore encoded twice, so that a list still needs no more memory than a buffer and a
//! pointer for each object.

use std::sync::Arc;

use bytes::BytesMut;
use drydock_machinery::codec::{cbor, protobuf};
use drydock_proto::protobuf::META_V1_LIST_META;

use super::list::{Head, Objects, PageEncoder};
use super::response::{Shape, no_message, not_protobuf};
use crate::cache::CachedObject;
use crate::error::ApiError;
use crate::request::negotiate::MediaType;

/// How many objects are measured before other tasks may run.
const MEASURED_AT_ONCE: usize = 64;
/// The fields of a list.
const METADATA: u64 = 1;
const ITEMS: u64 = 2;

/// Encodes the objects of a list.
pub(super) struct BinaryEncoder {
    shape: Shape,
    /// How many objects there are.
    count: usize,
    /// The length of all objects in protobuf, keys included.
    length: usize,
}

impl BinaryEncoder {
    /// Counts and measures the objects. Returns them too.
    ///
    /// # Errors
    /// 500 for a stored object that cannot be decoded, converted or encoded.
    pub(super) async fn prepare(shape: Shape, objects: Objects) -> Result<(Self, Objects), ApiError> {
        let objects: Vec<Arc<CachedObject>> = objects.collect();
        let mut encoder = Self {
            shape,
            count: objects.len(),
            length: 0,
        };
        if encoder.is_protobuf() {
            for batch in objects.chunks(MEASURED_AT_ONCE) {
                for object in batch {
                    let length = encoder.encoded(object)?.len();
                    encoder.length += protobuf::key_bytes(ITEMS, length) + length;
                }
                tokio::task::yield_now().await;
            }
        }
        Ok((encoder, Box::new(objects.into_iter())))
    }

    fn is_protobuf(&self) -> bool {
        self.shape.representation.media_type == MediaType::Protobuf
    }

    fn encoded(&self, object: &CachedObject) -> Result<Vec<u8>, ApiError> {
        let value = self.shape.of(object.value(), Some(object.modified()))?;
        let mut out = Vec::with_capacity(1024);
        if self.is_protobuf() {
            let message = self.shape.message().ok_or_else(no_message)?;
            protobuf::encode_message(&value, message, &mut out).map_err(not_protobuf)?;
        } else {
            cbor::write(&value, &mut out);
        }
        Ok(out)
    }

    /// `apiVersion` and `kind` of the list.
    fn types(&self) -> (String, String) {
        let endpoint = &self.shape.endpoint;
        match self.shape.metadata_version() {
            Some(version) => (
                version.api_version().to_owned(),
                "PartialObjectMetadataList".to_owned(),
            ),
            None => (
                endpoint.face().api_version.to_string(),
                format!("{}List", endpoint.kind()),
            ),
        }
    }
}

impl PageEncoder for BinaryEncoder {
    fn write_start(&self, out: &mut BytesMut, head: &Head) -> Result<(), ApiError> {
        let (api_version, kind) = self.types();
        let metadata = head.metadata();
        let mut start = Vec::with_capacity(256);
        if self.is_protobuf() {
            let mut encoded = Vec::new();
            protobuf::encode_message(&metadata, &META_V1_LIST_META, &mut encoded).map_err(not_protobuf)?;
            let length = protobuf::key_bytes(METADATA, encoded.len()) + encoded.len() + self.length;
            protobuf::Envelope::write_start(&api_version, &kind, length, &mut start);
            protobuf::write_bytes_key(METADATA, encoded.len(), &mut start);
            start.extend_from_slice(&encoded);
        } else {
            cbor::write_start(&mut start);
            cbor::write_map(4, &mut start);
            for (member, text) in [("apiVersion", &api_version), ("kind", &kind)] {
                cbor::write_text(member, &mut start);
                cbor::write_text(text, &mut start);
            }
            cbor::write_text("metadata", &mut start);
            cbor::write(&metadata, &mut start);
            cbor::write_text("items", &mut start);
            cbor::write_array(self.count, &mut start);
        }
        out.extend_from_slice(&start);
        Ok(())
    }

    fn write(&self, out: &mut BytesMut, object: &CachedObject, _first: bool) -> Result<(), ApiError> {
        let encoded = self.encoded(object)?;
        if self.is_protobuf() {
            let mut key = Vec::with_capacity(6);
            protobuf::write_bytes_key(ITEMS, encoded.len(), &mut key);
            out.extend_from_slice(&key);
        }
        out.extend_from_slice(&encoded);
        Ok(())
    }

    fn write_end(&self, _out: &mut BytesMut, _is_empty: bool) {}
}
