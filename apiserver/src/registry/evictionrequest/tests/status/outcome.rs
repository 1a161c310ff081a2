//! Conditions, counters and the cancellation policy.

use super::*;

#[test]
fn evicted_and_canceled_stay_true_and_exclude_each_other() {
    for end in ["Evicted", "Canceled"] {
        let text = format!("{end} may not go back from True");
        let mut back = condition(end);
        back["status"] = json!("False");
        check(
            json!({"conditions": [condition(end)]}),
            json!({"conditions": [condition("Other"), back]}),
            &[(
                "status.conditions[1].status",
                "FieldValueInvalid",
                &format!("Invalid value: \"False\": {text}"),
            )],
        );
        check(
            json!({"conditions": [condition(end)]}),
            json!({}),
            &[(
                "status.conditions",
                "FieldValueRequired",
                &format!("Required value: {text}"),
            )],
        );
        check(
            json!({"conditions": [back]}),
            json!({"conditions": [condition(end)]}),
            &[],
        );
    }
    let both = json!({"conditions": [condition("Evicted"), condition("Canceled")]});
    let text = "Forbidden: Evicted and Canceled may not both be True";
    for (old, place) in [
        (json!({}), "status.conditions[1].status"),
        (
            json!({"conditions": [condition("Evicted")]}),
            "status.conditions[1].status",
        ),
        (
            json!({"conditions": [condition("Canceled")]}),
            "status.conditions[0].status",
        ),
    ] {
        check(old, both.clone(), &[(place, "FieldValueForbidden", text)]);
    }
    check(
        json!({}),
        json!({"conditions": [{"type": "Ready", "status": "Yes", "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        &[(
            "status.conditions[0].status",
            "FieldValueNotSupported",
            "Unsupported value: \"Yes\": supported values: \"False\", \"True\", \"Unknown\"",
        )],
    );
}

#[test]
fn the_counter_of_failed_evictions_never_decreases() {
    let count = |count: i64| json!({"podEvictionStatus": {"failedAPIEvictionCounter": count}});
    let counter = "status.podEvictionStatus.failedAPIEvictionCounter";
    check(json!({}), count(1), &[]);
    check(count(1), count(3), &[]);
    check(
        count(2),
        count(1),
        &[(
            counter,
            "FieldValueInvalid",
            "Invalid value: 1: must not be decremented",
        )],
    );
    check(
        count(2),
        json!({}),
        &[(
            counter,
            "FieldValueInvalid",
            "Invalid value: 0: must not be decremented",
        )],
    );
    check(
        json!({}),
        count(-1),
        &[(
            counter,
            "FieldValueInvalid",
            "Invalid value: -1: must be greater than or equal to 0",
        )],
    );
}

#[test]
fn the_last_eviction_attempt_only_advances_to_the_present() {
    let times = |last: Value, next: Value| json!({"podEvictionStatus": {"failedAPIEvictionCounter": 0, "lastAttemptTime": last, "nextAttemptTime": next}});
    let last = |last: &str| times(at(last), Value::Null);
    let path = "status.podEvictionStatus.lastAttemptTime";
    let near = "Invalid value: \"2026-01-01T{}Z\": must be within 10 seconds of the server's time";
    check(json!({}), last("11:59:50"), &[]);
    check(last("11:59:40"), last("12:00:10"), &[]);
    check(last("11:00:00"), times(at("12:00:00"), at("12:00:08")), &[]);
    check(last("11:00:00"), times(at("11:00:00"), at("12:30:00")), &[]);
    check(times(at("11:00:00"), at("12:30:00")), last("12:00:00"), &[]);
    for time in ["11:59:49", "12:00:11"] {
        check(
            json!({}),
            last(time),
            &[(path, "FieldValueInvalid", &near.replace("{}", time))],
        );
    }
    check(
        last("12:00:05"),
        last("12:00:00"),
        &[(
            path,
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T12:00:00Z\": must not go back",
        )],
    );
    check(
        last("11:00:00"),
        json!({}),
        &[(path, "FieldValueRequired", "Required value: may not be removed")],
    );
    for (before, after) in [
        (json!({}), times(Value::Null, at("12:00:00"))),
        (last("11:00:00"), times(at("11:00:00"), at("10:00:00"))),
    ] {
        let next = after["podEvictionStatus"]["nextAttemptTime"]
            .as_str()
            .unwrap()
            .to_owned();
        let text = format!("Invalid value: \"{next}\": must not be before lastAttemptTime");
        check(
            before,
            after,
            &[(
                "status.podEvictionStatus.nextAttemptTime",
                "FieldValueInvalid",
                &text,
            )],
        );
    }
}

#[test]
fn observed_generation_never_decreases() {
    let generation = |generation: i64| json!({"observedGeneration": generation});
    let path = "status.observedGeneration";
    check(generation(1), generation(2), &[]);
    check(
        generation(2),
        generation(1),
        &[(
            path,
            "FieldValueInvalid",
            "Invalid value: 1: must not be decremented",
        )],
    );
    check(
        generation(2),
        json!({}),
        &[(
            path,
            "FieldValueInvalid",
            "Invalid value: 0: must not be decremented",
        )],
    );
}

#[test]
fn the_cancellation_policy_changes_only_while_an_interceptor_is_active() {
    let policy = "status.evictionRequestCancellationPolicy";
    let mut forbid = a_is_active();
    forbid["evictionRequestCancellationPolicy"] = json!("Forbid");
    check(a_is_active(), forbid.clone(), &[]);
    check(forbid, a_is_active(), &[]);
    check(
        declared(json!({})),
        declared(json!({"evictionRequestCancellationPolicy": "Allow"})),
        &[],
    );
    check(
        declared(json!({})),
        declared(json!({"evictionRequestCancellationPolicy": "Forbid"})),
        &[(
            policy,
            "FieldValueForbidden",
            "Forbidden: may change only while an interceptor is active",
        )],
    );
    let mut unknown = a_is_active();
    unknown["evictionRequestCancellationPolicy"] = json!("Maybe");
    check(
        a_is_active(),
        unknown,
        &[(
            policy,
            "FieldValueNotSupported",
            "Unsupported value: \"Maybe\": supported values: \"Allow\", \"Forbid\"",
        )],
    );
}
