use serde_json::{Value, json};

use super::*;
use crate::budgets::tests::{budget, counts};
use crate::golden;
use crate::terminal::Colour;

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn pod(name: &str, metadata: &Value, spec: &Value) -> FoundPod {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
        "spec": {"nodeName": "node-a", "containers": []},
        "status": {"phase": "Running"},
    });
    for (part, overlay) in [("metadata", metadata), ("spec", spec)] {
        for (key, value) in overlay.as_object().unwrap() {
            object[part][key] = value.clone();
        }
    }
    FoundPod {
        pod: serde_json::from_value(object.clone()).unwrap(),
        object,
    }
}

fn owner(kind: &str, name: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": format!("{kind}-{name}"), "controller": true}])
}

/// A pod of a `ReplicaSet` with three pods: nothing to find.
fn web() -> FoundPod {
    pod(
        "web",
        &json!({"ownerReferences": owner("ReplicaSet", "web")}),
        &json!({}),
    )
}

fn facts(pods: Vec<FoundPod>) -> Facts {
    let mut neighbours: Vec<Pod> = pods.iter().map(|found| found.pod.clone()).collect();
    neighbours.extend([web().pod, web().pod]);
    Facts {
        nodes: vec!["node-a".to_owned()],
        pods,
        neighbours,
        ..Facts::default()
    }
}

#[track_caller]
fn check(facts: &Facts, expected: &[(Severity, &str)]) {
    let found: Vec<(Severity, &str)> = findings(facts, now())
        .iter()
        .map(|one| (one.severity, one.check))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn ordinary_pods_lead_to_no_finding() {
    check(&facts(vec![web()]), &[]);
}

#[test]
fn budgets_that_hold_are_found() {
    use Severity::{Blocks, Warns};
    let selector = json!({"matchLabels": {"app": "web"}});
    let with = |budgets: Vec<PodDisruptionBudget>| Facts {
        budgets,
        ..facts(vec![web()])
    };
    let status = |numbers: (i32, i32, i32, i32)| counts(numbers.0, numbers.1, numbers.2, numbers.3);
    check(&with(vec![budget("b", &selector, &status((3, 2, 3, 1)))]), &[]);
    check(
        &with(vec![budget("b", &selector, &status((2, 2, 3, 0)))]),
        &[(Warns, "BudgetExhausted")],
    );
    check(
        &with(vec![budget("b", &selector, &status((3, 3, 3, 0)))]),
        &[(Blocks, "BudgetNever")],
    );
    check(
        &with(vec![budget("b", &selector, &json!({"observedGeneration": 0}))]),
        &[(Warns, "BudgetNotObserved")],
    );
    let failed = json!({"observedGeneration": 1, "conditions": [{
        "type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no scale",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]});
    check(
        &with(vec![budget("b", &selector, &failed)]),
        &[(Blocks, "BudgetNotComputable")],
    );
    let two = vec![
        budget("b", &selector, &status((3, 2, 3, 1))),
        budget("c", &json!({}), &status((3, 2, 3, 1))),
    ];
    check(&with(two), &[(Blocks, "MultipleBudgets")]);
}

#[test]
fn pods_that_suffer_are_found() {
    use Severity::{Blocks, Notes, Warns};
    let set = json!({"ownerReferences": owner("StatefulSet", "db")});
    let claim = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}]});
    let mut pinned = facts(vec![pod("db", &set, &claim)]);
    pinned.claims = vec![
        serde_json::from_value(
            json!({"metadata": {"name": "data-db-0", "namespace": "shop"}, "spec": {"volumeName": "pv-1"}}),
        )
        .unwrap(),
    ];
    pinned.volumes = vec![
        serde_json::from_value(json!({"metadata": {"name": "pv-1"}, "spec": {"local": {"path": "/data"}}}))
            .unwrap(),
    ];
    check(&pinned, &[(Warns, "PinnedVolume"), (Warns, "SingleReplica")]);

    check(
        &facts(vec![pod("bare", &json!({}), &json!({}))]),
        &[(Warns, "Unmanaged")],
    );
    let owned = json!({"ownerReferences": owner("ReplicaSet", "web")});
    let everything = json!({"tolerations": [{"operator": "Exists"}]});
    check(
        &facts(vec![pod("web", &owned, &everything)]),
        &[(Warns, "ToleratesEverything")],
    );
    let group = json!({"schedulingGroup": {"name": "g"}});
    check(&facts(vec![pod("web", &owned, &group)]), &[(Blocks, "PodGroup")]);
    let temporary = json!({"volumes": [{"name": "t", "emptyDir": {}}]});
    check(
        &facts(vec![pod("web", &owned, &temporary)]),
        &[(Notes, "EmptyDir")],
    );
    let habit = json!({
        "ownerReferences": owner("ReplicaSet", "web"), "annotations": {"karpenter.sh/do-not-disrupt": "true"},
    });
    check(
        &facts(vec![pod("web", &habit, &json!({}))]),
        &[(Notes, "Annotated")],
    );
    let ours = json!({
        "ownerReferences": owner("ReplicaSet", "web"), "labels": {"app.kubernetes.io/part-of": "drydock"},
    });
    check(
        &facts(vec![pod("drydock-apiserver-0", &ours, &json!({}))]),
        &[(Warns, "OwnServer")],
    );
}

