//! The list of our kinds: one [`Registration`] for each kind of [`drydock_proto::for_each_kind`].
//!
//! `docs/adding-a-kind.md` shows how to add a kind.

use std::sync::Arc;

use drydock_machinery::names::AllowedNames;

use super::registration::{Registration, UnusableSchema};
use super::resource::Resource;

macro_rules! registrations {
    ($($module:ident),*) => {
        /// Every kind, in the order of discovery.
        pub static REGISTRATIONS: &[&Registration] = &[$(&super::$module::REGISTRATION),*];
    };
}

drydock_proto::for_each_kind!(registrations);

/// The resources of every kind, in the order of discovery.
///
/// # Errors
/// A schema that the API machinery does not support.
pub fn resources(names: &Arc<AllowedNames>) -> Result<Vec<Arc<Resource>>, UnusableSchema> {
    REGISTRATIONS
        .iter()
        .map(|registration| registration.resource(names).map(Arc::new))
        .collect()
}
