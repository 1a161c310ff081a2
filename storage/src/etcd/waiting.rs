//! Reads of the current revision that wait for the next request.

use std::sync::Mutex;

use tokio::sync::oneshot;

use super::failure::Failure;
use crate::Revision;

/// The answer to one caller.
pub(super) type Answer = Result<Revision, Failure>;

/// Callers that wait for the next request.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) callers: Mutex<Callers>,
}

/// See [`Waiting`].
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Where their answers go.
    pub(super) answers: Vec<oneshot::Sender<Answer>>,
    /// Whether a task sends requests until nobody waits.
    pub(super) is_running: bool,
}
