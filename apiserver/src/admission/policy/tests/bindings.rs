//! Bindings that this server cannot read, for example of a later release.

use super::applied::applied;
use super::*;

fn policy(failure_policy: &str) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {
        "failurePolicy": failure_policy,
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]},
        "validations": [{"expression": "true"}],
        "mutations": [],
    }})
}

fn unreadable(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"policyName": "p", "matchResources": "everything",
        "validationActions": ["Deny"]}})
}

fn is_named(metrics: &str) -> bool {
    ["Validating", "Mutating"].into_iter().all(|kind| {
        let line = format!(
            "drydock_admission_policies_not_compiled_total{{kind=\"{kind}AdmissionPolicyBinding\",policy=\"b\"}} 1"
        );
        metrics.contains(&line)
    })
}

#[tokio::test]
async fn one_that_cannot_be_read_follows_the_failure_policy_and_is_named() {
    let refused = applied(policy("Fail"), [unreadable("b")]).await;
    for outcome in refused.outcomes {
        let error = outcome.unwrap_err();
        assert!(
            error.contains("with binding 'b' denied request: failed to configure binding: "),
            "{error}"
        );
    }
    assert!(is_named(&refused.metrics), "{}", refused.metrics);
    let ignored = applied(policy("Ignore"), [unreadable("b")]).await;
    assert_eq!(ignored.outcomes, [Ok(()), Ok(())]);
    assert!(is_named(&ignored.metrics), "{}", ignored.metrics);
}

/// The audit log has the reasons of all, for each of the two policies.
#[tokio::test]
async fn all_that_are_passed_over_are_recorded() {
    let ignored = applied(policy("Ignore"), ["a", "b", "c"].map(unreadable)).await;
    assert_eq!(ignored.outcomes, [Ok(()), Ok(())]);
    for phase in ["validation", "mutation"] {
        let recorded = &ignored.annotations[&format!("failed-open.{phase}.policy.drydock.dev/p")];
        for binding in ["a", "b", "c"] {
            let reason = format!("{binding}: failed to configure binding: ");
            assert_eq!(recorded.matches(&reason).count(), 1, "{recorded}");
        }
    }
    // Not more than an audit annotation may have.
    let many = (0..500).map(|number| unreadable(&format!("binding-{number}")));
    let found = applied(policy("Ignore"), many).await;
    let recorded = &found.annotations["failed-open.validation.policy.drydock.dev/p"];
    assert_eq!(recorded.len(), 10 * 1024);
}

/// Nothing says which policy it is for, so no write is refused, and it is named all the same.
#[tokio::test]
async fn one_without_a_policy_is_named() {
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": 7}});
    let found = applied(policy("Fail"), Some(binding)).await;
    assert_eq!(found.outcomes, [Ok(()), Ok(())]);
    assert!(is_named(&found.metrics), "{}", found.metrics);
}
