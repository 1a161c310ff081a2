use super::*;
use serde_json::json;

#[test]
fn targets_accumulate_by_type_and_selector() {
    let postgres = json!({"matchLabels": {"app": "postgres"}});
    let selected = |priority| DrainPlanEntry {
        pod_selector: Some(serde_json::from_value(postgres.clone()).unwrap()),
        ..default(priority)
    };
    let max = i32::MAX;
    let daemon = |priority| entry(PodType::DaemonSet, priority);
    let plan = [
        default(1000),
        selected(2000),
        default(max),
        daemon(1000),
        daemon(max),
        entry(PodType::Static, max),
    ];
    let mut cluster = Cluster::default();
    cluster.state.static_pods = StaticPods::Required;
    let five = cluster.node("five");
    let maintenance = cluster.maintenance("m", &[five], &plan);
    cluster.pods(five, 1, 500);
    cluster.pods(five, 1, 2000);
    cluster.state.pods[1]
        .labels
        .insert("app".to_owned(), "postgres".to_owned());
    cluster.pods(five, 1, 2000);
    cluster.typed_pods(five, 1, &PodType::DaemonSet, 1000);
    cluster.typed_pods(five, 1, &PodType::DaemonSet, 2000);
    cluster.typed_pods(five, 1, &PodType::Static, 2000);
    for (targets, is_tainted) in [
        (vec![default(1000), selected(1000)], false),
        (vec![default(1000), selected(2000)], false),
        (vec![default(max), selected(max)], false),
        (vec![default(max), selected(max), daemon(1000)], true),
        (vec![default(max), selected(max), daemon(max)], true),
        (
            vec![
                default(max),
                selected(max),
                daemon(max),
                entry(PodType::Static, max),
            ],
            true,
        ),
    ] {
        cluster.settle();
        assert_eq!(
            cluster.status(maintenance).node_statuses[0].drain_targets,
            targets
        );
        assert_eq!(cluster.state.nodes[five].is_tainted, is_tainted);
        cluster.leave(five, 1);
    }
    cluster.settle();
    let status = cluster.status(maintenance);
    assert_eq!(status.drain_status.as_ref().unwrap().drain_message, "Drained");
    assert_eq!((status.selected_nodes, status.drained_nodes), (Some(1), Some(1)));
    assert_eq!(status.conditions[0].status, "True");
}

#[test]
fn pods_that_a_plan_leaves_alone_stay_and_do_not_count() {
    let skip = json!({"matchExpressions": [{"key": "cluster.x-k8s.io/drain", "operator": "NotIn", "values": ["skip"]}]});
    let named = DrainPlanEntry {
        pod_selector: Some(serde_json::from_value(skip).unwrap()),
        ..default(i32::MAX)
    };
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    let maintenance = cluster.maintenance("m", &[node], &[named, default(i32::MAX)]);
    cluster.pods(node, 2, 0);
    cluster.state.pods[0]
        .labels
        .insert("cluster.x-k8s.io/drain".to_owned(), "skip".to_owned());
    cluster.settle();
    let status = cluster.status(maintenance);
    let numbers = &status.node_statuses[0];
    assert_eq!(
        numbers.pods_pending_eviction_request + numbers.active_eviction_requests,
        1,
        "{numbers:?}"
    );
    let requested: Vec<&String> = cluster.state.requests.keys().collect();
    assert_eq!(requested, ["uid-2"]);
    cluster.state.pods.remove(1);
    cluster.settle();
    let drained = &cluster.status(maintenance).conditions[0];
    assert_eq!(drained.status, "True");
    assert!(
        drained
            .message
            .ends_with("Left alone: 1 pods that the plan leaves out by cluster.x-k8s.io/drain=skip."),
        "{}",
        drained.message
    );
}

/// The entry that leaves them out is not reached, so the record of the node does not say that they are left alone.
#[test]
fn pods_that_a_plan_leaves_alone_stay_when_earlier_entries_are_recorded() {
    let selected = |priority, selector: serde_json::Value| DrainPlanEntry {
        pod_selector: Some(serde_json::from_value(selector).unwrap()),
        ..default(priority)
    };
    let skip = json!({"matchExpressions": [{"key": "cluster.x-k8s.io/drain", "operator": "NotIn", "values": ["skip"]}]});
    let plan = [
        selected(2000, json!({"matchLabels": {"app": "y"}})),
        selected(i32::MAX, skip),
    ];
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    let maintenance = cluster.maintenance("m", &[node], &plan);
    cluster.pods(node, 2, 0);
    for pod in &mut cluster.state.pods {
        pod.labels.insert("app".to_owned(), "y".to_owned());
    }
    let left_alone = &mut cluster.state.pods[1].labels;
    left_alone.insert("cluster.x-k8s.io/drain".to_owned(), "skip".to_owned());
    for _ in 0..2 {
        cluster.settle();
        let requested: Vec<&String> = cluster.state.requests.keys().collect();
        assert_eq!(requested, ["uid-1"]);
    }
    cluster.leave(node, 1);
    cluster.settle();
    assert_eq!(cluster.status(maintenance).conditions[0].status, "True");
    assert_eq!(cluster.state.requests.len(), 1, "that of the pod that left");
}

