use super::*;
use drydock_proto::kinds::nodemaintenance::DrainPlanEntry;
use proptest::prelude::*;
use serde_json::json;

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn entry(pod_type: PodType, pod_priority: i32) -> DrainPlanEntry {
    DrainPlanEntry {
        pod_type,
        pod_priority,
        pod_selector: None,
    }
}

fn default(pod_priority: i32) -> DrainPlanEntry {
    entry(PodType::Default, pod_priority)
}

/// A world in which plans are carried out.
#[derive(Debug, Clone, Default)]
struct Cluster {
    world: World,
    /// Everything that was told.
    notices: Vec<Notice>,
    serial: usize,
}

impl Cluster {
    fn node(&mut self, name: &str) -> usize {
        self.world.nodes.push(Node {
            name: name.to_owned(),
            ..Node::default()
        });
        self.world.nodes.len() - 1
    }

    /// A maintenance that drains; a later one is younger.
    fn maintenance(&mut self, name: &str, nodes: &[usize], plan: &[DrainPlanEntry]) -> usize {
        let age = i64::try_from(self.world.maintenances.len()).unwrap();
        self.world.maintenances.push(Maintenance {
            name: name.to_owned(),
            created: Timestamp::from_second(age / 2).unwrap(),
            generation: Some(1),
            stage: Stage::Drain,
            is_deleting: false,
            has_finalizer: true,
            entries: entries(plan),
            nodes: nodes.to_vec(),
            status: NodeMaintenanceStatus::default(),
        });
        self.world.maintenances.len() - 1
    }

    fn pods(&mut self, node: usize, count: usize, priority: i32) {
        self.typed_pods(node, count, &PodType::Default, priority);
    }

    fn typed_pods(&mut self, node: usize, count: usize, pod_type: &PodType, priority: i32) {
        for _ in 0..count {
            self.serial += 1;
            self.world.pods.push(Pod {
                uid: format!("uid-{}", self.serial),
                namespace: "shop".to_owned(),
                name: format!("pod-{}", self.serial),
                node,
                pod_type: pod_type.rank().unwrap(),
                priority,
                ..Pod::default()
            });
        }
    }

    /// Carries out one plan.
    fn carry_out(&mut self) -> Plan {
        let plan = plan(&self.world, now());
        for (index, target) in &plan.nodes {
            let node = &mut self.world.nodes[*index];
            match target.clone() {
                NodeTarget::Held { record, is_tainted } => {
                    node.record = Some(record);
                    node.is_tainted = is_tainted;
                    node.is_unschedulable = true;
                }
                NodeTarget::Released { was_unschedulable } => {
                    node.record = None;
                    node.is_tainted = false;
                    node.is_unschedulable = was_unschedulable;
                }
            }
        }
        for (index, ask) in &plan.asks {
            let uid = self.world.pods[*index].uid.clone();
            let request = self.world.requests.entry(uid.clone()).or_default();
            match ask {
                Ask::Create | Ask::Join => request.is_ours = true,
                Ask::Renew => drop(self.world.requests.remove(&uid)),
                Ask::Release => *request = withdrawn(),
            }
        }
        for (index, upkeep) in &plan.upkeep {
            let maintenance = &mut self.world.maintenances[*index];
            match upkeep.clone() {
                Upkeep::AddFinalizer => maintenance.has_finalizer = true,
                Upkeep::RemoveFinalizer => maintenance.has_finalizer = false,
                Upkeep::Complete => maintenance.stage = Stage::Complete,
                Upkeep::Report(status) => maintenance.status = *status,
            }
        }
        self.notices.extend(plan.notices.iter().cloned());
        plan
    }

    /// Carries plans out until there is nothing to do.
    fn settle(&mut self) {
        for _ in 0..100 {
            let plan = self.carry_out();
            if plan.nodes.is_empty() && plan.asks.is_empty() && plan.upkeep.is_empty() {
                return;
            }
        }
        panic!("plans do not come to an end");
    }

    /// Ends so many of the pods of the node that are asked to leave.
    fn leave(&mut self, node: usize, count: usize) {
        for _ in 0..count {
            let is_leaving = |pod: &Pod| pod.node == node && self.world.requests.contains_key(&pod.uid);
            let index = self
                .world
                .pods
                .iter()
                .position(is_leaving)
                .expect("a pod that is asked to leave");
            self.world.pods.remove(index);
        }
    }

    fn status(&self, maintenance: usize) -> &NodeMaintenanceStatus {
        &self.world.maintenances[maintenance].status
    }

