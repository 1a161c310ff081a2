//! The EvictionInterceptor objects that this server stores, for admission.

use std::sync::Arc;

use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictioninterceptor::{EvictionInterceptor, KIND};
use drydock_storage::Store;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::pod_interceptors::InterceptorRules;
use crate::error::ApiError;
use crate::registry::store::ResourceStore;

/// The stored objects, and the names that interceptors may have.
pub struct StoredRules<S: Store> {
    store: Arc<ResourceStore<S>>,
    names: AllowedNames,
}

impl<S: Store> StoredRules<S> {
    /// `None` if the server does not serve the kind.
    #[must_use]
    pub fn of(stores: &[Arc<ResourceStore<S>>], names: AllowedNames) -> Option<Self> {
        let mut stores = stores.iter();
        let store = stores.find(|store| store.resource.plural == KIND.plural)?;
        Some(Self {
            store: Arc::clone(store),
            names,
        })
    }
}

impl<S: Store> InterceptorRules for StoredRules<S> {
    fn all(&self) -> BoxFuture<'_, Result<Vec<EvictionInterceptor>, ApiError>> {
        self.store.objects().boxed()
    }

    fn names(&self) -> &AllowedNames {
        &self.names
    }
}
