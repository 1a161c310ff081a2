//! What policies leave in the audit log.

use super::applied::applied;
use super::*;

/// Checklist 60.
#[tokio::test]
async fn failures_and_annotations_are_recorded() {
    let policy = json!({"metadata": {"name": "p"}, "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]},
        "validations": [
            {"expression": "true"},
            {"expression": "object.metadata.name != 'x'", "message": "not x"},
        ],
        "auditAnnotations": [
            {"key": "name", "valueExpression": "'named ' + object.metadata.name"},
            {"key": "none", "valueExpression": "null"},
        ],
        "mutations": [],
    }});
    let binding =
        json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Audit"]}});
    let found = applied(policy, Some(binding)).await;
    assert_eq!(found.outcomes, [Ok(()), Ok(())]);
    let failures = "validation.policy.admission.k8s.io/validation_failure";
    let failed: Value = serde_json::from_str(&found.annotations[failures]).unwrap();
    let expected = json!([{"message": "not x", "policy": "p", "binding": "b", "expressionIndex": 1,
        "validationActions": ["Audit"]}]);
    assert_eq!(failed, expected);
    assert_eq!(found.annotations["p/name"], "named x");
    assert_eq!(found.annotations.len(), 2, "{:?}", found.annotations);
}
