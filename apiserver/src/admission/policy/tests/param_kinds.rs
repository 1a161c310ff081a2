//! A policy whose `paramKind` the host does not serve.

use prometheus_client::registry::Registry;

use super::*;
use crate::admission::attributes::{Attributes, Phase};
use crate::admission::plugin::{MutatingPlugin as _, Mutation, ValidatingPlugin as _};
use crate::admission::policy::PolicyContext;
use crate::admission::policy::mutating::MutatingPolicies;
use crate::admission::policy::validating::ValidatingPolicies;
use crate::authorization::Authorizer;
use crate::error::ApiError;
use crate::fixtures::{FakeHost, noon};
use crate::host::reviews::{ReviewTtls, Reviews};
use crate::host::{AuthenticationConfig, Host};
use crate::metrics::Metrics;
use crate::registry::admission::{Operation, Options, WriteAttributes};
use crate::registry::caller::Caller;
use crate::registry::endpoint::Endpoint;
use crate::registry::evictionrequest;
use crate::registry::part::Part;
use crate::request::options::WriteOptions;
use crate::request::{AuditRecord, UserInfo, Warnings};

/// The errors of a create of an object with the label `app: web` under a policy of either kind: the validating one, and the
/// mutating one.
async fn outcomes(policy: Value, binding: Option<Value>) -> [Result<(), String>; 2] {
    let fake = FakeHost::new(AuthenticationConfig::default());
    let bindings: Vec<Arc<Value>> = binding.into_iter().map(Arc::new).collect();
    let policies = vec![Arc::new(policy)];
    *fake.followed.lock().unwrap() = [
        ("validatingadmissionpolicies", policies.clone()),
        ("validatingadmissionpolicybindings", bindings.clone()),
        ("mutatingadmissionpolicies", policies),
        ("mutatingadmissionpolicybindings", bindings),
    ]
    .into();
    let host: Arc<dyn Host> = fake;
    let metrics = Metrics::register(&mut Registry::default(), []);
    let reviews = Arc::new(Reviews::new(Arc::clone(&host), ReviewTtls::default()).unwrap());
    let authorizer = Arc::new(Authorizer::new(reviews, Vec::new(), metrics));
    let context = PolicyContext::new(Arc::clone(&host), authorizer, &mut Registry::default());
    let resource = Arc::new(evictionrequest::REGISTRATION.resource(&Arc::default()).unwrap());
    let endpoint = Endpoint::stored(&resource);
    let user = Arc::new(UserInfo::default());
    let (warnings, audit) = (Warnings::default(), AuditRecord::default());
    let options = WriteOptions::default();
    let object = json!({"metadata": {"name": "x", "labels": {"app": "web"}}});
    let write = WriteAttributes {
        operation: Operation::Create,
        resource: &resource,
        endpoint: &endpoint,
        caller: Caller {
            user: &user,
            user_agent: "",
            warnings: &warnings,
            audit: &audit,
        },
        part: Part::Main,
        namespace: "shop",
        name: "x",
        object: Some(&object),
        old: None,
        revision: None,
        options: Options::Write(&options),
        of_collection: false,
        dry_run: false,
    };
    let text = |error: ApiError| serde_json::to_string(error.status()).unwrap();
    let attributes = |phase| Attributes::new(write, phase, &host, noon());
    let validated = ValidatingPolicies::new(&context).unwrap();
    let validated = validated.validate(&attributes(Phase::Validating)).await;
    let mutated = MutatingPolicies::new(&context).unwrap();
    let mutated = mutated
        .admit(&mut Mutation::new(attributes(Phase::Mutating)))
        .await;
    [validated.map_err(text), mutated.map_err(text)]
}

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
