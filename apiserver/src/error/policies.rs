//! Rejections by admission policies of the cluster.

use std::borrow::Cow;

use super::{ApiError, Reason, StatusCause, limits};

/// The reason of a rejection by a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyReason {
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 422: the one of policies that name none.
    Invalid,
    /// 413.
    RequestEntityTooLarge,
}

impl PolicyReason {
    /// The reason that a validation names.
    #[must_use]
    pub fn of(name: Option<&str>) -> Self {
        match name {
            Some("Unauthorized") => Self::Unauthorized,
            Some("Forbidden") => Self::Forbidden,
            Some("RequestEntityTooLarge") => Self::RequestEntityTooLarge,
            _ => Self::Invalid,
        }
    }

    const fn reason(self) -> Reason {
        match self {
            Self::Unauthorized => Reason::Unauthorized,
            Self::Forbidden => Reason::Forbidden,
            Self::Invalid => Reason::Invalid,
            Self::RequestEntityTooLarge => Reason::RequestEntityTooLarge,
        }
    }
}

impl ApiError {
    /// A 403 of admission as the rejection of a `ValidatingAdmissionPolicy`: with the code of its reason and its message as
    /// a cause.
    #[must_use]
    pub fn denied_by_policy(mut self, reason: PolicyReason, message: String) -> Self {
        let reason = reason.reason();
        self.0.status.reason = Cow::Borrowed(reason.as_str());
        self.0.status.code = reason.code().as_u16();
        self.causes([StatusCause {
            message,
            ..StatusCause::default()
        }])
    }

    /// A 403 of admission as the rejection of `MutatingAdmissionPolicy` objects that failed: the message is that of the
    /// first, and each is a cause. The code stays 403 whatever the reason is.
    #[must_use]
    pub fn failed_by_policies(mut self, reason: Option<PolicyReason>, messages: Vec<String>) -> Self {
        if let Some(reason) = reason {
            self.0.status.reason = Cow::Borrowed(reason.reason().as_str());
        }
        let mut message = Cow::Owned(messages.first().cloned().unwrap_or_default());
        limits::cut_message(&mut message);
        self.0.status.message = message;
        self.causes(messages.into_iter().map(|message| StatusCause {
            message,
            ..StatusCause::default()
        }))
    }
}
