use serde_json::{Value, json};

use super::*;
use crate::budgets::tests::{budget, counts};
use crate::golden;
use crate::terminal::Colour;
use drydock_proto::kinds::evictionrequest::Requester;

fn now() -> Timestamp {
    "2026-01-01T00:10:00Z".parse().unwrap()
}

fn pod(overlay: &Value) -> Pod {
    let mut object = json!({
        "metadata": {
            "name": "db-0", "namespace": "shop", "uid": "u-1", "labels": {"app": "db"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "s", "controller": true}],
        },
        "spec": {"nodeName": "node-a", "containers": []},
        "status": {"phase": "Running"},
    });
    for (pointer, value) in overlay.as_object().unwrap() {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

/// A request with two interceptors before the eviction API. `active` is the index of the one with its turn.
fn request(active: usize, status: &Value) -> EvictionRequest {
    let names = ["backup.example.com", "surge.example.com", IMPERATIVE_EVICTION];
    let reports: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let mut report = json!({"name": name});
            if index <= active {
                report["activationTime"] = json!(format!("2026-01-01T00:0{}:00Z", index + 1));
            }
            // The second one is passed over.
            if index < active && index != 1 {
                report["completionTime"] = json!(format!("2026-01-01T00:0{}:30Z", index + 1));
            }
            report
        })
        .collect();
    let mut object = json!({
        "metadata": {"name": "u-1", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:30Z"},
        "spec": {
            "target": {"pod": {"name": "db-0", "uid": "u-1"}},
            "requesters": [{"name": "nodemaintenance.k8s.io"}, {"name": "ops.example.com"}],
            "heartbeatDeadlineSeconds": 1200,
        },
        "status": {
            "targetInterceptors": names.map(|name| json!({"name": name})),
            "interceptors": reports,
            "activeInterceptors": [names[active]],
            "processedInterceptors": names[..active],
        },
    });
    for (key, value) in status.as_object().unwrap() {
        object["status"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn maintenance(blockers: &Value) -> NodeMaintenance {
    serde_json::from_value(json!({
        "metadata": {"name": "drain-node-a"},
        "spec": {"stage": "Drain", "reason": "replace a disk"},
        "status": {"blockers": blockers},
    }))
    .unwrap()
}

fn node(ready: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": "node-a"},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }))
    .unwrap()
}

fn blocked(reason: &str, message: &str) -> Value {
    json!([{
        "type": "Blocked", "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:04:00Z",
    }])
}

struct Scene {
    pod: Option<Pod>,
    request: Option<EvictionRequest>,
    budgets: Vec<PodDisruptionBudget>,
    maintenances: Vec<NodeMaintenance>,
    node: Node,
}

impl Scene {
    fn new(pod: Option<Pod>, request: Option<EvictionRequest>) -> Self {
        Self {
            pod,
            request,
            budgets: Vec::new(),
            maintenances: vec![maintenance(&json!([]))],
            node: node("True"),
        }
    }

    fn explain(&self) -> Explanation {
        explain(&Facts {
            pod: self.pod.as_ref(),
            request: self.request.as_ref(),
            node: Some(&self.node),
            budgets: &self.budgets,
            maintenances: &self.maintenances,
            now: now(),
        })
    }

    #[track_caller]
    fn check(&self, name: &str) {
        let explanation = self.explain();
        let texts = [80, 120].map(|columns| {
            let text = text::render(&explanation, now(), columns, Colour::Off);
            for line in text.lines() {
                let is_command = line.trim_start().starts_with("kubectl ");
                assert!(
                    is_command || line.chars().count() <= columns.max(80),
                    "{columns}: {line}"
                );
            }
            text
        });
        golden::check(&format!("explain/{name}.txt"), &texts.join("--- 120 columns\n"));
    }
}

fn attempts(conditions: &Value) -> Value {
    json!({
        "conditions": conditions,
        "podEvictionStatus": {
            "failedAPIEvictionCounter": 12, "lastAttemptTime": "2026-01-01T00:09:50Z",
            "nextAttemptTime": "2026-01-01T00:10:40Z",
        },
    })
}

#[test]
fn budget_is_explained_with_numbers_and_commands() {
    let message = "The budget db allows no disruption: 1 pod is healthy, 1 must be.";
    let mut scene = Scene::new(
        Some(pod(&json!({}))),
        Some(request(2, &attempts(&blocked("Budget", message)))),
    );
    scene.budgets = vec![budget(
        "db",
        &json!({"matchLabels": {"app": "db"}}),
        &counts(1, 1, 1, 0),
    )];
    scene.check("budget");
}

#[test]
fn interceptor_at_work_is_explained_with_its_words_and_deadline() {
    let mut request = request(0, &json!({}));
    let status = request.status.as_mut().unwrap();
    let report = &mut status.interceptors[0];
    report.start_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        "2026-01-01T00:01:10Z".parse().unwrap(),
    ));
    report.heartbeat_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        "2026-01-01T00:09:10Z".parse().unwrap(),
    ));
    report.expected_finish_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        "2026-01-01T00:14:00Z".parse().unwrap(),
    ));
    report.message = "saving what is in memory: 37 of 120 GB".to_owned();
    Scene::new(Some(pod(&json!({}))), Some(request)).check("intercepted");
}

