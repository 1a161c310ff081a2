//! Rejects new objects in a namespace that is missing or being deleted: otherwise its deletion might never finish.

use crate::error::ApiError;
use crate::host::{Host, HostError, Namespace};
use crate::registry::admission::WriteAttributes;

/// Checks the namespace of a new object.
///
/// # Errors
/// 404 for a missing namespace, 403 with the cause that clients match if it is being deleted, 500 or 503 if it cannot be
/// looked up.
pub(super) async fn check(host: &dyn Host, write: &WriteAttributes<'_>) -> Result<(), ApiError> {
    if write.namespace.is_empty() {
        return Ok(());
    }
    match host.namespace(write.namespace).await {
        Ok(Namespace::Active(_)) => Ok(()),
        Ok(Namespace::Missing) => Err(ApiError::namespace_not_found(write.namespace)),
        Ok(Namespace::Terminating(_)) => Err(ApiError::namespace_terminating(
            write.endpoint.group_resource(),
            write.name,
            write.namespace,
        )),
        Err(error) => Err(namespace_not_read(error)),
    }
}

/// The error of a write whose namespace could not be looked up: 503 if the storage is away, else 500.
pub(super) fn namespace_not_read(error: HostError) -> ApiError {
    const TEXT: &str = "the namespace could not be looked up";
    let failed = match &error {
        HostError::Unavailable(_) => ApiError::service_unavailable(TEXT, 1),
        _ => ApiError::internal(TEXT),
    };
    failed.because(error)
}
