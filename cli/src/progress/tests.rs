use serde_json::json;

use super::history::{History, Pace};
use super::*;
use crate::golden;
use crate::terminal::Colour;

fn at(second: i64) -> Timestamp {
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    Timestamp::from_second(start.as_second() + second).unwrap()
}

fn node(name: &str, left: usize) -> NodeProgress {
    NodeProgress {
        name: name.to_owned(),
        left,
        left_alone: 2,
        is_cordoned: true,
        message: if left == 0 { "Drained" } else { "Draining" }.to_owned(),
    }
}

fn snapshot(left: &[usize]) -> Snapshot {
    let nodes: Vec<NodeProgress> = left
        .iter()
        .enumerate()
        .map(|(index, left)| node(&format!("worker-{index:02}.eu-west-1.example.com"), *left))
        .collect();
    let drained = left.iter().filter(|left| **left == 0).count();
    Snapshot {
        maintenance: "drain-pool-old".to_owned(),
        stage: Stage::Drain,
        reason: "replace the disks of the old pool before the end of the year".to_owned(),
        message: "Draining".to_owned(),
        is_drained: drained == nodes.len(),
        outcome: if drained == nodes.len() {
            "All targeted pods are gone."
        } else {
            ""
        }
        .to_owned(),
        is_ending: false,
        since: Some(at(-600)),
        selected_nodes: nodes.len(),
        drained_nodes: drained,
        nodes,
        blockers: Vec::new(),
    }
}

fn held(pod: &str, since: i64) -> Held {
    Held {
        node: "worker-01.eu-west-1.example.com".to_owned(),
        pod: pod.to_owned(),
        reason: "Budget".to_owned(),
        message: "The budget keep-the-database allows no disruption now: 2 pods are healthy, 2 must be."
            .to_owned(),
        since: Some(at(since)),
    }
}

#[track_caller]
fn check_screen(name: &str, snapshot: &Snapshot, history: &History, now: Timestamp, rows: usize) {
    let mut text = String::new();
    for columns in [80, 120] {
        let lines = screen::render(snapshot, history, now, (columns, rows), Colour::Off);
        assert!(lines.len() <= rows, "{} lines", lines.len());
        for line in &lines {
            assert!(line.chars().count() <= columns, "{columns}: {line}");
        }
        text.extend([
            "-".repeat(columns),
            "\n".to_owned(),
            lines.join("\n"),
            "\n".to_owned(),
        ]);
    }
    golden::check(&format!("screen/{name}.txt"), &text);
}

#[test]
fn screens_show_nodes_pods_blockers_and_pace() {
    let mut history = History::default();
    history.add(&snapshot(&[8, 12, 3]), at(0));
    let mut later = snapshot(&[2, 9, 0]);
    later.blockers = vec![held("shop/database-0", -240), held("shop/database-1", -30)];
    history.add(&later, at(30));
    check_screen("draining", &later, &history, at(30), 24);
    check_screen("standstill", &later, &history, at(150), 24);

    let done = snapshot(&[0, 0, 0]);
    history.add(&done, at(200));
    check_screen("drained", &done, &history, at(200), 24);
}

#[test]
fn screens_fit_into_few_rows() {
    let mut history = History::default();
    let mut many = snapshot(&[5; 40]);
    history.add(&many, at(0));
    many.blockers = (0..20)
        .map(|index| held(&format!("shop/database-{index}"), -index))
        .collect();
    many.nodes[3].left = 1;
    history.add(&many, at(20));
    check_screen("many-nodes", &many, &history, at(20), 24);
    for rows in 3..12 {
        let lines = screen::render(&many, &history, at(20), (80, rows), Colour::Off);
        assert!(lines.len() <= rows, "{rows}: {}", lines.len());
    }
}

#[test]
fn one_look_shows_counts_without_bars() {
    let mut history = History::default();
    let one = snapshot(&[3, 0]);
    history.add(&one, at(0));
    check_screen("one-look", &one, &history, at(0), 24);
}

#[test]
fn colour_does_not_change_what_is_shown() {
    let mut history = History::default();
    let mut one = snapshot(&[3, 0]);
    one.blockers = vec![held("shop/database-0", -10)];
    history.add(&one, at(0));
    history.add(&one, at(1));
    let plain = screen::render(&one, &history, at(1), (80, 24), Colour::Off).join("\n");
    let coloured = screen::render(&one, &history, at(1), (80, 24), Colour::On).join("\n");
    assert!(coloured.contains("\u{1b}[31m"));
    let mut stripped = String::new();
    let mut parts = coloured.split("\u{1b}[");
    stripped.push_str(parts.next().unwrap());
    for part in parts {
        stripped.push_str(part.split_once('m').unwrap().1);
    }
    assert_eq!(stripped, plain);
}

