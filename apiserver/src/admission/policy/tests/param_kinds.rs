//! A policy whose `paramKind` the host does not serve.

use super::applied::{applied, outcomes};
use super::*;

fn with_unknown_kind(failure_policy: &str, app: &str) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {
        "failurePolicy": failure_policy,
        "paramKind": {"apiVersion": "absent.example.com/v1", "kind": "Nothing"},
        "matchConstraints": {
            "resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}],
            "objectSelector": {"matchLabels": {"app": app}},
        },
        "validations": [{"expression": "true"}],
        "mutations": [],
    }})
}

/// A binding that does not select the write.
fn of_others() -> Value {
    json!({"metadata": {"name": "b"}, "spec": {
        "policyName": "p",
        "paramRef": {"name": "x", "parameterNotFoundAction": "Allow"},
        "validationActions": ["Deny"],
        "matchResources": {"objectSelector": {"matchLabels": {"app": "other"}}},
    }})
}

#[tokio::test]
async fn it_rejects_what_the_policy_matches_whatever_the_bindings_select() {
    for outcome in outcomes(with_unknown_kind("Fail", "web"), Some(of_others())).await {
        let error = outcome.unwrap_err();
        let expected = "failed to configure policy: failed to find resource referenced by paramKind: \
                        'absent.example.com/v1, Kind=Nothing'";
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("binding"), "{error}");
    }
}

#[tokio::test]
async fn it_rejects_nothing_else() {
    for (policy, binding) in [
        (with_unknown_kind("Ignore", "web"), Some(of_others())),
        (with_unknown_kind("Fail", "other"), Some(of_others())),
        (with_unknown_kind("Fail", "web"), None),
    ] {
        let text = policy.to_string();
        assert_eq!(outcomes(policy, binding).await, [Ok(()), Ok(())], "{text}");
    }
}

/// The failure policy lets the write go on: this is counted, and stands in the audit log.
#[tokio::test]
async fn what_it_passes_over_is_counted_and_recorded() {
    let found = applied(with_unknown_kind("Ignore", "web"), Some(of_others())).await;
    let text = "failed to configure policy: failed to find resource referenced by paramKind: \
                'absent.example.com/v1, Kind=Nothing'";
    let annotations = ["validation", "mutation"].map(|phase| {
        (
            format!("failed-open.{phase}.policy.drydock.dev/p"),
            text.to_owned(),
        )
    });
    assert_eq!(found.annotations, annotations.into());
    for kind in ["validating", "mutating"] {
        let line = format!(
            "apiserver_{kind}_admission_policy_check_total{{policy=\"p\",policy_binding=\"\",enforcement_action=\"allow\",\
             error_type=\"invalid_error\"}} 1"
        );
        assert!(
            found.metrics.contains(&line),
            "{line} is not in {}",
            found.metrics
        );
    }
}