#[test]
fn other_blocks_are_explained() {
    let silent = blocked(
        "InterceptorSilent",
        "backup.example.com has not reported since its activation.",
    );
    Scene::new(
        Some(pod(&json!({}))),
        Some(request(0, &json!({"conditions": silent}))),
    )
    .check("silent");

    let webhook = blocked(
        "Webhook",
        "admission webhook \"guard.example.com\" denied the request: not on Fridays",
    );
    let habit = json!({"/metadata/annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}});
    Scene::new(Some(pod(&habit)), Some(request(2, &attempts(&webhook)))).check("webhook");

    let deleted = json!({
        "/metadata/deletionTimestamp": "2026-01-01T00:05:00Z",
        "/metadata/finalizers": ["storage.example.com/detach"],
    });
    Scene::new(Some(pod(&deleted)), Some(request(2, &json!({})))).check("finalizers");
    let mut unreachable = Scene::new(Some(pod(&deleted)), Some(request(2, &json!({}))));
    unreachable.node = node("Unknown");
    unreachable.check("unreachable");
}

#[test]
fn pods_without_a_request_are_explained() {
    Scene::new(Some(pod(&json!({}))), None).check("waits-for-its-turn");
    let mut nobody = Scene::new(Some(pod(&json!({}))), None);
    nobody.maintenances.clear();
    assert_eq!(nobody.explain().state, State::NotRequested);
    let tolerant = json!({
        "/metadata/ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": true}],
        "/spec/tolerations": [{"operator": "Exists"}],
    });
    Scene::new(Some(pod(&tolerant)), None).check("left-alone");
}

#[test]
fn final_requests_are_explained() {
    let gone = json!({"conditions": [{
        "type": "Evicted", "status": "True", "reason": "PodDeleted", "message": "The pod is gone.",
        "lastTransitionTime": "2026-01-01T00:09:00Z",
    }]});
    Scene::new(None, Some(request(2, &gone))).check("gone");
    let canceled = json!({"conditions": [{
        "type": "Canceled", "status": "True", "reason": "ValidationFailed", "message": "The pod belongs to a group.",
        "lastTransitionTime": "2026-01-01T00:09:00Z",
    }]});
    Scene::new(Some(pod(&json!({}))), Some(request(2, &canceled))).check("canceled");
}

