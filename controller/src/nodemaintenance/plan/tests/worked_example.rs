//! The worked example of the design: maintenance a on nodes one and two, b on one and three, later c on one and four.

use super::*;

struct Example {
    cluster: Cluster,
    one: usize,
    two: usize,
    three: usize,
    four: usize,
    a: usize,
    b: usize,
}

/// Maintenances a and b are created at the same time.
fn example() -> Example {
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
    cluster.settle();
    Example {
        cluster,
        one,
        two,
        three,
        four,
        a,
        b,
    }
}

impl Example {
    fn three_loses_its_targeted_pods(&mut self) {
        self.cluster.leave(self.three, 25);
        self.cluster.leave(self.one, 5);
        self.cluster.settle();
    }

    fn one_loses_its_targeted_pods(&mut self) {
        self.cluster.leave(self.one, 5);
        self.cluster.leave(self.two, 5);
        self.cluster.settle();
    }

    fn two_loses_its_targeted_pods(&mut self) {
        self.cluster.leave(self.two, 2);
        self.cluster.settle();
    }
}

#[test]
fn slowest_plan_determines_the_targets_of_a_shared_node() {
    let mut example = example();
    let (a, b) = (example.a, example.b);
    let cluster = &example.cluster;
    cluster.check(a, 130, 17, "Draining", 5000);
    cluster.check(b, 145, 35, "Draining (limited by maintenance-a)", 5000);
    cluster.check_node(a, "one", 100, 10, "Draining", 5000);
    cluster.check_node(a, "two", 30, 7, "Draining", 5000);
    cluster.check_node(b, "three", 45, 25, "Draining", 10_000);

    example.three_loses_its_targeted_pods();
    let cluster = &example.cluster;
    cluster.check(b, 145, 5, "Draining (limited by maintenance-a)", 5000);
    cluster.check_node(b, "three", 45, 0, "Waiting for maintenance-a.", 10_000);

    // Node one waits for maintenance a to drain node two.
    example.one_loses_its_targeted_pods();
    let cluster = &example.cluster;
    cluster.check(a, 130, 2, "Draining", 5000);
    cluster.check(b, 145, 0, "Waiting for maintenance-a.", 5000);
    cluster.check_node(a, "one", 100, 0, "Waiting for maintenance-a.", 5000);
    cluster.check_node(a, "two", 30, 2, "Draining", 5000);
    cluster.check_node(b, "three", 45, 0, "Waiting for maintenance-a.", 10_000);

    // The targets of nodes one and two advance.
    example.two_loses_its_targeted_pods();
    let cluster = &example.cluster;
    cluster.check(a, 91, 39, "Draining", 10_000);
    cluster.check(b, 115, 30, "Draining", 10_000);
    cluster.check_node(a, "one", 70, 30, "Draining (limited by maintenance-b)", 10_000);
    cluster.check_node(a, "two", 21, 9, "Draining", 15_000);
    cluster.check_node(b, "three", 45, 0, "Waiting for maintenance-b.", 10_000);
}

#[test]
fn later_maintenance_is_fast_forwarded_and_does_not_reset_targets() {
    let mut example = example();
    example.three_loses_its_targeted_pods();
    example.one_loses_its_targeted_pods();
    example.two_loses_its_targeted_pods();
    let cluster = &mut example.cluster;
    let plan = [default(2000), default(15_000)];
    let c = cluster.maintenance("maintenance-c", &[example.one, example.four], &plan);
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
    let forwarded = MaintenanceEvent::FastForwarded {
        maintenance: "maintenance-c".to_owned(),
        node: "one".to_owned(),
    };
    assert_eq!(
        cluster.events.iter().filter(|event| **event == forwarded).count(),
        1
    );
}