    /// Pending pods, active requests, message and the only target of the maintenance.
    #[track_caller]
    fn check(&self, maintenance: usize, pending: i32, active: i32, message: &str, target: i32) {
        let status = self.status(maintenance).drain_status.as_ref().unwrap();
        assert_eq!(status.drain_message, message);
        assert_eq!(status.pods_pending_eviction_request, pending);
        assert_eq!(status.active_eviction_requests, active);
        assert_eq!(status.reached_drain_targets, [default(target)]);
    }

    /// The same of a node, as a maintenance reports it and as it stands on the node.
    #[track_caller]
    fn check_node(
        &self,
        maintenance: usize,
        name: &str,
        pending: i32,
        active: i32,
        message: &str,
        target: i32,
    ) {
        let statuses = &self.status(maintenance).node_statuses;
        let status = statuses
            .iter()
            .find(|status| status.node_ref.name == name)
            .unwrap();
        assert_eq!(status.drain_message, message);
        assert_eq!(status.pods_pending_eviction_request, pending);
        assert_eq!(status.active_eviction_requests, active);
        assert_eq!(status.drain_targets, [default(target)]);
        let node = self.world.nodes.iter().find(|node| node.name == name).unwrap();
        let record = node.record.as_ref().unwrap();
        assert_eq!(
            (&record.message, &record.targets),
            (&status.drain_message, &status.drain_targets)
        );
    }
}

fn withdrawn() -> Request {
    Request {
        is_ours: false,
        is_forbidden: false,
        state: RequestState::Withdrawn,
    }
}

/// The worked example of the design: a on nodes one and two, b on one and three, later c on one and four.
#[test]
fn intersecting_maintenances_go_as_in_the_design() {
    let mut cluster = Cluster::default();
    let [one, two, three, four] = ["one", "two", "three", "four"].map(|name| cluster.node(name));
    let a = cluster.maintenance(
        "maintenance-a",
        &[one, two],
        &[default(5000), default(15_000), entry(PodType::DaemonSet, 3000)],
    );
    let b = cluster.maintenance(
        "maintenance-b",
        &[one, three],
        &[default(10_000), default(15_000), entry(PodType::DaemonSet, 4000)],
    );
    for (node, pods) in [
        (one, [(10, 5000), (30, 10_000), (70, 15_000)]),
        (two, [(7, 5000), (9, 15_000), (21, 20_000)]),
        (three, [(25, 10_000), (45, 15_000), (0, 0)]),
        (four, [(5, 2000), (20, 15_000), (0, 0)]),
    ] {
        for (count, priority) in pods {
            cluster.pods(node, count, priority);
        }
    }

    // Both are created at the same time: the lowest entry of the shared node rules.
    cluster.settle();
    cluster.check(a, 130, 17, "Draining", 5000);
    cluster.check(b, 145, 35, "Draining (limited by maintenance-a)", 5000);
    cluster.check_node(a, "one", 100, 10, "Draining", 5000);
    cluster.check_node(a, "two", 30, 7, "Draining", 5000);
    cluster.check_node(b, "three", 45, 25, "Draining", 10_000);

    // Node three is drained, and waits.
    cluster.leave(three, 25);
    cluster.leave(one, 5);
    cluster.settle();
    cluster.check(b, 145, 5, "Draining (limited by maintenance-a)", 5000);
    cluster.check_node(b, "three", 45, 0, "Waiting for maintenance-a.", 10_000);

    // Node one is drained, and waits for maintenance-a to drain node two.
    cluster.leave(one, 5);
    cluster.leave(two, 5);
    cluster.settle();
    cluster.check(a, 130, 2, "Draining", 5000);
    cluster.check(b, 145, 0, "Waiting for maintenance-a.", 5000);
    cluster.check_node(a, "one", 100, 0, "Waiting for maintenance-a.", 5000);
    cluster.check_node(a, "two", 30, 2, "Draining", 5000);
    cluster.check_node(b, "three", 45, 0, "Waiting for maintenance-a.", 10_000);

    // Node two is drained: the targets move on.
    cluster.leave(two, 2);
    cluster.settle();
    cluster.check(a, 91, 39, "Draining", 10_000);
    cluster.check(b, 115, 30, "Draining", 10_000);
    cluster.check_node(a, "one", 70, 30, "Draining (limited by maintenance-b)", 10_000);
    cluster.check_node(a, "two", 21, 9, "Draining", 15_000);
    cluster.check_node(b, "three", 45, 0, "Waiting for maintenance-b.", 10_000);

    // A late comer does not take node one back.
    let c = cluster.maintenance("maintenance-c", &[one, four], &[default(2000), default(15_000)]);
    cluster.settle();
    cluster.check(c, 90, 35, "Draining", 2000);
    cluster.check_node(
        c,
        "one",
        70,
        30,
        "Draining (limited by maintenance-b, maintenance-c)",
        10_000,
    );
    cluster.check_node(c, "four", 20, 5, "Draining", 2000);
    let forwarded = Notice::FastForwarded {
        maintenance: "maintenance-c".to_owned(),
        node: "one".to_owned(),
    };
    assert_eq!(
        cluster
            .notices
            .iter()
            .filter(|notice| **notice == forwarded)
            .count(),
        1
    );
}

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
    cluster.world.static_pods = StaticPods::Required;
    let five = cluster.node("five");
    let maintenance = cluster.maintenance("m", &[five], &plan);
    cluster.pods(five, 1, 500);
    cluster.pods(five, 1, 2000);
    cluster.world.pods[1]
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
        assert_eq!(cluster.world.nodes[five].is_tainted, is_tainted);
        cluster.leave(five, 1);
    }
    cluster.settle();
    let status = cluster.status(maintenance);
    assert_eq!(status.drain_status.as_ref().unwrap().drain_message, "Drained");
    assert_eq!((status.selected_nodes, status.drained_nodes), (Some(1), Some(1)));
    assert_eq!(status.conditions[0].status, "True");
}

