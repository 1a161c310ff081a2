//! The API error for each error of the storage and the cache.

use drydock_storage::StoreError;

use crate::cache::ReadError;
use crate::error::{ApiError, StatusCause};
use crate::registry::resource::CORE_KEY_GROUP;

/// The message for a list at a revision that has been compacted.
const LIST_TOO_OLD: &str = "The resourceVersion for the provided list is too old.";

/// What kube-apiserver says about a value that does not open.
fn unopened(key: &str, reason: &str) -> String {
    format!(
        "StorageError: corrupt object, Code: 7, Key: /{key}, ResourceVersion: 0, AdditionalErrorMsg: data from the \
         storage is not transformable revision=0: {reason}"
    )
}

/// Whole seconds for `Retry-After`, at least 1.
fn retry_seconds(wait: std::time::Duration) -> u32 {
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
                retry_seconds(*retry_after),
            ),
            StoreError::Unknown { .. } => {
                Self::timeout("the outcome of the write is unknown: it may or may not have been stored")
            }
            StoreError::ReadOnly { reason } => {
                Self::service_unavailable(format!("the storage is read-only: {reason}"), 30)
            }
            StoreError::Full { reason } => {
                Self::service_unavailable(format!("the storage is full: {reason}"), 30)
            }
            StoreError::TooLarge { limit, .. } => {
                Self::too_large(format!("Request entity too large: limit is {limit}"))
            }
            StoreError::NotDamaged | StoreError::Key(_) => {
                Self::internal("the storage rejected a malformed write")
            }
            StoreError::Corrupt { key, .. } => {
                Self::storage_read(format!("the stored data of {key} is damaged"))
            }
            StoreError::Sealed { key, reason } => Self::internal(unopened(key, reason)),
            StoreError::NotSealed { reason } => Self::internal(reason),
            StoreError::Unavailable { .. } => {
                Self::service_unavailable("the storage is not available at the moment", 5)
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
            ReadError::Sealed(values) => {
                let of = values.first().map_or_else(String::new, |(key, _)| {
                    let group = match key.group() {
                        CORE_KEY_GROUP => String::new(),
                        group => format!(".{group}"),
                    };
                    format!("{}{group}", key.resource())
                });
                let message = format!("failed to read one or more {of} from the storage");
                let causes = values.into_iter().map(|(key, reason)| StatusCause {
                    reason: "UnexpectedServerResponse".into(),
                    message: unopened(key.as_str(), &reason),
                    field: format!("/{key}"),
                });
                Self::storage_read(message).causes(causes)
            }
            ReadError::NotReady { retry_after } | ReadError::Busy { retry_after } => {
                Self::too_many_requests(error.to_string(), retry_seconds(retry_after))
            }
            ReadError::TooLargeResourceVersion { requested, current } => {
                Self::future_resource_version(requested.0, current.0)
            }
            ReadError::Expired { .. } => Self::expired(LIST_TOO_OLD, String::new()).because(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use drydock_storage::Revision;

    use super::*;

    #[track_caller]
    fn check(error: StoreError, code: u16, reason: &str, text: &str, retry_after: u32) {
        let error = ApiError::from(error);
        let status = error.status();
        assert_eq!((status.code, &*status.reason), (code, reason), "{text}");
        assert!(status.message.contains(text), "{}", status.message);
        let details = status.details.clone().unwrap_or_default();
        assert_eq!(details.retry_after_seconds, retry_after, "{text}");
    }

    #[test]
    fn a_write_with_an_unknown_outcome_has_no_retry_after() {
        // Clients repeat a request whose error has a Retry-After.
        let unknown = StoreError::Unknown { source: None };
        check(unknown, 504, "Timeout", "it may or may not have been stored", 0);
    }

    #[test]
    fn each_storage_error_has_its_code_reason_and_retry_after() {
        let busy = |wait| StoreError::Busy {
            retry_after: Duration::from_millis(wait),
        };
        check(busy(10), 429, "TooManyRequests", "busy", 1);
        check(busy(7_900), 429, "TooManyRequests", "busy", 7);
        let (found, limit) = (10, 5);
        check(
            StoreError::TooLarge { found, limit },
            413,
            "RequestEntityTooLarge",
            "limit is 5",
            0,
        );
        let (requested, current, floor) = (Revision(9), Revision(5), Revision(10));
        check(
            StoreError::Future { requested, current },
            504,
            "Timeout",
            "Too large resource version: 9, current: 5",
            1,
        );
        check(
            StoreError::Compacted { requested, floor },
            410,
            "Expired",
            LIST_TOO_OLD,
            0,
        );
        let reason = || "the disk is full".to_owned();
        let read_only = StoreError::ReadOnly { reason: reason() };
        check(read_only, 503, "ServiceUnavailable", "the disk is full", 30);
        let full = StoreError::Full { reason: reason() };
        check(
            full,
            503,
            "ServiceUnavailable",
            "the storage is full: the disk is full",
            30,
        );
        let closed = StoreError::Closed { reason: reason() };
        check(closed, 503, "ServiceUnavailable", "closed", 5);
        let corrupt = StoreError::Corrupt {
            key: "/a".to_owned(),
            reason: reason(),
        };
        check(corrupt, 500, "StorageReadError", "/a", 0);
        let sealed = StoreError::Sealed {
            key: "g/r/n/a".to_owned(),
            reason: "no matching prefix found".to_owned(),
        };
        check(
            sealed,
            500,
            "InternalError",
            "Internal error occurred: StorageError: corrupt object, Code: 7, Key: /g/r/n/a, ResourceVersion: 0, \
             AdditionalErrorMsg: data from the storage is not transformable revision=0: no matching prefix found",
            0,
        );
        let not_sealed = StoreError::NotSealed { reason: reason() };
        check(
            not_sealed,
            500,
            "InternalError",
            "Internal error occurred: the disk is full",
            0,
        );
    }
}
