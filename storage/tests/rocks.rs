//! The conformance suite on the embedded engine.
#![expect(clippy::unwrap_used, reason = "tests")]

use drydock_storage::Options;
use drydock_storage::conformance::Backend;
use drydock_storage::rocks::RocksStore;
use tempfile::TempDir;

struct Rocks(TempDir);

impl Rocks {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Backend for Rocks {
    type Store = RocksStore;

    async fn open(&self) -> RocksStore {
        let (store, _) = RocksStore::open(Options::for_tests(self.0.path())).unwrap();
        store
    }
}

drydock_storage::conformance_suite!(crate::Rocks::new());