fn full_plan() -> Vec<DrainPlanEntry> {
    [PodType::Default, PodType::DaemonSet, PodType::Static]
        .iter()
        .flat_map(|pod_type| [1000, i32::MAX].map(|priority| entry(pod_type.clone(), priority)))
        .collect()
}

#[test]
fn static_pods_are_reported_and_do_not_count_unless_required() {
    for (static_pods, state) in [(StaticPods::Reported, "True"), (StaticPods::Required, "False")] {
        let mut cluster = Cluster::default();
        cluster.world.static_pods = static_pods;
        let node = cluster.node("one");
        let maintenance = cluster.maintenance("m", &[node], &full_plan());
        cluster.typed_pods(node, 2, &PodType::Static, 5);
        cluster.settle();
        assert_eq!(cluster.status(maintenance).conditions[0].status, state);
        assert_eq!(cluster.world.requests.len(), 2, "they are requested all the same");
        let told = cluster
            .notices
            .iter()
            .any(|notice| matches!(notice, Notice::StaticPods { count: 2, .. }));
        assert_eq!(told, static_pods == StaticPods::Reported);
    }
}

#[test]
fn a_selection_of_no_node_is_never_drained() {
    let mut cluster = Cluster::default();
    let maintenance = cluster.maintenance("m", &[], &full_plan());
    cluster.settle();
    assert_eq!(cluster.status(maintenance).conditions[0].reason, "NoNodes");
}

#[test]
fn idle_touches_nothing_and_the_finalizer_comes_first() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    let maintenance = cluster.maintenance("m", &[node], &full_plan());
    cluster.pods(node, 1, 0);
    cluster.world.maintenances[maintenance].has_finalizer = false;
    cluster.world.maintenances[maintenance].stage = Stage::Idle;
    assert_eq!(cluster.carry_out(), Plan::default());
    cluster.world.maintenances[maintenance].stage = Stage::Drain;
    let plan = cluster.carry_out();
    assert!(plan.nodes.is_empty() && plan.asks.is_empty());
    assert_eq!(plan.upkeep, [(maintenance, Upkeep::AddFinalizer)]);
}

#[test]
fn completion_releases_requests_and_brings_back_what_was_schedulable() {
    let mut cluster = Cluster::default();
    let [mine, shared, cordoned] = ["mine", "shared", "cordoned"].map(|name| cluster.node(name));
    cluster.world.nodes[cordoned].is_unschedulable = true;
    let first = cluster.maintenance("first", &[mine, shared, cordoned], &full_plan());
    let second = cluster.maintenance("second", &[shared], &full_plan());
    for node in [mine, shared, cordoned] {
        cluster.pods(node, 1, 0);
    }
    cluster.settle();
    assert!(cluster.world.nodes.iter().all(|node| node.is_unschedulable));
    // Cancellation of one request is forbidden: the maintenance waits for it.
    let forbidden = cluster.world.pods[0].uid.clone();
    cluster.world.requests.get_mut(&forbidden).unwrap().is_forbidden = true;
    cluster.world.maintenances[first].is_deleting = true;
    cluster.settle();
    let unschedulable: Vec<_> = cluster
        .world
        .nodes
        .iter()
        .map(|node| node.is_unschedulable)
        .collect();
    assert_eq!(unschedulable, [false, true, true]);
    assert_eq!(cluster.world.maintenances[first].stage, Stage::Complete);
    assert!(cluster.world.maintenances[first].has_finalizer);
    let ours = |cluster: &Cluster| {
        cluster
            .world
            .requests
            .values()
            .filter(|request| request.is_ours)
            .count()
    };
    assert_eq!(
        ours(&cluster),
        2,
        "the forbidden one, and the other maintenance's"
    );
    cluster.world.pods.remove(0);
    cluster.settle();
    assert!(!cluster.world.maintenances[first].has_finalizer);
    assert!(cluster.notices.contains(&Notice::Completed {
        maintenance: "first".to_owned()
    }));
    assert!(cluster.world.nodes[shared].record.is_some());

    cluster.world.maintenances[second].stage = Stage::Complete;
    cluster.settle();
    assert!(
        cluster
            .world
            .nodes
            .iter()
            .all(|node| node.record.is_none() && !node.is_tainted)
    );
    assert!(!cluster.world.nodes[shared].is_unschedulable);
    assert_eq!(ours(&cluster), 1, "only the one whose pod is gone");
}

