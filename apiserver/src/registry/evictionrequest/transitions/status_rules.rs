//! What the checks of a status update share.

use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictionrequest::{CANCELED, EVICTED, EvictionRequestSpec, EvictionRequestStatus};
use jiff::{SignedDuration, Timestamp};

use crate::registry::conditions::is_true;
use crate::registry::evictionrequest::validation::heartbeat_deadline_seconds;

pub(super) const IMMUTABLE: &str = "field is immutable";
/// The largest accepted difference between a writer's clock and ours.
pub(super) const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(10);

/// What the checks depend on besides the old and the new status.
#[derive(Debug)]
pub(in crate::registry::evictionrequest) struct StatusRules<'a> {
    /// The reserved names that interceptors may use.
    pub(super) names: &'a AllowedNames,
    /// How long the active interceptor may go without a heartbeat.
    pub(super) deadline: SignedDuration,
    pub(super) now: Timestamp,
}

impl<'a> StatusRules<'a> {
    /// The rules for a request with this spec at this time.
    pub(in crate::registry::evictionrequest) fn new(
        spec: &EvictionRequestSpec,
        names: &'a AllowedNames,
        now: Timestamp,
    ) -> Self {
        let deadline = SignedDuration::from_secs(heartbeat_deadline_seconds(spec).into());
        Self { names, deadline, now }
    }
}

/// Whether the request is finished: Evicted or Canceled is True.
pub(super) fn is_final(status: &EvictionRequestStatus) -> bool {
    is_true(&status.conditions, EVICTED) || is_true(&status.conditions, CANCELED)
}
