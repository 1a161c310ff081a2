//! Requests that ended without their pod, or that cannot be written.

use super::*;
use crate::nodemaintenance::model::{Deletion, Obstacle};

/// A cluster whose only pod has this request.
fn with_request(request: RequestFacts) -> Cluster {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.maintenance("m", &[node], &full_plan());
    cluster.pods(node, 1, 0);
    cluster.settle();
    cluster.state.requests.insert("uid-1".to_owned(), request);
    cluster
}

fn canceled(ended: Timestamp, replaced: u32) -> RequestFacts {
    RequestFacts {
        has_maintenance_requester: true,
        state: RequestState::Canceled,
        ended: Some(ended),
        replaced,
        obstacle: Some(Obstacle {
            since: ended,
            reason: "RequestObstructed".to_owned(),
            message: "ValidationFailed: pod web belongs to a group".to_owned(),
        }),
        ..RequestFacts::default()
    }
}

fn blocker(cluster: &Cluster) -> Option<(String, String)> {
    let [blocker] = cluster.status(0).blockers.as_slice() else {
        return None;
    };
    Some((blocker.reason.clone(), blocker.message.clone()))
}

#[test]
fn canceled_request_is_replaced_five_times_with_growing_pauses_and_then_named() {
    let mut replacements = Vec::new();
    let mut cluster = with_request(canceled(now(), 0));
    for _ in 0..600 {
        let plan = cluster.execute();
        if let [(_, RequestAction::Replace { count })] = plan.requests.as_slice() {
            replacements.push((cluster.elapsed, *count));
            // The new one is canceled at once.
            let request = canceled(cluster.now(), *count);
            cluster.state.requests.insert("uid-1".to_owned(), request);
        } else if cluster.status(0).blockers.is_empty() {
            assert_eq!(replacements.len(), 1, "named while it waits");
        }
        cluster.elapsed += 1;
    }
    assert_eq!(replacements, [(0, 1), (5, 2), (15, 3), (35, 4), (75, 5)]);
    let (reason, message) = blocker(&cluster).unwrap();
    assert_eq!(reason, "RequestObstructed");
    assert_eq!(message, "ValidationFailed: pod web belongs to a group");
    assert_eq!(cluster.execute(), Plan::default(), "nothing is tried for ever");
}

#[test]
fn replacements_of_an_earlier_drain_do_not_count() {
    let before = Timestamp::from_second(now().as_second() - 10).unwrap();
    let mut cluster = with_request(canceled(before, 5));
    assert_eq!(
        cluster.execute().requests,
        [(0, RequestAction::Replace { count: 1 })]
    );
}

#[test]
fn waiting_for_a_replacement_sets_the_time_of_the_next_plan() {
    let mut cluster = with_request(canceled(now(), 2));
    let due = Timestamp::from_second(now().as_second() + 10).unwrap();
    cluster.settle();
    assert_eq!(cluster.execute().next, Some(due));
}

#[test]
fn request_that_may_not_be_deleted_is_named() {
    let mut cluster = with_request(RequestFacts {
        is_cancellation_forbidden: true,
        ..canceled(now(), 0)
    });
    cluster.settle();
    assert_eq!(blocker(&cluster).unwrap().0, "RequestObstructed");
}

#[test]
fn request_with_the_name_of_another_pod_is_named_and_replaced_when_it_ends() {
    let mut cluster = with_request(RequestFacts {
        other_pod: Some("other".to_owned()),
        ..RequestFacts::default()
    });
    cluster.settle();
    let (reason, message) = blocker(&cluster).unwrap();
    assert_eq!(reason, "RequestObstructed");
    assert_eq!(
        message,
        "The eviction request has the UID of pod pod-1 and names pod other."
    );
    cluster.state.requests.insert(
        "uid-1".to_owned(),
        RequestFacts {
            other_pod: Some("other".to_owned()),
            ..canceled(now(), 0)
        },
    );
    cluster.settle();
    assert!(cluster.state.requests["uid-1"].is_active_for_maintenance());
    assert_eq!(blocker(&cluster), None);
}

#[test]
fn request_held_by_a_finalizer_is_named_after_a_minute() {
    let mut cluster = with_request(RequestFacts {
        has_maintenance_requester: true,
        deletion: Some(Deletion {
            since: now(),
            finalizers: vec!["a.example.com/hold".to_owned()],
        }),
        ..RequestFacts::default()
    });
    cluster.settle();
    let reported = Timestamp::from_second(now().as_second() + 60).unwrap();
    assert_eq!(cluster.execute().next, Some(reported));
    assert_eq!(blocker(&cluster), None);
    cluster.elapsed += 60;
    cluster.settle();
    let (reason, message) = blocker(&cluster).unwrap();
    assert_eq!(reason, "RequestObstructed");
    assert!(
        message.ends_with("held by finalizers: a.example.com/hold."),
        "{message}"
    );
    assert_eq!(cluster.execute().next, None);
}

#[test]
fn request_that_is_evicted_while_its_pod_stays_is_replaced_after_a_minute() {
    let mut cluster = with_request(RequestFacts {
        state: RequestState::Evicted,
        ended: Some(now()),
        ..RequestFacts::default()
    });
    cluster.settle();
    assert!(cluster.execute().requests.is_empty());
    cluster.elapsed += 60;
    assert_eq!(
        cluster.execute().requests,
        [(0, RequestAction::Replace { count: 1 })]
    );
}

#[test]
fn pods_of_a_terminating_namespace_are_named_and_not_requested() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.maintenance("m", &[node], &full_plan());
    cluster.pods(node, 1, 0);
    cluster.state.pods[0].namespace_deleted = Some(now());
    cluster.settle();
    assert!(cluster.state.requests.is_empty());
    assert_eq!(blocker(&cluster).unwrap().0, "NamespaceTerminating");
    assert_eq!(cluster.status(0).conditions[0].status, "False");
}

#[test]
fn refused_requests_are_named_and_told_once() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.maintenance("m", &[node], &full_plan());
    cluster.pods(node, 1, 0);
    let obstacle = Obstacle {
        since: now(),
        reason: "RequestRefused".to_owned(),
        message: "The eviction request was refused: no (403)".to_owned(),
    };
    cluster.state.refused.insert("uid-1".to_owned(), obstacle);
    cluster.execute();
    assert_eq!(blocker(&cluster).unwrap().0, "RequestRefused");
    assert_eq!(cluster.status(0).blockers[0].request, "");
    let told = |cluster: &Cluster| {
        let is_told = |event: &&MaintenanceEvent| matches!(event, MaintenanceEvent::Blocked { description, .. } if description.starts_with("RequestRefused: pod shop/pod-1 on node one:"));
        cluster.events.iter().filter(is_told).count()
    };
    assert_eq!(told(&cluster), 1);
    cluster.execute();
    assert_eq!(told(&cluster), 1);
}