#[test]
fn pods_that_stay_are_named_and_not_checked() {
    use Severity::Notes;
    let daemon = json!({"ownerReferences": owner("DaemonSet", "agent")});
    let mirror = json!({"annotations": {"kubernetes.io/config.mirror": "x"}});
    let pods = vec![
        pod(
            "agent",
            &daemon,
            &json!({"tolerations": [{"operator": "Exists"}]}),
        ),
        pod("proxy", &mirror, &json!({})),
    ];
    check(&facts(pods), &[(Notes, "DaemonSetPod"), (Notes, "StaticPod")]);
}

#[test]
fn interceptors_that_do_not_answer_are_found() {
    use Severity::{Notes, Warns};
    let rule: EvictionInterceptor = serde_json::from_value(json!({
        "metadata": {"name": "backup.example.com"},
        "spec": {"interceptorName": "backup.example.com"},
    }))
    .unwrap();
    let mut facts = facts(vec![web()]);
    facts.rules = vec![rule];
    check(&facts, &[(Notes, "InterceptorUnknown")]);
    let request = |report: Value| -> EvictionRequest {
        serde_json::from_value(json!({"status": {"interceptors": [report]}})).unwrap()
    };
    facts.requests = vec![request(
        json!({"name": "backup.example.com", "activationTime": "2026-01-01T00:00:00Z"}),
    )];
    check(&facts, &[(Warns, "InterceptorSilent")]);
    facts.requests.push(request(
        json!({"name": "backup.example.com", "heartbeatTime": "2026-01-01T00:00:00Z"}),
    ));
    check(&facts, &[]);
    facts.rules[0].status = serde_json::from_value(json!({"conditions": [{
        "type": "Accepted", "status": "False", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}))
    .unwrap();
    facts.requests.clear();
    check(&facts, &[]);
}

#[test]
fn findings_are_printed_by_node_with_those_that_block_first() {
    let mut facts = facts(vec![web(), pod("bare", &json!({}), &json!({}))]);
    facts.nodes.push("node-b".to_owned());
    facts.budgets = vec![budget(
        "web",
        &json!({"matchLabels": {"app": "web"}}),
        &counts(3, 3, 3, 0),
    )];
    facts.unread = vec!["volumes (forbidden)".to_owned()];
    let findings = findings(&facts, now());
    let texts = [80, 120].map(|columns| text::render(&facts, &findings, columns, Colour::Off));
    golden::check("preflight.txt", &texts.join("--- 120 columns\n"));
}