#[test]
fn a_fight_over_a_node_is_reported_and_won() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.maintenance("m", &[node], &full_plan());
    cluster.settle();
    assert!(
        cluster
            .notices
            .iter()
            .all(|notice| !matches!(notice, Notice::Fight { .. }))
    );
    cluster.world.nodes[node].is_unschedulable = false;
    cluster.settle();
    assert!(cluster.world.nodes[node].is_unschedulable);
    assert!(
        cluster
            .notices
            .iter()
            .any(|notice| matches!(notice, Notice::Fight { .. }))
    );
}

#[test]
fn requests_are_made_joined_and_renewed() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.maintenance("m", &[node], &full_plan());
    cluster.pods(node, 6, 0);
    let state = |state| Request {
        state,
        ..Request::default()
    };
    for (pod, request) in [
        (1, state(RequestState::Active)),
        (2, withdrawn()),
        (3, state(RequestState::Final)),
        (
            4,
            Request {
                is_forbidden: true,
                ..Request::default()
            },
        ),
    ] {
        let uid = cluster.world.pods[pod].uid.clone();
        cluster.world.requests.insert(uid, request);
    }
    cluster.world.pods[5].is_terminal = true;
    let asks = cluster.carry_out().asks;
    assert_eq!(asks, [(0, Ask::Create), (1, Ask::Join), (2, Ask::Renew)]);
    assert_eq!(cluster.carry_out().asks, [(2, Ask::Create)]);
}

#[test]
fn new_nodes_are_included_and_lost_ones_dropped() {
    let mut cluster = Cluster::default();
    let [old, new] = ["old", "new"].map(|name| cluster.node(name));
    let maintenance = cluster.maintenance("m", &[old], &full_plan());
    cluster.settle();
    cluster.world.maintenances[maintenance].nodes = vec![new];
    cluster.settle();
    assert!(cluster.world.nodes[old].record.is_none() && !cluster.world.nodes[old].is_unschedulable);
    assert!(cluster.world.nodes[new].record.is_some() && cluster.world.nodes[new].is_unschedulable);
}

#[test]
fn a_maintenance_of_five_thousand_nodes_stays_below_its_limit() {
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
    assert!(size > 400 * 1024, "as many nodes as fit are listed: {size}");
    assert_eq!(status.node_statuses[0].node_ref.name, "node-4999.example.com");
    assert_eq!(status.node_statuses[1].drain_message, "Waiting for m.");
    assert_eq!(
        (status.selected_nodes, status.drained_nodes),
        (Some(5000), Some(0))
    );
    cluster.world.pods.retain(|pod| pod.priority == 0);
    cluster.settle();
    let status = cluster.status(maintenance);
    assert_eq!(status.node_statuses[0].node_ref.name, "node-4999.example.com");
    assert_eq!(
        (status.selected_nodes, status.drained_nodes),
        (Some(5000), Some(4999))
    );
}

