//! Events at the host about members of etcd: people who look at the cluster see which one is gone, slow or full.
//!
//! They are about the `APIService` of the newest version, since that is what fails when etcd does. A member that comes and goes
//! causes one event of a kind in a minute; the log has every change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backend::{EtcdMemberChange, EtcdNotice};
use crate::host::{Host, HostEvent};

const API_SERVICE: &str = "v1alpha3.coordination.k8s.io";
/// The shortest time between two events of one kind about one member.
const AGAIN: Duration = Duration::from_mins(1);
/// The largest note that the host accepts.
const NOTE_BYTES: usize = 1024;

/// Records events until `stopped`, or until the store is gone.
pub(crate) async fn run(mut notices: Receiver<EtcdNotice>, host: Arc<dyn Host>, stopped: CancellationToken) {
    let mut reported = Reported::default();
    loop {
        let notice = tokio::select! {
            () = stopped.cancelled() => return,
            notice = notices.recv() => notice,
        };
        match notice {
            Ok(notice) => {
                if reported.is_due(&notice, Instant::now()) {
                    host.record_event(event(&notice));
                }
            }
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// When what was reported last. Bounded by the number of endpoints.
#[derive(Default)]
struct Reported(HashMap<(String, &'static str), Instant>);

impl Reported {
    fn is_due(&mut self, notice: &EtcdNotice, now: Instant) -> bool {
        let last = self.0.entry((notice.endpoint.clone(), reason(&notice.change)));
        match last {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(now);
                true
            }
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                let is_due = now.duration_since(*entry.get()) >= AGAIN;
                if is_due {
                    entry.insert(now);
                }
                is_due
            }
        }
    }
}

fn reason(change: &EtcdMemberChange) -> &'static str {
    match change {
        EtcdMemberChange::Gone { .. } => "EtcdMemberGone",
        EtcdMemberChange::Serves => "EtcdMemberServes",
        EtcdMemberChange::Slow { .. } => "EtcdMemberSlow",
        EtcdMemberChange::Full => "EtcdFull",
        EtcdMemberChange::HasSpace => "EtcdHasSpace",
    }
}

fn event(notice: &EtcdNotice) -> HostEvent {
    let mut note = notice.to_string();
    note.truncate(note.floor_char_boundary(NOTE_BYTES));
    HostEvent {
        api_version: "apiregistration.k8s.io/v1".to_owned(),
        kind: "APIService".to_owned(),
        namespace: String::new(),
        name: API_SERVICE.to_owned(),
        uid: String::new(),
        warning: !matches!(
            notice.change,
            EtcdMemberChange::Serves | EtcdMemberChange::HasSpace
        ),
        reason: reason(&notice.change).to_owned(),
        action: "Probe".to_owned(),
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(endpoint: &str, reason: &str) -> EtcdNotice {
        EtcdNotice {
            endpoint: endpoint.to_owned(),
            change: EtcdMemberChange::Gone {
                reason: reason.to_owned(),
            },
        }
    }

    #[test]
    fn events_name_the_member_and_fit() {
        let found = event(&gone("https://a:2379", &"ä".repeat(2000)));
        assert!(found.warning && found.reason == "EtcdMemberGone");
        let start = "the member of etcd at https://a:2379 does not serve: ä";
        assert!(found.note.starts_with(start), "{}", found.note);
        assert!((NOTE_BYTES - 1..=NOTE_BYTES).contains(&found.note.len()));
        let back = EtcdNotice {
            change: EtcdMemberChange::Serves,
            ..gone("https://a:2379", "")
        };
        assert!(!event(&back).warning);
    }

    #[test]
    fn every_change_is_an_event_of_its_own_that_names_the_member() {
        let took = Duration::from_millis(1530);
        for (change, reason, warning, note) in [
            (
                EtcdMemberChange::Slow { took },
                "EtcdMemberSlow",
                true,
                "is slow: a probe took 1.5s",
            ),
            (
                EtcdMemberChange::Serves,
                "EtcdMemberServes",
                false,
                "serves again",
            ),
            (
                EtcdMemberChange::Full,
                "EtcdFull",
                true,
                "raised the NOSPACE alarm: only deletes are accepted",
            ),
            (
                EtcdMemberChange::HasSpace,
                "EtcdHasSpace",
                false,
                "has space again",
            ),
        ] {
            let found = event(&EtcdNotice {
                endpoint: "https://a:2379".to_owned(),
                change,
            });
            assert_eq!((found.reason.as_str(), found.warning), (reason, warning));
            assert_eq!(found.note, format!("the member of etcd at https://a:2379 {note}"));
        }
    }

    #[test]
    fn a_member_that_comes_and_goes_is_reported_once_a_minute() {
        let (mut reported, began) = (Reported::default(), Instant::now());
        let mut is_due =
            |endpoint, seconds| reported.is_due(&gone(endpoint, "x"), began + Duration::from_secs(seconds));
        assert_eq!(
            [
                ("a", 0),
                ("a", 59),
                ("b", 59),
                ("a", 60),
                ("a", 61),
                ("b", 118),
                ("b", 119)
            ]
            .map(|(endpoint, seconds)| is_due(endpoint, seconds)),
            [true, false, true, true, false, false, true]
        );
    }
}