#[test]
fn static_pods_count_against_drained_only_when_required() {
    for (static_pods, state) in [(StaticPods::Reported, "True"), (StaticPods::Required, "False")] {
        let mut cluster = Cluster::default();
        cluster.state.static_pods = static_pods;
        let node = cluster.node("one");
        let maintenance = cluster.maintenance("m", &[node], &full_plan());
        cluster.typed_pods(node, 2, &PodType::Static, 5);
        cluster.settle();
        assert_eq!(cluster.status(maintenance).conditions[0].status, state);
        assert_eq!(
            cluster.state.requests.len(),
            2,
            "static pods are requested in both cases"
        );
        let is_reported = cluster
            .events
            .iter()
            .any(|event| matches!(event, MaintenanceEvent::StaticPods { count: 2, .. }));
        assert_eq!(is_reported, static_pods == StaticPods::Reported);
    }
}

#[test]
fn maintenance_without_nodes_is_not_drained() {
    let mut cluster = Cluster::default();
    let maintenance = cluster.maintenance("m", &[], &full_plan());
    cluster.settle();
    assert_eq!(cluster.status(maintenance).conditions[0].reason, "NoNodes");
}

#[test]
fn status_of_five_thousand_nodes_stays_below_the_size_limit() {
    let mut cluster = Cluster::default();
    let nodes: Vec<usize> = (0..5000)
        .map(|index| cluster.node(&format!("node-{index:04}.example.com")))
        .collect();
    let maintenance = cluster.maintenance("m", &nodes, &full_plan());
    for node in &nodes {
        cluster.pods(*node, 1, i32::MAX);
    }
    cluster.pods(nodes[4999], 1, 0);
    cluster.settle();
    let status = cluster.status(maintenance);
    let size = serde_json::to_vec(status).unwrap().len();
    assert!(size < 1024 * 1024, "{size}");
    assert!(size > 400 * 1024, "as many node statuses as fit: {size}");
    assert_eq!(status.node_statuses[0].node_ref.name, "node-4999.example.com");
    assert_eq!(status.node_statuses[1].drain_message, "Waiting for m.");
    assert_eq!(
        (status.selected_nodes, status.drained_nodes),
        (Some(5000), Some(0))
    );
    cluster.state.pods.retain(|pod| pod.priority == 0);
    cluster.settle();
    let status = cluster.status(maintenance);
    assert_eq!(status.node_statuses[0].node_ref.name, "node-4999.example.com");
    assert_eq!(
        (status.selected_nodes, status.drained_nodes),
        (Some(5000), Some(4999))
    );
}

#[test]
fn tolerant_daemon_set_pods_are_left_alone_and_named() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    let maintenance = cluster.maintenance("m", &[node], &full_plan());
    cluster.typed_pods(node, 1, &PodType::DaemonSet, 5);
    cluster.tolerant_daemon_set_pods(node, 2, "kube-proxy");
    cluster.settle();
    let requested: Vec<&String> = cluster.state.requests.keys().collect();
    assert_eq!(requested, ["uid-1"]);
    let left_alone = "2 pods of DaemonSets that tolerate the drain taint (DaemonSetPod): shop/kube-proxy (2)";
    let condition = &cluster.status(maintenance).conditions[0];
    assert_eq!(condition.status, "False");
    assert_eq!(
        condition.message,
        format!("Targeted pods are left on selected nodes. Left alone: {left_alone}.")
    );
    cluster.leave(node, 1);
    cluster.settle();
    let status = cluster.status(maintenance);
    assert_eq!(status.conditions[0].status, "True");
    assert_eq!(
        status.conditions[0].message,
        format!("All targeted pods are gone from all selected nodes. Left alone: {left_alone}.")
    );
    assert_eq!(
        status
            .drain_status
            .as_ref()
            .unwrap()
            .pods_pending_eviction_request,
        0
    );
    assert!(cluster.events.iter().any(
        |event| matches!(event, MaintenanceEvent::TolerantDaemonSetPods { description, .. } if description == left_alone)
    ));
}

#[test]
fn request_for_a_tolerant_daemon_set_pod_is_withdrawn() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.maintenance("m", &[node], &full_plan());
    cluster.typed_pods(node, 1, &PodType::DaemonSet, 5);
    cluster.settle();
    cluster.state.pods[0].is_tolerant_daemon_set_pod = true;
    cluster.settle();
    assert_eq!(*cluster.state.requests["uid-1"], withdrawn());
}

#[test]
fn many_tolerant_daemon_sets_are_counted_and_the_first_are_named() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    let maintenance = cluster.maintenance("m", &[node], &full_plan());
    for index in 0..7 {
        cluster.tolerant_daemon_set_pods(node, 1, &format!("agent-{index}"));
    }
    cluster.settle();
    let message = &cluster.status(maintenance).conditions[0].message;
    assert!(message.ends_with("shop/agent-4 (1), 2 more."), "{message}");
}
