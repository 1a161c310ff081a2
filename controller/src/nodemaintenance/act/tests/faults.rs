//! What changes while a plan is executed, and who undoes it.

use super::*;

/// A drain of one node with 100 pods, none of them requested.
fn large_drain() -> (ObservedCluster, Stores, Plan) {
    let (mut observed, stores) = drain_of_one_node();
    observed.state.pods = (1..=100).map(|number| pod_facts(number, 0)).collect();
    let plan = Plan {
        requests: (0..100).map(|index| (index, CREATE)).collect(),
        ..Plan::default()
    };
    (observed, stores, plan)
}

#[tokio::test]
async fn no_pod_is_requested_after_the_maintenance_was_called_off() {
    let completed = maintenance_in("Complete");
    let mut deleted = maintenance_in("Drain");
    deleted.metadata.deletion_timestamp = Some(typed(json!("1970-01-01T00:00:00Z")));
    let mut another = maintenance_in("Drain");
    another.metadata.uid = Some("another".to_owned());
    for change in [Some(completed), Some(deleted), Some(another), None] {
        let (observed, stores, plan) = large_drain();
        let maintenances = stores.maintenances.clone();
        let what = format!("{change:?}");
        let (executor, received) = executor_on(stores, &clock_at(0), move |request| {
            match &change {
                Some(changed) => drop(maintenances.put(changed.clone())),
                None => maintenances.delete("", "m"),
            }
            object(request)
        });
        executor.execute(&observed, &plan).await;
        let written = received.lock().unwrap().len();
        assert!(
            (1..=CONCURRENT_CALLS).contains(&written),
            "{written} after {what}"
        );
    }
}

