//! What can go wrong, in words for people, and the exit code that scripts see.

use std::fmt;

/// The exit codes. `docs/kubectl-drydock.md` documents them; a test compares the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// The command did what it was asked to do.
    Success = 0,
    /// An error without a code of its own.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// An object does not exist.
    NotFound = 3,
    /// The user may not do this, or is not known.
    Forbidden = 4,
    /// Drydock is not installed in the cluster, or its server does not respond.
    NotInstalled = 5,
    /// `--timeout` has passed before the end.
    TimedOut = 6,
    /// The server has refused the write: the object is invalid, exists already, or has changed.
    Refused = 7,
    /// `preflight` found something that blocks a drain.
    Blocked = 8,
    /// What was waited for will not happen: the maintenance was completed or deleted, the request was canceled.
    Ended = 9,
    /// The cluster cannot be reached, or the kubeconfig cannot be used.
    Unreachable = 10,
    /// Interrupted with Ctrl-C.
    Interrupted = 130,
}

impl ExitStatus {
    /// All codes in order, with what they mean in a few words.
    pub const ALL: [(Self, &'static str); 12] = [
        (Self::Success, "success"),
        (Self::Failure, "an error without a code of its own"),
        (Self::Usage, "the command line is wrong"),
        (Self::NotFound, "an object does not exist"),
        (Self::Forbidden, "the user may not do this"),
        (Self::NotInstalled, "Drydock is not installed or not available"),
        (Self::TimedOut, "--timeout has passed"),
        (Self::Refused, "the server has refused the write"),
        (Self::Blocked, "preflight found something that blocks a drain"),
        (Self::Ended, "what was waited for will not happen"),
        (Self::Unreachable, "the cluster cannot be reached"),
        (Self::Interrupted, "interrupted with Ctrl-C"),
    ];

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong in a way that clap cannot see.
    #[error("{0}")]
    Usage(String),
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(String),
    /// The cluster cannot be reached.
    #[error("the cluster cannot be reached: {0}")]
    Unreachable(String),
    /// No response within `--request-timeout`.
    #[error("no response from the cluster within {0} s (--request-timeout)")]
    NoResponse(u64),
    /// The cluster does not serve Drydock's kinds.
    #[error(
        "Drydock is not installed in this cluster: it does not serve coordination.k8s.io/v1alpha3. See deploy/README.md, \
         or choose another cluster with --context"
    )]
    NotInstalled,
    /// Drydock's API is registered, and its server does not respond.
    #[error(
        "Drydock is installed, and its server is not available: {0}\nSee: kubectl get apiservice v1alpha3.coordination.k8s.io; kubectl get pods -n drydock-system"
    )]
    NotAvailable(String),
    /// An object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The user may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// The server has refused the write.
    #[error("{0}")]
    Refused(String),
    /// `--timeout` has passed.
    #[error("{0}")]
    TimedOut(String),
    /// What was waited for will not happen.
    #[error("{0}")]
    Ended(String),
    /// `preflight` found something that blocks a drain, and has printed it.
    #[error("something blocks a drain")]
    Blocked,
    /// Another error response.
    #[error("{message} ({code})")]
    Response {
        /// The HTTP status.
        code: u16,
        /// The message of the server.
        message: String,
    },
    /// A response that is not what the API promises.
    #[error("the response of the server cannot be read: {0}")]
    Decode(String),
    /// A file or the terminal.
    #[error("{what}: {source}")]
    Io {
        /// What was read or written.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The reader of the output has gone, such as `head`. Not worth a message.
    #[error("the output was closed")]
    OutputClosed,
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// The exit code.
    #[must_use]
    pub const fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Usage(_) => ExitStatus::Usage,
            Self::Kubeconfig(_) | Self::Unreachable(_) | Self::NoResponse(_) => ExitStatus::Unreachable,
            Self::NotInstalled | Self::NotAvailable(_) => ExitStatus::NotInstalled,
            Self::NotFound(_) => ExitStatus::NotFound,
            Self::Forbidden(_) => ExitStatus::Forbidden,
            Self::Refused(_) => ExitStatus::Refused,
            Self::TimedOut(_) => ExitStatus::TimedOut,
            Self::Ended(_) => ExitStatus::Ended,
            Self::Blocked => ExitStatus::Blocked,
            Self::Interrupted => ExitStatus::Interrupted,
            Self::OutputClosed => ExitStatus::Success,
            Self::Response { .. } | Self::Decode(_) | Self::Io { .. } => ExitStatus::Failure,
        }
    }

    /// Whether it says that an object does not exist.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }

    /// Whether it says that the user may not read something. Commands that can do without it go on.
    #[must_use]
    pub const fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden(_))
    }

    /// An error of input or output.
    pub(crate) fn io(what: impl fmt::Display, source: std::io::Error) -> Self {
        if source.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::OutputClosed;
        }
        Self::Io {
            what: what.to_string(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_distinct_and_complete() {
        let codes: std::collections::BTreeSet<u8> =
            ExitStatus::ALL.iter().map(|(status, _)| status.code()).collect();
        assert_eq!(codes.len(), ExitStatus::ALL.len());
        assert_eq!(codes.first(), Some(&0));
    }

    #[test]
    fn documentation_lists_every_exit_code() {
        let page = include_str!("../../docs/kubectl-drydock.md");
        for (status, meaning) in ExitStatus::ALL {
            let row = format!("| {} | {meaning} |", status.code());
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn a_closed_output_is_no_error() {
        let error = Error::io("write", std::io::ErrorKind::BrokenPipe.into());
        assert_eq!(error.exit_status(), ExitStatus::Success);
        let error = Error::io("read plan.yaml", std::io::ErrorKind::NotFound.into());
        assert_eq!(error.exit_status(), ExitStatus::Failure);
        assert!(error.to_string().starts_with("read plan.yaml: "));
    }
}