#[test]
fn what_blocks_is_found_without_the_condition() {
    let reason = |scene: &Scene| scene.explain().blocked.map(|blocked| blocked.reason);
    let selector = json!({"matchLabels": {"app": "db"}});
    let mut scene = Scene::new(Some(pod(&json!({}))), Some(request(2, &attempts(&json!([])))));
    assert_eq!(reason(&scene).as_deref(), Some("EvictionFailed"));
    scene.budgets = vec![budget("db", &selector, &counts(1, 1, 2, 0))];
    assert_eq!(reason(&scene).as_deref(), Some("Budget"));
    scene.budgets.push(budget("all", &json!({}), &counts(1, 1, 2, 0)));
    assert_eq!(reason(&scene).as_deref(), Some("MultipleBudgets"));
    scene.maintenances = vec![maintenance(&json!([{
        "node": "node-a", "namespace": "shop", "pod": "db-0", "reason": "RequestRefused", "message": "no",
        "since": "2026-01-01T00:02:00Z",
    }]))];
    assert_eq!(reason(&scene).as_deref(), Some("RequestRefused"));
    let progressing = json!([{
        "type": "Blocked", "status": "False", "reason": "Progressing", "message": "",
        "lastTransitionTime": "2026-01-01T00:04:00Z",
    }]);
    scene.request = Some(request(2, &attempts(&progressing)));
    assert_eq!(reason(&scene), None, "the condition decides");
}

/// Every reason of the contract leads to words of its own, and every command names objects.
#[test]
fn every_reason_has_advice() {
    let pages = [
        include_str!("../../../docs/kinds/evictionrequest.md"),
        include_str!("../../../docs/kinds/nodemaintenance.md"),
    ];
    for reason in [
        "Budget",
        "MultipleBudgets",
        "BudgetNotObserved",
        "BudgetNotComputable",
        "Webhook",
        "Throttled",
        "NamespaceTerminating",
        "Finalizers",
        "NotDeleting",
        "NodeUnreachable",
        "InterceptorRule",
        "InterceptorSilent",
        "StaticPod",
        "DaemonSetPod",
        "ClockSkew",
        "ComesBack",
        "RequestRefused",
        "RequestObstructed",
    ] {
        let mut scene = Scene::new(
            Some(pod(&json!({}))),
            Some(request(0, &json!({"conditions": blocked(reason, "m")}))),
        );
        scene.budgets = vec![budget("db", &json!({}), &counts(1, 1, 1, 0))];
        let advice = scene.explain().advice;
        assert!(!advice.is_empty(), "{reason}");
        let row = format!("| `{reason}` |");
        assert!(
            pages.iter().any(|page| page.contains(&row)),
            "{reason} is in a page"
        );
        for command in advice.iter().filter_map(|advice| advice.command.as_ref()) {
            assert!(
                command.starts_with("kubectl ") && !command.contains("  "),
                "{reason}: {command}"
            );
            assert!(
                !command.contains("describe pod") || reason == "NotDeleting",
                "{reason}: {command}"
            );
        }
    }
}

#[test]
fn the_user_behind_the_eviction_bridge_is_named() {
    let mut request = request(0, &json!({}));
    request.spec.requesters = vec![Requester {
        name: EVICTION_BRIDGE_REQUESTER.to_owned(),
    }];
    let asked =
        json!({"by": "system:serviceaccount:kube-system:descheduler", "until": "2026-01-01T00:15:00Z"});
    let annotation = (EVICTION_BRIDGE_ANNOTATION.to_owned(), asked.to_string());
    request.metadata.annotations = Some([annotation].into());
    let facts = Facts {
        pod: None,
        request: Some(&request),
        node: None,
        budgets: &[],
        maintenances: &[],
        now: now(),
    };
    let explanation = explain(&facts);
    assert_eq!(
        explanation.asked_by[0].user.as_deref(),
        Some("system:serviceaccount:kube-system:descheduler")
    );
    let text = text::render(&explanation, now(), 120, Colour::Off);
    assert!(
        text.contains("eviction-bridge.drydock (evictions by system:serviceaccount:kube-system:descheduler)"),
        "{text}"
    );
    let mut silent = request.clone();
    silent.metadata.annotations = None;
    let facts = Facts {
        request: Some(&silent),
        ..facts
    };
    assert_eq!(explain(&facts).asked_by[0].user, None);
}
