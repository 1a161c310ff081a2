use drydock_machinery::field_error::FieldPath;
use drydock_proto::kinds::nodemaintenance::DrainPlanEntry;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::columns;
use super::{NodeMaintenanceStrategy, drain_plan};
use crate::registry::strategy::Strategy as _;
use crate::registry::tests::{Cause, assert_causes, context};

const STRATEGY: NodeMaintenanceStrategy = NodeMaintenanceStrategy;

fn maintenance(spec: &Value) -> Value {
    let mut object = json!({"metadata": {"name": "n"}, "spec": {
        "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]},
        "stage": "Idle",
    }});
    object["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    object
}

/// Runs the hooks of a create as the registry does: `prepare_for_create`, then `validate`.
fn create(spec: &Value, expected: &[Cause<'_>]) {
    let mut object = maintenance(spec);
    STRATEGY.prepare_for_create(&mut object, &context());
    assert_causes(&STRATEGY.validate(&object, &context()), expected, spec);
}

fn update(old: &Value, new: &Value, expected: &[Cause<'_>]) {
    let (mut old, mut new) = (maintenance(old), maintenance(new));
    STRATEGY.prepare_for_create(&mut old, &context());
    STRATEGY.prepare_for_update(&mut new, &old, &context());
    assert_causes(
        &STRATEGY.validate_update(&new, &old, &context()),
        expected,
        &new["spec"],
    );
    assert_causes(
        &STRATEGY.validate_update(&old, &old, &context()),
        &[],
        &old["spec"],
    );
}

fn step(pod_type: &str, priority: i64) -> Value {
    json!({"podType": pod_type, "podPriority": priority})
}

fn selecting(pod_type: &str, priority: i64, app: &str) -> Value {
    json!({"podType": pod_type, "podPriority": priority, "podSelector": {"matchLabels": {"app": app}}})
}

#[test]
fn well_formed_maintenances_are_valid() {
    create(&json!({}), &[]);
    create(&json!({"stage": "Drain", "reason": "kernel"}), &[]);
    create(
        &json!({"drainPlan": [selecting("Default", 5, "web"), step("Static", -1)]}),
        &[],
    );
    create(&json!({"drainPlan": null}), &[]);
}

#[test]
fn every_error_of_the_spec_is_reported() {
    create(
        &json!({"nodeSelector": null}),
        &[("spec.nodeSelector", "FieldValueRequired", "Required value")],
    );
    create(
        &json!({"nodeSelector": {"nodeSelectorTerms": []}}),
        &[(
            "spec.nodeSelector.nodeSelectorTerms",
            "FieldValueRequired",
            "Required value: must have at least one node selector term",
        )],
    );
    create(
        &json!({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "spec.x", "operator": "In", "values": ["a"]}]}]}}),
        &[(
            "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].key",
            "FieldValueInvalid",
            "Invalid value: \"spec.x\": not a valid field selector key",
        )],
    );
    create(
        &json!({"stage": "Reboot"}),
        &[(
            "spec.stage",
            "FieldValueNotSupported",
            "Unsupported value: \"Reboot\": supported values: \"Idle\", \"Cordon\", \"Drain\", \"Complete\"",
        )],
    );
    let bad_selector = json!({"podType": "Static", "podPriority": 1, "podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}});
    create(
        &json!({"drainPlan": [step("Static", 9), step("Job", 1), bad_selector, step("Static", 9)]}),
        &[
            (
                "spec.drainPlan[1].podType",
                "FieldValueNotSupported",
                "Unsupported value: \"Job\": supported values: \"Default\", \"DaemonSet\", \"Static\"",
            ),
            (
                "spec.drainPlan[2].podSelector.matchExpressions[0].values",
                "FieldValueRequired",
                "Required value: must be specified when `operator` is 'In' or 'NotIn'",
            ),
            (
                "spec.drainPlan[3]",
                "FieldValueDuplicate",
                "Duplicate value: {\"podPriority\":9,\"podType\":\"Static\"}",
            ),
        ],
    );
    create(
        &json!({"drainPlan": [step("Default", 3_000_000_000)]}),
        &[(
            "spec",
            "FieldValueTypeInvalid",
            "Invalid value: \"object\": invalid value: integer `3000000000`, expected i32",
        )],
    );
}

#[test]
fn the_drain_plan_is_completed_and_ordered_on_create() {
    let mut object = maintenance(&json!({"drainPlan": [
        step("Static", 2_147_483_647),
        step("DaemonSet", 7),
        selecting("Default", 2_000_000_000, "web"),
        step("Default", 10_000),
        selecting("Default", 10_000, "b"),
        selecting("Default", 10_000, "a"),
    ]}));
    STRATEGY.prepare_for_create(&mut object, &context());
    let defaults = |pod_type: &'static str, from: usize| {
        [1_000_000_000, 2_000_000_000, 2_000_001_000, 2_147_483_647]
            .into_iter()
            .skip(from)
            .map(move |p| step(pod_type, p))
    };
    let mut expected = vec![
        selecting("Default", 10_000, "b"),
        selecting("Default", 10_000, "a"),
        step("Default", 10_000),
        step("Default", 1_000_000_000),
        selecting("Default", 2_000_000_000, "web"),
    ];
    expected.extend(defaults("Default", 1));
    expected.push(step("DaemonSet", 7));
    expected.extend(defaults("DaemonSet", 0));
    expected.extend(defaults("Static", 0));
    assert_eq!(object["spec"]["drainPlan"], json!(expected));

    let mut empty = maintenance(&json!({}));
    STRATEGY.prepare_for_create(&mut empty, &context());
    assert_eq!(empty["spec"]["drainPlan"].as_array().unwrap().len(), 12);
    let mut none = json!({"metadata": {}});
    STRATEGY.prepare_for_create(&mut none, &context());
    assert_eq!(none, json!({"metadata": {}}));
}

