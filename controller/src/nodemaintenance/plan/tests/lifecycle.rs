use super::*;

#[test]
fn idle_maintenance_changes_nothing_and_the_finalizer_is_added_first() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    let maintenance = cluster.maintenance("m", &[node], &full_plan());
    cluster.pods(node, 1, 0);
    cluster.state.maintenances[maintenance].has_finalizer = false;
    cluster.state.maintenances[maintenance].stage = Stage::Idle;
    assert_eq!(cluster.execute(), Plan::default());
    cluster.state.maintenances[maintenance].stage = Stage::Drain;
    let plan = cluster.execute();
    assert!(plan.nodes.is_empty() && plan.requests.is_empty());
    assert_eq!(
        plan.maintenances,
        [(
            maintenance,
            MaintenanceAction::AddFinalizer { is_restored: false }
        )]
    );
}

#[test]
fn completion_withdraws_requests_and_restores_schedulability() {
    let mut cluster = Cluster::default();
    let [mine, shared, cordoned] = ["mine", "shared", "cordoned"].map(|name| cluster.node(name));
    cluster.state.nodes[cordoned].is_unschedulable = true;
    let first = cluster.maintenance("first", &[mine, shared, cordoned], &full_plan());
    let second = cluster.maintenance("second", &[shared], &full_plan());
    for node in [mine, shared, cordoned] {
        cluster.pods(node, 1, 0);
    }
    cluster.settle();
    assert!(cluster.state.nodes.iter().all(|node| node.is_unschedulable));
    // The cancellation of one request is forbidden, so the maintenance waits for it.
    let forbidden = cluster.state.pods[0].uid.clone();
    cluster
        .state
        .requests
        .get_mut(&forbidden)
        .unwrap()
        .is_cancellation_forbidden = true;
    cluster.state.maintenances[first].is_deleting = true;
    cluster.settle();
    let unschedulable: Vec<_> = cluster
        .state
        .nodes
        .iter()
        .map(|node| node.is_unschedulable)
        .collect();
    assert_eq!(unschedulable, [false, true, true]);
    assert_eq!(cluster.state.maintenances[first].stage, Stage::Complete);
    assert!(cluster.state.maintenances[first].has_finalizer);
    let requested = |cluster: &Cluster| {
        cluster
            .state
            .requests
            .values()
            .filter(|request| request.has_maintenance_requester)
            .count()
    };
    assert_eq!(
        requested(&cluster),
        2,
        "the forbidden one, and that of the other maintenance"
    );
    cluster.state.pods.remove(0);
    cluster.settle();
    assert!(!cluster.state.maintenances[first].has_finalizer);
    assert!(cluster.events.contains(&MaintenanceEvent::Completed {
        maintenance: "first".to_owned()
    }));
    assert!(cluster.state.nodes[shared].record.is_some());

    cluster.state.maintenances[second].stage = Stage::Complete;
    cluster.settle();
    assert!(
        cluster
            .state
            .nodes
            .iter()
            .all(|node| node.record.is_none() && !node.is_tainted)
    );
    assert!(!cluster.state.nodes[shared].is_unschedulable);
    assert_eq!(requested(&cluster), 1, "only the one whose pod is gone");
}

#[test]
fn node_made_schedulable_is_cordoned_again_and_reported() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.maintenance("m", &[node], &full_plan());
    cluster.settle();
    assert!(
        cluster
            .events
            .iter()
            .all(|event| !matches!(event, MaintenanceEvent::CordonConflict { .. }))
    );
    cluster.state.nodes[node].is_unschedulable = false;
    cluster.settle();
    assert!(cluster.state.nodes[node].is_unschedulable);
    assert!(
        cluster
            .events
            .iter()
            .any(|event| matches!(event, MaintenanceEvent::CordonConflict { .. }))
    );
}

#[test]
fn requests_are_created_joined_and_replaced() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.maintenance("m", &[node], &full_plan());
    cluster.pods(node, 6, 0);
    let state = |state| RequestFacts {
        state,
        ..RequestFacts::default()
    };
    for (pod, request) in [
        (1, state(RequestState::Active)),
        (2, withdrawn()),
        (
            3,
            RequestFacts {
                ended: Some(now()),
                ..state(RequestState::Evicted)
            },
        ),
        (
            4,
            RequestFacts {
                is_cancellation_forbidden: true,
                ..RequestFacts::default()
            },
        ),
    ] {
        let uid = cluster.state.pods[pod].uid.clone();
        cluster.state.requests.insert(uid, request);
    }
    cluster.state.pods[5].is_terminal = true;
    let actions = cluster.execute().requests;
    assert_eq!(
        actions,
        [
            (0, RequestAction::Create { origin: None }),
            (1, RequestAction::Join { origin: None }),
            (2, RequestAction::Replace { count: 1 })
        ]
    );
    assert_eq!(
        cluster.execute().requests,
        [(2, RequestAction::Create { origin: None })]
    );
}

#[test]
fn newly_selected_nodes_are_held_and_deselected_ones_released() {
    let mut cluster = Cluster::default();
    let [old, new] = ["old", "new"].map(|name| cluster.node(name));
    let maintenance = cluster.maintenance("m", &[old], &full_plan());
    cluster.settle();
    cluster.state.maintenances[maintenance].nodes = vec![new];
    cluster.settle();
    assert!(cluster.state.nodes[old].record.is_none() && !cluster.state.nodes[old].is_unschedulable);
    assert!(cluster.state.nodes[new].record.is_some() && cluster.state.nodes[new].is_unschedulable);
}