#[tokio::test]
async fn pods_that_left_meanwhile_are_not_requested() {
    let (observed, stores, plan) = large_drain();
    for number in 2..=100 {
        stores.pods.delete("shop", &format!("web-{number}"));
    }
    stores.pods.put(pod(
        &json!({"metadata": {"name": "web-2", "uid": "its-successor"}}),
    ));
    let (executor, received) = executor_on(stores, &clock_at(0), object);
    assert_eq!(executor.execute(&observed, &plan).await, None);
    assert_eq!(received.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn node_is_not_cordoned_for_a_maintenance_that_was_called_off() {
    let (observed, stores) = drain_of_one_node();
    stores.maintenances.put(maintenance_in("Complete"));
    let (executor, received) = executor_on(stores, &clock_at(0), object);
    let plan = Plan {
        nodes: vec![(0, hold())],
        ..plan_of(CREATE)
    };
    executor.execute(&observed, &plan).await;
    assert_eq!(received.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn long_plan_is_left_for_a_new_observation() {
    let (observed, stores, plan) = large_drain();
    let clock = clock_at(0);
    let (executor, received) = executor_on(stores, &clock, {
        let clock = Arc::clone(&clock);
        move |request| {
            clock.advance(Duration::from_secs(1));
            object(request)
        }
    });
    let again = executor.execute(&observed, &plan).await;
    let limit = CONCURRENT_CALLS + 5;
    let written = received.lock().unwrap().len();
    assert!((5..=limit).contains(&written), "{written}");
    let now = Timestamp::from_second(i64::try_from(written).unwrap()).unwrap();
    assert_eq!(again, now.checked_add(PARTIAL_PLAN_DELAY).ok());
}

#[tokio::test]
async fn maintenance_completes_when_no_node_that_the_api_lists_names_it() {
    let naming = serde_json::to_string(&record()).unwrap();
    let other = naming.replace("m-uid", "other-uid");
    let annotated = |text: &str| json!({"nodemaintenance.coordination.k8s.io/status": text});
    let taint = json!([{"key": "nodemaintenance.coordination.k8s.io/drain", "effect": "NoSchedule"}]);
    let node = |pool: &str, annotations: Value, taints: &Value| {
        json!({
            "metadata": {"name": "two", "labels": {"pool": pool}, "annotations": annotations}, "spec": {"taints": taints},
        })
    };
    for (last, completes) in [
        (node("b", annotated(&naming), &json!([])), false),
        (node("b", annotated(&other), &taint), true),
        (node("a", json!({}), &taint), false),
        (node("b", json!({}), &taint), true),
        (node("a", json!({}), &json!([])), true),
    ] {
        let what = last.to_string();
        let (executor, mut observed, received) = executor(move |request| {
            if request.path != "/api/v1/nodes" {
                return object(request);
            }
            // Two pages.
            let page = if request.query.contains("continue=more") {
                json!({"metadata": {}, "items": [last]})
            } else {
                json!({"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "one"}}]})
            };
            (200, page)
        });
        observed.maintenances = vec![Arc::new(maintenance_in("Complete"))];
        let plan = Plan {
            maintenances: vec![(0, MaintenanceAction::RemoveFinalizer)],
            ..Plan::default()
        };
        let again = executor.execute(&observed, &plan).await;
        let patched = received.lock().unwrap().iter().any(|one| one.method == "PATCH");
        assert_eq!((patched, again.is_none()), (completes, completes), "{what}");
        // The nodes are not listed again at once.
        executor.execute(&observed, &plan).await;
        let lists = received
            .lock()
            .unwrap()
            .iter()
            .filter(|one| one.method == "GET")
            .count();
        assert_eq!(lists, if completes { 4 } else { 2 }, "{what}");
    }
}

/// A node under maintenance that somebody has made schedulable.
fn uncordoned() -> Arc<Node> {
    let text = serde_json::to_string(&record()).unwrap();
    Arc::new(typed(json!({
        "metadata": {"name": "one", "annotations": {"nodemaintenance.coordination.k8s.io/status": text}},
        "spec": {},
    })))
}

#[tokio::test]
async fn fight_over_a_cordon_costs_few_writes_and_requests_no_pod_meanwhile() {
    let (mut observed, stores) = drain_of_one_node();
    observed.nodes = vec![uncordoned()];
    let clock = clock_at(0);
    let (executor, received) = executor_on(stores, &clock, object);
    let plan = Plan {
        nodes: vec![(0, hold())],
        ..plan_of(CREATE)
    };
    // Somebody uncordons the node at once after each write, for a minute.
    for _ in 0..600 {
        let again = executor.execute(&observed, &plan).await;
        assert!(again.is_some_and(|again| again > clock.now()));
        clock.advance(Duration::from_millis(100));
    }
    let received = received.lock().unwrap();
    let cordons = received
        .iter()
        .filter(|one| one.path.contains("nodes/one"))
        .count();
    assert!((7..=10).contains(&cordons), "{cordons}");
    // The pod is requested only right after the node was cordoned.
    assert_eq!(received.len(), 2 * cordons);
}

#[tokio::test]
async fn progress_of_a_drain_and_releases_do_not_wait_for_repairs() {
    let (mut observed, stores) = drain_of_one_node();
    observed.nodes = vec![uncordoned()];
    let (executor, received) = executor_on(stores, &clock_at(0), object);
    let of = |action: NodeAction| Plan {
        nodes: vec![(0, action)],
        ..Plan::default()
    };
    executor.execute(&observed, &of(hold())).await;
    executor.execute(&observed, &of(hold())).await;
    assert_eq!(received.lock().unwrap().len(), 1);
    let mut cordoned = (*uncordoned()).clone();
    cordoned.spec.get_or_insert_default().unschedulable = Some(true);
    observed.nodes = vec![Arc::new(cordoned)];
    for message in ["Draining", "Drained"] {
        let record = NodeRecord {
            message: message.to_owned(),
            ..record()
        };
        let action = NodeAction::Hold {
            record,
            is_tainted: false,
            is_restored: false,
        };
        executor.execute(&observed, &of(action)).await;
    }
    let release = NodeAction::Release {
        was_unschedulable: false,
    };
    executor.execute(&observed, &of(release)).await;
    assert_eq!(received.lock().unwrap().len(), 4);
}

#[test]
fn fight_names_who_wrote_the_node_last() {
    let node: Node = typed(json!({"metadata": {"name": "one", "managedFields": [
        {"manager": "kubelet", "subresource": "status", "time": "1970-01-01T00:00:09Z"},
        {"manager": "drydock-controller", "time": "1970-01-01T00:00:08Z"},
        {"manager": "autoscaler", "time": "1970-01-01T00:00:07Z"},
        {"manager": "kubectl", "time": "1970-01-01T00:00:01Z"},
    ]}}));
    let event = announcements::fight(&node, "m");
    assert_eq!(event.reason, "CordonFight");
    assert!(
        event.note.ends_with("wrote it last: autoscaler."),
        "{}",
        event.note
    );
    let text = announcements::fight(&Node::default(), "m").note;
    assert!(
        text.contains("maintenance m does") && text.ends_with("meanwhile."),
        "{text}"
    );
}