#[test]
fn the_stage_only_moves_forward() {
    let stages = ["Idle", "Cordon", "Drain", "Complete"];
    for (before, old) in stages.iter().enumerate() {
        for (after, new) in stages.iter().enumerate() {
            let text = format!("Invalid value: \"{new}\": must not go back from {old}");
            let back = [("spec.stage", "FieldValueInvalid", text.as_str())];
            let expected = if after < before { &back[..] } else { &[] };
            update(&json!({"stage": old}), &json!({"stage": new}), expected);
        }
    }
    update(
        &json!({"stage": "Drain"}),
        &json!({"stage": "X"}),
        &[(
            "spec.stage",
            "FieldValueNotSupported",
            "Unsupported value: \"X\": supported values: \"Idle\", \"Cordon\", \"Drain\", \"Complete\"",
        )],
    );
}

#[test]
fn the_node_selector_is_immutable_once_the_stage_is_not_idle() {
    let other = |stage: &str| json!({"stage": stage, "nodeSelector": {"nodeSelectorTerms": [{}]}});
    update(&json!({}), &other("Idle"), &[]);
    update(&json!({}), &other("Drain"), &[]);
    update(
        &json!({"stage": "Cordon"}),
        &other("Cordon"),
        &[(
            "spec.nodeSelector",
            "FieldValueForbidden",
            "Forbidden: may change only while the stage is Idle, and it is Cordon",
        )],
    );
    update(
        &json!({}),
        &json!({"nodeSelector": null}),
        &[("spec.nodeSelector", "FieldValueRequired", "Required value")],
    );
    update(
        &json!({"stage": "Drain"}),
        &json!({"stage": "Drain", "reason": "other"}),
        &[],
    );
}

#[test]
fn the_drain_plan_is_immutable_and_the_incomplete_plan_may_be_sent_again() {
    let plan = json!({"drainPlan": [step("DaemonSet", 7), selecting("Default", 5, "web")]});
    update(&plan, &plan, &[]);
    update(
        &plan,
        &json!({"drainPlan": [selecting("Default", 5, "web"), step("DaemonSet", 7)]}),
        &[],
    );
    let (mut old, mut new) = (maintenance(&plan), maintenance(&json!({})));
    STRATEGY.prepare_for_create(&mut old, &context());
    STRATEGY.prepare_for_update(&mut new, &old, &context());
    let errors = STRATEGY.validate_update(&new, &old, &context());
    assert_eq!(errors.len(), 1);
    let error = errors.iter().next().unwrap();
    assert_eq!(
        (error.field(), error.reason()),
        ("spec.drainPlan", "FieldValueInvalid")
    );
    assert!(error.body().ends_with(": field is immutable"));
}