#[test]
fn pace_is_measured_over_the_last_minutes() {
    let mut history = History::default();
    assert_eq!(history.pace(at(0)), Pace::Unknown);
    history.add(&snapshot(&[100]), at(0));
    assert_eq!(history.pace(at(1)), Pace::Unknown);
    history.add(&snapshot(&[90]), at(20));
    assert_eq!(history.pace(at(20)), Pace::SecondsLeft(180));
    assert_eq!(history.pace(at(70)), Pace::SecondsLeft(630), "it slows down");
    assert_eq!(history.pace(at(80)), Pace::Standstill(60));
    history.add(&snapshot(&[89]), at(1000));
    history.add(&snapshot(&[88]), at(1010));
    assert!(matches!(history.pace(at(1010)), Pace::SecondsLeft(_)));
    history.add(&snapshot(&[0]), at(1100));
    assert_eq!(history.pace(at(5000)), Pace::SecondsLeft(0));
}

#[test]
fn lines_tell_changes_and_nothing_else() {
    let first = snapshot(&[2, 1]);
    assert_eq!(
        lines::changes(None, &first),
        [
            "drain-pool-old: stage Drain",
            "worker-00.eu-west-1.example.com: cordoned, 2 pods left",
            "worker-01.eu-west-1.example.com: cordoned, 1 pod left",
        ]
    );
    assert!(lines::changes(Some(&first), &first).is_empty());
    let mut second = snapshot(&[2, 0]);
    second.blockers = vec![held("shop/db-0", 0)];
    let changed = lines::changes(Some(&first), &second);
    assert_eq!(changed[0], "worker-01.eu-west-1.example.com: no pods left");
    assert!(
        changed[1].starts_with("shop/db-0: blocked: Budget: The budget keep-the-database"),
        "{changed:?}"
    );
    assert_eq!(changed.len(), 2);
    // Only the message changes: the numbers of a budget go up and down all the time.
    let mut third = second.clone();
    third.blockers[0].message = "other numbers".to_owned();
    assert!(lines::changes(Some(&second), &third).is_empty());
    assert_eq!(
        lines::changes(Some(&third), &snapshot(&[0, 0])),
        [
            "worker-00.eu-west-1.example.com: no pods left",
            "shop/db-0: no longer blocked: Budget",
            "drain-pool-old: drained. All targeted pods are gone.",
        ]
    );
}

#[test]
fn snapshot_counts_pods_that_have_to_leave() {
    let maintenance: NodeMaintenance = serde_json::from_value(json!({
        "metadata": {"name": "m", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"stage": "Drain"},
        "status": {
            "selectedNodes": 2, "drainedNodes": 1,
            "nodeStatuses": [{"nodeRef": {"name": "b"}, "drainMessage": "Draining"}],
            "blockers": [{"reason": "NoNodeSelected", "message": "m", "since": "2026-01-01T00:00:00Z"}],
        },
    }))
    .unwrap();
    let nodes: Vec<Node> = ["a", "b"]
        .map(|name| {
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"unschedulable": true}}))
                .unwrap()
        })
        .to_vec();
    let pod = |name: &str, node: &str, phase: &str| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase},
        }))
        .unwrap()
    };
    let mut fixed = pod("static", "b", "Running");
    fixed.metadata.annotations = Some([("kubernetes.io/config.mirror".to_owned(), "x".to_owned())].into());
    let pods = [
        pod("one", "b", "Running"),
        pod("done", "b", "Succeeded"),
        fixed,
        pod("far", "c", "Running"),
    ];
    let snapshot = Snapshot::new(&maintenance, &nodes, &pods);
    assert_eq!(snapshot.left(), 1);
    let names: Vec<_> = snapshot
        .nodes
        .iter()
        .map(|node| (node.name.as_str(), node.left, node.left_alone))
        .collect();
    assert_eq!(names, [("b", 1, 1), ("a", 0, 0)]);
    assert_eq!(snapshot.nodes[0].message, "Draining");
    assert_eq!(
        (snapshot.blockers[0].pod.as_str(), snapshot.drained_nodes),
        ("", 1)
    );
}