/// A cluster of up to four nodes and three maintenances with random plans and pods.
fn clusters() -> impl Strategy<Value = Cluster> {
    let pod_type = (0_usize..3).prop_map(|rank| PodType::from(PodType::KNOWN[rank]));
    let plan_entry = (pod_type.clone(), 0_i32..5, proptest::option::of(0_usize..2)).prop_map(
        |(pod_type, priority, app)| DrainPlanEntry {
            pod_selector: app
                .map(|app| serde_json::from_value(json!({"matchLabels": {"app": app.to_string()}})).unwrap()),
            ..entry(pod_type, priority)
        },
    );
    let maintenance = (
        proptest::collection::btree_set(0_usize..4, 0..4),
        proptest::collection::vec(plan_entry, 1..6),
    );
    let pod = (0_usize..4, pod_type, 0_i32..6, 0_usize..3);
    (
        proptest::collection::vec(maintenance, 1..4),
        proptest::collection::vec(pod, 0..25),
        any::<bool>(),
    )
        .prop_map(|(maintenances, pods, required)| {
            let mut cluster = Cluster::default();
            if required {
                cluster.world.static_pods = StaticPods::Required;
            }
            for index in 0..4 {
                cluster.node(&format!("node-{index}"));
            }
            for (index, (nodes, plan)) in maintenances.into_iter().enumerate() {
                let nodes: Vec<usize> = nodes.into_iter().collect();
                cluster.maintenance(&format!("m-{index}"), &nodes, &plan);
            }
            for (node, pod_type, priority, app) in pods {
                cluster.typed_pods(node, 1, &pod_type, priority);
                let labels = &mut cluster.world.pods.last_mut().unwrap().labels;
                labels.insert("app".to_owned(), app.to_string());
            }
            cluster
        })
}

#[derive(Debug, Clone)]
enum Turn {
    /// The pod with this number ends, if it was asked to.
    Leave(usize),
    /// A pod appears: node, priority.
    Appear(usize, i32),
    /// The maintenance with this number is over.
    Complete(usize),
    /// It begins, if it has not.
    Begin(usize),
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        6 => (0_usize..30).prop_map(Turn::Leave),
        1 => (0_usize..4, 0_i32..6).prop_map(|(node, priority)| Turn::Appear(node, priority)),
        1 => (0_usize..3).prop_map(Turn::Complete),
        1 => (0_usize..3).prop_map(Turn::Begin),
    ];
    proptest::collection::vec(turn, 0..40)
}

/// Whether every pod that the earlier targets match is matched by the later ones.
fn covers(later: &[DrainPlanEntry], earlier: &[DrainPlanEntry]) -> bool {
    earlier.iter().all(|target| {
        later.iter().any(|other| {
            other.pod_type == target.pod_type
                && other.pod_priority >= target.pod_priority
                && (other.pod_selector.is_none() || other.pod_selector == target.pod_selector)
        })
    })
}

proptest! {
    /// Plans are stable (carried out, nothing is left to do) and monotone (targets of a node never go back).
    #[test]
    fn plans_are_stable_and_monotone(mut cluster in clusters(), turns in turns(), idle in 0_usize..3) {
        if let Some(late) = cluster.world.maintenances.get_mut(idle) {
            late.stage = Stage::Idle;
        }
        cluster.settle();
        for turn in turns {
            let before = cluster.world.nodes.clone();
            match turn {
                Turn::Leave(index) => {
                    let asked = cluster.world.pods.get(index).is_some_and(|pod| cluster.world.requests.contains_key(&pod.uid));
                    if asked {
                        cluster.world.pods.remove(index);
                    }
                }
                Turn::Appear(node, priority) => cluster.pods(node, 1, priority),
                Turn::Complete(index) => {
                    if let Some(one) = cluster.world.maintenances.get_mut(index).filter(|one| one.stage != Stage::Idle) {
                        one.stage = Stage::Complete;
                    }
                }
                Turn::Begin(index) => {
                    if let Some(one) = cluster.world.maintenances.get_mut(index).filter(|one| one.stage == Stage::Idle) {
                        one.stage = Stage::Drain;
                    }
                }
            }
            cluster.settle();
            for (earlier, later) in before.iter().zip(&cluster.world.nodes) {
                if let (Some(earlier), Some(later)) = (&earlier.record, &later.record) {
                    prop_assert!(covers(&later.targets, &earlier.targets), "{earlier:?} then {later:?}");
                    prop_assert!(later.reached >= earlier.reached);
                }
            }
        }
    }

    /// Whatever the plans are, nodes get empty when pods leave as they are asked.
    #[test]
    fn drains_come_to_an_end(mut cluster in clusters()) {
        for _ in 0..200 {
            cluster.settle();
            let requests = cluster.world.requests.clone();
            let before = cluster.world.pods.len();
            cluster.world.pods.retain(|pod| !requests.contains_key(&pod.uid));
            if cluster.world.pods.len() == before {
                break;
            }
        }
        for maintenance in &cluster.world.maintenances {
            for pod in cluster.world.pods.iter().filter(|pod| maintenance.nodes.contains(&pod.node)) {
                prop_assert!(!maintenance.entries.iter().any(|entry| entry.matches(pod)), "{pod:?} is left");
            }
        }
    }
}
