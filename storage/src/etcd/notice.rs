//! What members of etcd do that people should know of. The log has the same.

use std::fmt;
use std::time::Duration;

use tokio::sync::broadcast;

/// How many notices wait for a reader; it misses older ones.
const QUEUE: usize = 64;

/// What changed at a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdMemberChange {
    /// It does not serve any more.
    Gone {
        /// What was tried, and what came of it.
        reason: String,
    },
    /// It serves again.
    Serves,
    /// It answers late.
    Slow {
        /// How long it took.
        took: Duration,
    },
    /// It says that etcd is full: deletes only.
    Full,
    /// It says that etcd has space again.
    HasSpace,
}

/// A change at a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdNotice {
    /// The client URL of the member.
    pub endpoint: String,
    /// What changed.
    pub change: EtcdMemberChange,
}

impl fmt::Display for EtcdNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = &self.endpoint;
        match &self.change {
            EtcdMemberChange::Gone { reason } => {
                write!(f, "the member of etcd at {endpoint} does not serve: {reason}")
            }
            EtcdMemberChange::Serves => write!(f, "the member of etcd at {endpoint} serves again"),
            EtcdMemberChange::Slow { took } => {
                write!(
                    f,
                    "the member of etcd at {endpoint} is slow: a probe took {took:.1?}"
                )
            }
            EtcdMemberChange::Full => write!(
                f,
                "the member of etcd at {endpoint} raised the NOSPACE alarm: only deletes are accepted"
            ),
            EtcdMemberChange::HasSpace => write!(f, "the member of etcd at {endpoint} has space again"),
        }
    }
}

/// Where notices are sent.
#[derive(Debug)]
pub(super) struct Notices(broadcast::Sender<EtcdNotice>);

impl Default for Notices {
    fn default() -> Self {
        Self(broadcast::Sender::new(QUEUE))
    }
}

impl Notices {
    pub(super) fn send(&self, endpoint: &str, change: EtcdMemberChange) {
        let notice = EtcdNotice {
            endpoint: endpoint.to_owned(),
            change,
        };
        // Nobody has to listen.
        let _unheard = self.0.send(notice);
    }

    pub(super) fn receive(&self) -> broadcast::Receiver<EtcdNotice> {
        self.0.subscribe()
    }
}
