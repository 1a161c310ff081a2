//! Shares the server's capacity fairly between users, with 429 for what is too much.
//!
//! Requests belong to a priority level with seats of its own, so that no level takes those of another; within a level the
//! seats are shared between users. This is the priority and fairness of Kubernetes in small: fixed levels, and a request
//! takes one seat of those for reads or for writes until its handler is done.

mod queues;

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use tokio::time::Instant;

use self::queues::{Queues, Seat, Shape};
use super::state::RequestState;
use crate::{
    error::ApiError,
    metrics::{FlowExecuting, Metrics},
    request::{RequestInfo, UserInfo, user::MASTERS},
};

/// How long a request may wait for a seat: a quarter of the time that a request has.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// Groups of the components of the host.
const SYSTEM_GROUPS: [&str; 2] = ["system:nodes", "system:serviceaccounts:kube-system"];
const SYSTEM_PREFIX: &str = "system:";
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

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

/// The importance of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// Never waits: health, discovery, watches, and `system:masters` with the availability checks of the front proxy.
    Exempt,
    /// Components and controllers of the host.
    System,
    /// Everybody else with a name.
    Workload,
    /// Anonymous users, as the front proxy names them. Others are refused before.
    Anonymous,
}

impl Level {
    const LIMITED: [Self; 3] = [Self::System, Self::Workload, Self::Anonymous];

    fn of(info: &RequestInfo, user: &UserInfo) -> Self {
        if info.resource.is_none() || info.is_long_running() || user.in_group(MASTERS) {
            return Self::Exempt;
        }
        let is_component =
            user.name.starts_with(SYSTEM_PREFIX) && !user.name.starts_with(SERVICE_ACCOUNT_PREFIX);
        if user.is_anonymous() {
            Self::Anonymous
        } else if is_component || SYSTEM_GROUPS.iter().any(|group| user.in_group(group)) {
            Self::System
        } else {
            Self::Workload
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Exempt => "exempt",
            Self::System => "system",
            Self::Workload => "workload",
            Self::Anonymous => "anonymous",
        }
    }

    /// The part of `seats` that belongs to the level, and its queues.
    fn shape(self, seats: usize) -> Shape {
        let (percent, queues, hand) = match self {
            Self::Exempt => (0, 1, 1),
            Self::System => (30, 16, 4),
            Self::Workload => (60, 64, 4),
            Self::Anonymous => (10, 1, 1),
        };
        Shape {
            seats: (seats.saturating_mul(percent) / 100).max(1),
            queues,
            hand,
            length: 50,
        }
    }
}

/// The seats of the levels for one kind of request; none without a limit.
#[derive(Debug)]
struct Levels(Option<[Queues; 3]>);

impl Levels {
    fn new(seats: usize) -> Self {
        Self((seats > 0).then(|| Level::LIMITED.map(|level| Queues::new(level.shape(seats)))))
    }

    fn of(&self, level: Level) -> Option<&Queues> {
        let at = Level::LIMITED.iter().position(|limited| *limited == level)?;
        self.0.as_ref()?.get(at)
    }
}

#[derive(Debug)]
pub(super) struct FlowControl {
    reading: Levels,
    mutating: Levels,
    hasher: RandomState,
}

/// A request that is handled, until dropped.
pub(super) struct Admitted {
    _seat: Seat,
    _executing: FlowExecuting,
}

impl FlowControl {
    pub(super) fn new(limits: InFlightLimits, metrics: &Metrics) -> Self {
        for level in Level::LIMITED {
            let seats = [limits.reading, limits.mutating].map(|seats| level.shape(seats).seats);
            metrics.flow().set_seats(level.as_str(), seats.iter().sum());
        }
        Self {
            reading: Levels::new(limits.reading),
            mutating: Levels::new(limits.mutating),
            hasher: RandomState::new(),
        }
    }

    /// Waits for a seat, if the request needs one.
    ///
    /// # Errors
    /// 429 when too many requests of the user wait, or this one has waited too long.
    pub(super) async fn filter(
        &self,
        state: &RequestState,
        user: &UserInfo,
        deadline: Option<Instant>,
        metrics: &Metrics,
    ) -> Result<Option<Admitted>, ApiError> {
        let level = Level::of(&state.info, user);
        let levels = if state.info.is_mutating() {
            &self.mutating
        } else {
            &self.reading
        };
        let Some(queues) = levels.of(level) else {
            metrics.flow().dispatched(level.as_str());
            return Ok(None);
        };
        let waiting = metrics.flow().waiting(level.as_str());
        let latest = state.received + MAX_WAIT;
        let latest = deadline.map_or(latest, |deadline| latest.min(deadline));
        match queues.enter(self.hasher.hash_one(&user.name), latest).await {
            Ok(seat) => Ok(Some(Admitted {
                _seat: seat,
                _executing: waiting.dispatched(),
            })),
            Err(rejection) => {
                waiting.rejected(rejection.as_str());
                let error = ApiError::overloaded();
                if let Some(labels) = &state.labels {
                    metrics.terminated(labels, error.code().as_u16());
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::request::Query;

    fn level(target: &str, name: &str, groups: &[&str]) -> Level {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let info = RequestInfo::parse(&Method::GET, path, &Query::parse(query)).unwrap();
        let user = UserInfo {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..UserInfo::default()
        };
        Level::of(&info, &user)
    }

    #[test]
    fn requests_belong_to_a_level_by_their_user_and_path() {
        let list = "/apis/g/v/rs";
        for (target, name, groups, expected) in [
            (list, "alice", &[][..], Level::Workload),
            (list, "alice", &[MASTERS], Level::Exempt),
            (list, "system:anonymous", &[], Level::Anonymous),
            (list, "system:kube-scheduler", &[], Level::System),
            (list, "system:node:n", &["system:nodes"], Level::System),
            (
                list,
                "system:serviceaccount:a:b",
                &["system:serviceaccounts:a"],
                Level::Workload,
            ),
            (
                list,
                "system:serviceaccount:kube-system:b",
                &["system:serviceaccounts:kube-system"],
                Level::System,
            ),
            ("/apis/g/v/rs?watch=1", "alice", &[], Level::Exempt),
            ("/apis/g/v", "alice", &[], Level::Exempt),
            ("/readyz", "system:anonymous", &[], Level::Exempt),
        ] {
            assert_eq!(level(target, name, groups), expected, "{target} {name}");
        }
    }

    #[test]
    fn every_level_has_a_seat_of_each_kind() {
        let levels = Levels::new(1);
        assert!(Level::LIMITED.iter().all(|level| levels.of(*level).is_some()));
        assert!(levels.of(Level::Exempt).is_none());
        assert!(Levels::new(0).of(Level::Workload).is_none());
        assert_eq!(Level::Workload.shape(200).seats, 120);
        assert_eq!(Level::Anonymous.shape(usize::MAX).seats, usize::MAX / 100);
    }
}
