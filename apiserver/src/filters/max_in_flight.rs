//! Limits how many requests are handled at a time, with 429 for the rest.
//!
//! The host applies its own flow control to requests that come through the aggregator; this is the last defence.
//! Discovery, health, watches and `system:masters` (the availability checks) are exempt.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::state::RequestState;
use crate::{
    error::ApiError,
    metrics::Metrics,
    request::{RequestInfo, UserInfo, user::MASTERS},
};

/// Limits on concurrent requests. 0 = no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightLimits {
    /// Reads.
    pub reading: usize,
    /// Writes.
    pub mutating: usize,
}

impl Default for InFlightLimits {
    fn default() -> Self {
        Self {
            reading: 400,
            mutating: 200,
        }
    }
}

#[derive(Debug)]
pub(super) struct MaxInFlight {
    reading: Option<Arc<Semaphore>>,
    mutating: Option<Arc<Semaphore>>,
}

impl MaxInFlight {
    pub(super) fn new(limits: InFlightLimits) -> Self {
        let semaphore =
            |limit: usize| (limit > 0).then(|| Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS))));
        Self {
            reading: semaphore(limits.reading),
            mutating: semaphore(limits.mutating),
        }
    }

    /// Takes a permit for the request and counts a rejection.
    pub(super) fn filter(
        &self,
        state: &RequestState,
        user: &UserInfo,
        metrics: &Metrics,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        self.enter(&state.info, user).inspect_err(|error| {
            if let Some(labels) = &state.labels {
                metrics.terminated(labels, error.code().as_u16());
            }
        })
    }

    /// Takes a permit for the request, if it needs one.
    fn enter(&self, info: &RequestInfo, user: &UserInfo) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        if info.resource.is_none() || info.is_long_running() || user.in_group(MASTERS) {
            return Ok(None);
        }
        let permits = if info.is_mutating() {
            &self.mutating
        } else {
            &self.reading
        };
        let Some(permits) = permits else { return Ok(None) };
        Arc::clone(permits)
            .try_acquire_owned()
            .map(Some)
            .map_err(|_| ApiError::overloaded())
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::request::Query;

    #[test]
    fn reads_and_writes_have_separate_limits() {
        let limit = MaxInFlight::new(InFlightLimits {
            reading: 1,
            mutating: 1,
        });
        let user = UserInfo {
            name: "u".to_owned(),
            ..UserInfo::default()
        };
        let masters = UserInfo {
            groups: vec![MASTERS.to_owned()],
            ..user.clone()
        };
        let enter = |method: Method, target: &str, user: &UserInfo| {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            limit.enter(
                &RequestInfo::parse(&method, path, &Query::parse(query)).unwrap(),
                user,
            )
        };
        let read = enter(Method::GET, "/apis/g/v/rs", &user).unwrap().unwrap();
        let rejected = enter(Method::GET, "/apis/g/v/rs", &user).unwrap_err();
        assert_eq!(rejected.code(), 429);
        let _write = enter(Method::POST, "/apis/g/v/rs", &user).unwrap().unwrap();
        assert!(enter(Method::PUT, "/apis/g/v/rs/x", &user).is_err());
        for (target, user) in [
            ("/apis/g/v/rs", &masters),
            ("/apis/g/v/rs?watch=1", &user),
            ("/apis/g/v", &user),
            ("/readyz", &user),
        ] {
            assert!(enter(Method::GET, target, user).unwrap().is_none(), "{target}");
        }
        drop(read);
        assert!(enter(Method::GET, "/apis/g/v/rs", &user).is_ok());
    }
}
