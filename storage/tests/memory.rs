//! The conformance suite on the in-memory store.

use drydock_storage::conformance::Backend;
use drydock_storage::memory::MemoryStore;

struct Memory;

impl Backend for Memory {
    type Store = MemoryStore;

    async fn open(&self) -> MemoryStore {
        MemoryStore::new()
    }
}

drydock_storage::conformance_suite!(crate::Memory);
