//! What an error of etcd says: above all, whether the request may have been executed.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use etcd_client::Error;

use crate::StoreError;

/// When to retry a request that etcd did not accept.
const BUSY_RETRY: Duration = Duration::from_secs(1);

/// What a full etcd needs, for people.
const NO_SPACE: &str = "etcd raised its NOSPACE alarm and accepts deletes only: compact and defragment it, raise its \
                        quota, then disarm the alarm";

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// It was not executed: the revision is compacted.
    Compacted,
    /// It was not executed: the revision is in the future.
    Future,
    /// etcd is full. A write that made it full was executed.
    NoSpace,
    /// It was not executed: it is larger than etcd accepts.
    TooLarge,
    /// The answer is larger than this client accepts.
    LargeAnswer,
    /// It was not executed: etcd has too much to do.
    Busy,
    /// It was not executed and never will be.
    Refused(String),
    /// It did not leave this process.
    NotSent(String),
    /// It may or may not have been executed.
    Doubtful(String),
}

/// Codes of gRPC.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

impl Failure {
    /// Reads an error.
    pub(super) fn of(error: &Error) -> Self {
        let Error::GRpcStatus(status) = error else {
            return match error {
                Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                    Self::Refused(error.to_string())
                }
                _ => Self::Doubtful(error.to_string()),
            };
        };
        let said = status.message();
        let text = || {
            let cause = innermost(status).map_or_else(String::new, |cause| format!(": {cause}"));
            format!("{said}{cause}")
        };
        let has = |part: &str| said.contains(part);
        match i32::from(status.code()) {
            _ if has("required revision has been compacted") => Self::Compacted,
            _ if has("required revision is a future revision") => Self::Future,
            _ if has("database space exceeded") => Self::NoSpace,
            _ if has("request is too large") || has("received message larger than max") => Self::TooLarge,
            _ if has("too many requests") => Self::Busy,
            code::OUT_OF_RANGE | code::RESOURCE_EXHAUSTED if has("message length too large") => {
                Self::LargeAnswer
            }
            code::INVALID_ARGUMENT
            | code::PERMISSION_DENIED
            | code::UNIMPLEMENTED
            | code::UNAUTHENTICATED => Self::Refused(text()),
            _ if is_refused_connection(status) => Self::NotSent(text()),
            _ => Self::Doubtful(text()),
        }
    }

    /// Whether another attempt, maybe at another member, can succeed.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::NotSent(_) | Self::Doubtful(_) | Self::Busy)
    }

    /// The error of a read.
    pub(super) fn of_read(self) -> StoreError {
        match self {
            Self::Doubtful(reason) => StoreError::Unavailable { reason },
            other => other.of_write(),
        }
    }

    /// The error of a write.
    pub(super) fn of_write(self) -> StoreError {
        match self {
            Self::NoSpace => StoreError::Full {
                reason: NO_SPACE.to_owned(),
            },
            Self::TooLarge => StoreError::TooLarge {
                found: crate::Value::MAX_BYTES,
                limit: crate::Value::MAX_BYTES,
            },
            Self::Busy => StoreError::Busy {
                retry_after: BUSY_RETRY,
            },
            Self::Doubtful(reason) => StoreError::Unknown {
                source: Some(reason.into()),
            },
            Self::Refused(reason) | Self::NotSent(reason) => StoreError::Unavailable { reason },
            Self::LargeAnswer => StoreError::Unavailable {
                reason: "an answer of etcd is too large".to_owned(),
            },
            Self::Compacted => StoreError::Unavailable {
                reason: "etcd compacted a revision in use".to_owned(),
            },
            Self::Future => StoreError::Unavailable {
                reason: "etcd is behind a revision it has issued".to_owned(),
            },
        }
    }

    /// What was said, for logs.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Refused(reason) | Self::NotSent(reason) | Self::Doubtful(reason) => reason.clone(),
            other => format!("{other:?}"),
        }
    }
}

/// The last cause of an error.
fn innermost(error: &dyn StdError) -> Option<&(dyn StdError + 'static)> {
    let mut found = error.source()?;
    while let Some(cause) = found.source() {
        found = cause;
    }
    Some(found)
}

/// Whether nobody listens at the address: then nothing was sent.
fn is_refused_connection(error: &dyn StdError) -> bool {
    innermost(error)
        .and_then(|cause| cause.downcast_ref::<io::Error>())
        .is_some_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
}
