//! The marker of a prefix: which product wrote it, in which format.
//!
//! It is written together with the first object, and every write is conditional on it: a server stops writing when the
//! prefix was wiped, or taken over by a newer version. An import writes it first, and until all objects were compared it says
//! that the import is unfinished: such a prefix does not open as a store.

use std::sync::RwLock;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::EtcdOpenError;
use super::keyspace::Keyspace;
use crate::{Revision, sync};

/// The product in every marker.
const PRODUCT: &str = "drydock";
/// The format of records and keys that this version writes, and the newest it reads.
const FORMAT: u32 = 1;

/// The content of a marker, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    product: String,
    format: u32,
    store: Uuid,
    /// The objects are those of an import that has not ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    import_unfinished: bool,
}

/// The marker of a store.
#[derive(Debug)]
pub(super) struct Marker {
    content: RwLock<Content>,
    /// When it was written; none if not yet.
    written: RwLock<Option<Revision>>,
    /// It is that of an import, which never becomes one of a store that it finds.
    is_of_import: bool,
}

impl Marker {
    /// The marker of a prefix without one, to be written with the first object.
    pub(super) fn absent() -> Self {
        let content = Content {
            product: PRODUCT.to_owned(),
            format: FORMAT,
            store: Uuid::new_v4(),
            import_unfinished: false,
        };
        Self {
            content: RwLock::new(content),
            written: RwLock::new(None),
            is_of_import: false,
        }
    }

    /// The marker of an import. What it is noted to have been written at is what the import replaces.
    pub(super) fn of_import() -> Self {
        Self {
            is_of_import: true,
            ..Self::absent()
        }
    }

    /// Whether this is the marker of a store of this product, in any format.
    pub(super) fn is_of_product(bytes: &[u8]) -> bool {
        serde_json::from_slice::<Content>(bytes).is_ok_and(|content| content.product == PRODUCT)
    }

    /// Reads the marker that was found. An import refuses that of any store.
    pub(super) fn learn(&self, keys: &Keyspace, bytes: &[u8], at: Revision) -> Result<(), EtcdOpenError> {
        let prefix = || keys.prefix().to_owned();
        let content = serde_json::from_slice::<Content>(bytes)
            .ok()
            .filter(|content| content.product == PRODUCT)
            .ok_or_else(|| EtcdOpenError::OtherProduct { prefix: prefix() })?;
        if content.format > FORMAT {
            return Err(EtcdOpenError::NewerFormat {
                prefix: prefix(),
                found: content.format,
                supported: FORMAT,
            });
        }
        if content.import_unfinished {
            return Err(EtcdOpenError::ImportUnfinished { prefix: prefix() });
        }
        if self.is_of_import {
            return Err(EtcdOpenError::NotEmpty { prefix: prefix() });
        }
        *sync::write(&self.content) = content;
        self.note_written(at);
        Ok(())
    }

    /// Notes that it was written.
    pub(super) fn note_written(&self, at: Revision) {
        *sync::write(&self.written) = Some(at);
    }

    /// When it was written; none if not yet.
    pub(super) fn written(&self) -> Option<Revision> {
        *sync::read(&self.written)
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&*sync::read(&self.content)).unwrap_or_default()
    }

    /// Its bytes until an import has ended.
    pub(super) fn unfinished_bytes(&self) -> Vec<u8> {
        let content = Content {
            import_unfinished: true,
            ..sync::read(&self.content).clone()
        };
        serde_json::to_vec(&content).unwrap_or_default()
    }

    /// The identity of the store.
    pub(super) fn store(&self) -> Uuid {
        sync::read(&self.content).store
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_marker_of_ours_is_accepted() {
        let keys = Keyspace::new("/p").unwrap();
        let marker = Marker::absent();
        assert_eq!(marker.written(), None);
        let other = Marker::absent();
        marker.learn(&keys, &other.bytes(), Revision(7)).unwrap();
        assert_eq!(
            (marker.store(), marker.written()),
            (other.store(), Some(Revision(7)))
        );
        for bytes in [
            "",
            "x",
            r#"{"product":"other","format":1,"store":"00000000-0000-0000-0000-000000000000"}"#,
        ] {
            let found = marker.learn(&keys, bytes.as_bytes(), Revision(8));
            assert!(
                matches!(found, Err(EtcdOpenError::OtherProduct { .. })),
                "{found:?}"
            );
        }
        let newer =
            r#"{"product":"drydock","format":2,"store":"00000000-0000-0000-0000-000000000000","more":1}"#;
        let found = marker.learn(&keys, newer.as_bytes(), Revision(8));
        assert!(
            matches!(
                found,
                Err(EtcdOpenError::NewerFormat {
                    found: 2,
                    supported: 1,
                    ..
                })
            ),
            "{found:?}"
        );
        let found = marker.learn(&keys, &other.unfinished_bytes(), Revision(8));
        assert!(
            matches!(found, Err(EtcdOpenError::ImportUnfinished { .. })),
            "{found:?}"
        );
        assert_eq!(marker.written(), Some(Revision(7)));
    }

    #[test]
    fn an_import_does_not_take_a_store_for_its_own() {
        let keys = Keyspace::new("/p").unwrap();
        let marker = Marker::of_import();
        let found = marker.learn(&keys, &Marker::absent().bytes(), Revision(7));
        assert!(matches!(found, Err(EtcdOpenError::NotEmpty { .. })), "{found:?}");
        assert_eq!(marker.written(), None);
    }
}
