//! What is a client told when the storage or the cache refuses?

use drydock_storage::StoreError;

use crate::cache::ReadError;
use crate::error::ApiError;

/// The message of an exact list whose state is gone.
const LIST_TOO_OLD: &str = "The resourceVersion for the provided list is too old.";

fn seconds(wait: std::time::Duration) -> u32 {
    u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).max(1)
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Compacted { .. } => Self::expired(LIST_TOO_OLD, String::new()),
            StoreError::Future { requested, current } => {
                Self::future_resource_version(requested.0, current.0)
            }
            StoreError::Busy { retry_after } => Self::too_many_requests(
                "the storage is busy, please try again later",
                seconds(*retry_after),
            ),
            StoreError::Unknown { .. } => {
                Self::internal("the outcome of the write is unknown: it may or may not have been stored")
            }
            StoreError::ReadOnly { reason } => {
                Self::service_unavailable(format!("the storage is read-only: {reason}"), 30)
            }
            StoreError::TooLarge { limit, .. } => {
                Self::too_large(format!("Request entity too large: limit is {limit}"))
            }
            StoreError::Malformed { .. } | StoreError::Key(_) => {
                Self::internal("the storage refused a malformed write")
            }
            StoreError::Corrupt { key, .. } => {
                Self::storage_read(format!("the stored data of {key} is damaged"))
            }
            StoreError::Closed { .. } => Self::service_unavailable("the storage is closed", 5),
        }
        .because(error)
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Store(error) => error.into(),
            ReadError::NotReady { retry_after } | ReadError::Busy { retry_after } => {
                Self::too_many_requests(error.to_string(), seconds(retry_after))
            }
            ReadError::TooLargeResourceVersion { requested, current } => {
                Self::future_resource_version(requested.0, current.0)
            }
            ReadError::Expired { .. } => Self::expired(LIST_TOO_OLD, String::new()).because(error),
        }
    }
}
