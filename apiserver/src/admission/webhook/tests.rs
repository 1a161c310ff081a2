//! What is left of calls that failed.

use prometheus_client::registry::Registry;

use super::*;
use crate::admission::attributes::Phase;
use crate::admission::conditions::Unevaluated;
use crate::admission::creation::Creation;
use crate::fixtures::{FakeHost, noon};
use crate::host::{AuthenticationConfig, Host};
use crate::http::client::SystemResolver;
use crate::metrics::Metrics;

/// A webhook that cannot be called, and that need not be.
fn configurations(kind: FollowedKind) -> Arc<Followed> {
    let configuration = json!({"metadata": {"name": "c"}, "webhooks": [{
        "name": "w.example.com", "clientConfig": {"url": "http://insecure.example.com"}, "failurePolicy": "Ignore",
        "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"],
    }]});
    let followed = Followed::new(kind);
    followed.replace(vec![Arc::new(configuration)]);
    Arc::new(followed)
}

/// Checklist 56.
#[tokio::test]
async fn a_webhook_that_is_passed_over_is_counted_and_recorded() {
    let mut registry = Registry::default();
    let context = WebhookContext {
        client: Arc::new(Client::new(SystemResolver)),
        metrics: Metrics::register(&mut registry, []).admission().clone(),
        conditions: Arc::new(Unevaluated),
        credentials: Arc::default(),
    };
    let host: Arc<dyn Host> = FakeHost::new(AuthenticationConfig::default());
    let creation = Creation::new();
    let attributes = |phase| Attributes::new(creation.write(), phase, &host, noon());
    let mutating = MutatingWebhooks::new(configurations(MUTATING), context.clone());
    let mut mutation = Mutation::new(attributes(Phase::Mutating));
    mutating.admit(&mut mutation).await.unwrap();
    let validating = ValidatingWebhooks::new(configurations(VALIDATING), context);
    validating.validate(&attributes(Phase::Validating)).await.unwrap();
    let contents = creation.audit.contents();
    let annotation = |key: &str| contents.annotations[key].as_str();
    assert_eq!(
        annotation("failed-open.mutation.webhook.admission.k8s.io/round_0_index_0"),
        "w.example.com"
    );
    assert_eq!(
        annotation("failed-open.validating.webhook.admission.k8s.io/round_0_index_0"),
        "w.example.com"
    );
    let mutated = annotation("mutation.webhook.admission.k8s.io/round_0_index_0");
    assert_eq!(
        serde_json::from_str::<Value>(mutated).unwrap(),
        json!({"configuration": "c", "webhook": "w.example.com", "mutated": false})
    );
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for step in ["admit", "validating"] {
        let line = format!(
            "apiserver_admission_webhook_fail_open_count{{name=\"w.example.com\",type=\"{step}\"}} 1"
        );
        assert!(text.contains(&line), "{line} is not in {text}");
    }
}
