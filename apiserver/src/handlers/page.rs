//! A page of a list, and what writes it.

use std::sync::Arc;

use bytes::BytesMut;
use drydock_storage::Revision;
use serde_json::{Value, json};

use crate::cache::CachedObject;
use crate::error::ApiError;

/// Objects in the order of their keys.
pub(super) type Objects = Box<dyn Iterator<Item = Arc<CachedObject>> + Send>;

/// The metadata of a list.
#[derive(Debug, Clone, Default)]
pub(super) struct Head {
    pub(super) revision: Revision,
    pub(super) continue_token: Option<String>,
    pub(super) remaining: Option<u64>,
}

impl Head {
    /// The `ListMeta`.
    pub(super) fn metadata(&self) -> Value {
        let mut metadata = json!({ "resourceVersion": self.revision.to_string() });
        if let Some(members) = metadata.as_object_mut() {
            if let Some(token) = &self.continue_token {
                members.insert("continue".to_owned(), token.clone().into());
            }
            if let Some(remaining) = self.remaining {
                members.insert("remainingItemCount".to_owned(), remaining.into());
            }
        }
        metadata
    }
}

/// A page of objects.
pub(super) struct Page {
    pub(super) head: Head,
    pub(super) objects: Objects,
}

/// Encodes a page piece by piece.
pub(super) trait PageEncoder: Send + 'static {
    /// Writes the document up to its first object.
    fn write_start(&self, out: &mut BytesMut, head: &Head) -> Result<(), ApiError>;

    /// Writes an object.
    fn write(&self, out: &mut BytesMut, object: &CachedObject, first: bool) -> Result<(), ApiError>;

    /// Writes the rest of the document after its last object.
    fn write_end(&self, out: &mut BytesMut, is_empty: bool);
}