fn status(old: &Value, new: &Value, expected: &[Cause<'_>]) {
    let object = |status: &Value| {
        let mut object = maintenance(&json!({}));
        object["status"] = status.clone();
        object
    };
    assert_causes(
        &STRATEGY.validate_status_update(&object(new), &object(old), &context()),
        expected,
        new,
    );
}

#[test]
fn started_stages_stay_with_their_start_time() {
    let started = |name: &str, time: &str| json!({"name": name, "startTimestamp": time});
    let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let cordoned = json!({"stageStatuses": [started("Cordon", first)]});
    let draining = json!({"stageStatuses": [started("Cordon", first), started("Drain", second)]});
    status(&json!({}), &cordoned, &[]);
    status(&cordoned, &draining, &[]);
    status(&draining, &draining, &[]);
    status(
        &draining,
        &cordoned,
        &[(
            "status.stageStatuses",
            "FieldValueRequired",
            "Required value: must keep the stage \"Drain\", which has started",
        )],
    );
    status(
        &cordoned,
        &json!({"stageStatuses": [started("Cordon", second), started("Cordon", first), started("X", first)]}),
        &[
            (
                "status.stageStatuses[0].startTimestamp",
                "FieldValueInvalid",
                "Invalid value: \"2026-01-02T00:00:00Z\": field is immutable",
            ),
            (
                "status.stageStatuses[1].name",
                "FieldValueDuplicate",
                "Duplicate value: \"Cordon\"",
            ),
            (
                "status.stageStatuses[2].name",
                "FieldValueNotSupported",
                "Unsupported value: \"X\": supported values: \"Idle\", \"Cordon\", \"Drain\", \"Complete\"",
            ),
        ],
    );
}

#[test]
fn status_counts_nodes_and_conditions_are_validated() {
    let negative = "Invalid value: -1: must be greater than or equal to 0";
    status(
        &json!({}),
        &json!({
            "drainStatus": {"podsPendingEvictionRequest": -1, "activeEvictionRequests": -1},
            "nodeStatuses": [{"nodeRef": {"name": "a"}}, {"podsPendingEvictionRequest": -1, "activeEvictionRequests": 1}],
            "selectedNodes": -1,
            "drainedNodes": -1,
            "conditions": [{"type": "Drained", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }),
        &[
            (
                "status.drainStatus.podsPendingEvictionRequest",
                "FieldValueInvalid",
                negative,
            ),
            (
                "status.drainStatus.activeEvictionRequests",
                "FieldValueInvalid",
                negative,
            ),
            (
                "status.nodeStatuses[1].nodeRef.name",
                "FieldValueRequired",
                "Required value",
            ),
            (
                "status.nodeStatuses[1].podsPendingEvictionRequest",
                "FieldValueInvalid",
                negative,
            ),
            ("status.selectedNodes", "FieldValueInvalid", negative),
            ("status.drainedNodes", "FieldValueInvalid", negative),
            (
                "status.conditions[0].status",
                "FieldValueNotSupported",
                "Unsupported value: \"\": supported values: \"False\", \"True\", \"Unknown\"",
            ),
            (
                "status.conditions[0].reason",
                "FieldValueRequired",
                "Required value: must be set",
            ),
        ],
    );
}

#[test]
fn blockers_are_bounded_and_have_a_reason_and_a_time() {
    let blocker = |message: &str| json!({"node": "a", "reason": "Budget", "message": message, "since": "2026-01-01T00:00:00Z"});
    let longest = blocker(&"x".repeat(1024));
    status(&json!({}), &json!({"blockers": vec![longest; 20]}), &[]);
    status(
        &json!({}),
        &json!({"blockers": vec![json!({}); 21]}),
        &[(
            "status.blockers",
            "FieldValueTooMany",
            "Too many: 21: must have at most 20 items",
        )],
    );
    status(
        &json!({}),
        &json!({"blockers": [blocker(""), {"message": "x".repeat(1025)}]}),
        &[
            (
                "status.blockers[1].reason",
                "FieldValueRequired",
                "Required value",
            ),
            (
                "status.blockers[1].message",
                "FieldValueTooLong",
                "Too long: may not be more than 1024 bytes",
            ),
            ("status.blockers[1].since", "FieldValueRequired", "Required value"),
        ],
    );
}

#[test]
fn nodes_cordoned_before_are_a_bounded_set_of_node_names() {
    let many: Vec<String> = (0..5001).map(|index| format!("n-{index}")).collect();
    status(&json!({}), &json!({"cordonedBefore": many[..5000]}), &[]);
    status(
        &json!({}),
        &json!({"cordonedBefore": many}),
        &[(
            "status.cordonedBefore",
            "FieldValueTooMany",
            "Too many: 5001: must have at most 5000 items",
        )],
    );
    status(
        &json!({}),
        &json!({"cordonedBefore": ["a", "b", "a", "A"]}),
        &[
            (
                "status.cordonedBefore[2]",
                "FieldValueDuplicate",
                "Duplicate value: \"a\"",
            ),
            (
                "status.cordonedBefore[3]",
                "FieldValueInvalid",
                "Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                 characters, '-' or '.', and must start and end with an alphanumeric character",
            ),
        ],
    );
}

#[test]
fn columns_show_nodes_and_pods_left() {
    let mut object = maintenance(&json!({"stage": "Drain", "reason": "kernel"}));
    object["metadata"]["creationTimestamp"] = json!("2026-01-01T11:59:00Z");
    assert_eq!(
        json!(columns::cells(&object, context().now)),
        json!(["n", "Drain", null, "", null, "", "60s", "", "kernel"])
    );
    object["status"] = json!({"selectedNodes": 3, "drainedNodes": 1, "drainStatus":
        {"drainMessage": "Draining", "podsPendingEvictionRequest": 4, "activeEvictionRequests": 2}});
    assert_eq!(
        json!(columns::cells(&object, context().now)),
        json!(["n", "Drain", 3, "1/3", 6, "Draining", "60s", "", "kernel"])
    );
    let nodes = |count: usize| -> Vec<Value> {
        let node = |index| json!({"nodeRef": {"name": format!("n{index}")}});
        (0..count).map(node).collect()
    };
    for (listed, selected, names) in [
        (2, 2, "n0,n1"),
        (5, 5, "n0,n1,n2,n3,n4"),
        (6, 6, "n0,n1,n2,n3,n4,1 more"),
        (6, 900, "n0,n1,n2,n3,n4,895 more"),
    ] {
        object["status"] = json!({"nodeStatuses": nodes(listed), "selectedNodes": selected});
        assert_eq!(columns::cells(&object, context().now)[7], json!(names));
    }
    assert_eq!(columns::COLUMNS.len(), 9);
}

#[test]
fn empty_selector_terms_cause_a_warning() {
    let object = maintenance(&json!({"nodeSelector": {"nodeSelectorTerms": [{}]}}));
    assert_eq!(
        STRATEGY.warnings_on_create(&object),
        ["spec.nodeSelector.nodeSelectorTerms[0]: an empty term matches no node"]
    );
    assert!(STRATEGY.warnings_on_create(&maintenance(&json!({}))).is_empty());
}

fn any_plan() -> impl Strategy<Value = Vec<Value>> {
    let pod_type = prop::sample::select(vec!["Default", "DaemonSet", "Static"]);
    let priority = prop::sample::select(vec![
        -5,
        0,
        10_000,
        1_000_000_000,
        2_000_000_000,
        2_147_483_647_i64,
    ]);
    let app = prop::option::of("[abc]");
    let entry = (pod_type, priority, app).prop_map(|(pod_type, priority, app)| match app {
        None => step(pod_type, priority),
        Some(app) => selecting(pod_type, priority, &app),
    });
    prop::collection::vec(entry, 0..12).prop_map(|mut plan| {
        let mut seen = Vec::new();
        plan.retain(|entry| {
            !seen.contains(entry) && {
                seen.push(entry.clone());
                true
            }
        });
        plan
    })
}

proptest! {
    #[test]
    fn completing_a_plan_orders_it_keeps_its_steps_and_is_idempotent(plan in any_plan()) {
        let mut complete = plan.clone();
        drain_plan::complete(&mut complete);
        prop_assert!(drain_plan::validate(&complete, &FieldPath::root()).is_empty());
        prop_assert!(plan.iter().all(|step| complete.contains(step)));
        for pod_type in ["Default", "DaemonSet", "Static"] {
            for priority in [1_000_000_000, 2_000_000_000, 2_000_001_000, 2_147_483_647] {
                prop_assert!(complete.contains(&step(pod_type, priority)));
            }
        }
        let missing = 12 - plan.iter().filter(|step| step.get("podSelector").is_none() && step["podPriority"].as_i64() >= Some(1_000_000_000)).count();
        prop_assert_eq!(complete.len(), plan.len() + missing);
        let typed: Vec<DrainPlanEntry> = complete.iter().map(|step| serde_json::from_value(step.clone()).unwrap()).collect();
        prop_assert!(typed.is_sorted_by(|a, b| drain_plan::in_order(a, b).is_le()));

        let mut again = complete.clone();
        drain_plan::complete(&mut again);
        prop_assert_eq!(&again, &complete);
        let mut backwards = plan;
        backwards.reverse();
        drain_plan::complete(&mut backwards);
        let keys = |plan: &[Value]| -> Vec<_> { plan.iter().map(|step| (step["podType"].clone(), step["podPriority"].clone(), step.get("podSelector").is_none())).collect() };
        prop_assert_eq!(keys(&backwards), keys(&complete));
    }
}
